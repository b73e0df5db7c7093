"""`shunter status`: how things stand, from the engine's own files; asks nobody and changes nothing."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from shunter.act.beyond import Remembered
from shunter.act.store import looked_at
from shunter.app.audits import read as read_audit
from shunter.app.degraded import Condition, condition
from shunter.app.drifting import Shown, shown
from shunter.app.sendings import sendings
from shunter.app.settings import load
from shunter.app.turns import Queue, queue
from shunter.model.canon import plain
from shunter.model.errors import Problem, Rejected, ShunterError
from shunter.model.ids import Commit, Epoch
from shunter.model.operation import OperationRecord, Sending
from shunter.model.record import RecordKind
from shunter.model.snapshot import Fleet
from shunter.report.text import status_text

RECENT = 3600.0
"""Seconds that ended operations are shown for."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints, as one object. Ages in seconds, None: never. `commit` is the newest in the audit, None: none yet. `degraded` is
    what is wrong with the engine's disk, None: nothing. `waiting` is planned and waits for its turn, the first of it by name; `sending` is
    how far images are that are on their way. `graphs` is what Dynamo's resources say of pools, and what is wrong with them.
    """

    at: float
    epoch: Epoch
    commit: Commit | None
    ages: dict[str, float | None]
    fleet: Remembered | None
    active: tuple[OperationRecord, ...]
    ended: tuple[OperationRecord, ...]
    degraded: Condition | None = None
    waiting: Queue
    sending: tuple[Sending, ...] = ()
    graphs: Shown


def status(
    state: Annotated[Path | None, typer.Option("--state", metavar="DIR", help="The engine's state folder; .shunter by default.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="The engine's settings, which name that folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show nodes, slots, workers, images and operations as the engine last knew them, and how old that is.

    Exit status: 0, or 1 when there is no engine's state to read.
    """
    if state is not None and config is not None:
        raise Rejected(Problem(code="SH930", what="--state and --config were both given", remedy="Give one: the settings name the folder"))
    settings = load(config) if config else None
    database = settings.audit.database if settings else os.environ.get("SHUNTER_AUDIT_DATABASE")
    found = read(state or (settings.state if settings else Path(".shunter")), time.time(), database)
    if as_json:
        typer.echo(msgspec.json.encode(plain(found), order="sorted"))
        return
    known = found.fleet or Remembered(at=found.at, fleet=Fleet())
    status_text(
        known.fleet,
        (*found.active, *found.ended),
        found.ages,
        Console(highlight=False, width=None if sys.stdout.isatty() else 160),
        now=found.at,
        epoch=found.epoch,
        commit=found.commit,
        notices=known.notices,
        degraded=found.degraded.problem if found.degraded else None,
        waiting=found.waiting.first,
        waiting_more=found.waiting.number - len(found.waiting.first),
        sending=found.sending,
        graphs=found.graphs.pools,
        troubles=found.graphs.troubles,
        troubles_more=found.graphs.more,
    )


def read(state: Path, now: float, database: str | None = None) -> Standing:
    """What the files in the state folder say at `now`; `database` is where the audit's records are, if they aren't there.

    Raises Rejected SH931 when there are none, and what the store raises.
    """
    with looked_at(state / "engine.db") as store:
        if store is None:
            raise Rejected(
                Problem(
                    code="SH931",
                    what="no engine has run with this state folder",
                    remedy="Name the folder with --state, or the settings that name it with --config",
                    subject=str(state),
                )
            )
        fleet = store.load_fleet()
        active, ended, epoch = store.active(), store.recent(now - RECENT), store.epoch
    commit, recorded_at = _audit(state, database)
    ages = {
        "fleet": None if fleet is None else now - fleet.at,
        "audit": None if recorded_at is None else now - recorded_at,
        "operations": max((r.outcome.at for r in ended if r.outcome), default=None),
    }
    if ages["operations"] is not None:
        ages["operations"] = now - ages["operations"]
    return Standing(
        at=now,
        epoch=epoch,
        commit=commit,
        ages=ages,
        fleet=fleet,
        active=active,
        ended=ended,
        degraded=condition(state, now),
        waiting=queue(state, epoch),
        graphs=shown(state, epoch),
        sending=sendings(state, epoch, now),
    )


def _audit(state: Path, database: str | None) -> tuple[Commit | None, float | None]:
    """The newest policy commit in the audit, and when its last record is from; None where there is none, or no readable audit."""
    try:
        with read_audit(state, database) as journal:
            last = journal.list(limit=1)
            told = [r for kind in (RecordKind.POLICIES, RecordKind.PLAN, RecordKind.FINDING) for r in journal.list(kind=kind, limit=1)]
    except ShunterError:
        return None, None
    newest = max((s for s in (*told, *last) if s.record.commit), key=lambda s: s.seq, default=None)
    return newest.record.commit if newest else None, last[0].record.at if last else None
