"""What orders need of images: a place to keep them, and a way to send them. `images` implements it; tests have their own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from shunter.model.errors import Problem

from shunter_agent.runtime.port import Live, Privileges, WorkerSpec

ARCHIVE: Final = "archive"
"""In place of another agent's address: where images are kept away from the nodes."""


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A whole image as orders and reports know it. `taken_at` in seconds since the epoch; `pause_s` 0 when it isn't known."""

    id: str
    spec: WorkerSpec
    incarnation: int
    taken_at: float
    bytes: int = 0
    pause_s: float = 0.0
    facts: dict[str, str] = {}
    runtime: str = ""
    doubt: str = ""
    """Why what is in it isn't to be trusted; empty: nothing is known against it."""
    privileges: Privileges | None = None
    """Those that its worker had (see `port.Runtime.privileges`). None: not known."""


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """What the archive had when this node last looked, at `looked_at` (seconds since the epoch; 0: it hasn't yet). Equal lists have equal
    `digest`s, on whatever node."""

    looked_at: float = 0.0
    digest: str = ""
    images: tuple[ImageFacts, ...] = ()


class Sending(Protocol):
    """An image on its way to another agent while it is still being written."""

    @property
    def bytes(self) -> int:
        """How many have gone over, what was copied ahead included."""
        ...

    def copy(self, memories: Sequence[Live], within_s: float) -> str:
        """Before it is begun: copy the worker's memory ahead, for at most so many seconds. Why not all of it was, in words; empty: it was.

        Blocks. Raises Retry or Rejected when the image can't be sent any more."""
        ...

    def finish(self, image: ImageFacts) -> int:
        """The folder is whole: send the rest, wait until the other side has verified it. Bytes sent. Blocks. Raises Retry or Rejected."""
        ...

    def cancel(self) -> None:
        """Give up; nothing of it stays visible at the other side. Blocks shortly. Idempotent."""
        ...


class Depot(Protocol):
    """The images of a node. Calls block; `begin` to `discard` of one image are made one after another."""

    root: Path

    def begin(self, image: str, expected: int = 0, least: int = 0, *, urgent: bool = False) -> Path:
        """An empty folder for an image of about `expected` bytes, and at least `least` (0: nobody knows); not visible as an image.

        Raises Rejected (the id exists or is no id), Retry (the disk has no room, or what `short` says)."""
        ...

    def short(self, worker: str, least: int, *, urgent: bool) -> Problem | None:
        """Why a dump of at least `least` bytes is known to fail for want of room; None: it may succeed. An `urgent` one may have all the
        room that there is."""
        ...

    def commit(self, image: ImageFacts, *, durable: bool) -> ImageFacts:
        """The folder is whole: digest it, write its manifest, make it visible. Returns it with its size.

        With `durable` it is on the disk before it is visible. Raises Rejected, Stalled."""
        ...

    def sync(self, image: str, between: Callable[[], None] = lambda: None) -> None:
        """Bring a whole image to the disk, if it is still there. `between` is called between some MiB, and may hold it up."""
        ...

    def abandon(self, image: str) -> None:
        """Delete what was begun. Idempotent. Raises Stalled when the disk doesn't let it: it is left until the agent's next start."""
        ...

    def get(self, image: str) -> ImageFacts | None:
        """A whole image, or None."""
        ...

    def folder(self, image: str) -> Path:
        """Where a whole image's files are, to restore from them: they are what an agent of this fleet made. Followed by one `done`.

        Blocks: an image that is encrypted is decrypted for it, and one that nobody has looked at since a restart is read through. Raises
        Rejected when it isn't what was made, or not here; Retry without room for it.
        """
        ...

    def done(self, image: str) -> None:
        """The restore has read what it needs."""
        ...

    @property
    def in_memory(self) -> bool:
        """What is made, received or restored lies in memory, beside the memory of its worker."""
        ...

    def all(self) -> tuple[ImageFacts, ...]:
        """All whole images, by id."""
        ...

    def discard(self, image: str) -> bool:
        """Delete a whole image. False when there is none. Idempotent."""
        ...

    def sending(
        self,
        folder: Path,
        image: str,
        node: str,
        address: str,
        progress: Callable[[int], None],
        expected: int = 0,
        worker: str = "",
        deadline: float | None = None,
    ) -> Sending:
        """Begin to send a growing image of `worker`, for about `expected` bytes of which the other side keeps room (0: nobody knows).

        Of all that is sent, images with the earliest `deadline` go first (seconds since the epoch; None: there is none), and copies last.

        Waits until the other side takes it; raises Retry or Rejected when it doesn't: before anything stands still for it. `progress` gets
        total bytes sent, from any thread."""
        ...

    def fetch(self, image: str, progress: Callable[[int], None], deadline: float | None = None) -> ImageFacts | None:
        """Bring an image here from the archive, which no node may have any more; None when it isn't there, or there is none.

        It goes as urgently as an image that is sent for a worker, by `deadline` as in `sending`. `progress` gets the bytes that are here,
        from any thread. Blocks. Raises Rejected or Retry: nothing of it is left here."""
        ...

    def archived(self) -> Archived | None:
        """What the archive has, as it was last seen: waits for nothing. None: there is no archive."""
        ...

    def in_archive(self, image: str) -> ImageFacts | None:
        """An image that the archive has now, made by an agent of this fleet; None when it hasn't, or there is none.

        Blocks. Raises Rejected for one that couldn't be restored; Retry when nobody can say."""
        ...

    def discard_archived(self, image: str) -> bool:
        """Delete an image in the archive. False when there is none. Idempotent. Blocks. Raises Rejected without an archive; Retry."""
        ...

    def send(self, image: str, node: str, address: str, progress: Callable[[int], None], deadline: float | None = None) -> int:
        """Send a whole image, to the archive where `address` is `ARCHIVE`; bytes sent. `deadline` as in `sending`.

        Raises Retry or Rejected: the other side then has nothing of it."""
        ...
