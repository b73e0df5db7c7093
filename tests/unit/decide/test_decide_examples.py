"""The example policies, in the real language, on the fleet that they are written for."""

from pathlib import Path

import pytest
from decide_world import NOW, image, kinds, node, notice, ops, policy_set, snap, worker
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.cel import CelRules
from shunter.lang.load import check_text
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Snapshot

FOLDER = Path(__file__).parents[3] / "examples" / "policy-repo" / "policies"
D = [worker("decode-0", "a/0"), worker("decode-1", "b/0")]
P = [worker("prefill-0", "c/0"), worker("prefill-1")]
NODES = [
    node("a", ("decode-0",)),
    node("b", ("decode-1",)),
    node("c", ("prefill-0",)),
    node("d", labels={"capacity": "spot"}),
    node("e", labels={"capacity": "reserved"}, roles=("decode",)),
]
IMAGES = [image("i-p1", P[1], "c"), image("i-d0", D[0], "a", at=NOW - 5), image("i-d1", D[1], "b", at=NOW - 5)]


@pytest.fixture(scope="module")
def examples() -> PolicySet:
    found = [check_text(path.name, path.read_bytes()) for path in sorted(FOLDER.glob("*.yaml")) if not path.name.endswith("_test.yaml")]
    assert not [problem for _, problems in found for problem in problems]
    return policy_set(*(policy for policies, _ in found for policy in policies))


def series(prefill_waiting: float, *, notices=(), nodes=NODES) -> list[Snapshot]:
    quiet = {"running": 1, "kvUsage": 0.3, "sessions": 2, "kvTokens": 900, "waiting": 0}
    samples = {w.id: quiet for w in D} | {"prefill-0": {**quiet, "waiting": prefill_waiting}}
    return [snap(nodes, [*D, *P], IMAGES, notices, samples, at=NOW - 12 + 2 * i) for i in range(7)]


def test_a_preempted_node_sends_its_sessions_to_reserved_capacity(examples):
    result = evaluate(examples, series(0, notices=[notice("a")]), EngineState(), NOW, CelRules(), Profile())
    assert kinds(result) == [("move", "decode-0")]
    move = ops(result)["decode-0"]
    assert (move.to_slot, move.policy) == ("e/0", "save-sessions")
    assert move.reason == "a is preempted in 120 s; decode-0 holds 2 sessions (900 tokens)"


def test_queued_prompts_bring_a_prefill_worker_back(examples):
    result = evaluate(examples, series(40), EngineState(), NOW, CelRules(), Profile())
    assert kinds(result) == [("restore", "prefill-1")]
    assert ops(result)["prefill-1"].to_slot == "d/0", "a free slot that takes prefill comes before making anyone move"
    without = [n for n in NODES if n.id != "d"]
    moved = evaluate(examples, series(40, nodes=without), EngineState(), NOW, CelRules(), Profile())
    assert kinds(moved) == [("move", "decode-0"), ("restore", "prefill-1")]


def test_nothing_is_done_when_nothing_is_wanted_or_prometheus_is_away(examples):
    quiet = evaluate(examples, series(0), EngineState(), NOW, CelRules(), Profile())
    assert kinds(quiet) == []
    assert {f.verdict for f in quiet.findings} == {Verdict.PASS}
    blind = [snap(NODES, [*D, *P], IMAGES, at=s.at) for s in series(40)]
    away = evaluate(examples, blind, EngineState(), NOW, CelRules(), Profile())
    assert kinds(away) == []
    assert [f.verdict for f in away.findings if f.policy == "relieve-prefill"] == [Verdict.INCONCLUSIVE]
