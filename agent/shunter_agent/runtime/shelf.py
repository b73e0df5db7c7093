"""Who has which process of this machine, for the pretend driver: its images are copied from agent to agent, the one process isn't."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shunter_agent.runtime.port import Process


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The newest pretended dump of a process, and who has the process.

    `token` is that dump's. `owner` is the node whose worker it is, empty once it was released: then it is its image. `holder` is the node
    that holds a restored copy which doesn't run yet, or empty. `over`: it ran on after that dump, which can't be restored any more.
    """

    token: str
    owner: str
    holder: str = ""
    over: bool = False


class Shelf:
    """One folder that all pretend agents of a machine and user share, a file per process in it. Safe between threads and processes."""

    def __init__(self, root: Path) -> None:
        """Make the folder if it is missing. Raises OSError."""
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root

    def _path(self, process: Process) -> Path:
        return self._root / f"{process.pid}-{process.started}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else looks or changes anything meanwhile."""
        descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def get(self, process: Process) -> Standing | None:
        """None for a process that was never frozen on this machine."""
        try:
            return msgspec.json.decode(self._path(process).read_bytes(), type=Standing)
        except FileNotFoundError:
            return None

    def put(self, process: Process, standing: Standing) -> None:
        """Note it. To be called locked."""
        path = self._path(process)
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(standing))
        new.rename(path)  # an agent's death never leaves half of it

    def forget(self, process: Process) -> None:
        """The process was ended."""
        self._path(process).unlink(missing_ok=True)
