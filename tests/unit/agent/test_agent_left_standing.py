"""A worker that stood still when its agent died is found, let run, connected, and only then shown to the router. No other waits for it."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_fakes import PROCESS, SPEC, Bench, FakeNetwork, Gate, problem
from shunter.model.errors import Rejected, Retry, Stalled, Unknown
from shunter.wire import agent_pb2 as pb
from shunter_agent import inventory, recovery
from shunter_agent.journal import WorkerRow
from shunter_agent.orders.settling import AGAIN_S, SHOW_AGAIN_S
from shunter_agent.recovery import recover
from shunter_agent.runtime.port import Process
from test_agent_full_disk import full, mend

COPY = Process(pid=PROCESS.pid + 1, started=9)


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


async def agent_dies(bench: Bench, within_s: float = 10.0) -> None:
    """The agent is killed, and whoever held the worker isn't, or is as well: it stands still, and nobody lets it go by himself."""
    bench.journal.close()
    bench.boot()
    await recover(bench.node, bench.destination, lambda _seconds: None, within_s)


async def frozen(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze(hold=60))


async def releasing(bench: Bench) -> None:
    """The agent dies between its taking the worker's network away and its end."""
    await frozen(bench)
    bench.journal.begin("op", "release", "w", 1.0)


def step(bench: Bench, name: str) -> str:
    entry = bench.journal.entry("op", name)
    return entry.state if entry is not None else ""


def is_back(bench: Bench) -> bool:
    return (bench.state(), PROCESS in bench.runtime.running, bench.network.connected, bench.serving.registered) == (
        "running",
        True,
        True,
        True,
    )


class TestOneWorker:
    async def test_it_runs_is_connected_and_then_shown_to_the_router(self, bench: Bench) -> None:
        await frozen(bench)
        bench.faults.order.clear()
        await agent_dies(bench)
        assert is_back(bench)
        order = [call for call in bench.faults.order if call in ("settle", "connect", "unfence")]
        assert order == ["settle", "connect", "unfence"]
        assert {name: step(bench, name) for name in ("fence", "freeze", "thaw")} == {"fence": "undone", "freeze": "undone", "thaw": "done"}

    @pytest.mark.parametrize("began", [frozen, releasing])
    async def test_while_it_stands_still_it_is_neither_shown_nor_connected_nor_said_to_run(self, bench: Bench, began) -> None:  # type: ignore[no-untyped-def]
        await began(bench)
        bench.faults.at["settle"] = Retry(problem("SH713"))
        bench.faults.order.clear()
        await agent_dies(bench)
        for _ in range(3):
            bench.clock.now += AGAIN_S
            await bench.holds.expire()
        assert (bench.state(), inventory.copy_of(bench.node, "w")) == ("frozen", "frozen")
        assert not {"connect", "unfence"} & set(bench.faults.order)
        assert step(bench, "thaw") == ""
        assert [waited for _, waited in bench.runtime.settled] == [0.0, 1.0, 2.0, 3.0], "whoever holds it is told how long that lasts"
        del bench.faults.at["settle"]
        bench.clock.now += AGAIN_S
        await bench.holds.expire()
        assert is_back(bench)
        assert (step(bench, "thaw"), inventory.copy_of(bench.node, "w")) == ("done", "running")

    async def test_a_release_that_its_driver_still_finishes_is_done(self, bench: Bench) -> None:
        await releasing(bench)
        bench.faults.at["settle"] = Retry(problem("SH713"))
        await agent_dies(bench)
        assert step(bench, "release") == "begun", "nobody knows yet"
        bench.runtime.alive.clear()
        bench.clock.now += AGAIN_S
        await bench.holds.expire()
        assert (bench.state(), step(bench, "release"), bench.node.unsettled) == ("none", "done", {})
        assert bench.faults.done["connect"] == 0, "nothing of its death reaches its peers"

    async def test_a_copy_whose_end_was_ordered_is_ended_when_the_other_one_is_heard_of(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its node was declared gone, but only its agent was dead: run on, and there are two."""
        await releasing(bench)
        monkeypatch.setattr(FakeNetwork, "answered", True)
        bench.faults.order.clear()
        await agent_dies(bench)
        assert (bench.state(), bench.runtime.alive, bench.node.unsettled, step(bench, "release")) == ("none", set(), {}, "done")
        assert bench.faults.order[:5] == ["network", "disconnect", "elsewhere", "end", "destroy"], "it was never connected again"
        assert (await bench.source.release(bench.step())).detail == "found ended when the agent came back"

    async def test_nobody_is_asked_where_nothing_was_committed(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has been connected all the time, and would hear itself."""
        await frozen(bench)
        monkeypatch.setattr(FakeNetwork, "answered", True)
        await agent_dies(bench)
        assert is_back(bench)
        assert not {"elsewhere", "disconnect"} & set(bench.faults.order)

    async def test_a_copy_whose_end_was_ordered_and_of_which_nobody_hears_runs_on(self, bench: Bench) -> None:
        await releasing(bench)
        await agent_dies(bench)
        assert is_back(bench)
        assert bench.faults.done["elsewhere"] == 1
        assert step(bench, "release") == "undone"

    async def test_a_worker_that_does_not_register_is_asked_again(self, bench: Bench) -> None:
        """Once more is not enough: it was forgotten then, and stayed hidden for good."""
        await frozen(bench)
        bench.faults.at["unfence"] = Retry(problem("SH622"))
        await agent_dies(bench)
        assert (bench.state(), inventory.copy_of(bench.node, "w"), bench.serving.registered) == ("fenced", "running", False)
        bench.clock.now += SHOW_AGAIN_S
        await bench.holds.expire()
        assert bench.state() == "fenced"
        del bench.faults.at["unfence"]
        bench.clock.now += SHOW_AGAIN_S
        await bench.holds.expire()
        assert is_back(bench)

    async def test_its_own_operation_lets_it_run_at_once(self, bench: Bench) -> None:
        await frozen(bench)
        bench.faults.at["settle"] = Retry(problem("SH713"))
        await agent_dies(bench)
        with pytest.raises(Retry, match="SH713"):
            await bench.source.thaw(bench.step())
        assert bench.state() == "frozen"
        with pytest.raises(Rejected, match="SH606"):
            await bench.source.release(bench.step())
        del bench.faults.at["settle"]
        await bench.source.thaw(bench.step())
        assert is_back(bench)

    async def test_others_have_to_wait_unless_they_end_it(self, bench: Bench) -> None:
        await frozen(bench)
        bench.faults.at["settle"] = Unknown(problem("SH742"))
        await agent_dies(bench)
        for order in (bench.source.fence, bench.source.thaw):
            with pytest.raises(Retry, match="SH613"):
                await order(bench.step("later", epoch=2))
        await bench.source.retire(bench.step("later", epoch=2))
        assert (bench.state(), bench.runtime.alive, bench.node.unsettled) == ("none", set(), {})

    async def test_one_that_dies_while_it_stands_still_leaves(self, bench: Bench) -> None:
        await frozen(bench)
        bench.faults.at["settle"] = Retry(problem("SH713"))
        await agent_dies(bench)
        bench.runtime.alive.clear()
        bench.node.worker_ended("w", -9)
        bench.clock.now += AGAIN_S
        await bench.holds.expire()
        assert (bench.state(), bench.node.unsettled) == ("none", {})

    async def test_what_others_had_stopped_stays_so(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        from shunter_agent.runtime import process

        monkeypatch.setattr(process, "stopped", lambda _process: frozenset({77, 5}))
        await frozen(bench)
        await agent_dies(bench)
        assert bench.runtime.settled == [((5, 77), 0.0)]

    async def test_one_that_no_order_had_is_only_asked_for_its_gpu(self, bench: Bench) -> None:
        await agent_dies(bench)
        assert bench.runtime.settled == [(None, 0.0)], "whoever stopped it may have had a reason"
        assert is_back(bench)

    async def test_one_without_its_gpu_is_tried_again(self, bench: Bench) -> None:
        bench.faults.at["settle"] = Unknown(problem("SH742"))
        await agent_dies(bench)
        assert inventory.copy_of(bench.node, "w") == "frozen"
        with pytest.raises(Retry, match="SH613"):
            await bench.source.fence(bench.step())
        del bench.faults.at["settle"]
        bench.clock.now += AGAIN_S
        await bench.holds.expire()
        assert inventory.copy_of(bench.node, "w") == "running"
        await bench.source.fence(bench.step())

    @pytest.mark.parametrize("what", ["network", "connect"])
    async def test_a_network_that_cannot_be_had_now_is_tried_again(self, bench: Bench, what: str) -> None:
        bench.faults.at[what] = Retry(problem("SH706"))
        await agent_dies(bench)
        assert "SH706" in bench.said()
        del bench.faults.at[what]
        bench.clock.now += AGAIN_S
        await bench.holds.expire()
        assert is_back(bench)

    async def test_a_checkpoint_is_no_exception(self, bench: Bench) -> None:
        gate = Gate()
        bench.faults.at["freeze"] = gate
        going = asyncio.create_task(bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(), image="image-op")))
        await asyncio.to_thread(gate.reached.wait, 10)
        bench.faults.at["settle"] = Retry(problem("SH713"))
        await agent_dies(bench)
        assert inventory.copy_of(bench.node, "w") == "frozen"
        del bench.faults.at["settle"]
        bench.clock.now += AGAIN_S
        await bench.holds.expire()
        assert is_back(bench)
        assert step(bench, "checkpoint") == "undone"
        gate.open()
        await asyncio.gather(going, return_exceptions=True)


class TestMany:
    @staticmethod
    def seven_more(bench: Bench) -> None:
        for n in range(1, 8):
            process = Process(pid=PROCESS.pid + 10 + n, started=n)
            bench.runtime.alive.add(process)
            spec = msgspec.structs.replace(SPEC, worker=f"w{n}")
            bench.journal.put_worker(
                WorkerRow(spec=spec, process=process, slot=f"n/{n}", incarnation=0, state="frozen", operation=f"op{n}", epoch=1)
            )
            bench.journal.begin(f"op{n}", "freeze", f"w{n}", 1.0)

    @staticmethod
    async def dies_unwritten(bench: Bench) -> None:
        """The worker dies while an agent that comes back settles it, and the disk takes no word of that."""
        gate = Gate()

        def dies() -> None:
            gate()
            raise Rejected(problem("SH710"))

        bench.faults.at["settle"] = dies
        await agent_dies(bench, within_s=0.05)
        full(bench, "drop_worker")()
        bench.runtime.alive.clear()
        gate.open()
        async with asyncio.timeout(10):
            while not bench.node.troubles:
                await asyncio.sleep(0.001)

    async def test_one_that_hangs_keeps_no_other_waiting_and_no_orders(self, bench: Bench) -> None:
        await frozen(bench)
        self.seven_more(bench)
        gate = Gate()

        def hangs() -> None:
            if bench.runtime.settled[-1:] and not gate.reached.is_set():
                gate()

        bench.faults.at["settle"] = hangs
        bench.journal.close()
        bench.boot()
        await asyncio.wait_for(recover(bench.node, bench.destination, lambda _seconds: None, within_s=0.3), 5)
        rows = bench.journal.workers()
        (late,) = bench.node.unsettled
        assert {name for name, row in rows.items() if row.state == "running"} == set(rows) - {late}
        assert f'"worker": "{late}"' in bench.said()
        other = next(name for name in rows if name != late)
        await bench.source.fence(bench.step("later", worker=other))
        waiting = asyncio.create_task(bench.source.fence(bench.step("later", worker=late)))
        await bench.holds.expire()
        assert not waiting.done()
        gate.open()
        await asyncio.wait_for(waiting, 5)
        assert bench.node.unsettled == {}

    async def test_what_the_disk_does_not_take_once_orders_are_taken_is_told_and_tried_again(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was logged once: a worker that had died stayed in its slot, and its engine waited for its end."""
        monkeypatch.setattr(recovery, "UNWRITTEN_S", 0.0)
        await releasing(bench)
        await self.dies_unwritten(bench)
        async with asyncio.timeout(10):
            said = (await inventory.report(bench.node)).troubles
            assert [(refusal.code, refusal.subject) for refusal in said] == [("SH610", "w")]
            mend(bench)
            while bench.node.troubles:
                await asyncio.sleep(0.001)
        assert (bench.state(), step(bench, "release")) == ("none", "done")

    async def test_an_agent_ends_in_time_though_a_worker_isnt_settled_and_orders_wait_for_it(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its disk is full, and nobody says how long: it was killed then, with what stood still on it."""
        monkeypatch.setattr(recovery, "UNWRITTEN_S", 0.0)
        await releasing(bench)
        self.seven_more(bench)
        await self.dies_unwritten(bench)
        async with asyncio.timeout(10):
            waiting = asyncio.create_task(bench.source.thaw(bench.step()))
            await asyncio.sleep(0)
            await bench.orders.close()
            with pytest.raises(Retry) as refused:
                await waiting
            await bench.node.finish_background()
        assert refused.value.problem.code == "SH607"
        assert step(bench, "thaw") == "", "nothing of it was begun"
        assert bench.node.troubles == (), "nobody tries it any more"
        mend(bench)
        await agent_dies(bench)
        assert (bench.state(), step(bench, "release")) == ("none", "done"), "the next agent does"

    async def test_a_try_whose_agent_ends_meanwhile_has_the_worker_until_its_thread_comes_back(self, bench: Bench) -> None:
        await frozen(bench)
        gate = bench.faults.at["settle"] = Gate()
        await agent_dies(bench, within_s=0.05)
        assert gate.reached.is_set()
        await bench.node.finish_background()
        bench.clock.now += 60.0
        tried = len(bench.runtime.settled)
        await bench.holds.expire()
        assert len(bench.runtime.settled) == tried, "two at it at once"
        gate.open()
        async with asyncio.timeout(10):
            while not is_back(bench):
                await asyncio.sleep(0.001)

    async def test_a_start_on_a_disk_that_takes_nothing_fails(self, bench: Bench) -> None:
        await releasing(bench)
        bench.runtime.alive.clear()
        bench.journal.close()
        bench.boot()
        full(bench, "drop_worker")()
        with pytest.raises(Stalled, match="SH610"):
            await recover(bench.node, bench.destination, lambda _seconds: None)

    async def test_all_are_tried_at_once(self, bench: Bench) -> None:
        await frozen(bench)
        self.seven_more(bench)
        import threading

        together = threading.Barrier(8, timeout=5)
        bench.faults.at["settle"] = lambda: void(together.wait())
        await agent_dies(bench)
        assert {row.state for row in bench.journal.workers().values()} == {"running"}


def void(_value: object) -> None:
    pass


class TestDestination:
    @staticmethod
    async def held(bench: Bench) -> None:
        await bench.destination.prepare(bench.prepare())
        await bench.destination.restore(bench.restore(hold=60))

    async def test_a_copy_that_was_being_made_is_known_and_ended(self, empty: Bench) -> None:
        """Its driver and the agent die while it is made: nobody has been told of it but the journal."""
        await empty.destination.prepare(empty.prepare())
        gate = Gate()
        empty.faults.at["restore"] = gate
        going = asyncio.create_task(empty.destination.restore(empty.restore()))
        await asyncio.to_thread(gate.reached.wait, 10)
        await asyncio.sleep(0)
        assert COPY in empty.runtime.alive
        del empty.faults.at["restore"]
        await agent_dies(empty)
        assert (empty.runtime.alive, empty.journal.reservations(), step(empty, "restore")) == (set(), {}, "undone")
        gate.open()
        await asyncio.gather(going, return_exceptions=True)

    async def test_a_copy_that_nobody_will_ever_let_run_is_not_the_worker(self, empty: Bench) -> None:
        await self.held(empty)
        empty.journal.begin("op", "resume", "w", 1.0)
        empty.runtime.never_ran.add(COPY)
        await agent_dies(empty)
        assert (empty.runtime.alive, empty.state(), step(empty, "resume"), step(empty, "restore")) == (set(), "none", "undone", "undone")
        await self.held(empty)
        empty.runtime.never_ran.clear()
        await empty.destination.resume(empty.step())
        assert empty.state() == "fenced"

    async def resuming_on_a_full_disk(self, empty: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """The copy runs, and its source has been released: it is the only one. That can't be written down, and the reservation is old."""
        monkeypatch.setattr(recovery, "UNWRITTEN_S", 0.0)
        await self.held(empty)
        empty.journal.begin("op", "resume", "w", 1.0)
        gate = empty.faults.at["settle"] = Gate()
        await agent_dies(empty, within_s=0.05)
        full(empty, "put_worker", "drop_reservation")()
        gate.open()
        async with asyncio.timeout(10):
            while not empty.node.troubles:
                await asyncio.sleep(0.001)
        empty.clock.now += empty.settings.reservation

    async def test_an_agent_that_ends_frees_nothing_of_a_copy_that_it_goes_on_trying_to_write_down(
        self, empty: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await self.resuming_on_a_full_disk(empty, monkeypatch)
        monkeypatch.setattr(empty.node, "may_live", lambda _process: False)  # not what keeps it here
        async with asyncio.timeout(10):
            waiting = asyncio.create_task(empty.destination.resume(empty.step()))
            await asyncio.sleep(0)
            await empty.orders.close()
            with pytest.raises(Retry):
                await waiting
            for _ in range(20):  # holds are looked at until the very end
                await empty.holds.expire()
                await asyncio.sleep(0)
            assert COPY in empty.runtime.running
            await empty.node.finish_background()
        mend(empty)
        await agent_dies(empty)
        assert (empty.state(), COPY in empty.runtime.running, empty.journal.reservations()) == ("fenced", True, {})

    @pytest.mark.parametrize("where", ["connect", "network"])
    async def test_a_copy_that_runs_is_the_worker_though_something_refuses_once(self, empty: Bench, where: str) -> None:
        """Its resume had begun, so it may be all that there is: it isn't taken back for one refusal, to end when its reservation lapses."""
        await self.held(empty)
        empty.journal.begin("op", "resume", "w", 1.0)
        empty.node.held.pop("w")
        empty.runtime.running.add(COPY)
        tries = iter([Retry(problem("SH720"))])

        def once() -> None:
            if (refused := next(tries, None)) is not None:
                raise refused

        empty.faults.at[where] = once
        await agent_dies(empty)
        assert (step(empty, "resume"), inventory.copy_of(empty.node, "w")) == ("done", "running")
        empty.clock.now += empty.settings.reservation
        await empty.holds.expire()
        assert COPY in empty.runtime.alive

    async def test_where_it_is_refused_for_long_an_engine_decides(self, empty: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """Orders don't come through meanwhile, and it has the image."""
        await self.held(empty)
        empty.journal.begin("op", "resume", "w", 1.0)
        empty.node.held.pop("w")
        empty.runtime.running.add(COPY)
        tries = 0

        def refuse() -> None:
            nonlocal tries
            tries += 1
            empty.clock.now += 1.0
            raise Retry(problem("SH720"))

        empty.faults.at["connect"] = refuse
        await agent_dies(empty)
        assert recovery.PATIENCE_S <= tries <= recovery.PATIENCE_S + 1
        assert step(empty, "resume") == "undone"
        assert not empty.orders.lock("w").locked()

    async def test_a_copy_whose_resume_had_begun_never_lapses_while_it_lives(self, empty: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        await self.resuming_on_a_full_disk(empty, monkeypatch)
        await empty.node.finish_background()  # nobody tries it any more, and nobody has its lock
        await asyncio.sleep(0.01)
        mend(empty)
        await empty.holds.expire()
        assert COPY in empty.runtime.running
        empty.runtime.alive.clear()
        await empty.holds.expire()
        assert empty.journal.reservations() == {}, "nothing is left that could be it"

    @pytest.mark.parametrize("lives", [True, False])
    async def test_a_disk_that_takes_nothing_has_no_network_made_at_each_try(
        self, empty: Bench, monkeypatch: pytest.MonkeyPatch, lives: bool
    ) -> None:
        """Each holds descriptors, or is an interface and a helper."""
        monkeypatch.setattr(recovery, "UNWRITTEN_S", 0.0)
        await self.held(empty)
        empty.journal.begin("op", "resume", "w", 1.0)
        made, real, gate = [], empty.runtime.network, Gate()

        def network(*arguments: Any) -> FakeNetwork:
            made.append(real(*arguments))
            if len(made) == 1:
                gate()
            return made[-1]

        monkeypatch.setattr(empty.runtime, "network", network)
        if not lives:
            empty.runtime.alive.clear()
        await agent_dies(empty, within_s=0.05)
        tries: list[None] = []

        def refuse(*_arguments: object) -> None:
            tries.append(None)
            raise Stalled(problem("SH610"))

        monkeypatch.setattr(empty.journal, "drop_reservation", refuse)
        gate.open()
        async with asyncio.timeout(10):
            while len(tries) < 5:
                await asyncio.sleep(0.001)
            monkeypatch.delattr(empty.journal, "drop_reservation")
            while empty.node.troubles:
                await asyncio.sleep(0.001)
        assert len(made) == 1
        assert (empty.state(), made[0].exists) == (("fenced", True) if lives else ("none", False))

    async def test_a_copy_that_its_driver_still_lets_go_is_waited_for(self, empty: Bench) -> None:
        await self.held(empty)
        empty.journal.begin("op", "resume", "w", 1.0)
        tries: list[bool] = []

        def at_last() -> None:
            tries.append("w" in empty.node.networks)
            if len(tries) < 3:
                raise Retry(problem("SH713"))

        empty.faults.at["settle"] = at_last
        await agent_dies(empty)
        assert tries == [False] * 3, "it isn't the worker yet"
        assert (empty.state(), step(empty, "resume")) == ("fenced", "done")
        network = empty.node.networks["w"]
        assert isinstance(network, FakeNetwork)
        assert network.connected
