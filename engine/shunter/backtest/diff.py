"""How two decisions on one snapshot differ: operations added, removed and changed, findings that flipped, and what flipped them."""

from collections.abc import Iterator, Sequence
from typing import Final

from shunter.model.canon import plain
from shunter.model.difference import Change, Changed, Difference, Flip, Gate
from shunter.model.expression import Scalar
from shunter.model.finding import Evidence, Finding, Input, Verdict
from shunter.model.ids import OperationId
from shunter.model.plan import Evaluation, PlannedOperation
from shunter.model.sample import say

_COMPARED: Final = ("policy", "lane", "from_slot", "to_slot", "image", "copies", "deadline", "preview", "notice")
"""Fields whose difference is a difference in what is done. Reasons, estimates and ids follow from these."""


def difference(base: Evaluation, head: Evaluation) -> Difference:
    """What `head` decides otherwise than `base`. Both must be of one snapshot, else they differ in more than their policies."""
    pairs, added, removed = _paired(base.plan.operations, head.plan.operations)
    changed = [Changed(before=a, after=b, fields=fields) for a, b in pairs if (fields := tuple(_fields(a, b)))]
    before = {(f.policy, f.subject): f for f in base.findings}
    after = {(f.policy, f.subject): f for f in head.findings}
    keys = sorted({*before, *after})
    flips = [flip for key in keys if (flip := _flip(before.get(key), after.get(key))) is not None]
    had, has = {p for p, _ in before}, {p for p, _ in after}
    return Difference(
        added=added,
        removed=removed,
        changed=tuple(changed),
        flipped=tuple(flips),
        policies_added=tuple(sorted(has - had)),
        policies_removed=tuple(sorted(had - has)),
    )


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


def _fields(before: PlannedOperation, after: PlannedOperation) -> Iterator[Change]:
    for name in _COMPARED:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield name, _said(old), _said(new)


def _said(value: object) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        return ", ".join(str(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(plain(value))


def _flip(before: Finding | None, after: Finding | None) -> Flip | None:
    """A subject that one side doesn't mention and that the other passes is no difference in outcome."""
    was, now = (before.verdict if before else None), (after.verdict if after else None)
    one = after or before
    if one is None or was == now or {was, now} <= {None, Verdict.PASS}:
        return None
    by_before, by_after = _gates(before, after)
    return Flip(policy=one.policy, subject=one.subject, before=was, after=now, by_before=by_before, by_after=by_after, reason=one.reason)


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
    """The evidence that decided: that of the finding's gate, else the first that wasn't met, else the last."""
    unmet = [e for e in finding.evidence if e.result is not True]
    return _at(finding, finding.gate) or next(iter([*unmet, *finding.evidence[-1:]]), None)


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
