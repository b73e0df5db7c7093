"""Every step has a limit of its own in the agent, whatever becomes of the engine, and a way back. The table of them in the docs is true."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from agent_fakes import PROCESS, Bench, Gate
from shunter.model.errors import Rejected, Retry
from shunter.wire import agent_pb2 as pb
from shunter_agent.notices.port import Notice
from shunter_agent.orders import ahead, destination, settling, source
from shunter_agent.orders.holds import HIDDEN_EVERY_S
from shunter_agent.refusals import Undone

DOCS = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "when-a-move-fails.md"
SHORT_S = 0.4


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


@pytest.fixture
def gate(short: None) -> Iterator[Gate]:
    assert short is None
    made = Gate()
    yield made
    made.open()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "TRAFFIC_S", SHORT_S)
    monkeypatch.setattr(source, "TRAFFIC_S", SHORT_S)
    monkeypatch.setattr(source, "BEGIN_S", SHORT_S)
    monkeypatch.setattr(destination, "READABLE_S", SHORT_S)


async def until(bench: Bench, what: str, count: int = 1) -> None:
    for _ in range(1000):
        if bench.faults.done[what] >= count:
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"{what} was never done")


class TestFence:
    async def test_one_that_hangs_is_given_up_and_the_worker_shown_again(self, bench: Bench, gate: Gate) -> None:
        bench.faults.at["fence"] = gate
        with pytest.raises(Retry, match="SH614"):
            await bench.source.fence(bench.step())
        assert bench.state() == "fenced", "it may be"
        assert (await bench.source.unfence(bench.step())).detail == "unfenced"
        assert bench.state() == "running"

    async def test_also_without_an_engine(self, bench: Bench, gate: Gate) -> None:
        bench.faults.at["fence"] = gate
        with pytest.raises(Retry):
            await bench.source.fence(bench.step())
        await bench.holds.expire()
        assert (bench.state(), bench.faults.done["unfence"]) == ("running", 1)

    async def test_the_next_order_need_not_wait_for_it(self, bench: Bench, gate: Gate) -> None:
        bench.faults.at["fence"] = gate
        with pytest.raises(Retry):
            await bench.source.drain(bench.step(), 5)
        await asyncio.wait_for(bench.source.unfence(bench.step()), 1)


async def test_an_unfence_that_hangs_is_tried_again(bench: Bench, gate: Gate) -> None:
    await bench.source.fence(bench.step())
    bench.faults.at["unfence"] = gate
    with pytest.raises(Retry, match="SH614"):
        await bench.source.unfence(bench.step())
    assert bench.state() == "fenced"
    del bench.faults.at["unfence"]
    await bench.source.unfence(bench.step())
    assert bench.state() == "running"


class TestFreeze:
    async def test_a_disk_that_hangs_before_the_worker_is_stopped_leaves_it_and_no_image(self, bench: Bench, gate: Gate) -> None:
        await bench.source.fence(bench.step())
        bench.faults.at["begin"] = gate
        with pytest.raises(Retry, match=r"SH614 .*to make room"):
            await bench.source.freeze(bench.freeze())
        assert (PROCESS in bench.runtime.running, bench.faults.done["freeze"]) == (True, 0)
        gate.open()
        await until(bench, "begin")
        for _ in range(200):
            if not bench.depot.partial:
                break
            await asyncio.sleep(0.005)
        assert bench.depot.partial == set(), "what came too late is taken back"

    async def test_a_link_that_hangs_before_the_worker_is_stopped_leaves_it_and_hangs_up(self, bench: Bench, gate: Gate) -> None:
        await bench.source.fence(bench.step())
        bench.faults.at["sending"] = gate
        with pytest.raises(Retry, match=r"SH614 .*sending"):
            await bench.source.freeze(bench.freeze())
        assert (PROCESS in bench.runtime.running, bench.faults.done["freeze"], bool(bench.node.busy_images)) == (True, 0, False)
        gate.open()
        await until(bench, "cancel")


async def test_an_image_that_cannot_be_read_in_time_is_not_restored(empty: Bench, gate: Gate) -> None:
    await empty.destination.prepare(empty.prepare())
    empty.faults.at["folder"] = gate
    with pytest.raises(Retry, match=r"SH614 .*readable"):
        await empty.destination.restore(empty.restore())
    assert (empty.faults.done["restore"], empty.node.held) == (0, {})
    gate.open()
    await until(empty, "folder")
    del empty.faults.at["folder"]
    await empty.destination.restore(empty.restore())
    await empty.node.finish_background()
    for _ in range(200):
        if empty.depot.opened["image"] == 0:
            break
        await asyncio.sleep(0.005)
    assert empty.depot.opened["image"] == 0, "what was opened is closed, also what came too late"


class TestSilence:
    """The engine fenced a worker, or let its copy run, and is dead since."""

    async def passes(self, bench: Bench, seconds: float) -> None:
        bench.clock.now += seconds
        await bench.holds.expire()  # finds it due
        await bench.holds.expire()

    async def test_a_worker_that_nobody_speaks_of_is_shown_again(self, bench: Bench) -> None:
        await bench.source.fence(bench.step())
        await self.passes(bench, bench.settings.hold - 1)
        assert (bench.state(), bench.serving.registered) == ("fenced", False)
        await self.passes(bench, HIDDEN_EVERY_S)
        assert (bench.state(), bench.serving.registered) == ("running", True)
        entry = bench.journal.entry("op", "fence")
        assert entry is not None
        assert (entry.state, "no order came" in entry.detail) == ("undone", True)

    async def test_an_engine_that_wakes_up_then_freezes_nothing_that_the_router_sees(self, bench: Bench) -> None:
        await bench.source.fence(bench.step())
        await self.passes(bench, bench.settings.hold)
        with pytest.raises(Rejected, match=r"SH606 .*the router sees the worker again"):
            await bench.source.freeze(bench.freeze())
        assert PROCESS in bench.runtime.running
        await bench.source.fence(bench.step())
        await bench.source.freeze(bench.freeze())

    async def test_each_order_gives_it_time_anew(self, bench: Bench) -> None:
        await bench.source.fence(bench.step())
        await self.passes(bench, bench.settings.hold - 1)
        await bench.source.freeze(bench.freeze())
        await bench.source.thaw(bench.step())
        await self.passes(bench, 10)
        assert bench.state() == "fenced"

    async def test_a_copy_that_runs_and_was_never_shown(self, empty: Bench) -> None:
        await empty.destination.prepare(empty.prepare())
        await empty.destination.restore(empty.restore())
        await empty.destination.resume(empty.step())
        empty.serving.registered = False
        await self.passes(empty, empty.settings.hold)
        assert (empty.state(), empty.serving.registered) == ("running", True)

    async def test_a_worker_that_was_to_end_and_whose_engine_died_meanwhile(self, bench: Bench) -> None:
        bench.serving.requests = 1
        with pytest.raises(Undone, match="SH651"):
            await bench.source.drain(bench.step(), 0)
        row = bench.journal.worker("w")
        assert row is not None
        assert (row.state, row.operation) == ("fenced", "")
        await self.passes(bench, bench.settings.hold)
        assert bench.state() == "running"

    @pytest.mark.parametrize("step", ["fence", "drain"])
    async def test_a_worker_whose_agent_died_while_it_hid_it(self, bench: Bench, step: str) -> None:
        """Nobody knows whether it came to that. The journal said that the worker runs in traffic, and nobody ever looked."""
        from shunter_agent.recovery import recover

        bench.journal.begin("op", step, "w", 1.0)
        bench.node.change("w", operation="op", epoch=1)
        bench.serving.registered = False
        bench.journal.close()
        bench.boot()
        await recover(bench.node, bench.destination, lambda _seconds: None)
        assert bench.state() == "fenced"
        await self.passes(bench, bench.settings.hold)
        assert (bench.state(), bench.serving.registered) == ("running", True)

    async def test_not_on_a_node_that_goes_and_not_against_a_standing_order(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        await bench.source.fence(bench.step())
        notice = Notice(id="n", kind="preemption", source="file", seen_at=1.0, deadline=9e9, detail="")
        bench.node.notices = {"n": notice}
        await self.passes(bench, bench.settings.hold)
        assert bench.state() == "fenced"
        bench.node.notices = {}
        monkeypatch.setattr(bench.journal, "stood", lambda: {"op": None})
        await self.passes(bench, HIDDEN_EVERY_S)
        assert bench.state() == "fenced"
        monkeypatch.undo()
        await self.passes(bench, HIDDEN_EVERY_S)
        assert bench.state() == "running"

    async def test_a_node_that_was_to_go_and_is_there_still_keeps_nobody_hidden(self, bench: Bench) -> None:
        """A taint that nobody took off would have hidden it for ever."""
        await bench.source.fence(bench.step())
        ends = bench.clock.now + bench.settings.hold
        bench.node.notices = {"n": Notice(id="n", kind="preemption", source="file", seen_at=1.0, deadline=ends, detail="")}
        await self.passes(bench, bench.settings.hold - 0.1)
        await self.passes(bench, HIDDEN_EVERY_S)
        assert (bench.state(), bench.serving.registered) == ("running", True)

    async def test_a_new_agent_counts_from_its_own_beginning(self, bench: Bench) -> None:
        await bench.source.fence(bench.step())
        bench.clock.now += 10 * bench.settings.hold
        bench.journal.close()
        bench.boot()
        from shunter_agent.recovery import recover

        await recover(bench.node, bench.destination, lambda _seconds: None)
        await self.passes(bench, 0)
        assert bench.state() == "fenced"
        await self.passes(bench, bench.settings.hold)
        assert bench.state() == "running"


class TestClocks:
    """The wall clock is set, by whatever moves clocks."""

    async def test_a_clock_that_is_set_back_makes_no_image_older_than_the_one_before(self, bench: Bench) -> None:
        for operation in ("first", "second", "third"):
            await bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(operation), image=f"image-{operation}"))
            bench.clock.now -= 3600
        taken = [bench.depot.whole[f"image-{operation}"].taken_at for operation in ("first", "second", "third")]
        assert taken == sorted(taken)
        assert len(set(taken)) == 3
        assert taken[0] == 1000.0, "and the first is of now"

    async def test_a_clock_that_is_set_ahead_takes_no_slot_from_a_move_under_way(self, empty: Bench) -> None:
        await empty.destination.prepare(empty.prepare())
        empty.node.clock = lambda: empty.clock.now + 10 * empty.settings.reservation
        await empty.holds.expire()
        assert set(empty.journal.reservations()) == {"n/0"}
        empty.clock.now += empty.settings.reservation
        await empty.holds.expire()
        assert empty.journal.reservations() == {}


def test_the_limits_in_the_docs_are_those_of_the_code() -> None:
    from shunter_agent.orders import holds
    from shunter_agent.recovery import START_S
    from shunter_agent.runtime import criu, process, proven, swrk
    from shunter_agent.runtime.cuda import node, steps, stopping
    from shunter_agent.settings import Settings

    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    names = {
        "TRAFFIC_S": settling.TRAFFIC_S,
        "SHOW_AGAIN_S": settling.SHOW_AGAIN_S,
        "BEGIN_S": source.BEGIN_S,
        "COPY_S": ahead.COPY_S,
        "PROVEN_S": proven.PATIENCE_S,
        "PROVEN_AGAIN_S": proven.AGAIN_S,
        "LOCK_S": node.LOCK_S,
        "STOP_S": stopping.STOP_S,
        "QUICK_S": steps.QUICK_S,
        "LEAST_S": steps.LEAST_S,
        "FREEZE_LIMIT_S": criu.FREEZE_LIMIT_S,
        "CRIU_LEAST_S": swrk.LEAST_S,
        "CRIU_MOST_S": swrk.MOST_S,
        "LET_GO_S": swrk.LET_GO_S,
        "DEATH_S": process.DEATH_S,
        "READABLE_S": destination.READABLE_S,
        "START_S": START_S,
        "EVERY_S": holds.EVERY_S,
        "hold": defaults["hold"],
        "probe": defaults["probe"],
        "reservation": defaults["reservation"],
        "gpu_gone": defaults["gpu_gone"],
    }
    found = {name: float(value) for value, name in re.findall(r"(\d+(?:\.\d+)?) s <!-- (\w+) -->", DOCS.read_text())}
    assert found == {name: float(value) for name, value in names.items()}
