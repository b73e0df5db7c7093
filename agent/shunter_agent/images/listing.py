"""What the archive has, as it was last seen: for reports, which wait for no object store."""

import threading
from typing import Final

import msgspec
from blake3 import blake3
from shunter.model.errors import Rejected

from shunter_agent.images.archive import Archive
from shunter_agent.images.manifest import ImageManifest
from shunter_agent.images.port import Kept


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The images that the archive had at `looked_at` (seconds since the epoch), by id, without their files. Equal lists have equal
    digests.
    """

    looked_at: float
    digest: str
    images: tuple[ImageManifest, ...]


class Listed:
    """Looks, and keeps what it saw. Usable from several threads."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._looking = threading.Lock()
        self._known: dict[Kept, ImageManifest | None] = {}
        self.last: Listing | None = None
        """None: it hasn't been seen yet."""

    def look(self) -> None:
        """See what is there: one listing, and a little object of each image that wasn't there the last time. Blocks.

        An image of which nothing can be read, for want of its key, say, is left out: it couldn't be restored here either.
        Raises Retry SH822, with what was seen before kept.
        """
        with self._looking:
            at = self._archive.now()
            self._known = {kept: self._about(kept) for kept in self._archive.kept()}
            images = tuple(sorted((m for m in self._known.values() if m is not None), key=_by_id))
            self.last = Listing(looked_at=at, digest=blake3(_ENCODER.encode(images)).hexdigest(), images=images)

    def _about(self, kept: Kept) -> ImageManifest | None:
        if kept in self._known:
            return self._known[kept]
        try:
            return self._archive.about(kept.key)
        except Rejected:
            return None


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def _by_id(manifest: ImageManifest) -> str:
    return manifest.id
