"""A worker that hangs on a GPU that is gone is ended, told, and never ended by mistake."""

from pathlib import Path

import pytest
from agent_fakes import PROCESS, Bench, problem
from msgspec.structs import replace
from shunter.model.errors import Unknown
from shunter_agent.notices.port import Notice
from shunter_agent.orders.condemned import AGAIN_S, Condemned

AFTER_S = 60.0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.runtime.needed = {"gpus": "1"}
    made.node.notices = {"x": _notice()}
    return made


def _notice(slot: str = "n/0", *, dumpable: bool = False) -> Notice:
    return Notice(id="x", kind="gpu-failing", seen_at=1.0, source="gpu", detail="XID 79", slot=slot, dumpable=dumpable)


async def looked(bench: Bench, condemned: Condemned, *seconds: float) -> list[int]:
    """How often a worker had been ended, when it was looked at after so many seconds each."""
    found = []
    for each in seconds:
        bench.clock.now += each
        await condemned.look()
        found.append(bench.faults.order.count("end"))
    return found


async def test_it_is_ended_once_it_had_time_to_end_by_itself_and_is_told(bench: Bench) -> None:
    assert await looked(bench, Condemned(bench.orders, AFTER_S), 0, AFTER_S - 1, 1, 1) == [0, 0, 1, 1]
    assert bench.state() == "none"
    assert "whose GPU is gone is ended" in bench.said()
    assert bench.node.occupied() == {}


@pytest.mark.parametrize("notice", [_notice("n/1"), _notice(dumpable=True), _notice("")])
async def test_one_on_another_gpu_or_on_one_that_only_ails_or_on_who_knows_which_is_left(bench: Bench, notice: Notice) -> None:
    bench.node.notices = {"x": notice}
    assert await looked(bench, Condemned(bench.orders, AFTER_S), 0, 2 * AFTER_S) == [0, 0]


async def test_one_on_a_node_that_is_gone_is_ended(bench: Bench) -> None:
    bench.node.notices = {"x": replace(_notice(""), kind="gone")}
    assert await looked(bench, Condemned(bench.orders, AFTER_S), 0, AFTER_S) == [0, 1]


async def test_one_that_uses_no_gpu_is_left(bench: Bench) -> None:
    bench.runtime.needed = {}
    assert await looked(bench, Condemned(bench.orders, AFTER_S), 0, 2 * AFTER_S) == [0, 0]
    assert bench.state() == "running"


async def test_a_notice_that_is_withdrawn_and_comes_back_gives_time_anew(bench: Bench) -> None:
    condemned = Condemned(bench.orders, AFTER_S)
    assert await looked(bench, condemned, 0, AFTER_S - 1) == [0, 0]
    bench.node.notices = {}
    assert await looked(bench, condemned, 1) == [0]
    bench.node.notices = {"x": _notice()}
    assert await looked(bench, condemned, 1, AFTER_S - 1, 1) == [0, 0, 1]


async def test_one_that_an_order_is_at_work_on_is_left_to_it(bench: Bench) -> None:
    condemned = Condemned(bench.orders, AFTER_S)
    async with bench.orders.lock("w"):
        assert await looked(bench, condemned, 0, 2 * AFTER_S) == [0, 0]
    assert await looked(bench, condemned, 0) == [1]


async def test_one_that_cant_be_killed_keeps_its_slot_is_told_and_tried_again(bench: Bench) -> None:
    condemned = Condemned(bench.orders, AFTER_S)
    tried: list[float] = []

    def undead() -> None:
        tried.append(bench.clock.now)
        raise Unknown(problem("SH707"))

    bench.faults.at["end"] = undead
    await looked(bench, condemned, 0, AFTER_S, 1, AGAIN_S - 2)
    assert len(tried) == 1
    assert bench.node.occupied() == {"n/0": "w"}
    assert "SH707" in bench.said()
    await looked(bench, condemned, 1)
    assert len(tried) == 2
    del bench.faults.at["end"]
    await looked(bench, condemned, AGAIN_S)
    assert bench.state() == "none"
    assert PROCESS not in bench.runtime.alive
