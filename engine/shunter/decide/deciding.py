"""One evaluation in the making: what every rule reads, and where it puts what it found."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, Final
from weakref import ref

from shunter.decide.ahead import Leave
from shunter.decide.budget import Budgets
from shunter.decide.conflict import Ledger
from shunter.decide.figures import AllFigures, Figures, model_of
from shunter.decide.fit import Finder, Needs, needs_of_image, needs_of_worker
from shunter.decide.gates import Teller, ask
from shunter.decide.hold import tolerance
from shunter.decide.keep import Holding, Turns
from shunter.decide.memory import Memory
from shunter.decide.plan import Ranked, operation_id, patience
from shunter.decide.profile import Costs, Phases, Profile
from shunter.decide.rooms import Rooms, Size
from shunter.decide.said import Explain, Gists, Left, Notes, Part, Said
from shunter.decide.scope import UNCHANGING, Scopes
from shunter.decide.sheet import Workers
from shunter.model.expression import Expression, Rules, Scope, Undecided, in_bulk
from shunter.model.finding import Chapter, Evidence, Lane, Verdict
from shunter.model.ids import ImageId, NodeId, OperationId, PolicyName, WorkerId
from shunter.model.operation import EngineState
from shunter.model.plan import Estimate, OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import Policy, PolicySet, PreemptionPolicy, WorkerSelector
from shunter.model.snapshot import Image, Slot, Snapshot, Worker

_RECENT = 30.0
"""Seconds for which a snapshot is good for voluntary work, whatever the step between snapshots is."""
_ID: Final[Callable[[Worker], WorkerId]] = attrgetter("id")
_ANYBODY: Final = WorkerSelector()
_OF_THE_PLAN: Final = ("ledger", "rooms", "finder", "turns", "dumped", "leaves", "ranked", "_budgets", "_holding", "_not_holding")


class Deciding:
    """The inputs of `evaluate`, indexed, and its findings and operations so far. Lives for one evaluation."""

    def __init__(
        self,
        policies: PolicySet,
        snapshots: Sequence[Snapshot],
        state: EngineState,
        now: float,
        rules: Rules,
        profile: Profile,
        memory: Memory | None = None,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        """Arguments as `evaluate` has them."""
        self.policies, self.now, self.rules = policies, now, in_bulk(rules)
        self._lasting = self.rules is rules  # what is made for this evaluation alone is asked by no other
        memory = memory or Memory()
        seen = memory.worlds(snapshots)
        self.worlds, self._all_scopes = [world for world, _ in seen], [scopes for _, scopes in seen]
        self.world, self.scopes = seen[-1]
        breathe()
        self.history = memory.history(state)
        self.costs = Costs(profile, self.history.past.measured)
        self.ledger = Ledger(self.history.active, self.world.vacant, self.world.failing, self.world.pinned)
        breathe()
        self.rooms = Rooms(self.world, self.history.active)
        self.finder = Finder(self.world, self.scopes, self.rules, self.ledger, self.rooms)
        self._concerning: dict[tuple[str, str], list[Policy]] = {}
        self._sheets: dict[str | None, Workers] = {}
        self._covered: dict[PolicyName, Mapping[WorkerId, bool | None]] = {}
        self._truths: dict[tuple[str, str], Mapping[WorkerId, bool | None]] = {}
        self._phases: dict[tuple[int | None, str, bool], Phases] = {}
        self._budgets: Budgets | None = None
        self.notes = Notes()
        self._teller = Teller(self.rules)
        self.turns = Turns()
        self.dumped: defaultdict[NodeId, list[Worker]] = defaultdict(list)
        """Workers that this plan has their node dump, one after the other."""
        self.leaves: dict[OperationId, Leave] = {}
        """How what can't wait uses the time until its node is gone."""
        self.ranked: list[Ranked] = []
        self._involuntary: dict[tuple[str, bool], str] = {}
        for record in self.history.active:
            self._count(record.planned)
            if record.planned.lane == "involuntary":
                why = f"{record.planned.kind.value} of {record.planned.worker} is under way because a node is going"
                self._note(record.planned, why)

    @property
    def budgets(self) -> Budgets:
        """What is asked before anything voluntary is planned.

        No `cached_property`: Python 3.11's holds a lock for all evaluations, and to make budgets the rules are asked, which may stand still
        (see `app.aside`) for another evaluation that would then wait for the lock.
        """
        if self._budgets is None:
            self._budgets = Budgets(self.policies.policies, self.worlds, self.history, self._covers_weakly(), self.ranked, self.now)
        return self._budgets

    def find(
        self,
        policy: Policy,
        subject: str,
        verdict: Verdict,
        reason: str,
        *,
        gate: str = "",
        evidence: Sequence[Part] = (),
        since: float | None = None,
    ) -> None:
        """Enter what the policy says of the subject. Said again, it replaces what was said before.

        Evidence that only looks at what doesn't change while a plan is made may be given as what makes it.
        """
        said = Said(verdict=verdict, reason=reason, gate=gate, evidence=tuple(evidence), since=since)
        self.notes.say(policy.name, lane_of(policy), subject, said)

    def close(self) -> Callable[[], Sequence[Chapter]]:
        """What makes all findings, once nothing more is said and the plan is made. It keeps what they need, and nothing keeps it: no rings
        to be collected. What only the plan needed (see `decide.said`) is let go.
        """
        notes, self.notes = self.notes, Notes()
        for name in _OF_THE_PLAN:
            self.__dict__.pop(name, None)
        return notes.chapters

    def leave(
        self,
        policy: Policy,
        workers: Sequence[Worker],
        explain: Explain,
        *,
        gists: Gists | None = None,
        but: Set[WorkerId] = frozenset(),
    ) -> None:
        """Leave it to `explain` why there is nothing to do for these workers, `but` some: it is asked when somebody wants to know.
        `gists` says the same in brief (None: there is no shorter way).
        """
        self.notes.leave(policy.name, lane_of(policy), Left(workers, explain, gists or (lambda asked: [explain(w) for w in asked]), but))

    def said(self, policy: Policy, worker: Worker) -> Said | None:
        """What the policy says of the worker so far; None: nothing."""
        return self.notes.get(policy.name, worker)

    def plan(
        self,
        policy: Policy,
        kind: OperationKind,
        worker: Worker,
        expect: Preconditions,
        *,
        cause: str,
        reason: str,
        value: float = 0.0,
        estimate: Estimate | None = None,
        deadline: float | None = None,
        **more: Any,  # noqa: ANN401  (other fields of PlannedOperation)
    ) -> PlannedOperation:
        """Enter an operation. A voluntary one without a deadline gets one, so that it can't stand half-way for ever."""
        attempt = self.history.attempt(kind, worker.id, cause)
        cost = estimate or Estimate()
        lane = lane_of(policy)
        operation = PlannedOperation(
            id=operation_id(kind, worker.id, worker.incarnation, cause, attempt),
            kind=kind,
            worker=worker.id,
            lane=lane,
            policy=policy.name,
            reason=reason,
            expect=expect,
            cause=cause,
            attempt=attempt,
            estimate=cost,
            deadline=patience(self.now, cost.total) if deadline is None and lane == "voluntary" else deadline,
            preview=policy.mode == "preview",
            pool=worker.pool,
            **more,
        )
        self.ledger.take(operation)
        self.rooms.plan(operation, self.size(worker, operation.image).bytes)
        self._count(operation)
        if worker.node is not None and operation.from_slot and kind in (OperationKind.MOVE, OperationKind.PARK):
            self.dumped[worker.node].append(worker)
        self.ranked.append(Ranked(operation=operation, value=value, priority=policy.priority))
        if lane == "involuntary":
            self._note(operation, f"{kind.value} of {worker.id} comes first, by {policy.name}")
        return operation

    def _count(self, operation: PlannedOperation) -> None:
        worker = self.world.workers.get(operation.worker)
        if operation.kind is OperationKind.CHECKPOINT and worker is not None:
            self.turns.count(worker)

    def _note(self, operation: PlannedOperation, why: str) -> None:
        worker = self.world.workers.get(operation.worker)
        if worker is not None:
            self._involuntary.setdefault((worker.graph, operation.preview), why)

    def subjects(self, policy: Policy) -> tuple[Worker, ...]:
        """The workers that the policy's selector covers by role and graph, in the order of their ids: `where` may exclude some of them."""
        select = policy.selector
        return self.world.among(select.graph, select.role) if select is not None else ()

    def reaches(self, policy: Policy, worker: Worker) -> bool:
        """The worker is one of the policy's subjects."""
        select = policy.selector
        return select is not None and select.graph in (None, worker.graph) and select.role in (None, worker.role)

    def concerning(self, worker: Worker) -> Sequence[Policy]:
        """Policies that aren't off and cover the worker by role and graph, in the order of the set."""
        key = (worker.graph, worker.role)
        if key not in self._concerning:
            self._concerning[key] = [p for p in self.policies.policies if p.mode != "off" and self.reaches(p, worker)]
        return self._concerning[key]

    def truths(self, policy: Policy, expression: Expression) -> Mapping[WorkerId, bool | None]:
        """The truth of a condition for each of the policy's subjects, and perhaps for others; None: it has no answer."""
        select = policy.selector
        if select is None:
            return {}
        key = ("" if expression.text in self._widespread else policy.name, expression.text)
        known = self._truths.get(key)
        if known is None:
            known = self._truths[key] = self._ask_all(policy, select if key[0] else _ANYBODY, expression)
        return known

    def truths_of(self, policy: Policy, expression: Expression, workers: Sequence[Worker]) -> Mapping[WorkerId, bool | None]:
        """The same for these workers alone: most conditions matter for few."""
        answers = self.rules.test_all(expression, Workers(self.scopes, workers, policy)) if workers else ()
        return dict(zip([w.id for w in workers], answers, strict=True))

    def _ask_all(self, policy: Policy, select: WorkerSelector, expression: Expression) -> Mapping[WorkerId, bool | None]:
        if not (self._lasting and UNCHANGING.issuperset(self.rules.inputs(expression))):
            return self._ask_anew(policy, select, expression)
        key = (self.rules, expression.text, select.graph, select.role)
        known = self.world.answers.get(key)
        if known is None:
            known = self.world.answers[key] = self._ask_anew(policy, select, expression)
        return known

    def _ask_anew(self, policy: Policy, select: WorkerSelector, expression: Expression) -> Mapping[WorkerId, bool | None]:
        if any(name.startswith("metrics.") for name in self.rules.inputs(expression)):
            sheet = Workers(self.scopes, self.subjects(policy), policy)
        else:
            # both roles together, so that what is read of them is read once for all policies of the graph
            sheet = self._sheet(select.graph)
        answers = self.rules.test_all(expression, sheet)
        if select.role is None:
            return dict(zip(map(_ID, sheet.workers), answers, strict=True))
        return {w.id: answer for w, answer in zip(sheet.workers, answers, strict=True) if w.role == select.role}

    def _sheet(self, graph: str | None) -> Workers:
        if graph not in self._sheets:
            self._sheets[graph] = Workers(self.scopes, self.world.among(graph, None), None)
        return self._sheets[graph]

    @cached_property
    def _widespread(self) -> Set[str]:
        """Conditions of selectors that are the same for policies of many graphs and read nothing but the worker: to ask about the whole
        fleet once is less than to ask about one graph after the other.
        """
        asked: Counter[str] = Counter()
        for policy in self.policies.policies:
            if policy.mode != "off" and policy.selector is not None and policy.selector.where is not None:
                where = policy.selector.where
                asked[where.text] += len(self.subjects(policy)) if self._teller.of_worker_alone(where) else 0
        return {text for text, number in asked.items() if 2 * number > len(self.world.workers)}

    def covered(self, policy: Policy) -> Mapping[WorkerId, bool | None]:
        """Whether the policy's selector covers each of its subjects: all at once, without evidence. None: it can't be said."""
        found = self._covered.get(policy.name)
        if found is None:
            where = policy.selector.where if policy.selector is not None else None
            found = self.truths(policy, where) if where is not None else {w.id: True for w in self.subjects(policy)}
            self._covered[policy.name] = found
        return found

    def covers(self, policy: Policy, worker: Worker) -> tuple[bool | Undecided, tuple[Evidence, ...]]:
        """Whether the policy's selector covers the worker. No evidence: role or graph alone decided."""
        select = policy.selector
        if (
            select is None
            or (select.role is not None and worker.role != select.role)
            or (select.graph is not None and worker.graph != select.graph)
        ):
            return False, ()
        if select.where is None:
            return True, ()
        answer, evidence = ask(self.rules, "workers.where", select.where, self.scopes.worker(policy, worker))
        return answer, (evidence,)

    def _covers_weakly(self) -> Callable[[Policy, Worker], bool | Undecided]:
        """Whether a policy of the set covers a worker, for somebody whom this evaluation keeps: a plain function would keep the evaluation
        in turn. All its subjects are asked at once; a worker who isn't as the fleet has it now is asked alone.
        """
        kept = ref(self)

        def covers(policy: Policy, worker: Worker) -> bool | Undecided:
            d = kept()
            assert d is not None, "it is asked while the evaluation goes on"
            now = d.world.workers.get(worker.id) is worker and d.reaches(policy, worker)
            answer = d.covered(policy)[worker.id] if now else None
            return d.covers(policy, worker)[0] if answer is None else answer

        return covers

    def coverage(self, policy: Policy, worker: Worker) -> tuple[bool | Undecided, tuple[Evidence, ...]]:
        """As `covers`, for a policy of the set, of which all its subjects are asked at once."""
        where = policy.selector.where if policy.selector is not None else None
        answer = self.covered(policy).get(worker.id, False) if where is not None else None
        if answer is None or where is None:
            return self.covers(policy, worker)
        if not self.reaches(policy, worker):
            return False, ()
        scopes = self.scopes
        scope = scopes.of_worker(worker) if self._teller.of_worker_alone(where) else scopes.worker(policy, worker)
        return answer, (self._teller.tell("workers.where", where, scope, answer),)

    def asked(self, policy: Policy, worker: Worker, gate: str, expression: Expression | None) -> tuple[Part, ...]:
        """The evidence of a condition on a covered worker, left for later; none without a condition."""
        if expression is None:
            return ()
        return (partial(_asked, self, policy, worker, gate, expression),)

    def earlier(self, policy: Policy, graph: str, when: Expression) -> list[tuple[float, bool | Undecided]]:
        """What a condition on a graph was in each earlier snapshot, with their times, oldest first. A snapshot is asked once, for however
        many decisions it is kept.
        """
        return [(w.at, self._was(s, policy, graph, when)) for w, s in zip(self.worlds[:-1], self._all_scopes[:-1], strict=True)]

    def _was(self, scopes: Scopes, policy: Policy, graph: str, when: Expression) -> bool | Undecided:
        key = (id(policy), when.text, graph)
        known = scopes.answers.get(key)
        if known is not None and known[0] is policy and known[1] is self.rules:
            return known[2]
        found = self.rules.test(when, scopes.graph(policy, graph))
        scopes.answers[key] = (policy, self.rules, found)
        return found

    def outdated(self) -> str | None:
        """Why nothing voluntary is done on this snapshot: it is from before what is known to go on now. None when it is recent."""
        return f"the newest snapshot is more than {self._allowed:g} s old" if self.now - self.world.at > self._allowed else None

    @cached_property
    def _allowed(self) -> float:
        return max(_RECENT, tolerance([w.at for w in self.worlds]))

    def keep_promises(self) -> None:
        """From now on what is voluntary and waits for its turn keeps its worker, its slots and its room, but for what was taken from it."""
        self.rooms.keep_promises(lambda record: self.ledger.blocked(record.planned.worker) is not None)
        self.ledger.keep_promises()

    def free_slots(self) -> Mapping[NodeId, Sequence[Slot]]:
        """Slots that nobody has or is promised now, by node, in order; nodes without one aren't in it."""
        return self.ledger.vacant()

    def needs(self, subject: Worker | Image) -> Needs:
        """What a destination of this worker or image must offer."""
        return needs_of_worker(self.world, subject) if isinstance(subject, Worker) else needs_of_image(self.world, subject)

    def size(self, worker: Worker, image: ImageId | None = None) -> Size:
        """What a destination must have room for: as measured, or, of a worker that comes back, as its image says. What isn't known isn't
        guessed: the agents look again.
        """
        found = next((i for i in self.world.images.get(worker.id, ()) if i.id == image), None) if image is not None else None
        if found is None:
            return Size(worker.memory or 0, worker.gpu_memory or 0)
        most = found.facts.get("gpu_memory", "")
        return Size(found.bytes, int(most) if most.isdecimal() else 0)

    @cached_property
    def _figures(self) -> AllFigures:
        return AllFigures(self.policies.policies, self.costs.profile)

    def figures(self, worker: Worker) -> Figures:
        """What is planned with for the worker, by the GPU model of its slot."""
        return self._figures.of(model_of(self.world, worker))

    def earlier_scopes(self, policy: Policy, worker: WorkerId) -> Iterator[tuple[float, Scope | None]]:
        """Each earlier snapshot's time and the worker's scope in it, the newest first. None: it wasn't there."""
        for w, s in zip(reversed(self.worlds[:-1]), reversed(self._all_scopes[:-1]), strict=True):
            yield w.at, s.worker(policy, w.workers[worker]) if worker in w.workers else None

    def phases(self, worker: Worker, size: int | None = None) -> Phases:
        """What dumping and restoring the worker costs; `size` is an image's, None the worker's own."""
        own, source = (size, "") if size is not None else self.world.size(worker)
        like = own, model_of(self.world, worker), self.world.has_gpus(worker)
        phases = self._phases.get(like)
        if phases is None:
            figures = self._figures.of(like[1])
            phases = self._phases[like] = self.costs.phases(own, gpu=like[2], rates=figures.rates, names=figures.names)
        if not source or own is None:
            return phases
        return Phases(freeze=phases.freeze, restore=phases.restore, basis=f"{phases.basis}; {source}", bytes=own, fetch=phases.fetch)

    def involuntary(self, graph: str, *, preview: bool) -> str | None:
        """Why voluntary work in the graph waits: an involuntary operation under way or planned; None if there is none.

        What is only shown doesn't hold up what is carried out.
        """
        return self._involuntary.get((graph, False)) or (self._involuntary.get((graph, True)) if preview else None)

    @cached_property
    def taken(self) -> Mapping[WorkerId, float]:
        """When each worker's newest image was taken, also by a checkpoint that the snapshot doesn't show yet; only those that have one."""
        taken = self.world.taken.copy()
        workers = self.world.workers
        for (name, incarnation), begun in self.history.past.dumped.items():
            worker = workers.get(name)
            if worker is not None and worker.incarnation == incarnation and begun > taken.get(name, -math.inf):
                taken[name] = begun
        return taken

    def holding(self) -> Holding:
        """What nodes hold in images, to count along in while more are planned."""
        return self._holding.copy()

    @cached_property
    def _holding(self) -> Holding:
        return Holding(self.world, self.ledger, self.world.holding)

    @cached_property
    def _not_holding(self) -> Holding:
        return Holding(self.world, self.ledger, {})

    def keepers(self, worker: Worker, number: int, holding: Holding | None = None, *, apart: bool = False) -> tuple[NodeId, ...]:
        """Up to `number` nodes that stay and have room for the worker's image, its own not among them: those on which it could be restored
        first, then those that hold the least (None: whatever they hold), then those with the most free slots. `apart`: before all, each in
        a zone of its own, which isn't the worker's, as far as there are zones.
        """
        order, size = holding or self._not_holding, self.size(worker).bytes
        fits, has_room = self.finder.fits(self.needs(worker)), partial(self.rooms.holds, size=size)
        return order.first(number, fits, worker.node, has_room, apart=apart)


def _asked(d: Deciding, policy: Policy, worker: Worker, gate: str, expression: Expression) -> Evidence:
    return ask(d.rules, gate, expression, d.scopes.worker(policy, worker))[1]


def lane_of(policy: Policy) -> Lane:
    """Notices make involuntary work, everything else is voluntary."""
    return "involuntary" if isinstance(policy.document, PreemptionPolicy) else "voluntary"
