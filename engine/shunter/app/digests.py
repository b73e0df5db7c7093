"""The ids of snapshots, from parts that are kept: a notice changes neither the fleet nor the samples that it is decided on."""

import hashlib
from collections.abc import Callable

from shunter.model.canon import check, encode, pieces
from shunter.model.ids import Digest
from shunter.model.snapshot import Fleet, Samples, Snapshot


class Digests:
    """Keeps the bytes of the last fleet and the last samples. For one thread at a time, which lets others have their turn."""

    def __init__(self, breathe: Callable[[], None] = lambda: None) -> None:
        """`breathe` is called between the parts of what is laid out anew, where that can stand still for a moment."""
        self._breathe = breathe
        self._fleet: tuple[Fleet, bytes] | None = None
        self._samples: tuple[Samples, bytes] | None = None

    def take(self, snapshot: Snapshot) -> Digest:
        """The snapshot's id; it has it from now on. Raises NotCanonical as `model.canon.digest` does."""
        fleet, samples = snapshot.fleet, snapshot.samples
        if self._fleet is None or self._fleet[0] is not fleet:
            check(fleet.doubles)
            self._fleet = fleet, self._laid_out(fleet)
        if self._samples is None or self._samples[0] is not samples:
            self._samples = samples, self._laid_out(samples)
        hashed = hashlib.sha256(b'{"at":' + encode(snapshot.at) + b',"fleet":')
        for part in (self._fleet[1], b',"notices":', encode(snapshot.notices), b',"samples":', self._samples[1], b"}"):
            hashed.update(part)
        vars(snapshot)["id"] = found = Digest(f"sha256:{hashed.hexdigest()}")
        return found

    def _laid_out(self, value: object) -> bytes:
        laid = []
        for piece in pieces(value):
            laid.append(piece)
            self._breathe()
        return b"".join(laid)

    def copy(self) -> "Digests":
        """The same, to go on with in another thread."""
        other = Digests(self._breathe)
        other._fleet, other._samples = self._fleet, self._samples
        return other
