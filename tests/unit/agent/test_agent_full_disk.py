"""The journal's disk fills up after an effect: never is a worker run twice, lost, or left standing because of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from agent_fakes import PROCESS, SPEC, Bench, FakeHeld, Gate, problem
from msgspec.structs import replace
from shunter.act.port import copy_view
from shunter.act.resolve import Action, Resolution, resolve
from shunter.model.errors import Rejected, Stalled, Unknown
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.wire import agent_pb2 as pb
from shunter_agent import inventory
from shunter_agent.agent import let_go
from shunter_agent.journal import WorkerRow
from shunter_agent.orders import carry
from shunter_agent.refusals import Undone
from shunter_agent.runtime.port import Process
from shunter_agent.server import status_of

ALL = ("put_worker", "drop_worker", "put_reservation", "drop_reservation", "begin", "done", "failed", "undo")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, worker=False)
    bench.runtime.alive.clear()
    bench.runtime.running.clear()
    bench.give_image()
    return bench


def full(bench: Bench, *names: str) -> Callable[[], None]:
    def refuse(*_arguments: object) -> None:
        raise Stalled(problem("SH610"))

    def fill() -> None:
        for name in names or ALL:
            setattr(bench.journal, name, refuse)

    return fill


def mend(bench: Bench) -> None:
    for name in ALL:
        bench.journal.__dict__.pop(name, None)
    bench.faults.at.clear()


def entry(bench: Bench, step: str) -> str:
    found = bench.journal.entry("op", step)
    return found.state if found else "never"


async def frozen(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze())


async def held(bench: Bench) -> None:
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())


@pytest.mark.parametrize("names", [("put_worker",), ALL], ids=["for a moment", "for long"])
async def test_a_copy_that_runs_without_a_row_is_ended_and_can_be_restored_again(empty: Bench, names: tuple[str, ...]) -> None:
    await held(empty)
    empty.faults.at["resume"] = full(empty, *names)
    with pytest.raises(Unknown) as error:
        await empty.destination.resume(empty.step())
    assert status_of(error.value) is grpc.StatusCode.UNKNOWN
    assert (empty.runtime.running, empty.runtime.alive, empty.network.connected) == (set(), set(), False)
    assert (inventory.copy_of(empty.node, "w"), empty.state()) == ("none", "none")
    mend(empty)
    await empty.destination.abort(empty.step())
    await held(empty)
    await empty.destination.resume(empty.step())
    assert (len(empty.runtime.running), empty.state()) == (1, "fenced")


async def engines_way(bench: Bench) -> Resolution:
    """What an engine makes of it whose move has ended the source's copy, and that got no answer from here."""
    planned = PlannedOperation(
        id=OperationId("op"), kind=OperationKind.MOVE, worker=WorkerId("w"), lane="voluntary", policy=PolicyName("p"), reason="r",
        from_slot=SlotId("m/0"), to_slot=SlotId("n/0"), expect=Preconditions(incarnation=Incarnation(0)),
    )  # fmt: skip
    steps = tuple(
        (step, 0.0) for step in (Step.INTENDED, Step.PREPARED, Step.FENCED, Step.FROZEN, Step.HELD, Step.COMMITTING, Step.RELEASED)
    )
    record = OperationRecord(planned=planned, plan=Digest("sha256:0"), epoch=Epoch(1), created_at=0.0, step=Step.RELEASED, history=steps)
    return resolve(record, None, copy_view(await inventory.journal(bench.node, "op")))


@pytest.fixture
async def unanswered(empty: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A copy that runs and was probed, when the journal took no more."""
    monkeypatch.setattr(carry, "OWED_S", 0.0)
    await held(empty)
    empty.faults.at["probe"] = full(empty, "done")
    with pytest.raises(Unknown):
        await empty.destination.resume(empty.step())
    assert (inventory.copy_of(empty.node, "w"), entry(empty, "resume")) == ("running", "begun")
    assert (await engines_way(empty)).action is Action.WAIT
    return empty


async def owed_ended(bench: Bench) -> None:
    async with asyncio.timeout(10):
        await asyncio.gather(*bench.node._kept)


async def test_the_answer_of_a_resume_that_could_not_be_written_is_written_once_it_can(unanswered: Bench) -> None:
    """Its engine waits for that, and would until this agent's next start: the worker runs, and no router sees it."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert entry(unanswered, "resume") == "begun"
    mend(unanswered)
    await owed_ended(unanswered)
    found = await engines_way(unanswered)
    assert (found.action, found.step) == (Action.GO_ON, Step.RESUMED)
    again = await unanswered.destination.resume(unanswered.step())
    assert (again.probe, unanswered.faults.done["resume"]) == ("probed", 1)
    await unanswered.source.unfence(unanswered.step())
    assert (unanswered.state(), unanswered.serving.registered) == ("running", True)


async def test_an_answer_is_not_written_late_about_a_worker_that_is_gone(unanswered: Bench) -> None:
    (process,) = unanswered.runtime.running
    unanswered.runtime.alive.clear()
    unanswered.runtime.running.clear()
    mend(unanswered)
    unanswered.node.worker_ended("w", 9)
    await owed_ended(unanswered)
    assert (entry(unanswered, "resume"), process in unanswered.runtime.alive) == ("undone", False)
    assert (await engines_way(unanswered)).action is Action.GO_ON, "it is restored from its image once more"


async def test_a_copy_that_runs_without_a_row_and_will_not_die_is_no_none_and_abort_ends_it(empty: Bench) -> None:
    await held(empty)

    def stubborn() -> None:
        full(empty, "put_worker")()
        empty.faults.at["end"] = Unknown(problem("SH707"))

    empty.faults.at["resume"] = stubborn
    with pytest.raises(Unknown):
        await empty.destination.resume(empty.step())
    assert inventory.copy_of(empty.node, "w") == "held"
    with pytest.raises(Unknown):
        await empty.destination.abort(empty.step())
    assert len(empty.runtime.running) == 1
    mend(empty)
    await empty.destination.abort(empty.step())
    assert (empty.runtime.running, inventory.copy_of(empty.node, "w"), empty.journal.reservations()) == (set(), "none", {})


async def test_a_network_that_will_not_leave_keeps_no_failed_copy_alive(empty: Bench) -> None:
    await held(empty)

    def fail() -> None:
        empty.faults.at["disconnect"] = OSError("busy")
        raise Rejected(problem("SH631"))

    empty.faults.at["probe"] = fail
    with pytest.raises(Unknown):
        await empty.destination.resume(empty.step())
    assert empty.runtime.running == set()


@pytest.mark.parametrize("names", [("drop_worker",), ALL], ids=["for a moment", "for long"])
async def test_a_worker_that_was_released_is_known_dead_and_leaves_once_that_can_be_written(bench: Bench, names: tuple[str, ...]) -> None:
    await frozen(bench)
    bench.faults.at["release"] = full(bench, *names)
    with pytest.raises(Unknown):
        await bench.source.release(bench.step())
    assert (PROCESS in bench.runtime.alive, inventory.copy_of(bench.node, "w")) == (False, "none")
    await bench.holds.expire()
    assert bench.state() == "frozen"  # the journal still can't be written
    mend(bench)
    await bench.holds.expire()
    assert (bench.state(), entry(bench, "release"), bench.node.leaving) == ("none", "done", {})
    assert (await bench.source.release(bench.step())).detail == "ended; its image is kept"
    assert bench.faults.done["release"] == 1


async def test_a_drained_worker_whose_end_cannot_be_written_is_not_told_to_run(bench: Bench) -> None:
    bench.faults.at["end"] = full(bench, "drop_worker")
    with pytest.raises(Unknown):
        await bench.source.drain(bench.step(), 5.0)
    assert inventory.copy_of(bench.node, "w") == "none"
    mend(bench)
    await bench.holds.expire()
    assert (bench.state(), entry(bench, "drain")) == ("none", "done")


@pytest.mark.parametrize("process", [Process(pid=PROCESS.pid + 1, started=9), PROCESS], ids=["a new process", "the same process"])
async def test_a_leave_that_is_due_spares_a_worker_that_came_back(bench: Bench, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(*_arguments: object) -> FakeHeld:
        bench.runtime.alive.add(process)
        return FakeHeld(bench.runtime, process)

    monkeypatch.setattr(bench.runtime, "restore", restore)
    await frozen(bench)
    await bench.source.release(bench.step())
    await bench.node.finish_background()
    bench.give_image()
    await bench.destination.prepare(bench.prepare(operation="back", epoch=2))
    order = bench.restore("back")
    order.order.epoch = 2
    await bench.destination.restore(order)
    await bench.destination.resume(bench.step("back", epoch=2))
    await bench.holds.expire()
    assert bench.state() == "fenced"


async def test_a_thaw_that_cannot_be_written_is_finished_by_the_end_of_its_hold(bench: Bench) -> None:
    await frozen(bench)
    bench.clock.now += 61
    bench.faults.at["thaw"] = full(bench)
    await bench.holds.expire()
    assert "w" in bench.node.frozen
    mend(bench)
    await bench.holds.expire()
    assert (bench.state(), bench.serving.registered, bench.node.frozen) == ("running", True, {})
    assert (entry(bench, "freeze"), entry(bench, "thaw")) == ("undone", "done")
    assert inventory.copy_of(bench.node, "w") == "running"


async def test_a_freeze_whose_answer_cannot_be_written_is_no_refusal_and_can_be_thawed(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    bench.faults.at["commit"] = full(bench, "done")
    with pytest.raises(Unknown):
        await bench.source.freeze(bench.freeze())
    assert inventory.copy_of(bench.node, "w") == "frozen"
    mend(bench)
    await bench.source.thaw(bench.step())
    assert (bench.state(), PROCESS in bench.runtime.running) == ("fenced", True)


async def test_a_refusal_stays_one_when_it_cannot_be_written(bench: Bench) -> None:
    def refuse() -> None:
        full(bench, "failed")()
        raise Rejected(problem("SH701"))

    bench.faults.at["freeze"] = refuse
    with pytest.raises(Undone) as error:
        await bench.source.freeze(bench.freeze())
    assert error.value.problem.code == "SH701"


async def test_an_image_that_cannot_be_begun_leaves_the_worker_untouched_and_says_so(bench: Bench) -> None:
    bench.faults.at["begin"] = Stalled(problem("SH667"))
    with pytest.raises(Undone) as error:
        await bench.source.freeze(bench.freeze())
    assert (error.value.problem.code, bench.faults.done["freeze"], PROCESS in bench.runtime.running) == ("SH667", 0, True)


async def two_frozen(bench: Bench) -> Process:
    """`w` and another one; the other one's process."""
    other, process = "v", Process(pid=PROCESS.pid + 7, started=7)
    bench.runtime.alive.add(process)
    bench.journal.put_worker(WorkerRow(spec=replace(SPEC, worker=other), process=process, slot="n/2", incarnation=0))
    bench.node.networks[other] = bench.runtime.network(replace(SPEC, worker=other), process)
    await frozen(bench)
    order = bench.step("op-v", worker=other)
    await bench.source.fence(order)
    await bench.source.freeze(pb.FreezeOrder(order=order.order, image="image-op-v", hold_s=60.0))
    assert set(bench.node.frozen) == {"w", "v"}
    return process


async def test_an_agent_that_ends_on_a_full_disk_leaves_nobody_standing_still(bench: Bench) -> None:
    """The first of them can't be written down: that is no reason to leave the others to chance."""
    process = await two_frozen(bench)
    full(bench)()
    await let_go(bench.node, bench)  # type: ignore[arg-type]  # it has a service's parts
    assert {PROCESS, process} <= bench.runtime.running
    assert "SH610" in bench.said()


@pytest.mark.parametrize("error", [KeyError("w"), OSError("no descriptors")])
async def test_an_agent_that_ends_leaves_nobody_standing_for_what_nobody_foresaw_of_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    process, real = await two_frozen(bench), bench.source.end_hold

    async def end_hold(worker: str, why: str) -> None:
        if worker == "w":
            raise error
        await real(worker, why)

    monkeypatch.setattr(bench.source, "end_hold", end_hold)
    ended: list[None] = []
    bench.node.in_background(lambda: ended.append(None))
    await let_go(bench.node, bench)  # type: ignore[arg-type]
    assert process in bench.runtime.running
    assert type(error).__name__ in bench.said()
    assert ended, "it waits for what is going on all the same"


async def test_an_agent_that_ends_has_no_worker_let_run_by_two_at_once_nor_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hold ends at that moment, and the one that dies meanwhile isn't there any more."""
    process, gate = await two_frozen(bench), Gate()
    bench.faults.at["thaw"] = gate
    bench.clock.now += bench.node.frozen["w"].until
    holds = asyncio.create_task(bench.holds.run())
    async with asyncio.timeout(10):
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        holds.cancel()
        await asyncio.gather(holds, return_exceptions=True)
        ending = asyncio.create_task(let_go(bench.node, bench))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert bench.faults.done.get("thaw", 0) <= 2, "each of them once"
        gate.open()
        await ending
    assert bench.faults.done["thaw"] == 2
    assert {PROCESS, process} <= bench.runtime.running
    assert "couldn't be ended" not in bench.said()
