"""All that a decision was made on, in one file: the snapshot, the history behind `for`, and what the engine had done.

The file is a recorded snapshot with more keys, so that whatever reads snapshots reads it too. With the policies of one commit it gives the
same plan, byte for byte, whichever command reads it.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec

from shunter.app.pictures import Pictured
from shunter.app.sightings import Sighting
from shunter.decide.profile import Profile
from shunter.model.canon import decode
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import ImageId, PoolId, WorkerId
from shunter.model.operation import EngineState
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Image, Notice, Samples, Snapshot, Worker
from shunter.observe import recorded

MAX_BYTES = 1024 * 2**20


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Samples at an earlier instant, and the place of what the fleet was in the recording's `sightings`; None: nobody looked."""

    at: float
    samples: Samples
    seen: int | None = None
    images: tuple[Mapping[WorkerId, Pictured], ...] | None = None
    """What the images of workers that run were since the instant before: see `Pictures.during`. None: it isn't known."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot's own fields, and what there was besides. `profile` is None in one that was written by hand: the reader's counts."""

    at: float
    fleet: Fleet
    samples: Samples = Samples()
    notices: tuple[Notice, ...] = ()
    history: tuple[Past, ...] = ()
    """Oldest first. Several at one time: all that the fleet was since the one before."""
    sightings: tuple[Sighting, ...] = ()
    """What the fleet was in the history."""
    state: EngineState = EngineState()
    profile: Profile | None = None

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        history: tuple[Past, ...] = (),
        state: EngineState | None = None,
        profile: Profile | None = None,
        sightings: tuple[Sighting, ...] = (),
    ) -> Self:
        """A snapshot with what was known besides."""
        return cls(
            at=snapshot.at,
            fleet=snapshot.fleet,
            samples=snapshot.samples,
            notices=snapshot.notices,
            history=history,
            sightings=sightings,
            state=state or EngineState(),
            profile=profile,
        )

    def snapshots(self, *, images: bool = False) -> list[Snapshot]:
        """For `evaluate`: the history, then the current one. Where nobody looked the fleet is the one at the end: see `app.unseen`.

        With `images`, workers have the number of images that they had then, and of that age; else those are of some other time.
        """
        past = [snapshot for one in self.history for snapshot in self._past(one, images=images)]
        return [*past, Snapshot(at=self.at, fleet=self.fleet, samples=self.samples, notices=self.notices)]

    def _past(self, past: Past, *, images: bool) -> Iterator[Snapshot]:
        if past.seen is None:
            yield Snapshot(at=past.at, fleet=self.fleet, samples=past.samples)
            return
        seen = self.sightings[past.seen]
        fleets = _pictured(seen.fleet, past.at, past.images) if images and past.images else [seen.fleet]
        samples = _wanting(past.samples, seen.desired, past.at)
        yield from (Snapshot(at=past.at, fleet=fleet, samples=samples, notices=seen.notices) for fleet in fleets)


def _wanting(samples: Samples, desired: Mapping[PoolId, float], at: float) -> Samples:
    """With what was wanted of pools then, where Prometheus doesn't say it."""
    pools = dict(samples.pools)
    for pool, number in desired.items():
        own = pools.get(pool, {})
        if not isinstance(own.get("desired"), Known):
            pools[pool] = {**own, "desired": Known(value=number, unit="workers", at=at, query="as the engine saw it")}
    return msgspec.structs.replace(samples, pools=pools) if desired else samples


def _pictured(fleet: Fleet, at: float, images: Sequence[Mapping[WorkerId, Pictured]]) -> Iterator[Fleet]:
    """The fleet with each of these; images of workers that don't run are the fleet's own."""
    running = [w for w in fleet.workers if w.slot is not None]
    away = {w.id for w in fleet.workers if w.slot is None}
    own, last = tuple(i for i in fleet.images if i.worker in away), images[-1]
    for one in images:
        found = [
            _image(w, n, at - age) for w in running for number, age in (one.get(w.id) or last.get(w.id, (0, 0.0)),) for n in range(number)
        ]
        yield msgspec.structs.replace(fleet, images=(*own, *found))


def _image(worker: Worker, number: int, taken_at: float) -> Image:
    """One of which only that it was there, and how old the newest was, is known."""
    return Image(
        id=ImageId(f"{worker.id}~{number}"),
        worker=worker.id,
        incarnation=worker.incarnation,
        taken_at=taken_at,
        bytes=0,
        nodes=(),
        role=worker.role,
        graph=worker.graph,
        engine=worker.engine,
    )


def save(recording: Recording, path: Path) -> None:
    """Write it, mode 0600 since labels and addresses can be telling. Raises Retry SH320."""
    recorded.save(recording, path)


def load(path: Path) -> Recording:
    """Read what `save` wrote, or a snapshot alone. Raises Rejected SH925 when it can't be read or isn't one, and says where."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise _invalid(path, f"it has {size:,} bytes, more than a recording can have")
        return decoded(path.read_bytes())
    except OSError as error:
        raise _invalid(path, f"it can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise _invalid(path, f"it isn't a recorded snapshot: {error}") from error


def decoded(data: bytes) -> Recording:
    """Read its JSON. Raises ValueError and msgspec.DecodeError."""
    return checked(decode(data, Recording))


def checked(recording: Recording) -> Recording:
    """The same. Raises ValueError where its parts don't fit together."""
    known = len(recording.sightings)
    if any(past.seen is not None and not 0 <= past.seen < known for past in recording.history):
        raise ValueError(f"its history names a fleet that isn't among its {known} sightings")
    return recording


def _invalid(path: Path, why: str) -> Rejected:
    return Rejected(
        Problem(code="SH925", what=why, remedy="Check the path, or record one anew: `shunter snapshot FILE`", subject=str(path))
    )
