"""Which decisions are worth a record: only those that changed since the tick before.

A decision is the same while its verdict, its gate and the shape of its reason are: numbers in the reason may move (`in 118 s`, `in 117
s`). How often it was made before it changed goes into the next record, so no tick is unaccounted for.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from shunter.model.canon import plain
from shunter.model.finding import Brief, Chapter, Finding, Verdict, chapters
from shunter.model.ids import Epoch, OperationId, PolicyName
from shunter.model.plan import Evaluation, Plan, PlannedOperation
from shunter.model.pretending import Pretending
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet

_UNIT: Final = r"(?:ms|s|m|h|d|%|[kMGT]i?B|B)?"
_NUMBER: Final = re.compile(rf"(?<![\w./-])-?(?:\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?{_UNIT})+(?!\.?\w)", re.ASCII)
"""A number with its unit, but not one that is part of a name, such as `decode-0`, `node-a/1`, `llama-70b` or `10.0.0.11`."""
_PLURAL: Final = re.compile(r"(# [a-z]+?)s?\b")


class Seen(NamedTuple):
    """A decision as it stands: `reason` as it was said last, `since` when it was first made (seconds since the epoch), `tick` the number of
    that tick. Whatever stands was made in every tick since then.
    """

    verdict: Verdict
    gate: str
    reason: str
    since: float
    tick: int
    pretend: bool


class Tracker(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided in the last tick. A new one (an engine that starts) records everything that isn't `pass` once."""

    seen: Mapping[PolicyName, Mapping[str, Seen]] = {}
    """By policy and subject. What a policy says and hasn't changed is the same object from tick to tick."""
    tick: int = 0
    """How many ticks were observed."""
    planned: tuple[tuple[object, ...], ...] = ()
    planned_since: float | None = None
    planned_ticks: int = 0

    def observe(
        self, evaluation: Evaluation, at: float, epoch: Epoch, fleet: Fleet | None = None, breathe: Callable[[], None] = lambda: None
    ) -> "tuple[Tracker, tuple[Record, ...]]":
        """The tracker after this tick, and the records of what changed: findings in their own order, policy by policy, those no longer
        made, then the plan. Evidence is only worked out for those that are recorded.

        `at` is the time of the records, seconds since the epoch; `fleet` says which nodes only pretend (None: none does). `breathe` is
        called where this can stand still for a moment.
        A finding's body: `policy`, `lane`, `verdict`, `gate`, `reason`, `since`, `evidence`, `previous`. The last is None for a first
        one, else it has `verdict`, `gate`, `reason`, `since` and `ticks`. One that is no longer made, because its policy or subject is
        gone, has the verdict "none". A plan's body: `operations`, `counts`, `previous` (`since`, `ticks`, `operations`, or None).
        """
        stamp = _Stamp(evaluation.plan, at, epoch, Pretending(fleet), self.tick + 1)
        said = chapters(evaluation.findings)
        breathe()
        records: list[Record] = []
        seen: dict[PolicyName, Mapping[str, Seen]] = {}
        for chapter in said:
            breathe()
            seen[chapter.policy] = _observed(chapter, self.seen.get(chapter.policy, {}), stamp, records)
        for policy, before in self.seen.items():
            if (now := seen.get(policy)) is not before:
                records += [stamp.gone(policy, subject, one) for subject, one in before.items() if _gone(subject, one, now)]
        after = msgspec.structs.replace(self, seen=seen, tick=self.tick + 1)
        return after._plan(evaluation.plan, stamp, records)

    def carried(self, evaluation: Evaluation, at: float, epoch: Epoch, fleet: Fleet) -> tuple[Record, ...]:
        """The records of a decision that was made elsewhere and is carried out here: the findings that act, and the plan. It is no tick:
        the next one isn't compared with it.
        """
        stamp = _Stamp(evaluation.plan, at, epoch, Pretending(fleet), self.tick)
        return (*self._said(evaluation, stamp, lambda brief, _known: brief.verdict is Verdict.ACT), stamp.planned(None))

    def besides(self, evaluation: Evaluation, at: float, epoch: Epoch, fleet: Fleet) -> tuple[Record, ...]:
        """What else such a decision says: all that doesn't act, but for what passes and what this tracker has already."""

        def new(brief: Brief, known: Seen | None) -> bool:
            said = known is not None and (known[0], known[1], shape(known[2])) == (brief.verdict, brief.gate, shape(brief.reason))
            return not said and brief.verdict not in (Verdict.ACT, Verdict.PASS)

        return tuple(self._said(evaluation, _Stamp(evaluation.plan, at, epoch, Pretending(fleet), self.tick), new))

    def _said(self, evaluation: Evaluation, stamp: "_Stamp", wanted: Callable[[Brief, Seen | None], bool]) -> Iterator[Record]:
        for chapter in chapters(evaluation.findings):
            known = self.seen.get(chapter.policy, {})
            for place, (subject, brief) in enumerate(zip(chapter.subjects, chapter.briefs, strict=True)):
                if wanted(brief, known.get(subject)):
                    now = Seen(brief.verdict, brief.gate, brief.reason, stamp.at, self.tick, subject in stamp.pretending.subjects)
                    yield stamp.finding(chapter.tell(place), None, now)

    def _plan(self, plan: Plan, stamp: "_Stamp", records: list[Record]) -> "tuple[Tracker, tuple[Record, ...]]":
        planned = tuple(_outline(operation) for operation in plan.operations)
        if planned == self.planned:
            return msgspec.structs.replace(self, planned_ticks=self.planned_ticks + 1), tuple(records)
        previous = None
        if self.planned:
            previous = {"since": self.planned_since, "ticks": self.planned_ticks, "operations": [str(one[0]) for one in self.planned]}
        after = msgspec.structs.replace(self, planned=planned, planned_since=stamp.at, planned_ticks=1)
        return after, (*records, stamp.planned(previous))


def _observed(chapter: Chapter, before: Mapping[str, Seen], stamp: "_Stamp", records: list[Record]) -> Mapping[str, Seen]:
    """What a policy says now, and the records of what it says that is new. The very same as before where nothing has changed."""
    pretending, changed = stamp.pretending.subjects, dict[str, Seen]()
    for place, (subject, brief) in enumerate(zip(chapter.subjects, chapter.briefs, strict=True)):
        one, pretend = before.get(subject), subject in pretending
        if one is not None and one[0] is brief.verdict and one[1] == brief.gate and one[5] is pretend:
            if one[2] == brief.reason:
                continue
            if shape(one[2]) == shape(brief.reason):
                changed[subject] = one._replace(reason=brief.reason)
                continue
        now = Seen(brief.verdict, brief.gate, brief.reason, stamp.at, stamp.tick, pretend)
        changed[subject] = now
        if one is not None or brief.verdict is not Verdict.PASS:
            records.append(stamp.finding(chapter.tell(place), one, now))
    if not changed and len(before) == len(chapter.subjects):
        return before
    return {subject: changed.get(subject) or before[subject] for subject in chapter.subjects}


def _gone(subject: str, seen: Seen, now: Mapping[str, Seen] | None) -> bool:
    return seen.verdict is not Verdict.PASS and (now is None or subject not in now)


@lru_cache(maxsize=65536)
def shape(reason: str) -> str:
    """A reason without its numbers: equal for two reasons that say the same with other figures."""
    return _PLURAL.sub(r"\1", _NUMBER.sub("#", reason))


class _Stamp:
    """What all records of one tick share."""

    def __init__(self, plan: Plan, at: float, epoch: Epoch, pretending: Pretending, tick: int) -> None:
        self.plan, self.at, self.epoch, self.pretending, self.tick = plan, at, epoch, pretending, tick

    def finding(self, finding: Finding, before: Seen | None, now: Seen) -> Record:
        body: dict[str, object] = {
            "policy": finding.policy,
            "lane": finding.lane,
            "verdict": finding.verdict.value,
            "gate": finding.gate,
            "reason": finding.reason,
            "since": finding.since,
            "evidence": plain(finding.evidence),
            "previous": self._previous(before),
        }
        what = f"{finding.policy}: {finding.verdict.value}: {finding.reason}"
        return self._record(RecordKind.FINDING, finding.subject, what, body, pretend=now.pretend)

    def gone(self, policy: PolicyName, subject: str, seen: Seen) -> Record:
        body: dict[str, object] = {"policy": policy, "verdict": "none", "previous": self._previous(seen)}
        return self._record(RecordKind.FINDING, subject, f"{policy}: no longer says anything of it", body, pretend=seen.pretend)

    def _previous(self, seen: Seen | None) -> dict[str, object] | None:
        if seen is None:
            return None
        ticks = self.tick - seen.tick
        return {"verdict": seen.verdict.value, "gate": seen.gate, "reason": seen.reason, "since": seen.since, "ticks": ticks}

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


def _outline(operation: PlannedOperation) -> tuple[object, ...]:
    """What makes an operation another one: its id says kind, subject, cause and attempt; estimates and reasons move every tick."""
    o = operation
    return OperationId(o.id), o.from_slot, o.to_slot, o.image, o.copies, o.archive, o.after, o.preview
