"""The ids of snapshots, from digests of parts that are kept: a notice changes neither the fleet nor the samples that it is decided on."""

import hashlib
from collections.abc import Callable

from shunter.model.canon import check, pieces
from shunter.model.ids import Digest
from shunter.model.snapshot import Fleet, Samples, Snapshot, identity


class Digests:
    """Keeps the digests of the last fleet and the last samples. For one thread at a time, which lets others have their turn."""

    def __init__(self, breathe: Callable[[], None] = lambda: None) -> None:
        """`breathe` is called between the parts of what is digested anew, where that can stand still for a moment."""
        self._breathe = breathe
        self._fleet: tuple[Fleet, Digest] | None = None
        self._samples: tuple[Samples, Digest] | None = None

    def take(self, snapshot: Snapshot) -> Digest:
        """The snapshot's id; it has it from now on. Raises NotCanonical as `model.canon.digest` does."""
        fleet, samples = snapshot.fleet, snapshot.samples
        if self._fleet is None or self._fleet[0] is not fleet:
            check(fleet.doubles)
            self._fleet = fleet, self._digest(fleet)
        if self._samples is None or self._samples[0] is not samples:
            self._samples = samples, self._digest(samples)
        vars(snapshot)["id"] = found = identity(snapshot.at, self._fleet[1], snapshot.notices, self._samples[1])
        return found

    def _digest(self, value: object) -> Digest:
        hashed = hashlib.sha256()
        for piece in pieces(value):
            hashed.update(piece)
            self._breathe()
        return Digest("sha256:" + hashed.hexdigest())

    def copy(self) -> "Digests":
        """The same, to go on with in another thread."""
        other = Digests(self._breathe)
        other._fleet, other._samples = self._fleet, self._samples
        return other
