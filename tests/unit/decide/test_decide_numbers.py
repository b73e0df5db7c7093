"""Pools that somebody else keeps at a number of workers: held while that may not be changed, and native starts where nobody is parked."""

import msgspec
import pytest
from decide_world import NOW, decide, ended, ex, finding, image, kinds, known, node, operation, ops, reassignment, rebalancing, snap, worker
from shunter.model.finding import Verdict
from shunter.model.ids import PoolId
from shunter.model.operation import EngineState, Status
from shunter.model.plan import OperationKind
from shunter.model.policy import Limits, Trigger
from shunter.model.sample import Missing
from shunter.model.snapshot import WorkerState
from shunter.model.units import Duration

D = [worker(f"decode-{i}", f"{n}/0") for i, n in enumerate("abc")]
P0, P1 = worker("prefill-0", "d/0"), worker("prefill-1")
NODES = [*(node(n, (w.id,)) for n, w in zip("abc", D, strict=True)), node("d", ("prefill-0",))]
QUEUE = {"prefill-0": {"waiting": 40}, "decode-0": {"sessions": 5}, "decode-1": {"sessions": 1}, "decode-2": {"sessions": 2}}
ROLLING = Missing(reason="llama is in a rolling update (InProgress)")
GIT = Missing(reason="the replicas of decode are set by Git (argocd-controller has written them), which would put them back")


def numbers(prefill=1, decode=3, settled=None):
    def one(value):
        return {"settled": settled or known(1), "replicas": known(value) if isinstance(value, int) else value}

    return {"tiny/prefill": one(prefill), "tiny/decode": one(decode)}


def world(pools, *, nodes=NODES, workers=(*D, P0), images=(), samples=QUEUE, **more):
    return snap(nodes, workers, images, samples=samples, pools=pools, **more)


@pytest.mark.parametrize(
    ("pools", "said"),
    [(numbers(settled=ROLLING), "rolling update"), (numbers(decode=GIT), "argocd-controller"), (numbers(prefill=GIT), "Git")],
)
def test_nobody_changes_sides_where_the_number_may_not_be_changed(pools, said):
    result = decide([reassignment(sessions="park")], world(pools, workers=(*D, P0, P1), images=[image("i-p1", P1, "d")]))
    found = finding(result, "tiny")
    assert (kinds(result), found.verdict, found.gate) == ([], Verdict.HOLD, "replicas")
    assert said in found.reason
    assert [e.result for e in found.evidence if e.gate == "replicas"] == [False]


def test_what_others_are_changing_is_not_rebalanced_and_what_git_numbers_is():
    spare = node("e", roles=("prefill", "decode"))
    policy = rebalancing(when=ex('v("node.id") == "a"'))
    assert kinds(decide([policy], world(numbers(decode=GIT), nodes=[*NODES, spare]))) == [("move", "decode-0")]
    held = decide([policy], world(numbers(settled=ROLLING), nodes=[*NODES, spare]))
    assert kinds(held) == []
    assert (finding(held, "decode-0").gate, finding(held, "decode-0").reason) == ("replicas", ROLLING.reason)


@pytest.mark.parametrize(("sessions", "kind"), [("park", "park"), ("drain", "drain")])
def test_where_nobody_is_parked_one_makes_way_for_a_native_start(sessions, kind):
    result = decide([reassignment(sessions=sessions)], world(numbers()))
    assert kinds(result) == [(kind, "decode-0")]
    assert ops(result)["decode-0"].hands_to == "tiny/prefill"
    assert "a prefill worker is started natively for it" in ops(result)["decode-0"].reason
    assert "started natively" in finding(result, "tiny").reason
    assert finding(result, "decode-0").verdict is Verdict.ACT


def test_one_that_is_parked_comes_before_a_native_start():
    result = decide([reassignment(sessions="park")], world(numbers(), workers=(*D, P0, P1), images=[image("i-p1", P1, "d")]))
    assert kinds(result) == [("park", "decode-0"), ("restore", "prefill-1")]
    assert ops(result)["decode-0"].hands_to is None


@pytest.mark.parametrize(
    ("pools", "policy", "said"),
    [
        ({}, {"sessions": "park"}, "native starts aren't done here"),
        (numbers(prefill=2), {"sessions": "park"}, "2 prefill workers are asked for and 1 serve"),
        (numbers(), {"sessions": "move"}, "`park` or `drain`"),
    ],
)
def test_no_native_start_without_a_number_nor_while_one_is_coming_nor_for_what_moves(pools, policy, said):
    result = decide([reassignment(**policy)], world(pools))
    assert kinds(result) == []
    assert said in finding(result, "tiny").reason


def test_no_more_are_started_than_the_step_and_the_pools_allow():
    result = decide([reassignment(sessions="park", limits=Limits(step=2))], world(numbers()))
    assert kinds(result) == [("park", "decode-0")], "the budget of a pool without one is one at a time"


REVERT = reassignment(sessions="park", cooldown=Duration(1), revert=Trigger(when=ex('v("pools.prefill.waiting") < 5'), for_=Duration(0)))


def shifted(kind=OperationKind.PARK, status=Status.SUCCEEDED):
    one = operation(
        kind, "decode-0", policy="relieve", cause="shift:relieve:1", pool=PoolId("tiny/decode"), hands_to=PoolId("tiny/prefill")
    )
    return EngineState(recent=(ended(one, status, at=NOW - 60, began=NOW - 90),))


AFTER = [node("a", ("prefill-9",)), *NODES[1:]]
P9 = worker("prefill-9", "a/0")
CALM = {"prefill-0": {"waiting": 1}, "prefill-9": {"waiting": 1}}


def test_going_back_parks_one_of_the_pool_and_brings_back_the_one_that_made_way():
    away = msgspec.structs.replace(D[0], slot=None, node=None, state=WorkerState.PARKED)
    result = decide(
        [REVERT],
        world(numbers(2, 2), nodes=AFTER, workers=(away, *D[1:], P0, P9), images=[image("i-d0", D[0], "a")], samples=CALM),
        shifted(),
    )
    assert [k for k, _ in kinds(result)] == ["park", "restore"]
    park, restore = result.plan.operations
    assert (restore.worker, restore.to_slot, park.hands_to) == ("decode-0", park.from_slot, None)


def test_and_where_it_was_drained_one_is_started_natively():
    result = decide([REVERT], world(numbers(2, 2), nodes=AFTER, workers=(*D[1:], P0, P9), samples=CALM), shifted(OperationKind.DRAIN))
    assert [k for k, _ in kinds(result)] == ["park"]
    assert result.plan.operations[0].hands_to == "tiny/decode"


@pytest.mark.parametrize("state", [EngineState(), shifted(status=Status.ROLLED_BACK)])
def test_nothing_goes_back_that_was_not_done(state):
    result = decide([REVERT], world(numbers(2, 2), nodes=AFTER, workers=(*D[1:], P0, P9), samples=CALM), state)
    assert kinds(result) == []
