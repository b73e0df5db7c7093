"""A notice, the moment it is heard: what is involuntary is decided on what was last seen, and ordered, beside whatever a tick is doing.

It is the tick's own decision: the same `evaluate`, given the policies that answer to notices alone. Those come first in it, and nothing
that other policies say changes what they plan. So a tick on the same fleet plans the same operations, under the same ids, and the scheduler
knows them.

A tick that had looked before the notice came decides without it. What it plans then isn't offered, and the next tick begins at once.
"""

import asyncio
import threading
from typing import Final

import msgspec

from shunter.app.aside import Aside
from shunter.app.collector import paused
from shunter.app.digests import Digests
from shunter.app.duty import Duty
from shunter.audit.decisions import Tracker
from shunter.decide.evaluate import evaluate
from shunter.decide.memory import Memory
from shunter.decide.world import AWAY
from shunter.lang.bulk import BulkCelRules
from shunter.model.canon import digest
from shunter.model.finding import Verdict, chapters
from shunter.model.ids import Commit, Digest, Epoch, NoticeId
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation
from shunter.model.policy import FleetProfile, Policy, PolicySet, PreemptionPolicy, WorkerSelector
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Notice, Samples, Snapshot

IN_A_ROW: Final = 3
"""So many ticks in a row are overtaken by notices at most: then one is carried out as it is. Whoever offers what, no worker is ordered
about twice and no slot given away twice: the scheduler sees to it, and what doesn't fit any more is given up and planned anew.
"""


_FAR_S: Final = 600.0
HASTE_S: Final = 0.15
"""For so many seconds after a notice, what can wait stands still; or until its first worker is out of the router's sight."""


class Haste:
    """The first orders after a notice have the processor for themselves."""

    def __init__(self, aside: Aside) -> None:
        self._aside = aside
        self._end: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A notice has come."""
        self._aside.hold()
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(HASTE_S, self.end)

    def end(self) -> None:
        """Let everything go on. Idempotent."""
        self._aside.release()


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided because of a notice, on what, and the audit's records of it."""

    evaluation: Evaluation
    policies: PolicySet
    snapshot: Snapshot
    state: EngineState
    records: tuple[Record, ...]

    def why(self, epoch: Epoch) -> tuple[Record, ...]:
        """The findings behind the plan, with their evidence. It takes long to work that out, and no order waits for it: any thread may."""
        made = self.evaluation
        acting = tuple(
            chapter.tell(place)
            for chapter in chapters(made.findings)
            for place, brief in enumerate(chapter.briefs)
            if brief.verdict is Verdict.ACT
        )
        _, records = Tracker().observe(msgspec.structs.replace(made, findings=acting), made.plan.at, epoch, self.snapshot.fleet)
        return tuple(record for record in records if record.kind is RecordKind.FINDING)


class Heeding:
    """Decides at once. It shares no caches with the ticks, which may be deciding in another thread, and none of its decisions with another:
    why one was made is worked out aside.
    """

    def __init__(self, duty: Duty, epoch: Epoch) -> None:
        self._duty, self._epoch = duty, epoch
        self._policies: tuple[PolicySet, PolicySet] | None = None
        self._overtaken = 0
        self.number = 0
        """Notices that were heeded: a tick that sees another number at its end than at its beginning was overtaken."""
        self.samples = Samples()
        """As they were last measured: what is involuntary doesn't wait for newer ones."""
        self.digests = Digests()
        """Of the last tick's snapshot."""
        self.memory = Memory()
        """Of the last tick's decision, and of those since."""

    def overtook(self, began: int) -> bool:
        """Whether the tick that began at this `number` is to be dropped."""
        if self.number == began or self._overtaken >= IN_A_ROW:
            return False
        self._overtaken += 1
        return True

    def kept_up(self) -> None:
        """A tick came to its end."""
        self._overtaken = 0

    def news(self, notice: Notice) -> bool:
        """Take the notice into what is seen; False if it is there already."""
        scene = self._duty.scene
        if notice in scene.notices:
            return False
        kept = [n for n in scene.notices if (n.node, n.id) != (notice.node, notice.id)]
        scene.notices = tuple(sorted((*kept, notice), key=lambda n: (n.node, n.id)))
        self.number += 1
        return True

    def decide(self, state: EngineState, now: float) -> Heard | None:
        """What is to be done at `now` for the nodes that are going; None where policies aren't known yet, or have nothing to say."""
        duty = self._duty
        policies = self._urgent()
        if policies is None or not duty.looks_ahead:
            return None
        snapshot = Snapshot(at=now, fleet=duty.scene.fleet, samples=self.samples, notices=duty.scene.notices)
        policies = concerned(policies, snapshot)
        evaluation = self._evaluate(policies, snapshot, state, now)
        if not any(not o.preview for o in evaluation.plan.operations):
            return None
        _, records = Tracker().observe(msgspec.structs.replace(evaluation, findings=()), now, self._epoch, snapshot.fleet)
        return Heard(evaluation=evaluation, policies=policies, snapshot=snapshot, state=state, records=records)

    def _evaluate(self, policies: PolicySet, snapshot: Snapshot, state: EngineState, now: float) -> Evaluation:
        """The snapshot's digest is made beside it: what takes long of that leaves the interpreter to others."""
        vars(snapshot)["id"] = unknown = Digest("")
        digesting = threading.Thread(target=self.digests.take, args=(snapshot,), name="digest")
        digesting.start()
        try:
            with paused():
                found = evaluate(policies, [snapshot], state, now, BulkCelRules(), self._duty.profile, self.memory)
        finally:
            digesting.join()
        if snapshot.id == unknown:
            self.digests.take(snapshot)  # raises what the thread has met
        return Evaluation(findings=found.findings, plan=msgspec.structs.replace(found.plan, snapshot=snapshot.id))

    def rehearse(self, now: float) -> None:
        """Once for each set of policies, decide as if a node went, and forget it: the first time takes longest, for compiling."""
        whole, scene = self._duty.feed.current, self._duty.scene
        node = next((w.node for w in scene.fleet.workers if w.node is not None), None)
        if whole is None or node is None or (self._policies is not None and self._policies[0] is whole):
            return
        policies = self._urgent()
        assert policies is not None, "there are some"
        kinds = {kind for p in policies.policies if isinstance(p.document, PreemptionPolicy) for kind in p.document.spec.notices}
        notices = tuple(Notice(id=NoticeId(f"rehearsal-{k}"), kind=k, node=node, seen_at=now, deadline=now + _FAR_S) for k in sorted(kinds))
        snapshot = Snapshot(at=now, fleet=scene.fleet, samples=self.samples, notices=notices)
        self._evaluate(policies, snapshot, EngineState(), now)

    def _urgent(self) -> PolicySet | None:
        whole = self._duty.feed.current
        if whole is None:
            return None
        if self._policies is None or self._policies[0] is not whole:
            self._policies = whole, involuntary(whole)
        return self._policies[1]


def concerned(policies: PolicySet, snapshot: Snapshot) -> PolicySet:
    """Those of them that may have something to do: for a worker on a node that is going, or without a process. The others plan nothing."""
    going = {notice.node for notice in snapshot.notices}
    pools = {(w.graph, w.role) for w in snapshot.fleet.workers if w.node in going or w.state in AWAY}
    kept = tuple(p for p in policies.policies if p.selector is None or any(_covers(p.selector, graph, role) for graph, role in pools))
    return _made(policies.commit, kept)


def _covers(select: WorkerSelector, graph: str, role: str) -> bool:
    return select.graph in (None, graph) and select.role in (None, role)


def involuntary(policies: PolicySet) -> PolicySet:
    """The policies in force that answer to notices, and the figures that they plan with: a set of its own, with its own digest."""
    kept = tuple(
        p
        for p in policies.policies
        if (isinstance(p.document, PreemptionPolicy) and p.acts and p.mode == "enforce") or isinstance(p.document, FleetProfile)
    )
    return _made(policies.commit, kept)


def _made(commit: Commit, policies: tuple[Policy, ...]) -> PolicySet:
    content = [(p.place.file, p.blob, p.document) for p in policies]
    return PolicySet(commit=commit, digest=digest(content), policies=policies, problems=())
