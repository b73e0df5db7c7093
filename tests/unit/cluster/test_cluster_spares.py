from typing import Any

import msgspec
import pytest
from shunter.app.housed import stake
from shunter.cluster.dynamo.words import LOWEST
from shunter.cluster.pods import Being, WorkerPod
from shunter.cluster.spares import NOTHING, Stake, goes, pending
from shunter.model.ids import NodeId, WorkerId
from shunter.model.pod import Pod, Resident
from shunter.model.sample import Known, Stale
from shunter.model.snapshot import Samples

HASH = {"pod-template-hash": "5f9c"}


def pod(name: str, **more: Any) -> WorkerPod:
    fields: dict[str, Any] = {
        "pod": Pod(namespace="ns", name=name, uid=name), "resident": Resident(id=WorkerId(name), role="decode", graph="g", engine=""),
        "node": NodeId("a"), "being": Being.RUNNING, "ready": True, "why": "", "labels": HASH, "tolerations": (), "gpus": 1,
        "controller": "ReplicaSet/decode-5f9c", "gated": False, **more,
    }  # fmt: skip
    return WorkerPod(**fields)


MOVED = pod("moved", controller="", labels={}, joins=HASH)
HELD = {"old": Stake(tokens=900, sessions=1), "cold": Stake(tokens=100, sessions=2), "idle": Stake(tokens=50, sessions=0)}


def chosen(*pods: WorkerPod, busy: tuple[str, ...] = (), held: dict[str, Stake] | None = None) -> tuple[str, bool] | None:
    known = HELD if held is None else held
    found = goes(MOVED, [*pods, MOVED], lambda one: one.pod.name in busy, lambda worker: known.get(worker, Stake()))
    return None if found is None else (found.pod.pod.name, found.costs)


def test_it_is_the_one_with_the_least_context_and_whether_that_costs_sessions_is_known() -> None:
    assert chosen(pod("old"), pod("cold"), pod("idle")) == ("idle", False), "what is left in its cache is no session's"
    assert chosen(pod("old"), pod("cold")) == ("cold", True)
    assert chosen(pod("old"), pod("cold"), held={}) == ("cold", True), "unknown is not a number"
    assert chosen(pod("old"), pod("cold"), held={"old": Stake(sessions=1)}) == ("old", True), "what is known goes before what isn't"
    assert chosen(pod("old"), pod("x"), held={"x": Stake(tokens=0)}) == ("x", False)


def test_while_one_is_about_to_go_nobody_else_is_told_to() -> None:
    assert not pending(MOVED, [pod("old"), pod("cold"), MOVED])
    assert pending(MOVED, [pod("old"), pod("cold", spare=""), MOVED])
    assert not pending(MOVED, [pod("old"), pod("cold", spare="", being=Being.ENDING), MOVED]), "it goes"
    assert not pending(MOVED, [pod("other", spare="", labels={"pod-template-hash": "77"})])
    assert pending(MOVED, [pod("old"), pod("cold", retired=True), MOVED]), "it goes for a change of sides"


def test_kubernetes_own_order_goes_before_that() -> None:
    assert chosen(pod("old"), pod("cold", being=Being.COMING, ready=False, node=None), pod("idle")) == ("cold", False)
    assert chosen(pod("old"), pod("new", ready=False), pod("idle")) == ("new", False), "it is being started, and has told of nothing yet"
    assert chosen(pod("old", ready=False), pod("idle")) == ("old", True), "nothing keeps its controller from that one"


def test_the_cost_that_a_pod_has_is_no_reason_to_end_sessions() -> None:
    """It gets the lowest of all, so whoever holds least may be named. Pods that workers moved to have one of 1, and new ones none."""
    assert chosen(pod("idle", cost=1), pod("old")) == ("idle", False)
    assert chosen(pod("idle", cost=1), pod("new"), held={"idle": Stake(tokens=500, sessions=0), "new": Stake(tokens=9, sessions=3)}) == (
        "idle", False,
    )  # fmt: skip
    same = {"a": Stake(tokens=5, sessions=1), "b": Stake(tokens=5, sessions=1)}
    assert chosen(pod("a", cost=7), pod("b", cost=-3), held=same) == ("b", True), "between those it is what others want"
    assert chosen(pod("idle"), pod("old", cost=LOWEST)) == ("old", True), "nothing that we could name goes before that one"


def test_one_that_an_operation_is_about_isnt_given_away() -> None:
    """It is out of its router's sight, and so not ready: its controller would end it first, with its sessions in it."""
    fenced = pod("idle", ready=False, gated=True, hidden=True)
    assert chosen(fenced, pod("cold"), busy=("idle",)) == ("idle", True)
    assert chosen(pod("x", ready=False, gated=True, hidden=True), pod("cold")) == ("x", True)
    assert chosen(pod("idle"), pod("cold"), busy=("idle",)) == ("cold", True)


def test_workers_without_sessions_cost_none() -> None:
    prefill = Resident(id=WorkerId("p"), role="prefill", graph="g", engine="")
    moved = msgspec.structs.replace(MOVED, resident=prefill)
    found = goes(moved, [pod("p", resident=prefill)], lambda _pod: False, lambda _worker: Stake())
    assert found is not None
    assert not found.costs
    assert NOTHING.empty


@pytest.mark.parametrize(
    "more",
    [
        {"controller": ""},
        {"controller": "StatefulSet/decode"},
        {"labels": {"pod-template-hash": "7777"}},
        {"being": Being.ENDING},
        {"pod": Pod(namespace="other", name="old", uid="old")},
    ],
)
def test_it_is_none_that_another_controller_has(more: dict[str, Any]) -> None:
    assert chosen(pod("old", **more)) is None


def test_what_a_worker_holds_is_what_was_measured_lately() -> None:
    def known(value: float) -> Known:
        return Known(value=value, unit="", at=1.0, query="q")

    old = Stale(value=2.0, age=60.0, max_age=30.0, query="q")
    samples = Samples(workers={"w": {"kvTokens": known(7), "sessions": known(2)}, "x": {"kvTokens": known(7), "sessions": old}})
    assert stake(samples, WorkerId("w")) == Stake(tokens=7, sessions=2)
    assert stake(samples, WorkerId("x")) == Stake(tokens=7)
    assert stake(samples, WorkerId("y")) == Stake()
