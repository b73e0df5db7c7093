"""The difference of two revisions in outcome, for people, for a pull request, and for programs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec
from rich.console import Console

from shunter.model.canon import plain
from shunter.model.difference import Change, Compared, Flip, Gate
from shunter.model.plan import PlannedOperation
from shunter.report.markdown import LIMIT, code, escaped, page
from shunter.report.plan import headline
from shunter.report.words import Page, count, moment, short

MARK: Final = "<!-- shunter: diff -->"
"""First line of the comment: by it, whoever posts finds the one that is to be updated."""
_MOST: Final = 50
"""Lines of one kind that are shown for people."""
STYLES: Final = {"+": "green", "-": "red", "~": "yellow", "!": "cyan"}


def diff_text(compared: Sequence[Compared], console: Console) -> None:
    """One part for each snapshot: operations that came, went and changed, then findings that flipped, with what flipped them."""
    out = Page(console)
    for number, one in enumerate(compared):
        if number:
            out.blank()
        out.title(f"{short(one.base)} to {short(one.head)}, on the snapshot of {moment(one.at)} ({one.snapshot[:19]})")
        out.line(_counted(one), indent=2)
        for remark in one.remarks:
            out.line(f"note: {remark}", indent=2, hang=6)
        lines = list(_lines(one, str, lambda text: text))
        shown: dict[str, int] = {}
        for mark, line, more in lines:
            shown[mark] = shown.get(mark, 0) + 1
            if shown[mark] <= _MOST:
                out.line(f"{mark} {line}", indent=2, hang=4, style=STYLES[mark])
                for text in more:
                    out.line(text, indent=6, hang=2)
        for mark, total in shown.items():
            if total > _MOST:
                out.line(f"{mark} and {total - _MOST:,} more: the JSON form has all of them", indent=2)


def diff_markdown(compared: Sequence[Compared], *, link: str = "", limit: int = LIMIT) -> str:
    """At most `limit` bytes of Markdown: the counts, and every line, cut in the middle if need be."""
    total = sum(sum(c.difference.counts.values()) for c in compared)
    verdict = "no difference in outcome" if not total else f"{count(total, 'difference')} in outcome"
    before = [MARK, f"### Shunter: {verdict}", ""]
    middle: list[str] = []
    for one in compared[:_MOST]:
        title = f"{code(short(one.base))} to {code(short(one.head))}, on the snapshot of {moment(one.at)}"
        before += [f"{title} ({code(one.snapshot[:19])}): {_counted(one)}.", ""]
        before += [f"> {escaped(remark)}." for remark in one.remarks[:_MOST]]
        middle += [f"- **{title}**"] if len(compared) > 1 and one.difference else []
        for mark, line, more in _lines(one, code, escaped):
            middle.append(f"- {NAMES[mark]}: {line}" + "".join(f"<br>{text}" for text in more))
    after = [f"[All of it]({link})"] if link else []
    return page(before, middle, after, title="What differs, and what did it", limit=limit)


NAMES: Final = {"+": "added", "-": "removed", "~": "changed", "!": "flipped"}


def diff_json(compared: Sequence[Compared]) -> bytes:
    """`changes`, and `snapshots`: for each `at`, `snapshot`, `base`, `head`, `counts` and the `difference` as in the model."""
    entries: list[dict[str, Any]] = [{**plain(one), "counts": one.difference.counts} for one in compared]
    document = {"changes": any(one.difference for one in compared), "snapshots": entries}
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def _counted(one: Compared) -> str:
    counts = one.difference.counts
    found = one.difference
    parts = [f"{count(counts[name], 'operation')} {name}" for name in ("added", "removed", "changed") if counts[name]]
    parts += [f"{count(counts['flipped'], 'finding')} flipped"] if counts["flipped"] else []
    for title, policies in (("new", found.policies_added), ("gone", found.policies_removed)):
        parts += [f"{count(len(policies), 'policy') if len(policies) == 1 else f'{len(policies):,} policies'} {title}"] if policies else []
    return ", ".join(parts) or "no difference in outcome"


Said = Callable[[str], str]
"""Makes a text safe for where it goes."""


def _lines(one: Compared, name: Said, text: Said) -> Iterable[tuple[str, str, list[str]]]:
    """A mark, a line, and what stands below it. `name` and `text` make names and reasons safe for where they go."""
    found = one.difference
    for mark, operations in (("+", found.added), ("-", found.removed)):
        for operation in operations:
            yield mark, f"{name(headline(operation))}{_by(operation, name)}", [text(operation.reason)]
    for changed in found.changed:
        yield "~", f"{name(headline(changed.after))}{_by(changed.after, name)}", changes(changed.fields, name)
    for flip in found.flipped:
        yield "!", f"{name(flip.subject)} by {name(flip.policy)}: {verdicts(flip)}", gates(flip, name, text)


def _by(operation: PlannedOperation, name: Said) -> str:
    return f" by {name(operation.policy)}" + (" (preview)" if operation.preview else "")


def changes(fields: Sequence[Change], name: Said) -> list[str]:
    """Each field before and now."""
    return [f"{field.replace('_', ' ')}: {name(before)}, now {name(after)}" for field, before, after in fields]


def verdicts(flip: Flip) -> str:
    """What each side says."""
    return f"{flip.before.value if flip.before else 'nothing said'}, now {flip.after.value if flip.after else 'nothing said'}"


def gates(flip: Flip, name: Said, text: Said) -> list[str]:
    """What decided on each side, a line each, and the reason where that says more."""
    told = sides(flip, name, text)
    reason = text(flip.reason)
    return told if told and told[-1].endswith(reason) else [*told, reason]


def sides(flip: Flip, name: Said, text: Said) -> list[str]:
    """What decided on each side, a line each."""
    return [f"{title} {_gate(gate, name, text)}" for title, gate in (("before:", flip.by_before), ("now:", flip.by_after)) if gate]


def _gate(gate: Gate, name: Said, text: Said) -> str:
    """What decided: its expression with the values that it read, or the gate in words."""
    if not gate.expression:
        return text(f"{gate.gate}, {gate.detail}" if gate.gate and gate.detail else gate.gate or gate.detail)
    read = ", ".join(f"{variable} = {value}" for variable, value in gate.inputs)
    return f"{name(gate.gate)} {name(gate.expression)}" + (f" with {text(read)}" if read else "")
