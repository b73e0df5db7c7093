"""A pull request as its one comment: whether its policies are valid and tested, and what they change in outcome."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from shunter.model.difference import Changed, Compared, Flip
from shunter.model.errors import Problem, Severity
from shunter.model.plan import PlannedOperation
from shunter.report.comment import WEIGHT
from shunter.report.markdown import LIMIT, code, escaped, page, table
from shunter.report.plan import headline
from shunter.report.words import count, moment, short

_MOST: Final = 10
_WIDTH: Final = 300
"""Characters of a reason that are shown: what can't be cut has to stay bounded."""
_OTHERS: Final = len(WEIGHT)
"""The weight of what isn't an operation: it comes after all that are."""

_Row = tuple[str, str, str, str]
"""What kind of change it is, of what, why, and by which policy; Markdown already."""


class FailedTest(msgspec.Struct, frozen=True, kw_only=True):
    """A test of policies that failed, or couldn't be run: its file, its name (empty: the file as a whole), and the first thing wrong."""

    file: str
    name: str
    why: str


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a change from `base` to `head`, both commits.

    `compared` has an entry for each recording; empty, with `uncompared` saying why, where nothing could be compared.
    """

    base: str
    head: str
    folder: str
    policies: int
    problems: tuple[Problem, ...] = ()
    tests: int = 0
    failed: tuple[FailedTest, ...] = ()
    compared: tuple[Compared, ...] = ()
    uncompared: str = ""

    @property
    def errors(self) -> int:
        """Problems that keep a file from coming into force."""
        return sum(problem.severity is Severity.ERROR for problem in self.problems)

    @property
    def sound(self) -> bool:
        """No error, and no test that failed."""
        return not self.errors and not self.failed

    @property
    def changes(self) -> bool:
        """Something differs in outcome."""
        return any(one.difference for one in self.compared)


def mark(folder: str) -> str:
    """First line of the comment: by it, whoever posts finds the one to update. Each policy folder of a repository has its own."""
    named = "".join(c if c.isalnum() or c in "./_" else "-" for c in folder).strip("-") or "."
    return f"<!-- shunter: review of {named} -->"


def verdict(review: Review) -> str:
    """The whole in a few words."""
    if review.errors:
        return f"{count(review.errors, 'error')}: these policies wouldn't come into force"
    if review.failed:
        return f"{count(len(review.failed), 'test')} of the policies failed"
    if not review.compared:
        return "valid; what would change wasn't compared"
    total = sum(sum(one.difference.counts.values()) for one in review.compared)
    return f"{count(total, 'difference')} in outcome" if total else "no difference in outcome"


def review_markdown(review: Review, *, link: str = "", limit: int = LIMIT) -> str:
    """At most `limit` bytes of Markdown: verdict, counts, the ten changes that matter most, the others folded. `link` has all of it."""
    rows = [row for _, row in sorted(_weighed(review.compared), key=lambda pair: pair[0])]
    before = [mark(review.folder), f"### Shunter: {escaped(verdict(review))}", ""]
    before += [f"{code(short(review.head))} against {code(short(review.base))}, policies in {code(review.folder or '.')}.", ""]
    before += table(("checked", "result"), _checks(review))
    before += _problems(review.problems)
    before += _failed(review.failed)
    before += [f"\n> {escaped(_cut(review.uncompared))}"] if review.uncompared else []
    before += [f"\n> {escaped(_cut(remark))}." for remark in _remarks(review.compared)[:_MOST]]
    if rows:
        title = "What changes" if len(rows) <= _MOST else f"The {_MOST} most important of {len(rows):,} changes"
        before += ["", f"**{title}**", "", *table(("change", "of", "why", "policy"), rows[:_MOST])]
    middle = [f"- {change}: {what} by {policy}: {why}" for change, what, why, policy in rows[_MOST:]]
    after = [f"[All of it]({link})"] if link else []
    return page(before, middle, after, title="The other changes", limit=limit)


def review_text(review: Review) -> list[str]:
    """The same in a few lines, for a pipeline's log."""
    lines = [f"{short(review.base)} to {short(review.head)}: {verdict(review)}"]
    lines += [f"  {label}: {said}" for label, said in _checks(review)]
    lines += [f"  {problem}" for problem in review.problems]
    lines += [f"  test failed: {test.file}{': ' if test.name else ''}{test.name}: {test.why}" for test in review.failed]
    lines += [f"  {review.uncompared}"] if review.uncompared else []
    return lines


def _checks(review: Review) -> list[tuple[str, str]]:
    warnings = len(review.problems) - review.errors
    tests = f"{review.tests - len(review.failed):,} of {review.tests:,} passed" if review.tests or review.failed else "there are none"
    valid = count(review.policies, "valid policy") if review.policies == 1 else f"{review.policies:,} valid policies"
    rows = [("files", f"{valid}, {count(review.errors, 'error')}, {count(warnings, 'warning')}"), ("tests", tests)]
    for one in review.compared[:_MOST]:
        rows.append((f"outcome on the fleet of {moment(one.at)}", _counted(one)))
    if len(review.compared) > _MOST:
        rows.append((f"{len(review.compared) - _MOST:,} more recordings", "see the whole"))
    return rows


def _counted(one: Compared) -> str:
    counts = one.difference.counts
    parts = [f"{count(counts[name], 'operation')} {name}" for name in ("added", "removed", "changed") if counts[name]]
    parts += [f"{count(counts['flipped'], 'finding')} flipped"] if counts["flipped"] else []
    return ", ".join(parts) or "the same"


def _problems(problems: Sequence[Problem]) -> list[str]:
    ordered = sorted(problems, key=lambda p: p.severity is not Severity.ERROR)
    lines = [f"- {code(str(p.place or p.subject))} {p.code}: {escaped(_cut(f'{p.what}. {p.remedy}'))}" for p in ordered[:_MOST]]
    if len(problems) > _MOST:
        lines.append(f"- and {len(problems) - _MOST:,} more")
    return ["", "**Problems**", "", *lines] if lines else []


def _failed(tests: Sequence[FailedTest]) -> list[str]:
    lines = [f"- {code(t.file)}{' ' + escaped(_cut(t.name)) if t.name else ''}: {escaped(_cut(t.why))}" for t in tests[:_MOST]]
    if len(tests) > _MOST:
        lines.append(f"- and {len(tests) - _MOST:,} more")
    return ["", "**Tests that failed**", "", *lines] if lines else []


def _remarks(compared: Sequence[Compared]) -> list[str]:
    return list(dict.fromkeys(remark for one in compared for remark in one.remarks))


def _weighed(compared: Sequence[Compared]) -> Iterable[tuple[tuple[bool, int, int], _Row]]:
    """Every change with what it is sorted by: what is only shown last, then by how much it stops, involuntary first."""
    for one in compared:
        when = f", on the fleet of {moment(one.at)}" if len(compared) > 1 else ""
        for title, operations in (("added", one.difference.added), ("removed", one.difference.removed)):
            for o in operations:
                yield _weight(o), (title + when, _named(o), escaped(_cut(o.reason)), code(o.policy))
        for changed in one.difference.changed:
            row = (f"changed{when}", _named(changed.after), _fields(changed), code(changed.after.policy))
            yield _weight(changed.after), row
        for flip in one.difference.flipped:
            yield (False, _OTHERS, 0), (f"flipped{when}", code(flip.subject), _why(flip), code(flip.policy))


def _weight(operation: PlannedOperation) -> tuple[bool, int, int]:
    return operation.preview, WEIGHT[operation.kind], 0 if operation.lane == "involuntary" else 1


def _named(operation: PlannedOperation) -> str:
    return code(headline(operation)) + (" (preview)" if operation.preview else "")


def _fields(changed: Changed) -> str:
    return "; ".join(f"{escaped(field.replace('_', ' '))}: {code(before)}, now {code(after)}" for field, before, after in changed.fields)


def _why(flip: Flip) -> str:
    """The verdicts, and the expression with what it read on the side that decides now."""
    said = f"{flip.before.value if flip.before else 'nothing said'}, now {flip.after.value if flip.after else 'nothing said'}"
    gate = flip.by_after or flip.by_before
    if gate is None or not gate.expression:
        return f"{said}: {escaped(_cut(flip.reason))}"
    read = ", ".join(f"{variable} = {value}" for variable, value in gate.inputs)
    return f"{said}: {code(_cut(gate.expression))}" + (f" with {escaped(_cut(read))}" if read else "")


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
