"""How two decisions on one snapshot differ: operations added, removed and changed, findings that flipped, and what flipped them."""

from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from shunter.model.canon import plain
from shunter.model.difference import Change, Changed, Difference, Flip, Gate
from shunter.model.expression import Scalar
from shunter.model.finding import Chapter, Evidence, Finding, Input, Verdict, chapters
from shunter.model.ids import OperationId, PolicyName
from shunter.model.plan import Evaluation, PlannedOperation
from shunter.model.sample import say

_COMPARED: Final = ("policy", "lane", "from_slot", "to_slot", "image", "copies", "archive", "deadline", "preview", "notice")
"""Fields whose difference is a difference in what is done. Reasons, estimates and ids follow from these."""


def difference(base: Evaluation, head: Evaluation) -> Difference:
    """What `head` decides otherwise than `base`. Both must be of one snapshot, else they differ in more than their policies."""
    pairs, added, removed = _paired(base.plan.operations, head.plan.operations)
    changed = [Changed(before=a, after=b, fields=fields) for a, b in pairs if (fields := altered(a, b))]
    had, has = ({c.policy for c in chapters(one.findings) if c.subjects} for one in (base, head))
    return Difference(
        added=added,
        removed=removed,
        changed=tuple(changed),
        flipped=tuple(turn.told() for turn in turns(base, head)),
        policies_added=tuple(sorted(has - had)),
        policies_removed=tuple(sorted(had - has)),
    )


class Turn(NamedTuple):
    """A finding with another verdict than before, not yet told; None: that side says nothing of the subject."""

    policy: PolicyName
    subject: str
    before: Verdict | None
    after: Verdict | None
    told: Callable[[], Flip]
    """With what did it."""


def turns(base: Evaluation, head: Evaluation, only: Set[PolicyName] | None = None) -> Iterator[Turn]:
    """All of them, in the order of policies (`only` these; None: all) and subjects. A subject that one side doesn't mention and that the
    other passes is no difference in outcome.
    """
    before, after = ({c.policy: c for c in chapters(one.findings) if only is None or c.policy in only} for one in (base, head))
    for policy in sorted({*before, *after}):
        was, now = before.get(policy), after.get(policy)
        old, new = ({s: n for n, s in enumerate(c.subjects)} if c else {} for c in (was, now))
        for subject in sorted({*old, *new}):
            pair = _at_place(was, old.get(subject)), _at_place(now, new.get(subject))
            verdicts = tuple(c.briefs[place].verdict if c is not None else None for c, place in pair)
            if verdicts[0] is not verdicts[1] and not {*verdicts} <= {None, Verdict.PASS}:
                yield Turn(policy, subject, verdicts[0], verdicts[1], partial(_told, *pair))


_Place: TypeAlias = tuple[Chapter | None, int]


def _at_place(chapter: Chapter | None, place: int | None) -> _Place:
    return (None, 0) if chapter is None or place is None else (chapter, place)


def _told(before: _Place, after: _Place) -> Flip:
    was, now = (chapter.tell(place) if chapter is not None else None for chapter, place in (before, after))
    return _flip(was, now)


def _paired(
    base: Sequence[PlannedOperation], head: Sequence[PlannedOperation]
) -> tuple[list[tuple[PlannedOperation, PlannedOperation]], tuple[PlannedOperation, ...], tuple[PlannedOperation, ...]]:
    """The same decision has the same id; what is left is paired by kind and worker, since a cause names its policy."""
    by_id = {o.id: o for o in head}
    pairs = [(o, by_id[o.id]) for o in base if o.id in by_id]
    taken: set[OperationId] = {o.id for o, _ in pairs}
    rest = {(o.kind, o.worker): o for o in head if o.id not in taken}
    removed = []
    for operation in base:
        if operation.id in taken:
            continue
        other = rest.pop((operation.kind, operation.worker), None)
        if other is None:
            removed.append(operation)
        else:
            pairs.append((operation, other))
    paired = {b.id for _, b in pairs}
    return pairs, tuple(o for o in head if o.id not in paired), tuple(removed)


def altered(before: PlannedOperation, after: PlannedOperation) -> tuple[Change, ...]:
    """What differs in what the two do."""
    both = ((name, getattr(before, name), getattr(after, name)) for name in _COMPARED)
    return tuple((name, _said(old), _said(new)) for name, old, new in both if old != new)


def _said(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(str(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(plain(value))


def _flip(before: Finding | None, after: Finding | None) -> Flip:
    one = after or before
    assert one is not None, "one of the sides says something"
    by_before, by_after = _gates(before, after)
    return Flip(
        policy=one.policy,
        subject=one.subject,
        before=before.verdict if before else None,
        after=after.verdict if after else None,
        by_before=by_before,
        by_after=by_after,
        reason=one.reason,
    )


def _gates(before: Finding | None, after: Finding | None) -> tuple[Gate | None, Gate | None]:
    """What decided on each side. Where one side acts and the other was stopped at a gate, that gate on both: it is what flipped."""
    old, new = (_decisive(before) if before else None), (_decisive(after) if after else None)
    if before and after and Verdict.ACT in (before.verdict, after.verdict):
        stopped = old if after.verdict is Verdict.ACT else new
        if stopped is not None:
            old, new = _at(before, stopped.gate) or old, _at(after, stopped.gate) or new
    return (_gate(before, old) if before else None), (_gate(after, new) if after else None)


def _at(finding: Finding, gate: str) -> Evidence | None:
    return next((e for e in finding.evidence if e.gate == gate), None)


def _decisive(finding: Finding) -> Evidence | None:
    """The evidence that decided: that of the finding's gate; without a gate the first that wasn't met, else the last. None: the gate has
    none, and its reason says it all.
    """
    if finding.gate:
        return _at(finding, finding.gate)
    unmet = [e for e in finding.evidence if e.result is not True]
    return next(iter([*unmet, *finding.evidence[-1:]]), None)


def _gate(finding: Finding, found: Evidence | None) -> Gate:
    if found is None:
        return Gate(gate=finding.gate, detail=finding.reason)
    inputs = tuple((given.name, _value(given)) for given in found.inputs)
    return Gate(gate=found.gate, expression=found.expression, inputs=inputs, detail=found.detail)


def _value(given: Input) -> str:
    if given.sample is not None:
        return say(given.sample)
    value: Scalar | None = given.value
    return "unknown" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
