"""What runs together in the cluster's threads ends together, and a thread that ends says why."""

import asyncio
import threading

import httpx
import pytest
from shunter.app.upheld import Upheld
from shunter.cluster.access import Access
from shunter.cluster.api import Api
from shunter.cluster.elector import Term
from shunter.cluster.memory import Memory
from shunter.cluster.thread import together
from shunter.model.ids import Epoch


class Works:
    """Some of which end when they are told to; one that is cancelled takes a while for it."""

    def __init__(self) -> None:
        self.begun = 0
        self.left = 0
        self.go = asyncio.Event()

    async def fails(self) -> None:
        await self.go.wait()
        raise ValueError("it is this one")

    async def lasts(self) -> None:
        self.begun += 1
        self.left += 1
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            self.left -= 1


async def test_when_one_fails_the_others_have_ended_before_it_is_told() -> None:
    works = Works()
    works.go.set()
    with pytest.raises(ValueError, match="it is this one"):
        await together(works.lasts(), works.fails(), works.lasts())
    assert (works.begun, works.left) == (2, 0)


async def test_when_it_is_cancelled_all_have_ended_before_it_is_told() -> None:
    works = Works()
    task = asyncio.create_task(together(works.lasts(), works.fails(), works.lasts()))
    while works.begun < 2:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert works.left == 0


async def test_it_ends_when_all_have() -> None:
    async def nothing() -> None:
        pass

    await together(nothing(), nothing())


def test_what_ended_the_thread_of_a_term_is_told_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its works it was, and though the first of them still runs."""
    ran = threading.Event()

    async def fails(_: Memory) -> None:
        await asyncio.to_thread(ran.wait)
        raise ValueError("it is this one")

    monkeypatch.setattr(Memory, "run", fails)
    empty = httpx.MockTransport(lambda _: httpx.Response(200, json={"metadata": {"resourceVersion": "1"}, "items": []}))
    term = Term(Epoch(1), 0.0, 10.0, lambda: 1.0)
    upheld = Upheld(lambda: Api(Access(server="http://127.0.0.1:1"), transport=empty), "ns", term, lambda: 0.0)
    upheld.open()
    ran.set()
    assert upheld._thread is not None
    upheld._thread._thread.join(10)
    assert repr(upheld._thread.failed) == "ValueError('it is this one')"
    assert not upheld.held()
    upheld.close()
