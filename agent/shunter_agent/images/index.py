"""Which chunks a store's whole images hold, and where. It is made of their manifests each time, so there is nothing of it to lose."""

import threading
from typing import Final, NamedTuple

from shunter_agent.images.manifest import ImageManifest

LEAST: Final = 4096
"""Bytes of a chunk that is worth looking for."""


class Place(NamedTuple):
    """Where bytes lie: a file of a whole image, and from which byte on. `ImageStore.read` reads there."""

    image: str
    name: str
    offset: int


class ChunkIndex:
    """Chunks by digest. Usable from any thread. A place that it gives may be gone, or damaged, by the time that it is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[bytes, dict[str, tuple[str, int]]] = {}
        self._held: dict[str, set[bytes]] = {}

    def add(self, manifest: ImageManifest) -> None:
        """An image is whole, and its files are all what its manifest says. Idempotent."""
        held: dict[bytes, tuple[str, int]] = {}
        for file in manifest.files:
            at = 0
            for part in file.parts:
                if part.size >= LEAST:
                    held.setdefault(bytes.fromhex(part.blake3), (file.name, at))
                at += part.size
        with self._lock:
            self._held[manifest.id] = set(held)
            for digest, place in held.items():
                self._places.setdefault(digest, {})[manifest.id] = place

    def remove(self, image: str) -> None:
        """It is about to be deleted. Idempotent."""
        with self._lock:
            for digest in self._held.pop(image, ()):
                holders = self._places[digest]
                del holders[image]
                if not holders:
                    del self._places[digest]

    def find(self, digest: str) -> tuple[Place, ...]:
        """Where bytes of this BLAKE3 (hex) are; empty: nowhere here."""
        with self._lock:
            holders = self._places.get(bytes.fromhex(digest), {})
            return tuple(Place(image, name, offset) for image, (name, offset) in holders.items())

    def __len__(self) -> int:
        """How many different chunks there are."""
        with self._lock:
            return len(self._places)
