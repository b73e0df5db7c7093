"""What an operation will cost: planning rates, refined by what agents measured in like operations."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from statistics import median
from typing import Final, TypeAlias

import msgspec

from shunter.model.ids import OperationId
from shunter.model.operation import Measured, OperationRecord, Status
from shunter.model.plan import Estimate

_ALIKE = 4.0
"""Measurements count for sizes up to this factor apart: beyond it fixed costs, not rates, would be compared."""
_SIZE: Final[Callable[["Sized"], int]] = itemgetter(0)

Rate: TypeAlias = tuple[float | None, int]
"""Bytes per second, None where nobody measured it; and by how many measurements."""
Rates: TypeAlias = tuple[Rate, Rate, Rate]
"""Of dumps, of sending and of restores."""
Sized: TypeAlias = tuple[int, float, OperationId, float | None, float | None, float | None]
"""An operation with a size: bytes, when it was made, its id, and bytes per second of dump, sending and restore, None where that wasn't
measured. In their natural order the sizes are."""
_RATES: Final = (3, 4, 5)
"""Where those are in it."""


def sized(record: OperationRecord) -> Sized | None:
    """What an operation that succeeded says of what others of its size will cost. None: nothing."""
    outcome = record.outcome
    if outcome is None or outcome.status is not Status.SUCCEEDED or not (size := outcome.measured.bytes):
        return None
    m = outcome.measured
    rates = (size / m.dump if m.dump else None, _sending(m, size), size / m.restore if m.restore else None)
    return (size, record.created_at, record.id, *rates)


def _sending(m: Measured, size: int) -> float | None:
    """Bytes per second of an image that has to go over as a whole, None where this says nothing of that: where it was copied ahead, the
    copy does, and where the other side had most of it, nobody can tell.
    """
    if m.copied and m.copy and 2 * m.copied >= size:
        return m.copied / m.copy
    if m.send and (m.sent is None or 2 * m.sent >= size):
        return (size if m.sent is None else m.sent) / m.send
    return None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Rates to plan with while nothing has been measured: bytes per second, and seconds.

    They are on the slow side, so that a move that is begun can be ended. None is a calibration: no public figures exist for dumps and
    restores on B200-class nodes.
    """

    dump_bytes_per_s: float = 5e9
    """Device and host memory into an image. 5 GB/s is the low end of unpinned copies over PCIe Gen5."""
    restore_bytes_per_s: float = 9e9
    """An image into a running worker. 9 GB/s is implied by a published restore of 501 GiB within a minute."""
    network_bytes_per_s: float = 40e9
    """Between two nodes. 40 GB/s is what one storage path over RDMA reaches; several 400G ports together reach 190."""
    fixed_dump_s: float = 1.0
    """Fence, freeze and the dump's own bookkeeping, whatever the size."""
    fixed_restore_s: float = 1.0
    """Network identity, probe and commit, whatever the size."""
    gpu_restore_floor_s: float = 20.0
    """No restore with GPUs is planned to be faster, until one was measured."""


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a transfer. Dump and send overlap, since the image is sent while it is written: `freeze` is the longer of the two."""

    freeze: float
    restore: float
    basis: str
    bytes: int | None
    fetch: float = 0.0
    """Between a node and the archive, by the planned rate of the network: nobody measures it."""

    def moving(self, wait: float = 0.0) -> Estimate:
        """A move or park-and-restore: the worker stands still for both phases. `wait` is time in the queue before them."""
        if self.bytes is None:
            return Estimate(basis=self.basis)
        stopped = self.freeze + self.restore
        return Estimate(bytes=self.bytes, stopped=round(stopped, 3), total=round(wait + stopped, 3), basis=self.basis)

    def dumping(self, wait: float = 0.0, *, copies: bool = True) -> Estimate:
        """A checkpoint or park. `copies`: bytes go to another node."""
        if self.bytes is None:
            return Estimate(basis=self.basis)
        return Estimate(
            bytes=self.bytes if copies else 0, stopped=round(self.freeze, 3), total=round(wait + self.freeze, 3), basis=self.basis
        )

    def tail(self, *, archived: bool) -> float:
        """Seconds of a restore, from an image that the archive has or a node."""
        return self.restore + (self.fetch if archived else 0.0)

    def restoring(self, *, archived: bool = False) -> Estimate:
        """A restore from an image that may have to be sent first. `archived`: by the archive."""
        basis = f"{self.basis}; fetched from the archive at the network's planned rate" if archived else self.basis
        if self.bytes is None:
            return Estimate(basis=basis)
        return Estimate(bytes=self.bytes, total=round(self.tail(archived=archived), 3), basis=basis)


class Costs:
    """Estimates from a profile and the measurements of ended operations."""

    def __init__(self, profile: Profile, measured: Sequence[Sized]) -> None:
        """`measured` is in order."""
        self.profile, self._measured = profile, measured
        self._rates: dict[tuple[int, int], Rates] = {}

    def _like(self, size: int) -> Rates:
        """What was measured of operations of about this size. It is worked out once for all sizes that have the same ones like them: there
        can be a hundred thousand, and as many sizes as workers.
        """
        measured = self._measured
        alike = bisect_left(measured, size / _ALIKE, key=_SIZE), bisect_right(measured, size * _ALIKE, key=_SIZE)
        if alike not in self._rates:
            dump, send, restore = (_rate(measured[alike[0] : alike[1]], phase) for phase in _RATES)
            self._rates[alike] = dump, send, restore
        return self._rates[alike]

    def phases(self, size: int | None, *, gpu: bool, rates: Profile | None = None, names: Sequence[str] = ()) -> Phases:
        """What `size` bytes cost. None: the size isn't known, only the fixed costs count and the estimate says so.

        `rates` come in the place of the built-in profile, `names` are the policies that they are from. What was measured wins over both.
        """
        p = self.profile if rates is None else rates
        planned = "planning profile" + (f" with {', '.join(names)}" if names else "")
        floor = p.gpu_restore_floor_s if gpu else 0.0
        if size is None:
            return Phases(
                freeze=p.fixed_dump_s, restore=max(floor, p.fixed_restore_s), basis="size not known: fixed costs only", bytes=None
            )
        (dump, measured_dumps), (send, measured_sends), (back, measured_restores) = self._like(size)
        dump_s = size / dump if dump else p.fixed_dump_s + size / p.dump_bytes_per_s
        send_s = size / send if send else size / p.network_bytes_per_s
        restore_s = size / back if back else max(floor, p.fixed_restore_s + size / p.restore_bytes_per_s)
        most = max(measured_dumps, measured_sends, measured_restores)
        basis = f"measured in {most} like operation{'s' if most > 1 else ''}" if dump and back else planned
        if most and basis == planned:
            basis = f"{planned}, in part measured in {most} like operation{'s' if most > 1 else ''}"
        return Phases(freeze=max(dump_s, send_s), restore=restore_s, basis=basis, bytes=size, fetch=size / p.network_bytes_per_s)


def _rate(alike: Sequence[Sized], phase: int) -> Rate:
    """Median bytes per second of a phase, and of how many; (None, 0) when none measured it."""
    rates = list(filter(None, map(itemgetter(phase), alike)))
    return (median(rates), len(rates)) if rates else (None, 0)
