"""What two revisions of the policies would have done differently over a stretch of the past, and the expressions that did it."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console

from shunter.model.backtest import Act, Altered, Contrast, Turned
from shunter.model.canon import plain
from shunter.report.diff import MARK, NAMES, STYLES, Said, changes, gates, sides, verdicts
from shunter.report.markdown import LIMIT, code, escaped, page
from shunter.report.marks import mark
from shunter.report.plan import headline
from shunter.report.words import Page, count, moment, short

_MOST: Final = 25
"""Lines of one kind that are shown for people."""


def contrast_text(contrast: Contrast, console: Console) -> None:
    """The counts, findings that flipped, the most lasting first, and operations that came, went and changed, with what explains them."""
    out = Page(console)
    out.title(f"What differs from {short(contrast.base)} to {short(contrast.head)}, and what did it")
    out.line(counted(contrast), indent=2)
    shown: dict[str, int] = {}
    for sign, line, more in told(contrast, str, lambda text: text):
        shown[sign] = shown.get(sign, 0) + 1
        if shown[sign] <= _MOST:
            out.line(f"{sign} {line}", indent=2, hang=4, style=STYLES[sign])
            for text in more:
                out.line(text, indent=6, hang=2)
    for sign, total in shown.items():
        if total > _MOST:
            out.line(f"{sign} and {total - _MOST:,} more: the JSON form has all of them", indent=2)
    for remark in contrast.remarks if contrast else ():
        out.line(f"note: {remark}.", indent=2, hang=6)


def contrast_markdown(contrast: Contrast, title: str, *, link: str = "", limit: int = LIMIT) -> str:
    """At most `limit` bytes of Markdown: the counts, and every line, cut in the middle if need be. `title` says over which time."""
    total = sum(contrast.counts.values())
    verdict = "no difference in outcome" if not total else f"{count(total, 'difference')} in outcome"
    before = [MARK, f"### Shunter: {verdict}", "", f"{escaped(title)}: {counted(contrast)}.", ""]
    before += [f"> {escaped(remark)}." for remark in contrast.remarks]
    return page(
        before, markdown_lines(contrast), [f"[All of it]({link})"] if link else [], title="What differs, and what did it", limit=limit
    )


def markdown_lines(contrast: Contrast) -> list[str]:
    """Each difference as an item of a list."""
    return [f"- {NAMES[sign]}: {line}" + "".join(f"<br>{text}" for text in more) for sign, line, more in told(contrast, code, escaped)]


def contrast_document(contrast: Contrast) -> dict[str, Any]:
    """As in the model, with `counts`; each operation that was added or removed with what explains it (`cause`: its place in `turned`)."""
    places = {id(turned): place for place, turned in enumerate(contrast.turned)}
    document: dict[str, Any] = plain(contrast)
    for name, acts in (("added", contrast.added), ("removed", contrast.removed)):
        causes = [contrast.cause(act) for act in acts]
        document[name] = [{**own, "cause": places.get(id(why))} for own, why in zip(document[name], causes, strict=True)]
    return {**document, "counts": contrast.counts}


def contrast_json(contrast: Contrast) -> bytes:
    """`changes`, and the `contrast`."""
    document = {"changes": bool(contrast), "contrast": contrast_document(contrast)}
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def counted(contrast: Contrast) -> str:
    """The numbers in words."""
    counts = contrast.counts
    parts = [f"{count(counts[name], 'operation')} {name}" for name in ("added", "removed", "changed") if counts[name]]
    parts += [f"{count(counts['flipped'], 'finding')} flipped"] if counts["flipped"] else []
    return ", ".join(parts) or "no difference in outcome"


Line = tuple[str, str, list[str]]


def told(contrast: Contrast, name: Said, text: Said) -> Iterable[Line]:
    """A mark, a line, and what stands below it. `name` and `text` make names and reasons safe for where they go."""
    yield from (_turned(one, name, text) for one in _longest_first(contrast.turned))
    for sign, acts in (("+", contrast.added), ("-", contrast.removed)):
        yield from (_act(sign, act, contrast.cause(act), name, text) for act in acts)
    yield from (_altered(one, name) for one in contrast.altered)


def _act(sign: str, act: Act, why: Turned | None, name: Said, text: Said) -> Line:
    line = f"{moment(act.at)}  {mark(preview=act.operation.preview)}{name(headline(act.operation))} by {name(act.operation.policy)}"
    if why is None:
        return sign, line, [text(act.operation.reason), "no finding explains it: it follows from what the fleets had become by then"]
    because = "; ".join([f"{name(why.flip.subject)}: {verdicts(why.flip)}", *sides(why.flip, name, text)])
    return sign, line, [text(act.operation.reason), because]


def _altered(one: Altered, name: Said) -> Line:
    return (
        "~",
        f"{moment(one.after.at)}  {name(headline(one.after.operation))} by {name(one.after.operation.policy)}",
        changes(one.fields, name),
    )


def _turned(one: Turned, name: Said, text: Said) -> Line:
    when = f"at {count(one.steps, 'step')}, first at {moment(one.first)}" + (
        f", last at {moment(one.last)}" if one.last > one.first else ""
    )
    return "!", f"{name(one.flip.subject)} by {name(one.flip.policy)}: {verdicts(one.flip)}, {when}", gates(one.flip, name, text)


def _longest_first(turned: Sequence[Turned]) -> list[Turned]:
    return sorted(turned, key=lambda t: (-t.steps, t.first, t.flip.policy, t.flip.subject))
