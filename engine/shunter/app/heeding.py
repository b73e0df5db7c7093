"""A notice, the moment it is heard: what is involuntary is decided on what was last seen, and ordered, beside whatever a tick is doing.

It is the tick's own decision: the same `evaluate`, given the policies that answer to notices alone. Those come first in it, and nothing
that other policies say changes what they plan. So a tick on the same fleet plans the same operations, under the same ids, and the scheduler
knows them.

A tick that had looked before the notice came decides without it. What it plans then isn't offered, and the next tick begins at once.

What can be worked out before a notice comes is: each tick, once it has looked, indexes the fleet that it saw and digests it (`Ready`). A
notice that comes before that is done is decided on the look before.
"""

import asyncio
import contextlib
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec

from shunter.app.aside import Aside, Breathing
from shunter.app.collector import paused
from shunter.app.digests import Digests
from shunter.app.duty import Duty
from shunter.app.settled import settled
from shunter.audit.decisions import Tracker
from shunter.decide.evaluate import evaluate
from shunter.decide.memory import Memory
from shunter.decide.world import AWAY
from shunter.lang.bulk import BulkCelRules
from shunter.model.canon import digest
from shunter.model.finding import Verdict, chapters
from shunter.model.ids import Commit, Epoch, NodeId, NoticeId, WorkerId
from shunter.model.operation import EngineState, OperationRecord
from shunter.model.plan import Evaluation
from shunter.model.policy import FleetProfile, Policy, PolicySet, PreemptionPolicy, WorkerSelector
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Notice, Role, Samples, Snapshot, Worker

IN_A_ROW: Final = 3
"""So many ticks in a row are overtaken by notices at most: then one is carried out as it is. Whoever offers what, no worker is ordered
about twice and no slot given away twice: the scheduler sees to it, and what doesn't fit any more is given up and planned anew.
"""


Pool: TypeAlias = tuple[str, Role]
_FAR_S: Final = 600.0
_ID: Final[Callable[[Worker], WorkerId]] = attrgetter("id")
_NOWHERE: Final = NodeId("")
HASTE_S: Final = 0.4
"""For so many seconds after a notice, what can wait stands still; or until its first worker is out of the router's sight."""
FREEZE_S: Final = 0.1
"""For so many seconds after that, as an agent may have to wait for a processor before it begins with the freeze."""
HELD_S: Final = 2.0
"""For so many seconds it stands still in a row. It is owed as much again: however many notices come, ticks have half of the time."""
SAME_S: Final = 1.0
"""A deadline that comes nearer by no more is the same one: some sources work it out anew each time."""


class Haste:
    """The first orders after a notice have the processor for themselves, as long as ticks aren't owed too much of it: no step of a tick
    begins, and no garbage is looked for.
    """

    def __init__(self, aside: Aside, clock: Callable[[], float] = time.monotonic) -> None:
        self._aside, self._clock = aside, clock
        self._timer: asyncio.TimerHandle | None = None
        self._since: float | None = None
        self._ended, self._owed, self._rests_until = clock(), 0.0, clock()
        self._quiet = contextlib.ExitStack()

    def begin(self) -> None:
        """A notice has come."""
        now = self._clock()
        if self._since is None:
            if now < self._rests_until:
                return
            self._owed, self._since = max(0.0, self._owed - (now - self._ended)), now
            self._aside.hold()
            self._quiet.enter_context(paused())
        self._end_in(HASTE_S, self._since)

    def fenced(self) -> None:
        """What comes next is the freeze, which takes long by itself once its agent has begun."""
        if self._since is not None:
            self._end_in(FREEZE_S, self._since)

    def _end_in(self, seconds: float, since: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = since + HELD_S - self._owed - self._clock()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, min(seconds, left)), self.end)

    def end(self) -> None:
        """Let everything go on. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        if self._since is not None:
            self._ended = self._clock()
            self._owed, self._since = self._owed + self._ended - self._since, None
            if self._owed >= HELD_S:
                self._rests_until, self._owed = self._ended + self._owed, 0.0
        self._quiet.close()
        self._aside.release()

    @property
    def on(self) -> bool:
        """Somebody waits for such an order."""
        return self._since is not None


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


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What a notice is decided on: the fleet as it was last seen, what was last measured of it, and what both were made into."""

    fleet: Fleet
    samples: Samples
    digests: Digests
    memory: Memory
    pools: Mapping[NodeId, frozenset[Pool]] | None = None
    """Which pools have workers on each node of the fleet. None: to be looked up."""


class Heeding:
    """Decides at once. It shares no caches with the ticks, which may be deciding in another thread, and none of its decisions with another:
    why one was made is worked out aside.
    """

    def __init__(self, duty: Duty, epoch: Epoch, breathe: Callable[[], None] = lambda: None) -> None:
        """`breathe` is asked where getting ready can stand still: see `app.aside`."""
        self._duty, self._epoch, self._breathe = duty, epoch, breathe
        self._policies: tuple[PolicySet, PolicySet] | None = None
        self._rehearsed: PolicySet | None = None
        self._overtaken = 0
        self.number = 0
        """Notices that were heeded: a tick that sees another number at its end than at its beginning was overtaken."""
        self.ready: Ready | None = None
        """None before the first look."""
        self._ended: list[OperationRecord] = []
        """Operations that ended since getting ready began."""

    # -- before one comes

    def begin(self) -> None:
        """What ends from now on is not in the fleet that is made ready next."""
        self._ended.clear()

    def get_ready(self, fleet: Fleet, policies: PolicySet, state: EngineState, now: float) -> Ready:
        """For a look at `now`. What takes long of a decision is worked out by deciding as if a node went, and forgetting it: with all
        policies the first time, as their conditions are compiled then. For any thread, `take` it in the loop's.
        """
        before = self.ready
        samples = before.samples if before is not None else Samples()
        digests = before.digests.copy() if before is not None else Digests(self._breathe)
        memory = before.memory.beside() if before is not None else Memory()
        snapshot = Snapshot(at=now, fleet=fleet, samples=samples, notices=_rehearsal(fleet, policies, now))
        digests.take(snapshot)
        urgent = self._urgent(policies)
        chosen = concerned(urgent, snapshot) if self._rehearsed is policies else urgent
        with paused():
            evaluate(chosen, [snapshot], state, now, Breathing(BulkCelRules(), self._breathe), self._duty.profile, memory, self._breathe)
        self._rehearsed = policies
        return Ready(fleet=fleet, samples=samples, digests=digests, memory=memory, pools=_by_node(fleet))

    def take(self, ready: Ready) -> None:
        """Decide on this from now on, and on what has ended meanwhile."""
        self.ready = _settled(ready, self._ended)

    def measured(self, snapshot: Snapshot, digests: Digests, memory: Memory) -> None:
        """A tick has decided on the fleet that is ready, with newer samples: so does a notice."""
        if self.ready is not None and self.ready.fleet is snapshot.fleet:
            self.ready = msgspec.structs.replace(self.ready, samples=snapshot.samples, digests=digests, memory=memory)

    def ended(self, record: OperationRecord) -> None:
        """What an operation did is seen at once."""
        self._ended.append(record)
        if self.ready is not None:
            self.ready = _settled(self.ready, [record])

    # -- once it has come

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
        """Take the notice into what is seen; False if what it asks for is known already: ticks see to what has changed of it besides, and a
        source whose word never stays the same keeps none of them from its end.
        """
        scene = self._duty.scene
        known = next((n for n in scene.notices if (n.node, n.id) == (notice.node, notice.id)), None)
        if known is not None and _asks_for_no_more(notice, known):
            return False
        kept = [n for n in scene.notices if n is not known]
        scene.notices = tuple(sorted((*kept, notice), key=lambda n: (n.node, n.id)))
        self.number += 1
        return True

    def decide(self, state: EngineState, now: float, seen: Fleet | None = None) -> Heard | None:
        """What is to be done at `now` for the nodes that are going; None where policies aren't known yet, or have nothing to say.

        `seen` is the fleet to decide on; None: the one that is ready.
        """
        duty = self._duty
        whole = duty.feed.current
        if whole is None or not duty.looks_ahead:
            return None
        ready = self.ready
        fleet = seen if seen is not None else ready.fleet if ready is not None else duty.scene.fleet
        samples = ready.samples if ready is not None else Samples()
        snapshot = Snapshot(at=now, fleet=fleet, samples=samples, notices=duty.scene.notices)
        policies = concerned(self._urgent(whole), snapshot, ready.pools if ready is not None and ready.fleet is fleet else None)
        evaluation = self._evaluate(policies, snapshot, state, now)
        if not any(not o.preview for o in evaluation.plan.operations):
            return None
        planned = msgspec.structs.replace(evaluation, findings=())
        _, records = Tracker().observe(planned, now, self._epoch, _about(evaluation, fleet))
        return Heard(evaluation=evaluation, policies=policies, snapshot=snapshot, state=state, records=records)

    def _evaluate(self, policies: PolicySet, snapshot: Snapshot, state: EngineState, now: float) -> Evaluation:
        ready = self.ready
        digests, memory = (ready.digests, ready.memory) if ready is not None else (Digests(), Memory())
        digests.take(snapshot)
        with paused():
            return evaluate(policies, [snapshot], state, now, BulkCelRules(), self._duty.profile, memory)

    def _urgent(self, whole: PolicySet) -> PolicySet:
        known = self._policies
        if known is None or known[0] is not whole:
            self._policies = known = whole, involuntary(whole)
        return known[1]


def _asks_for_no_more(notice: Notice, known: Notice) -> bool:
    """Of the same thing, no sooner."""
    same = (notice.kind, notice.slot, notice.dumpable) == (known.kind, known.slot, known.dumpable)
    sooner = notice.deadline is not None and (known.deadline is None or notice.deadline < known.deadline - SAME_S)
    return same and not sooner


def _rehearsal(fleet: Fleet, policies: PolicySet, now: float) -> tuple[Notice, ...]:
    """All notices that policies answer to, for one node that has workers. None of it happens."""
    node = next((w.node for w in fleet.workers if w.node is not None), None)
    if node is None:
        return ()
    kinds = {kind for p in policies.policies if isinstance(p.document, PreemptionPolicy) for kind in p.document.spec.notices}
    return tuple(Notice(id=NoticeId(f"rehearsal-{k}"), kind=k, node=node, seen_at=now, deadline=now + _FAR_S) for k in sorted(kinds))


def _settled(ready: Ready, records: Sequence[OperationRecord]) -> Ready:
    fleet = settled(ready.fleet, records)
    return ready if fleet is ready.fleet else msgspec.structs.replace(ready, fleet=fleet, pools=None)


def _about(evaluation: Evaluation, fleet: Fleet) -> Fleet:
    """The fleet with no other workers than those that are planned for."""
    workers, found = fleet.workers, list[Worker]()
    for planned in sorted({operation.worker for operation in evaluation.plan.operations}):
        place = bisect_left(workers, planned, key=_ID)
        found += [w for w in workers[place : place + 1] if w.id == planned]
    return Fleet(nodes=fleet.nodes, workers=tuple(found))


def _by_node(fleet: Fleet) -> Mapping[NodeId, frozenset[Pool]]:
    """Which pools have workers on each node; those that have workers without a process are on the node `""`, too."""
    found: dict[NodeId, set[Pool]] = defaultdict(set)
    for worker in fleet.workers:
        if worker.node is not None:
            found[worker.node].add((worker.graph, worker.role))
        if worker.state in AWAY:
            found[_NOWHERE].add((worker.graph, worker.role))
    return {node: frozenset(pools) for node, pools in found.items()}


def concerned(policies: PolicySet, snapshot: Snapshot, by_node: Mapping[NodeId, frozenset[Pool]] | None = None) -> PolicySet:
    """Those of them that may have something to do: for a worker on a node that is going, or without a process. The others plan nothing.

    `by_node` are the fleet's pools by node; None: they are looked up.
    """
    by_node = _by_node(snapshot.fleet) if by_node is None else by_node
    pools = frozenset[Pool]().union(*(by_node.get(n, frozenset()) for n in (_NOWHERE, *(notice.node for notice in snapshot.notices))))
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
