"""Whether what the engine must remember reaches its disk, and what is done about it when it doesn't.

Two conditions, told and shown as long as they hold. SH531: the disk is full, and what is written is on what was set aside for that (see
`app.room`): durable. SH532: the disk takes no writes at all, and what is written is in memory: not durable. In both, nothing voluntary
starts; what is involuntary goes on, as a node that is going doesn't wait for a disk. On a disk that takes no writes what is voluntary and
under way comes to its end: back to where it was, or on if it is committed.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shunter.act.chain import linked
from shunter.act.store import ENDING, Store
from shunter.app.room import Room
from shunter.audit.trail import Trail
from shunter.model.canon import decode
from shunter.model.errors import Problem, Stalled
from shunter.model.plan import Plan
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet
from shunter.report.words import count, moment

FULL: Final = "SH531"
VOLATILE: Final = "SH532"
_ELSEWHERE: Final = ("SH25", "SH55")
"""How codes begin that are of the API server, which has operations as well."""
_DISK: Final = "Free the disk or mend it, and don't stop the engine before; until then nothing voluntary starts"
_FILE: Final = 4096
"""Bytes of the file that says the condition: written in place, so that a full disk takes it."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, since when (seconds since the epoch), and how much is in memory only."""

    since: float
    problem: Problem
    changes: int = 0
    """Of operations and the fleet."""
    records: int = 0
    """Of the audit."""


class Watch:
    """Keeps the condition: `check` it each tick. `now` is None while all is well."""

    def __init__(self, store: Store, trail: Trail, room: Room, folder: Path, clock: Callable[[], float]) -> None:
        """Closes the store's gate while a condition holds. Writes the file that `condition` reads, if the disk takes it."""
        self._store, self._trail, self._room, self._clock = store, trail, room, clock
        self._path = condition_path(folder)
        self._written: Condition | None = None
        self._gathered: list[Record] | None = None
        self.now: Condition | None = None
        store.gate = lambda: self.now is None and trail.problem is None
        self._write()

    def check(self) -> Condition | None:
        """Bring what is in memory to the disk if it takes it, and say what is wrong then; None: nothing."""
        full = self._room.missing()
        if self._store.problem is not None or (full is not None and self.now is None):
            self._store.recover()  # for a disk that has just become full: does it take writes at all?
        if self._store.unwritten == 0 and self._trail.problem is not None:
            self._trail.retry()
        if full is None:
            self._room.set_aside()
        self.now = self._condition(full)
        if self.now != self._written:
            self._write()
        return self.now

    def audit(self, record: Record) -> None:
        """Take an operation's record: what operations are carried out with. Raises Stalled when it isn't durable and the operation is a
        voluntary one that has more to do than to come to its end.
        """
        self.audits([record])

    def audits(self, records: Sequence[Record]) -> None:
        """Take several, as one. Raises as `audit` does."""
        before: list[Record] = []
        if self._gathered is not None:
            if all(_urgent(record) for record in records):
                self._gathered += records
                return
            before, self._gathered = self._gathered, []
        if self._trail.add([*before, *records]) or all(_may_wait(record) for record in records):
            return
        if self._trail.problem is not None:
            raise Stalled(self._trail.problem)

    @contextlib.contextmanager
    def gathering(self, first: Sequence[Record]) -> Iterator[None]:
        """Write `first`, and what is audited of involuntary operations within, at the end and as one. Nothing may be awaited within: what
        the records license happens after it.
        """
        self._gathered = list(first)
        try:
            yield
        finally:
            records, self._gathered = self._gathered, None
            self._trail.add(records)

    def farewell(self) -> Problem | None:
        """The engine ends: a last try, and what is lost with it, if anything (SH533)."""
        self.check()
        changes, records = self._store.unwritten, self._trail.waiting
        if not changes and not records:
            return None
        return Problem(
            code="SH533",
            what=f"{_amount(changes, records)} couldn't be written and are lost with this process",
            remedy="Once the disk takes writes, start the engine: where workers are is found out from the agents, and those that were left"
            " out of the router's sight are put back",
            subject=str(self._path.parent),
        )

    def _condition(self, full: str | None) -> Condition | None:
        wrong = self._store.problem or self._trail.problem
        if wrong is None and full is None:
            return None
        since = self.now.since if self.now is not None else min(self._clock(), self._trail.since or float("inf"))
        changes, records = self._store.unwritten, self._trail.waiting
        subject = str(self._path.parent)
        problem = _on_reserve(since, full, subject) if wrong is None else _in_memory(since, wrong, changes, records, subject)
        return Condition(since=since, problem=problem, changes=changes, records=records)

    def _write(self) -> None:
        data = (msgspec.json.encode(self.now) if self.now is not None else b"").ljust(_FILE, b"\n")[:_FILE]
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, data, 0)
                os.fdatasync(fd)
            finally:
                os.close(fd)
        except OSError:
            return  # tried again each tick; a disk that is read-only shows without it
        self._written = self.now


def _urgent(record: Record) -> bool:
    return record.body.get("lane") == "involuntary"


def _may_wait(record: Record) -> bool:
    """What it licenses is done all the same, or it licenses nothing."""
    return record.kind is RecordKind.OUTCOME or _urgent(record) or record.body.get("step") in ENDING or "outstanding" in record.body


def condition_path(folder: Path) -> Path:
    """The file in the engine's state folder that says the condition."""
    return folder / "condition"


def condition(folder: Path, now: float) -> Condition | None:
    """What the engine that works on this state folder, or last did, said of its disk; None: all is well, or it never said anything.

    A disk that is read-only takes no such word, so that it is looked at.
    """
    try:
        said = condition_path(folder).read_bytes().strip()
        found = decode(said, Condition) if said else None
        if found is None and os.statvfs(folder).f_flag & os.ST_RDONLY:
            what = "the engine's disk is read-only: nothing is recorded durably"
            problem = Problem(code=VOLATILE, what=what, remedy="Mend the disk; until then nothing voluntary starts", subject=str(folder))
            return Condition(since=now, problem=problem)
    except (OSError, msgspec.MsgspecError):
        return None
    return found


def urgent(plan: Plan) -> Plan:
    """The plan without the chains of which nothing is involuntary. It keeps its digest: it is the same decision, of which less is done."""
    hurried = {o.id for o in plan.operations if o.lane == "involuntary"}
    kept = frozenset[str]().union(*(chain for chain in linked(plan.operations) if chain & hurried))
    less = msgspec.structs.replace(plan, operations=tuple(o for o in plan.operations if o.id in kept))
    vars(less)["digest"] = plan.digest
    return less


def places(fleet: Fleet) -> object:
    """What of a fleet must be known after a restart: all but ages and measurements, which change each tick."""
    workers = [(w.id, w.state, w.node, w.slot, w.incarnation) for w in fleet.workers]
    return workers, [(i.id, i.nodes) for i in fleet.images], [(n.id, n.reachable, n.slots) for n in fleet.nodes]


def _on_reserve(since: float, why: str | None, subject: str) -> Problem:
    return Problem(
        code="SH531",
        what=f"since {moment(since)} the engine's disk takes no more than what was set aside: {why}",
        remedy="Free some space; until then nothing voluntary starts, and what is involuntary goes on while the reserve lasts",
        subject=subject,
    )


def _in_memory(since: float, why: Problem, changes: int, records: int, subject: str) -> Problem:
    lost = f": {_amount(changes, records)} are lost if the engine ends" if changes or records else ""
    return Problem(
        code="SH532",
        what=f"since {moment(since)} {why.what}; what is involuntary goes on, but is in memory only{lost}",
        remedy=f"{why.remedy}. Until then nothing voluntary starts" if why.code.startswith(_ELSEWHERE) else _DISK,
        subject=subject,
    )


def _amount(changes: int, records: int) -> str:
    return f"{count(changes, 'change')} of operations and {count(records, 'record')} of the audit"
