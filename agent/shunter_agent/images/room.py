"""Who may write how much to the disk of the images: all that are on their way share what is free, and none may take the journal's part."""

import threading
from collections.abc import Callable
from typing import Final

from shunter.model.errors import Problem, Retry
from shunter.model.units import Bytes

STEP: Final = 64 << 20
"""Bytes by which an image that grows beyond what it announced, or that announced nothing, asks for more."""
KEEP: Final = 256 << 20
"""Bytes that no image may take: a full disk would stop the agent's journal, and with it every order."""


class Room:
    """The free bytes of one file system. Usable from any thread."""

    def __init__(self, free: Callable[[], int], keep: int = KEEP) -> None:
        """`free` measures the bytes that can still be written; `keep` of them are left alone."""
        self._free = free
        self._keep = keep
        self._lock = threading.Lock()
        self._promised = 0

    def share(self, image: str) -> "Share":
        """A share of nothing yet, for one image."""
        return Share(self, image)

    def take(self, more: int, image: str) -> None:
        """Promise `more` bytes to an image. Raises Retry SH814 when they aren't left, with both numbers; nothing is promised then."""
        with self._lock:
            left = self._free() - self._keep - self._promised
            if more > left:
                raise Retry(
                    Problem(
                        code="SH814",
                        what=f"the image needs {Bytes(more)} more on this node's disk, where {Bytes(max(left, 0))} are left for images",
                        remedy="Discard images there, wait for those that are on their way, or choose another node",
                        subject=image,
                    )
                )
            self._promised += more

    def give_back(self, less: int) -> None:
        """So many promised bytes are written, which the disk shows by itself, or won't be."""
        with self._lock:
            self._promised -= less


class Share:
    """What one image was promised and hasn't written yet. Leave it as a context, and nothing stays promised."""

    def __init__(self, room: Room, image: str) -> None:
        self._room = room
        self._image = image
        self._promised = 0
        self._unseen = 0

    def __enter__(self) -> "Share":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._room.give_back(self._promised)
        self._promised = 0

    def announce(self, size: int) -> None:
        """The image will have about `size` bytes (0: nobody knows). Raises Retry SH814 when there isn't the room for it."""
        self._take(size if size > 0 else STEP)

    def need(self, size: int) -> None:
        """`size` bytes come next. Raises Retry SH814 when they weren't promised and there is no room for more, or when somebody else has
        written what was promised."""
        missing = size - self._promised
        if missing > 0:
            try:
                self._take(max(STEP, missing))
            except Retry:
                self._take(missing)
        self._unseen += size
        if self._unseen >= STEP:
            self._unseen = 0
            self._room.take(0, self._image)

    def wrote(self, size: int) -> None:
        """They are written."""
        self._room.give_back(size)
        self._promised -= size

    def _take(self, more: int) -> None:
        self._room.take(more, self._image)
        self._promised += more
