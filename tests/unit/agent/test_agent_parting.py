"""An operation that is over has no worker any more, also where no order ever says that it is over."""

from pathlib import Path

import pytest
from agent_fakes import Bench, Gate, problem
from msgspec.structs import replace
from shunter.model.errors import Rejected, Retry, ShunterError, Unknown
from shunter.wire import agent_pb2 as pb
from shunter_agent.recovery import recover


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def checkpoint(bench: Bench, operation: str) -> pb.CheckpointOrder:
    return pb.CheckpointOrder(order=bench.order(operation), image=f"image-{operation}")


async def free_for_another(bench: Bench) -> None:
    """Another operation of the same leader can have the worker, and put it back into traffic."""
    await bench.source.fence(bench.step("later"))
    await bench.source.unfence(bench.step("later"))
    assert (bench.state(), bench.serving.registered) == ("running", True)


async def test_an_unfence_that_is_refused_for_good_ends_its_operation_here(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    bench.faults.at["unfence"] = Rejected(problem("SH621"))
    with pytest.raises(Rejected):
        await bench.source.unfence(bench.step())
    assert bench.state() == "fenced"
    del bench.faults.at["unfence"]
    await free_for_another(bench)


async def test_the_same_operation_may_still_unfence_what_it_was_refused(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    bench.faults.at["unfence"] = Rejected(problem("SH621"))
    with pytest.raises(Rejected):
        await bench.source.unfence(bench.step())
    del bench.faults.at["unfence"]
    await bench.source.unfence(bench.step())
    assert (bench.state(), bench.serving.registered) == ("running", True)


async def test_a_restored_worker_that_cannot_be_unfenced_is_free_for_another_operation(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.runtime.alive.clear()
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())
    await bench.destination.resume(bench.step())
    bench.faults.at["unfence"] = Rejected(problem("SH621"))
    with pytest.raises(Rejected):
        await bench.source.unfence(bench.step())
    del bench.faults.at["unfence"]
    await bench.source.fence(bench.step("later", incarnation=1))


@pytest.mark.parametrize("error", [Retry(problem("SH622")), Unknown(problem())])
async def test_an_unfence_that_was_put_off_keeps_its_worker_from_nobody_and_what_another_hides_stays_hidden(
    bench: Bench, error: ShunterError
) -> None:
    await bench.source.fence(bench.step())
    bench.faults.at["unfence"] = error
    with pytest.raises(type(error)):
        await bench.source.unfence(bench.step())
    await bench.source.fence(bench.step("later"))
    del bench.faults.at["unfence"]
    with pytest.raises(Retry, match="SH605"):
        await bench.source.unfence(bench.step())
    assert (bench.state(), bench.serving.registered) == ("fenced", False)
    await bench.source.unfence(bench.step("later"))
    assert (bench.state(), bench.serving.registered) == ("running", True)


async def test_a_restored_worker_whose_unfence_was_put_off_is_shown_by_nobody_who_has_let_go_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.runtime.alive.clear()
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())
    await bench.destination.resume(bench.step())
    bench.faults.at["unfence"] = Retry(problem("SH622"))
    with pytest.raises(Retry, match="SH622"):
        await bench.source.unfence(bench.step())
    del bench.faults.at["unfence"]
    await bench.source.fence(bench.step("later", incarnation=1))
    with pytest.raises(Retry, match="SH605"):
        await bench.source.unfence(bench.step())
    assert not bench.serving.registered


async def test_a_refused_unfence_of_a_worker_that_stands_still_keeps_it(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze())
    with pytest.raises(Rejected, match="SH606"):
        await bench.source.unfence(bench.step())
    with pytest.raises(Retry, match="SH605"):
        await bench.source.fence(bench.step("later"))


@pytest.mark.parametrize("requests", [3, None], ids=["busy", "nobody knows"])
async def test_a_drain_that_is_given_up_leaves_the_worker_to_others(bench: Bench, requests: int | None) -> None:
    if requests is None:
        bench.faults.at["inflight"] = ZeroDivisionError()
    else:
        bench.serving.requests = requests
    with pytest.raises((Rejected, Unknown)):
        await bench.source.drain(bench.step(), 0.0)
    assert bench.state() == "fenced"
    await free_for_another(bench)


async def test_a_checkpoint_of_a_fenced_worker_leaves_it_to_others(bench: Bench) -> None:
    row = bench.journal.worker("w")
    assert row is not None
    bench.journal.put_worker(replace(row, state="fenced"))
    await bench.source.checkpoint(checkpoint(bench, "op"))
    assert bench.state() == "fenced"
    await free_for_another(bench)


@pytest.mark.parametrize(("call", "error"), [("freeze", Rejected(problem("SH701"))), ("freeze", Unknown(problem("SH712")))])
async def test_a_checkpoint_that_fails_leaves_it_to_others_too(bench: Bench, call: str, error: ShunterError) -> None:
    bench.faults.at[call] = error
    with pytest.raises(type(error)):
        await bench.source.checkpoint(checkpoint(bench, "op"))
    await free_for_another(bench)


async def test_a_checkpoint_whose_worker_could_not_be_let_go_keeps_it_until_it_runs(bench: Bench) -> None:
    bench.faults.at["thaw"] = Unknown(problem("SH711"))
    with pytest.raises(Unknown):
        await bench.source.checkpoint(checkpoint(bench, "op"))
    with pytest.raises(Retry, match="SH605"):
        await bench.source.fence(bench.step("later"))
    del bench.faults.at["thaw"]
    await bench.holds.expire()
    await free_for_another(bench)


async def test_an_agent_that_died_in_a_checkpoint_leaves_the_worker_to_others(bench: Bench) -> None:
    import asyncio

    gate = Gate()
    bench.faults.at["freeze"] = gate
    going = asyncio.create_task(bench.source.checkpoint(checkpoint(bench, "op")))
    await asyncio.to_thread(gate.reached.wait, 10)
    bench.journal.close()  # what comes after this isn't written any more
    old = bench.orders
    bench.boot()
    await recover(bench.node, bench.destination, lambda _seconds: None)
    gate.open()
    await asyncio.gather(going, return_exceptions=True)
    await old.close()
    bench.faults.at.clear()
    await free_for_another(bench)
