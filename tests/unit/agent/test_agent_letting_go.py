"""When a node may be let go before its time: with nobody on it, and nothing that may be all that is left of somebody."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_fakes import SPEC, Bench, problem
from shunter.model.errors import Retry
from shunter.wire import agent_pb2 as pb
from shunter_agent import agent
from shunter_agent.depot import ImageFacts
from shunter_agent.letting_go import may_go
from shunter_agent.refusals import Undone
from shunter_agent.settings import CloudSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "agent_notices"))
from metadata_services import Azure, serving  # pyright: ignore[reportMissingImports]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def goes(bench: Bench) -> bool:
    def here(question: Callable[[], bool]) -> bool:
        return question()

    return may_go(bench.node, here)


async def left(bench: Bench, *, to: bool) -> None:
    """The worker is frozen, its image is sent on meanwhile (`to`) or stays, and it is ended."""
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze(to=to))
    await bench.source.release(bench.step())
    await bench.node.finish_background()
    await bench.holds.expire()
    assert bench.node.empty()


async def send(bench: Bench, image: str, operation: str = "later") -> None:
    await bench.transfers.send(pb.SendOrder(order=bench.order(operation), image=image, to=pb.Peer(node="m", address="10.0.0.2:7444")))


def another(bench: Bench, name: str, taken_at: float) -> None:
    bench.depot.whole[name] = ImageFacts(id=name, spec=SPEC, incarnation=0, taken_at=taken_at, bytes=100)


async def test_with_a_worker_on_it_it_stays(bench: Bench) -> None:
    assert not goes(bench)


async def test_once_its_worker_has_moved_away_it_may_go(bench: Bench) -> None:
    await left(bench, to=True)
    assert goes(bench)
    bench.boot()
    assert goes(bench), "the journal knows it"


async def test_with_a_parked_worker_whose_image_stayed_it_stays_until_that_is_sent(bench: Bench) -> None:
    await left(bench, to=False)
    assert not goes(bench)
    await send(bench, "image-op")
    assert goes(bench)


async def test_an_image_that_couldnt_be_sent_isnt_elsewhere(bench: Bench) -> None:
    await left(bench, to=False)

    def fails() -> None:
        raise Retry(problem("SH801"))

    bench.faults.at["send"] = fails
    with pytest.raises(Undone):
        await send(bench, "image-op")
    assert not goes(bench)


async def test_the_newest_image_of_each_worker_counts(bench: Bench) -> None:
    await left(bench, to=True)
    another(bench, "older", 1.0)
    assert goes(bench)
    another(bench, "newer", bench.clock() + 10)
    assert not goes(bench), "it came from elsewhere, and nobody here knows what is left there"
    bench.depot.archive = {"newer": bench.depot.whole["newer"]}
    assert goes(bench)


async def test_images_that_cant_be_listed_are_no_all_clear(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await left(bench, to=True)

    def fails() -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(bench.depot, "all", fails)
    assert not goes(bench)


async def test_azures_event_isnt_acknowledged_before(bench: Bench) -> None:
    service = Azure()
    service.preempt()
    await left(bench, to=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(service))
        clouds = (CloudSettings(name="azure", url=service.url, acknowledge=True),)
        bench.node.settings = msgspec.structs.replace(bench.settings, clouds=clouds, canaries=0.0)
        async with contextlib.AsyncExitStack() as listening:
            agent.watch_notices(bench.node, listening)
            async with asyncio.timeout(20):
                while service.count("GET", "/metadata/scheduledevents") < 2:
                    await asyncio.sleep(0.02)
                assert service.started == []
                await send(bench, "image-op")
                while not service.started:
                    await asyncio.sleep(0.02)
    assert service.started == ["e1"]
