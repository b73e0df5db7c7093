"""Budgets over simulated time: whatever happens in whatever order, no voluntary operation begins that a budget wouldn't have.

The machine keeps a small fleet and does what an engine does: it begins what is planned, ends it well or badly, and time passes. What is
allowed is counted here anew, from the records alone and by the letter of the documentation.
"""

import datetime
import math
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.model.errors import Place
from shunter.model.expression import Expression, Scope, Undecided
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.policy import (
    BudgetSpec,
    CheckpointPolicy,
    CheckpointSpec,
    DisruptionBudget,
    Limits,
    Metadata,
    PerWindow,
    Policy,
    PolicySet,
    PreemptionPolicy,
    PreemptionSpec,
    ReassignmentPolicy,
    ReassignmentSpec,
    RebalancePolicy,
    RebalanceSpec,
    Trigger,
    Window,
    WorkerSelector,
)
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.units import Duration, Share

BEGIN = 1_800_000_000.0
ZONE = "topology.kubernetes.io/zone"
NODES, SLOTS = 6, 2
ALL = WorkerSelector(all=True)
EXPRESSIONS: dict[str, Callable[[Scope], bool]] = {
    "bad": lambda scope: dict(scope["node.labels"]).get("bad") == "1",  # type: ignore[call-overload]
    "queue": lambda scope: scope["pools.prefill.waiting"].value > 1,  # type: ignore[union-attr]
    "calm": lambda scope: scope["pools.prefill.waiting"].value < 1,  # type: ignore[union-attr]
}


class Named:
    """Expressions by name. A parked worker has no node, and so no labels of one; everything else is known here."""

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        lacking = [(name, "unknown") for name in self.inputs(expression) if name not in scope]
        return Undecided(inputs=tuple(lacking)) if lacking else EXPRESSIONS[expression.text](scope)

    def measure(self, expression: Expression, scope: Scope) -> float | Undecided:
        raise NotImplementedError

    def inputs(self, expression: Expression) -> tuple[str, ...]:
        return {"bad": ("node.labels",)}.get(expression.text, ("pools.prefill.waiting",))


def policy(document: Any) -> Policy:
    return Policy(document=document, place=Place(file="p", line=1, column=1), blob="b", commit="c")


def named(name: str) -> Metadata:
    return Metadata(name=name)


def acting() -> list[Policy]:
    ex = Expression
    shift = ReassignmentSpec(
        workers=ALL, from_="decode", to="prefill", when=ex(text="queue"), for_=Duration(0), sessions="park", cooldown=Duration(0),
        limits=Limits(step=2), revert=Trigger(when=ex(text="calm")),
    )  # fmt: skip
    return [
        policy(RebalancePolicy(metadata=named("tidy"), spec=RebalanceSpec(
            workers=ALL, when=ex(text="bad"), for_=Duration(0), step=3, cooldown=Duration(30)))),
        policy(ReassignmentPolicy(metadata=named("shift"), spec=shift)),
        policy(PreemptionPolicy(metadata=named("save"), spec=PreemptionSpec(workers=ALL, notices=tuple(NoticeKind)))),
        policy(CheckpointPolicy(metadata=named("images"), spec=CheckpointSpec(workers=ALL, every=Duration(120)))),
    ]  # fmt: skip


def limits() -> st.SearchStrategy[Any]:
    return st.one_of(st.integers(0, 4), st.sampled_from([0.03, 0.29, 0.34, 0.5, 1.0]).map(Share))


@st.composite
def budgets(draw: st.DrawFn) -> BudgetSpec:
    select = draw(st.sampled_from([ALL, ALL, WorkerSelector(role="decode"), WorkerSelector(graph="h")]))
    windows = draw(st.sampled_from([(), (Window(zone="Europe/Berlin", from_="09:00", to="09:20"),)]))
    return BudgetSpec(
        workers=select,
        operations=draw(st.sampled_from([("move", "park", "drain", "reassign"), ("move",), ("checkpoint", "park")])),
        per=draw(st.sampled_from(["pool", "node", "zone", "all"])),
        max_concurrent=draw(st.one_of(st.none(), limits())),
        max_per_window=draw(st.one_of(st.none(), st.builds(PerWindow, max=limits(), window=st.sampled_from([300, 3600]).map(Duration)))),
        windows=windows,
    )


DEFAULT = BudgetSpec(workers=ALL, max_concurrent=1)


class Machine(RuleBasedStateMachine):
    """A fleet of two graphs, and an engine without delays."""

    @initialize(specs=st.lists(budgets(), max_size=3), first=st.integers(0, 9))
    def begin(self, specs: list[BudgetSpec], first: int) -> None:
        self.specs = specs
        own = [policy(DisruptionBudget(metadata=named(f"b{i}"), spec=s)) for i, s in enumerate(specs)]
        self.policies = PolicySet(commit="c", digest="d", policies=tuple(sorted([*acting(), *own], key=lambda p: p.name)))
        self.now = BEGIN + 60 * first
        self.at: dict[str, str | None] = {}
        self.made: dict[str, Worker] = {}
        self.images: dict[str, str] = {}
        self.bad: set[str] = set()
        self.going: set[str] = set()
        self.waiting = 0.0
        self.active: list[OperationRecord] = []
        self.ended: list[OperationRecord] = []
        for index in range(8):
            role = "decode" if index % 4 else "prefill"
            self.made[f"w{index}"] = Worker(
                id=f"w{index}", role=role, graph="g" if index < 6 else "h", engine="e", state=WorkerState.RUNNING, node=None, slot=None,
                incarnation=0, memory=10**9,
            )  # fmt: skip
            self.at[f"w{index}"] = f"n{index // SLOTS}/{index % SLOTS}"
        self.made["w8"] = msgspec.structs.replace(self.made["w0"], id="w8")
        self.at["w8"], self.images["w8"] = None, "n5"

    @rule(seconds=st.sampled_from([1, 60, 260, 299, 300, 900]))
    def idle(self, seconds: int) -> None:
        self.now += seconds
        self.tick()

    @rule(index=st.integers(0, 9), status=st.sampled_from([Status.SUCCEEDED] * 3 + [Status.ROLLED_BACK, Status.FAILED]))
    def end(self, index: int, status: Status) -> None:
        done = {r.id for r in self.ended if r.status is Status.SUCCEEDED}
        ready = [r for r in self.active if set(r.planned.after) <= done]
        if not ready:
            return
        record = ready[index % len(ready)]
        self._close(record, status)
        if status is Status.SUCCEEDED:
            self._effect(record.planned)
        else:
            for other in [r for r in self.active if record.id in r.planned.after]:
                self._close(other, Status.SUPERSEDED)
        self.tick()

    def _close(self, record: OperationRecord, status: Status) -> None:
        self.active.remove(record)
        self.ended.append(msgspec.structs.replace(record, outcome=Outcome(status=status, at=self.now)))

    def _effect(self, o: PlannedOperation) -> None:
        if o.kind in (OperationKind.MOVE, OperationKind.RESTORE):
            self.at[o.worker] = o.to_slot
        elif o.kind is OperationKind.PARK:
            self.at[o.worker], self.images[o.worker] = None, o.copies[0]
        elif o.kind is OperationKind.DRAIN:
            del self.at[o.worker]

    @rule(index=st.integers(0, NODES - 1))
    def spoil(self, index: int) -> None:
        self.bad ^= {f"n{index}"}
        self.tick()

    @rule(index=st.integers(0, NODES - 1))
    def announce(self, index: int) -> None:
        self.going ^= {f"n{index}"}
        self.tick()

    @rule(waiting=st.sampled_from([0.0, 1.0, 2.0]))
    def press(self, waiting: float) -> None:
        self.waiting = waiting
        self.tick()

    def tick(self) -> None:
        seen = self._snapshot()
        recent = tuple(r for r in self.ended if r.outcome is not None and self.now - r.outcome.at <= 3600)
        state = EngineState(active=tuple(self.active), recent=recent)
        plan = evaluate(self.policies, [seen], state, self.now, Named(), Profile()).plan
        for operation in plan.operations:
            if operation.lane == "voluntary":
                self._check(operation, plan.operations, seen)
        for operation in plan.operations:
            self.active.append(OperationRecord(planned=operation, plan=plan.digest, epoch=1, created_at=self.now))

    def _snapshot(self) -> Snapshot:
        workers = []
        for name, slot in sorted(self.at.items()):
            state = WorkerState.RUNNING if slot else WorkerState.PARKED
            workers.append(msgspec.structs.replace(self.made[name], state=state, slot=slot, node=slot.split("/")[0] if slot else None))
        held = {slot: name for name, slot in self.at.items() if slot}
        nodes = tuple(
            Node(
                id=f"n{n}",
                slots=tuple(Slot(id=f"n{n}/{s}", worker=held.get(f"n{n}/{s}")) for s in range(SLOTS)),
                labels={"bad": str(int(f"n{n}" in self.bad))} | ({ZONE: f"z{n % 2}"} if n else {}),
            )
            for n in range(NODES)
        )
        images = tuple(
            Image(
                id=f"i-{w}", worker=w, incarnation=0, taken_at=self.now - 1, bytes=10**9, nodes=(n,), role=self.made[w].role,
                graph=self.made[w].graph, engine="e",
            )
            for w, n in sorted(self.images.items())
            if self.at.get(w, "") is None
        )  # fmt: skip
        samples = {
            w.id: {"waiting": Known(value=self.waiting, unit="1", at=self.now, query="q")}
            for w in workers
            if w.state is WorkerState.RUNNING
        }
        notices = tuple(
            Notice(id=f"x-{n}", kind=NoticeKind.MAINTENANCE, node=n, seen_at=self.now, deadline=self.now + 600) for n in sorted(self.going)
        )
        fleet = Fleet(nodes=nodes, workers=tuple(workers), images=images)
        return Snapshot(at=self.now, fleet=fleet, samples=Samples(workers=samples), notices=notices)

    # -- what is allowed, counted anew

    def _check(self, o: PlannedOperation, planned: tuple[PlannedOperation, ...], seen: Snapshot) -> None:
        worker = self.made[o.worker]
        mine = [s for s in self.specs if o.kind.value in s.operations and self._covers(s, worker)]
        for spec in mine or ([DEFAULT] if o.kind.value in DEFAULT.operations else []):
            group = self._group(spec, o)
            assert group is not None, "a node without a zone counts as zero"
            size = sum(
                w.state is WorkerState.RUNNING and self._covers(spec, w) and self._of(spec, w.graph, w.role, w.node) == group
                for w in seen.fleet.workers
            )

            def counted(operations: list[PlannedOperation], spec: BudgetSpec = spec, group: str = group) -> int:
                counting = [p for p in operations if p.kind.value in spec.operations and self._covers(spec, self.made[p.worker])]
                return sum(self._group(spec, p) == group for p in counting)

            if spec.max_concurrent is not None:
                now = counted([r.planned for r in self.active] + list(planned))
                assert now <= allowed(spec.max_concurrent, size), (spec, group, now, size)
            if spec.max_per_window is not None:
                since = self.now - spec.max_per_window.window
                begun = [r for r in (*self.active, *self.ended) if r.created_at > since and r.status is not Status.SUPERSEDED]
                number = counted([r.planned for r in begun] + list(planned))
                assert number <= allowed(spec.max_per_window.max, size), (spec, group, number, size)
            if spec.windows:
                local = datetime.datetime.fromtimestamp(self.now, ZoneInfo("Europe/Berlin"))
                assert datetime.time(9, 0) <= local.time() < datetime.time(9, 20)

    @staticmethod
    def _covers(spec: BudgetSpec, worker: Worker) -> bool:
        select = spec.workers
        return select.role in (None, worker.role) and select.graph in (None, worker.graph)

    def _group(self, spec: BudgetSpec, o: PlannedOperation) -> str | None:
        slot = o.from_slot or o.expect.at
        return self._of(spec, self.made[o.worker].graph, self.made[o.worker].role, slot.split("/")[0] if slot else None)

    @staticmethod
    def _of(spec: BudgetSpec, graph: str, role: str, node: str | None) -> str | None:
        if spec.per in ("pool", "all"):
            return f"{graph}/{role}" if spec.per == "pool" else "all"
        if node is None or spec.per == "node":
            return node
        return None if node == "n0" else f"z{int(node[1:]) % 2}"


def allowed(limit: Any, size: int) -> int:
    return math.floor(float(limit) * size + 1e-6) if isinstance(limit, Share) else limit


Machine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
test_no_voluntary_operation_begins_that_a_budget_would_not_have = Machine.TestCase
