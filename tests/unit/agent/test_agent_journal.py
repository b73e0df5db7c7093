"""The journal: what it keeps over a SIGKILL, what it takes back, and what it says when the disk doesn't take it."""

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_fakes import PROCESS, SPEC, problem
from msgspec.structs import replace
from shunter.model.errors import Stalled
from shunter_agent import keeping
from shunter_agent.journal import Journal, Reservation, WorkerRow
from shunter_agent.orders.carry import KEEP_S

CHILD = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from shunter_agent.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.raise_epoch(7)
journal.done("op", "fence", "w", 1.0, b"answer")
journal.begin("op", "freeze", "w", 2.0)
with journal.batch():
    journal.done("op", "freeze", "w", 3.0, b"half")
    print("now", flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_agent_had_begun_is_there_and_what_it_had_not_finished_is_not(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), *sys.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "now\n"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    journal = Journal(path)
    assert journal.epoch == 7
    assert [(entry.step, entry.state, entry.reply) for entry in journal.entries("op")] == [
        ("fence", "done", b"answer"),
        ("freeze", "begun", b""),
    ]
    assert [entry.step for entry in journal.open_steps()] == ["freeze"]
    journal.close()


def test_the_epoch_never_falls(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.raise_epoch(5)
    journal.raise_epoch(3)
    assert journal.epoch == 5
    journal.close()


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    row = WorkerRow(spec=SPEC, process=PROCESS, slot="n/0", incarnation=3, state="fenced", operation="op", epoch=2)
    kept = Reservation(slot="n/1", operation="op", epoch=1, spec=SPEC, incarnation=1, at=9.0, process=PROCESS)
    journal.put_worker(row)
    journal.put_reservation(kept)
    journal.note_started("w")
    journal.close()
    journal = Journal(tmp_path / "j")
    assert (journal.worker("w"), journal.reservation("op"), journal.started("w"), journal.started("v")) == (row, kept, True, False)
    journal.close()


def test_a_batch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")

    def fail_half_way() -> None:
        with journal.batch():
            journal.begin("op", "fence", "w", 1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert journal.entries("op") == ()
    journal.close()


def test_undoing_touches_what_was_done_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.done("op", "freeze", "w", 1.0, b"r")
    journal.failed("op", "restore", "w", 1.0, problem())
    journal.undo("op", ("freeze", "restore", "never"), 2.0, "why")
    assert {entry.step: (entry.state, entry.reply) for entry in journal.entries("op")} == {
        "freeze": ("undone", b""),
        "restore": ("failed", b""),
    }
    journal.close()


def test_old_operations_are_forgotten_but_not_open_ones(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.done("old", "fence", "w", 1.0, b"")
    journal.begin("open", "fence", "w", 1.0)
    journal.done("new", "fence", "w", 100.0, b"")
    journal.forget_before(50.0)
    assert [bool(journal.entries(name)) for name in ("old", "open", "new")] == [False, True, True]
    journal.close()


def test_of_who_lives_here_it_is_never_forgotten_that_an_image_may_be_elsewhere(tmp_path: Path) -> None:
    """Another node may have it for years: an engine that takes this one for dead would restore a worker which still lives here."""
    journal = Journal(tmp_path / "j")
    journal.note_started("w")
    journal.put_worker(WorkerRow(spec=replace(SPEC, worker="v"), process=PROCESS, slot="n/0", incarnation=0))
    for worker in ("w", "v", "gone"):
        for number in range(3):
            journal.done(f"{worker}{number}", f"send:m:image-{number}", worker, float(number), b"")
    journal.failed("never", "send:m:image-9", "x", 1.0, problem())
    journal.note_started("x")
    journal.forget_before(50.0)
    assert {worker: journal.may_be_elsewhere(worker) for worker in ("w", "v", "gone", "x")} == {
        "w": True,
        "v": True,
        "gone": False,
        "x": False,
    }
    kept = [operation for operation in ("w0", "w1", "w2", "v1", "v2", "never") if journal.entries(operation)]
    assert kept == ["w2", "v2"], "one for each is enough"
    journal.close()


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o600


def test_a_journal_that_cannot_be_written_stalls(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal._db.execute("PRAGMA query_only=ON")
    with pytest.raises(Stalled, match="SH610"):
        journal.begin("op", "fence", "w", 1.0)
    journal.close()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path / "j").close()
    with sqlite3.connect(tmp_path / "j") as other:
        other.execute("UPDATE meta SET value=99 WHERE key='schema'")
    other.close()
    with pytest.raises(Stalled, match="SH611"):
        Journal(tmp_path / "j")


async def test_an_agent_that_runs_for_long_forgets_as_one_that_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FORGET_S", 0.0)
    journal, now = Journal(tmp_path / "j"), [KEEP_S]
    journal.done("old", "fence", "gone", 1.0, b"")
    forgetting = asyncio.create_task(keeping._forget(SimpleNamespace(journal=journal, clock=lambda: now[0])))  # type: ignore[arg-type]

    async def looks() -> bool:
        for _ in range(3):
            await asyncio.sleep(0)
        return bool(journal.entries("old"))

    assert await looks()
    now[0] += 2.0
    assert not await looks()
    assert not forgetting.done()
    forgetting.cancel()
    journal.close()


class Broken:
    """A connection on whose disk from now on even a ROLLBACK fails, as SQLite says of one that gives errors."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real, self.tries = real, 0

    @property
    def in_transaction(self) -> bool:
        return True

    def execute(self, text: str, *values: Any) -> Any:
        if text.startswith("BEGIN"):
            self.tries += 1
        raise sqlite3.OperationalError("disk I/O error")

    def close(self) -> None:
        self._real.close()


async def test_a_disk_with_errors_ends_none_of_what_is_looked_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "FORGET_AGAIN_S", 0.0)  # and not only a day later
    journal = Journal(tmp_path / "j")
    broken = Broken(journal._db)
    journal._db = broken  # type: ignore[assignment]
    with pytest.raises(Stalled, match=r"SH610.*disk I/O error"):
        journal.begin("op", "fence", "w", 1.0)
    said: list[str] = []
    log = SimpleNamespace(error=lambda _what, **more: said.append(more["error"]))
    node = SimpleNamespace(journal=journal, clock=lambda: 1.0, log=log)
    forgetting = asyncio.create_task(keeping._forget(node))  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        while broken.tries < 3:
            await asyncio.sleep(0)
    assert (forgetting.done(), said) == (False, []), "the disk is told of by others"
    monkeypatch.setattr(journal, "forget_before", lambda _at: 1 / 0)
    async with asyncio.timeout(10):
        while len(said) < 2:
            await asyncio.sleep(0)
    assert (forgetting.done(), said[0]) == (False, "ZeroDivisionError: division by zero")
    forgetting.cancel()
    journal.close()
