"""A reservation that an operation left behind never harms the worker that came by another one."""

from pathlib import Path

import pytest
from agent_fakes import PROCESS, SPEC, Bench, problem
from shunter.model.errors import Unknown
from shunter_agent.journal import Reservation
from shunter_agent.recovery import recover


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
