"""Pods for workers to come to, on a real API server: made once, kept, given to their controller, and gone when nobody comes.

Nodes and controllers are played (nodes_simulated.py says what that leaves out).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from conftest import admin, running
from control_plane import ROOT, ControlPlane, until
from nodes_simulated import Nodes, node, worker
from proxy import Proxy
from shunter.app.housed import Housed
from shunter.app.roster import Roster
from shunter.app.settings import LeaseSettings, PodsSettings
from shunter.cluster.api import Api
from shunter.cluster.awaiting import Patience
from shunter.cluster.dynamo.words import COST_BEFORE
from shunter.cluster.estate import Estate, Following, Where
from shunter.cluster.operation import Batch, collection, resource
from shunter.cluster.places import Pods
from shunter.cluster.pods import Being
from shunter.cluster.reflector import Reflector, Times
from shunter.cluster.spares import Stake
from shunter.cluster.template import pod_name
from shunter.model.errors import Rejected
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import SERVING, STATE, WORKER, Pod, Resident
from shunter.model.snapshot import Fleet
from test_engine import kubeconfig

HASH = {"pod-template-hash": "5f9c"}
DECODE = Resident(id=WorkerId("decode-0"), role="decode", graph="tiny", engine="vllm")


@pytest.fixture(scope="module", params=["kube-apiserver", "kube-apiserver-1.20"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    for found in running(tmp_path_factory.mktemp("pods"), request.param):
        definition = yaml.safe_load((ROOT / "schemas" / "crds" / "workeroperations.shunter.dev.yaml").read_text())
        found.must("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        until(lambda found=found: found.ask("GET", "/apis/shunter.dev/v1alpha1/workeroperations")[0] == 200, 20, "operations")
        for name in ("node-a", "node-b"):
            made = node(name)
            found.must("POST", "/api/v1/nodes", made)
        found.must("POST", "/api/v1/namespaces", {"metadata": {"name": "shunter"}})
        yield found


@pytest.fixture
def namespace(server: ControlPlane, request: pytest.FixtureRequest) -> str:
    name = f"dynamo-{abs(hash(request.node.name)) % 10**8}"
    server.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def nodes(server: ControlPlane, namespace: str) -> Iterator[Nodes]:
    found = Nodes(server, namespace, {"node-a": 1, "node-b": 1})
    yield found
    found.close()


class Bench:
    """A namespace with what follows it and what makes pods in it."""

    def __init__(self, server: ControlPlane, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self.following = Following(lambda: Api(admin(server)), Where(namespace=namespace))
        self.api = Api(admin(server))
        patience = Patience(running=10.0, room=0.5, gone=10.0)
        self.pods = Pods(self.api, self.following.estate, "shunter.test", "shunter", patience=patience)

    def make(self, name: str, at: str = "", **more: Any) -> Pod:
        """A worker's pod that runs."""
        self.server.must("POST", self.path, worker(name, self.namespace, at, **more))
        return self.runs(name)

    def runs(self, name: str) -> Pod:
        def found() -> Any:
            one = self.get(name)
            return one if one is not None and (one.get("status") or {}).get("phase") == "Running" else None

        one = until(found, 10, name)
        uid = one["metadata"]["uid"]
        until(lambda: uid in self.estate().pods, 10, "seen")
        return Pod(namespace=self.namespace, name=name, uid=uid, container="main")

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def get(self, name: str) -> Any:
        status, found = self.server.ask("GET", f"{self.path}/{name}")
        return found if status == 200 else None

    def names(self) -> list[str]:
        listed = self.server.must("GET", self.path)["items"]
        return sorted(one["metadata"]["name"] for one in listed if not one["metadata"].get("deletionTimestamp"))

    def estate(self) -> Estate:
        return self.following.estate()

    def until_seen(self, done: Callable[[Estate], bool]) -> None:
        until(lambda: done(self.estate()), 10, "seen in the copy")


@pytest.fixture
async def bench(server: ControlPlane, namespace: str, nodes: Nodes) -> AsyncIterator[Bench]:
    found = Bench(server, namespace)
    await asyncio.to_thread(found.following.wait, 10.0)
    yield found
    await asyncio.to_thread(found.following.close)
    await found.api.aclose()


def record(name: str = "move-1", kind: OperationKind = OperationKind.MOVE, worker_id: str = "decode-0") -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId(name), kind=kind, worker=WorkerId(worker_id), lane="voluntary", policy=PolicyName("p"), reason="r",
        expect=Preconditions(incarnation=Incarnation(0), at=SlotId("node-a/0")), from_slot=SlotId("node-a/0"), to_slot=SlotId("node-b/0"),
    )  # fmt: skip
    return OperationRecord(planned=planned, plan=Digest("sha256:p"), epoch=Epoch(1), created_at=time.time())


AT_B = SlotId("node-b/0")


async def controlled(bench: Bench, nodes: Nodes, count: int) -> list[Pod]:
    """So many workers of a controller, each in its pod, which runs."""
    nodes.replicas["decode"] = (dict(HASH), count, lambda name: worker(name, bench.namespace, pod_template_hash="5f9c"))
    until(lambda: len(bench.names()) == count, 10, f"{count} workers")
    return [await asyncio.to_thread(bench.runs, name) for name in bench.names()]


def go_on() -> None:
    """Nothing is against it."""


OVER = (lambda _: False,)
"""No operation is under way."""
ANSWER = ({NodeId("node-a"), NodeId("node-b")}, go_on)
"""All agents answer, and we lead."""


async def test_a_pod_is_made_once_runs_where_it_is_meant_to_and_serves_nobody_yet(bench: Bench) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a", **HASH)
    first = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    again = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert first is not None
    assert first == again
    assert len(bench.names()) == 2
    made = bench.get(first.name)
    assert made["spec"]["nodeName"] == "node-b"
    assert made["spec"]["restartPolicy"] == "Never"
    assert made["metadata"]["annotations"][WORKER] == "decode-0"
    assert not made["metadata"].get("ownerReferences")
    assert "pod-template-hash" not in made["metadata"]["labels"]
    assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    conditions = {c["type"]: c["status"] for c in made["status"]["conditions"]}
    assert conditions["Ready"] == "False", "its gate is closed"


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_worker_that_came_is_given_to_its_controller_which_ends_nobody_for_it(
    bench: Bench, nodes: Nodes, *, replaced: bool
) -> None:
    """Three of three before, one moved, three of three afterwards: the one that it left is gone and the one that it came to is not. Also
    where the controller has made another one meanwhile, which then goes.
    """
    nodes.gpus = {"node-a": 3, "node-b": 1}
    pods = await controlled(bench, nodes, 3)
    names = [one.name for one in pods]
    left, move = pods[0], record(worker_id=pods[0].name)
    who = Resident(id=WorkerId(left.name), role="decode", graph="tiny", engine="vllm")
    pod = await bench.pods.prepare(move, AT_B, left, who, go_on)
    assert pod is not None
    nodes.end(left.uid)  # as its agent does at the commit: the kubelet starts it again
    await bench.pods.retire(left)
    if replaced:
        until(lambda: len(bench.names()) == 4, 10, "another one")
    await bench.pods.keep(move, pod)
    bench.until_seen(lambda e: e.pods[pod.uid].ready and any(one.controller and one.pod.name not in names for one in e.pods.values()))
    # what was started in its place may be ready by now, and has nothing yet
    said = await bench.pods.tidy(*OVER, {pod.uid: True}, *ANSWER, lambda one: Stake(sessions=float(one in names)))
    assert said == [f"gave the pod {pod} to its controller"]
    settled = sorted([*names[1:], pod.name])
    until(lambda: [o["name"] for o in bench.get(pod.name)["metadata"].get("ownerReferences", ())] == ["decode"], 10, "adopted")
    until(lambda: bench.names() == settled, 10, "no other one left")
    bench.until_seen(lambda e: not e.pods[pod.uid].joins)
    assert await bench.pods.tidy(*OVER, {pod.uid: True}, *ANSWER) == []
    time.sleep(0.2)
    assert bench.names() == settled


async def test_sessions_that_came_to_the_pod_in_its_place_dont_end_when_it_is_given_to_its_controller(
    bench: Bench, nodes: Nodes, server: ControlPlane
) -> None:
    """The one without any goes, whatever its age; while there is none it is waited for one, and not for ever."""
    nodes.gpus = {"node-a": 4, "node-b": 1}
    first = await controlled(bench, nodes, 3)
    now = 1000.0
    pods = Pods(bench.api, bench.estate, "shunter.test", "shunter", clock=lambda: now)
    move = record(worker_id=first[0].name)
    pod = await bench.pods.prepare(move, AT_B, first[0], msgspec.structs.replace(DECODE, id=WorkerId(first[0].name)), go_on)
    assert pod is not None
    nodes.end(first[0].uid)
    await pods.retire(first[0])
    until(lambda: len([name for name in bench.names() if name != pod.name]) == 3, 10, "another one")
    (cold,) = set(bench.names()) - {pod.name, *(one.name for one in first)}
    await asyncio.to_thread(bench.runs, cold)
    await pods.keep(move, pod)
    bench.until_seen(lambda e: e.pods[pod.uid].ready and all(one.ready for one in e.pods.values() if one.controller))
    there = {first[1].name: 3.0, first[2].name: 2.0, cold: 1.0}

    async def tidied() -> list[str]:
        return await pods.tidy(*OVER, {pod.uid: True}, *ANSWER, lambda one: Stake(sessions=there.get(one)))

    (told,) = await tidied()
    assert f"that would end {bench.namespace}/{cold}, and sessions with it" in told
    now += 500
    assert await tidied() == [], "it is said once"
    assert not bench.get(pod.name)["metadata"].get("ownerReferences")
    there[first[2].name] = 0.0
    assert await tidied() == [f"gave the pod {pod} to its controller"]
    until(lambda: first[2].name not in bench.names(), 10, "the idle one goes")
    until(lambda: bench.get(pod.name)["metadata"].get("ownerReferences"), 10, "adopted")
    time.sleep(0.2)
    assert bench.names() == sorted([pod.name, first[1].name, cold])


async def test_it_is_given_to_its_controller_in_the_end_and_nobody_stays_named_who_isnt_ended(bench: Bench, nodes: Nodes) -> None:
    nodes.gpus = {"node-a": 4, "node-b": 1}
    first = await controlled(bench, nodes, 2)
    bench.until_seen(lambda e: all(one.ready for one in e.pods.values()))
    now = 1000.0
    pods = Pods(bench.api, bench.estate, "shunter.test", "shunter", clock=lambda: now)
    pod = await bench.pods.prepare(record(), AT_B, first[0], DECODE, go_on)
    assert pod is not None
    await pods.keep(record(), pod)
    bench.until_seen(lambda e: e.pods[pod.uid].ready)
    nodes.replicas.clear()  # its controller has other things to do

    async def tidied() -> list[str]:
        return await pods.tidy(*OVER, {pod.uid: True}, *ANSWER, lambda one: Stake(sessions=1.0 if one == first[0].name else 2.0))

    assert len(await tidied()) == 1
    now += 601
    (told,) = await tidied()
    assert f"which ends {bench.namespace}/{first[0].name}" in told
    named = bench.get(first[0].name)["metadata"]["annotations"]
    assert named["controller.kubernetes.io/pod-deletion-cost"] == str(1 - 2**31)
    bench.until_seen(lambda e: not e.pods[pod.uid].joins and e.pods[first[0].uid].spare is not None)
    await tidied()
    now += 61
    await tidied()
    left_of_it = bench.get(first[0].name)["metadata"].get("annotations") or {}
    assert not {"controller.kubernetes.io/pod-deletion-cost", "shunter.dev/spare"} & left_of_it.keys()


async def test_of_two_that_join_one_controller_each_finds_its_own_that_goes(bench: Bench, nodes: Nodes) -> None:
    """Both would name the one that is idle now, and the controller would end somebody else for the second."""
    nodes.gpus = {"node-a": 4, "node-b": 2}
    first = await controlled(bench, nodes, 3)
    bench.until_seen(lambda e: all(one.ready for one in e.pods.values()))
    now = 1000.0
    pods = Pods(bench.api, bench.estate, "shunter.test", "shunter", clock=lambda: now)
    moves = [record("move-1"), record("move-2", worker_id="decode-1")]
    made = []
    for move, left, slot in zip(moves, first, ("node-b/0", "node-b/1"), strict=False):
        who = Resident(id=move.planned.worker, role="decode", graph="tiny", engine="vllm")
        pod = await pods.prepare(move, SlotId(slot), left, who, go_on)
        assert pod is not None
        await pods.keep(move, pod)
        made.append(pod)
    bench.until_seen(lambda e: all(e.pods[pod.uid].ready for pod in made))
    nodes.replicas.clear()  # its controller has other things to do for a while
    lived_in = {pod.uid: True for pod in made}

    async def tidied() -> list[str]:
        return await pods.tidy(*OVER, lived_in, *ANSWER, lambda one: Stake(sessions=0.0 if one == first[2].name else 2.0))

    (told,) = await tidied()
    assert "to its controller" in told
    bench.until_seen(lambda e: e.pods[first[2].uid].spare is not None and sum(bool(e.pods[pod.uid].joins) for pod in made) == 1)
    assert await tidied() == [], "the first one's hasn't gone yet"
    bench.server.must("DELETE", f"{bench.path}/{first[2].name}")
    bench.until_seen(lambda e: first[2].uid not in e.pods or e.pods[first[2].uid].being is Being.ENDING)
    (told,) = await tidied()
    assert "isn't given to its controller yet" in told, "those that are left hold sessions"


async def test_it_isnt_given_to_its_controller_before_it_is_ready(bench: Bench, nodes: Nodes) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a", **HASH)
    nodes.unready.add("decode-0-")
    pod = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert pod is not None
    await bench.pods.keep(record(), pod)
    bench.until_seen(lambda e: not e.pods[pod.uid].placeholder)
    assert await bench.pods.tidy(*OVER, {pod.uid: True}, *ANSWER) == []
    assert "pod-template-hash" not in bench.get(pod.name)["metadata"]["labels"]
    nodes.unready.clear()
    bench.until_seen(lambda e: e.pods[pod.uid].ready)
    assert await bench.pods.tidy(*OVER, {pod.uid: True}, *ANSWER)
    assert bench.get(pod.name)["metadata"]["labels"]["pod-template-hash"] == "5f9c"


async def test_without_room_it_says_what_the_scheduler_says_and_leaves_nothing(bench: Bench, nodes: Nodes) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    await asyncio.to_thread(bench.make, "prefill-0", "node-b", role="prefill")
    with pytest.raises(Rejected) as raised:
        await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert raised.value.problem.code == "SH560"
    assert "Insufficient nvidia.com/gpu" in raised.value.problem.what
    await bench.pods.withdraw(record())
    until(lambda: bench.names() == ["decode-0", "prefill-0"], 10, "withdrawn")


async def test_room_that_comes_in_time_is_waited_for(bench: Bench, nodes: Nodes) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    other = await asyncio.to_thread(bench.make, "prefill-0", "node-b", role="prefill")
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            bench.server.must("DELETE", f"{bench.path}/{other.name}")

    assert await bench.pods.prepare(record(), AT_B, left, DECODE, ask) is not None


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}, 'secret "hf" not found'),
        ({"waiting": {"reason": "InvalidImageName"}}, "InvalidImageName"),
    ],
)
async def test_a_container_that_cant_be_made_is_given_up_at_once(bench: Bench, nodes: Nodes, state: Any, said: str) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    nodes.stuck["decode-0-"] = state
    began = time.monotonic()
    with pytest.raises(Rejected) as raised:
        await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert said in raised.value.problem.what
    assert time.monotonic() - began < 5.0, "its patience of 10 s wasn't needed"


async def test_what_ends_the_waiting_ends_it(bench: Bench, nodes: Nodes) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    nodes.stuck["decode-0-"] = {"waiting": {"reason": "ContainerCreating"}}
    asked = 0

    def given_up() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise Rejected(_problem())

    with pytest.raises(Rejected) as raised:
        await bench.pods.prepare(record(), AT_B, left, DECODE, given_up)
    assert raised.value.problem.code == "SH528"


def _deposed() -> None:
    raise Rejected(_problem())


def _problem() -> Any:
    from shunter.model.errors import Problem

    return Problem(code="SH528", what="it was given up", remedy="none")


async def test_another_of_its_name_is_never_deleted(bench: Bench) -> None:
    old = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    bench.server.must("DELETE", f"{bench.path}/decode-0")
    until(lambda: bench.get("decode-0") is None, 10, "gone")
    new = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    assert new.uid != old.uid
    await bench.pods.retire(old)
    await bench.pods.keep(record(), old)
    await bench.pods.show(old, shown=True)
    found = bench.get("decode-0")
    assert found["metadata"]["uid"] == new.uid
    assert not found["metadata"].get("deletionTimestamp")
    assert STATE not in found["metadata"]["labels"]


async def test_one_that_serves_is_never_tidied_away_however_old_our_copy_is(bench: Bench) -> None:
    """The mark was made right before the operation ended; what follows the server hasn't got it yet."""
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    pod = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert pod is not None
    bench.until_seen(lambda e: pod.uid in e.pods)
    old = bench.estate()
    assert old.pods[pod.uid].placeholder
    await bench.pods.keep(record(), pod)
    behind = Pods(bench.api, lambda: old, "shunter.test", "shunter")
    assert await behind.tidy(*OVER, {}, *ANSWER) == []
    assert bench.get(pod.name) is not None
    bench.until_seen(lambda e: not e.pods[pod.uid].placeholder)
    await bench.pods.withdraw(record())
    assert not bench.get(pod.name)["metadata"].get("deletionTimestamp")


async def test_what_was_made_under_another_name_of_the_lease_is_still_looked_after(bench: Bench) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a", **HASH)
    renamed = Pods(bench.api, bench.estate, "shunter.renamed", "shunter")
    others = Pods(bench.api, bench.estate, "elsewhere.test", "shunter")
    pod = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert pod is not None
    bench.until_seen(lambda e: pod.uid in e.pods)
    assert await renamed.prepare(record(), AT_B, left, DECODE, go_on) == pod
    with pytest.raises(Rejected, match="didn't make"):
        await others.prepare(record(), AT_B, left, DECODE, go_on)
    await others.withdraw(record())
    assert await others.tidy(*OVER, {}, *ANSWER) == []
    assert pod.name in bench.names()
    await renamed.withdraw(record())
    assert pod.name not in bench.names()


async def test_what_nobody_came_to_goes_once_its_operation_is_over_and_others_are_left_alone(bench: Bench) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    pod = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert pod is not None
    bench.until_seen(lambda e: pod.uid in e.pods)
    assert await bench.pods.tidy(lambda one: one.operation == "move-1", {}, *ANSWER) == [], "its operation is under way"
    assert await bench.pods.tidy(*OVER, {pod.uid: False}, *ANSWER) == [], "an agent says that a worker lives in it"
    theirs = Pods(bench.api, bench.estate, "other.fleet", "shunter")
    assert await theirs.tidy(*OVER, {}, *ANSWER) == [], "it is another fleet's"
    assert await bench.pods.tidy(*OVER, {}, {NodeId("node-a")}, go_on) == [], "nobody says what is in it"
    with pytest.raises(Rejected):  # whoever leads no more may not know of what another has begun
        await bench.pods.tidy(*OVER, {}, ANSWER[0], _deposed)
    assert bench.get(pod.name) is not None
    assert len(await bench.pods.tidy(*OVER, {}, *ANSWER)) == 1
    until(lambda: bench.names() == ["decode-0"], 10, "gone")


async def test_of_a_pod_that_is_gone_it_is_known_whether_the_engine_had_it_go(bench: Bench) -> None:
    own = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    other = await asyncio.to_thread(bench.make, "decode-1", "node-b")
    await bench.pods.retire(own)
    bench.server.must("DELETE", f"{bench.path}/{other.name}")
    bench.until_seen(lambda e: not e.pods)
    assert (own.uid in bench.pods.deleted, other.uid in bench.pods.deleted) == (True, False)
    assert set(bench.estate().removed) == {own.uid, other.uid}
    chosen = await asyncio.to_thread(bench.make, "decode-2", "node-a")
    await bench.api.merge(
        f"{bench.path}/decode-2", {"metadata": {"annotations": {COST_BEFORE: ""}, "finalizers": ["test.shunter.dev/late"]}}
    )
    bench.until_seen(lambda e: e.pods[chosen.uid].retired)
    bench.server.must("DELETE", f"{bench.path}/decode-2")
    bench.until_seen(lambda e: e.pods[chosen.uid].being is Being.ENDING)
    await bench.api.merge(f"{bench.path}/decode-2", {"metadata": {"annotations": {COST_BEFORE: None}}})  # as one that is taken back
    await bench.api.merge(f"{bench.path}/decode-2", {"metadata": {"finalizers": None}})
    bench.until_seen(lambda e: not e.pods)
    removed = bench.estate().removed
    assert [removed[pod.uid].retired for pod in (other, chosen)] == [False, True]


async def test_a_worker_whose_operation_nobody_knows_of_any_more_is_shown_and_given_to_its_controller(bench: Bench) -> None:
    """The engine that brought it there had the operation in memory only, and died before it could say that the worker serves."""
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a", **HASH)
    pod = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert pod is not None
    bench.until_seen(lambda e: pod.uid in e.pods)
    with pytest.raises(Rejected):
        await bench.pods.tidy(*OVER, {pod.uid: True}, ANSWER[0], _deposed)
    assert bench.get(pod.name)["metadata"]["labels"][STATE] == "placeholder"
    (said,) = await bench.pods.tidy(*OVER, {pod.uid: True}, *ANSWER)
    assert "marked the pod" in said
    bench.until_seen(lambda e: not e.pods[pod.uid].placeholder)
    await bench.pods.tidy(*OVER, {pod.uid: True}, *ANSWER)
    bench.until_seen(lambda e: e.pods[pod.uid].ready)
    await bench.pods.tidy(*OVER, {pod.uid: True}, *ANSWER)
    assert "pod-template-hash" in bench.get(pod.name)["metadata"]["labels"]


async def test_a_pod_that_ended_in_the_attempt_is_made_anew(bench: Bench, nodes: Nodes) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    first = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert first is not None
    nodes.end(first.uid)
    until(lambda: bench.get(first.name)["status"]["phase"] == "Succeeded", 10, "ended")
    second = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert second is not None
    assert (second.name, second.uid != first.uid) == (first.name, True)


async def test_a_parked_worker_comes_back_to_a_pod_like_the_one_that_it_left(bench: Bench) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    park = record("park-1", OperationKind.PARK)
    bench.server.must("POST", collection("shunter"), resource(park, Batch(first=park.id, size=1), "shunter"))
    try:
        await bench.pods.remember(park, left)
        await bench.pods.retire(left)
        until(lambda: bench.names() == [], 10, "parked")
        restore = record("restore-1", OperationKind.RESTORE)
        pod = await bench.pods.prepare(restore, AT_B, None, DECODE, go_on)
        assert pod is not None
        made = bench.get(pod.name)
        assert made["spec"]["containers"][0]["image"] == "registry.example.com/vllm:1"
        assert made["spec"]["containers"][0]["env"] == [{"name": "HF_HOME", "value": "/models"}]
    finally:
        one = bench.server.must("GET", f"{collection('shunter')}/park-1")
        one["metadata"]["finalizers"] = []
        bench.server.must("PUT", f"{collection('shunter')}/park-1", one)
        bench.server.ask("DELETE", f"{collection('shunter')}/park-1")


async def test_a_lost_worker_comes_to_a_pod_like_those_of_its_pool_and_one_without_any_to_none(bench: Bench) -> None:
    await asyncio.to_thread(bench.make, "decode-7", "node-a")
    restore = record("restore-1", OperationKind.RESTORE)
    pod = await bench.pods.prepare(restore, AT_B, None, DECODE, go_on)
    assert pod is not None
    assert bench.get(pod.name)["metadata"]["annotations"][WORKER] == "decode-0"
    alone = Resident(id=WorkerId("x"), role="prefill", graph="tiny", engine="vllm")
    assert await bench.pods.prepare(record("restore-2", OperationKind.RESTORE, "x"), AT_B, None, alone, go_on) is None


async def test_the_gate_of_a_pod_that_is_left_again_closes_and_opens(bench: Bench) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    pod = await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert pod is not None
    await bench.pods.keep(record(), pod)
    for shown in (True, False, True):
        await bench.pods.show(pod, shown=shown)
        bench.until_seen(lambda e, shown=shown: e.pods[pod.uid].ready is shown)  # type: ignore[misc]
        conditions = {c["type"]: c["status"] for c in bench.get(pod.name)["status"]["conditions"]}
        assert conditions[SERVING] == str(shown)


async def test_somebody_elses_pod_of_that_name_is_neither_used_nor_touched(bench: Bench) -> None:
    left = await asyncio.to_thread(bench.make, "decode-0", "node-a")
    name = pod_name(OperationId("move-1"), WorkerId("decode-0"), NodeId("node-b"))
    await asyncio.to_thread(bench.make, name, "node-b")
    with pytest.raises(Rejected) as raised:
        await bench.pods.prepare(record(), AT_B, left, DECODE, go_on)
    assert raised.value.problem.code == "SH563"
    await bench.pods.withdraw(record())
    assert name in bench.names()


async def test_agents_and_nodes_are_found_with_their_addresses_and_taints(bench: Bench, server: ControlPlane) -> None:
    server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "shunter-agents"}})
    spec = {"nodeName": "node-a", "hostNetwork": True, "containers": [{"name": "agent", "image": "i"}]}
    labels = {"app.kubernetes.io/name": "shunter-agent"}
    path = "/api/v1/namespaces/shunter-agents/pods"
    server.must("POST", path, {"metadata": {"name": "agent-a", "labels": labels}, "spec": spec})
    bench.until_seen(lambda e: e.agents == {"node-a": ""})
    body = {"status": {"phase": "Running", "podIP": "10.0.0.11"}}
    server.must("PATCH", f"{path}/agent-a/status", body, "application/merge-patch+json")
    bench.until_seen(lambda e: e.agents == {"node-a": "10.0.0.11:7443"})
    taint = {"spec": {"taints": [{"key": "spot", "value": "true", "effect": "NoSchedule"}]}}
    server.must("PATCH", "/api/v1/nodes/node-b", taint, "application/merge-patch+json")
    bench.until_seen(lambda e: [str(t) for t in e.nodes[NodeId("node-b")].taints] == ["spot=true:NoSchedule"])
    server.must("PATCH", "/api/v1/nodes/node-b", {"spec": {"taints": None}}, "application/merge-patch+json")
    server.must("DELETE", f"{path}/agent-a?gracePeriodSeconds=0")
    bench.until_seen(lambda e: e.agents == {})


async def test_nodes_and_pods_that_nobody_confirms_are_overdue_until_somebody_does(
    server: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents may answer meanwhile: what they say is no word about pods, and the engine mustn't be called ready for it."""
    passed = 0.0
    async with Proxy(server.port) as proxy:
        access = msgspec.structs.replace(admin(server), server=f"https://127.0.0.1:{proxy.port}")
        times = Times(watch_least=2, watch_most=3, margin=0.7, wait_first=0.05, wait_most=0.2)
        following = Following(lambda: Api(access), Where(namespace=namespace), times=times, clock=lambda: time.monotonic() + passed)
        try:
            await asyncio.to_thread(following.wait, 10.0)
            assert (following.overdue(), following.estate().doubt) == (0.0, None)
            proxy.refusing = True
            proxy.cut()
            async with asyncio.timeout(20):  # a watch that was about to begin may have come through, and lasts a while
                while not all(one.problem for one in following._reflectors.values()):
                    await asyncio.sleep(0.02)
            passed = 60.0
            assert following.overdue() == 0.0
            passed = 200.0
            assert 200.0 <= following.overdue() < 230.0
            doubt = following.estate().doubt
            assert doubt is not None
            assert doubt.code == "SH261"
            with monkeypatch.context() as patch:
                for kind in ("nodes", "agents"):
                    patch.setattr(following._reflectors[kind], "age", lambda: 1.0)
                assert 200.0 <= following.overdue() < 230.0, "what is oldest counts"
            proxy.refusing = False
            async with asyncio.timeout(20):
                while following.overdue() or following.estate().doubt is not None:
                    await asyncio.sleep(0.02)
        finally:
            await asyncio.to_thread(following.close)


async def test_a_thread_that_failed_ends_whoever_counts_on_it(
    server: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that we know of makes it fail; should it, an engine must not go on with an old copy for good."""

    def broken(*_: object) -> None:
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(Reflector, "_take", broken)
    lease = LeaseSettings(kubeconfig=kubeconfig(server, tmp_path), pods=PodsSettings(namespace=namespace))
    housed = await Housed(lease, lease.pods or PodsSettings()).open()
    roster = Roster(lambda node, _address: pytest.fail(f"there is no agent on {node}"), {})
    try:
        assert housed.follow(roster, Fleet()) is None
        server.must("POST", f"/api/v1/namespaces/{namespace}/pods", worker("decode-0", namespace, ""))

        async def ticks() -> None:
            while True:
                housed.follow(roster, Fleet())
                await asyncio.sleep(0.05)

        with pytest.raises(RuntimeError, match="what nobody thought of"):
            await asyncio.wait_for(ticks(), 20)
    finally:
        await housed.close()
