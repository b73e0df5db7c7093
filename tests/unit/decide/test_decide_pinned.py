"""Workers with whom nothing can be done where they are, as their pods say: policies say so, and plan nothing for them."""

import msgspec
import pytest
from decide_world import checkpoints, decide, ex, finding, kinds, node, notice, preemption, rebalancing, snap, worker
from shunter.model.finding import Verdict

WHY = "no agent runs on a"
POLICIES = (
    preemption(),
    checkpoints(),
    rebalancing(when=ex('v("node.labels").get("state") == "empty-me"')),
)


@pytest.mark.parametrize("slot", ["a/0", None])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.kind)
def test_nothing_is_planned_for_a_worker_that_is_pinned(policy, slot):
    def world(pinned):
        pinned_one = worker("decode-0", "a/0", pinned=pinned)
        if slot is None and pinned:
            pinned_one = msgspec.structs.replace(pinned_one, slot=None)
        nodes = [node("a", ("decode-0" if pinned_one.slot else None,), labels={"state": "empty-me"}), node("b")]
        samples = {"decode-0": {"sessions": 1, "kvTokens": 5, "waiting": 50}, "prefill-0": {"waiting": 50}}
        notices = [notice("a")] if policy.kind == "PreemptionPolicy" else []
        workers = [pinned_one, worker("prefill-0", "c/0")]
        return snap([*nodes, node("c", ("prefill-0",))], workers, notices=notices, samples=samples)

    free, held = decide([policy], world("")), decide([policy], world(WHY))
    assert [k for k, w in kinds(free) if w == "decode-0"]
    assert not [k for k, w in kinds(held) if w == "decode-0"]
    found = finding(held, "decode-0")
    assert found.verdict in (Verdict.HOLD, Verdict.PASS)
    assert WHY in found.reason
