"""What fleet the engine saw, and when: a bounded series beside its store, so that a preview knows where workers were.

Only fleets that differ in what conditions can read are kept, each with the time from which to which it was seen. Images of workers that run
don't count: there are new ones all the time, so that they are kept track of by themselves (see `app.pictures`). Losing the series costs
nothing but previews that hold back longer than the engine would, so it is kept without waiting for the disk.
"""

import contextlib
import sqlite3
import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shunter.app.degraded import places
from shunter.app.pictures import TABLES, Keeping, Pictured, Pictures, rows
from shunter.audit.transaction import transaction
from shunter.decide.hold import MIN_TOLERANCE, STEPS
from shunter.model.canon import compressed, decode
from shunter.model.errors import Problem
from shunter.model.ids import PoolId, WorkerId
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Notice, Snapshot

KEPT_S: Final = 3600.0
"""Seconds that are kept at least, whatever the policies look back; so that a policy that isn't in force yet can be previewed too."""
MOST: Final = 500
"""Fleets that are kept at most."""
BEAT_S: Final = 1.0
"""At least, between two notes that the fleet is still the same."""
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS seen (id INTEGER PRIMARY KEY, begin REAL NOT NULL, till REAL NOT NULL, body BLOB NOT NULL) STRICT;
"""
_AGAIN_S: Final = 60.0
_RESOURCE: Final = "DynamoGraphDeployment "
"""How the query of a sample begins that was read from a resource: see `cluster.dynamo.pools`."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet, the notices that were open for it, and how many workers Dynamo's resources wanted of pools: those have no history."""

    fleet: Fleet
    notices: tuple[Notice, ...] = ()
    desired: dict[PoolId, float] = {}


def sightings_path(folder: Path) -> Path:
    """The file in the engine's state folder."""
    return folder / "seen.db"


def slack(tick: float) -> float:
    """Seconds for which a fleet counts as unchanged after an engine that looks every `tick` seconds saw it last. A longer gap breaks `for`
    in the engine, too.
    """
    return max(MIN_TOLERANCE, STEPS * tick)


class Sightings:
    """The engine's side: `note` each snapshot that it decides on."""

    def __init__(self, folder: Path, tick: float, breathe: Callable[[], None] = lambda: None) -> None:
        """`breathe` is called where noting can stand still for a moment."""
        self._path, self._slack, self._breathe = sightings_path(folder), slack(tick), breathe
        self._db: sqlite3.Connection | None = None
        self._retry_at = float("-inf")
        self._row: int | None = None
        self._key: object = None
        self._images = Keeping()
        self._seen = self._written = float("-inf")

    def note(self, snapshot: Snapshot, reach: float) -> Problem | None:
        """Keep it if it is new, for as long as policies look back (`reach`, seconds). Says what keeps it from being kept; None: nothing."""
        at = snapshot.at
        if self._db is None and at < self._retry_at:
            return None
        try:
            self._note(self._open(), snapshot, reach)
        except (OSError, sqlite3.Error) as error:
            self.close()
            self._retry_at = at + _AGAIN_S
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
                with contextlib.suppress(OSError):  # what isn't a database any more is begun anew
                    self._path.unlink(missing_ok=True)
            return Problem(
                code="SH534",
                what=f"what fleet the engine sees can't be kept: {error}",
                remedy="Free disk space or mend the state directory; until then previews don't know where workers were",
                subject=str(self._path),
            )
        return None

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        self._db, self._row, self._key = None, None, None

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.touch(mode=0o600)
            self._db = sqlite3.connect(self._path, isolation_level=None, timeout=0.1)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLE + TABLES)
        return self._db

    def _note(self, db: sqlite3.Connection, snapshot: Snapshot, reach: float) -> None:
        at, key = snapshot.at, _read(snapshot)
        self._breathe()
        lasts = self._row is not None and 0 <= at - self._seen <= self._slack
        same = lasts and key == self._key
        kept_s = max(KEPT_S, 1.1 * reach + 60)
        sighting = Sighting(fleet=snapshot.fleet, notices=snapshot.notices, desired=_desired(snapshot))
        body = b"" if same else compressed(sighting, self._breathe)
        self._breathe()
        with transaction(db):
            if not lasts:
                (last,) = db.execute("SELECT max(till) FROM seen WHERE till<?", (at,)).fetchone()
                self._images.begin(db, at, last, self._slack)
            self._images.note(db, snapshot.fleet.images, at, self._seen, kept_s)
            if not same:
                self._add(db, body, at, at - kept_s, lasts=lasts)
            elif at - self._written >= BEAT_S:
                db.execute("UPDATE seen SET till=? WHERE id=?", (at, self._row))
        if not same or at - self._written >= BEAT_S:
            self._written = at
        self._key, self._seen = key, at

    def _add(self, db: sqlite3.Connection, body: bytes, at: float, oldest: float, *, lasts: bool) -> None:
        if lasts:
            db.execute("UPDATE seen SET till=? WHERE id=?", (self._seen, self._row))
        db.execute("DELETE FROM seen WHERE begin>=? OR till<?", (at, oldest))
        self._row = db.execute("INSERT INTO seen (begin, till, body) VALUES (?, ?, ?)", (at, at, body)).lastrowid
        db.execute("DELETE FROM seen WHERE id <= ?", ((self._row or 0) - MOST,))


class Series:
    """A preview's side: what was seen between two times, oldest first. Empty where there is no such file."""

    def __init__(self, rows: Sequence[tuple[float, float, Sighting]], slack_s: float, pictures: Pictures | None = None) -> None:
        """`rows`: from when to when each was seen. `slack_s`: see `slack`. `pictures`: the images that there were meanwhile."""
        self._pictures = pictures or Pictures()
        self.sightings = tuple(sighting for _, _, sighting in rows)
        self._begins = [begin for begin, _, _ in rows]
        after = [*self._begins, float("inf")][1:]
        self._ends = [min(till + slack_s, later) for (_, till, _), later in zip(rows, after, strict=True)]

    def pictured(self, times: Sequence[float]) -> list[tuple[Mapping[WorkerId, Pictured], ...] | None]:
        """For each of the times the images of workers since the one before, see `Pictures.during`. None: it isn't known."""
        return self._pictures.during(times)

    def during(self, begin: float, end: float) -> tuple[int, ...] | None:
        """The places in `sightings` of all that was seen from `begin` to `end`, oldest first. None: for some of that time nobody looked."""
        first = bisect_right(self._begins, begin) - 1
        last = bisect_right(self._begins, end) - 1
        if first < 0 or self._ends[last] < end:
            return None
        if any(self._ends[k] < self._begins[k + 1] for k in range(first, last)):
            return None
        return tuple(range(first, last + 1))


def series(folder: Path, begin: float, end: float, tick: float) -> Series:
    """What an engine on this state folder saw from `begin` to `end`; nothing where that can't be read."""
    path, slack_s = sightings_path(folder), slack(tick)
    try:
        with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)) as db:
            query = "SELECT begin, till, body FROM seen WHERE till >= ? AND begin <= ? ORDER BY id"
            found = db.execute(query, (begin - slack_s, end)).fetchall()
            pictures = _pictures(db, begin, end, found[-1][1]) if found else None
        return Series([(since, till, decode(zlib.decompress(body), Sighting)) for since, till, body in found], slack_s, pictures)
    except (OSError, sqlite3.Error, zlib.error, ValueError, msgspec.MsgspecError):
        return Series((), slack_s)


def _pictures(db: sqlite3.Connection, begin: float, end: float, looked: float) -> Pictures:
    try:
        return Pictures(*rows(db, begin, end), looked)
    except sqlite3.Error:  # of an engine that kept no track of images
        return Pictures()


def _read(snapshot: Snapshot) -> object:
    """What conditions can read of a fleet: all but ages and measurements, and the images of those that run."""
    fleet = snapshot.fleet
    away = {w.id for w in fleet.workers if w.slot is None}
    fleet = msgspec.structs.replace(fleet, images=tuple(i for i in fleet.images if i.worker in away))
    labels = [(n.id, n.labels) for n in fleet.nodes], [(w.id, w.labels) for w in fleet.workers]
    return places(fleet), labels, snapshot.notices, _desired(snapshot)


def _desired(snapshot: Snapshot) -> dict[PoolId, float]:
    """What was read from resources. What a planner publishes is in Prometheus."""
    found = ((pool, own.get("desired")) for pool, own in snapshot.samples.pools.items())
    return {PoolId(p): s.value for p, s in sorted(found) if isinstance(s, Known) and s.query.startswith(_RESOURCE)}
