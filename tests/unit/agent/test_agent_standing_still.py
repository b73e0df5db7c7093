"""No order keeps a worker standing still longer than its hold, whatever it is that doesn't answer."""

import asyncio
from pathlib import Path

import pytest
from agent_fakes import PROCESS, Bench, Gate, problem
from shunter.model.errors import Retry, Stalled, Unknown
from shunter.wire import agent_pb2 as pb
from shunter_agent.node import Leaving
from shunter_agent.refusals import Undone
from test_agent_full_disk import full, mend

HOLD_S = 0.05


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def nothing_of_it(bench: Bench) -> bool:
    return (bench.depot.partial, bench.depot.whole, bench.node.frozen, bool(bench.node.busy_images)) == (set(), {}, {}, False)


class TestFreeze:
    async def test_a_destination_that_never_answers_keeps_the_worker_no_longer_than_its_hold(self, bench: Bench) -> None:
        silence = Gate()
        bench.faults.at["finish"] = silence
        bench.faults.at["cancel"] = silence.open  # what hanging up does to a sender that waits
        await bench.source.fence(bench.step())
        with pytest.raises(Undone, match="SH653"):
            await bench.source.freeze(bench.freeze(hold=HOLD_S))
        assert (bench.state(), PROCESS in bench.runtime.running) == ("fenced", True)
        assert nothing_of_it(bench)
        assert bench.faults.order.index("thaw") < bench.faults.order.index("cancel"), "the worker comes first"
        assert bench.faults.done["discard"] == 1, "the image that came too late isn't kept"
        entry = bench.journal.entry("op", "freeze")
        assert entry is not None
        assert (entry.state, entry.detail[:5]) == ("failed", "SH653")
        bench.faults.at.clear()
        (bench.depot.root / "image-op" / "pages-1.img").unlink()
        (bench.depot.root / "image-op").rmdir()
        await bench.source.freeze(bench.freeze())  # and it can be tried again

    async def test_a_sending_that_fails_when_it_is_cancelled_leaves_nothing_either(self, bench: Bench) -> None:
        silence = Gate()

        def broken() -> None:
            silence()
            raise Unknown(problem("SH811"))

        bench.faults.at["finish"] = broken
        bench.faults.at["cancel"] = silence.open
        with pytest.raises(Undone, match="SH653"):
            await bench.source.freeze(bench.freeze(hold=HOLD_S))
        assert (bench.state(), nothing_of_it(bench)) == ("running", True)

    async def test_a_disk_that_never_answers_keeps_a_parked_worker_no_longer_either(self, bench: Bench) -> None:
        silence = Gate()
        bench.faults.at["commit"] = silence
        bench.faults.at["thaw"] = silence.open
        with pytest.raises(Undone, match="SH653"):
            await bench.source.freeze(bench.freeze(to=False, hold=HOLD_S))
        assert (PROCESS in bench.runtime.running, nothing_of_it(bench)) == (True, True)

    async def test_an_image_that_came_too_late_and_cannot_be_deleted_changes_nothing_for_the_worker(self, bench: Bench) -> None:
        silence = Gate()
        bench.faults.at["finish"] = silence
        bench.faults.at["cancel"] = silence.open
        bench.faults.at["discard"] = Stalled(problem("SH667"))
        with pytest.raises(Undone, match="SH653"):
            await bench.source.freeze(bench.freeze(hold=HOLD_S))
        assert PROCESS in bench.runtime.running

    async def test_an_image_that_is_whole_in_time_is_kept(self, bench: Bench) -> None:
        reply = await bench.source.freeze(bench.freeze(hold=60))
        assert (reply.image.id, bench.state(), bench.faults.done["cancel"]) == ("image-op", "frozen", 0)


async def test_calls_that_wait_for_others_do_not_keep_a_worker_standing(bench: Bench) -> None:
    await bench.source.freeze(bench.freeze())
    gate = Gate()
    waiting = [asyncio.create_task(bench.node.in_thread(gate)) for _ in range(100)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await bench.source.thaw(bench.step())
    assert PROCESS in bench.runtime.running
    gate.open()
    await asyncio.gather(*waiting)


def copy_to(bench: Bench, operation: str = "op") -> pb.SendOrder:
    return pb.SendOrder(order=bench.order(operation), image="image-op", to=pb.Peer(node="k", address="10.0.0.3:7444"))


class TestCopies:
    """A park's further copies are sent while its worker stands still."""

    async def sending(self, bench: Bench) -> tuple[Gate, "asyncio.Task[pb.SendReply]"]:
        await bench.source.fence(bench.step())
        await bench.source.freeze(bench.freeze(to=False, hold=60))
        gate = Gate()
        bench.faults.at["send"] = gate
        going = asyncio.create_task(bench.transfers.send(copy_to(bench)))
        await asyncio.to_thread(gate.reached.wait, 10)
        return gate, going

    async def test_a_copy_that_does_not_get_on_keeps_the_worker_no_longer_than_the_longest_hold(self, bench: Bench) -> None:
        gate, going = await self.sending(bench)
        bench.clock.now += bench.settings.hold - 0.1
        await bench.holds.expire()
        assert bench.state() == "frozen"
        bench.clock.now += 0.1
        await bench.holds.expire()
        assert (bench.state(), PROCESS in bench.runtime.running) == ("running", True)
        gate.open()
        await going

    async def test_a_thaw_does_not_wait_for_a_copy(self, bench: Bench) -> None:
        gate, going = await self.sending(bench)
        async with asyncio.timeout(5):
            await bench.source.thaw(bench.step())
        assert PROCESS in bench.runtime.running
        gate.open()
        await going

    async def test_after_a_copy_the_hold_is_as_long_as_ordered(self, bench: Bench) -> None:
        gate, going = await self.sending(bench)
        bench.clock.now += 100
        gate.open()
        await going
        bench.clock.now += 59.9
        await bench.holds.expire()
        assert bench.state() == "frozen"
        bench.clock.now += 0.1
        await bench.holds.expire()
        assert bench.state() == "running"

    async def test_an_image_that_is_sent_is_not_discarded_meanwhile(self, bench: Bench) -> None:
        gate, going = await self.sending(bench)
        with pytest.raises(Retry, match="SH605"):
            await bench.transfers.discard(pb.DiscardOrder(order=bench.order("other"), image="image-op"))
        gate.open()
        await going
        assert "image-op" in bench.depot.whole

    async def test_a_copy_that_ends_while_another_operation_fences_the_worker_leaves_it_to_that(self, bench: Bench) -> None:
        gate, going = await self.sending(bench)
        await bench.source.thaw(bench.step())
        await bench.source.unfence(bench.step())
        fencing = Gate()
        bench.faults.at["fence"] = fencing
        fence = asyncio.create_task(bench.source.fence(bench.step("other")))
        await asyncio.to_thread(fencing.reached.wait, 10)
        gate.open()
        await going
        fencing.open()
        await fence
        row = bench.journal.worker("w")
        assert row is not None
        assert (row.state, row.operation) == ("fenced", "other")


class TestHolds:
    async def test_one_that_hangs_keeps_no_other_standing_still(self, bench: Bench) -> None:
        """The router is asked to take `w` back, and doesn't answer; meanwhile another worker's hold ends."""
        silence = Gate()
        await bench.source.fence(bench.step())
        await bench.source.freeze(bench.freeze())
        bench.clock.now += 61.0
        bench.faults.at["unfence"] = silence
        running = asyncio.create_task(bench.holds.run())
        async with asyncio.timeout(10):
            while PROCESS not in bench.runtime.running:
                await asyncio.sleep(0.01)
            bench.node.leaving["other"] = Leaving(process=PROCESS, incarnation=0, operation="op-2", step="release", detail="")
            while "other" in bench.node.leaving:
                await asyncio.sleep(0.01)
        assert not running.done()
        silence.open()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def test_a_clock_that_is_set_back_lengthens_no_hold(self, bench: Bench) -> None:
        elapsed = [1000.0]
        bench.node.elapsed = lambda: elapsed[0]
        await bench.source.freeze(bench.freeze(hold=60.0))
        bench.clock.now -= 3600.0
        elapsed[0] += 61.0
        await bench.holds.expire()
        assert (bench.state(), bench.node.frozen) == ("running", {})


async def test_a_death_that_cant_be_written_down_is_looked_at_again(bench: Bench) -> None:
    bench.runtime.alive.clear()
    bench.runtime.running.clear()
    full(bench)()
    bench.node.worker_ended("w", -9)
    assert bench.journal.worker("w") is not None
    assert "w" in bench.node.exits._again, "nobody else would ever look"
    mend(bench)
    bench.node.worker_ended("w", -9)
    assert bench.journal.worker("w") is None
    bench.node.exits.close()


async def test_a_node_is_empty_only_without_anything_on_its_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    assert bench.node.empty()
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())
    assert not bench.node.empty(), "a copy that is held"
    bench.node.held.clear()
    bench.node.busy_images.begin("image", "op")
    assert not bench.node.empty(), "an image that is written or sent"


class TestDeathOnTheWayBack:
    """The dump is whole, the worker was to run on, and is dead: the dump is all that is left of it."""

    @pytest.fixture(params=[Unknown(problem("SH711")), OSError("no descriptor to be had")], ids=["said", "found"], autouse=True)
    @staticmethod
    def dying(bench: Bench, request: pytest.FixtureRequest) -> None:
        def die() -> None:
            bench.runtime.alive.clear()
            bench.runtime.running.clear()
            if bench.runtime.frozen is not None:
                bench.runtime.frozen.standing = False
            raise request.param

        bench.faults.at["thaw"] = die

    async def test_after_a_checkpoint(self, bench: Bench) -> None:
        with pytest.raises(Unknown):
            await bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(), image="image-op"))
        assert list(bench.depot.whole) == ["image-op"]

    async def test_after_a_freeze_whose_sending_failed(self, bench: Bench) -> None:
        bench.faults.at["finish"] = Retry(problem("SH806"))
        await bench.source.fence(bench.step())
        with pytest.raises(Unknown):
            await bench.source.freeze(bench.freeze())
        assert list(bench.depot.whole) == ["image-op"]
        await bench.holds.expire()
        assert (bench.journal.worker("w"), list(bench.depot.whole)) == (None, ["image-op"])


async def test_of_a_worker_that_runs_on_without_its_network_no_image_is_kept(bench: Bench) -> None:
    bench.faults.at.update(finish=Retry(problem("SH806")), connect=Retry(problem("SH706")))
    with pytest.raises(Retry):
        await bench.source.freeze(bench.freeze())
    assert (PROCESS in bench.runtime.running, bench.depot.whole, bench.depot.partial) == (True, {}, set())


async def test_a_router_that_didnt_take_a_worker_back_is_asked_again(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze())
    bench.clock.now += 61.0
    bench.faults.at["unfence"] = Retry(problem("SH630"))
    await bench.holds.expire()
    await bench.holds.expire()
    assert (bench.state(), PROCESS in bench.runtime.running, bench.faults.done["unfence"]) == ("fenced", True, 0)
    bench.faults.at.clear()
    bench.clock.now += 5.0
    await bench.holds.expire()
    row = bench.journal.worker("w")
    assert row is not None
    assert (row.state, row.operation, bench.serving.registered, bench.node.hidden) == ("running", "", True, {})


async def test_an_order_that_came_meanwhile_has_the_last_word(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze())
    bench.clock.now += 61.0
    bench.faults.at["unfence"] = Retry(problem("SH630"))
    await bench.holds.expire()
    bench.faults.at.clear()
    bench.node.change("w", operation="another")
    bench.clock.now += 5.0
    await bench.holds.expire()
    assert (bench.state(), bench.node.hidden) == ("fenced", {})
