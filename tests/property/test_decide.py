"""What holds for every fleet, every set of policies and every history: determinism, safety of the unknown, no conflicts, hard limits."""

import itertools
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.decide.evaluate import evaluate
from shunter.decide.jobs import Job, Option
from shunter.decide.place import place
from shunter.decide.profile import Profile
from shunter.model.canon import encode
from shunter.model.errors import Place
from shunter.model.expression import Expression, Scope, Undecided
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status
from shunter.model.plan import Evaluation, OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import (
    BudgetSpec,
    Cadence,
    CheckpointPolicy,
    CheckpointSpec,
    Destination,
    DisruptionBudget,
    FleetProfile,
    FleetProfileSpec,
    Gain,
    Keep,
    Limits,
    Metadata,
    Move,
    Optimal,
    Overhead,
    Pause,
    PerWindow,
    Pick,
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
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.units import Bandwidth, Duration, Rate, Share

NOW = 50_000.0
PROFILE = Profile(gpu_restore_floor_s=0)


class Threshold:
    """`name` measures a variable; `name>1` tests it. Nothing more, so that it can't be wrong in the way of a real language."""

    def _value(self, name: str, scope: Scope) -> float | Undecided:
        found = scope.get(name)
        if isinstance(found, Known):
            return found.value
        if isinstance(found, bool | int | float):
            return float(found)
        return Undecided(inputs=((name, "unknown"),))

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        name, _, bound = expression.text.partition(">")
        value = self._value(name, scope)
        return value if isinstance(value, Undecided) else value > float(bound)

    def measure(self, expression: Expression, scope: Scope) -> float | Undecided:
        return self._value(expression.text, scope)

    def inputs(self, expression: Expression) -> tuple[str, ...]:
        return (expression.text.partition(">")[0],)


def maybe(dice: Random, *texts: str) -> Expression | None:
    return dice.choice([None, *(Expression(text=t) for t in texts)])


WORKER = ("worker.sessions>1", "worker.waiting>0")
POOLS = ("pools.prefill.waiting>1", "pools.decode.sessions>2", "pools.decode.workers>1")


FACTS = (
    "pools.decode.workers>1",
    "pools.prefill.workers>1",
    "worker.incarnation>0",
    "node.freeSlots>1",
    "node.freeSlots",
    "node.freeSlots>0",
)
"""What is known without any metric."""


def selector(dice: Random) -> WorkerSelector:
    where = maybe(dice, *WORKER) if dice.random() < 0.3 else None
    return WorkerSelector(role=dice.choice([None, None, "decode"]), where=where, all=True)


def policies(dice: Random) -> list[Policy]:
    made: list[Any] = []
    for index in range(dice.choice([3, 4, 5, 2])):
        meta = Metadata(name=f"p{index}")
        base: dict[str, Any] = {
            "workers": selector(dice),
            "mode": dice.choice(["enforce", "enforce", "enforce", "preview", "off"]),
            "priority": dice.randint(0, 2),
        }
        kind = dice.choice(["preemption", "checkpoint", "reassignment", "rebalance", "budget", "profile"])
        if kind == "preemption":
            move = Move(
                to=Destination(
                    where=maybe(dice, "node.freeSlots>0", "worker.sessions>1"), prefer=maybe(dice, "node.freeSlots", "worker.kvUsage")
                ),
                order=maybe(dice, "worker.sessions", "worker.kvTokens"),
                make_room=dice.choice(["none", "prefill"]),
            )
            made.append(PreemptionPolicy(metadata=meta, spec=PreemptionSpec(notices=tuple(NoticeKind), move=move, **base)))
        elif kind == "checkpoint":
            made.append(CheckpointPolicy(metadata=meta, spec=checkpoints(dice, base)))
        elif kind == "rebalance":
            gain = dice.choice([None, Gain(at_least=1)])
            prefer = Expression(text="node.freeSlots") if gain else maybe(dice, "node.freeSlots", "worker.sessions")
            to = Destination(where=maybe(dice, "node.freeSlots>1", "worker.waiting>1"), prefer=prefer)
            spec_r = RebalanceSpec(
                when=Expression(text=dice.choice(["worker.sessions>1", "worker.incarnation>0", *["node.freeSlots>0"] * 3])),
                for_=Duration(dice.choice([0, 0, 4])), to=to, gain=gain, cooldown=Duration(60), step=dice.randint(1, 3), **base,
            )  # fmt: skip
            made.append(RebalancePolicy(metadata=meta, spec=spec_r))
        elif kind == "budget":
            made.append(DisruptionBudget(metadata=meta, spec=budget(dice, base["workers"], base["mode"])))
        elif kind == "profile":
            spec_f = FleetProfileSpec(
                mode=base["mode"], dump=dice.choice([None, Bandwidth(1e9)]), native_start=dice.choice([None, Duration(1), Duration(900)]),
                prefill_rate=dice.choice([None, 1.0]), lead={NoticeKind.MAINTENANCE: Duration(dice.choice([5, 60]))},
            )  # fmt: skip
            made.append(FleetProfile(metadata=meta, spec=spec_f))
        else:
            way = dice.choice([("decode", "prefill"), ("prefill", "decode")])
            planner = dice.random() < 0.3
            spec_ = ReassignmentSpec(
                from_=way[0],
                to=way[1],
                when=None if planner else Expression(text=dice.choice(POOLS)),
                for_=Duration(dice.choice([0, 0, 4])),
                follow="planner" if planner else "thresholds",
                revert=None if planner else dice.choice([None, None, Trigger(when=Expression(text="pools.prefill.workers>1"))]),
                pick=Pick(where=maybe(dice, *WORKER), prefer=maybe(dice, "worker.sessions")),
                sessions=dice.choice(["move", "park", "drain"]),
                limits=Limits(step=dice.randint(1, 2)),
                cooldown=Duration(60),
                **base,
            )
            made.append(ReassignmentPolicy(metadata=meta, spec=spec_))
    return [Policy(document=d, place=Place(file="p", line=1, column=1), blob="b", commit="c") for d in made]


def checkpoints(dice: Random, base: dict[str, Any]) -> CheckpointSpec:
    fixed = dice.random() < 0.6
    return CheckpointSpec(
        every=Duration(60) if fixed else None,
        cadence=None if fixed else Cadence(optimal=Optimal(hazard=Rate.parse("1/24h"), min=Duration(30), max=Duration(90))),
        when=maybe(dice, *WORKER),
        pause=Pause(at_most=dice.choice([None, None, Duration(5)]), share=Share(dice.choice([0.2, 0.5]))),
        overhead=dice.choice([None, Overhead(at_most=Share(0.02))]),
        prefer=dice.choice([None, None, "idle"]),
        keep=Keep(last=dice.randint(1, 2), within=dice.choice([None, Duration(100)])),
        copies=dice.randint(1, 3),
        **base,
    )


def budget(dice: Random, select: WorkerSelector, mode: Any) -> BudgetSpec:
    return BudgetSpec(
        workers=select,
        mode=mode,
        operations=dice.choice([("move", "park", "drain", "reassign"), ("move", "checkpoint")]),
        per=dice.choice(["pool", "node", "zone", "all"]),
        max_concurrent=dice.choice([None, 0, 1, 2, Share(0.5)]),
        max_per_window=dice.choice([None, PerWindow(max=2, window=Duration(600))]),
        windows=dice.choice([(), (), (Window(zone="Europe/Berlin", from_="22:00", to="06:00"),)]),
    )


def fleets(dice: Random) -> Fleet:
    workers, nodes, images = [], [], []
    for n in range(dice.choice([5, 4, 4, 3, 2])):
        slots = []
        for s in range(dice.choice([3, 2, 1])):
            held = None
            if dice.random() < 0.7:
                held = f"w{len(workers)}"
                workers.append((held, f"n{n}/{s}", dice.choice([WorkerState.RUNNING] * 4 + [WorkerState.FENCED, WorkerState.FROZEN])))
            roles = dice.choice([("prefill", "decode")] * 5 + [("decode",)])
            slots.append(Slot(id=f"n{n}/{s}", worker=held, roles=roles))
        nodes.append(
            Node(
                id=f"n{n}",
                slots=tuple(slots),
                reachable=dice.choice([True] * 7 + [False]),
                labels=dice.choice([{}, {"topology.kubernetes.io/zone": "x"}, {"topology.kubernetes.io/zone": "y"}]),
                facts={"kernel": dice.choice("111112")},
            )
        )
    for _ in range(dice.choice([2, 3, 1, 0])):
        workers.append((f"w{len(workers)}", None, dice.choice([WorkerState.PARKED, WorkerState.LOST])))
    made = [
        Worker(
            id=w, role=dice.choice(["prefill", "decode"]), graph=dice.choice(["g"] * 5 + ["h"]), engine="e", state=state,
            node=slot.split("/")[0] if slot else None, slot=slot, incarnation=dice.randint(0, 1),
            memory=dice.choice([10**9] * 6 + [None, 10**11]),
        )
        for w, slot, state in workers
    ]  # fmt: skip
    for index, w in enumerate(made):
        for copy in range(dice.choice([1, 1, 2, 0])):
            holders = dice.sample([n.id for n in nodes], min(len(nodes), dice.randint(1, 2)))
            images.append(
                Image(
                    id=f"i{index}-{copy}", worker=w.id, incarnation=w.incarnation, taken_at=NOW - dice.randint(1, 200), bytes=10**9,
                    nodes=tuple(holders), role=w.role, graph=w.graph, engine="e", facts={"kernel": "1"},
                )
            )  # fmt: skip
    return Fleet(nodes=tuple(nodes), workers=tuple(made), images=tuple(images))


def samples(dice: Random, fleet: Fleet) -> Samples:
    def one() -> Any:
        value = dice.choice([0, 1, 2, 3, 4, 5] * 4 + [-1])
        return Missing(reason="no data") if value < 0 else Known(value=value, unit="1", at=NOW, query="q")

    pools = {f"{w.graph}/{role}": {"desired": one()} for w in fleet.workers for role in ("prefill", "decode")}
    fields = ("sessions", "waiting", "kvTokens", "running")
    return Samples(workers={w.id: {f: one() for f in fields} for w in fleet.workers}, pools=pools)


def situation_of(dice: Random) -> tuple[list[Policy], list[Snapshot], EngineState]:
    fleet = fleets(dice)
    count = dice.choice([0, 1, 1, 2])
    noticed = dice.sample(([n.id for n in fleet.nodes]), len(fleet.nodes))[:count]
    notices = tuple(
        Notice(
            id=f"n-{n}", kind=dice.choice([NoticeKind.PREEMPTION, *NoticeKind]), node=n, seen_at=NOW - 1,
            deadline=dice.choice([NOW + 120, NOW + 120, None, NOW + 30, NOW - 1]),
        )
        for n in noticed
    )  # fmt: skip
    series = [Snapshot(at=NOW - 2 * back, fleet=fleet, notices=notices, samples=samples(dice, fleet)) for back in (2, 1, 0)]
    return policies(dice), series, states(dice, fleet)


def states(dice: Random, fleet: Fleet) -> EngineState:
    if not fleet.workers:
        return EngineState()

    def record(index: int) -> OperationRecord:
        w = dice.choice(fleet.workers)
        kind = dice.choice(list(OperationKind))
        planned = PlannedOperation(
            id=f"o{index}", kind=kind, worker=w.id, lane=dice.choice(["voluntary", "involuntary"]),
            policy=f"p{dice.randint(0, 3)}",
            reason="r", expect=Preconditions(incarnation=w.incarnation), from_slot=w.slot,
            cause=dice.choice(["notice:n-n0", "every:1"]),
        )  # fmt: skip
        return OperationRecord(planned=planned, plan="sha256:x", epoch=1, created_at=NOW - dice.randint(1, 3000))

    active = [record(i) for i in range(dice.choice([0] * 5 + [1]))]
    status = [Status.SUCCEEDED, Status.ROLLED_BACK, Status.FAILED, Status.SUPERSEDED, Status.UNKNOWN]
    recent = [
        msgspec.structs.replace(record(10 + i), outcome=Outcome(status=dice.choice(status), at=NOW - 1, code=dice.choice(["", "SH701"])))
        for i in range(dice.choice([0, 0, 0, 1, 3]))
    ]
    return EngineState(active=tuple(active), recent=tuple(recent))


SITUATIONS = st.integers(0, 2**32 - 1).map(lambda seed: situation_of(Random(seed)))
"""From a seed, so that all of a situation varies at once; hypothesis alone would mostly try small ones."""


def run(policies: list[Policy], series: list[Snapshot], state: EngineState, now: float = NOW) -> Evaluation:
    given_ = PolicySet(commit="c", digest="sha256:p", policies=tuple(policies))
    return evaluate(given_, series, state, now, Threshold(), PROFILE)


@given(SITUATIONS)
@settings(max_examples=400, deadline=None)
def test_the_same_inputs_give_the_same_bytes(situation):
    assert encode(run(*situation)) == encode(run(*situation))


@given(SITUATIONS, st.randoms(use_true_random=False))
@settings(max_examples=400, deadline=None)
def test_the_order_of_the_inputs_does_not_matter(situation, random):
    policies_, series, state = situation

    def mixed(items: Any) -> tuple[Any, ...]:
        return tuple(random.sample(list(items), len(items)))

    def shuffled(snapshot: Snapshot) -> Snapshot:
        fleet = snapshot.fleet
        nodes = mixed([msgspec.structs.replace(n, slots=mixed(n.slots)) for n in fleet.nodes])
        given_ = Samples(workers=dict(mixed(snapshot.samples.workers.items())), pools=dict(mixed(snapshot.samples.pools.items())))
        other = Fleet(nodes=nodes, workers=mixed(fleet.workers), images=mixed(fleet.images))
        return msgspec.structs.replace(snapshot, fleet=other, notices=mixed(snapshot.notices), samples=given_)

    one = run(policies_, series, state)
    other = run(list(mixed(policies_)), [shuffled(s) for s in series], EngineState(active=mixed(state.active), recent=mixed(state.recent)))
    assert encode(other.findings) == encode(one.findings)
    assert encode(other.plan.operations) == encode(one.plan.operations)


@given(SITUATIONS)
@settings(max_examples=400, deadline=None)
def test_no_two_operations_meet(situation):
    _, series, state = situation
    result = run(*situation)
    operations = result.plan.operations
    busy = [r for r in (*state.active, *state.recent) if r.status in (Status.ACTIVE, Status.UNKNOWN)]
    assert len({o.worker for o in operations}) == len(operations)
    assert not {o.worker for o in operations} & {r.planned.worker for r in busy}
    arriving = [o.to_slot for o in operations if o.to_slot]
    assert len(set(arriving)) == len(arriving)
    assert not set(arriving) & {r.planned.from_slot for r in busy}
    leaving = {o.from_slot: o for o in operations if o.from_slot}
    occupied = {s.id for n in series[-1].fleet.nodes for s in n.slots if s.worker}
    seen: set[str] = set()
    for o in operations:
        assert set(o.after) <= seen
        seen.add(o.id)
        if o.to_slot in occupied:
            assert leaving[o.to_slot].id in o.after, "it is somebody's until the one before has left"


@given(SITUATIONS)
@settings(max_examples=400, deadline=None)
def test_destinations_are_within_the_hard_limits(situation):
    _, series, _ = situation
    fleet = series[-1].fleet
    nodes = {n.id: n for n in fleet.nodes}
    slots = {s.id: s for n in fleet.nodes for s in n.slots}
    workers = {w.id: w for w in fleet.workers}
    images = {i.id: i for i in fleet.images}
    going = {n.node for n in series[-1].notices}
    decided = {n.node for n in series[-1].notices if not n.hint(series[-1].at)}
    for o in run(*situation).plan.operations:
        worker = workers[o.worker]
        if o.to_slot:
            there = nodes[o.to_slot.split("/")[0]]
            facts = images[o.image].facts if o.image else nodes[worker.node].facts
            assert there.reachable
            assert there.id not in going
            assert worker.role in slots[o.to_slot].roles
            assert there.facts["kernel"] == facts["kernel"]
        if o.kind is OperationKind.RESTORE:
            assert worker.state in (WorkerState.PARKED, WorkerState.LOST)
            assert any(nodes[n].reachable for n in images[o.image].nodes)
        if o.lane == "voluntary" and o.from_slot:
            assert worker.node not in decided, "what is only hinted at keeps nobody from leaving"
        if o.kind is OperationKind.DISCARD:
            left = [i for i in fleet.images if i.worker == o.worker and i.id != o.image and i.taken_at >= images[o.image].taken_at]
            assert any(nodes[n].reachable and n not in going for i in left for n in i.nodes), "something to come back from is left"


def after(snapshot: Snapshot, o: PlannedOperation) -> Snapshot:
    """The snapshot with one move done."""
    fleet, there = snapshot.fleet, o.to_slot.split("/")[0]
    held = {o.from_slot: None, o.to_slot: o.worker}
    nodes = tuple(
        msgspec.structs.replace(n, slots=tuple(msgspec.structs.replace(s, worker=held.get(s.id, s.worker)) for s in n.slots))
        for n in fleet.nodes
    )
    workers = tuple(
        msgspec.structs.replace(w, node=there, slot=o.to_slot, incarnation=w.incarnation + 1) if w.id == o.worker else w
        for w in fleet.workers
    )
    return msgspec.structs.replace(snapshot, fleet=msgspec.structs.replace(fleet, nodes=nodes, workers=workers))


def test_the_state_after_a_move_by_choice_does_not_call_for_the_next():
    moved = 0
    for seed in range(2500):
        dice = Random(seed)
        fleet = fleets(dice)
        chosen = [p for p in policies(dice) if isinstance(p.document, RebalancePolicy)]
        series = [Snapshot(at=NOW - 2 * back, fleet=fleet, samples=samples(dice, fleet)) for back in (2, 1, 0)]
        for policy in chosen:
            alone = [
                msgspec.structs.replace(policy, document=msgspec.structs.replace(policy.document, spec=one_step(policy.document.spec)))
            ]
            for o in run(alone, series, EngineState()).plan.operations:
                moved += 1
                again = run(alone, [after(s, o) for s in series], EngineState()).plan.operations
                assert o.worker not in [other.worker for other in again], (seed, policy.document.spec)
    assert moved > 50, "else nothing was tried"


def one_step(spec: RebalanceSpec) -> RebalanceSpec:
    return msgspec.structs.replace(spec, step=1)


def without_metrics(series: list[Snapshot]) -> list[Snapshot]:
    return [msgspec.structs.replace(s, samples=Samples()) for s in series]


@given(SITUATIONS)
@settings(max_examples=400, deadline=None)
def test_nothing_voluntary_is_done_on_an_unknown_input(situation):
    policies_, series, state = situation
    result = run(policies_, without_metrics(series), state)
    reads = {p.name: p for p in policies_}
    for o in result.plan.operations:
        if o.lane == "involuntary" or o.kind is OperationKind.DISCARD:
            continue
        spec = reads[o.policy].document.spec
        conditions = [spec.workers.where if o.kind is not OperationKind.RESTORE and "revert" not in o.cause else None]
        if isinstance(spec, CheckpointSpec | RebalanceSpec):
            conditions.append(spec.when)
        if isinstance(spec, RebalanceSpec):
            conditions += [spec.to.where, spec.to.prefer if spec.gain else None]
        if isinstance(spec, ReassignmentSpec):
            assert spec.follow != "planner", "what the planner wants isn't known"
            conditions.append(spec.revert.when if o.cause.startswith("revert") and spec.revert else spec.when)
            conditions.append(spec.pick.where if o.kind is not OperationKind.RESTORE and "revert" not in o.cause else None)
        for condition in conditions:
            assert condition is None or condition.text in FACTS, condition


@given(SITUATIONS)
@settings(max_examples=400, deadline=None)
def test_an_unknown_metric_never_keeps_a_worker_on_a_node_that_is_going(situation):
    policies_, series, state = situation
    blind = run(policies_, without_metrics(series), state)
    saved = {
        (o.worker)
        for o in run(policies_, series, state).plan.operations
        if o.lane == "involuntary" and o.notice and not o.cause.startswith("room")
    }
    acted = {o.worker for o in blind.plan.operations}
    held = {
        f.subject for f in blind.findings if f.lane == "involuntary" and f.verdict is not Verdict.ACT and "needs a person" not in f.reason
    }
    running = {w.id for w in series[-1].fleet.workers if w.slot}
    assert not (saved & running & held) - acted
    assert not any(f.lane == "involuntary" and f.verdict is Verdict.INCONCLUSIVE for f in blind.findings)


@given(SITUATIONS, st.floats(0.1, 1.9))
@settings(max_examples=400, deadline=None)
def test_ids_stay_while_the_decision_does(situation, later):
    policies_, series, state = situation
    now = NOW - NOW % 60 + 30  # within a period of checkpoints
    first, second = run(policies_, series, state, now), run(policies_, series, state, now + later)
    ids = {(o.worker, o.kind, o.cause): o.id for o in first.plan.operations}
    assert all(ids.get((o.worker, o.kind, o.cause), o.id) == o.id for o in second.plan.operations)
    same = {(o.worker, o.kind) for o in first.plan.operations} & {(o.worker, o.kind) for o in second.plan.operations}
    causes = [{(o.worker, o.kind): o.cause for o in e.plan.operations if (o.worker, o.kind) in same} for e in (first, second)]
    assert causes[0] == causes[1]


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Job], dict[str, dict[str, Option]], dict[str, float]]:
    slots = [f"s/{i}" for i in range(draw(st.integers(1, 4)))]
    jobs, options = [], {}
    for index in range(draw(st.integers(1, 5))):
        name = f"w{index}"
        jobs.append(
            Job(
                worker=name, value=draw(st.integers(0, 5)), lane=draw(st.sampled_from("ab")), occupy=draw(st.integers(1, 9)),
                tail=draw(st.integers(0, 5)), limit=draw(st.sampled_from([None, 8.0, 15.0])),
            )
        )  # fmt: skip
        own = draw(st.lists(st.sampled_from(slots), unique=True))
        options[name] = {s: Option(prefer=draw(st.integers(0, 3)), load=draw(st.integers(0, 2))) for s in own}
    return jobs, options, {"a": draw(st.integers(0, 3))}


@given(placements())
@settings(max_examples=200, deadline=None)
def test_small_placements_are_the_best_there_are(case):
    jobs, options, lanes = case
    best: tuple[float, int] = (0.0, 0)
    for size in range(len(jobs) + 1):
        for chosen in itertools.combinations(jobs, size):
            if in_time_in_some_order(chosen, lanes) and matchings(chosen, options):
                best = max(best, (sum(j.value for j in chosen), size))
    result = place(jobs, options, lanes, 0.0)
    placed = [j for j in jobs if j.worker in result.slots]
    assert (sum(j.value for j in placed), len(placed)) == best
    assert in_time_in_some_order(placed, lanes)
    liked = max((sum(options[j.worker][s].prefer for j, s in zip(placed, m, strict=True)) for m in matchings(placed, options)), default=0)
    assert sum(options[w][s].prefer for w, s in result.slots.items()) == liked
    assert set(result.slots) | set(result.late) | set(result.without) == {j.worker for j in jobs}


def matchings(chosen: Any, options: dict[str, dict[str, Option]]) -> list[tuple[str, ...]]:
    return [m for m in itertools.product(*(options[j.worker] for j in chosen)) if len(set(m)) == len(m)]


def in_time_in_some_order(chosen: Any, lanes: dict[str, float]) -> bool:
    """By trying every order on every lane, without the theorem that `timetable` relies on."""
    for lane in "ab":
        own = [j for j in chosen if j.lane == lane]
        if not any(_in_time(order, lanes.get(lane, 0.0)) for order in itertools.permutations(own)):
            return False
    return True


def _in_time(order: Any, clock: float) -> bool:
    for job in order:
        clock += job.occupy
        if job.limit is not None and clock + job.tail > job.limit:
            return False
    return True
