"""Complaints about neighbouring systems, and what is decided here instead: policies in the real language, numbers as Prometheus gives them.

Each test is named after the row of the list of public bug reports that it answers.
"""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from shunter.backtest.world import carried_out
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.cel import CelRules
from shunter.lang.load import check_text
from shunter.model.finding import Finding, Verdict
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status
from shunter.model.plan import Evaluation, OperationKind
from shunter.model.policy import Policy, PolicySet
from shunter.model.sample import Known, Sample
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.observe.prometheus import Prometheus
from shunter.observe.sample import sample

NOW = 1_780_000_000.0
"""2026-05-28 20:26:40 UTC, a Thursday."""


def worker(name: str, slot: str | None = None, **more: Any) -> Worker:
    fields: dict[str, Any] = {"graph": "chat", "engine": "vllm", "incarnation": 0, "memory": 10**9, **more}
    state = WorkerState.RUNNING if slot else WorkerState.PARKED
    return Worker(id=name, role=name.split("-")[0], state=state, slot=slot, node=slot.split("/")[0] if slot else None, **fields)


def node(name: str, *held: str | None, **more: Any) -> Node:
    return Node(id=name, slots=tuple(Slot(id=f"{name}/{i}", worker=w) for i, w in enumerate(held)), **more)


def image(of: Worker, *nodes: str, at: float = NOW - 60) -> Image:
    return Image(
        id=f"i-{of.id}", worker=of.id, incarnation=0, taken_at=at, bytes=10**9, nodes=nodes, role=of.role, graph=of.graph, engine="vllm"
    )


BUSY = [worker("decode-0", "a/0"), worker("decode-1", "b/0"), worker("prefill-0", "c/0"), worker("prefill-1")]
FLEET = Fleet(
    nodes=(node("a", "decode-0"), node("b", "decode-1"), node("c", "prefill-0")), workers=tuple(BUSY), images=(image(BUSY[3], "c"),)
)
SHIFT = """
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: shift}
spec:
  workers: {graph: chat}
  from: decode
  to: prefill
  when: 'WHEN'
  for: 0s
  sessions: park
"""
METRIC = """
  metrics:
    wait: {query: up, unit: secondsMORE}
"""


def read(*texts: str) -> list[Policy]:
    policies: list[Policy] = []
    for number, text in enumerate(texts):
        found, problems = check_text(f"p{number}.yaml", text.encode())
        assert not problems, [str(p) for p in problems]
        policies += found
    return policies


NO_SAMPLES, IDLE = Samples(), EngineState()


def decide(
    policies: list[Policy],
    fleet: Fleet = FLEET,
    samples: Samples = NO_SAMPLES,
    *,
    state: EngineState = IDLE,
    notices: tuple[Notice, ...] = (),
    now: float = NOW,
) -> Evaluation:
    given = PolicySet(commit="c", digest="sha256:p", policies=tuple(sorted(policies, key=lambda p: p.name)))
    seen = Snapshot(at=now, fleet=fleet, samples=samples, notices=notices)
    return evaluate(given, [seen], state, now, CelRules(), Profile(gpu_restore_floor_s=0))


def of(result: Evaluation, policy: str, subject: str) -> Finding:
    (found,) = [f for f in result.findings if (f.policy, f.subject) == (policy, subject)]
    return found


def kinds(result: Evaluation) -> list[tuple[str, str]]:
    return [(o.kind.value, o.worker) for o in result.plan.operations]


@pytest.fixture
def serve() -> Iterator[Any]:
    """A server that gives one answer to every query. Returns what a policy's metric `wait` is then."""
    servers: list[http.server.ThreadingHTTPServer] = []

    async def ask(policies: list[Policy], *values: str, status: int = 200) -> Samples:
        result = [{"metric": {"job": "x"}, "value": [NOW, v]} for v in values]
        body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        inputs = {p.name: dict(p.metrics) for p in policies}
        async with Prometheus(f"http://127.0.0.1:{server.server_address[1]}") as client:
            return await sample(client, FLEET, inputs, NOW)

    yield ask
    for server in servers:
        server.shutdown()
        server.server_close()


def shift(when: str, metric: str = "") -> list[Policy]:
    """A policy that gives a decode worker's slot to prefill; `metric` is more of what the metric `wait` declares."""
    metrics = METRIC.replace("MORE", f", {metric}" if metric else "") if "metrics.wait" in when else ""
    return read(SHIFT.replace("WHEN", when).rstrip() + metrics)


async def test_ac1_an_empty_answer_is_no_zero(serve: Any) -> None:
    """keda#3065: Prometheus answered empty, it was read as 0, and the fleet shrank at peak."""
    policies = shift("metrics.wait < 1.0")
    result = decide(policies, samples=await serve(policies))
    found = of(result, "shift", "chat")
    assert (kinds(result), found.verdict, found.reason) == ([], Verdict.INCONCLUSIVE, "no value for metrics.wait")
    assert "query returned 0 series; expected 1" in found.evidence[0].detail
    assert kinds(decide(policies, samples=await serve(policies, "0"))) != [], "a zero is one"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
async def test_ac2_what_is_not_finite_is_no_number(serve: Any, value: str) -> None:
    """keda#7475: NaN became -9.2e15, and a comparison with it was true."""
    for when in ("metrics.wait < 1.0", "metrics.wait > 1.0", "metrics.wait != 1.0", "!(metrics.wait < 1.0)"):
        policies = shift(when)
        result = decide(policies, samples=await serve(policies, value))
        assert (kinds(result), of(result, "shift", "chat").verdict) == ([], Verdict.INCONCLUSIVE), when
        assert "finite" in of(result, "shift", "chat").evidence[0].detail
    with pytest.raises(ValueError, match="not a known value"):
        Known(value=float(value), unit="1", at=NOW, query="q")


async def test_ac5_unknown_is_per_metric_and_a_known_veto_wins(serve: Any) -> None:
    """keda#6659: the fallback of one broken trigger overrode a healthy one."""
    policies = shift("metrics.wait > 1.0 && pools.decode.kvUsage < 0.5")
    calm: dict[str, Sample] = {"kvUsage": Known(value=0.9, unit="1", at=NOW, query="q")}
    broken = msgspec.structs.replace(await serve(policies, status=500), workers={"decode-0": calm, "decode-1": calm})
    result = decide(policies, samples=broken)
    found = of(result, "shift", "chat")
    assert (kinds(result), found.verdict, found.reason) == ([], Verdict.PASS, "`when` is false"), "decode is busy, whatever the queue is"
    free: dict[str, Sample] = {"kvUsage": Known(value=0.1, unit="1", at=NOW, query="q")}
    open_ = msgspec.structs.replace(broken, workers={"decode-0": free, "decode-1": free})
    assert of(decide(policies, samples=open_), "shift", "chat").verdict is Verdict.INCONCLUSIVE


async def test_ac8_nothing_by_nothing_is_inconclusive_unless_its_author_says_what_no_data_means(serve: Any) -> None:
    """argo-rollouts#180: a success rate of 0/0 at no traffic decided a release."""
    policies = shift("metrics.wait < 1.0")
    assert kinds(decide(policies, samples=await serve(policies, "NaN"))) == []
    declared = shift("metrics.wait < 1.0", "onMissing: 0")
    assert kinds(decide(declared, samples=await serve(declared))) != []
    assert kinds(decide(declared, samples=await serve(declared, status=503))) == [], "a failed query isn't an empty answer"


@pytest.mark.parametrize("when", ["QUOTIENT < 1.0", "!(QUOTIENT < 1.0)", "QUOTIENT != 1.0"])
def test_ac8_a_quotient_of_nothing_by_nothing_decides_nothing(when: str) -> None:
    """argo-rollouts#180, where the policy divides."""
    quotient = shift(when.replace("QUOTIENT", "pools.decode.sessions / pools.decode.running"))
    nothing: dict[str, Sample] = {n: Known(value=0, unit="1", at=NOW, query="q") for n in ("sessions", "running")}
    idle = decide(quotient, samples=Samples(workers={"decode-0": nothing, "decode-1": nothing}))
    assert (kinds(idle), of(idle, "shift", "chat").verdict) == ([], Verdict.INCONCLUSIVE)


FOLLOW = """
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: follow}
spec: {workers: {graph: chat}, from: decode, to: prefill, follow: planner, for: 0s, sessions: park, cooldown: 1s, limits: {step: 9}}
"""


def wanted(prefill: float, decode: float) -> Samples:
    both = {"chat/prefill": prefill, "chat/decode": decode}
    return Samples(pools={p: {"desired": Known(value=v, unit="workers", at=NOW, query="q")} for p, v in both.items()})


def test_ac13_a_target_that_cannot_be_reached_is_said_and_not_chased() -> None:
    """dynamo#6145: an SLA that no hardware could meet made the planner scale up for ever."""
    policies, fleet, done = read(FOLLOW), FLEET, 0
    for tick in range(20):
        result = decide(policies, fleet, wanted(5, 4), now=NOW + 60 * tick)
        for operation in result.plan.operations:
            fleet, done = carried_out(fleet, operation, NOW + 60 * tick), done + 1
    assert done == 0, "all slots are taken, and no pool has a worker too many"
    found = of(result, "follow", "chat")
    assert (found.verdict, found.gate) == (Verdict.HOLD, "desired")
    assert found.reason == "the planner wants 9 workers of chat, and there are slots for 3"
    for tick in range(20):
        result = decide(policies, fleet, wanted(8, 1), now=NOW + 60 * tick)
        for operation in result.plan.operations:
            fleet, done = carried_out(fleet, operation, NOW + 60 * tick), done + 1
    assert done == 2, "what can be done is done, once: a decode worker makes way for the one prefill worker that waits"
    assert of(result, "follow", "chat").reason == "the planner wants 9 workers of chat, and there are slots for 3"


REBALANCE = """
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: tidy}
spec:
  workers: {all: true}
  when: node.freeSlots == 0
  for: 0s
  to: {prefer: double(node.freeSlots)}
  gain: {atLeast: GAIN}
  cooldown: 1s
"""


@pytest.mark.parametrize(("gain", "free", "moves"), [("1.0", 1, 0), ("1.0", 2, 1), ("2.0", 2, 1), ("3.0", 2, 0)])
def test_ac14_the_state_after_a_move_does_not_call_for_the_next(gain: str, free: int, moves: int) -> None:
    """karpenter#3921: consolidation replaced nodes in a loop, each state being worse than the one that it would make."""
    fleet = Fleet(nodes=(node("a", "decode-0"), node("b", *[None] * free)), workers=(BUSY[0],))
    ended: list[OperationRecord] = []
    for tick in range(60):
        now = NOW + 60 * tick
        result = decide(read(REBALANCE.replace("GAIN", gain)), fleet, state=EngineState(recent=tuple(ended)), now=now)
        for o in result.plan.operations:
            fleet = carried_out(fleet, o, now)
            outcome = Outcome(status=Status.SUCCEEDED, at=now + 1)
            ended.append(OperationRecord(planned=o, plan=result.plan.digest, epoch=1, created_at=now, outcome=outcome))
    assert len(ended) == moves
    gate = {("1.0", 1): "after", ("3.0", 2): "gain"}.get((gain, free))
    assert gate is None or of(result, "tidy", "decode-0").gate == gate


BUDGET = """
apiVersion: shunter.dev/v1alpha1
kind: DisruptionBudget
metadata: {name: calm}
spec:
  workers: {all: true}
  maxConcurrent: 50%
  windows: [{ZONE from: '22:00', to: '23:00'}]
"""
EMPTY = """
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: empty}
spec: {workers: {all: true}, when: 'has(node.labels.empty)', for: 0s, step: 9}
"""


def crowd(count: int) -> Fleet:
    taken = [node(f"a{i}", f"decode-{i}", labels={"empty": "yes"}) for i in range(count)]
    return Fleet(
        nodes=(*taken, *(node(f"b{i}", None) for i in range(count))), workers=tuple(worker(f"decode-{i}", f"a{i}/0") for i in range(count))
    )


def test_ac21_a_window_without_a_zone_is_refused_and_no_zone_is_assumed() -> None:
    """cloud-custodian#483: `tz` alone fell back to a default zone."""
    _, problems = check_text("p.yaml", BUDGET.replace("ZONE ", "").encode())
    assert [(p.place.line, "zone" in p.what + p.remedy) for p in problems if p.place] == [(8, True)]
    _, unknown = check_text("p.yaml", BUDGET.replace("ZONE", "zone: Europe/Belrin,").encode())
    assert unknown, "a zone that doesn't exist is refused as well"
    # 20:26 UTC is 22:26 in Berlin, and 20:26 in London is 21:26 by its summer time
    for zone, moves in (("Europe/Berlin", 1), ("Europe/London", 0), ("UTC", 0)):
        policies = read(BUDGET.replace("ZONE", f"zone: {zone},"), EMPTY)
        result = decide(policies, crowd(2))
        assert len(kinds(result)) == moves, zone
        if not moves:
            opens = "thu 2026-05-28 22:00"
            assert f"opens at {opens} {zone}" in of(result, "empty", "decode-0").reason


def test_ac23_no_budget_is_one_at_a_time_and_the_effective_number_is_said() -> None:
    """karpenter#7026: a reason that no budget named was unlimited."""
    result = decide(read(EMPTY), crowd(4))
    assert kinds(result) == [("move", "decode-0")]
    assert of(result, "empty", "decode-1").reason == "no budget covers it, so one at a time: 1 of 1 at once in pool:chat/decode"
    half = read(EMPTY, BUDGET.replace("  windows: [{ZONE from: '22:00', to: '23:00'}]\n", ""))
    shared = decide(half, crowd(5))
    assert len(kinds(shared)) == 2
    assert "2 of 2 at once (50% of 5 rounded down: 2)" in of(shared, "calm", "pool:chat/decode").reason
    other = read(EMPTY, BUDGET.replace("  windows: [{ZONE from: '22:00', to: '23:00'}]\n", "  operations: [checkpoint]\n"))
    assert len(kinds(decide(other, crowd(5)))) == 1, "a budget for checkpoints says nothing of moves"


def test_ac44_vetoes_come_before_the_first_effect_and_nothing_stands_half_way_for_ever() -> None:
    """karpenter#2704: a node was tainted, then its disruption was blocked, and it stayed tainted."""
    policies = shift("pools.decode.workers > 0")
    whole = decide(policies)
    assert [k for k, _ in kinds(whole)] == ["park", "restore"]
    assert all(o.deadline is not None and o.deadline > NOW for o in whole.plan.operations)
    budget = BUDGET.replace("50%", "0").replace("  windows: [{ZONE from: '22:00', to: '23:00'}]\n", "")
    away = msgspec.structs.replace(FLEET, nodes=(*FLEET.nodes[:2], node("c", "prefill-0", reachable=False)))
    going = Notice(id="n", kind=NoticeKind.MAINTENANCE, node="c", seen_at=NOW, deadline=NOW + 600)
    vetoes = {
        "the budget is spent": decide([*policies, *read(budget)]),
        "the image can't be reached": decide(policies, away),
        "a node of the graph is going": decide([*policies, *read(PREEMPT)], notices=(going,)),
    }
    for why, result in vetoes.items():
        assert not [o for o in result.plan.operations if o.lane == "voluntary"], why
        assert of(result, "shift", "chat").verdict is Verdict.HOLD, why
    moves = decide(read(EMPTY), crowd(1)).plan.operations
    assert [(o.kind, o.deadline is not None) for o in moves] == [(OperationKind.MOVE, True)]


PREEMPT = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {all: true}, notices: [maintenance]}
"""
