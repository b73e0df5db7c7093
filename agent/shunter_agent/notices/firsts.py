"""When each thing was first seen, beyond the agent's own end: what is counted from then must not begin anew with each start of the agent.

A notice that says how long is left, and not until when, ends so long after it was first said. So does a signal without a time of its own
stop to be believed. Here both are kept by a clock that nobody sets (seconds since the machine's start), so that a wall clock which is set
in between moves no end; and a start of the machine forgets all, as what was said of the one before is over.

What was seen by the agent before this one counts if its end is still ahead, or if it was said within `GAP_S`: else it may be another event
of the same name. What this agent has seen is forgotten when its source says it no more.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from shunter.model.errors import Problem

GAP_S: Final = 600.0
"""Seconds for which an agent may be away, and go on with what it saw before: more than an upgrade takes."""
AGAIN_S: Final = 30.0
"""How often it is written down that something is still said, at most."""
_NOTABLE_S: Final = 2.0
"""Seconds by which a clock must have been set to change what is told: less is how finely two clocks are read one after the other."""
_MOST: Final = 256
"""Things that are kept; a node has a few. More are counted from the agent's start, as it was before."""


class Sight(NamedTuple):
    """When something was first seen, and when it ends if that is counted from then; seconds since the epoch, by the clock as it is now."""

    at: float
    deadline: float | None = None


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """As it is written: seconds since the machine's start. `told` is when it was last said."""

    group: str
    key: str
    at: float
    told: float
    deadline: float | None = None


class _File(msgspec.Struct, frozen=True, kw_only=True):
    boot: str
    kept: list[_Kept]


def since_boot() -> float:
    """Seconds since the machine's start, also those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Firsts:
    """One per agent, for the threads of all its sources. A disk that takes no writes keeps nothing from being told."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        boot: str = "",
        clock: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = since_boot,
        log: Callable[[Problem], None] = lambda _problem: None,
    ) -> None:
        """`path` None: it is kept in memory alone. `boot` names the machine's start; `clock` gives seconds since the epoch, and `elapsed`
        since that start.
        """
        self._path, self._boot, self._clock, self._elapsed, self._log = path, boot, clock, elapsed, log
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._kept: dict[tuple[str, str], _Kept] = {(one.group, one.key): one for one in self._read()}
        self._said: dict[tuple[str, str], Sight] = {}
        """What was told of those that this agent has seen itself."""
        self._written_at, self._changed, self._problem = float("-inf"), False, ""

    def recalled(self, group: str) -> dict[str, float]:
        """When each thing in the group was first seen; seconds since the epoch."""
        with self._lock:
            return {one.key: self._wall(one).at for one in self._kept.values() if one.group == group and self._counts(one)}

    def seen(self, group: str, now: Mapping[str, Sight]) -> dict[str, Sight]:
        """All of the group that is said now, as its source would count it; the answer is since when it really was, and until when. What
        this agent has seen, and isn't among it, is forgotten.
        """
        with self._lock:
            for name in [name for name in self._said if name[0] == group and name[1] not in now]:
                del self._said[name]
                self._changed |= self._kept.pop(name, None) is not None
            return {key: self._one((group, key), sight) for key, sight in now.items()}

    def save(self) -> None:
        """Write down what has changed, and now and then that the rest is still said."""
        if self._path is None or not self._writing.acquire(blocking=False):
            return  # whoever writes now is asked again, and nobody who has something to tell waits for a disk
        try:
            kept = self._due()
            if kept is not None:
                self._write(self._path, kept)
        finally:
            self._writing.release()

    def _due(self) -> list[_Kept] | None:
        """What is to be written, if anything is."""
        with self._lock:
            elapsed = self._elapsed()
            if not (self._changed or (self._said and elapsed - self._written_at >= AGAIN_S)):
                return None
            self._kept = {
                name: msgspec.structs.replace(one, told=elapsed) if name in self._said else one
                for name, one in self._kept.items()
                if name in self._said or self._counts(one)
            }
            self._written_at, self._changed = elapsed, False
            return list(self._kept.values())

    def _one(self, name: tuple[str, str], sight: Sight) -> Sight:
        kept = self._kept.get(name)
        if kept is None or (name not in self._said and not self._counts(kept)):
            if kept is None and len(self._kept) >= _MOST:
                return sight
            ahead = self._elapsed() - self._clock()
            deadline = None if sight.deadline is None else sight.deadline + ahead
            kept = _Kept(group=name[0], key=name[1], at=sight.at + ahead, deadline=deadline, told=self._elapsed())
            self._kept[name], self._said[name], self._changed = kept, sight, True
            return sight
        if kept.deadline is None and sight.deadline is not None:
            self._kept[name] = kept = msgspec.structs.replace(kept, deadline=sight.deadline + self._elapsed() - self._clock())
            self._said.pop(name, None)
            self._changed = True
        self._said[name] = found = _steady(self._wall(kept), self._said.get(name))
        return found if sight.deadline is not None else Sight(found.at)

    def _wall(self, kept: _Kept) -> Sight:
        ahead = self._clock() - self._elapsed()
        return Sight(kept.at + ahead, None if kept.deadline is None else kept.deadline + ahead)

    def _counts(self, kept: _Kept) -> bool:
        now = self._elapsed()
        return now - kept.told <= GAP_S or (kept.deadline is not None and kept.deadline > now)

    def _read(self) -> list[_Kept]:
        if self._path is None or not self._boot:
            return []
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_File)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            self._log(_problem("can't be read", str(error), self._path))
            return []
        now = self._elapsed()
        return [one for one in found.kept[:_MOST] if found.boot == self._boot and one.told <= now + _NOTABLE_S and self._counts(one)]

    def _write(self, path: Path, kept: list[_Kept]) -> None:
        partial = path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                file.write(msgspec.json.encode(_File(boot=self._boot, kept=kept)))
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            if self._problem != str(error):
                self._problem = str(error)
                self._log(_problem("can't be written", str(error), path))
        else:
            self._problem = ""


def _steady(now: Sight, before: Sight | None) -> Sight:
    """What was told before, unless the clock was set since: two clocks read one after the other differ a little each time."""
    return before if before is not None and abs(now.at - before.at) <= _NOTABLE_S else now


def _problem(how: str, why: str, path: Path) -> Problem:
    return Problem(
        code="SH683",
        what=f"since when notices without a deadline stand {how}: {why}",
        remedy="Free disk space or mend the state directory; an agent that starts anew counts their lead from then",
        subject=str(path),
    )
