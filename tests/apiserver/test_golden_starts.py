"""A prefill worker starts from a golden image in a real API server: its controller keeps its number, nobody who serves goes but the one
that was chosen, and what fails is followed by a native start; whenever the engine dies.

What Dynamo's operator, the controllers, the kubelets and Dynamo Snapshot's agent do is played (dynamo_operator.py, dynamo/README.md). No
process is restored here, and none ever was by this on a real Dynamo Snapshot.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml
from conftest import running
from control_plane import ROOT, ControlPlane, until
from dynamo_operator import COST, GRAPHS, RESTORE_FROM, Site, dynamo_plane, engine_access, is_ready, names, site, waiting
from shunter.act.beyond import Deposed
from shunter.act.execute import Executor
from shunter.act.run import Parts, Times
from shunter.act.store import Store
from shunter.app.graphs import Counted, Golden, Graphs
from shunter.app.settings import DynamoSettings, LeaseSettings, PodsSettings
from shunter.cluster.api import Api, Object
from shunter.cluster.dynamo.following import Following
from shunter.cluster.dynamo.golden import refuses, restoring
from shunter.cluster.dynamo.pools import lines, samples
from shunter.cluster.dynamo.shift import Shifts
from shunter.cluster.dynamo.starting import GoldenStarts
from shunter.cluster.dynamo.values import Golden as Image
from shunter.cluster.estate import Estate
from shunter.cluster.nodes import ClusterNode
from shunter.cluster.places import Pods
from shunter.cluster.pods import worker_pod
from shunter.cluster.reflector import Times as Watching
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, OperationId, PolicyName, PoolId, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Pod
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Fleet
from test_engine import kubeconfig

__all__ = ["dynamo_plane", "site"]
FLEET = "shunter.shunter-engine"
PREFILL = PoolId("llama/prefill")
SNAPSHOTS = "/apis/nvidia.com/v1alpha1/namespaces/{}/podsnapshots"
QUICK = Times(settle=20.0, pause=0.02, look=0.05, serve=60.0)
"""Quick where it can be: a busy machine takes its time."""
RIGHTS = [ROOT / "deploy" / "kubernetes" / "components" / part / "rights.yaml" for part in ("dynamo", "worker-pods")]


class Crash(BaseException):
    """The engine dies here."""


class Noting(Api):
    """The engine's way to the server. Notes which pods it deletes that are ready right before."""

    def __init__(self, site: Site) -> None:
        super().__init__(rights(site))
        self.site = site

    async def delete(self, path: str, options: Object | None = None) -> Object:
        name = path.rsplit("/", 1)[1]
        was = self.site.get("pods", name)
        found = await super().delete(path, options)
        if is_ready(was):
            self.site.ready_deleted.append(name)
        return found


class Dying(Noting):
    """One that ends at the `at`-th write (from 1; 0: never), before the server hears of it or right after."""

    def __init__(self, site: Site, at: int = 0, *, after: bool = False) -> None:
        super().__init__(site)
        self.at, self.after, self.writes = at, after, 0

    async def _ask(self, method: str, path: str, *rest: Any) -> Object:
        if method == "GET" or "dryRun" in str(rest):
            return await super()._ask(method, path, *rest)
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise Crash
        found = await super()._ask(method, path, *rest)
        if self.writes == self.at:
            raise Crash
        return found


def rights(site: Site) -> Any:
    """As the engine, with the rights of both components in the workers' namespace, and no others."""
    for one in (part for file in RIGHTS for part in yaml.safe_load_all(file.read_text())):
        kind = {"Role": "roles", "RoleBinding": "rolebindings"}.get(one["kind"])
        if kind is not None and one["metadata"]["namespace"] == "dynamo":
            one["metadata"]["namespace"] = site.namespace
            site.plane.ask("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{site.namespace}/{kind}", one)
    return engine_access(site.plane, site.namespace)


def snapshot(site: Site, name: str = "gold", *, ready: bool = True, version: str = "h1", component: str = "prefill", **more: Any) -> None:
    """A PodSnapshot as Dynamo's operator labels those that it has taken."""
    of = {"graph-deployment-name": "llama", "component": component, "worker-hash": version}
    labels = {f"nvidia.com/dynamo-{key}": value for key, value in of.items()}
    body = {
        "apiVersion": "nvidia.com/v1alpha1", "kind": "PodSnapshot", "metadata": {"name": name, "labels": labels, **more},
        "spec": {"source": {"podRef": {"name": f"checkpoint-{name}", "containers": ["main"]}}},
    }  # fmt: skip
    where = SNAPSHOTS.format(site.namespace)
    site.plane.must("POST", where, body)
    if ready:
        status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        site.plane.must("PATCH", f"{where}/{name}/status", status, "application/merge-patch+json")


async def standing(site: Site, prefill: int = 2, decode: int = 3) -> None:
    def done() -> bool:
        graph = site.get(GRAPHS, "llama")
        settled = (graph.get("status") or {}).get("observedGeneration") == graph["metadata"]["generation"]
        counts = len(site.pods("prefill")), len(site.pods("decode"))
        return settled and graph["status"]["state"] == "successful" and counts == (prefill, decode)

    await waiting(done)


class Reassignment:
    """A decode worker has been parked for a prefill worker: its operation stands where the worker has left, and numbers have changed. The
    GPU isn't free yet, as a kubelet takes its time.
    """

    def __init__(self, site: Site, folder: Path, record: OperationRecord, before: tuple[set[str], set[str]], chosen: str) -> None:
        self.site, self.record, self.chosen = site, record, chosen
        self.prefill, self.decode = before
        self.store = Store(folder / "operations.db")
        self.store.insert([record])
        self.store.advance(record.id, Step.STARTING, 1.0)
        self.epoch = 1

    async def engine(self, api: Api, *, times: Times = QUICK) -> OperationRecord:
        """An engine takes it up, and goes on until it has ended. Raises Crash."""
        shifts = Shifts(api)
        clock = asyncio.get_running_loop().time
        began = clock()
        parts = Parts(
            store=self.store,
            agents={},
            fleet=lambda: Fleet(),
            audit=lambda _record: None,
            clock=lambda: 1.0 + clock() - began,
            sleep=asyncio.sleep,
            replicas=Counted(shifts, self.site.namespace),
            starts=Golden(GoldenStarts(api, shifts), self.site.namespace, FLEET),
            times=times,
        )
        self.epoch += 1
        self.store.adopt(Epoch(self.epoch))
        found = self.store.get(self.record.id)
        assert found is not None
        return await Executor(parts, Epoch(self.epoch)).resume(found)

    def new(self) -> dict[str, Any]:
        """Prefill pods that weren't there before."""
        return {name: one for name, one in self.site.pods("prefill").items() if name not in self.prefill}

    async def whole(self) -> dict[str, Any]:
        """It comes to rest with one prefill pod more, and nobody has gone who served but the chosen one. The new one."""
        await standing(self.site, 3, 2)
        assert self.prefill < set(self.site.pods("prefill"))
        assert set(self.site.pods("decode")) == self.decode - {self.chosen}
        assert self.site.serving_removed == [self.chosen]
        assert self.site.ready_deleted == []
        ((_, one),) = self.new().items()
        return dict(one)


async def reassigned(site: Site, folder: Path, golden: str = "gold", kind: OperationKind = OperationKind.PARK) -> Reassignment:
    site.graph()
    await standing(site)
    site.serving_removed.clear()
    prefill, decode = set(site.pods("prefill")), set(site.pods("decode"))
    chosen = next(names(site.pods("decode")))
    planned = PlannedOperation(
        id=OperationId("park-1"), kind=kind, worker=WorkerId(chosen), lane="voluntary", policy=PolicyName("p"), reason="because",
        expect=Preconditions(incarnation=Incarnation(0)), cause="shift:p:1", pool=PoolId("llama/decode"), hands_to=PREFILL, golden=golden,
        from_slot=SlotId("node-b/0"),
    )  # fmt: skip
    left = Pod(namespace=site.namespace, name=chosen, uid=site.pods("decode")[chosen]["metadata"]["uid"])
    record = OperationRecord(
        planned=planned, plan=Digest("sha256:p"), epoch=Epoch(1), created_at=1.0, left=left, history=((Step.INTENDED, 1.0),)
    )
    site.gpus = 4
    api = Api(rights(site))
    await Counted(Shifts(api), site.namespace).change(record, lambda: None)
    await api.aclose()
    await waiting(lambda: len(site.pods("prefill")) == 3 and len(site.pods("decode")) == 2)
    return Reassignment(site, folder, record, (prefill, decode), chosen)


@pytest.fixture
async def api(site: Site) -> AsyncIterator[Api]:
    found = Noting(site)
    yield found
    await found.aclose()


def annotations(pod: Any) -> dict[str, str]:
    return dict(pod["metadata"].get("annotations") or {})


async def freed(site: Site, made: Reassignment) -> None:
    """The GPU of the pod that was left is free once the pod that restores is there."""
    await waiting(lambda: any(RESTORE_FROM in annotations(one) for one in made.new().values()))
    site.gpus = 5


async def test_the_new_worker_starts_from_the_golden_image_in_place_of_the_controllers_own(site: Site, api: Api, tmp_path: Path) -> None:
    snapshot(site)
    made = await reassigned(site, tmp_path)
    (own,) = made.new()
    record, _ = await asyncio.gather(made.engine(api), freed(site, made))
    assert record.outcome is not None
    assert (record.status, record.outcome.code, record.outcome.reason) == (Status.SUCCEEDED, "", "")
    pod = await made.whole()
    assert pod["metadata"]["name"] != own
    assert annotations(pod)[RESTORE_FROM] == "gold"
    assert pod["spec"]["nodeName"] == "node-b", "where the slot was left"
    assert pod["metadata"]["labels"]["shunter.dev/started-by"] == "park-1"
    assert [one["kind"] for one in pod["metadata"]["ownerReferences"]] == ["ReplicaSet"]
    (main,) = pod["spec"]["containers"]
    assert {one["name"]: one["value"] for one in main["env"]} == {
        "SNAPSHOT_CONTROL_DIR": "/snapshot-control", "DYN_SNAPSHOT_CONTROL_DIR": "/snapshot-control",
        "SNAPSHOT_RESTORE_STANDBY": "1", "DYN_SNAPSHOT_RESTORE_STANDBY": "1",
    }  # fmt: skip
    assert (main["command"], main["args"]) == (["python3"], ["-m", "dynamo.vllm"])
    assert main["volumeMounts"] == [{"name": "snapshot-control", "mountPath": "/snapshot-control", "subPath": "main"}]
    assert {"name": "snapshot-control", "emptyDir": {}} in pod["spec"]["volumes"]


@pytest.mark.parametrize("reason", ["RestoreFailed", "RestoreIncompatible", "RestorePartiallySucceeded"])
async def test_a_restore_that_fails_is_followed_by_a_native_start_and_told(site: Site, api: Api, tmp_path: Path, reason: str) -> None:
    snapshot(site)
    site.restores = reason
    made = await reassigned(site, tmp_path)
    record, _ = await asyncio.gather(made.engine(api), freed(site, made))
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH571")
    assert f"{reason}: as the test has it" in record.outcome.reason
    assert RESTORE_FROM not in annotations(await made.whole())


async def test_one_that_is_ready_serves_before_dynamo_snapshot_says_so_or_without(site: Site, tmp_path: Path) -> None:
    """Its agent lets the kubelet find it ready, and writes the condition later; that may fail."""
    snapshot(site)
    site.sentinel, site.restores = True, "RestoreInProgress"
    made = await reassigned(site, tmp_path)
    api = Noting(site)
    record, _ = await asyncio.gather(made.engine(api, times=msgspec.structs.replace(QUICK, serve=3.0)), freed(site, made))
    await api.aclose()
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "")
    assert RESTORE_FROM in annotations(await made.whole())


async def test_one_that_is_ready_stays_whatever_is_said_of_it(site: Site, tmp_path: Path) -> None:
    snapshot(site)
    site.sentinel, site.restores = True, "RestorePartiallySucceeded"
    made = await reassigned(site, tmp_path)
    api = Noting(site)
    record, _ = await asyncio.gather(made.engine(api), freed(site, made))
    await api.aclose()
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH573")
    assert record.pod is not None
    assert f"its pod {record.pod} ({record.pod.uid}) wasn't removed: it is ready" in record.outcome.reason
    assert (await made.whole())["metadata"]["uid"] == record.pod.uid


async def test_one_that_no_node_takes_is_given_up_and_its_image_isnt_blamed(site: Site, api: Api, tmp_path: Path) -> None:
    snapshot(site)
    made = await reassigned(site, tmp_path)
    now = 0.0
    starts = Golden(GoldenStarts(api, Shifts(api), clock=lambda: now), site.namespace, FLEET)
    assert await starts.begin(made.record, lambda: None) == ""
    await waiting(lambda: [RESTORE_FROM in annotations(one) for one in made.new().values()] == [True])
    assert (await starts.look(made.record)).state == "coming"
    now = 31.0
    found = await starts.look(made.record)
    assert found.state == "instead"
    assert "got no node within 30 s" in found.why
    assert await starts.end(made.record, lambda: None)
    site.gpus = 5
    assert RESTORE_FROM not in annotations(await made.whole())


@pytest.mark.parametrize("starts", [False, True])
async def test_only_one_whose_container_was_started_is_held_against_its_image_when_its_time_is_over(
    site: Site, api: Api, tmp_path: Path, starts: bool
) -> None:
    snapshot(site)
    site.restores = ""
    made = await reassigned(site, tmp_path)
    free = freed(site, made) if starts else asyncio.sleep(0)
    record, _ = await asyncio.gather(made.engine(api, times=msgspec.structs.replace(QUICK, serve=2.0)), free)
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH572" if starts else "SH570")
    site.gpus = 5
    assert RESTORE_FROM not in annotations(await made.whole())


async def test_what_it_finds_over_is_never_begun(site: Site, tmp_path: Path) -> None:
    """An engine that takes it up when its time is over makes nothing only to remove it."""
    snapshot(site)
    made = await reassigned(site, tmp_path)
    dying = Dying(site)
    record = await made.engine(dying, times=msgspec.structs.replace(QUICK, serve=0.0))
    await dying.aclose()
    assert record.outcome is not None
    assert (record.outcome.code, dying.writes) == ("SH570", 0)
    site.gpus = 5
    await made.whole()


async def test_where_the_controllers_own_pod_got_a_gpu_first_it_stays(site: Site, api: Api, tmp_path: Path) -> None:
    snapshot(site)
    made = await reassigned(site, tmp_path)
    (own,) = made.new()
    site.gpus = 5
    await standing(site, 3, 2)
    record = await made.engine(api)
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert "got a GPU first" in record.outcome.reason
    assert (await made.whole())["metadata"]["name"] == own


@pytest.mark.parametrize("first", ["own", "golden"])
@pytest.mark.parametrize("sentinel", [False, True])
async def test_whichever_of_the_two_the_scheduler_takes_up_before_the_controller_looks(
    site: Site, tmp_path: Path, first: Literal["own", "golden"], sentinel: bool
) -> None:
    """The GPU is free when the second one is made: that one has it, or the controller's own has, before it is seen that there are two."""
    snapshot(site)
    made = await reassigned(site, tmp_path)
    (own,) = made.new()

    class Free(Noting):
        async def create(self, path: str, body: Object, query: Any = None, *, timeout_s: float | None = None) -> Object:
            site.stands = True
            found = await super().create(path, body, query, timeout_s=timeout_s)
            site.first, site.sentinel, site.gpus, site.stands = first, sentinel, 5, False
            return found

    free = Free(site)
    record = await made.engine(free)
    await free.aclose()
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "" if first == "golden" else "SH570")
    pod = await made.whole()
    assert (RESTORE_FROM in annotations(pod)) == (first == "golden")
    assert (pod["metadata"]["name"] == own) == (first == "own")


async def test_and_where_it_gets_one_in_that_very_moment_the_other_goes(site: Site, tmp_path: Path) -> None:
    """Between the look at it and the making of the other one: whichever has no node goes."""
    snapshot(site)
    made = await reassigned(site, tmp_path)
    (own,) = made.new()

    class Late(Api):
        async def create(self, path: str, body: Object, query: Any = None, *, timeout_s: float | None = None) -> Object:
            assert int(annotations(site.pods("prefill")[own])[COST]) < -(2**30), "if both got one, it would be the one that goes"
            site.gpus = 5
            await standing(site, 3, 2)
            return await super().create(path, body, query, timeout_s=timeout_s)

    late = Late(rights(site))
    record = await made.engine(late)
    await late.aclose()
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert "kept a pod of its own" in record.outcome.reason
    pod = await made.whole()
    assert pod["metadata"]["name"] == own
    assert annotations(pod)["shunter.dev/spare"] == "", "by which it becomes as good as any other again: see test_pod_moves.py"


@pytest.mark.parametrize("reason", ["RestoreSucceeded", "RestoreFailed", "RestoreInProgress"])
@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_each_write_the_next_engine_brings_it_to_its_end(site: Site, tmp_path: Path, after: bool, reason: str) -> None:
    snapshot(site)
    site.restores, site.sentinel = reason, reason == "RestoreInProgress"  # whose condition says so late, or never
    fails = reason == "RestoreFailed"
    at, died = 0, True
    while died:
        at += 1
        site.plane.ask("DELETE", site.path(GRAPHS, "llama"))
        for part in ("prefill", "decode"):
            for name in site.pods(part):
                site.plane.ask("DELETE", site.path("pods", name))
        site.gpus = 5
        folder = tmp_path / str(at)
        folder.mkdir()
        made = await reassigned(site, folder)
        dying, died = Dying(site, at, after=after), False
        free = asyncio.ensure_future(freed(site, made))
        try:
            await made.engine(dying)
        except Crash:
            died = True
        await dying.aclose()
        if died:
            again = Dying(site)
            await made.engine(again)
            await again.aclose()
        await free
        record = made.store.get(made.record.id)
        assert record is not None
        assert record.outcome is not None
        assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH571" if fails else ""), f"at {at}: {record.outcome.reason}"
        pod = await made.whole()
        assert (RESTORE_FROM in annotations(pod)) != fails, f"killed at write {at}"
    assert at > (3 if fails else 2), "it names the controller's own, makes one, and removes it where it fails"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"ready": False}, "gold isn't ready"),
        ({"version": "h0"}, "gold is of version h0, and the pool is of h1"),
        ({"annotations": {"nvidia.com/dynamo-snapshot-gms-mode": "intraPod"}}, "GPU memory served besides (intraPod)"),
        ({"annotations": {"nvidia.com/dynamo-checkpoint-owner-uid": "of-one-that-was"}}, "was taken for another graph (of-one-that-was)"),
        ({"annotations": {"nvidia.com/dynamo-snapshot-compatibility-version": "v1"}}, "compatibility version v1"),
    ],
    ids=["not-ready", "of-another-version", "gpu-memory-service", "of-another-graph", "by-other-rules"],
)
async def test_one_that_doesnt_fit_isnt_offered_and_isnt_started_from(
    site: Site, api: Api, tmp_path: Path, spoil: dict[str, Any], said: str
) -> None:
    snapshot(site, **spoil)
    made = await reassigned(site, tmp_path)
    record = await made.engine(api)
    site.gpus = 5
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert said in record.outcome.reason
    assert RESTORE_FROM not in annotations(await made.whole())
    found = await followed(site)
    assert isinstance(found, Missing)
    assert said in found.reason


async def test_one_that_was_deleted_meanwhile_or_is_of_another_component_isnt_started_from(site: Site, api: Api, tmp_path: Path) -> None:
    snapshot(site, "other", component="decode")
    made = await reassigned(site, tmp_path)
    for golden, said in (("gold", "no such resource"), ("other", "other isn't of prefill of llama")):
        starts = GoldenStarts(api, Shifts(api))
        record = msgspec.structs.replace(made.record, planned=msgspec.structs.replace(made.record.planned, golden=golden))
        assert said in await Golden(starts, site.namespace, FLEET).begin(record, lambda: None)
    site.gpus = 5
    await made.whole()


async def test_where_a_quota_takes_no_further_pod_it_starts_natively(site: Site, api: Api, tmp_path: Path) -> None:
    """Without the right to make pods there: as the server refuses it, so does a quota or a webhook of somebody's."""
    snapshot(site)
    made = await reassigned(site, tmp_path)
    site.plane.must("DELETE", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{site.namespace}/rolebindings/shunter-engine-workers")

    async def refused() -> bool:
        with contextlib.suppress(Exception):
            await api.create(site.path("pods"), {"metadata": {"name": "x"}, "spec": {"containers": []}}, {"dryRun": "All"})
            return False
        return True

    async with asyncio.timeout(10):
        while not await refused():
            await asyncio.sleep(0.1)
    record = await made.engine(api)
    assert record.outcome is not None
    assert (record.status, record.outcome.code) == (Status.SUCCEEDED, "SH570")
    assert "the API server refuses this" in record.outcome.reason
    site.gpus = 5
    assert RESTORE_FROM not in annotations(await made.whole())


async def followed(site: Site) -> Any:
    """What decisions see of the prefill pool's golden images."""
    access = rights(site)
    following = Following(lambda: Api(access), site.namespace, times=Watching(watch_least=5, watch_most=8))
    try:
        await asyncio.to_thread(following.wait, 15)
        await waiting(lambda: following.view().golden)
        assert any("gold" in line for line in lines(following.view(), 9.0))
        return samples(following.view(), 9.0)[PREFILL]["golden"]
    finally:
        await asyncio.to_thread(following.close)


async def test_the_newest_that_fits_is_offered_by_name(site: Site, tmp_path: Path) -> None:
    site.graph()
    await standing(site)
    snapshot(site, "gold-1")
    snapshot(site, "gold-2")
    snapshot(site, "gold-3", version="h2")
    snapshot(site, "gold-4", ready=False)
    found = await followed(site)
    assert isinstance(found, Known)
    assert found.labels == {"name": "gold-2"}
    assert re.fullmatch(r"PodSnapshot dynamo-\d+/gold-2", found.query)


async def test_its_own_pod_is_as_good_as_any_other_for_as_long_as_nothing_is_made(site: Site, api: Api, tmp_path: Path) -> None:
    """Nothing is named as the one that goes where no golden image can be started from."""
    snapshot(site, ready=False)
    made = await reassigned(site, tmp_path)
    await made.engine(api)
    assert all(COST not in annotations(one) for one in made.new().values())


@pytest.mark.parametrize("served", [False, True])
async def test_one_that_no_controller_takes_is_none_of_the_pools(site: Site, api: Api, tmp_path: Path, served: bool) -> None:
    """It goes, and its pool has its number without it; unless requests come to it by then."""
    snapshot(site)
    made = await reassigned(site, tmp_path)
    site.stands = True
    now = 0.0
    starts = Golden(GoldenStarts(api, Shifts(api), clock=lambda: now), site.namespace, FLEET)
    assert await starts.begin(made.record, lambda: None) == ""
    (name,) = [name for name, one in made.new().items() if RESTORE_FROM in annotations(one)]
    ready = [{"type": kind, "status": "True"} for kind in ("Ready", "nvidia.com/Restored")]
    if served:
        site.edit("pods", name, {"status": {"phase": "Running", "conditions": ready}}, "/status")
    assert (await starts.look(made.record)).state == "coming"
    now = 11.0
    found = await starts.look(made.record)
    assert (found.state, found.why) == ("instead", f"no controller has taken its pod {name} within 10 s")
    assert found.pod is not None
    assert found.pod.uid == site.get("pods", name)["metadata"]["uid"]
    assert await starts.end(made.record, lambda: None) is not served
    assert (name in site.pods("prefill")) is served
    site.stands, site.gpus = False, 5
    assert (RESTORE_FROM in annotations(await made.whole())) is served


async def test_two_that_are_started_at_once_each_take_the_place_of_one_of_the_controllers_own(site: Site, api: Api, tmp_path: Path) -> None:
    """The second finds the first one's pod without a node still."""
    snapshot(site)
    made = await reassigned(site, tmp_path)
    starts = Golden(GoldenStarts(api, Shifts(api)), site.namespace, FLEET)
    assert await starts.begin(made.record, lambda: None) == ""
    await waiting(lambda: [RESTORE_FROM in annotations(one) for one in made.new().values()] == [True])
    chosen = next(name for name in names(site.pods("decode")))
    planned = msgspec.structs.replace(made.record.planned, id=OperationId("park-2"), from_slot=SlotId("node-c/0"))
    left = Pod(namespace=site.namespace, name=chosen, uid=site.pods("decode")[chosen]["metadata"]["uid"])
    second = msgspec.structs.replace(made.record, planned=planned, left=left)
    site.gpus = 3
    await Counted(Shifts(api), site.namespace).change(second, lambda: None)
    await waiting(lambda: len(made.new()) == 2)
    assert await starts.begin(second, lambda: None) == ""
    await waiting(lambda: [RESTORE_FROM in annotations(one) for one in made.new().values()] == [True, True])
    site.gpus = 5
    await standing(site, 4, 1)
    assert {one["spec"]["nodeName"] for one in made.new().values()} == {"node-b", "node-c"}
    assert site.serving_removed == [made.chosen, chosen]
    assert made.prefill < set(site.pods("prefill"))


async def test_whoever_leads_no_more_makes_nothing(site: Site, api: Api, tmp_path: Path) -> None:
    snapshot(site)
    made = await reassigned(site, tmp_path)

    def deposed() -> None:
        raise Deposed(Problem(code="SH557", what="this engine leads no more", remedy=""))

    starts = Golden(GoldenStarts(api, Shifts(api)), site.namespace, FLEET)
    with pytest.raises(Deposed):
        await starts.begin(made.record, deposed)
    assert [RESTORE_FROM in annotations(one) or COST in annotations(one) for one in made.new().values()] == [False]


async def test_a_pod_of_its_name_that_isnt_ours_is_left_alone(site: Site, api: Api, tmp_path: Path) -> None:
    snapshot(site)
    made = await reassigned(site, tmp_path)
    wanted = Golden(GoldenStarts(api, Shifts(api)), site.namespace, FLEET)._wanted(made.record)
    assert wanted is not None
    site.plane.must(
        "POST",
        site.path("pods"),
        {"metadata": {"name": wanted.name, "labels": {"role": "x"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}},
    )
    record = await made.engine(api)
    assert record.outcome is not None
    assert record.outcome.code == "SH570"
    assert wanted.name in record.outcome.reason
    assert site.get("pods", wanted.name)["metadata"]["labels"] == {"role": "x"}


async def test_an_engine_makes_such_pods_only_where_it_makes_pods_at_all(site: Site, tmp_path: Path) -> None:
    access = kubeconfig(site.plane, tmp_path)
    for pods in (None, PodsSettings(namespace=site.namespace)):
        lease = LeaseSettings(kubeconfig=access, pods=pods)
        graphs = await Graphs(lease, DynamoSettings(namespace=site.namespace)).open()
        try:
            assert (graphs.starts is not None) == (pods is not None)
        finally:
            await graphs.close()


class Later:
    """An engine after the operations are over, which sees to what they have left; `now` in seconds. Its copy of the cluster is what it was
    when it `looked`.
    """

    def __init__(self, site: Site, api: Api, fleet: str = FLEET) -> None:
        self.site, self.now, self.under_way, self.kubelet = site, 0.0, False, True
        self.estate = Estate(namespace=site.namespace, nodes={}, agents={}, pods={})
        self.pods = Pods(api, lambda: self.estate, fleet, "shunter", clock=lambda: self.now)

    def looks(self) -> None:
        found = [one for part in ("prefill", "decode") for one in self.site.pods(part).values()]
        read = [pod for one in found if (pod := worker_pod(one)) is not None]
        nodes = {pod.node: ClusterNode(name=pod.node, labels={}, taints=(), ready=self.kubelet) for pod in read if pod.node is not None}
        self.estate = msgspec.structs.replace(self.estate, nodes=nodes, pods={pod.pod.uid: pod for pod in read})

    async def tidies(self, after: float = 0.0, *, looks: bool = True) -> list[str]:
        """After so many seconds, in each of which it looks and tidies now and then, as engines do."""
        until = self.now + after
        while True:
            if looks:
                self.looks()
            done = await self.pods.tidy(lambda _pod: self.under_way, {}, (NodeId("node-b"),), lambda: None)
            if done or self.now >= until:
                return done
            self.now = min(until, self.now + 50)


def says(site: Site, pod: Any, ready: bool, restored: tuple[str, str] = ("True", "RestoreSucceeded"), restarts: int = 0) -> None:
    told = {"type": "nvidia.com/Restored", "status": restored[0], "reason": restored[1]}
    container = {"name": "main", "image": "i", "imageID": "i", "ready": ready, "restartCount": restarts}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}, told], "containerStatuses": [container]}
    site.edit("pods", pod["metadata"]["name"], {"status": status}, "/status")


@pytest.fixture
async def served(site: Site, api: Api, tmp_path: Path) -> Any:
    """A pod that serves, restored from a golden image; its operation is over."""
    snapshot(site)
    made = await reassigned(site, tmp_path)
    await asyncio.gather(made.engine(api), freed(site, made))
    found = await made.whole()
    assert RESTORE_FROM in annotations(found)
    site.slow = True
    return found


async def native_comes(site: Site, gone: Any) -> None:
    """The controller has its number again, without that one."""
    await standing(site, 3, 2)
    found = site.pods("prefill").values()
    assert gone["metadata"]["uid"] not in {one["metadata"]["uid"] for one in found}
    assert not any(RESTORE_FROM in annotations(one) for one in found)


async def test_one_whose_container_has_died_since_goes_and_a_native_one_comes(site: Site, api: Api, served: Any) -> None:
    """The kubelet has started it again, and it waits for a restore that doesn't come."""
    later, others = Later(site, api), Later(site, api, "elsewhere.shunter-engine")
    assert await later.tidies() == []
    assert await later.tidies(1000) == [], "it serves"
    says(site, served, ready=False, restarts=1)
    assert await others.tidies() == []
    assert await later.tidies(599) == []
    says(site, served, ready=True, restarts=1)
    assert await later.tidies() == []
    says(site, served, ready=False, restarts=1)
    assert await later.tidies(599) == [], "it was ready since"
    later.under_way = True
    assert await later.tidies(601) == []
    later.under_way = False
    assert await later.tidies(599) == [], "nobody looked at it meanwhile"
    later.kubelet = False
    assert await later.tidies(1000) == [], "its node isn't heard of: it may be ready"
    later.kubelet = True
    assert await others.tidies(2000) == [], "it is another fleet's"
    (said,) = await later.tidies(601)
    assert f"deleted the pod {site.namespace}/{served['metadata']['name']} ({served['metadata']['uid']}), which park-1 had started" in said
    assert "it wasn't ready for 600 s" in said
    assert served["metadata"]["uid"] in later.pods.deleted
    await native_comes(site, served)


async def test_one_whose_restore_failed_since_goes_unless_it_is_late_with_one_answer(site: Site, api: Api, served: Any) -> None:
    later, failed = Later(site, api), ("False", "RestorePartiallySucceeded")
    says(site, served, ready=True, restored=failed)
    assert await later.tidies(100) == []
    says(site, served, ready=False, restored=failed)
    assert await later.tidies(50) == []
    says(site, served, ready=True, restored=failed)
    assert await later.tidies(100) == [], "it serves, whatever is said of it"
    says(site, served, ready=False, restored=failed)
    (said,) = await later.tidies(61)
    assert said.endswith("serves no more: RestorePartiallySucceeded")
    await native_comes(site, served)


async def test_one_that_was_restored_and_only_isnt_ready_stays(site: Site, api: Api, served: Any) -> None:
    """What all pods need may be away: then all of them are unready, and their processes live."""
    later = Later(site, api)
    says(site, served, ready=False)
    assert await later.tidies(10_000) == []
    says(site, served, ready=False, restored=("Unknown", "RestoreInProgress"))
    assert len(await later.tidies(601)) == 1, "it was never restored"


async def test_one_that_is_ready_stays_however_old_our_copy_is(site: Site, api: Api, served: Any) -> None:
    later = Later(site, api)
    says(site, served, ready=False, restarts=1)
    assert await later.tidies() == []
    says(site, served, ready=True, restarts=1)
    assert await later.tidies(601, looks=False) == []
    says(site, served, ready=False, restarts=1)
    assert await later.tidies(looks=False) == [], "it was ready in between"
    says(site, served, ready=True, restored=("False", "RestorePartiallySucceeded"))
    assert await later.tidies(601, looks=False) == []
    assert served["metadata"]["name"] in site.pods("prefill")


async def test_where_its_deletion_is_refused_that_is_told_once_and_others_are_seen_to(site: Site, served: Any) -> None:
    class Refusing(Noting):
        async def delete(self, path: str, options: Object | None = None) -> Object:
            raise Rejected(Problem(code="SH256", what="a webhook takes no deletion", remedy=""))

    refusing = Refusing(site)
    later = Later(site, refusing)
    says(site, served, ready=False, restored=("False", "RestoreFailed"))
    (said,) = await later.tidies(61)
    assert said.startswith("couldn't delete the pod ")
    assert said.endswith("a webhook takes no deletion")
    assert await later.tidies(60) == []
    await refusing.aclose()


async def test_whoever_leads_no_more_deletes_none(site: Site, api: Api, served: Any) -> None:
    later = Later(site, api)
    says(site, served, ready=False, restored=("False", "RestoreFailed"))
    assert await later.tidies(59) == []
    later.now += 2

    def deposed() -> None:
        raise Deposed(Problem(code="SH557", what="this engine leads no more", remedy=""))

    with pytest.raises(Deposed):
        await later.pods.tidy(lambda _pod: False, {}, (), deposed)
    assert served["metadata"]["name"] in site.pods("prefill")


@pytest.fixture(scope="module", params=["kube-apiserver", "kube-apiserver-1.20"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Also a genuine one, where there is one (see README.md): it validates pods, and fills in what it fills in."""
    yield from running(tmp_path_factory.mktemp("golden"), request.param)


def test_the_pod_is_one_that_a_server_takes(server: ControlPlane) -> None:
    source = {
        "metadata": {
            "name": "own", "labels": {"nvidia.com/dynamo-component-type": "prefill", "pod-template-hash": "5f"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": True}],
        },
        "spec": {
            "containers": [
                {
                    "name": "main", "image": "dynamo", "command": ["python3"], "args": ["-m", "dynamo.vllm"],
                    "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                    "livenessProbe": {"httpGet": {"path": "/live", "port": 9090}},
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}}, "securityContext": {"runAsNonRoot": True},
                }
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        },
    }  # fmt: skip
    where = "/api/v1/namespaces/default/pods"
    until(lambda: server.ask("GET", "/api/v1/namespaces/default")[0] == 200, 20, "the namespace that a server makes itself")
    server.must("POST", where, source)
    own = server.must("GET", f"{where}/own")
    gold = Image(namespace="default", name="gold", pod="checkpoint", container="main", ready=True)
    assert refuses(own, "main") == ""
    body = restoring(own, gold, NodeId("node-b"), "llama-prefill-x", {"shunter.dev/started-by": "park-1"})
    found = server.must("POST", f"{where}?fieldValidation=Strict", body)
    (main,) = found["spec"]["containers"]
    assert main["startupProbe"]["failureThreshold"] == 1800
    assert main["securityContext"] == {
        "runAsNonRoot": True, "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/block-iouring.json"},
    }  # fmt: skip
    assert [one["name"] for one in found["spec"]["volumes"]] == ["shm", "snapshot-control"]
    assert refuses(found, "main") == "", "what it has already isn't in its way"
