"""Who may write how much to the disk of the images: all that are on their way share what is free, and none may take the journal's part."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from shunter.model.errors import Problem, Retry
from shunter.model.units import Bytes

from shunter_agent.runtime import hostmemory

STEP: Final = 64 << 20
"""Bytes by which an image that grows beyond what it announced, or that announced nothing, asks for more."""
KEEP: Final = 256 << 20
"""Bytes that no image may take: a full disk would stop the agent's journal, and with it every order."""


_IN_MEMORY: Final = ("tmpfs", "ramfs")
_AS_WRITTEN: Final = (*_IN_MEMORY, "ext2", "ext3", "ext4", "xfs")
"""File systems on which bytes take as much room as they are. Others may compress, or find that they have them already."""


def is_in_memory(folder: Path) -> bool:
    """The folder is on a tmpfs, or another file system without a disk."""
    return _kind(folder) in _IN_MEMORY


def takes_what_is_written(folder: Path) -> bool:
    """Bytes are known to take as much of the folder's file system as they are."""
    return _kind(folder) in _AS_WRITTEN


def _kind(folder: Path) -> str:
    """Of the file system that the folder is on; empty: not known."""
    device = folder.stat().st_dev
    found = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if fields.split()[2] == found:
            return kind.split()[0]
    return ""


def available_memory(*, swapping: bool = False) -> int:
    """Bytes that the kernel could give, without `swapping` or with it; 0 when it doesn't say."""
    return hostmemory.available(swapping=swapping) or 0


class _Promise(Protocol):
    def outstanding(self) -> int:
        """Promised bytes that aren't on the disk yet."""
        ...


class Room:
    """The free bytes of one file system. Usable from any thread."""

    def __init__(self, free: Callable[[], int], keep: int = KEEP, most: Callable[[], int | None] = lambda: None) -> None:
        """`free` measures the bytes that can still be written; `keep` of them are left alone. `most` is how many could be at the very most,
        whatever others need; None: nobody knows."""
        self._free = free
        self._most = most
        self._keep = keep
        self._lock = threading.Lock()
        self._promises: set[_Promise] = set()

    def share(self, image: str) -> "Share":
        """A share of nothing yet, for an image that is received."""
        return Share(self, image)

    def dump(self, image: str, expected: int, folder: Path, least: int = 0, *, urgent: bool = False) -> "Dump":
        """A promise to a driver that writes about `expected` bytes (0: nobody knows) into `folder` by itself, and at least `least` of them.

        It gets what there is, as a worker's memory says little of how large its dump will be: `expected` refuses none. Raises Retry SH814
        when there is nothing, SH827 as `short` says.
        """
        with self._lock:
            left = self._left()
            short = self._short(image, least, urgent=urgent)
            if short is not None:
                raise Retry(short)
            wanted = expected if expected > 0 else STEP
            if left <= 0:
                raise _full(image, wanted, left)
            promise = Dump(self, folder, min(wanted, left))
            self._promises.add(promise)
            return promise

    def short(self, subject: str, least: int, *, urgent: bool) -> Problem | None:
        """SH827 for a dump of at least `least` bytes (0: nobody knows) that is known to fail for want of room; None: it may succeed.

        Whoever has time leaves alone what others were promised, and the journal's part. An `urgent` one, of a worker that is lost if it
        stays, may try with all that there is: its dump fails before the worker is harmed, if it does, and somebody else may fail first.
        """
        with self._lock:
            return self._short(subject, least, urgent=urgent)

    def _short(self, subject: str, least: int, *, urgent: bool) -> Problem | None:
        most = self._most()
        if least <= 0 or most is None:
            return None
        left = most if urgent else min(most, self._left())
        return _hopeless(subject, least, left) if least > left else None

    def _left(self) -> int:
        return self._free() - self._keep - sum(promise.outstanding() for promise in self._promises)

    def take(self, promise: "Share", more: int, image: str) -> None:
        """Promise `more` bytes to an image. Raises Retry SH814 when they aren't left, with both numbers; nothing is promised then."""
        with self._lock:
            left = self._left()
            if more > left:
                raise _full(image, more, left)
            self._promises.add(promise)
            promise.promised += more

    def forget(self, promise: _Promise) -> None:
        """Nothing more will be written of it. Idempotent."""
        with self._lock:
            self._promises.discard(promise)


def _hopeless(subject: str, least: int, left: int) -> Problem:
    return Problem(
        code="SH827",
        what=f"a dump of the worker has at least {Bytes(least)}, and {Bytes(max(left, 0))} can be written where images are made here",
        remedy="Discard images here, wait for those that are on their way, or give the images a larger disk (with `keys`: `work`)",
        subject=subject,
    )


def _full(image: str, needed: int, left: int) -> Retry:
    return Retry(
        Problem(
            code="SH814",
            what=f"the image needs {Bytes(needed)} more on this node's disk, where {Bytes(max(left, 0))} are left for images",
            remedy="Discard images there, wait for those that are on their way, or choose another node",
            subject=image,
        )
    )


class Dump:
    """What a driver was promised. `close` it once the image is whole or given up."""

    def __init__(self, room: Room, folder: Path, promised: int) -> None:
        self._room = room
        self._folder = folder
        self._promised = promised

    def outstanding(self) -> int:
        """Promised bytes that aren't in its folder yet."""
        written = 0
        with contextlib.suppress(OSError):
            written = sum(path.stat().st_size for path in self._folder.iterdir())
        return max(0, self._promised - written)

    def close(self) -> None:
        """Give back what wasn't written. Idempotent."""
        self._room.forget(self)


class Share:
    """What one image was promised and hasn't written yet. Leave it as a context, and nothing stays promised."""

    def __init__(self, room: Room, image: str) -> None:
        self._room = room
        self._image = image
        self.promised = 0
        self._unseen = 0

    def __enter__(self) -> "Share":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._room.forget(self)

    def outstanding(self) -> int:
        """Promised bytes that aren't written yet."""
        return self.promised

    def announce(self, size: int) -> None:
        """The image will have about `size` bytes (0: nobody knows). Raises Retry SH814 when there isn't the room for it."""
        self._take(size if size > 0 else STEP)

    def need(self, size: int) -> None:
        """`size` bytes come next. Raises Retry SH814 when they weren't promised and there is no room for more, or when somebody else has
        written what was promised."""
        missing = size - self.promised
        if missing > 0:
            try:
                self._take(max(STEP, missing))
            except Retry:
                self._take(missing)
        self._unseen += size
        if self._unseen >= STEP:
            self._unseen = 0
            self._take(0)

    def wrote(self, size: int) -> None:
        """They are written."""
        self.promised -= size

    def _take(self, more: int) -> None:
        self._room.take(self, more, self._image)
