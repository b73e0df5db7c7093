"""The engine's own disk fills up, on the real parts: what is involuntary is done and recorded, and what is voluntary waits for the disk."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeScene, Scene, soon
from fleet import ANY, DECODE, Fleet, NodePlan, WorkerPlan

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s, otherwise: [checkpoint, drain]}
"""
SHIFT = """
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: shift}
spec:
  workers: {graph: tiny}
  from: decode
  to: prefill
  when: pools.decode.kvUsage < 0.9 && pools.prefill.workers == 0
  for: 1s
  limits: {from: {min: 0}}
  sessions: move
"""
NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("prefill-0", "prefill", 0, 121),)),
    NodePlan("node-b", 12, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-c", 13, (DECODE,), (WorkerPlan("decode-1", "decode", 0, 112),)),
    NodePlan("node-d", 14, (DECODE, DECODE), ()),
)


def on_a_small_disk(fleet: Fleet) -> None:
    """Let the engine's state be on 8 MiB of its own. It goes with the lab."""
    fleet.state.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "engine-disk", str(fleet.state)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is left, to the last block."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return filler


def degraded(s: Scene) -> str | None:
    shown: dict[str, Any] = json.loads(s.fleet.shunter("status", "--state", str(s.fleet.state), "--json").stdout)
    return shown["degraded"] and shown["degraded"]["problem"]["code"]


def test_ac50_a_worker_is_saved_on_a_full_disk_and_a_reassignment_waits_until_there_is_room(scene: MakeScene) -> None:
    """Nothing but the disk keeps the reassignment off: its finding says `act`, and it is carried out as soon as there is room."""
    s = scene(nodes=NODES, policies={"save.yaml": SAVE, "shift.yaml": SHIFT}, prepare=on_a_small_disk)
    s.stream(600, "1,1")
    s.fleet.start_engine()
    s.wait("the policies", lambda: s.audit("policies"))
    assert degraded(s) is None
    filler = fill(s.fleet.state)
    s.wait("the engine to see it", lambda: degraded(s) == "SH531")
    assert "SH531" in (s.fleet.folder / "engine.log").read_text()
    # the only prefill worker has to go: the reassignment is decided, and not begun
    s.fleet.nodes["node-a"].post_notice("preemption", "60s", "n1")
    assert s.outcome("park")["status"] == "succeeded"
    s.fleet.nodes["node-a"].power_off()
    s.wait(
        "the reassignment to be decided",
        lambda: [f for f in s.audit("finding") if f["body"]["policy"] == "shift" and f["body"]["verdict"] == "act"],
    )
    # while the worker is saved, though whoever filled the disk goes on
    fill(s.fleet.state)
    s.fleet.nodes["node-c"].post_notice("preemption", "60s", "n2")
    moved = s.outcome("move")
    assert (moved["status"], moved["policy"], moved["from"]) == ("succeeded", "save", "node-c/0"), moved
    s.whole()
    assert degraded(s) == "SH531"
    assert s.step("decode-0", "move") == ("", False)
    assert {r["subject"] for r in s.audit("intent")} == {"prefill-0", "decode-1"}
    # and what waited is done
    filler.unlink()
    restored = s.outcome("restore")
    assert (restored["status"], restored["policy"], restored["to"]) == ("succeeded", "shift", "node-b/0"), restored
    assert degraded(s) is None
    disk = [r["what"] for r in s.audit("source") if r["subject"] == "engine's disk"]
    assert len(disk) == 2
    assert disk[-1] == "is back"
    verified = s.fleet.shunter("audit", "verify", "--state", str(s.fleet.state))
    assert verified.stdout.startswith("whole: ")
    assert not [r for r in s.audit("step") if "spooled" in r["body"]], "there was room set aside: nothing had to wait"


def test_an_engine_that_dies_on_a_full_disk_is_followed_by_one_that_finishes_its_move(scene: MakeScene) -> None:
    """The next one leads, at a new epoch, on the same disk: still without any room but what its predecessor had set aside."""
    s = scene(policies={"save.yaml": SAVE}, prepare=on_a_small_disk, prometheus=False)
    s.stream(350)
    engine = s.fleet.start_engine()
    s.wait("the policies", lambda: s.audit("policies"))
    fill(s.fleet.state)
    s.wait("the engine to see it", lambda: degraded(s) == "SH531")
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    assert soon(lambda: s.step("decode-0", "move")[0] in ("frozen", "held", "committing"), 30), s.logs()
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()
    fill(s.fleet.state)
    s.fleet.start_engine("engine-2.log")
    s.wait("the move to be settled", lambda: [o for o in s.outcomes("move") if o["status"] == "succeeded"])
    s.whole()
    assert s.copies("decode-0") == 1
    assert degraded(s) == "SH531"
    assert [r["what"] for r in s.audit("engine") if "leads" in r["what"]] == ["leads at epoch 1", "leads at epoch 2"]
    assert s.fleet.shunter("audit", "verify", "--state", str(s.fleet.state)).stdout.startswith("whole: ")
