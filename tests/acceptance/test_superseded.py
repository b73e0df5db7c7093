"""What was begun, and then comes a newer commit, a person, or the engine's death: real engine, agents (which only pretend to move), Git and
command line.
"""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fleet import ANY, BIN, Fleet, NodePlan, WorkerPlan
from machine import wait_for
from shunter.act.store import Store
from shunter.model.operation import OperationRecord, Status, Step

NODES = (
    NodePlan("node-a", 11, (ANY, ANY), (WorkerPlan("decode-0", "decode", 0, 111), WorkerPlan("decode-1", "decode", 1, 112))),
    NodePlan("node-b", 12, (ANY, ANY), ()),
)
TIDY = """\
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: tidy}
spec:
  workers: {graph: tiny}
  when: node.id == "node-a"
  for: 1s
  step: 2
---
apiVersion: shunter.dev/v1alpha1
kind: DisruptionBudget
metadata: {name: both}
spec: {workers: {graph: tiny}, maxConcurrent: 2}
"""
NOTHING = "# nothing is wanted any more\n"
MENDED = TIDY.replace("name: tidy", "name: mended").replace('node.id == "node-a"', 'node.id == "node-a" && worker.id == "decode-1"')


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "source" / "policies").mkdir(parents=True)
    (tmp_path / "source" / "policies" / "tidy.yaml").write_text(TIDY)
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        made.start_nodes()
        made.make_repository(tmp_path / "source")
        yield made


def operations(fleet: Fleet) -> list[OperationRecord]:
    with closing(Store(fleet.state / "engine.db", read_only=True)) as store:
        return [*store.active(), *store.recent(0.0)]


def leads(fleet: Fleet) -> bool:
    return "leads at epoch" in fleet.shunter("audit", "list", "--state", str(fleet.state), "--kind", "engine", check=False).stdout


def audited(fleet: Fleet, kind: str) -> list[dict[str, Any]]:
    listed = fleet.shunter("audit", "list", "--state", str(fleet.state), "--kind", kind, "--limit", "0", "--json").stdout
    return [json.loads(line)["record"] for line in listed.splitlines()]


def in_force(fleet: Fleet) -> str:
    newest: str = audited(fleet, "policies")[-1]["subject"]
    return newest


def push(fleet: Fleet, text: str, message: str) -> str:
    (fleet.folder / "policies-work" / "policies" / "tidy.yaml").write_text(text)
    return fleet.commit(message)


@pytest.fixture
def engine(fleet: Fleet) -> "subprocess.Popen[bytes]":
    return fleet.start_engine()


@pytest.fixture
def begun(fleet: Fleet, engine: "subprocess.Popen[bytes]") -> Iterator[OperationRecord]:
    """The first of two moves has begun, and waits for an agent that stands still; the second one is planned, and waits for the first."""
    destination = fleet.nodes["node-b"].agent
    assert destination is not None
    wait_for("the engine to lead", lambda: leads(fleet), 30)
    with closing(sqlite3.connect(f"{(fleet.state / 'engine.db').as_uri()}?mode=ro", uri=True)) as db:

        def has_begun() -> bool:
            """The engine runs for a hundredth of a second at a time, so that it doesn't get far beyond the intent before we see it."""
            os.kill(engine.pid, signal.SIGCONT)
            time.sleep(0.01)
            os.kill(engine.pid, signal.SIGSTOP)
            return bool(db.execute("SELECT count(*) FROM operations").fetchone()[0])

        wait_for("the first move to begin", has_begun, 60, every=0)
    os.kill(destination.pid, signal.SIGSTOP)
    os.kill(engine.pid, signal.SIGCONT)
    try:
        (record,) = operations(fleet)
        assert (record.status, record.planned.worker) == (Status.ACTIVE, "decode-0")
        assert record.step in (Step.INTENDED, Step.PREPARED, Step.FENCED), "nothing has been committed yet"
        yield record
    finally:
        os.kill(destination.pid, signal.SIGCONT)


def test_ac34_a_fix_is_in_force_while_what_it_mends_is_under_way(fleet: Fleet, begun: OperationRecord) -> None:
    """A commit that can't be read leaves everything as it was; the next one takes back what the first began, and is acted on itself."""
    first = in_force(fleet)
    bad = push(fleet, "kind: [\n", "Break it")
    wait_for("the bad commit to be looked at", lambda: in_force(fleet) == bad, 30)
    (record,) = operations(fleet)
    assert record.cancelled is None, "a file that can't be read takes nothing back"
    assert bad != first

    fix = push(fleet, MENDED, "Mend it")
    wait_for("the fix to be in force", lambda: in_force(fleet) == fix, 30)
    wait_for("what it doesn't want to be given up", lambda: operations(fleet)[0].cancelled, 30)
    (record,) = operations(fleet)
    assert (record.id, record.status) == (begun.id, Status.ACTIVE), "the fix waited for nothing"
    assert record.cancelled is not None
    assert f"commit {fix[:12]} has no policy tidy" in record.cancelled.what

    node = fleet.nodes["node-b"]
    assert node.agent is not None
    os.kill(node.agent.pid, signal.SIGCONT)
    wait_for("both to end", lambda: all(o.outcome for o in operations(fleet)) and len(operations(fleet)) > 1, 60)
    ended = {(str(o.planned.policy), str(o.planned.worker)): o.status for o in operations(fleet)}
    assert ended == {("tidy", "decode-0"): Status.ROLLED_BACK, ("mended", "decode-1"): Status.SUCCEEDED}
    snapshot = json.loads(fleet.shunter("snapshot", "--config", str(fleet.engine_config), "-").stdout)
    places = {w["id"]: (w["slot"], w["incarnation"], w["state"]) for w in snapshot["fleet"]["workers"]}
    assert places == {"decode-0": ("node-a/0", 0, "running"), "decode-1": ("node-b/1", 1, "running")}, "the one given up runs where it was"
    assert not [slot for node in snapshot["fleet"]["nodes"] for slot in node["slots"] if slot.get("reserved_by")], "no slot is kept for it"


def test_ac34_unstarted_work_is_never_begun_once_a_commit_has_taken_its_policy_away(fleet: Fleet, begun: OperationRecord) -> None:
    """The second move was in every plan so far, and waits for the first."""
    gone = push(fleet, NOTHING, "Take it back")
    wait_for("the newer commit to be in force", lambda: in_force(fleet) == gone, 30)
    node = fleet.nodes["node-b"]
    assert node.agent is not None
    os.kill(node.agent.pid, signal.SIGCONT)
    wait_for("the first to end", lambda: operations(fleet)[0].outcome is not None, 60)
    (record,) = operations(fleet)
    assert (record.id, record.status) == (begun.id, Status.ROLLED_BACK)
    assert {intent["subject"] for intent in audited(fleet, "intent")} == {"decode-0"}, "nobody ever meant to begin the second one"
    assert "decode-1" in json.dumps(audited(fleet, "plan")), "though it had been planned"


def test_ac43_what_became_of_it_is_unknown_until_the_agents_have_said(
    fleet: Fleet, engine: "subprocess.Popen[bytes]", begun: OperationRecord
) -> None:
    """The engine dies; the next one writes down that it doesn't know, and asks, before it orders anything."""
    engine.kill()
    engine.wait()
    fleet.start_engine()
    wait_for("the next one not to know", lambda: operations(fleet)[0].status is Status.UNKNOWN, 60, every=0.02)
    shown = fleet.shunter("status", "--state", str(fleet.state)).stdout
    assert "the agents are asked: SH524" in shown, shown
    node = fleet.nodes["node-b"]
    assert node.agent is not None
    os.kill(node.agent.pid, signal.SIGCONT)
    wait_for("the operation to end", lambda: any(o.id == begun.id and o.outcome for o in operations(fleet)), 90)
    steps = [r for r in audited(fleet, "step") if r.get("operation") == begun.id]
    unknown = next(number for number, r in enumerate(steps) if r["what"].startswith("move: unknown after"))
    assert {r["epoch"] for r in steps[:unknown]} <= {1}, "the next engine's first word on it"


def test_a_person_gives_it_up_in_the_middle_and_its_worker_runs_on_at_the_source(fleet: Fleet, begun: OperationRecord) -> None:
    wish = ("cancel", "--config", str(fleet.engine_config), "--because")
    verb = subprocess.Popen(
        [str(BIN / "shunter"), *wish, "the rack is being rewired", begun.id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for("the engine to hear it", lambda: operations(fleet)[0].cancelled, 30)
    node = fleet.nodes["node-b"]
    assert node.agent is not None
    os.kill(node.agent.pid, signal.SIGCONT)
    out, err = verb.communicate(timeout=90)
    assert verb.returncode == 0, out + err
    assert out.startswith(f"{begun.id} is given up: it goes back")
    assert "the worker runs on where it was" in out
    ended = next(one for one in operations(fleet) if one.id == begun.id)
    assert ended.status is Status.ROLLED_BACK
    snapshot = json.loads(fleet.shunter("snapshot", "--config", str(fleet.engine_config), "-").stdout)
    places = {w["id"]: (w["slot"], w["incarnation"], w["state"]) for w in snapshot["fleet"]["workers"]}
    assert places["decode-0"] == ("node-a/0", 0, "running")
    (said,) = [r for r in audited(fleet, "engine") if r["subject"] == begun.id]
    assert (said["body"]["because"], said["body"]["became"]) == ("the rack is being rewired", "goes-back")
    assert "@" in said["body"]["by"]
    for name, code in ((begun.id, "SH933"), ("move-nobody", "SH932")):
        again = fleet.shunter(*wish, "once more", name, check=False)
        assert (again.returncode, again.stderr.split()[1]) == (1, code), again.stderr
