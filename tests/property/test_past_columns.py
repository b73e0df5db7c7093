"""The past over columns says, decides and reports what it says, decides and reports sample by sample."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import shunter.app.backtest as past
import shunter.backtest.run as running
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_gauges import Line, Server, lines
from shunter.app.world import inputs_of
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.bulk import BulkCelRules
from shunter.lang.load import load
from shunter.model.backtest import Backtest
from shunter.model.canon import encode
from shunter.model.errors import Severity
from shunter.model.ids import Commit, Incarnation, NodeId, NoticeId, WorkerId, slot_id
from shunter.model.policy import MetricInput, PolicySet
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile
from shunter.model.table import SampleMap
from shunter.model.units import Duration
from shunter.observe.catalog import Catalog
from shunter.observe.history import History
from shunter.observe.moments import Moments
from shunter.observe.sample import sample

BEGIN, STEP = 1_790_000_010.0, 30.0
GAUGES = (
    "shunter_worker_running", "vllm:num_requests_running", "dynamo_component_inflight_requests", "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "shunter_worker_sessions", "shunter_worker_kv_tokens",
)  # fmt: skip
INPUTS = {
    "p": {
        "wait": MetricInput(query="wait_seconds", unit="seconds", max_age=Duration(20)),
        "same": MetricInput(query="wait_seconds", unit="seconds", max_age=Duration(20), on_missing=7.0),
        "depth": MetricInput(query="depth", unit="1", max_age=Duration(60), on_missing=0.5),
        "none": MetricInput(query="nothing", unit="1"),
    },
    "q": {},
}
HEAD = "apiVersion: shunter.dev/v1alpha1\nkind: "
POLICIES = "---\n".join(
    HEAD + text
    for text in (
        "PreemptionPolicy\nmetadata: {name: save}\nspec:\n  workers: {graph: g}\n  notices: [preemption, gone]\n"
        "  move: {order: worker.kvTokens}\n",
        "ReassignmentPolicy\nmetadata: {name: relieve}\nspec:\n  workers: {graph: g}\n  from: decode\n  to: prefill\n  for: 1m\n"
        "  when: pools.prefill.waiting > 2.0 && pools.decode.kvUsage < 0.9\n  revert: {when: pools.prefill.waiting < 1.0, for: 1m}\n"
        "  cooldown: 2m\n  pick: {where: worker.kvUsage < 0.9, prefer: -worker.sessions}\n  limits: {from: {min: 1}}\n",
        'CheckpointPolicy\nmetadata: {name: often}\nspec:\n  workers: {where: \'worker.labels["tier"] == "gold"\'}\n  every: 2m\n'
        "  when: worker.kvUsage > 0.05 && worker.running < 35.0\n  copies: 2\n  prefer: idle\n",
        "CheckpointPolicy\nmetadata: {name: seldom}\nspec:\n  workers: {role: decode}\n  every: 5m\n  when: metrics.wait < 30.0\n"
        "  metrics: {wait: {query: wait_seconds, unit: seconds, maxAge: 20s}}\n",
        "RebalancePolicy\nmetadata: {name: empty}\nspec:\n  workers: {role: decode, where: 'worker.engine == \"vllm\"'}\n"
        '  when: node.id == "n1" && worker.waiting < 30.0\n  for: 1m\n  to: {where: node.id != "n1"}\n  cooldown: 3m\n',
        "DisruptionBudget\nmetadata: {name: budget}\nspec:\n  workers: {all: true}\n  per: pool\n  maxConcurrent: 2\n"
        "  maxPerWindow: {max: 3, window: 5m}\n",
    )
)


def policy_set() -> PolicySet:
    files = (SourceFile(path="a.yaml", blob="b", data=POLICIES.encode()),)
    found = load(Revision(commit=Commit("c" * 40), committed_at=None, files=files), None)
    assert not [p for p in found.problems if p.severity is Severity.ERROR], found.problems
    return found


SET = policy_set()


def worker(dice: random.Random, name: WorkerId, node: NodeId, slot: int) -> Worker:
    return Worker(
        id=name,
        role=dice.choice(("prefill", "decode", "decode")),
        graph="g",
        engine=dice.choice(("vllm", "vllm", "sglang")),
        state=WorkerState.RUNNING,
        node=node,
        slot=slot_id(node, slot),
        incarnation=Incarnation(0),
        memory=10**9,
        labels={"tier": dice.choice(("gold", "silver"))},
    )


def fleet(dice: random.Random, count: int) -> Fleet:
    workers, nodes = [], []
    for n in range(0, count + 3, 3):
        name = NodeId(f"n{n // 3}")
        slots = []
        for k in range(4):
            own = WorkerId(f"w{n + k:02d}") if k < 3 and n + k < count else None
            slots.append(Slot(id=slot_id(name, k), gpus=8, gpu_model="B200", worker=own))
            if own is not None:
                workers.append(worker(dice, own, name, k))
        nodes.append(Node(id=name, slots=tuple(slots)))
    return Fleet(nodes=tuple(nodes), workers=tuple(workers))


def world(seed: int, odd: float, steps: int) -> tuple[Fleet, Server, list[float]]:
    """Anything goes."""
    dice = random.Random(seed)
    of = fleet(dice, dice.choice((2, 5, 14)))
    names = [w.id for w in of.workers]
    told = lines(dice, names, GAUGES, BEGIN, steps * STEP, odd)
    told += lines(dice, [*names, *dice.choice(((), ("",)))], ("wait_seconds", "depth"), BEGIN, steps * STEP, odd)
    refuse = dict.fromkeys(dice.sample(GAUGES, dice.choice((0, 0, 1))), dice.choice(("fails", "partial")))
    return of, Server(told, refuse=refuse), [BEGIN + n * STEP for n in range(steps)]


def calm(seed: int, steps: int) -> tuple[Fleet, Server, list[float]]:
    """Nearly all is known nearly all the time, so that much is done; prefill workers queue by and by, and then no more."""
    dice = random.Random(seed)
    of = fleet(dice, 14)
    names, told = [w.id for w in of.workers], list[Line]()
    waits = [(BEGIN + n * 15, "9" if 150 <= n * 15 < 420 else "0.01") for n in range(-4, 2 * steps)]
    for w in of.workers:
        told.append(
            ({"__name__": "shunter_worker_waiting", "worker": w.id}, waits if w.role == "prefill" else [(t, "1") for t, _ in waits])
        )
    for gauge in ("shunter_worker_running", "shunter_worker_kv_usage", "shunter_worker_sessions", "shunter_worker_kv_tokens"):
        whole = lines(dice, names, (gauge,), BEGIN, steps * STEP, 0.0, calm=True)
        told += dice.sample(whole, len(whole) - dice.choice((0, 0, 1)))
    told += lines(dice, names, ("wait_seconds",), BEGIN, steps * STEP, 0.02, calm=seed % 3 > 0)
    return of, Server(told), [BEGIN + n * STEP for n in range(steps)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), odd=st.sampled_from((0.0, 0.03, 0.3)), steps=st.integers(1, 13))
def test_a_table_has_the_samples_that_are_taken_at_each_instant(seed: int, odd: float, steps: int) -> None:
    async def look() -> None:
        of, server, times = world(seed, odd, steps)
        moments = Moments(server, of, times[-1], STEP, catalog=Catalog(), inputs=INPUTS, chunk_s=150.0)
        names = [w.id for w in of.workers]
        for at in times:
            instant, whole = await moments.at(at), await sample(server, of, INPUTS, at)
            table, taken = instant.workers, whole.workers
            assert encode(instant.policies) == encode(whole.policies)
            for name, own in whole.policies["p"].items():
                given, asked = instant.policies["p"][name], [*names, "nobody"]
                if isinstance(given, SampleMap):
                    column, wanted = given.column(asked), [own.get(w) for w in asked]
                    assert list(column) == wanted
                    assert column.known.tolist() == [isinstance(s, Known) for s in wanted]
                    numbers = zip(column.values.tolist(), column.times.tolist(), wanted, strict=True)
                    assert all((s.value, s.at) == (value, t) for value, t, s in numbers if isinstance(s, Known))
            assert encode(Samples(workers=table)) == encode(Samples(workers=taken))
            assert table == taken
            assert table.anything == any(isinstance(s, Known) for own in taken.values() for s in own.values())
            for field in ("running", "kvUsage", "kvTokens"):
                asked = [*reversed(names), "nobody"]
                column, wanted = table.column(field, asked), [taken.get(w, {}).get(field) for w in asked]
                assert list(column) == wanted
                assert column.known.tolist() == [isinstance(s, Known) for s in wanted]
                numbers = zip(column.known.tolist(), column.values.tolist(), column.times.tolist(), wanted, strict=True)
                assert all(s.value == value and s.at == t for known, value, t, s in numbers if known and isinstance(s, Known))
            some = frozenset(names[::2])
            assert table.only(some) == {w: own for w, own in taken.items() if w in some}
            assert list(table.only(some).column("running", names)) == [taken[w]["running"] if w in some else None for w in names]
        await moments.aclose()

    asyncio.run(look())


class Plainly:
    """Steps with plain dictionaries and without memory, each instant asked for by itself, as a running engine does."""

    def __init__(self, server: Server, of: Fleet, times: Sequence[float]) -> None:
        self.server, self.fleet, self.times = server, of, times

    async def run(self, made: running.Run) -> Backtest:
        made._memory = None  # type: ignore[assignment]
        history = History(self.server, self.times[-1], STEP)
        for at in self.times:
            made.step(at, await sample(history, self.fleet, inputs_of(SET), at))
        return made.result(past._REMARKS)


@pytest.fixture(name="said")
def said_(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that is decided by the way, findings with their evidence."""
    said: list[bytes] = []

    def noted(policies: PolicySet, snapshots: Sequence[Snapshot], *rest: Any) -> Any:
        found = evaluate(policies, snapshots, *rest)
        said.append(encode((tuple(found.findings), found.plan)))
        return found

    monkeypatch.setattr(running, "evaluate", noted)
    return said


@pytest.mark.parametrize("seed", range(6))
def test_a_backtest_over_columns_is_the_one_that_is_stepped_plainly(seed: int, said: list[bytes]) -> None:
    async def both() -> tuple[Backtest, Backtest, list[bytes]]:
        of, server, times = calm(seed, 24)
        notices = (Notice(id=NoticeId("n"), kind=NoticeKind.PREEMPTION, node=NodeId("n0"), seen_at=times[5], deadline=times[5] + 100),)
        span = past.Span(begin=times[0], end=times[-1], step=STEP)
        (fast,) = await past.backtest(server, [SET], past.Past(of, notices, span, Catalog(), Profile()))
        fast_said, said[:] = list(said), []
        run = running.Run(SET, of, notices, BulkCelRules(), Profile(), begin=times[0], end=times[-1], step=STEP)
        return fast, await Plainly(server, of, times).run(run), fast_said

    fast, plain, fast_said = asyncio.run(both())
    assert fast_said == said
    assert len(said) == 24
    assert len({(a.operation.kind, a.operation.policy) for a in fast.acts}) >= 4, "a backtest in which little happens shows little"
    silent = [r for r in fast.remarks if "no worker had a value" in r]
    assert encode(msgspec.structs.replace(fast, remarks=tuple(r for r in fast.remarks if r not in silent))) == encode(plain)
