"""What a source's next process must know of the last one: which commit was in force, of what age, and which files stood at older ones."""

import contextlib
import os
from pathlib import Path

import msgspec

from shunter.model.ids import Commit

_BYTES = 8 * 2**20


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """`commit` was in force, and at `confirmed_at` (seconds since the epoch; None: unknown) the source still had nothing newer.

    `files` are the commits that the versions of policy files in force came from, by path: older ones where a newer version was refused.
    """

    commit: Commit
    confirmed_at: float | None = None
    files: dict[str, Commit] = {}


class Memory:
    """One small file. It can be lost: then a refused file's last good version is, and ages begin anew."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Remembered | None:
        """None when there is none that can be read."""
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_BYTES), type=Remembered)
        except (OSError, msgspec.DecodeError):
            return None

    def save(self, remembered: Remembered) -> None:
        """Best effort: on a disk that is full the policies themselves matter more."""
        fresh = self._path.with_name(self._path.name + ".new")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh.write_bytes(msgspec.json.encode(remembered))
            os.replace(fresh, self._path)
