"""All that a decision was made on, in one file: the snapshot, the history behind `for`, and what the engine had done.

The file is a recorded snapshot with more keys, so that whatever reads snapshots reads it too. With the policies of one commit it gives the
same plan, byte for byte, whichever command reads it.
"""

from pathlib import Path
from typing import Self

import msgspec

from shunter.app.sightings import Sighting
from shunter.decide.profile import Profile
from shunter.model.canon import decode
from shunter.model.errors import Problem, Rejected
from shunter.model.operation import EngineState
from shunter.model.snapshot import Fleet, Notice, Samples, Snapshot
from shunter.observe import recorded

MAX_BYTES = 1024 * 2**20


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Samples at an earlier instant, and the place of what the fleet was in the recording's `sightings`; None: nobody looked."""

    at: float
    samples: Samples
    seen: int | None = None


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

    def snapshots(self) -> list[Snapshot]:
        """For `evaluate`: the history, then the current one. Where nobody looked the fleet is the one at the end: see `app.unseen`."""
        return [*map(self._past, self.history), Snapshot(at=self.at, fleet=self.fleet, samples=self.samples, notices=self.notices)]

    def _past(self, past: Past) -> Snapshot:
        if past.seen is None:
            return Snapshot(at=past.at, fleet=self.fleet, samples=past.samples)
        seen = self.sightings[past.seen]
        return Snapshot(at=past.at, fleet=seen.fleet, samples=past.samples, notices=seen.notices)


def save(recording: Recording, path: Path) -> None:
    """Write it, mode 0600 since labels and addresses can be telling. Raises Retry SH320."""
    recorded.save(recording, path)


def load(path: Path) -> Recording:
    """Read what `save` wrote, or a snapshot alone. Raises Rejected SH925 when it can't be read or isn't one, and says where."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise _invalid(path, f"it has {size:,} bytes, more than a recording can have")
        return _whole(decode(path.read_bytes(), Recording))
    except OSError as error:
        raise _invalid(path, f"it can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise _invalid(path, f"it isn't a recorded snapshot: {error}") from error


def _whole(recording: Recording) -> Recording:
    known = len(recording.sightings)
    if any(past.seen is not None and not 0 <= past.seen < known for past in recording.history):
        raise ValueError(f"its history names a fleet that isn't among its {known} sightings")
    return recording


def _invalid(path: Path, why: str) -> Rejected:
    return Rejected(
        Problem(code="SH925", what=why, remedy="Check the path, or record one anew: `shunter snapshot FILE`", subject=str(path))
    )
