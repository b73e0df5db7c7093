"""The ids of snapshots, from parts that are kept: a notice changes neither the fleet nor the samples that it is decided on.

`Snapshot.id` is the same digest. There all of it is one call into C, during which no other thread has its turn; here it is many short ones.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from shunter.model.canon import encode
from shunter.model.ids import Digest
from shunter.model.snapshot import Fleet, Samples, Snapshot

_AT_ONCE: Final = 500


class Digests:
    """Keeps the bytes of the last fleet and the last samples. For one thread at a time."""

    def __init__(self) -> None:
        self._fleet: tuple[Fleet, bytes] | None = None
        self._samples: tuple[Samples, bytes] | None = None

    def take(self, snapshot: Snapshot) -> Digest:
        """The snapshot's id; it has it from now on. Raises NotCanonical as `model.canon.digest` does."""
        fleet, samples = snapshot.fleet, snapshot.samples
        if self._fleet is None or self._fleet[0] is not fleet:
            self._fleet = fleet, _of_fleet(fleet)
        if self._samples is None or self._samples[0] is not samples:
            self._samples = samples, _of_samples(samples)
        hashed = hashlib.sha256(b'{"at":' + encode(snapshot.at) + b',"fleet":')
        for part in (self._fleet[1], b',"notices":', encode(snapshot.notices), b',"samples":', self._samples[1], b"}"):
            hashed.update(part)
        vars(snapshot)["id"] = found = Digest(f"sha256:{hashed.hexdigest()}")
        return found

    def copy(self) -> "Digests":
        """The same, to go on with in another thread."""
        other = Digests()
        other._fleet, other._samples = self._fleet, self._samples
        return other


def _of_fleet(fleet: Fleet) -> bytes:
    parts = (b'{"images":', _array(fleet.images), b',"nodes":', _array(fleet.nodes), b',"workers":', _array(fleet.workers), b"}")
    return b"".join(parts)


def _of_samples(samples: Samples) -> bytes:
    parts = (b'{"policies":', encode(samples.policies), b',"pools":', encode(samples.pools), b',"workers":', _object(samples.workers), b"}")
    return b"".join(parts)


def _array(items: Sequence[object]) -> bytes:
    return b"[" + b",".join(encode(items[n : n + _AT_ONCE])[1:-1] for n in range(0, len(items), _AT_ONCE)) + b"]"


def _object(items: Mapping[str, object]) -> bytes:
    if type(items) is not dict:  # a table, which writes itself
        return encode(items)
    names = sorted(items)
    pieces = ({name: items[name] for name in names[n : n + _AT_ONCE]} for n in range(0, len(names), _AT_ONCE))
    return b"{" + b",".join(encode(piece)[1:-1] for piece in pieces) + b"}"
