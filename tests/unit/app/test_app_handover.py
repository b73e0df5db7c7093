"""An engine that starts while an `apply` leads: it asks, waits for a bounded time, and leads as soon as it may."""

import asyncio
from pathlib import Path

import pytest
from shunter.app import handover
from shunter.app.handover import OTHER_LEADS, applying, lead, wanted
from shunter.model.errors import Problem, Rejected

AWAY = Problem(code=OTHER_LEADS, what="another engine leads here: process 1", remedy="Let it run")


class Lease:
    """What an engine finds: the lead is taken until somebody gives it up."""

    def __init__(self) -> None:
        self.free = False
        self.tries = 0
        self.led = False

    async def run(self, _stop: asyncio.Event) -> None:
        self.tries += 1
        if not self.free:
            raise Rejected(AWAY)
        self.led = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "AGAIN_S", 0.02)


async def test_it_asks_an_apply_to_make_way_and_leads_then(tmp_path: Path) -> None:
    lease, said = Lease(), list[Problem]()
    with applying(tmp_path):
        assert not wanted(tmp_path)
        engine = asyncio.create_task(lead(tmp_path, lease.run, asyncio.Event(), said.append))
        async with asyncio.timeout(10):
            while not wanted(tmp_path):
                await asyncio.sleep(0)
        lease.free = True
        await asyncio.wait_for(engine, 10)
    assert lease.led
    assert [p.code for p in said] == ["SH966"], "said once, however often it is tried"
    assert not wanted(tmp_path), "nobody waits any more"


async def test_another_engine_is_not_waited_for(tmp_path: Path) -> None:
    lease, said = Lease(), list[Problem]()
    with applying(tmp_path):
        pass  # one that is over
    with pytest.raises(Rejected) as refused:
        await lead(tmp_path, lease.run, asyncio.Event(), said.append)
    assert (refused.value.problem, lease.tries, said) == (AWAY, 1, [])


async def test_it_waits_no_longer_than_it_says_and_ends_when_told_to(tmp_path: Path) -> None:
    lease, stop = Lease(), asyncio.Event()
    with applying(tmp_path):
        with pytest.raises(Rejected):
            await asyncio.wait_for(lead(tmp_path, lease.run, stop, lambda _: None, wait_s=0.05), 10)
        assert lease.tries > 1
        waiting = asyncio.create_task(lead(tmp_path, lease.run, stop, lambda _: None))
        stop.set()
        await asyncio.wait_for(waiting, 10)
    assert not lease.led
