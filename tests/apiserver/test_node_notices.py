"""An agent's view of its own Node, at a real API server: with the rights that the how-to gives it, through restarts, cuts and silence."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from conftest import running
from control_plane import ROOT, ControlPlane, until
from proxy import Proxy
from shunter.model.errors import Problem, Retry
from shunter_agent.notices import kubernetes, nodewatch, watching
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.listwatch import Access, Times
from shunter_agent.notices.nodewatch import NodeSource
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import Watching

QUICK = Times(least=2, most=3, margin=0.7, request=1.5, steady=0.3, doubt=5.0, rest_first=0.05, rest_most=0.4)
NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
SPOT = "aws-node-termination-handler/spot-itn"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for this module's tests, which leave it running."""
    yield from running(tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="module")
def token(plane: ControlPlane) -> Path:
    """A service account with the rights that the documentation gives an agent, and no others."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "agent"}}
    plane.must("POST", "/api/v1/namespaces/default/serviceaccounts", account)
    for document in rights():
        plural = {"ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings"}[document["kind"]]
        if plural == "clusterrolebindings":
            document["subjects"] = [{"kind": "ServiceAccount", "name": "agent", "namespace": "default"}]
        plane.must("POST", f"/apis/rbac.authorization.k8s.io/v1/{plural}", document)
    return renew(plane)


def renew(plane: ControlPlane) -> Path:
    """Put a new token where the agent reads it. The server for tests knows those from before a restart no more."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [plane.url]}}
    found = plane.must("POST", "/api/v1/namespaces/default/serviceaccounts/agent/token", request)
    path = plane.folder / "token"
    path.write_text(found["status"]["token"] + "\n")
    return path


def rights() -> list[dict[str, Any]]:
    """What docs/how-to/hear-of-notices.md has its reader apply."""
    text = (ROOT / "docs" / "how-to" / "hear-of-notices.md").read_text()
    block = next(part for part in text.split("```yaml")[1:] if "ClusterRoleBinding" in part).partition("```")[0]
    return list(yaml.safe_load_all(block))


class Seen:
    def __init__(self, source: Watching, proxy: Proxy) -> None:
        self.source, self.proxy = source, proxy
        self.now: Mapping[str, Notice] = {}
        self.problems: list[Problem] = []

    @property
    def kinds(self) -> list[str]:
        return sorted(f"{n.kind} {n.slot}".strip() for n in self.now.values())

    async def until(self, *kinds: str, within: float = 15.0) -> None:
        try:
            async with asyncio.timeout(within):
                while self.kinds != sorted(kinds):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"{self.kinds}, not {kinds}; {self.source.health()}, {self.problems}")


@pytest.fixture
async def seen(plane: ControlPlane, token: Path) -> AsyncIterator[Seen]:
    for path in (NODES, PODS):
        for item in plane.must("GET", path)["items"]:
            plane.must("DELETE", f"{path}/{item['metadata']['name']}")
    plane.must("POST", NODES, body("node-a"))
    plane.must("POST", NODES, body("node-b", taints=[spot()]))
    async with Proxy(plane.port) as proxy:
        access = Access(server=f"https://127.0.0.1:{proxy.port}", ca=plane.ca, token=token)
        found: Seen
        source = nodewatch.source(access, "node-a", "a", Gpus(), pods=True, times=QUICK, log=lambda problem: found.problems.append(problem))
        found = Seen(source, proxy)
        source.start(lambda now: setattr(found, "now", dict(now)))
        yield found
        await asyncio.to_thread(source.stop)


def body(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}


def spot() -> dict[str, str]:
    return {"key": SPOT, "value": "event-1", "effect": "NoSchedule", "timeAdded": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def put(plane: ControlPlane, **spec: Any) -> None:
    plane.must("PATCH", f"{NODES}/node-a", {"spec": spec}, "application/merge-patch+json")


async def test_a_taint_comes_and_goes(plane: ControlPlane, seen: Seen) -> None:
    """And that of another node is none of ours."""
    await seen.until()
    put(plane, taints=[spot()])
    await seen.until("preemption", within=2.0)
    put(plane, taints=[spot()], unschedulable=True)
    await seen.until("preemption", "rebalance")
    put(plane, taints=[], unschedulable=None)
    await seen.until()
    assert seen.source.health() == ()


def test_a_node_whose_clock_is_off_has_as_long_as_the_control_plane_gives_it(plane: ControlPlane, token: Path) -> None:
    """It is two minutes behind, and would take the end to be two minutes further away."""
    ends = datetime.fromtimestamp(time.time() + 600.0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = body("node-c")
    given["metadata"]["annotations"] = {kubernetes.DEADLINE: ends}
    plane.must("POST", NODES, given)
    access, now = Access(server=plane.url, ca=plane.ca, token=token), time.time() - 120.0
    behind = NodeSource(access, "node-c", "c", Gpus(), pods=False, times=QUICK, clock=lambda: now)
    (look,) = behind.looks()
    (notice,) = look.ask().values()
    assert abs((notice.deadline or 0.0) - now - 600.0) < 10.0
    assert [p.code for p in look.problems()] == ["SH684"]
    behind.close()
    plane.must("DELETE", f"{NODES}/node-c")


async def test_the_end_of_a_workers_pod_is_its_drain(plane: ControlPlane, seen: Seen) -> None:
    """The server for tests has no graceful deletion: what the eviction API writes first is written here."""
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "decode-0", "labels": {"shunter.dev/slot": "3"}},
        "spec": {"nodeName": "node-a", "containers": [{"name": "c", "image": "i"}]},
    }
    plane.must("POST", PODS, pod)
    await seen.until()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    plane.must("PATCH", f"{PODS}/decode-0/status", {"status": {"conditions": [condition]}}, "application/merge-patch+json")
    await seen.until("drain a/3", within=3.0)
    plane.must("DELETE", f"{PODS}/decode-0")
    await seen.until()


async def test_a_deleted_node_is_drained_and_one_that_comes_back_isnt(plane: ControlPlane, seen: Seen) -> None:
    await asyncio.to_thread(until, lambda: seen.source._open["kubernetes node"] == {} and seen.proxy.connections >= 2)
    put(plane, unschedulable=True)
    await seen.until("rebalance")
    plane.must("DELETE", f"{NODES}/node-a")
    await seen.until("drain", within=3.0)
    plane.must("POST", NODES, body("node-a"))
    await seen.until(within=3.0)


async def test_it_outlives_a_server_that_is_killed_and_withdraws_nothing_meanwhile(
    plane: ControlPlane, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BLIND_S", 1.0)
    put(plane, taints=[spot()])
    await seen.until("preemption")
    await asyncio.to_thread(plane.kill_api)
    async with asyncio.timeout(10):
        while not seen.source.health():
            await asyncio.sleep(0.05)
    assert "blind since" in seen.source.health()[0].what
    before = seen.proxy.connections
    await asyncio.sleep(1.5)
    assert seen.proxy.connections - before < 20, "it waits between its tries"
    assert seen.kinds == ["preemption"], "that the server is away is no word that the node stays"
    await asyncio.to_thread(plane.start_api)
    await asyncio.to_thread(plane.wait_ready)
    renew(plane)
    put(plane, taints=[])
    await seen.until()
    async with asyncio.timeout(10):
        while seen.source.health():
            await asyncio.sleep(0.02)


async def test_what_was_compacted_meanwhile_is_listed_anew(plane: ControlPlane, seen: Seen) -> None:
    put(plane, taints=[spot()])
    await seen.until("preemption")
    seen.proxy.refusing = True
    seen.proxy.cut()
    put(plane, taints=[])
    plane.compact()
    await asyncio.to_thread(plane.restart_api)
    renew(plane)
    seen.proxy.refusing = False
    await seen.until()


async def test_a_half_open_connection_is_found(plane: ControlPlane, seen: Seen) -> None:
    await seen.until()
    put(plane, unschedulable=True)
    await seen.until("rebalance")
    seen.proxy.hold()
    put(plane, taints=[spot()], unschedulable=None)
    await seen.until("preemption", within=QUICK.most + QUICK.margin + 4.0)


async def test_what_it_may_not_read_is_told_as_that(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "BLIND_S", 0.0)
    nobody = tmp_path / "token"
    nobody.write_text("nobody")
    source = nodewatch.source(Access(server=plane.url, ca=plane.ca, token=nobody), "node-a", "a", Gpus(), times=QUICK)
    source.start(lambda _now: None)
    try:
        async with asyncio.timeout(10):
            while not (problems := source.health()):
                await asyncio.sleep(0.02)
    finally:
        await asyncio.to_thread(source.stop)
    assert "answers 401" in problems[0].what
    assert "service account" in problems[0].remedy


async def test_a_node_of_another_name_is_no_quiet_node(plane: ControlPlane, token: Path) -> None:
    source = nodewatch.source(Access(server=plane.url, ca=plane.ca, token=token), "node-z", "a", Gpus(), times=QUICK)
    with contextlib.ExitStack() as stack:
        stack.callback(source.stop)
        with pytest.raises(Retry) as caught:
            await asyncio.to_thread(source._looks[0].ask)
    assert caught.value.problem.code == "SH649"


def test_the_rights_let_it_change_nothing(plane: ControlPlane, token: Path) -> None:
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    context = ssl.create_default_context(cafile=plane.ca)
    with httpx.Client(base_url=plane.url, headers=headers, verify=context) as client:
        assert client.get(NODES).status_code == 200
        patch = {"Content-Type": "application/merge-patch+json"}
        assert client.patch(f"{NODES}/node-b", content=b'{"spec":{"taints":[]}}', headers=patch).status_code == 403
        assert client.delete(f"{NODES}/node-b").status_code == 403
        assert client.get("/api/v1/namespaces/default/secrets").status_code == 403
        assert client.delete(f"{PODS}/decode-0").status_code == 403
