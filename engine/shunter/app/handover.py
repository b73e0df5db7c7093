"""How `shunter apply`, where it leads, makes way for an engine that starts meanwhile.

Two locks beside the engine's own, both dropped by the kernel with their process: one that an `apply` which leads holds, and one that an
engine holds while it waits. So nothing is left behind, whoever ends when.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Rejected

WAIT_S: Final = 60.0
"""How long an engine waits for an `apply` to give up the lead: it has to bring what it is about to a point from which another goes on."""
AGAIN_S: Final = 0.5
"""Between two tries to lead."""
OTHER_LEADS: Final = "SH507"


def wanted(state: Path) -> bool:
    """An engine waits for the lead."""
    return _held(state / "engine.next")


@contextlib.contextmanager
def applying(state: Path) -> Iterator[None]:
    """Say that it is an `apply` that leads, or is about to. Several may say so at once."""
    with _lock(state / "engine.applying", fcntl.LOCK_SH):
        yield


async def lead(
    state: Path,
    run: Callable[[asyncio.Event], Awaitable[None]],
    stop: asyncio.Event,
    tell: Callable[[Problem], None],
    *,
    wait_s: float = WAIT_S,
) -> None:
    """Run an engine. Where an `apply` leads, ask it to make way and wait for that, `wait_s` seconds at most.

    Raises what `run` does, Rejected SH507 at once where another engine leads.
    """
    loop = asyncio.get_running_loop()
    deadline: float | None = None
    while not stop.is_set():
        try:
            await run(stop)
            break
        except Rejected as error:
            late = deadline is not None and loop.time() > deadline
            if error.problem.code != OTHER_LEADS or late or not _held(state / "engine.applying"):
                raise
        if deadline is None:
            deadline = loop.time() + wait_s
            tell(
                Problem(
                    code="SH966",
                    what=f"`shunter apply` leads here; waiting up to {wait_s:g} s for it to make way",
                    remedy="Nothing to do: what it has begun is gone on with",
                    subject=str(state),
                )
            )
        with _lock(state / "engine.next", fcntl.LOCK_SH), contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), AGAIN_S)


@contextlib.contextmanager
def _lock(path: Path, how: int) -> Iterator[None]:
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def _held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # nobody has ever
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
