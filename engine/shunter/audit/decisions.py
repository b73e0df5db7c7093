"""Which decisions are worth a record: only those that changed since the tick before.

A decision is the same while its verdict, its gate and the shape of its reason are: numbers in the reason may move (`in 118 s`, `in 117
s`). How often it was made before it changed goes into the next record, so no tick is unaccounted for.
"""

import re
from collections import Counter
from typing import Any, Final

import msgspec

from shunter.model.canon import plain
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import Epoch, NodeId, OperationId, PolicyName, node_of
from shunter.model.plan import Evaluation, Plan, PlannedOperation
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet

_UNIT: Final = r"(?:ms|s|m|h|d|%|[kMGT]i?B|B)?"
_NUMBER: Final = re.compile(rf"(?<![\w./-])-?(?:\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?{_UNIT})+(?!\.?\w)", re.ASCII)
"""A number with its unit, but not one that is part of a name, such as `decode-0`, `node-a/1`, `llama-70b` or `10.0.0.11`."""
_PLURAL: Final = re.compile(r"(# [a-z]+?)s?\b")

Key = tuple[PolicyName, str]
"""A policy's name, and the subject that it speaks of."""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A decision as it stands: `since` is when it was first made (seconds since the epoch), `ticks` how often in a row."""

    verdict: Verdict
    gate: str
    shape: str
    reason: str
    since: float
    ticks: int = 1
    pretend: bool = False


class Tracker(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided in the last tick. A new one (an engine that starts) records everything that isn't `pass` once."""

    findings: dict[Key, Seen] = {}
    planned: tuple[tuple[object, ...], ...] = ()
    planned_since: float | None = None
    planned_ticks: int = 0

    def observe(self, evaluation: Evaluation, at: float, epoch: Epoch, fleet: Fleet | None = None) -> "tuple[Tracker, tuple[Record, ...]]":
        """The tracker after this tick, and the records of what changed: findings in their own order, those no longer made, then the plan.

        `at` is the time of the records, seconds since the epoch; `fleet` says which nodes only pretend (None: none does).
        A finding's body: `policy`, `lane`, `verdict`, `gate`, `reason`, `since`, `evidence`, `previous`. The last is None for a first
        one, else it has `verdict`, `gate`, `reason`, `since` and `ticks`. One that is no longer made, because its policy or subject is
        gone, has the verdict "none". A plan's body: `operations`, `counts`, `previous` (`since`, `ticks`, `operations`, or None).
        """
        stamp = _Stamp(evaluation.plan, at, epoch, _Pretending(fleet))
        found: dict[Key, Seen] = {}
        records: list[Record] = []
        for finding in evaluation.findings:
            key = (finding.policy, finding.subject)
            before, now = self.findings.get(key), _seen(finding, at, pretend=stamp.pretending.about(finding.subject))
            if before is not None and _same(before, now):
                found[key] = msgspec.structs.replace(before, ticks=before.ticks + 1, reason=now.reason)
                continue
            found[key] = now
            if before is not None or finding.verdict is not Verdict.PASS:
                records.append(stamp.finding(finding, before, now))
        records += [stamp.gone(key, seen) for key, seen in self.findings.items() if key not in found and seen.verdict is not Verdict.PASS]
        return self._plan(evaluation.plan, stamp, found, records)

    def _plan(self, plan: Plan, stamp: "_Stamp", found: dict[Key, Seen], records: list[Record]) -> "tuple[Tracker, tuple[Record, ...]]":
        planned = tuple(_outline(operation) for operation in plan.operations)
        if planned == self.planned:
            return msgspec.structs.replace(self, findings=found, planned_ticks=self.planned_ticks + 1), tuple(records)
        previous = None
        if self.planned:
            previous = {"since": self.planned_since, "ticks": self.planned_ticks, "operations": [str(one[0]) for one in self.planned]}
        after = Tracker(findings=found, planned=planned, planned_since=stamp.at, planned_ticks=1)
        return after, (*records, stamp.planned(previous))


def shape(reason: str) -> str:
    """A reason without its numbers: equal for two reasons that say the same with other figures."""
    return _PLURAL.sub(r"\1", _NUMBER.sub("#", reason))


class _Pretending:
    """Which subjects are on nodes where nothing really moves: workers, and graphs of which any worker is."""

    def __init__(self, fleet: Fleet | None) -> None:
        self.nodes: frozenset[NodeId] = frozenset(n.id for n in fleet.nodes if n.runtime == "pretend") if fleet else frozenset()
        on = [w for w in fleet.workers if w.node in self.nodes] if fleet and self.nodes else []
        self._subjects = frozenset({str(w.id) for w in on} | {w.graph for w in on})

    def about(self, subject: str) -> bool:
        return subject in self._subjects

    def operation(self, operation: PlannedOperation) -> bool:
        nodes = {*operation.copies, *(node_of(s) for s in (operation.from_slot, operation.to_slot) if s is not None)}
        return not self.nodes.isdisjoint(nodes) or self.about(operation.worker)


class _Stamp:
    """What all records of one tick share."""

    def __init__(self, plan: Plan, at: float, epoch: Epoch, pretending: _Pretending) -> None:
        self.plan, self.at, self.epoch, self.pretending = plan, at, epoch, pretending

    def finding(self, finding: Finding, before: Seen | None, now: Seen) -> Record:
        body: dict[str, object] = {
            "policy": finding.policy,
            "lane": finding.lane,
            "verdict": finding.verdict.value,
            "gate": finding.gate,
            "reason": finding.reason,
            "since": finding.since,
            "evidence": plain(finding.evidence),
            "previous": _previous(before),
        }
        what = f"{finding.policy}: {finding.verdict.value}: {finding.reason}"
        return self._record(RecordKind.FINDING, finding.subject, what, body, pretend=now.pretend)

    def gone(self, key: Key, seen: Seen) -> Record:
        policy, subject = key
        body: dict[str, object] = {"policy": policy, "verdict": "none", "previous": _previous(seen)}
        return self._record(RecordKind.FINDING, subject, f"{policy}: no longer says anything of it", body, pretend=seen.pretend)

    def planned(self, previous: dict[str, Any] | None) -> Record:
        operations = self.plan.operations
        counts = Counter(o.kind.value for o in operations)
        body: dict[str, object] = {"operations": plain(operations), "counts": dict(sorted(counts.items())), "previous": previous}
        what = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())) or "nothing is to be done"
        return self._record(RecordKind.PLAN, "plan", what, body, pretend=any(map(self.pretending.operation, operations)))

    def _record(self, kind: RecordKind, subject: str, what: str, body: dict[str, object], *, pretend: bool) -> Record:
        return Record(
            at=self.at,
            kind=kind,
            subject=subject,
            what=what,
            epoch=self.epoch,
            commit=self.plan.commit,
            snapshot=self.plan.snapshot,
            plan=self.plan.digest,
            pretend=pretend,
            body=body,
        )


def _seen(finding: Finding, at: float, *, pretend: bool) -> Seen:
    return Seen(verdict=finding.verdict, gate=finding.gate, shape=shape(finding.reason), reason=finding.reason, since=at, pretend=pretend)


def _same(before: Seen, now: Seen) -> bool:
    return (before.verdict, before.gate, before.shape, before.pretend) == (now.verdict, now.gate, now.shape, now.pretend)


def _previous(seen: Seen | None) -> dict[str, object] | None:
    if seen is None:
        return None
    return {"verdict": seen.verdict.value, "gate": seen.gate, "reason": seen.reason, "since": seen.since, "ticks": seen.ticks}


def _outline(operation: PlannedOperation) -> tuple[object, ...]:
    """What makes an operation another one: its id says kind, subject, cause and attempt; estimates and reasons move every tick."""
    o = operation
    return OperationId(o.id), o.from_slot, o.to_slot, o.image, o.copies, o.after, o.preview
