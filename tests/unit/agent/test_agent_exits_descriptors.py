"""Running out of descriptors says nothing of a worker: only a process that isn't there has ended."""

import asyncio
import errno
import os

import pytest
from shunter_agent import exits
from shunter_agent.exits import Exits
from shunter_agent.runtime.port import Process


async def test_a_live_process_that_cannot_be_watched_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, tries = os.pidfd_open, []

    def scarce(pid: int) -> int:
        tries.append(pid)
        if len(tries) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(pid)

    monkeypatch.setattr(os, "pidfd_open", scarce)
    monkeypatch.setattr(exits, "AGAIN_S", 0.0)
    ended: list[str] = []
    watching = Exits(lambda worker, _status: ended.append(worker))
    watching.watch("decode-0", Process(pid=os.getpid(), started=0))
    async with asyncio.timeout(5):
        while len(tries) < 2:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    watching.close()
    assert ended == []
