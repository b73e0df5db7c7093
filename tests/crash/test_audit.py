"""The writer is killed while it appends, again and again: every record that it had acknowledged is there, and the chain is whole."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from shunter.audit.journal import Journal

ROUNDS = 25

# Appends batches of 1 to 5 records and says the last number of each one on standard output once `append` has returned.
WRITER = """
import itertools, os, pathlib, sys
from shunter.audit.journal import Journal
from shunter.model.ids import Epoch
from shunter.model.record import Record, RecordKind

with Journal(pathlib.Path(sys.argv[1])) as journal:
    for batch in itertools.count():
        records = [
            Record(at=float(batch), kind=RecordKind.STEP, subject=sys.argv[2], what=f"{batch}.{n}", epoch=Epoch(1), body={"pad": "x" * 300})
            for n in range(batch % 5 + 1)
        ]
        sealed = journal.append(records)
        os.write(1, f"{sealed[-1].seq} {sealed[-1].hash}\\n".encode())
"""


def killed(path: Path, run: int, after: int) -> list[str]:
    """Start a writer, SIGKILL it once it has acknowledged so many batches, and return what it acknowledged."""
    writer = subprocess.Popen([sys.executable, "-W", "ignore", "-c", WRITER, str(path), f"run-{run}"], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    try:
        lines = [writer.stdout.readline() for _ in range(after)]
    finally:
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.readlines()
        writer.wait()
        writer.stdout.close()
    assert writer.returncode == -signal.SIGKILL
    return [line.decode().strip() for line in lines if line.endswith(b"\n")]


def test_no_acknowledged_record_is_lost_and_the_chain_stays_whole(tmp_path: Path):
    path, rng, acknowledged = tmp_path / "audit.db", random.Random(50), {}
    for run in range(ROUNDS):
        told = killed(path, run, rng.randint(1, 60))
        assert told, "it appended before it was killed"
        acknowledged |= {int(seq): own for seq, own in (line.split() for line in told)}
        with Journal(path, read_only=True) as journal:
            result = journal.verify()
            assert result.ok, result.why
            assert result.count >= max(acknowledged)
    with Journal(path) as journal:
        kept = {s.seq: s for s in journal.list(limit=None)}
        assert journal.verify().ok
    assert {seq: kept[seq].hash for seq in acknowledged} == acknowledged
    assert sorted(kept) == list(range(1, len(kept) + 1))
    # A batch is there as a whole or not at all.
    for run in range(ROUNDS):
        batches = [s.record.what.split(".") for s in kept.values() if s.record.subject == f"run-{run}"]
        sizes = {batch: sum(b == batch for b, _ in batches) for batch, _ in batches}
        assert all(size == int(batch) % 5 + 1 for batch, size in sizes.items()), sizes


def test_an_append_that_was_not_synced_would_be_noticed(tmp_path: Path):
    """The head is what makes a lost end visible: put an older database beside a newer head."""
    path = tmp_path / "audit.db"
    killed(path, 0, 5)
    with Journal(path) as journal:
        before = journal.verify().count
    older = path.read_bytes()
    killed(path, 1, 5)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    path.write_bytes(older)
    with Journal(path, read_only=True) as journal:
        result = journal.verify()
    assert not result.ok
    assert result.broken == before + 1
