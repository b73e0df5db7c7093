"""Local leadership: one engine on a state directory at a time, each with a higher epoch than the one before."""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from shunter.act.store import Store
from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import Epoch, OperationId
from shunter.model.operation import Sending


class Leadership(Protocol):
    """What allows an engine to act."""

    @property
    def epoch(self) -> Epoch:
        """The number of this leadership."""
        ...

    @property
    def lost(self) -> Problem:
        """What is said when it isn't held any more."""
        ...

    @property
    def revoked(self) -> frozenset[OperationId]:
        """Operations that somebody who may wants to be given up."""
        ...

    @property
    def troubles(self) -> Mapping[str, Problem | None]:
        """What is wrong beside that, by what it is about; None: nothing. Told at each tick."""
        ...

    def held(self) -> bool:
        """We lead. Asked before every order."""
        ...

    def show(self, sending: Sending) -> None:
        """Let people see it where operations are kept beside our disk, soon or not at all. Never raises and doesn't wait."""
        ...


class Lease:
    """Held from construction to `close`, or to the end of the process: the kernel drops the lock with it, so it can't be left behind."""

    def __init__(self, path: Path, store: Store) -> None:
        """Take the lock and begin a new epoch, durably.

        Raises Rejected SH507 (another engine holds it), Stalled SH508 (the file can't be made), SH501 (the epoch can't be written).
        """
        self._path = path
        try:
            self._fd: int | None = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Stalled(
                Problem(
                    code="SH508",
                    what=f"the lock file can't be opened: {error}",
                    remedy="Make the state directory writable for the engine",
                    subject=str(path),
                )
            ) from error
        try:
            self._lock(self._fd)
            self.epoch: Epoch = store.next_epoch()
        except BaseException:
            self.close()
            raise

    @property
    def lost(self) -> Problem:
        """See `Leadership`."""
        return Problem(
            code="SH508",
            what="the lock file isn't ours any more",
            remedy="Start one engine on a state directory",
            subject=self._path.name,
        )

    @property
    def revoked(self) -> frozenset[OperationId]:
        """None: who wants that here changes the policies."""
        return frozenset()

    @property
    def troubles(self) -> Mapping[str, Problem | None]:
        """None that the store doesn't know of."""
        return {}

    def held(self) -> bool:
        """The lock is still ours, and still the one that another engine would find at this path."""
        if self._fd is None:
            return False
        try:
            ours, there = os.fstat(self._fd), os.stat(self._path)
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def show(self, sending: Sending) -> None:
        """See `Leadership`. Operations are on our disk alone."""

    def close(self) -> None:
        """Let another engine lead. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise Rejected(
                Problem(
                    code="SH507",
                    what=f"another engine leads here: process {holder}",
                    remedy="Let that one run, or stop it first; two engines on one state directory would give conflicting orders",
                    subject=str(self._path),
                )
            ) from error
        # In place, not cut off first: on a disk that is full the block that is there already is all there is.
        os.pwrite(fd, f"{os.getpid()}\n".encode().ljust(32), 0)
