"""Room on the engine's disk: some is set aside in advance, so that a disk that is full takes what is involuntary all the same, durably.

Set aside is a part of each database's write-ahead log, since that is where SQLite writes first: nobody else can take it, and no record has
to go another way. When there is room in the disk again, SQLite brings the log into the database by itself and the log begins anew.

A copy-on-write file system (btrfs, ZFS) needs room to write what it has set aside: there the reserve promises nothing, and what is
involuntary goes on in memory at once.
"""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

RESERVE: Final = 32 * 2**20
"""Bytes set aside for each database, on a disk of at least eight times as much."""
PROBE: Final = 4 * 2**20
"""Bytes that must be free, beside the reserves, for the disk not to count as full; on a small disk a 32nd of it."""
_PAGE: Final = 4096 + 24
"""Bytes of a page in the log, with its header."""
_USUAL_PAGES: Final = 1000
_SPARE: Final = 64 * 4096
"""What is written beyond the reserve, as SQLite keeps some pages back."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What suits a disk: bytes of `reserve` for each database and of `probe`; pages after which the log is brought in, `wal_pages`."""

    reserve: int
    probe: int

    @property
    def wal_pages(self) -> int:
        """At most a quarter of the reserve is in use while the disk has room."""
        return max(8, min(_USUAL_PAGES, self.reserve // _PAGE // 4))


def suiting(folder: Path) -> Sizes:
    """Sizes for the disk that holds `folder`. Raises OSError."""
    disk = os.statvfs(folder)
    total = disk.f_blocks * disk.f_frsize
    return Sizes(reserve=min(RESERVE, total // 8), probe=max(disk.f_bsize, min(PROBE, total // 32)))


class Room:
    """Watches the disk of `folder`, and keeps the reserves of the databases in it, which must be open in WAL mode."""

    def __init__(self, folder: Path, databases: Sequence[Path], sizes: Sizes) -> None:
        self._folder, self._databases, self.sizes = folder, databases, sizes
        self._probe = folder / "room"
        self._readers: list[sqlite3.Connection] = []

    def hold(self) -> None:
        """Let the reserves outlive whoever closes the databases, once they are open: SQLite gives a log up when the last connection ends,
        but not when that one only reads. So an engine that is stopped while the disk is full can start again. Raises sqlite3.Error.
        """
        for path in self._databases:
            reader = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            self._readers.append(reader)
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def close(self) -> None:
        """To be called after the databases were closed."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def missing(self) -> str | None:
        """Why the disk takes no more than what is set aside; None when it does.

        It is asked for a little room, which is then given back: what it says is free may be somebody else's by a quota.
        """
        try:
            fd = os.open(self._probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, self.sizes.probe)
            finally:
                os.ftruncate(fd, 0)
                os.close(fd)
        except OSError as error:
            return error.strerror or str(error)
        return None

    def set_aside(self) -> bool:
        """Make the reserves that aren't whole, where there is room for them; True when all are. Raises nothing: a disk that takes no writes
        shows in `missing`.
        """
        return all([self._whole(path) or self._fill(path) for path in self._databases])

    def _whole(self, path: Path) -> bool:
        try:
            return path.with_name(path.name + "-wal").stat().st_size >= self.sizes.reserve - _PAGE
        except OSError:
            return False

    def _fill(self, path: Path) -> bool:
        """Grow the log by pages of a transaction that is then undone: so the log's index, which SQLite keeps beside it, has grown too."""
        try:
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize < self.sizes.reserve + self.sizes.probe:
                return False
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=1.0)) as db:
                db.execute("PRAGMA cache_size = 16")  # so that pages go to the log before the end
                db.execute("BEGIN IMMEDIATE")
                db.execute("CREATE TABLE room (bytes BLOB)")
                db.execute("INSERT INTO room VALUES (zeroblob(?))", (self.sizes.reserve + _SPARE,))
                db.execute("ROLLBACK")
        except (OSError, sqlite3.Error):
            return False
        return self._whole(path)
