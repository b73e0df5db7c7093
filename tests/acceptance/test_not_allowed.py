"""A node whose agent may do less than a worker does: nothing of the worker is touched, by a move or by a restore from its image."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from conftest import MakeScene
from fleet import Fleet
from shunter_agent.runtime import process as processes

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s, otherwise: [%s]}
"""
FEWER = ["setpriv", "--bounding-set", "-sys_boot,-wake_alarm"]
"""What an agent can do without."""


def bounded(fleet: Fleet) -> None:
    """The agent of node-b has fewer capabilities than that of node-a, which started the worker."""
    node = fleet.nodes["node-b"]
    node.command = [*FEWER, *node.command]


def ordered(fleet: Fleet, which: str) -> dict[str, set[str]]:
    """What each agent has been ordered to do by operations whose ids begin so; it writes that down before it does it."""
    found = {}
    for name, node in fleet.nodes.items():
        with contextlib.closing(sqlite3.connect(f"{(node.folder / 'state' / 'journal.db').as_uri()}?mode=ro", uri=True)) as db:
            found[name] = {step for (step,) in db.execute("SELECT step FROM steps WHERE operation LIKE ?", (f"{which}%",))}
    return found


def process(worker: str) -> set[tuple[int, int]]:
    """Pid and start of each process of this worker on the machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"--id" in words and worker.encode() in words:
                noted = processes.note(int(path.parent.name))
                found.add((noted.pid, noted.started))
    return found


def test_a_worker_is_not_touched_for_a_node_whose_agent_is_allowed_less(scene: MakeScene) -> None:
    """Both nodes are asked, and neither is told to do anything but to undo what there is, which is nothing."""
    s = scene(policies={"save.yaml": SAVE % ""}, prepare=bounded, prometheus=False)
    s.stream(300)
    before = process("decode-0")
    assert len(before) == 1
    s.fleet.start_engine()
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    moved = s.outcome("move")
    assert (moved["status"], moved["outcome"]["code"]) == ("rolled-back", "SH764"), str(moved) + s.logs()
    assert "CAP_SYS_BOOT, CAP_WAKE_ALARM" in moved["outcome"]["reason"]
    s.whole()
    assert ordered(s.fleet, "") == {"node-a": set(), "node-b": {"abort"}}
    assert process("decode-0") == before
    assert s.discovered() == 1


def test_an_image_says_what_its_worker_was_allowed(scene: MakeScene) -> None:
    """Else what is left of a worker would be sent about, and its restore tried, to find it out."""
    s = scene(policies={"save.yaml": SAVE % "checkpoint"}, prepare=bounded, prometheus=False)
    s.fleet.start_engine()
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    assert s.outcome("park")["status"] == "succeeded"
    restored = s.outcome("restore")
    assert (restored["status"], restored["outcome"]["code"]) == ("failed", "SH764"), restored
    assert ordered(s.fleet, "restore-") == {"node-a": set(), "node-b": {"abort"}}
    assert process("decode-0") == set()
