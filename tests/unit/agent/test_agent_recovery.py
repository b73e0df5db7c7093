"""Holds that end by themselves, and what a new agent makes of its predecessor's journal."""

from pathlib import Path

import pytest
from agent_fakes import PROCESS, SPEC, Bench, Gate, problem
from msgspec.structs import replace
from shunter.model.errors import Rejected, Retry, Stalled, Unknown
from shunter_agent import inventory
from shunter_agent.journal import Entry, WorkerRow
from shunter_agent.recovery import recover, start_missing
from shunter_agent.runtime.port import Process
from shunter_agent.settings import WorkerSettings


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


def entry(bench: Bench, step: str) -> Entry:
    found = bench.journal.entry("op", step)
    assert found is not None
    return found


async def frozen(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze(hold=60))


async def held(bench: Bench) -> None:
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore(hold=60))


async def restart(bench: Bench) -> None:
    """SIGKILL the agent and start another: what its drivers held goes back by itself, as the port promises."""
    for copy in bench.node.frozen.values():
        if copy.frozen.alive():
            copy.frozen.thaw()
    for kept in bench.node.held.values():
        bench.runtime.alive.discard(kept.held.process)
    bench.journal.close()
    bench.boot()
    await recover(bench.node, bench.destination, lambda _seconds: None)


class TestHolds:
    async def test_a_frozen_worker_runs_on_when_its_hold_ends(self, bench: Bench) -> None:
        await frozen(bench)
        bench.network.connected = False
        bench.clock.now += 59.9
        await bench.holds.expire()
        assert bench.state() == "frozen"
        bench.clock.now += 0.1
        await bench.holds.expire()
        assert (bench.state(), PROCESS in bench.runtime.running) == ("running", True)
        assert (bench.serving.registered, bench.network.connected) == (True, True)
        assert (entry(bench, "freeze").state, entry(bench, "thaw").state) == ("undone", "done")
        with pytest.raises(Rejected) as error:
            await bench.source.release(bench.step())
        assert error.value.problem.code == "SH606"
        assert PROCESS in bench.runtime.alive

    async def test_the_engines_thaw_after_it_is_answered(self, bench: Bench) -> None:
        await frozen(bench)
        bench.clock.now += 61
        await bench.holds.expire()
        assert "hold ended" in (await bench.source.thaw(bench.step())).detail
        await bench.source.unfence(bench.step())
        assert bench.faults.done["thaw"] == 1

    async def test_a_hold_that_cannot_be_ended_yet_is_tried_again(self, bench: Bench) -> None:
        await frozen(bench)
        bench.clock.now += 61
        bench.faults.at["connect"] = Retry(problem())
        await bench.holds.expire()
        assert bench.state() == "frozen"
        del bench.faults.at["connect"]
        await bench.holds.expire()
        assert (bench.state(), PROCESS in bench.runtime.running) == ("running", True)

    async def test_a_held_copy_keeps_its_slot_for_as_long_as_its_hold_lasts(self, empty: Bench) -> None:
        """Settings may let a reservation lapse sooner than that."""
        await held(empty)
        empty.node.settings = replace(empty.node.settings, reservation=10.0)
        empty.clock.now += 59
        await empty.holds.expire()
        assert ("w" in empty.node.held, set(empty.journal.reservations())) == (True, {"n/0"})
        empty.clock.now += 1
        await empty.holds.expire()
        assert "w" not in empty.node.held

    async def test_a_hold_does_not_end_under_a_release(self, bench: Bench) -> None:
        import asyncio

        await frozen(bench)
        gate = Gate()
        bench.faults.at["release"] = gate
        releasing = asyncio.create_task(bench.source.release(bench.step()))
        await asyncio.to_thread(gate.reached.wait, 10)
        bench.clock.now += 1000
        await bench.holds.expire()
        gate.open()
        await releasing
        assert (bench.faults.done["thaw"], bench.state()) == (0, "none")

    async def test_a_hold_that_was_lost_is_noticed(self, bench: Bench) -> None:
        await frozen(bench)
        assert bench.runtime.frozen is not None
        bench.runtime.frozen.standing = False  # its driver died, and the worker runs on
        await bench.holds.expire()
        assert (bench.state(), bench.faults.done["thaw"]) == ("running", 1)

    async def test_a_worker_whose_hold_was_lost_counts_as_running_once_it_does(self, bench: Bench) -> None:
        """Its GPU memory isn't there yet, say: till then nobody may send it requests."""
        await frozen(bench)
        assert bench.runtime.frozen is not None
        bench.runtime.frozen.standing = False
        bench.faults.at["thaw"] = Unknown(problem("SH711"))
        await bench.holds.expire()
        assert (bench.state(), "w" in bench.node.frozen) == ("frozen", True)
        del bench.faults.at["thaw"]
        await bench.holds.expire()
        assert (bench.state(), "w" in bench.node.frozen) == ("running", False)

    async def test_a_worker_that_dies_while_frozen_is_gone(self, bench: Bench) -> None:
        await frozen(bench)
        bench.runtime.alive.clear()
        bench.clock.now += 61
        await bench.holds.expire()
        assert bench.state() == "none"

    async def test_a_held_copy_dies_when_its_hold_ends_and_can_be_restored_again(self, empty: Bench) -> None:
        await held(empty)
        empty.clock.now += 60
        await empty.holds.expire()
        assert (empty.runtime.alive, empty.node.held, entry(empty, "restore").state) == (set(), {}, "undone")
        with pytest.raises(Rejected):
            await empty.destination.resume(empty.step())
        await empty.destination.restore(empty.restore())
        await empty.destination.resume(empty.step())
        assert empty.state() == "fenced"

    async def test_a_reservation_lapses(self, empty: Bench) -> None:
        await empty.destination.prepare(empty.prepare())
        network = empty.network
        empty.clock.now += empty.settings.reservation
        await empty.holds.expire()
        assert (empty.journal.reservations(), network.exists) == ({}, False)


class TestRestart:
    async def test_a_running_worker_is_found_again(self, bench: Bench) -> None:
        await restart(bench)
        assert (bench.state(), bench.network.connected, bench.serving.registered) == ("running", True, True)

    async def test_a_frozen_worker_ran_on_and_is_put_back_into_traffic(self, bench: Bench) -> None:
        await frozen(bench)
        await restart(bench)
        assert (bench.state(), bench.serving.registered) == ("running", True)
        assert (entry(bench, "freeze").state, entry(bench, "thaw").state) == ("undone", "done")
        with pytest.raises(Rejected):
            await bench.source.release(bench.step())

    async def test_a_freeze_that_had_only_begun(self, bench: Bench) -> None:
        await bench.source.fence(bench.step())
        bench.journal.begin("op", "freeze", "w", 1.0)
        await restart(bench)
        assert (bench.state(), bench.serving.registered, entry(bench, "freeze").state) == ("running", True, "undone")

    async def test_a_fenced_worker_stays_fenced(self, bench: Bench) -> None:
        await bench.source.fence(bench.step())
        await restart(bench)
        assert (bench.state(), bench.serving.registered) == ("fenced", False)
        await bench.source.fence(bench.step())  # answered from the journal
        assert bench.faults.done["fence"] == 1

    async def test_a_worker_that_is_gone_is_lost(self, bench: Bench) -> None:
        bench.runtime.alive.clear()
        await restart(bench)
        assert bench.state() == "none"

    @pytest.mark.parametrize("finished", [True, False])
    async def test_a_release_that_had_begun(self, bench: Bench, finished: bool) -> None:
        await frozen(bench)
        bench.journal.begin("op", "release", "w", 1.0)
        if finished:
            bench.runtime.frozen.release()  # type: ignore[union-attr]
        await restart(bench)
        assert entry(bench, "release").state == ("done" if finished else "undone")
        assert inventory.copy_of(bench.node, "w") == ("none" if finished else "running")

    async def test_a_release_is_waited_for_while_the_driver_ends_the_worker(self, bench: Bench) -> None:
        await frozen(bench)
        bench.journal.begin("op", "release", "w", 1.0)
        bench.journal.close()
        bench.boot()
        await recover(bench.node, bench.destination, lambda _seconds: bench.runtime.alive.clear())
        assert (entry(bench, "release").state, bench.state()) == ("done", "none")

    async def test_a_held_copy_is_dead_and_its_slot_is_free(self, empty: Bench) -> None:
        await held(empty)
        await restart(empty)
        assert (empty.runtime.alive, empty.journal.reservations()) == (set(), {})
        assert {step: entry(empty, step).state for step in ("prepare", "restore")} == {"prepare": "undone", "restore": "undone"}
        await held(empty)

    @pytest.mark.parametrize("lives", [True, False])
    async def test_a_resume_that_had_begun(self, empty: Bench, lives: bool) -> None:
        await held(empty)
        empty.journal.begin("op", "resume", "w", 1.0)
        copy = empty.node.held.pop("w") if lives else empty.node.held["w"]
        await restart(empty)
        assert entry(empty, "resume").state == ("done" if lives else "undone")
        assert inventory.copy_of(empty.node, "w") == ("running" if lives else "none")
        assert (copy.held.process in empty.runtime.alive) == lives


class TestStarting:
    @pytest.fixture
    def named(self, empty: Bench) -> Bench:
        """Its settings name a worker, which was never started."""
        worker = WorkerSettings(worker="w", role="decode", graph="g", engine="vllm", address=SPEC.address, slot=0, command=("x",))
        empty.settings = replace(empty.settings, workers=(worker,))
        empty.journal.close()
        empty.boot()
        return empty

    async def test_a_worker_of_the_settings_is_started_once_in_a_nodes_life(self, named: Bench) -> None:
        await start_missing(named.node)
        assert (named.state(), named.network.connected, named.runtime.running) == ("running", True, {PROCESS})
        named.runtime.alive.clear()
        named.node.worker_ended("w", 9)
        await restart(named)
        await start_missing(named.node)  # it may be restored elsewhere by now
        assert (named.state(), named.faults.done["start"]) == ("none", 1)

    @pytest.mark.parametrize("at", ["start", "note_started", "put_worker", "begin to run", "resume", "change"])
    async def test_an_agent_killed_on_the_way_has_started_one_or_none(self, named: Bench, at: str) -> None:
        class Killed(BaseException):
            pass

        def kill(*_arguments: object, **_changes: object) -> None:
            raise Killed

        if at == "change":
            named.node.change = kill  # type: ignore[method-assign]
        elif at in ("note_started", "put_worker"):
            setattr(named.journal, at, kill)
        else:
            named.faults.at[at] = kill
        with pytest.raises(Killed):
            await start_missing(named.node)
        begun = set(named.runtime.running)
        named.faults.at.clear()
        named.runtime.agent_dies()
        await restart(named)
        await start_missing(named.node)
        row = named.journal.worker("w")
        assert row is not None
        assert (row.state, row.begun, named.journal.started("w")) == ("running", True, True)
        assert named.runtime.running == {PROCESS}
        assert named.faults.done["start"] == (1 if begun or at == "start" else 2), "a second one beside the first"

    @pytest.mark.parametrize("reserved", [False, True])
    async def test_none_is_started_where_another_has_come_meanwhile(self, named: Bench, reserved: bool) -> None:
        """It couldn't be started at first, and its slot was empty then."""
        other = replace(SPEC, worker="x")
        if reserved:
            message = named.prepare()
            message.order.worker = message.spec.worker = "x"
            await named.destination.prepare(message)
        else:
            process = Process(pid=PROCESS.pid + 1, started=3)
            named.runtime.alive.add(process)
            named.journal.put_worker(WorkerRow(spec=other, process=process, slot="n/0", incarnation=1))
        await start_missing(named.node)
        assert (named.faults.done["start"], "SH664" in named.said(), named.journal.worker("w")) == (0, True, None)

    async def test_nothing_runs_that_the_journal_does_not_take(self, named: Bench) -> None:
        def refuse(_row: WorkerRow) -> None:
            raise Stalled(problem("SH610"))

        named.journal.put_worker = refuse  # type: ignore[method-assign]
        await start_missing(named.node)
        assert "SH610" in named.said()
        assert (named.runtime.alive, named.faults.done["begin to run"], named.runtime.networks["w"].exists) == (set(), 0, False)
        await restart(named)
        await start_missing(named.node)
        assert (named.state(), named.runtime.running) == ("running", {PROCESS})

    async def test_one_whose_command_is_none_is_tried_again_by_the_next_agent(self, named: Bench) -> None:
        def fail() -> None:
            named.runtime.alive.clear()
            raise Stalled(problem("SH705"))

        named.faults.at["begin to run"] = fail
        await start_missing(named.node)
        assert "SH705" in named.said()
        assert (named.state(), named.runtime.networks["w"].exists, named.exits.watched) == ("none", False, {"w": PROCESS})
        named.faults.at.clear()
        await restart(named)
        await start_missing(named.node)
        assert (named.state(), named.runtime.running) == ("running", {PROCESS})

    async def test_one_about_which_an_order_came_is_not_started_again_whatever_the_journal_missed(self, named: Bench) -> None:
        def refuse(*_arguments: object, **_changes: object) -> None:
            raise Stalled(problem("SH610"))

        change, named.node.change = named.node.change, refuse  # type: ignore[method-assign]
        await start_missing(named.node)
        named.node.change = change  # type: ignore[method-assign]
        await frozen(named)
        named.runtime.running.clear()
        named.runtime.agent_dies()
        await restart(named)
        await start_missing(named.node)
        assert (named.state(), named.faults.done["start"]) == ("none", 1)


async def test_an_exit_is_told_and_frees_the_slot(bench: Bench) -> None:
    reader = bench.node.events.subscribe()
    network = bench.network
    bench.runtime.alive.clear()
    bench.node.worker_ended("w", -9)
    bench.node.events.close()
    events = [event async for event in reader]
    assert [(event.exit.worker, event.exit.status) for event in events] == [("w", -9)]
    assert (bench.state(), network.exists) == ("none", False)


async def test_an_exit_of_an_unknown_worker_is_nothing(bench: Bench) -> None:
    bench.journal.put_worker(WorkerRow(spec=replace(SPEC, worker="v"), process=Process(pid=1, started=1), slot="n/2", incarnation=0))
    bench.node.worker_ended("other", 0)
    assert set(bench.journal.workers()) == {"v", "w"}
