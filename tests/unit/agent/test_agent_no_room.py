"""A dump that is known to find no room is refused before its worker is touched; one that may is tried when there is no time."""

from pathlib import Path

import pytest
from agent_fakes import SPEC, Bench
from shunter.model.errors import Retry
from shunter.wire import agent_pb2 as pb
from shunter_agent.notices.port import Notice
from shunter_agent.preflight import preflight

LATER = 2000.0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Its worker's dump has 80 bytes at the least: enough for one that is urgent."""
    bench = Bench(tmp_path)
    bench.depot.room = (79, 80)
    return bench


async def refused(bench: Bench, deadline: float = 0.0) -> list[str]:
    order = bench.order()
    order.deadline = deadline
    reply = await preflight(bench.node, pb.PreflightOrder(order=order))
    return [refusal.code for refusal in reply.refusals]


async def test_preflight_refuses_it_at_the_source(bench: Bench) -> None:
    assert await refused(bench) == ["SH827"]
    assert await refused(bench, LATER) == []
    bench.depot.room = (80, 80)
    assert await refused(bench) == []
    bench.depot.room = (79, 79)
    assert await refused(bench, LATER) == ["SH827"]


@pytest.mark.parametrize("what", ["freeze", "checkpoint"])
async def test_it_is_refused_once_more_before_the_worker_stands_still(bench: Bench, what: str) -> None:
    """Somebody else may have taken the room since."""
    order = bench.freeze() if what == "freeze" else pb.CheckpointOrder(order=bench.order(), image="image")
    with pytest.raises(Retry, match="SH827"):
        await getattr(bench.source, what)(order)
    assert bench.faults.done["freeze"] == 0
    assert bench.node.row(SPEC.worker).state == "running"
    assert bench.depot.partial == set()


@pytest.mark.parametrize("deadline", [LATER, None])
async def test_a_worker_whose_node_goes_is_tried_whoever_orders_it(bench: Bench, deadline: float | None) -> None:
    """By a notice without a deadline, too."""
    bench.node.notices = {"n": Notice(id="n", kind="preemption", seen_at=1.0, deadline=deadline)}
    assert await refused(bench) == []
    await bench.source.freeze(bench.freeze())
    assert bench.node.row(SPEC.worker).state == "frozen"


async def test_a_notice_for_another_slot_makes_nothing_urgent(bench: Bench) -> None:
    bench.node.notices = {"n": Notice(id="n", kind="gpu-failing", seen_at=1.0, slot="another")}
    assert await refused(bench) == ["SH827"]
