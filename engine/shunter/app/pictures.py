"""Which images workers had, and when: kept beside the fleets of `app.sightings`, of which they are no part, as there are new ones all the
time. What conditions read of them is their number and the age of the newest.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

from shunter.model.ids import ImageId, WorkerId
from shunter.model.snapshot import Image

MOST: Final = 200_000
"""Images that are kept track of at most; beyond that the oldest are forgotten, and so is since when all are known."""
_SWEEP_S: Final = 60.0
TABLES: Final = """
CREATE TABLE IF NOT EXISTS images (id INTEGER PRIMARY KEY, worker TEXT NOT NULL, taken REAL NOT NULL, begin REAL NOT NULL, till REAL,
  gone REAL) STRICT;
CREATE TABLE IF NOT EXISTS images_known (id INTEGER PRIMARY KEY CHECK (id = 0), since REAL NOT NULL) STRICT;
"""

Pictured: TypeAlias = tuple[int, float]
"""How many images a worker has, and the age of the newest in seconds; (0, 0.0): none."""

Row: TypeAlias = tuple[WorkerId, float, float, float | None, float | None]
"""A worker's image: when it was taken, first seen, last seen, and first seen to be gone; None: it is still there."""

_NONE: Final[Pictured] = (0, 0.0)
_COMES, _IS, _GOES = range(3)


class Keeping:
    """The engine's side: `note` the images of each snapshot that it decides on."""

    def __init__(self) -> None:
        self._there: dict[ImageId, int] = {}
        self._last: Sequence[Image] = ()
        self._swept = float("-inf")

    def note(self, db: sqlite3.Connection, images: Sequence[Image], at: float, before: float, kept_s: float) -> None:
        """Write what came and went since `before`, when it looked last, in a transaction of the caller's."""
        if images is not self._last:
            trusted = [i for i in images if not i.doubt]  # one that isn't counts as none, in conditions too
            now = {i.id for i in trusted}
            gone = [row for image, row in self._there.items() if image not in now]
            db.executemany("UPDATE images SET till=?, gone=? WHERE id=?", [(before, at, row) for row in gone])
            self._there = {image: row for image, row in self._there.items() if image in now}
            for image in trusted:
                if image.id not in self._there:
                    added = db.execute("INSERT INTO images (worker, taken, begin) VALUES (?, ?, ?)", (image.worker, image.taken_at, at))
                    self._there[image.id] = added.lastrowid or 0
            self._last = images
        if at - self._swept >= _SWEEP_S:
            _forget(db, at - kept_s)
            self._swept = at

    def begin(self, db: sqlite3.Connection, at: float, last: float | None, lasts_s: float) -> None:
        """Begin anew at `at`, after what looked until `last` (None: nothing did), of which `lasts_s` is how long it counts."""
        if last is None:
            db.execute("DELETE FROM images")
            db.execute("INSERT OR REPLACE INTO images_known (id, since) VALUES (0, ?)", (at,))
        else:
            db.execute("DELETE FROM images WHERE begin>=?", (at,))  # a clock was set back
            over = min(at, last + lasts_s)
            db.execute("UPDATE images SET till=?, gone=? WHERE gone IS NULL OR gone>?", (last, over, at))
            db.execute("INSERT OR IGNORE INTO images_known (id, since) VALUES (0, ?)", (at,))
            db.execute("UPDATE images_known SET since=min(since, ?)", (at,))
        self._there, self._last = {}, ()


def _forget(db: sqlite3.Connection, until: float) -> None:
    excess = db.execute("SELECT count(*) FROM images").fetchone()[0] - MOST
    if excess > 0:
        cut = db.execute("SELECT gone FROM images WHERE gone IS NOT NULL ORDER BY gone LIMIT 1 OFFSET ?", (excess,)).fetchone()
        until = max(until, cut[0]) if cut else until
    if db.execute("DELETE FROM images WHERE gone<=?", (until,)).rowcount:
        db.execute("UPDATE images_known SET since=max(since, ?)", (until,))


def rows(db: sqlite3.Connection, begin: float, end: float) -> tuple[list[Row], float]:
    """What there was of images from `begin` to `end`, and since when that is all there was. Raises sqlite3.Error also where none were kept
    track of.
    """
    (since,) = db.execute("SELECT since FROM images_known").fetchone() or (float("inf"),)
    query = "SELECT worker, taken, begin, till, gone FROM images WHERE begin <= ? AND (gone IS NULL OR gone >= ?)"
    return db.execute(query, (end, begin)).fetchall(), since


class Pictures:
    """A preview's side. `since`: from when on the rows are all there was; `looked`: when the engine looked last."""

    def __init__(self, found: Iterable[Row] = (), since: float = float("inf"), looked: float = float("inf")) -> None:
        self._since, self._looked = since, looked
        self._changes = sorted(change for row in found for change in _changes(row))

    def during(self, times: Sequence[float]) -> list[tuple[Mapping[WorkerId, Pictured], ...] | None]:
        """For each of the times, which rise, what the images of all workers were since the one before, as often as one differed: what they
        were in the end whole and last, before it those that differed. A worker that isn't in the last had none. None: it isn't known.

        No image grows older than it was when the engine looked last: whoever asks has looked anew.
        """
        found: list[tuple[Mapping[WorkerId, Pictured], ...] | None] = []
        there: defaultdict[WorkerId, list[float]] = defaultdict(list)
        changes, k = [(at, list(own)) for at, own in groupby(self._changes, key=itemgetter(0))], 0
        before = times[0] if times else 0.0
        for until in times:
            seen: defaultdict[WorkerId, list[Pictured]] = defaultdict(list)
            while k < len(changes) and changes[k][0] <= until:
                for worker in _apply(there, changes[k][1]):
                    if changes[k][0] > before:
                        seen[worker].append(_said(there[worker], changes[k][0]))
                k += 1
            last = {w: _said(own, min(until, self._looked)) for w, own in there.items() if own}
            found.append((*_layers(seen), last) if before >= self._since else None)
            before = until
        return found


def _changes(row: Row) -> list[tuple[float, int, WorkerId, float]]:
    """When something is to be seen of it: it comes, is there for the last time, is gone. Of those at one time, in that order."""
    worker, taken, begin, till, gone = row
    changes = [(begin, _COMES, worker, taken)]
    if gone is not None:
        changes += [(begin if till is None else till, _IS, worker, taken), (gone, _GOES, worker, taken)]
    return changes


def _apply(there: Mapping[WorkerId, list[float]], changes: Iterable[tuple[float, int, WorkerId, float]]) -> set[WorkerId]:
    """All changes of one moment. Returns whose they are."""
    touched: set[WorkerId] = set()
    for _, change, worker, taken in changes:
        if change == _COMES:
            there[worker].append(taken)
        elif change == _GOES:
            there[worker].remove(taken)
        touched.add(worker)
    return touched


def _said(taken: Sequence[float], at: float) -> Pictured:
    return (len(taken), at - max(taken)) if taken else _NONE


def _layers(seen: Mapping[WorkerId, Sequence[Pictured]]) -> list[dict[WorkerId, Pictured]]:
    deepest = max(map(len, seen.values()), default=0)
    return [{w: own[layer] for w, own in seen.items() if layer < len(own)} for layer in range(deepest)]
