"""Complaints about how neighbouring systems hear of a node's end, and what happens here instead: one test for each row of the list.

Notices come from services that speak the providers' protocols over real HTTP (their doubles say what they leave out); what is decided is
decided by the engine's own evaluator on policies in the real language. test_notices.py has the same with real processes and real CRIU.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.act.agents import view_of
from shunter.act.execute import Executor
from shunter.act.scheduler import Scheduler
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.cel import CelRules
from shunter.lang.load import check_text
from shunter.model.finding import Verdict
from shunter.model.ids import Digest, Epoch, OperationId
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status, Step
from shunter.model.plan import Evaluation, OperationKind, PlannedOperation
from shunter.model.pod import Pod
from shunter.model.policy import Policy, PolicySet
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.view import NodeView
from shunter.wire import agent_pb2 as pb
from shunter_agent import agent, inventory
from shunter_agent.notices import aws, canary, dcgm, signals
from shunter_agent.settings import CloudSettings, KubernetesSettings, SlotSettings

UNIT = Path(__file__).resolve().parents[1] / "unit"
sys.path[:0] = [str(UNIT / "agent_notices"), str(UNIT / "agent"), str(UNIT.parent / "property")]
from agent_fakes import Bench  # noqa: E402  # pyright: ignore[reportMissingImports]
from fleet_in_memory import PLAN, CrashingStore, World  # noqa: E402  # pyright: ignore[reportMissingImports]
from gated_executor import Gated, settle  # noqa: E402  # pyright: ignore[reportMissingImports]
from metadata_services import Answer, Aws, Azure, Gcp, Service, serving  # noqa: E402  # pyright: ignore[reportMissingImports]

NOW = 1_780_000_000.0
GB = 10**9
POLICIES = Path(__file__).resolve().parents[2] / "policies"


# -- what is decided


def worker(name: str, slot: str | None, **more: Any) -> Worker:
    node = slot.split("/")[0] if slot else more.pop("node", None)
    state = more.pop("state", WorkerState.RUNNING)
    fields: dict[str, Any] = {"graph": "chat", "engine": "vllm", "incarnation": 0, "memory": 10 * GB, **more}
    return Worker(id=name, role=name.split("-")[0], state=state, slot=slot, node=node, **fields)


def node(name: str, *held: str | None, **more: Any) -> Node:
    return Node(id=name, slots=tuple(Slot(id=f"{name}/{i}", worker=w) for i, w in enumerate(held)), **more)


def image(of: Worker, *nodes: str) -> Image:
    return Image(
        id=f"i-{of.id}", worker=of.id, incarnation=0, taken_at=NOW - 60, bytes=GB, nodes=nodes, role=of.role, graph="chat", engine="vllm"
    )


def notice(on: str, lead: float | None = 120.0, kind: str = "preemption", **more: Any) -> Notice:
    deadline = None if lead is None else NOW + lead
    return Notice(id=f"{kind}-{on}", kind=NoticeKind(kind), node=on, seen_at=NOW - 1, deadline=deadline, source="test", **more)


def shipped(*names: str) -> list[Policy]:
    return read(*((POLICIES / f"{name}.yaml").read_text() for name in names))


def read(*texts: str) -> list[Policy]:
    policies: list[Policy] = []
    for number, text in enumerate(texts):
        found, problems = check_text(f"p{number}.yaml", text.encode())
        assert not problems, [str(p) for p in problems]
        policies += found
    return policies


def decide(
    policies: list[Policy],
    nodes: list[Node],
    workers: list[Worker],
    *notices: Notice,
    images: tuple[Image, ...] = (),
    done: tuple[OperationRecord, ...] = (),
) -> Evaluation:
    given = PolicySet(commit="c", digest="sha256:p", policies=tuple(sorted(policies, key=lambda p: p.name)))
    fleet = Fleet(nodes=tuple(nodes), workers=tuple(workers), images=images)
    seen = Snapshot(at=NOW, fleet=fleet, samples=Samples(), notices=notices)
    return evaluate(given, [seen], EngineState(recent=done), NOW, CelRules(), Profile(gpu_restore_floor_s=0))


def kinds(result: Evaluation) -> list[tuple[str, str, str | None]]:
    return [(o.kind.value, o.worker, o.to_slot) for o in result.plan.operations]


# -- what is done


def world(folder: Path) -> World:
    """Three nodes of agents in memory, with a worker on `a`."""
    return World(CrashingStore(folder / "operations.db"))


async def carried(given: World, kind: OperationKind, lane: str) -> list[tuple[str, str]]:
    """Carry out such an operation; the orders, by node."""
    await Executor(given.parts(), given.epoch()).start(given.plan(kind, lane=lane), PLAN)
    return given.orders


# -- what is heard


class Cluster(Service):
    """An API server that answers lists of one node and its pods; its watches end at once, so that it is listed again and again."""

    def __init__(self, **spec: Any) -> None:
        super().__init__()
        self.node: dict[str, Any] = {"metadata": {"name": "n", "resourceVersion": "1"}, "spec": spec, "status": {"conditions": []}}
        self.pods: list[dict[str, Any]] = []

    def condition(self, kind: str, status: str, reason: str, message: str) -> None:
        self.node["status"]["conditions"] = [{"type": kind, "status": status, "reason": reason, "message": message}]

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if "watch=true" in path:
            return 200, "", {}
        items = [self.node] if path.startswith("/api/v1/nodes?") else self.pods
        return 200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}), {}


class Heard:
    """An agent on fakes, with real sources, and what the engine is told of it."""

    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self.bench = Bench(folder)
        self._stack = stack

    def listen(self, *clouds: CloudSettings, cluster: Cluster | None = None, canaries: float = 0.0, **more: Any) -> None:
        kubernetes = KubernetesSettings(server=cluster.url, pods=True) if cluster else None
        self.bench.node.settings = msgspec.structs.replace(
            self.bench.settings, clouds=clouds, kubernetes=kubernetes, canaries=canaries, **more
        )
        agent.watch_notices(self.bench.node, self._stack)

    async def view(self) -> NodeView:
        return view_of(await inventory.report(self.bench.node))

    async def until(self, done: Callable[[NodeView], object], within: float = 15.0) -> NodeView:
        end = time.monotonic() + within
        while not done(view := await self.view()):
            assert time.monotonic() < end, (view.notices, view.node.problems)
            await asyncio.sleep(0.02)
        return view

    async def notices(self, *expected: str) -> list[str]:
        def facts(view: NodeView) -> list[str]:
            return sorted(f"{n.kind.value} {n.slot or ''}".strip() for n in view.notices)

        return facts(await self.until(lambda view: facts(view) == sorted(expected)))


@pytest.fixture
async def stack() -> Any:
    async with contextlib.AsyncExitStack() as found:
        yield found


@pytest.fixture
def heard(tmp_path: Path, stack: contextlib.AsyncExitStack) -> Heard:
    return Heard(tmp_path, stack)


# -- the rows


def test_nth_141_a_hint_doesnt_chase_workers_from_node_to_node() -> None:
    """Drain on rebalance looped, and nodes lived for less than five minutes."""
    two = [worker("decode-0", "a/0")]
    nodes = [node("a", "decode-0"), node("b", None)]
    hint = notice("a", None, "rebalance")
    assert kinds(decide(shipped("spot-aws", "planned-maintenance", "gpu-failing"), nodes, two, hint)) == [], "nobody has asked for it"
    asked = shipped("spot-rebalance")
    assert kinds(decide(asked, nodes, two, hint)) == [("move", "decode-0", "b/0")]
    arrived, after = [worker("decode-0", "b/0")], [node("a", None), node("b", "decode-0")]
    stays = decide(asked, after, arrived, hint, notice("b", None, "rebalance"))
    assert kinds(stays) == [], "where it came from is no better"
    assert next(f for f in stays.findings if f.subject == "decode-0").verdict is Verdict.HOLD


def succeeded(planned: PlannedOperation, ago: float) -> OperationRecord:
    """It was begun `ago` seconds before NOW, and has ended well."""
    outcome = Outcome(status=Status.SUCCEEDED, at=NOW - ago + 5)
    return OperationRecord(
        planned=planned, plan=Digest("sha256:p"), epoch=Epoch(1), created_at=NOW - ago, step=Step.UNFENCED, outcome=outcome
    )


def test_nth_141_hints_that_come_wherever_it_goes_move_it_twice_an_hour_at_most() -> None:
    """A fleet of nothing but spot nodes, where each new node is soon hinted at, too."""
    nodes = [node(name, "decode-0" if name == "c" else None) for name in "abcd"]
    here, hint = [worker("decode-0", "c/0")], notice("c", None, "rebalance")
    anywhere = read((POLICIES / "spot-rebalance.yaml").read_text().partition("  move:\n")[0] + "  otherwise: []\n")
    (move,) = decide(anywhere, nodes, here, hint).plan.operations

    def moved(*ago: float) -> tuple[OperationRecord, ...]:
        return tuple(succeeded(msgspec.structs.replace(move, id=OperationId(f"m{n}")), seconds) for n, seconds in enumerate(ago))

    assert len(kinds(decide(anywhere, nodes, here, hint, done=moved(1800.0)))) == 1
    assert len(kinds(decide(anywhere, nodes, here, hint, done=moved(3601.0, 300.0)))) == 1, "within the hour"
    often = moved(1800.0, 300.0)
    stays = decide(anywhere, nodes, here, hint, done=often)
    (held,) = [f for f in stays.findings if f.subject == "decode-0"]
    assert (kinds(stays), held.verdict, held.gate) == ([], Verdict.HOLD, "repeats")
    both = [*anywhere, *shipped("spot-aws")]
    assert len(kinds(decide(both, nodes, here, hint, notice("c"), done=often))) == 1, "that the node goes is another matter"
    assert len(kinds(decide(read(EVERY_KIND), nodes, here, hint, notice("c"), done=often))) == 1, "also by the same policy"


EVERY_KIND = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: every-kind}
spec: {workers: {all: true}, notices: [rebalance, preemption], otherwise: []}
"""
RELIEVE = """
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: leave-hinted}
spec:
  workers: {role: decode}
  when: node.noticed
  for: 0s
---
apiVersion: shunter.dev/v1alpha1
kind: DisruptionBudget
metadata: {name: one-at-a-time}
spec: {workers: {role: decode}, per: pool, maxConcurrent: 1}
"""


def test_nth_141_what_leaves_a_hint_by_a_rebalance_policy_is_bound_by_budgets() -> None:
    nodes = [node("a", "decode-0", "decode-1"), node("b", None, None)]
    both = [worker("decode-0", "a/0"), worker("decode-1", "a/1")]
    hint = notice("a", None, "rebalance")
    assert len(kinds(decide(read(RELIEVE), nodes, both, hint))) == 1
    assert kinds(decide(read(RELIEVE), nodes, both, notice("a"))) == [], "a decision is for policies that answer notices"


@pytest.mark.parametrize("kind", ["rebalance", "maintenance", "drain", "gpu-failing", "gone"])
def test_nth_786_a_signal_that_no_policy_names_moves_nothing(kind: str) -> None:
    """It drained although draining on that signal was turned off."""
    nodes, workers = [node("a", "decode-0"), node("b", None)], [worker("decode-0", "a/0")]
    assert kinds(decide(shipped("spot-aws"), nodes, workers, notice("a", 30.0, kind))) == []
    assert kinds(decide(shipped("spot-aws"), nodes, workers, notice("a"))) == [("move", "decode-0", "b/0")]
    off = [text.replace("spec:\n", "spec:\n  mode: off\n", 1) for text in [(POLICIES / "spot-aws.yaml").read_text()]]
    assert kinds(decide(read(*off), nodes, workers, notice("a"))) == []


async def test_nth_416_a_second_source_tells_what_the_first_has_missed(heard: Heard, stack: contextlib.AsyncExitStack) -> None:
    """A rebalance recommendation never came through the metadata service."""
    broken, cluster = Aws(), Cluster(taints=[{"key": "aws-node-termination-handler/rebalance-recommendation"}])
    broken.broken = (500, "", {})
    for service in (broken, cluster):
        stack.enter_context(serving(service))
    heard.listen(CloudSettings(name="aws", url=broken.url), cluster=cluster)
    assert await heard.notices("rebalance") == ["rebalance"]
    broken.broken = None
    broken.says["events/recommendations/rebalance"] = '{"noticeTime": "2026-01-02T02:59:00Z"}'
    view = await heard.until(lambda v: v.notices[0].source == "aws, kubernetes")
    assert len(view.notices) == 1, "one event is one notice"


async def test_nth_146_a_cordon_that_nobody_follows_up_is_escalated(
    heard: Heard, stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cordoned, and never drained: nobody looked."""
    monkeypatch.setattr(signals, "ESCALATE_S", 0.0)
    cluster = Cluster(unschedulable=True)
    stack.enter_context(serving(cluster, heard.bench.clock))
    heard.listen(cluster=cluster)
    assert await heard.notices("rebalance") == ["rebalance"]
    view = await heard.until(lambda v: v.node.problems)
    assert [p.code for p in view.node.problems] == ["SH650"]


def test_nth_368_a_destination_is_held_first_and_without_one_the_state_is_saved() -> None:
    """Two minutes are too short where capacity must be made first: nothing here waits for any."""
    workers = [worker("decode-0", "a/0")]
    room = decide(shipped("spot-aws"), [node("a", "decode-0"), node("b", None)], workers, notice("a"))
    (move,) = room.plan.operations
    assert (move.kind.value, move.expect.free) == ("move", "b/0")
    full = [node("a", "decode-0"), node("b", "decode-1")]
    saved = decide(shipped("spot-aws"), full, [*workers, worker("decode-1", "b/0")], notice("a"))
    assert [(o.kind.value, o.copies) for o in saved.plan.operations] == [("park", ("b",))]


@pytest.mark.parametrize("lane", ["voluntary", "involuntary"])
async def test_nth_368_no_worker_is_stopped_before_its_destination_is_held(tmp_path: Path, lane: str) -> None:
    calm = await carried(world(tmp_path), OperationKind.MOVE, lane)
    assert calm.index(("b", "prepare")) < calm.index(("a", "freeze"))
    (folder := tmp_path / "refused").mkdir()
    refused = world(folder)
    refused.named["b", "prepare"] = ["refuse"]
    assert ("a", "freeze") not in await carried(refused, OperationKind.MOVE, lane)
    assert (refused.home(), refused.fenced()) == ("a", False), "and nothing has become of it"


async def test_karpenter_aws_5400_a_mass_reclaim_is_answered_at_once_the_nearest_deadline_first(tmp_path: Path) -> None:
    """One interruption waited in a queue behind the others."""
    names = [f"n{i:02}" for i in range(30)]
    nodes = [node(name, f"decode-{i}") for i, name in enumerate(names)] + [node("z", *[None] * 30)]
    workers = [worker(f"decode-{i}", f"{name}/0") for i, name in enumerate(names)]
    leads = {name: 100.0 + 7 * (i * 11 % 30) for i, name in enumerate(names)}
    result = decide(shipped("spot-aws"), nodes, workers, *(notice(name, lead) for name, lead in leads.items()))
    moves = result.plan.operations
    assert [o.kind.value for o in moves] == ["move"] * 30
    assert all(o.after == () for o in moves), "none waits for another"
    assert [o.deadline for o in moves] == sorted(NOW + lead for lead in leads.values())
    executor = Gated(world(tmp_path))
    scheduler = Scheduler(executor, voluntary=1)
    scheduler.offer(result.plan)
    await settle()
    assert executor.started == [o.id for o in moves], "all of them are begun, however little may be under way by choice"
    await scheduler.stop()


def test_karpenter_aws_8160_no_grace_is_relied_on() -> None:
    """Pods were killed at once, whatever grace had been promised."""
    workers, nodes = [worker("decode-0", "a/0")], [node("a", "decode-0"), node("b", None)]
    now = decide(shipped("planned-maintenance"), nodes, workers, notice("a", 1800.0, "drain"))
    assert kinds(now) == [("move", "decode-0", "b/0")], "it begins at once, and not shortly before the end"
    killed = worker("decode-0", None, node="a", state=WorkerState.LOST)
    back = decide(shipped("node-gone"), nodes, [killed], notice("a", 1800.0, "drain"), images=(image(killed, "b"),))
    assert kinds(back) == [("restore", "decode-0", "b/0")], "what was kept before is what counts"


async def test_karpenter_aws_3005_a_detector_that_is_deaf_is_found_by_its_canary(
    heard: Heard, stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption was injected, nothing happened, and the node vanished."""
    service = Aws()
    stack.enter_context(serving(service))
    heard.listen(CloudSettings(name="aws", url=service.url), canaries=3600.0)
    well = await heard.until(lambda v: v.node.canaries)
    assert (list(well.node.canaries), well.notices, well.node.problems) == (["aws"], (), ())
    monkeypatch.setattr(aws, "_SPOT", "/latest/meta-data/spot/moved-elsewhere")
    monkeypatch.setattr(canary, "WITHIN_S", 0.2)
    (bird,) = heard.bench.node.rehearsals
    bird._within = 0.2
    await asyncio.to_thread(bird.rehearse)
    deaf = await heard.until(lambda v: v.node.problems)
    assert [p.code for p in deaf.node.problems] == ["SH654"]
    assert deaf.node.canaries == {}, "the last one is no proof any more"


async def test_karpenter_1894_a_worker_that_tolerates_the_drain_is_flagged(heard: Heard, stack: contextlib.AsyncExitStack) -> None:
    """Such pods are left until the machine ends: nothing announces it."""
    cluster = Cluster()
    cluster.pods = [
        {
            "metadata": {"name": "decode-0", "uid": "u", "labels": {"shunter.dev/slot": "0"}},
            "spec": {"tolerations": [{"key": "karpenter.sh/disrupted", "operator": "Exists"}]},
        }
    ]
    stack.enter_context(serving(cluster, heard.bench.clock))
    heard.listen(cluster=cluster)
    view = await heard.until(lambda v: v.node.problems)
    assert [(p.code, p.subject) for p in view.node.problems] == [("SH658", "n/0")]


async def test_nth_146_the_eviction_of_a_worker_that_was_found_in_a_pod_is_its_drain(
    heard: Heard, stack: contextlib.AsyncExitStack
) -> None:
    """As by `kubectl drain`: the cordon is a hint, and what follows it is none. Nothing on Dynamo's pods names a slot."""
    journal = heard.bench.journal
    (row,) = journal.workers().values()
    living = msgspec.structs.replace(row.spec, pod=Pod(namespace="serving", name="decode-7f-x", uid="u-x", container="main"))
    journal.put_worker(msgspec.structs.replace(row, spec=living))
    cluster = Cluster(unschedulable=True)
    pod: dict[str, Any] = {"metadata": {"name": "decode-7f-x", "uid": "u-x"}, "spec": {"tolerations": [{"operator": "Exists"}]}}
    cluster.pods = [pod]
    stack.enter_context(serving(cluster, heard.bench.clock))
    heard.listen(cluster=cluster)
    assert await heard.notices("rebalance") == ["rebalance"]
    view = await heard.until(lambda v: v.node.problems)
    assert [(p.code, p.subject) for p in view.node.problems] == [("SH658", "n/0")], "so is karpenter's 1894"
    pod["metadata"]["deletionTimestamp"] = "2030-01-02T03:00:30Z"
    pod["status"] = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}
    assert await heard.notices("rebalance", "drain n/0") == ["drain n/0", "rebalance"]


async def test_aks_3528_readiness_is_no_detector(heard: Heard, stack: contextlib.AsyncExitStack) -> None:
    """An evicted node stayed Ready for up to two and a half minutes; and not being Ready has many reasons."""
    azure, cluster = Azure(), Cluster()
    cluster.condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
    for service in (azure, cluster):
        stack.enter_context(serving(service))
    heard.listen(CloudSettings(name="azure", url=azure.url), cluster=cluster)
    while not cluster.count("GET", "/api/v1/nodes") > 3 or not azure.asked:
        await asyncio.sleep(0.02)
    assert (await heard.view()).notices == ()
    cluster.condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
    azure.events = [preempt("vm-0")]
    view = await heard.until(lambda v: v.notices)
    assert [(n.kind.value, n.source) for n in view.notices] == [("preemption", "azure")]


def preempt(machine: str) -> dict[str, Any]:
    return {
        "EventId": "e1",
        "EventType": "Preempt",
        "EventStatus": "Scheduled",
        "Resources": [machine],
        "NotBefore": "Wed, 02 Jan 2030 03:00:30 GMT",
    }


def test_karpenter_azure_1769_what_the_window_is_too_short_for_isnt_tried() -> None:
    """Less than ten seconds, in practice: what fits is done, by the figures that were measured."""
    nodes = [node("a", "decode-0"), node("b", None)]
    small, large = worker("decode-0", "a/0", memory=GB), worker("decode-0", "a/0", memory=100 * GB)
    assert kinds(decide(shipped("spot-azure"), nodes, [small], notice("a", 8.0))) == [("move", "decode-0", "b/0")]
    late = decide(shipped("spot-azure"), nodes, [large], notice("a", 8.0))
    assert [o.kind.value for o in late.plan.operations] == ["drain"], "neither a move nor an image would end in time"
    figures = "apiVersion: shunter.dev/v1alpha1\nkind: FleetProfile\nmetadata: {name: measured}\nspec:\n"
    measured = figures + "  dump: 60GB/s\n  restore: 60GB/s\n  network: 60GB/s\n"
    assert kinds(decide([*shipped("spot-azure"), *read(measured)], nodes, [large], notice("a", 8.0))) == [("move", "decode-0", "b/0")]


async def test_karpenter_gcp_143_and_295_the_lead_is_what_is_left_and_not_what_is_promised(
    heard: Heard, stack: contextlib.AsyncExitStack
) -> None:
    """Of 30 s some 10 are lost before anybody sees it; a VM that was given 120 s has them. (And its pods are no witnesses: see 110755.)"""
    service = Gcp()
    stack.enter_context(serving(service))
    service.say("preempted", "TRUE")
    heard.listen(CloudSettings(name="gcp", url=service.url))
    view = await heard.until(lambda v: v.notices)
    assert [n.deadline - n.seen_at for n in view.notices if n.deadline] == [20.0]
    (folder := heard.bench.folder / "longer").mkdir()
    longer = Heard(folder, stack)
    service.say("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    longer.listen(CloudSettings(name="gcp", url=service.url, lead=110.0, host_lead=3000.0))
    view = await longer.until(lambda v: len(v.notices) == 2)
    assert {n.kind.value: n.deadline - n.seen_at for n in view.notices if n.deadline} == {"preemption": 110.0, "maintenance": 3000.0}


async def test_gke_pod_migration_23_the_machine_is_asked_and_no_webhook(heard: Heard, stack: contextlib.AsyncExitStack) -> None:
    """A spot shutdown makes no eviction: four of four pods lost their state."""
    service, cluster = Gcp(), Cluster()
    for one in (service, cluster):
        stack.enter_context(serving(one))
    heard.listen(CloudSettings(name="gcp", url=service.url), cluster=cluster)
    while not service.waiting:
        await asyncio.sleep(0.01)
    service.say("preempted", "TRUE")
    view = await heard.until(lambda v: v.notices, within=3.0)
    assert [(n.kind.value, n.source) for n in view.notices] == [("preemption", "gcp")], "Kubernetes has said nothing yet"


async def test_openshift_gcp_112_it_is_reported_before_anything_is_done(heard: Heard, stack: contextlib.AsyncExitStack) -> None:
    """The poller on the node died before it had reported."""
    service = Aws()
    stack.enter_context(serving(service))
    service.says["spot/instance-action"] = '{"action": "terminate", "time": "2030-01-02T03:02:00Z"}'
    heard.bench.journal.close()  # nothing that is done could be written down any more
    told = heard.bench.node.events.subscribe()
    heard.listen(CloudSettings(name="aws", url=service.url))
    async with asyncio.timeout(10):
        event = await anext(aiter(told))
    assert event.notice.kind == "preemption"
    assert heard.bench.faults.order == [], "nothing was touched"
    heard.bench.boot()


async def test_kubernetes_110755_pods_that_are_left_over_are_no_witnesses(heard: Heard, stack: contextlib.AsyncExitStack) -> None:
    """A kubelet's shutdown leaves pods Running or Failed that are neither (also 109531, 98012)."""
    cluster = Cluster()
    cluster.condition("Ready", "True", "KubeletReady", "")
    cluster.node["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T03:00:00Z"
    shutdown = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": "Pod was terminated in response to imminent node shutdown.",
        "lastTransitionTime": "2026-01-02T02:59:00Z",
    }
    tombstone = {"metadata": {"name": "w", "uid": "u"}, "status": {"phase": "Failed", "reason": "Terminated", "conditions": [shutdown]}}
    running = {"metadata": {"name": "w", "uid": "v", "labels": {"shunter.dev/slot": "0"}}, "status": {"phase": "Running"}}
    cluster.pods = [tombstone, running]
    stack.enter_context(serving(cluster, heard.bench.clock))
    heard.bench.runtime.alive.clear()
    heard.bench.node.worker_ended("w", 9)  # as its pidfd tells
    heard.listen(cluster=cluster)
    while cluster.count("GET", "/api/v1/pods") < 3:
        await asyncio.sleep(0.02)
    view = await heard.view()
    assert view.notices == (), "what an earlier shutdown left says nothing of this one"
    assert view.workers == (), "its process is asked, whatever its pod says"


@pytest.mark.parametrize("lane", ["voluntary", "involuntary"])
@pytest.mark.parametrize(("kind", "ends"), [(OperationKind.MOVE, "freeze"), (OperationKind.PARK, "freeze"), (OperationKind.DRAIN, "drain")])
async def test_kubernetes_116965_the_router_comes_first(tmp_path: Path, kind: OperationKind, ends: str, lane: str) -> None:
    """Endpoints stay ready while a node shuts down, and requests are lost on it."""
    orders = await carried(world(tmp_path), kind, lane)
    assert orders.index(("a", "fence")) < orders.index(("a", ends))


async def test_kubernetes_116965_a_fenced_worker_is_out_of_discovery_while_it_still_serves(heard: Heard) -> None:
    bench = heard.bench
    await bench.source.fence(bench.step())
    assert (bench.serving.registered, bench.state(), bench.node.frozen) == (False, "fenced", {})


async def test_nvsentinel_911_a_fault_for_which_nothing_is_advised_is_a_persons(heard: Heard, stack: contextlib.AsyncExitStack) -> None:
    """A fatal check with the action NONE: cordoned for ever, and nobody came."""
    cluster = Cluster(unschedulable=True)
    message = "ErrorCode:DCGM_FR_PENDING PCI:0000:4f:00 Recommended Action=NONE;"
    cluster.condition("GpuInforomWatch", "True", "GpuInforomWatchIsNotHealthy", message)
    stack.enter_context(serving(cluster, heard.bench.clock))
    heard.listen(cluster=cluster, slots=(SlotSettings(index=0, pci=("0000:4f:00",)),))
    view = await heard.until(lambda v: v.node.problems)
    assert [(p.code, p.subject) for p in view.node.problems] == [("SH650", "n/0")]
    assert await heard.notices("rebalance", "rebalance n/0"), "hints, that move nothing by themselves"


def xid_line(number: int, xid: int, text: str) -> bytes:
    """A record of the kernel's log, made just now."""
    return f"4,{number},{time.monotonic() * 1e6:.0f},-;NVRM: Xid (PCI:0000:4f:00): {xid}, {text}\n".encode()


@pytest.mark.parametrize(("xid", "expected"), [(94, []), (109, ["gpu-failing n/0"]), (79, ["gpu-failing n/0"]), (63, ["rebalance n/0"])])
async def test_device_plugin_1974_one_table_says_what_an_xid_means_and_a_gpu_recovers(heard: Heard, xid: int, expected: list[str]) -> None:
    """94 condemned the GPU, 109 was ignored, and what was unhealthy stayed so for good (also 234, 1014; gpu-operator 1065)."""
    log = heard.bench.folder / "kmsg"
    os.mkfifo(log)
    kernel = os.open(log, os.O_RDWR | os.O_NONBLOCK)
    heard.listen(kernel_log=log, slots=(SlotSettings(index=0, pci=("0000:4f:00",)), SlotSettings(index=1)))
    os.write(kernel, xid_line(1, xid, "pid=1, name=w"))
    if expected:
        assert await heard.notices(*expected) == expected
        os.write(kernel, xid_line(2, 154, "GPU recovery action changed from 0x1 (Reset) to 0x0 (None)"))
    else:
        view = await heard.until(lambda v: v.node.problems)
        assert [(p.code, p.subject) for p in view.node.problems] == [("SH647", "n/0")], "whose process it was, a person is told"
    assert await heard.notices() == []
    os.close(kernel)


class Exporter(Service):
    """DCGM's, which tells the last XID of the one GPU for as long as it runs."""

    xid = 0

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        return 200, f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",pci_bus_id="00000000:4F:00.0"}} {self.xid}\n', {}


async def test_device_plugin_1014_a_gpu_that_was_reset_isnt_ill_for_ever_by_its_last_xid(
    heard: Heard, stack: contextlib.AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm, "EVERY_S", 0.02)
    exporter, log = Exporter(), heard.bench.folder / "kmsg"
    stack.enter_context(serving(exporter))
    os.mkfifo(log)
    kernel = os.open(log, os.O_RDWR | os.O_NONBLOCK)
    stack.callback(os.close, kernel)
    heard.listen(kernel_log=log, dcgm=exporter.url, slots=(SlotSettings(index=0, pci=("0000:4f:00",)),))
    exporter.xid = 48
    view = await heard.until(lambda v: v.notices)
    assert [n.source for n in view.notices] == ["dcgm"], "the kernel's log is silent so far"
    os.write(kernel, xid_line(1, 154, "GPU recovery action changed from 0x1 (Reset) to 0x0 (None)"))
    assert await heard.notices() == []


def test_what_an_engine_is_told_of_canaries_is_no_notice() -> None:
    """Whatever an agent says there: it can't become one."""
    report = pb.NodeReport(node="n", canaries={"aws": NOW})
    view = view_of(report)
    assert (view.notices, view.node.canaries) == ((), {"aws": NOW})
