"""All that a decision was made on, in one file: the snapshot, the history behind `for`, and what the engine had done.

The file is a recorded snapshot with more keys, so that whatever reads snapshots reads it too. With the policies of one commit it gives the
same plan, byte for byte, whichever command reads it.
"""

from pathlib import Path
from typing import Self

import msgspec

from shunter.decide.profile import Profile
from shunter.model.canon import decode
from shunter.model.errors import Problem, Rejected
from shunter.model.operation import EngineState
from shunter.model.snapshot import Fleet, Notice, Samples, Snapshot
from shunter.observe import recorded

MAX_BYTES = 1024 * 2**20


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """Samples at an earlier instant; the fleet was taken to be what it was at the end."""

    at: float
    samples: Samples


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot's own fields, and what there was besides. `profile` is None in one that was written by hand: the reader's counts."""

    at: float
    fleet: Fleet
    samples: Samples = Samples()
    notices: tuple[Notice, ...] = ()
    history: tuple[Past, ...] = ()
    """Oldest first."""
    state: EngineState = EngineState()
    profile: Profile | None = None

    @classmethod
    def of(
        cls, snapshot: Snapshot, history: tuple[Past, ...] = (), state: EngineState | None = None, profile: Profile | None = None
    ) -> Self:
        """A snapshot with what was known besides."""
        return cls(
            at=snapshot.at,
            fleet=snapshot.fleet,
            samples=snapshot.samples,
            notices=snapshot.notices,
            history=history,
            state=state or EngineState(),
            profile=profile,
        )

    def snapshots(self) -> list[Snapshot]:
        """For `evaluate`: the history, then the current one."""
        past = [Snapshot(at=p.at, fleet=self.fleet, samples=p.samples) for p in self.history]
        return [*past, Snapshot(at=self.at, fleet=self.fleet, samples=self.samples, notices=self.notices)]


def save(recording: Recording, path: Path) -> None:
    """Write it, mode 0600 since labels and addresses can be telling. Raises Retry SH320."""
    recorded.save(recording, path)


def load(path: Path) -> Recording:
    """Read what `save` wrote, or a snapshot alone. Raises Rejected SH925 when it can't be read or isn't one, and says where."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise _invalid(path, f"it has {size:,} bytes, more than a recording can have")
        return decode(path.read_bytes(), Recording)
    except OSError as error:
        raise _invalid(path, f"it can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise _invalid(path, f"it isn't a recorded snapshot: {error}") from error


def _invalid(path: Path, why: str) -> Rejected:
    return Rejected(
        Problem(code="SH925", what=why, remedy="Check the path, or record one anew: `shunter snapshot FILE`", subject=str(path))
    )
