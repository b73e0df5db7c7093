"""An engine that is killed with SIGKILL while it writes: what it was told is durable is there, and nothing is half."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shunter.act.store import Store
from shunter.model.ids import OperationId
from shunter.model.operation import Step

CHILD = """
import sys, pathlib
from shunter.act.store import Store
from shunter.model.operation import *
from shunter.model.plan import *
store = Store(pathlib.Path(sys.argv[1]))
number = 0
while True:
    number += 1
    batch = [
        OperationRecord(
            planned=PlannedOperation(
                id=f"{number}-{part}", kind=OperationKind.MOVE, worker="w", lane="voluntary", policy="p", reason="r" * 3000,
                expect=Preconditions(incarnation=0),
            ),
            plan="d", epoch=1, created_at=float(number), history=((Step.INTENDED, float(number)),),
        )
        for part in "ab"
    ]
    store.insert(batch)
    print(number, "intended", flush=True)
    store.advance(f"{number}-a", Step.FENCED, float(number))
    print(number, "fenced", flush=True)
    store.finish(f"{number}-b", Outcome(status=Status.SUCCEEDED, at=float(number)))
    print(number, "ended", flush=True)
"""


@pytest.mark.parametrize("lines", [1, 2, 3, 7, 20, 41])
def test_killed_while_writing(tmp_path: Path, lines: int) -> None:
    path = tmp_path / "s.db"
    with subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        os.kill(child.pid, signal.SIGKILL)
        said += child.stdout.readlines()
    promised = [line.split() for line in said if line.endswith("\n")]
    assert len(promised) >= lines
    store = Store(path)
    for number, what in promised:
        first, second = store.get(OperationId(f"{number}-a")), store.get(OperationId(f"{number}-b"))
        assert first is not None
        assert second is not None
        if what in ("fenced", "ended"):
            assert first.step is Step.FENCED
        if what == "ended":
            assert second.outcome is not None
    beyond = int(promised[-1][0]) + 1
    both = [store.get(OperationId(f"{beyond}-{part}")) is not None for part in "ab"]
    assert both[0] == both[1], "a batch of intents is there as a whole or not at all"
    assert store._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert store.probe()
