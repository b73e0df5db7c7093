"""The engine's files on a real disk that is full: what was set aside takes what is involuntary, durably, whoever else fills the disk."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from shunter.act.store import Store
from shunter.app import gone
from shunter.app.degraded import condition
from shunter.audit.journal import Journal
from shunter.model.errors import Retry
from shunter.model.ids import OperationId
from shunter.model.operation import Status

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

# Opens what an engine opens; then does one round for each line on standard input: checks the disk, carries an operation of that lane
# through its steps, and says on standard output what became of it.
ENGINE = """
import itertools, pathlib, sys, time
from shunter.act.store import Store
from shunter.app.degraded import Watch
from shunter.app.room import Room, suiting
from shunter.audit.journal import Journal
from shunter.audit.trail import Trail
from shunter.model.errors import Stalled
from shunter.model.operation import *
from shunter.model.plan import *
from shunter.model.record import *

folder = pathlib.Path(sys.argv[1])
sizes = suiting(folder)
store = Store(folder / "engine.db", wal_pages=sizes.wal_pages)
store.next_epoch()
journal = Journal(folder / "audit.db", wal_pages=sizes.wal_pages)
trail = Trail(journal, time.time)
room = Room(folder, (store.path, journal.path), sizes)
room.hold()
watch = Watch(store, trail, room, folder, time.time)

def say(*words):
    print(*words, flush=True)

def tell(operation, kind, what, lane):
    body = {"lane": lane, "pad": "x" * 900}
    watch.audit(Record(at=time.time(), kind=kind, subject="w", what=what, epoch=1, operation=operation, body=body))

def carry(name, lane):
    if lane == "voluntary" and not (store.healthy or store.probe()):
        return say(name, "not-begun")
    planned = PlannedOperation(
        id=name, kind=OperationKind.MOVE, worker="w", lane=lane, policy="p", reason="r" * 900, expect=Preconditions(incarnation=0)
    )
    store.insert([OperationRecord(planned=planned, plan="d", epoch=1, created_at=time.time())])
    tell(name, RecordKind.INTENT, "intent", lane)
    for step in (Step.FENCED, Step.FROZEN, Step.COMMITTING):
        store.advance(name, step, time.time())
        tell(name, RecordKind.STEP, step.value, lane)
    store.finish(name, Outcome(status=Status.SUCCEEDED, at=time.time()))
    tell(name, RecordKind.OUTCOME, "succeeded", lane)
    say(name, "durable" if not store.unwritten and not trail.waiting else "in-memory")

condition = watch.check()
say("ready", condition and condition.problem.code)
for number, line in enumerate(sys.stdin):
    condition = watch.check()
    say("condition", condition and condition.problem.code)
    carry(f"{sys.argv[2]}-{number}", line.strip())
journal.close()
store.close()
room.close()
"""
RECORDS = ["intent", "fenced", "frozen", "committing", "succeeded"]


class Child:
    """The process above."""

    def __init__(self, folder: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ready = self.line()[1]

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def begin(self, lane: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(lane + "\n")
        self.process.stdin.flush()

    def round(self, lane: str) -> tuple[str, str, str]:
        """The condition, the operation and what became of it."""
        self.begin(lane)
        _, found = self.line()
        name, became = self.line()
        return found, name, became

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system of its own: 8 MiB, or what the test asks for."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', '8m')}", "full-disk-test", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take all that is left, to the last block."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (2**16, 4096):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return filler


def kept(disk: Path, name: str) -> tuple[Status | None, list[str]]:
    """What store and audit say of an operation, and that the chain is whole."""
    with closing(Store(disk / "engine.db", read_only=True)) as store, Journal(disk / "audit.db", read_only=True) as journal:
        assert journal.verify().ok
        found = store.get(OperationId(name))
        return found.status if found else None, [s.record.what for s in journal.list(operation=name, limit=None)]


def test_what_is_involuntary_is_durable_and_what_is_voluntary_waits(disk: Path) -> None:
    child = Child(disk, "a")
    assert child.round("voluntary") == ("None", "a-0", "durable")
    filler = fill(disk)
    assert child.round("voluntary") == ("SH531", "a-1", "not-begun")
    for number in range(2, 6):
        fill(disk)  # whoever filled it goes on filling it
        assert child.round("involuntary") == ("SH531", f"a-{number}", "durable")
    shown = condition(disk, 0.0)
    assert shown is not None
    assert shown.problem.code == "SH531"
    filler.unlink()
    assert child.round("voluntary") == ("None", "a-6", "durable")
    child.end()
    assert condition(disk, 0.0) is None
    assert kept(disk, "a-1") == (None, [])
    for number in (0, 2, 3, 4, 5, 6):
        assert kept(disk, f"a-{number}") == (Status.SUCCEEDED, RECORDS)


def test_stopped_and_started_again_on_a_full_disk(disk: Path) -> None:
    child = Child(disk, "a")
    assert child.round("involuntary") == ("None", "a-0", "durable")
    child.end()
    fill(disk)
    for name in ("b", "c"):
        child = Child(disk, name)
        assert child.ready == "SH531"
        assert child.round("involuntary") == ("SH531", f"{name}-0", "durable")
        child.end()
        fill(disk)
    for name in ("a-0", "b-0", "c-0"):
        assert kept(disk, name) == (Status.SUCCEEDED, RECORDS)


def test_a_node_can_be_declared_dead_on_a_full_disk(disk: Path) -> None:
    gone.set_aside(disk)
    fill(disk)
    gone.declare(disk, "node-a", 7.0, "the rack burned")
    assert [(n.node, n.seen_at, n.detail) for n in gone.declared(disk)] == [("node-a", 7.0, "the rack burned")]
    fill(disk)
    with pytest.raises(Retry, match=r"SH914.*No space left"):
        gone.declare(disk, "node-b", 8.0)
    assert [n.node for n in gone.declared(disk)] == ["node-a"]
    (disk / "filler").unlink()
    gone.set_aside(disk)
    fill(disk)
    gone.declare(disk, "node-b", 8.0)
    assert [n.node for n in gone.declared(disk)] == ["node-a", "node-b"]


@pytest.mark.parametrize("disk", ["64m"], indirect=True)
def test_killed_on_a_full_disk_nothing_that_was_acknowledged_is_lost(disk: Path) -> None:
    """Killed in the middle of each round at another moment; the next engine opens the same files, still without any room."""
    acknowledged = []
    child = Child(disk, "0")
    fill(disk)
    for run in range(8):
        if run:
            child = Child(disk, str(run))
            assert child.ready == "SH531"
        for _ in range(2):
            _, name, became = child.round("involuntary")
            assert became == "durable"
            acknowledged.append(name)
        child.begin("involuntary")
        time.sleep(0.002 * run)  # not to wait for anything: to be somewhere else each time
        child.kill()
        for name in acknowledged:
            assert kept(disk, name) == (Status.SUCCEEDED, RECORDS)
        half = kept(disk, f"{run}-2")
        assert half[1] == RECORDS[: len(half[1])]
        assert not half[1] or half[0] is not None, "no record of an operation whose intent isn't there"


def test_beyond_what_was_set_aside_it_goes_on_in_memory_says_so_and_all_is_there_in_order_in_the_end(disk: Path) -> None:
    child = Child(disk, "a")
    filler = fill(disk)
    became: list[str] = []
    found = ""
    while "in-memory" not in became[-2:-1] and len(became) < 200:
        found, _, last = child.round("involuntary")
        became.append(last)
    assert became.count("durable") >= 5, became
    assert found == "SH532"
    shown = condition(disk, 0.0)
    assert shown is not None
    assert shown.problem.code == "SH532"
    assert child.round("voluntary")[2] == "not-begun"
    filler.unlink()
    assert child.round("voluntary") == ("None", f"a-{len(became) + 1}", "durable")
    child.end()
    for number in range(len(became)):
        assert kept(disk, f"a-{number}") == (Status.SUCCEEDED, RECORDS)
    with Journal(disk / "audit.db", read_only=True) as journal:
        records = [s.record for s in journal.list(limit=None)]
    assert [r.at for r in records] == sorted(r.at for r in records), "in the order in which it happened"
    late = [r for r in records if "spooled" in r.body]
    assert late
    assert all(r.body["spooled"]["written"] >= r.body["spooled"]["at"] >= r.at for r in late)  # type: ignore[index]


def test_a_disk_that_takes_no_write_at_all_keeps_what_is_involuntary_from_nothing(disk: Path) -> None:
    """As with a file system that goes read-only at the first error of its disk: the kernel refuses each write, wherever it goes."""
    child = Child(disk, "a")
    assert child.round("voluntary")[2] == "durable"
    resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    assert child.round("involuntary") == ("SH532", "a-1", "in-memory")
    assert child.round("voluntary") == ("SH532", "a-2", "not-begun")
    assert kept(disk, "a-1") == (None, [])
    resource.prlimit(child.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert child.round("voluntary") == ("None", "a-3", "durable")
    child.end()
    for number in (0, 1, 3):
        assert kept(disk, f"a-{number}") == (Status.SUCCEEDED, RECORDS)
