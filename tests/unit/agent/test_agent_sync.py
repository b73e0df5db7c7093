"""An image is brought to the disk when nothing stands still; or after a minute, whatever does."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_fakes import Bench, FakeClock
from shunter.wire import agent_pb2 as pb
from shunter_agent import inventory
from shunter_agent import node as nodes


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(nodes, "SYNC_S", 0.0)
    bench = Bench(tmp_path)
    bench.node.elapsed = bench.clock
    return bench


def looks_at(bench: Bench) -> "asyncio.Queue[float]":
    """Each time that the node asks what time it is."""
    asked: asyncio.Queue[float] = asyncio.Queue()

    class Watched(FakeClock):
        def __call__(self) -> float:
            asked.put_nowait(bench.clock.now)
            return bench.clock.now

    bench.node.elapsed = Watched()
    return asked


async def synced(bench: Bench) -> int:
    async with asyncio.timeout(10):
        while not bench.faults.done["sync"]:
            await asyncio.sleep(0)
            await bench.node.finish_background()
    return bench.faults.done["sync"]


async def test_an_image_is_synced_once_nothing_stands_still(bench: Bench) -> None:
    await bench.source.freeze(bench.freeze())
    asked = looks_at(bench)
    bench.node.sync_later("image")
    for _ in range(5):
        await asked.get()
    assert bench.faults.done["sync"] == 0
    await bench.source.thaw(bench.step())
    assert await synced(bench) == 1


async def test_it_is_put_off_for_a_minute_and_no_longer(bench: Bench) -> None:
    await bench.source.freeze(bench.freeze())
    asked = looks_at(bench)
    bench.node.sync_later("image")
    began = await asked.get()
    bench.clock.now = began + nodes.SYNC_LATEST_S - 0.1
    while not asked.empty():
        asked.get_nowait()
    for _ in range(3):
        await asked.get()
    assert bench.faults.done["sync"] == 0
    bench.clock.now = began + nodes.SYNC_LATEST_S
    assert await synced(bench) == 1
    assert bench.state() == "frozen"
    while not asked.empty():
        asked.get_nowait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (asked.empty(), bench.faults.done["sync"]) == (True, 1), "and it isn't looked at again"


async def test_an_image_that_an_order_reads_is_left_as_it_is(bench: Bench) -> None:
    asked = looks_at(bench)
    bench.node.busy_images.begin("image", "op")
    bench.node.sync_later("image")
    bench.clock.now += nodes.SYNC_LATEST_S + 1
    for _ in range(3):
        await asyncio.sleep(0.001)
        await bench.node.finish_background()
    assert (bench.faults.done["sync"], asked.qsize()) == (0, 1)
    bench.node.busy_images.end("image", "op")
    assert await synced(bench) == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("No space left in the manifest")])
async def test_what_the_disk_does_not_take_is_told_and_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Once more it was only logged: the engine counted on a copy that a power cut would take away."""
    monkeypatch.setattr(nodes, "SYNC_AGAIN_S", 0.0)
    bench.faults.at["sync"] = error
    bench.node.sync_later("image")
    bench.node.sync_later("image")
    async with asyncio.timeout(10):
        while not bench.node.troubles:
            await asyncio.sleep(0.001)
        (said,) = (await inventory.report(bench.node)).troubles
        assert (said.code, said.subject) == ("SH682", "image")
        assert "No space left" in said.what
        del bench.faults.at["sync"]
        while bench.node.troubles:
            await asyncio.sleep(0.001)
    assert bench.faults.done["sync"] == 1, "what waits already isn't begun with again"


class Slow:
    """A depot's `sync` that has come to the middle of it."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on, self.looked = threading.Event(), threading.Event(), threading.Event()
        self.bench, plain = bench, bench.depot.sync

        def sync(image: str, between: Callable[[], None] = lambda: None) -> None:
            self.begun.set()
            assert self.go_on.wait(10)
            plain(image, between)

        def look(_seconds: float) -> None:
            self.looked.set()

        monkeypatch.setattr(bench.depot, "sync", sync)
        monkeypatch.setattr(nodes.time, "sleep", look)

    async def waits(self) -> None:
        """A worker has come to stand still meanwhile: it is seen, and nothing more is written."""
        self.bench.node.sync_later("image")
        while not self.begun.is_set():
            await asyncio.sleep(0)
        await self.bench.source.freeze(self.bench.freeze())
        self.go_on.set()
        for _ in range(3):
            self.looked.clear()
            assert await asyncio.to_thread(self.looked.wait, 10)
        assert self.bench.faults.done["sync"] == 0


async def done(bench: Bench) -> None:
    async with asyncio.timeout(10):
        while not bench.faults.done["sync"]:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("why", ["it runs on", "the image is needed", "it was long enough", "the agent ends"])
async def test_who_stands_still_meanwhile_does_not_wait_for_a_busy_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    slow = Slow(bench, monkeypatch)
    await slow.waits()
    match why:
        case "it runs on":
            await bench.source.thaw(bench.step())
        case "the image is needed":
            bench.node.busy_images.begin("image", "op")
        case "it was long enough":
            bench.clock.now += nodes.SYNC_LATEST_S
        case _:
            await bench.node.finish_background()
    await done(bench)


async def test_a_checkpoint_is_looked_after_once_more_when_nobody_waits_for_it(bench: Bench) -> None:
    """It is on the disk when the order is answered; what it has in common with others is shared after that."""
    await bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(), image="c"))
    assert bench.faults.done["sync"] == 0
    assert await synced(bench) == 1
