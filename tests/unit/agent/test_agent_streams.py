"""What became of a copy's connections is found out once it runs, and holds nobody up."""

import asyncio
from pathlib import Path

import pytest
from agent_fakes import Bench
from hypothesis import given
from hypothesis import strategies as st
from shunter_agent.orders import streams
from shunter_agent.orders.streams import LOOKS, Streams, judged

COUNTS = st.dictionaries(st.integers(1, 5), st.integers(0, 9))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path, worker=False)
    made.runtime.alive.clear()
    made.runtime.running.clear()
    made.give_image()
    monkeypatch.setattr(streams, "LOOK_S", 0.0)
    return made


async def arrived(bench: Bench, *looks: dict[int, int]) -> str:
    """What is said of a copy whose connections are seen so: before it runs, and then one look after the other."""
    bench.runtime.moves = list(looks)
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())
    while "n/0" not in bench.node.streams and bench.node._kept:
        await asyncio.sleep(0)
    await bench.destination.resume(bench.step())
    return (await bench.source.unfence(bench.step())).detail


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([{}], "unfenced"),
        ([{1: 0, 2: 0}, {1: 10, 2: 5}], "unfenced; of 2 connections 2 went on"),
        ([{1: 0, 2: 0}, {1: 10}], "unfenced; of 2 connections 1 went on, 1 had ended before anything went over them"),
        ([{1: 0, 2: 0}, {1: 10, 2: 0}, {2: 7}], "unfenced; of 2 connections 2 went on"),
        ([{1: 7}, *[{1: 7}] * LOOKS], "unfenced; of 1 connections 0 went on, 1 said nothing yet"),
    ],
    ids=["none", "all", "one was reset", "one ended after it went on", "silent"],
)
async def test_it_is_told_with_the_evidence_that_the_router_sees_it(bench: Bench, looks: list[dict[int, int]], told: str) -> None:
    assert await arrived(bench, *looks) == told


async def test_the_numbers_go_to_the_engine_and_are_asked_for_once(bench: Bench) -> None:
    await arrived(bench, {1: 0, 2: 0}, {1: 9})
    again = await bench.source.unfence(bench.step())
    assert (again.connections, again.ended) == (2, 1), "an order that is repeated is answered as before"
    assert bench.node.streams == {}


async def test_looks_that_fail_are_no_evidence(bench: Bench) -> None:
    bench.runtime.faults.at["connections"] = ProcessLookupError("gone")
    assert await arrived(bench, {1: 0}) == "unfenced"


@given(COUNTS, COUNTS, st.sets(st.integers(1, 5)))
def test_each_connection_counts_once(before: dict[int, int], most: dict[int, int], still: set[int]) -> None:
    found = judged(before, most, still)
    assert found.had == len(before)
    assert 0 <= found.moved + found.ended <= found.had
    assert (str(found) == "") is (found.had == 0)
    assert judged(before, before, before.keys()) == Streams(had=len(before))
    assert judged(before, before, ()) == Streams(had=len(before), ended=len(before))
