"""A reservation that an operation left behind never harms the worker that came by another one."""

import asyncio
from pathlib import Path

import pytest
from agent_fakes import PROCESS, SPEC, Bench, Gate, problem
from msgspec.structs import replace
from shunter.model.errors import Rejected, Retry, Unknown
from shunter.wire import agent_pb2 as pb
from shunter_agent.depot import ImageFacts
from shunter_agent.journal import Reservation
from shunter_agent.recovery import recover
from shunter_agent.runtime.port import WorkerSpec


@pytest.fixture
def empty(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, worker=False)
    bench.runtime.alive.clear()
    bench.runtime.running.clear()
    bench.give_image()
    return bench


def stale(bench: Bench) -> Reservation:
    return Reservation(slot="n/0", operation="op1", epoch=1, spec=SPEC, incarnation=1, at=bench.clock.now)


async def arrive(bench: Bench) -> None:
    await bench.destination.prepare(bench.prepare("n/2", "op2", epoch=2))
    order = bench.restore("op2")
    order.slot, order.order.epoch = "n/2", 2
    await bench.destination.restore(order)
    await bench.destination.resume(bench.step("op2", epoch=2))


async def test_prepare_frees_what_was_kept_for_the_worker_in_another_slot(empty: Bench) -> None:
    await empty.destination.prepare(empty.prepare("n/0", "op1", epoch=1))
    await empty.destination.prepare(empty.prepare("n/2", "op2", epoch=2))
    assert {slot: kept.operation for slot, kept in empty.journal.reservations().items()} == {"n/2": "op2"}
    assert empty.network.exists


def other(bench: Bench) -> tuple[pb.PrepareOrder, pb.RestoreOrder]:
    """Orders of a newer leader about another worker, `v`, to the same slot."""
    spec, order = replace(SPEC, worker="v"), bench.order("op2", epoch=2, worker="v")
    bench.depot.whole["other"] = ImageFacts(id="other", spec=spec, incarnation=0, taken_at=1.0, bytes=100)
    message = pb.WorkerSpec(worker="v", role="decode", graph="g", engine="vllm", address="10.0.0.2:9000", mac="02:00:00:00:00:02")
    return pb.PrepareOrder(order=order, slot="n/0", spec=message), pb.RestoreOrder(order=order, slot="n/0", image="other", hold_s=60)


async def test_a_slot_in_which_an_old_leaders_copy_is_being_made_is_not_taken(empty: Bench) -> None:
    await empty.destination.prepare(empty.prepare())
    gate = Gate()
    empty.faults.at["restore"] = gate
    restoring = asyncio.create_task(empty.destination.restore(empty.restore()))
    await asyncio.to_thread(gate.reached.wait, 10)
    prepare, _restore = other(empty)
    with pytest.raises(Retry, match="SH605"):
        await empty.destination.prepare(prepare)
    assert empty.network.exists
    gate.open()
    await restoring
    (kept,) = empty.journal.reservations().values()
    assert (kept.worker_id, kept.process, "w" in empty.node.held) == ("w", empty.node.held["w"].held.process, True)
    with pytest.raises(Retry, match="SH605"):  # it stands still now, and goes back by itself
        await empty.destination.prepare(prepare)


async def test_a_slot_that_an_old_leader_left_reserved_is_taken_and_its_orders_come_too_late(empty: Bench) -> None:
    await empty.destination.prepare(empty.prepare())
    prepare, restore = other(empty)
    gate = Gate()
    empty.faults.at["destroy"] = gate
    preparing = asyncio.create_task(empty.destination.prepare(prepare))
    await asyncio.to_thread(gate.reached.wait, 10)
    late = asyncio.create_task(empty.destination.restore(empty.restore()))  # of the worker whose reservation is just being freed
    with pytest.raises(Rejected, match="SH601"):
        await late
    gate.open()
    await preparing
    await empty.destination.restore(restore)
    assert ({kept.worker_id for kept in empty.journal.reservations().values()}, list(empty.node.held)) == ({"v"}, ["v"])


async def test_two_that_prepare_one_slot_at_once_do_not_both_have_it(empty: Bench) -> None:
    """The first one's pod takes a while to be found; the second one's slot isn't taken from it then."""
    prepare, _restore = other(empty)
    gate = asyncio.Event()

    async def housed(spec: WorkerSpec, message: pb.PrepareOrder) -> WorkerSpec:
        await gate.wait()
        return spec

    empty.destination._housed = housed  # type: ignore[method-assign]
    order = empty.prepare()
    order.pod_uid = "u"
    slow = asyncio.create_task(empty.destination.prepare(order))
    await asyncio.sleep(0)
    prepare.order.epoch = 1
    await empty.destination.prepare(prepare)
    gate.set()
    with pytest.raises(Retry, match="SH605"):
        await slow
    assert {kept.worker_id for kept in empty.journal.reservations().values()} == {"v"}


async def test_a_reservation_that_lapses_leaves_the_workers_network(empty: Bench) -> None:
    await arrive(empty)
    empty.journal.put_reservation(stale(empty))  # as an older agent's journal may have it
    network = empty.network
    empty.clock.now += empty.settings.reservation + 1
    await empty.holds.expire()
    assert (empty.journal.reservations(), empty.state(), len(empty.runtime.running)) == ({}, "fenced", 1)
    assert (network.exists, network.connected, empty.node.networks) == (True, True, {"w": network})


async def test_an_abort_of_another_operation_leaves_the_held_copy(empty: Bench) -> None:
    await empty.destination.prepare(empty.prepare())
    await empty.destination.restore(empty.restore())
    empty.journal.put_reservation(
        Reservation(slot="n/2", operation="old", epoch=1, spec=SPEC, incarnation=1, at=empty.clock.now, process=None)
    )
    await empty.destination.free(empty.journal.reservations()["n/2"], "aborted")
    assert ("w" in empty.node.held, empty.network.exists) == (True, True)
    await empty.destination.resume(empty.step())
    assert len(empty.runtime.running) == 1


async def test_a_start_with_a_stale_reservation_leaves_the_workers_network(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.journal.put_reservation(
        Reservation(slot="n/2", operation="op1", epoch=1, spec=SPEC, incarnation=1, at=bench.clock.now, process=None)
    )
    bench.boot()
    await recover(bench.node, bench.destination)
    assert (bench.journal.reservations(), bench.faults.done["network"]) == ({}, 1)
    assert (bench.network.exists, bench.network.connected, PROCESS in bench.runtime.running) == (True, True, True)


async def test_one_reservation_that_will_not_lapse_does_not_end_the_holds(empty: Bench) -> None:
    await empty.destination.prepare(empty.prepare())
    kept = empty.journal.reservations()["n/0"]
    empty.runtime.alive.add(PROCESS)
    empty.journal.put_reservation(Reservation(**{**{f: getattr(kept, f) for f in kept.__struct_fields__}, "process": PROCESS}))
    empty.faults.at["end"] = Unknown(problem("SH707"))
    empty.clock.now += empty.settings.reservation + 1
    await empty.holds.expire()
    assert list(empty.journal.reservations()) == ["n/0"]
    empty.faults.at.clear()
    await empty.holds.expire()
    assert (empty.journal.reservations(), empty.runtime.alive) == ({}, set())
