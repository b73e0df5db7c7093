"""No order keeps a worker standing still longer than its hold, whatever it is that doesn't answer."""

import asyncio
from pathlib import Path

import pytest
from agent_fakes import PROCESS, Bench, Gate, problem
from shunter.model.errors import Stalled, Unknown
from shunter_agent.refusals import Undone

HOLD_S = 0.05


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def nothing_of_it(bench: Bench) -> bool:
    return (bench.depot.partial, bench.depot.whole, bench.node.frozen, bench.node.busy_images) == (set(), {}, {}, {})


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
