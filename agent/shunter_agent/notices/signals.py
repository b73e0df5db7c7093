"""Signals of a source that stay as they are until somebody takes them back: which still count, and which have stood for too long. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
from shunter.model.errors import Problem
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.port import Notice

ESCALATE_S: Final = 3600.0
"""Seconds for which a cordon may stand with nothing else said before a person is told."""


class Meaning(NamedTuple):
    """What a signal stands for. `lasts` is how many seconds it is believed, from when it was put up or its deadline; None: always."""

    kind: NoticeKind
    lasts: float | None
    says: str
    dumpable: bool = True

    def signal(self, key: str, *, since: float | None = None, deadline: float | None = None, exact: bool = True) -> "Signal":
        """One that stands under `key`."""
        return Signal(
            key=key,
            kind=self.kind,
            lasts=self.lasts,
            detail=f"{key}: {self.says}",
            since=since,
            exact=exact,
            deadline=deadline,
            dumpable=self.dumpable,
        )


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is said. Times in seconds since the epoch; `since` is None where the source doesn't say when it was put up, and not
    `exact` where it may be older.

    `problem` is something to tell a person, `kind` None: it is no notice.
    """

    key: str
    kind: NoticeKind | None
    lasts: float | None
    detail: str
    since: float | None = None
    exact: bool = True
    deadline: float | None = None
    slot: str = ""
    dumpable: bool = True
    problem: Problem | None = None
    told_s: float | None = None
    """After how many seconds a person is told that it still stands, where it is believed for ever; None: nobody is."""
    suspect: str = ""
    """Why nothing is to be trusted that was computed in the slot before; empty: nothing makes it doubtful."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The notices that signals are, by id; what of them a person must be told; and since when each stands, to be given to the next."""

    notices: Mapping[str, Notice] = {}
    problems: tuple[Problem, ...] = ()
    since: Mapping[str, float] = {}
    suspects: tuple[tuple[str, float, str], ...] = ()
    """What makes what was computed in a slot (empty: nobody knows which) doubtful: the slot, since when, and why."""


def read(found: Iterable[Signal], *, source: str, now: float, before: Mapping[str, float]) -> Reading:
    """What the signals say at `now`. `before` is the `since` of the last reading: when those without a time of their own were first
    seen.
    """
    notices: dict[str, Notice] = {}
    problems: list[Problem] = []
    since: dict[str, float] = {}
    standing = list(found)
    suspects: list[tuple[str, float, str]] = []
    for signal in standing:
        since[signal.key] = at = _since(signal, before.get(signal.key), now)
        if signal.suspect and signal.since is not None:
            suspects.append((signal.slot, at, signal.suspect))
        old = signal.lasts is not None and now - max(at, signal.deadline or at) >= signal.lasts
        if signal.problem is not None and not (old and signal.kind is None):
            problems.append(signal.problem)
        if signal.kind is None:
            continue
        if signal.lasts is None and signal.told_s is not None and now - at >= signal.told_s:
            problems.append(_unmended(signal, at, source))
        if old:
            problems.append(_stuck(signal, at, source))
        else:
            notices[f"{source}-{_name(signal.key)}"] = _notice(signal, at, source)
    cordon = since.get("cordon")
    if cordon is not None and now - cordon >= ESCALATE_S and not any(s.key != "cordon" and s.kind is not None for s in standing):
        problems.append(_forgotten(cordon, source))
    return Reading(notices=notices, problems=tuple(problems), since=since, suspects=tuple(suspects))


def _since(signal: Signal, before: float | None, now: float) -> float:
    if signal.exact and signal.since is not None:
        return min(signal.since, now)
    # nothing is put up after its own deadline
    return min(t for t in (signal.since, signal.deadline, before, now) if t is not None)


def _notice(signal: Signal, at: float, source: str) -> Notice:
    assert signal.kind is not None, "asked before"
    return Notice(
        id=f"{source}-{_name(signal.key)}",
        kind=signal.kind.value,
        seen_at=at,
        deadline=signal.deadline,
        source=source,
        detail=signal.detail,
        slot=signal.slot,
        dumpable=signal.dumpable,
    )


def _name(key: str) -> str:
    return key.replace(" ", "-").replace("/", ".")


def _stuck(signal: Signal, at: float, source: str) -> Problem:
    what = f"{signal.detail}, since {_clock(at)}, and the node is still there: it isn't believed any more"
    remedy = "Find out who put it up, and take it off; a new one counts again"
    return Problem(code="SH650", what=what, remedy=remedy, subject=source)


def _unmended(signal: Signal, at: float, source: str) -> Problem:
    what = f"{signal.detail}, since {_clock(at)}: nothing is brought there until it is mended"
    remedy = "Reset the GPU or start the machine anew, or take the node out"
    return Problem(code="SH650", what=what, remedy=remedy, subject=signal.slot or source)


def _forgotten(at: float, source: str) -> Problem:
    what = f"the node is cordoned since {_clock(at)}, and nothing says that it will be drained"
    return Problem(code="SH650", what=what, remedy="Drain it, or uncordon it", subject=source)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
