"""Hardware changes sides in a Dynamo graph, in a real API server: by its resources of record, with the chosen pod as the one that goes, and
once, whenever the engine dies.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import admin
from control_plane import ControlPlane
from dynamo_operator import (
    ADAPTERS,
    CHART,
    COMPONENT,
    COST,
    DEPLOYMENTS,
    GRAPHS,
    Site,
    dynamo_plane,
    engine,
    engine_access,
    names,
    site,
    waiting,
)
from shunter.act.beyond import Deposed
from shunter.app.drifting import shown
from shunter.app.graphs import Counted, Graphs
from shunter.app.settings import DynamoSettings, LeaseSettings, PodsSettings
from shunter.cluster.api import Api, Conflict, Object
from shunter.cluster.dynamo.fence import Slices
from shunter.cluster.dynamo.following import Following
from shunter.cluster.dynamo.pools import merged, troubles
from shunter.cluster.dynamo.shift import Shift, Shifts
from shunter.cluster.estate import Following as Estates
from shunter.cluster.estate import Where
from shunter.cluster.places import Pods
from shunter.cluster.reflector import Reflector, Times
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter.model.ids import Digest, Epoch, Incarnation, NodeId, OperationId, PolicyName, PoolId, SlotId, WorkerId
from shunter.model.operation import OperationRecord
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Pod, Resident
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Samples
from test_engine import kubeconfig

__all__ = ["dynamo_plane", "engine", "site"]
QUICK = Times(watch_least=5, watch_most=8)
MARK = {"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"annotations": {"somebody": "was here"}}}
ANNOTATED = {"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {"somebody": "was here"}}}
WAYS = [(), ("decode",), ("prefill",), ("prefill", "decode")]
"""Which components have a scaling adapter."""


class Crash(BaseException):
    """The engine dies here: nothing after it is done, no `finally` of ours repairs anything."""


class Dying(Api):
    """The engine's way to the server, which ends at the `at`-th write (from 1), before the server hears of it or right after."""

    def __init__(self, site: Site, at: int, *, after: bool) -> None:
        super().__init__(admin(site.plane))
        self.at, self.after, self.writes = at, after, 0

    async def apply(self, path: str, body: Object, manager: str, *, force: bool = True, dry_run: bool = False) -> Object:
        if dry_run:
            return await super().apply(path, body, manager, force=force, dry_run=True)
        self.writes += 1
        if self.writes == self.at and not self.after:
            raise Crash
        found = await super().apply(path, body, manager, force=force)
        if self.writes == self.at:
            raise Crash
        return found


class Late(Api):
    """The engine's way to the server, on which the `at`-th write (from 1) is held up: it comes when it is `let_through`, whether or not
    anybody waits for it still.
    """

    def __init__(self, site: Site, at: int) -> None:
        super().__init__(admin(site.plane))
        self.at, self.writes = at, 0
        self.held: tuple[str, Object, str] | None = None
        self.holds = asyncio.Event()

    async def apply(self, path: str, body: Object, manager: str, *, force: bool = True, dry_run: bool = False) -> Object:
        self.writes += not dry_run
        if dry_run or self.writes != self.at:
            return await super().apply(path, body, manager, force=force, dry_run=dry_run)
        self.held = path, body, manager
        self.holds.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def let_through(self) -> None:
        assert self.held is not None
        await super().apply(*self.held)


class Meanwhile(Api):
    """The engine's way to the server; right before its first write something else comes."""

    def __init__(self, site: Site, first: Callable[[], Any]) -> None:
        super().__init__(admin(site.plane))
        self.first: Callable[[], Any] | None = first

    async def apply(self, path: str, body: Object, manager: str, *, force: bool = True, dry_run: bool = False) -> Object:
        first, self.first = self.first, None
        if first is not None:
            await first()
        return await super().apply(path, body, manager, force=force, dry_run=dry_run)


async def standing(site: Site, **counts: int) -> None:
    """Wait until the operator calls the graph successful, with so many pods of each."""
    wanted = {"prefill": 2, "decode": 3, **counts}

    def done() -> bool:
        graph = site.get(GRAPHS, "llama")
        settled = (graph.get("status") or {}).get("observedGeneration") == graph["metadata"]["generation"]
        return settled and graph["status"]["state"] == "successful" and all(len(site.pods(c)) == n for c, n in wanted.items())

    await waiting(done)


async def made(site: Site, *, adapters: tuple[str, ...] = (), **replicas: int) -> Shift:
    """A graph that stands, and a shift from decode to prefill with a pod that its controller would never choose by itself: the oldest."""
    site.graph(adapters=adapters, **replicas)
    await standing(site, **replicas)
    pods = site.pods("decode")
    oldest = min(pods, key=lambda name: int(name.rpartition("-")[2]))
    return Shift(
        operation="park-1", namespace=site.namespace, graph="llama", gives="decode", pod=oldest, uid=pods[oldest]["metadata"]["uid"],
        takes="prefill",
    )  # fmt: skip


def clear(site: Site, adapters: tuple[str, ...]) -> None:
    """Without the graph of the round before."""
    site.plane.ask("DELETE", site.path(GRAPHS, "llama"))
    for name in adapters:
        site.plane.ask("DELETE", site.path(ADAPTERS, f"llama-{name}"))


@pytest.mark.parametrize("adapters", WAYS)
async def test_the_chosen_pod_goes_and_the_other_component_gets_one(site: Site, engine: Api, adapters: tuple[str, ...]) -> None:
    shift = await made(site, adapters=adapters)
    others = set(site.pods("decode")) - {shift.pod}
    await Shifts(engine).carry(shift)
    await standing(site, decode=2, prefill=3)
    assert set(site.pods("decode")) == others, "nobody but the chosen one"
    assert (site.of_record("decode"), site.of_record("prefill")) == (2, 3)
    assert all(sum(counts) >= 5 for counts in site.history[1:]), f"never a worker too few: {site.history}"


@pytest.mark.parametrize("site", ["v1alpha1"], indirect=True)
async def test_graphs_of_the_older_version_too(site: Site, engine: Api) -> None:
    """One number in the graph, the other in an adapter."""
    shift = await made(site, adapters=("decode",))
    await Shifts(engine, "v1alpha1").carry(shift)
    await standing(site, decode=2, prefill=3)
    assert shift.pod not in site.pods("decode")


async def test_the_newest_version_that_is_served_is_spoken(site: Site, engine: Api) -> None:
    assert await Shifts(engine).version() == "v1beta1"


@pytest.mark.parametrize(("adapters", "after"), [((), True), (("prefill", "decode"), False), (("prefill", "decode"), True)])
async def test_killed_at_each_write_the_next_engine_finishes_it_once(
    site: Site, engine: Api, adapters: tuple[str, ...], after: bool
) -> None:
    at = 0
    while True:
        at += 1
        clear(site, adapters)
        shift = await made(site, adapters=adapters)
        others = set(site.pods("decode")) - {shift.pod}
        dying = Dying(site, at, after=after)
        try:
            await Shifts(dying).carry(shift)
        except Crash:
            pass
        else:
            break
        finally:
            await dying.aclose()
        await Shifts(engine).carry(shift)
        await Shifts(engine).carry(shift)
        await standing(site, decode=2, prefill=3)
        assert set(site.pods("decode")) == others, f"killed at write {at}"
        assert (site.of_record("decode"), site.of_record("prefill")) == (2, 3), f"killed at write {at}"
    assert at > (2 if not adapters else 3), "the pod, and each resource of record"


async def test_killed_at_each_write_the_next_engine_can_take_it_back_too(site: Site, engine: Api) -> None:
    """Also where the pod may be gone by then: as many are there as before, and it isn't made again."""
    adapters = ("prefill", "decode")
    for at in (1, 2, 3):
        clear(site, adapters)
        shift = msgspec.structs.replace(await made(site, adapters=adapters), operation=f"park-{at}")
        dying = Dying(site, at, after=True)
        with contextlib.suppress(Crash):
            await Shifts(dying).carry(shift)
        await dying.aclose()
        for _ in range(2):
            await Shifts(engine).undo(shift)
        await standing(site)
        assert (site.of_record("decode"), site.of_record("prefill")) == (3, 2)
        assert not [one for one in site.pods("decode").values() if COST in (one["metadata"].get("annotations") or {})]
        with pytest.raises(Rejected, match="it was taken back before"):
            await Shifts(engine).carry(shift)


@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
@pytest.mark.parametrize(("adapters", "writes"), [((), 2), (("prefill", "decode"), 3)])
async def test_a_write_that_is_cut_off_and_comes_late_is_taken_back_or_refused(
    site: Site, engine: Api, adapters: tuple[str, ...], writes: int, when: str
) -> None:
    """An operation's time was over in the middle of it, and it went back: what of it comes then changes nothing for good."""
    for at in range(1, writes + 1):
        clear(site, adapters)
        shift = msgspec.structs.replace(await made(site, adapters=adapters), operation=f"park-{at}")
        before = set(site.pods("prefill")), set(site.pods("decode"))
        late = Late(site, at)
        carrying = asyncio.create_task(Shifts(late).carry(shift))
        await late.holds.wait()
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
        if when == "before":
            await late.let_through()
        back = Meanwhile(site, late.let_through) if when == "meanwhile" else engine
        await Shifts(back).undo(shift)
        if when == "after":
            assert isinstance(await said(late.let_through), Conflict), "it is of another version"
        for one in {late, back} - {engine}:
            await one.aclose()
        await Shifts(engine).undo(shift)
        await standing(site)
        assert (site.of_record("decode"), site.of_record("prefill")) == (3, 2), f"write {at}"
        assert not [one for one in site.pods("decode").values() if COST in (one["metadata"].get("annotations") or {})], f"write {at}"
        if when == "after":
            assert before == (set(site.pods("prefill")), set(site.pods("decode"))), f"write {at}"
        with pytest.raises(Rejected, match="it was taken back before"):
            await Shifts(engine).carry(shift)


async def test_what_is_marked_as_never_made_leaves_numbers_whose_they_are(site: Site, engine: Api) -> None:
    """Also to Git; and who takes not even a mark of ours keeps nobody from going back."""
    shift = await made(site)
    site.graph(manager="argocd-controller")
    await Shifts(engine).undo(shift)
    fields = [one for one in site.get(GRAPHS, "llama")["metadata"]["managedFields"] if one["manager"] == "shunter-replicas"]
    assert ["f:spec" in one["fieldsV1"] for one in fields] == [False]
    version = site.get(GRAPHS, "llama")["metadata"]["resourceVersion"]
    await Shifts(engine).undo(shift)
    assert site.get(GRAPHS, "llama")["metadata"]["resourceVersion"] == version, "it is said once"
    other = msgspec.structs.replace(shift, operation="park-2")
    take_away = forbid(site, "true", "false", plural=GRAPHS)
    try:
        await refused(lambda: engine.apply(site.path(GRAPHS, "llama"), MARK, "somebody", dry_run=True), "SH256")
        await Shifts(engine).undo(other)
    finally:
        take_away()
    assert "park-2" not in str(site.get(GRAPHS, "llama")["metadata"]["annotations"])


async def test_who_refuses_what_we_write_of_pods_keeps_nobody_from_going_back_who_has_written_nothing(site: Site, engine: Api) -> None:
    """Going back was tried for ever, with the worker and its slot kept for it."""
    shift = await made(site)
    take_away = forbid(site, "true", "false", plural="pods")
    try:
        await refused(lambda: engine.apply(site.path("pods", shift.pod), ANNOTATED, "shunter-deletion-cost", dry_run=True), "SH256")
        with pytest.raises((Rejected, Retry)):
            await Shifts(engine).carry(shift)
        await Shifts(engine).undo(shift)
    finally:
        take_away()
    assert (site.of_record("decode"), site.of_record("prefill")) == (3, 2)


async def test_what_was_written_of_a_pod_is_taken_back_though_it_be_refused_for_a_while(site: Site, engine: Api) -> None:
    shift = await made(site)
    dying = Dying(site, 1, after=True)  # the pod is the first of what is written
    with contextlib.suppress(Crash):
        await Shifts(dying).carry(shift)
    await dying.aclose()
    take_away = forbid(site, "true", "false", plural="pods")
    try:
        await refused(lambda: engine.apply(site.path("pods", shift.pod), ANNOTATED, "shunter-deletion-cost", dry_run=True), "SH256")
        for _ in range(2):
            error = await said(lambda: Shifts(engine).undo(shift))
            assert error is not None
            assert error.problem.code == "SH256"
    finally:
        take_away()
    async with asyncio.timeout(15):
        while await said(lambda: Shifts(engine).undo(shift)) is not None:
            await asyncio.sleep(0.1)
    assert COST not in (site.pods("decode")[shift.pod]["metadata"].get("annotations") or {})


def forbid(site: Site, where: str, rule: str, *, plural: str = ADAPTERS) -> Callable[[], None]:
    """A webhook of somebody's that refuses something of the engine's, and is found in force by trying. Gives what takes it away."""
    name = f"no-{site.namespace}"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": ["" if plural == "pods" else "nvidia.com"],
                    "apiVersions": ["*"],
                    "operations": ["UPDATE"],
                    "resources": [plural],
                }
            ],
        },
        "matchConditions": [
            {"name": "here", "expression": f"request.namespace == '{site.namespace}' && request.userInfo.username != 'admin'"},
            {"name": "which", "expression": where},
        ],
        "validations": [{"expression": rule, "message": "the quota of team blue is 3 workers"}],
    }
    root = "/apis/admissionregistration.k8s.io/v1"
    binding = {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    site.plane.must("POST", f"{root}/validatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
    site.plane.must("POST", f"{root}/validatingadmissionpolicybindings", binding)

    def take_away() -> None:
        site.plane.must("DELETE", f"{root}/validatingadmissionpolicybindings/{name}")
        site.plane.must("DELETE", f"{root}/validatingadmissionpolicies/{name}")

    return take_away


async def refused(work: Callable[[], Any], code: str) -> Rejected | Retry:
    """What it is refused with, once the server goes by its newest policies, which takes a moment."""
    async with asyncio.timeout(15):
        while True:
            found = await said(work)
            if found is not None:
                assert found.problem.code == code
                return found
            await asyncio.sleep(0.1)


async def said(work: Callable[[], Any]) -> Rejected | Retry | None:
    try:
        await work()
    except (Rejected, Retry) as error:
        return error
    return None


async def test_a_webhook_that_refuses_one_half_refuses_both_in_its_own_words_before_anything_is_done(site: Site, engine: Api) -> None:
    shift = await made(site, adapters=("prefill", "decode"))
    take_away = forbid(site, "object.metadata.name == 'llama-decode'", "object.spec.replicas >= 3")
    try:
        error = await refused(lambda: Shifts(engine).check(shift), "SH275")
        assert "the quota of team blue is 3 workers" in error.problem.what
        with pytest.raises(Rejected, match="the quota of team blue"):
            await Shifts(engine).carry(shift)
        assert (site.of_record("decode"), site.of_record("prefill")) == (3, 2)
        assert COST not in (site.pods("decode")[shift.pod]["metadata"].get("annotations") or {})
        assert "shunter.dev/shifts" not in str(site.get(ADAPTERS, "llama-prefill"))
    finally:
        take_away()


class Blind(Shifts):
    """As if a webhook had changed its mind since the dry run."""

    async def check(self, shift: Shift, *, begins: bool = True) -> None:
        return


async def test_a_second_half_that_is_refused_takes_the_first_back(site: Site, engine: Api) -> None:
    shift = await made(site, adapters=("prefill", "decode"))
    before = set(site.pods("prefill")), set(site.pods("decode"))
    take_away = forbid(site, "object.metadata.name == 'llama-decode'", "object.spec.replicas >= 3")
    try:
        await refused(lambda: Shifts(engine).check(shift), "SH275")
        with pytest.raises(Rejected, match="the quota of team blue") as raised:
            await Blind(engine).carry(shift)
        assert raised.value.problem.code == "SH275"
        await standing(site)
        assert (set(site.pods("prefill")), set(site.pods("decode"))) == before, "whoever came goes again, and nobody else"
        assert COST not in (site.pods("decode")[shift.pod]["metadata"].get("annotations") or {})
    finally:
        take_away()


async def test_with_an_adapter_the_graph_itself_is_never_edited(site: Site, engine: Api) -> None:
    """Dynamo's own webhook is in force in these tests: whoever edits the graph is refused, and the engine never tries."""
    shift = await made(site, adapters=("prefill", "decode"))
    patch = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "spec": {"components": [{"name": "decode", "replicas": 9}]},
    }
    error = await refused(lambda: engine.apply(site.path(GRAPHS, "llama"), patch, "somebody"), "SH255")
    assert "scaling adapter is enabled" in error.problem.what
    await Shifts(engine).carry(shift)
    managers = {one["manager"] for one in site.get(GRAPHS, "llama")["metadata"]["managedFields"]}
    assert "shunter-replicas" not in managers
    await standing(site, decode=2, prefill=3)


async def test_replicas_that_git_has_are_left_to_git(site: Site, engine: Api) -> None:
    shift = await made(site)
    site.graph(manager="argocd-controller")
    with pytest.raises(Rejected) as raised:
        await Shifts(engine).carry(shift)
    assert raised.value.problem.code == "SH273"
    assert "argocd-controller" in raised.value.problem.what
    assert site.of_record("decode") == 3


async def test_whose_the_replicas_are_can_be_seen_and_others_keep_theirs(site: Site, engine: Api) -> None:
    """One shift after another, each of its own component: what server-side apply doesn't find again, it would remove."""
    site.gpus = 6
    shift = await made(site, prefill=1, decode=4)
    await Shifts(engine).carry(Shift(operation="a", namespace=site.namespace, graph="llama", takes="prefill"))
    await standing(site, prefill=2, decode=4)
    await Shifts(engine).carry(msgspec.structs.replace(shift, operation="b", takes=""))
    await standing(site, prefill=2, decode=3)
    fields = [one for one in site.get(GRAPHS, "llama")["metadata"]["managedFields"] if one["manager"] == "shunter-replicas"]
    assert [one["operation"] for one in fields] == ["Apply"]
    components = fields[0]["fieldsV1"]["f:spec"]["f:components"]
    assert set(components) == {'k:{"name":"decode"}', 'k:{"name":"prefill"}'}
    assert all(set(own) - {".", "f:name"} == {"f:replicas"} for own in components.values())


async def test_a_pod_that_would_go_before_the_chosen_one_keeps_it_from_being_done(site: Site, engine: Api) -> None:
    shift = await made(site)
    other = next(name for name in site.pods("decode") if name != shift.pod)
    site.stands = True
    site.edit("pods", other, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "/status")
    with pytest.raises(Rejected) as raised:
        await Shifts(engine).carry(shift)
    assert raised.value.problem.code == "SH274"
    assert other in raised.value.problem.what
    assert site.of_record("decode") == 3
    site.edit("pods", other, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "/status")
    site.plane.must("DELETE", site.path("pods", other))
    with pytest.raises(Rejected, match="there are 2 pods where 3 are asked for"):
        await Shifts(engine).carry(shift)


async def test_a_graph_that_is_being_changed_or_has_failed_is_left_alone(site: Site, engine: Api) -> None:
    shift = await made(site)
    for status, said in (
        ({"rollingUpdate": {"phase": "InProgress"}}, "rolling update"),
        ({"rollingUpdate": None, "restart": {"phase": "Restarting"}}, "restarted"),
        ({"restart": None, "state": "failed"}, "failed"),
    ):
        site.edit(GRAPHS, "llama", {"status": status}, "/status")
        with pytest.raises(Rejected, match=said) as raised:
            await Shifts(engine).carry(shift)
        assert raised.value.problem.code == "SH278"
        assert site.of_record("decode") == 3


async def test_a_pod_that_isnt_removed_in_time_has_its_replica_put_back(site: Site, engine: Api) -> None:
    shift = await made(site)
    site.stands = True
    now = iter(range(10_000))
    with pytest.raises(Retry) as raised:
        await Shifts(engine, clock=lambda: float(next(now)), sleep=lambda _s: asyncio.sleep(0)).carry(shift)
    assert raised.value.problem.code == "SH277"
    assert (site.of_record("decode"), site.of_record("prefill")) == (3, 2)
    site.stands = False
    await standing(site)
    assert shift.pod in site.pods("decode")


async def test_another_pod_that_went_is_said_and_the_replicas_are_put_back(site: Site, engine: Api) -> None:
    """Somebody removes a pod by hand in that very moment."""
    shift = await made(site)
    site.stands = True
    other = next(name for name in site.pods("decode") if name != shift.pod)

    async def sleep(_seconds: float) -> None:
        site.plane.ask("DELETE", site.path("pods", other))

    with pytest.raises(Rejected) as raised:
        await Shifts(engine, sleep=sleep).carry(shift)
    assert raised.value.problem.code == "SH276"
    site.stands = False
    await standing(site)
    assert shift.pod in site.pods("decode"), "who was chosen stays"


async def test_a_write_without_an_answer_is_found_out_by_the_next(site: Site, engine: Api) -> None:
    shift = await made(site, adapters=("prefill", "decode"))

    class Deaf(Api):
        async def apply(self, path: str, body: Object, manager: str, *, force: bool = True, dry_run: bool = False) -> Object:
            found = await super().apply(path, body, manager, force=force, dry_run=dry_run)
            if path.endswith("llama-prefill") and not dry_run:
                raise Unknown(Problem(code="SH251", what="no answer", remedy=""))
            return found

    deaf = Deaf(admin(site.plane))
    with pytest.raises(Unknown):
        await Shifts(deaf).carry(shift)
    await deaf.aclose()
    assert (site.of_record("decode"), site.of_record("prefill")) == (3, 3)
    await Shifts(engine).carry(shift)
    await standing(site, decode=2, prefill=3)


async def test_nothing_below_the_graph_is_ever_written(site: Site, engine: Api) -> None:
    shift = await made(site)
    await Shifts(engine).carry(shift)
    managers = {one["manager"] for one in site.get(DEPLOYMENTS, "llama-decode")["metadata"]["managedFields"]}
    assert managers == {"manager"}, "the operator's alone"
    body = {"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoComponentDeployment", "spec": {"replicas": 7}}
    await refused(lambda: engine.apply(site.path(DEPLOYMENTS, "llama-decode"), body, "x"), "SH255")


# -- what an engine sees, and what its operations do


class Engine:
    """What an engine has of graphs: what it follows, and how its operations count along."""

    def __init__(self, site: Site) -> None:
        access = engine_access(site.plane, site.namespace)
        self.following = Following(lambda: Api(access), site.namespace, times=QUICK)
        self.following.wait(15)
        self.api = Api(access)
        self.counted = Counted(Shifts(self.api), site.namespace)

    async def close(self) -> None:
        await asyncio.to_thread(self.following.close)
        await self.api.aclose()

    def samples(self) -> dict[str, dict[str, Any]]:
        return {str(pool): fields for pool, fields in merged({}, self.following.view(), 1000.0).items()}

    def told(self) -> list[str]:
        return [one.what for one in troubles(self.following.view())]


@pytest.fixture
async def seen(site: Site) -> AsyncIterator[Engine]:
    site.graph()
    await standing(site)
    found = await asyncio.to_thread(Engine, site)
    yield found
    await found.close()


def led() -> None:
    """We lead."""


def record(site: Site, kind: OperationKind, pod: str = "", **more: Any) -> OperationRecord:
    planned = PlannedOperation(
        **{
            "id": OperationId(f"{kind.value}-1"),
            "kind": kind,
            "worker": WorkerId("w"),
            "lane": "voluntary",
            "policy": PolicyName("p"),
            "reason": "because",
            "expect": Preconditions(incarnation=Incarnation(0)),
            "cause": "shift:p:1",
            "pool": PoolId("llama/decode"),
            **more,
        }
    )
    left = Pod(namespace=site.namespace, name=pod, uid=site.pods("decode")[pod]["metadata"]["uid"]) if pod else None
    return OperationRecord(planned=planned, plan=Digest("sha256:p"), epoch=Epoch(1), created_at=1.0, left=left)


async def test_what_graphs_say_of_pools_is_followed(site: Site, seen: Engine) -> None:
    await waiting(lambda: {str(p): f["replicas"].value for p, f in seen.samples().items()} == {"llama/prefill": 2, "llama/decode": 3})
    assert all(isinstance(fields["settled"], Known) and "desired" not in fields for fields in seen.samples().values()), "nobody scales it"
    assert seen.told() == []
    site.edit(GRAPHS, "llama", {"status": {"rollingUpdate": {"phase": "InProgress"}}}, "/status")
    await waiting(lambda: isinstance(seen.samples()["llama/decode"]["settled"], Missing))
    assert "rolling update" in seen.samples()["llama/prefill"]["settled"].reason


async def test_with_adapters_what_whoever_scales_wants_is_what_is_desired(site: Site, seen: Engine) -> None:
    clear(site, ())
    site.graph(adapters=("prefill", "decode"))
    await standing(site)
    await waiting(lambda: seen.samples().get("llama/decode", {}).get("desired") is not None)
    site.stands = True
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "llama-prefill"}, "spec": {"replicas": 4}}
    site.plane.must(
        "PUT", site.path(ADAPTERS, "llama-prefill") + "/scale", {**scale, "metadata": {**scale["metadata"], "namespace": site.namespace}}
    )
    await waiting(lambda: seen.samples()["llama/prefill"]["desired"].value == 4)
    await waiting(lambda: "adapter llama-prefill asks for 4 of prefill, and the graph has 2" in seen.told())


async def test_whoever_edits_below_a_graph_is_told_of_with_both_values(site: Site, seen: Engine) -> None:
    site.stands = True
    site.edit(DEPLOYMENTS, "llama-decode", {"spec": {"replicas": 5}})
    gone = next(names(site.pods("prefill")))
    site.plane.must("DELETE", site.path("pods", gone))
    wanted = {"the graph asks for 3 of decode, and llama-decode below it has 5", "the graph asks for 2 of prefill, and there is 1 pod"}
    await waiting(lambda: set(seen.told()) == wanted)


async def test_a_graph_that_cant_be_read_hurts_nobody_else(site: Site, seen: Engine) -> None:
    body = {
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": "strange"},
        "spec": {"components": [{"name": "decode", "type": "decode", "multinode": {"nodeCount": -1}}]},
    }  # fmt: skip
    site.plane.must("POST", site.path(GRAPHS), body)
    await waiting(lambda: isinstance(seen.samples().get("strange/decode", {}).get("replicas"), Missing))
    assert "spec.components[0].multinode.nodeCount" in seen.samples()["strange/decode"]["settled"].reason
    assert seen.samples()["llama/decode"]["replicas"].value == 3
    assert any(one.code == "SH270" for one in troubles(seen.following.view()))


async def test_a_park_for_a_native_start_changes_both_numbers_and_one_before_a_restore_its_own(site: Site, seen: Engine) -> None:
    first, second, third = names(site.pods("decode"))
    handing = record(site, OperationKind.PARK, second, hands_to=PoolId("llama/prefill"))
    await seen.counted.check(handing, handing.left, None)
    await seen.counted.change(handing, led)
    await seen.counted.change(handing, led)
    await standing(site, decode=2, prefill=3)
    assert set(site.pods("decode")) == {first, third}
    before = record(site, OperationKind.PARK, third, id=OperationId("park-2"))
    await seen.counted.check(before, before.left, PoolId("llama/prefill"))
    assert site.of_record("prefill") == 3, "what comes behind it is only looked at"
    await seen.counted.change(before, led)
    await standing(site, decode=1, prefill=3)
    comes = record(site, OperationKind.RESTORE, pool=PoolId("llama/prefill"))
    await seen.counted.check(comes, None, None)
    await seen.counted.change(comes, led)
    await standing(site, decode=1, prefill=4)
    await seen.counted.take_back(comes, led)
    await seen.counted.take_back(comes, led)
    await standing(site, decode=1, prefill=3)


async def test_one_that_was_asked_for_already_isnt_asked_for_twice(site: Site, seen: Engine) -> None:
    """A planner has raised the number itself, and the pod that was started for it isn't ready yet."""
    site.gpus = 0
    site.graph(prefill=3)
    await waiting(lambda: len(site.pods("prefill")) == 3)
    comes = record(site, OperationKind.RESTORE, pool=PoolId("llama/prefill"))
    await seen.counted.change(comes, led)
    assert site.of_record("prefill") == 3
    await seen.counted.check(comes, None, None)
    await seen.counted.change(comes, led)
    await seen.counted.take_back(comes, led)
    assert "shunter.dev/shifts" not in str(site.get(GRAPHS, "llama")["metadata"]), "nothing was written, and nothing is said of it"
    site.gpus = 9
    await standing(site, prefill=3)
    await seen.counted.change(comes, led)
    assert site.of_record("prefill") == 4


async def test_whoever_leads_no_more_writes_nothing(site: Site, seen: Engine) -> None:
    handing = record(site, OperationKind.PARK, next(names(site.pods("decode"))), hands_to=PoolId("llama/prefill"))

    def deposed() -> None:
        raise Deposed(Problem(code="SH557", what="this engine leads no more", remedy=""))

    for work in (seen.counted.change, seen.counted.take_back):
        with contextlib.suppress(Deposed):
            await work(handing, deposed)
    assert site.of_record("decode") == 3
    assert "shunter.dev" not in str(site.get(GRAPHS, "llama")["metadata"].get("annotations"))
    assert all(COST not in (one["metadata"].get("annotations") or {}) for one in site.pods("decode").values())


async def test_a_pool_that_dynamo_doesnt_keep_is_left_alone(site: Site, seen: Engine) -> None:
    pod = next(names(site.pods("decode")))
    other = record(site, OperationKind.PARK, pod, pool=PoolId("another/decode"))
    nowhere = record(site, OperationKind.PARK)
    for one in (other, nowhere):
        await seen.counted.check(one, one.left, None)
        await seen.counted.change(one, led)
        await seen.counted.take_back(one, led)
    assert site.of_record("decode") == 3
    assert "shunter.dev/shifts" not in str(site.get(GRAPHS, "llama"))


async def test_what_was_written_down_is_shown(site: Site, seen: Engine, tmp_path: Path) -> None:
    graphs = Graphs.__new__(Graphs)
    graphs._following, graphs._written, graphs._noted = seen.following, None, None
    site.stands = True
    site.edit(DEPLOYMENTS, "llama-decode", {"spec": {"replicas": 5}})
    await waiting(lambda: seen.told())
    graphs.note(tmp_path, Epoch(7), 1000.0)
    found = shown(tmp_path, Epoch(7))
    assert found.pools == ("llama/decode: 3 of record", "llama/prefill: 2 of record")
    assert [one.code for one in found.troubles] == ["SH271"]
    assert shown(tmp_path, Epoch(8)).pools == (), "of another engine's time"


# -- the fence


def gate(site: Site, pod: str, said: str) -> None:
    condition = {"type": "shunter.dev/serving", "status": said}
    found = site.get("pods", pod)
    others = [one for one in found["status"]["conditions"] if one["type"] != condition["type"]]
    site.edit("pods", pod, {"status": {"conditions": [*others, condition]}}, "/status")


def slices(site: Site) -> dict[str, bool]:
    found = site.plane.must("GET", f"/apis/discovery.k8s.io/v1/namespaces/{site.namespace}/endpointslices")["items"]
    return {one["targetRef"]["name"]: one["conditions"]["ready"] for part in found for one in part["endpoints"]}


async def test_a_pod_is_out_of_sight_when_the_slices_have_followed_its_gate(site: Site, engine: Api) -> None:
    shift = await made(site)
    pod = Pod(namespace=site.namespace, name=shift.pod, uid=shift.uid)
    await waiting(lambda: slices(site).get(shift.pod))
    gate(site, shift.pod, "False")
    await Slices(engine).unseen(pod)
    assert slices(site)[shift.pod] is False


async def test_one_that_slices_still_show_isnt_taken_for_fenced(site: Site, engine: Api) -> None:
    shift = await made(site)
    await waiting(lambda: slices(site).get(shift.pod))
    site.slow = True
    gate(site, shift.pod, "False")
    now = iter(range(100))
    with pytest.raises(Retry) as raised:
        await Slices(engine, clock=lambda: float(next(now)), sleep=lambda _s: asyncio.sleep(0)).unseen(
            Pod(namespace=site.namespace, name=shift.pod, uid=shift.uid)
        )
    assert raised.value.problem.code == "SH279"
    assert "llama-workers" in raised.value.problem.what


async def test_where_readiness_isnt_ours_to_say_nothing_is_waited_for(site: Site, engine: Api) -> None:
    shift = await made(site)
    await waiting(lambda: slices(site).get(shift.pod))
    never = Slices(engine, sleep=lambda _s: pytest.fail("it waits"))
    await never.unseen(Pod(namespace=site.namespace, name=shift.pod, uid="another's"))
    await never.unseen(Pod(namespace=site.namespace, name="nobody", uid="u"))
    frontend = next(names(site.pods("frontend")))
    site.stands = True
    site.plane.must("DELETE", site.path("pods", frontend))
    plain = {"metadata": {"name": "plain", "labels": {"role": "decode"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}
    uid = site.plane.must("POST", site.path("pods"), plain)["metadata"]["uid"]
    await never.unseen(Pod(namespace=site.namespace, name="plain", uid=uid))


# -- an engine's own


async def test_graphs_are_followed_as_the_settings_say_and_only_samples_of_now_get_them(site: Site, tmp_path: Path) -> None:
    site.graph(adapters=("decode",))
    await standing(site)
    lease = LeaseSettings(kubeconfig=kubeconfig(site.plane, tmp_path), pods=PodsSettings(namespace=site.namespace))
    graphs = await Graphs(lease, DynamoSettings(), clock=lambda: 1000.0).open()
    try:
        await graphs.listed(15)
        await waiting(lambda: len(graphs.view().graphs) == 1)
        now = graphs.measured(Samples(), 1000.0)
        assert {str(pool): sorted(fields) for pool, fields in now.pools.items()} == {
            "llama/decode": ["desired", "replicas", "settled"],
            "llama/prefill": ["replicas", "settled"],
        }
        assert graphs.measured(Samples(), 900.0) == Samples(), "what was of record then isn't known"
        planner = Known(value=5, unit="workers", at=999.0, query="dynamo_planner_predicted_num_decode_replicas")
        own = graphs.measured(Samples(pools={"llama/decode": {"desired": planner}}), 1000.0)
        assert own.pools["llama/decode"]["desired"] == planner, "what a planner publishes counts before what stands in a resource"
    finally:
        await graphs.close()


async def test_a_thread_that_failed_ends_whoever_counts_on_it(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that we know of makes it fail; should it, an engine must not go on with an old copy for good."""

    def broken(*_: object) -> None:
        raise RuntimeError("what nobody thought of")

    monkeypatch.setattr(Reflector, "_take", broken)
    graphs = await Graphs(LeaseSettings(kubeconfig=kubeconfig(site.plane, tmp_path)), DynamoSettings(namespace=site.namespace)).open()
    try:
        await graphs.listed(15)
        assert graphs.note(tmp_path, Epoch(1), 1000.0) == (), "it is followed"
        site.graph()

        async def ticks() -> None:
            while True:
                graphs.note(tmp_path, Epoch(1), 1000.0)
                await asyncio.sleep(0.05)

        with pytest.raises(RuntimeError, match="what nobody thought of"):
            await asyncio.wait_for(ticks(), 20)
    finally:
        await graphs.close()


@pytest.mark.parametrize("files", [COMPONENT, CHART], ids=["component", "chart"])
def test_the_rights_are_for_what_it_does_and_no_more(dynamo_plane: ControlPlane, files: list[Path]) -> None:
    namespace = f"dynamo-rights-{len(files)}"
    dynamo_plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    engine_access(dynamo_plane, namespace, files)
    verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    dynamo = (GRAPHS, ADAPTERS, DEPLOYMENTS, "dynamoworkermetadatas", "podsnapshots")
    resources = [("nvidia.com", one) for one in (*dynamo, f"{GRAPHS}/status", f"{ADAPTERS}/scale", f"{DEPLOYMENTS}/status")]
    resources += [("", one) for one in ("pods", "pods/status", "pods/eviction", "pods/exec", "secrets", "configmaps", "serviceaccounts")]
    resources += [("discovery.k8s.io", "endpointslices"), ("apps", "deployments"), ("apps", "replicasets"), ("apps", "deployments/scale")]

    def may(verb: str, group: str, resource: str, where: str) -> bool:
        plural, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": sub, "namespace": where}
        spec = {"user": "system:serviceaccount:shunter:shunter-engine", "groups": ["system:authenticated"], "resourceAttributes": asked}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(dynamo_plane.must("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)["status"]["allowed"])

    reads = {(verb, group, one) for verb in ("get", "list", "watch") for group, one in resources if "/" not in one}
    reads -= {row for row in reads if row[1] == "apps" or row[2] in ("secrets", "configmaps", "serviceaccounts")}
    writes = {("patch", "nvidia.com", GRAPHS), ("patch", "nvidia.com", ADAPTERS), ("patch", "", "pods"), ("patch", "", "pods/status")}

    def all_allowed() -> set[tuple[str, str, str]]:
        return {(verb, group, one) for verb in verbs for group, one in resources if may(verb, group, one, namespace)}

    allowed, until = all_allowed(), time.monotonic() + 30
    while allowed != reads | writes and time.monotonic() < until:  # the server hears of its own new roles in a while
        allowed = all_allowed()
    assert allowed == reads | writes
    assert not any(may(verb, group, one, "kube-system") for verb, group, one in allowed)


@pytest.mark.usefixtures("plane")
async def test_a_worker_that_is_restored_is_one_of_its_pool_and_nobody_goes_for_it(site: Site, seen: Engine) -> None:
    """With the pods that the engine makes: the place that its own controller had made for one more is the one that goes."""
    natives = set(site.pods("prefill"))
    comes = record(site, OperationKind.RESTORE, pool=PoolId("llama/prefill"), worker=WorkerId("prefill-9"))
    estate = Estates(lambda: Api(admin(site.plane)), Where(namespace=site.namespace), times=QUICK)
    await asyncio.to_thread(estate.wait, 15)
    pods = Pods(Api(admin(site.plane)), estate.estate, "fleet", "default")
    try:
        await seen.counted.check(comes, None, None)
        who = Resident(id=WorkerId("prefill-9"), role="prefill", graph="llama", engine="vllm")
        pod = await pods.prepare(comes, SlotId("node-a/0"), None, who, led)
        assert pod is not None
        await seen.counted.change(comes, led)
        await waiting(lambda: len(site.pods("prefill")) == 4, 10)  # the two, the new pod, and what their controller makes for one more
        await pods.keep(comes, pod)

        async def joined() -> bool:
            await pods.tidy(lambda _operation: False, {pod.uid: True}, [NodeId("node-a")], led)
            return "pod-template-hash" in site.pods("prefill")[pod.name]["metadata"]["labels"]

        async with asyncio.timeout(15):
            while not await joined():
                await asyncio.sleep(0.05)
        await standing(site, prefill=3)
        assert set(site.pods("prefill")) == {*natives, pod.name}
        assert site.pods("prefill")[pod.name]["metadata"]["ownerReferences"][0]["uid"] == "rs-prefill"
    finally:
        await asyncio.to_thread(estate.close)
        await pods._api.aclose()


@pytest.mark.usefixtures("plane")
async def test_a_pod_that_a_shift_has_chosen_stays_the_one_that_goes_though_it_was_to_go_for_another(site: Site, engine: Api) -> None:
    """It was named when another pod joined, and its controller has ended nobody. When the shift leaves it, it is as it was before both."""
    shift = await made(site)
    spare = {COST: str(1 - 2**31), "shunter.dev/spare": ""}
    estate = Estates(lambda: Api(admin(site.plane)), Where(namespace=site.namespace), times=QUICK)
    await asyncio.to_thread(estate.wait, 15)
    now = 1000.0
    pods = Pods(engine, estate.estate, "fleet", "default", clock=lambda: now)

    def annotations() -> dict[str, str]:
        return dict(site.pods("decode")[shift.pod]["metadata"].get("annotations") or {})

    async def tidied(after: float) -> None:
        nonlocal now
        now += after
        await pods.tidy(lambda _pod: False, {}, [], led)

    costs: list[str | None] = []

    async def sleep(_seconds: float) -> None:
        await tidied(61)
        costs.append(annotations().get(COST))

    try:
        site.edit("pods", shift.pod, {"metadata": {"annotations": spare}})
        await waiting(lambda: estate.estate().pods[shift.uid].spare is not None)
        site.stands = True
        await tidied(0)
        ticks = iter((0.0, 1.0, 2.0, 99.0))
        with pytest.raises(Retry):
            await Shifts(engine, clock=lambda: next(ticks), sleep=sleep).carry(shift)
        assert costs == [str(-(2**31))] * 2
        assert annotations() == spare
        await waiting(lambda: not estate.estate().pods[shift.uid].retired)
        await tidied(61)
        assert annotations() == {}
        await waiting(lambda: estate.estate().pods[shift.uid].spare is None)
        await tidied(1)
        site.edit("pods", shift.pod, {"metadata": {"annotations": spare}})
        await waiting(lambda: estate.estate().pods[shift.uid].spare is not None)
        await tidied(1)
        assert annotations() == spare, "named once more, it has as long as the first time"
    finally:
        await asyncio.to_thread(estate.close)
