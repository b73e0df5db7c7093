"""Workers in pods: taken once, into a slot of theirs; never again after they left by an order, but when they ended by themselves."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
import pytest
from agent_fakes import PROCESS, SPEC, Bench, Gate, problem
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.pod import Pod
from shunter.wire import agent_pb2 as pb
from shunter_agent.convert import uses_message
from shunter_agent.inventory import report
from shunter_agent.preflight import Room, preflight
from shunter_agent.recovery import recover
from shunter_agent.residents import Residents
from shunter_agent.runtime.port import Contained, Found, Gpu, Housing, MemoryLimit, Process, Uses, WorkerSpec

HOME = Pod(namespace="serving", name="decode-0", uid="u-1", container="main")
NEW = Pod(namespace="serving", name="decode-0-new", uid="u-2", container="main")
LIVES = msgspec.structs.replace(SPEC, pod=HOME, mac="", address="10.88.0.2:9000", control="http://10.88.0.2:9090")


HOUSING = ("housed", "residents", "remarks", "memory_limits", "unfit")


class Houses:
    """What a driver says of pods."""

    def __init__(self) -> None:
        self.there: list[Found] = [Found(spec=LIVES, process=PROCESS)]
        self.fails: Exception | None = None
        self.limits: list[MemoryLimit] = []
        self.alike = Contained(image="engine:1", label="", points=("/",))

    def residents(self, but: Collection[str] = ()) -> Sequence[Found]:
        if self.fails is not None:
            raise self.fails
        self.looked = [one for one in self.there if one.spec.pod is not None and one.spec.pod.uid not in but]
        return self.looked

    def remarks(self, process: Process, spec: WorkerSpec) -> Sequence[str]:
        return ("2 connections would be reset",)

    def unfit(self, spec: WorkerSpec, container: Contained, pod: Pod) -> Problem | None:
        return None if container == self.alike else Problem(code="SH757", what="the images differ", remedy="-")

    def memory_limits(self, pod: Pod) -> Sequence[MemoryLimit]:
        return self.limits

    def housed(self, spec: WorkerSpec, pod: Pod) -> WorkerSpec:
        return msgspec.structs.replace(spec, pod=pod, mac="", address="10.88.0.3:9000", gpus=("0000:01:00",))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, worker=False)


def residents(bench: Bench, houses: Houses) -> Residents:
    return Residents(bench.node, houses, 1.0)


async def test_a_worker_in_a_pod_becomes_the_nodes(bench: Bench) -> None:
    await residents(bench, Houses()).look()
    row = bench.journal.worker("w")
    assert row is not None
    assert (row.spec.pod, row.process, row.slot, row.state) == (HOME, PROCESS, "n/0", "running")
    (said,) = (await report(bench.node)).workers
    assert (said.pod_uid, said.pod_namespace, said.pod_name, said.pod_container) == ("u-1", "serving", "decode-0", "main")


async def test_it_is_taken_once_and_not_again_after_an_order_has_ended_it(bench: Bench) -> None:
    look, houses = residents(bench, Houses()), Houses()
    await look.look()
    await bench.source.freeze(bench.freeze("op"))
    await bench.source.release(bench.step("op"))
    assert bench.journal.worker("w") is None
    houses.there = [Found(spec=LIVES, process=Process(pid=PROCESS.pid + 5, started=99))]  # the kubelet has started its container again
    bench.boot()
    await residents(bench, houses).look()
    assert bench.journal.worker("w") is None, "what the kubelet started again is taken for the worker that lives elsewhere"


async def test_one_that_ended_by_itself_comes_again(bench: Bench) -> None:
    houses = Houses()
    look = residents(bench, houses)
    for _ in range(3):
        await look.look()
    assert houses.looked == [], "a pod that was taken is looked for again and again"
    bench.runtime.alive.clear()
    bench.node.worker_ended("w", 1)
    again = Process(pid=PROCESS.pid + 5, started=99)
    houses.there = [Found(spec=LIVES, process=again)]
    await look.look()
    row = bench.journal.worker("w")
    assert row is not None
    assert row.process == again


@pytest.mark.parametrize("held", [True, False])
async def test_one_that_ended_while_it_stood_still_doesnt_come_again(bench: Bench, *, held: bool) -> None:
    """It is in its image then, and on its way elsewhere: what the kubelet starts is another worker under its name."""
    houses = Houses()
    look = residents(bench, houses)
    await look.look()
    await bench.source.freeze(bench.freeze("op"))
    if not held:
        await bench.source.thaw(bench.step("op"))
    bench.runtime.alive.clear()
    bench.node.worker_ended("w", -9)
    houses.there = [Found(spec=LIVES, process=Process(pid=PROCESS.pid + 5, started=99))]
    await look.look()
    assert (bench.journal.worker("w") is None) == held


@pytest.mark.parametrize("held", [True, False])
async def test_nor_does_one_that_ended_so_while_the_agent_was_away(bench: Bench, *, held: bool) -> None:
    """One that was only out of the router's sight has no image, and may."""
    houses = Houses()
    await residents(bench, houses).look()
    await bench.source.fence(bench.step("op"))
    if held:
        await bench.source.freeze(bench.freeze("op"))
    bench.runtime.alive.clear()
    bench.journal.close()
    bench.boot()
    await recover(bench.node, bench.destination)
    assert bench.journal.worker("w") is None
    houses.there = [Found(spec=LIVES, process=Process(pid=PROCESS.pid + 5, started=99))]
    await residents(bench, houses).look()
    assert (bench.journal.worker("w") is None) == held


async def test_without_a_slot_it_isnt_taken_and_that_is_said_once(bench: Bench) -> None:
    houses = Houses()
    houses.there = [
        Found(
            spec=msgspec.structs.replace(LIVES, worker=f"w{n}", pod=msgspec.structs.replace(HOME, uid=f"u-{n}")),
            process=Process(pid=PROCESS.pid + n, started=n),
        )
        for n in range(3)
    ]
    look = residents(bench, houses)
    await look.look()
    await look.look()
    assert sorted(bench.journal.workers()) == ["w0", "w1"], "of three slots one takes prefill workers alone"
    assert bench.said().count("SH679") == 1


async def test_one_that_has_the_name_of_another_namespaces_isnt_taken_and_that_is_said_once(bench: Bench) -> None:
    houses = Houses()
    look = residents(bench, houses)
    await look.look()
    other = Pod(namespace="other", name="decode-0", uid="u-9", container="main")
    houses.there = [Found(spec=msgspec.structs.replace(LIVES, pod=other), process=Process(pid=PROCESS.pid + 5, started=99))]
    for _ in range(2):
        await look.look()
    assert bench.node.row("w").spec.pod == HOME
    assert bench.said().count("the pod other/decode-0 isn't looked after") == 1


async def test_it_gets_the_slot_that_has_its_gpus(bench: Bench) -> None:
    def gpu(pci: str) -> Gpu:
        return Gpu(uuid=f"GPU-{pci}", model="H", pci=pci, memory=1, free=1)

    bench.node.slot_gpus = {"n/0": (gpu("a"),), "n/2": (gpu("b"),)}
    houses = Houses()
    houses.there = [Found(spec=msgspec.structs.replace(LIVES, gpus=("b",)), process=PROCESS)]
    await residents(bench, houses).look()
    assert bench.node.row("w").slot == "n/2"
    assert bench.node.row("w").spec.gpus == ("b",)


async def test_a_runtime_that_doesnt_answer_is_said_once(bench: Bench) -> None:
    houses = Houses()
    houses.fails = Retry(problem("SH760"))
    look = residents(bench, houses)
    await look.look()
    await look.look()
    assert bench.said().count("SH760") == 1


def prepare(pod: Pod | None) -> pb.PrepareOrder:
    order = pb.Order(operation="op", epoch=1, plan="p", worker="w", incarnation=0)
    spec = pb.WorkerSpec(worker="w", role="decode", graph="g", engine="vllm", address="10.88.0.2:9000")
    told = {"pod_uid": pod.uid, "pod_namespace": pod.namespace, "pod_name": pod.name, "pod_container": pod.container} if pod else {}
    return pb.PrepareOrder(order=order, slot="n/0", spec=spec, **told)


async def test_a_worker_is_prepared_for_as_it_will_be_in_its_pod(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    houses = Houses()
    for name in HOUSING:
        monkeypatch.setattr(bench.runtime, name, getattr(houses, name), raising=False)
    assert isinstance(bench.runtime, Housing)
    await bench.destination.prepare(prepare(NEW))
    kept = bench.journal.reservation("op")
    assert kept is not None
    assert (kept.spec.pod, kept.spec.address, kept.spec.gpus) == (NEW, "10.88.0.3:9000", ("0000:01:00",))
    for uid in ("", "u-9"):  # the engine means another pod than the one that it had prepared
        order = pb.RestoreOrder(order=prepare(NEW).order, slot="n/0", image="i", hold_s=9.0, pod_uid=uid)
        with pytest.raises(Rejected) as refused:
            await bench.destination.restore(order)
        assert refused.value.problem.code == "SH606"


async def test_a_pod_whose_limit_leaves_too_little_memory_is_not_prepared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is known once there is the pod. The worker is untouched then."""
    houses = Houses()
    for name in HOUSING:
        monkeypatch.setattr(bench.runtime, name, getattr(houses, name), raising=False)
    order = pb.PreflightOrder(order=bench.order(), destination=True, slot="n/0", bytes=10**9)
    assert not (await preflight(bench.node, order, lambda _node: Room(disk=None, memory=None))).refusals
    houses.limits = [MemoryLimit(path="/cg/pod/memory.max", most=2 * 10**9, left=1099 * 10**6)]
    with pytest.raises(Rejected) as refused:
        await bench.destination.prepare(prepare(NEW))
    assert (refused.value.problem.code, refused.value.problem.what) == (
        "SH657",
        "the worker needs about 1GB of memory and a margin of 10 %, /cg/pod/memory.max leaves 1.1GB",
    )
    assert not bench.journal.reservations()
    assert bench.runtime.networks == {}
    houses.limits = [MemoryLimit(path="/cg/pod/memory.max", most=2 * 10**9, left=11 * 10**8)]
    await bench.destination.prepare(prepare(NEW))


async def test_a_pod_that_is_not_like_the_workers_own_is_not_prepared(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is untouched then: what differs would else be found when it stands still."""
    houses = Houses()
    for name in HOUSING:
        monkeypatch.setattr(bench.runtime, name, getattr(houses, name), raising=False)
    order = prepare(NEW)
    order.container.image = "engine:2"
    with pytest.raises(Rejected) as refused:
        await bench.destination.prepare(order)
    assert refused.value.problem.code == "SH757"
    assert not bench.journal.reservations()
    order.container.CopyFrom(uses_message(Uses(container=houses.alike)).container)
    await bench.destination.prepare(order)


async def test_an_agent_without_containers_takes_no_worker_for_a_pod(bench: Bench) -> None:
    with pytest.raises(Rejected) as refused:
        await bench.destination.prepare(prepare(NEW))
    assert refused.value.problem.code == "SH680"
    assert not bench.journal.reservations()


async def test_what_a_move_costs_is_said_before_it_begins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    houses = Houses()
    for name in HOUSING:
        monkeypatch.setattr(bench.runtime, name, getattr(houses, name), raising=False)
    await residents(bench, houses).look()
    reply = await preflight(bench.node, pb.PreflightOrder(order=bench.order()))
    assert not reply.refusals
    assert "2 connections would be reset" in bench.said()


async def test_none_is_taken_into_a_slot_that_was_kept_for_another_meanwhile(bench: Bench) -> None:
    gate = Gate()
    bench.faults.at["network"] = gate
    looking = asyncio.create_task(residents(bench, Houses()).look())
    await asyncio.to_thread(gate.reached.wait, 10)
    del bench.faults.at["network"]
    message = bench.prepare()
    message.order.worker = message.spec.worker = "x"
    await bench.destination.prepare(message)
    gate.open()
    await looking
    assert (bench.journal.workers(), [kept.worker_id for kept in bench.journal.reservations().values()]) == ({}, ["x"])
