"""What goes wrong in the middle of the main job, on the real parts: CRIU, Git, Prometheus, processes and networks."""

import contextlib
import os
import signal
import sqlite3
import stat
from pathlib import Path

import pytest
from conftest import MakeScene, soon
from fleet import ANY, DECODE, Fleet, NodePlan, WorkerPlan
from machine import wait_for
from shunter.act.store import Store
from shunter.model.operation import OperationRecord

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption, gone], reserve: 5s, otherwise: [checkpoint, drain]}
"""
SHIFT = """
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: shift}
spec:
  {workers: {graph: tiny}, from: decode, to: prefill, when: pools.decode.kvUsage < 0.9, for: 1s, limits: {from: {min: 0}}, sessions: park}
"""


def slow_criu(real: Path, folder: Path) -> tuple[Path, Path, Path]:
    """A CRIU that begins its work only when a file `go` is there, and says by a file `begun` that it was asked. For one node's restores."""
    script, begun, go = folder / "criu-slow", folder / "begun", folder / "go"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = swrk ] && [ -e {folder}/armed ]; then touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done; fi\n'
        f'exec {real} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script, begun, go


def give_slow_criu(fleet: Fleet, node: str) -> tuple[Path, Path]:
    """Let one node's agent use a slow CRIU. Returns its `begun` and `go` files; it is slow only once `armed` exists."""
    assert fleet.criu is not None
    script, begun, go = slow_criu(fleet.criu, fleet.nodes[node].folder)
    plain = fleet.nodes[node].write_config

    def write() -> None:
        plain()
        config = fleet.nodes[node].config
        config.write_text(config.read_text().replace(f'criu = "{fleet.criu}"', f'criu = "{script}"'))

    fleet.nodes[node].write_config = write  # type: ignore[method-assign]
    return begun, go


def arm(fleet: Fleet, node: str) -> None:
    (fleet.nodes[node].folder / "armed").touch()


def ordered(fleet: Fleet, node: str, step: str) -> bool:
    """The node's agent has begun a step of any operation."""
    path = fleet.nodes[node].folder / "state" / "journal.db"
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return bool(db.execute("SELECT count(*) FROM steps WHERE step=?", (step,)).fetchone()[0])


def test_a_preempted_worker_moves_without_prometheus_and_voluntary_work_is_inconclusive(scene: MakeScene) -> None:
    """An involuntary move never waits for a metric; a reassignment never happens without one."""
    s = scene(policies={"save.yaml": SAVE, "shift.yaml": SHIFT}, prometheus=False)
    s.stream(400)
    s.fleet.start_engine()
    s.wait("the shift to be inconclusive", lambda: [f for f in s.audit("finding") if f["body"]["policy"] == "shift"])
    said = [f["body"]["verdict"] for f in s.audit("finding") if f["body"]["policy"] == "shift" and f["subject"] == "tiny"]
    assert set(said) == {"inconclusive"}
    s.fleet.nodes["node-a"].post_notice("preemption", "60s", "n1")
    moved = s.outcome("move")
    assert moved["status"] == "succeeded", moved
    assert moved["to"] == "node-b/0"
    s.whole()
    assert not s.outcomes("park")


def test_nan_in_prometheus_is_no_number(scene: MakeScene, tmp_path: Path) -> None:
    """A worker that exposes NaN makes the reassignment inconclusive, and moves all the same when its node goes."""
    worker = tmp_path / "nan_worker.py"
    worker.write_text(
        "import worker\n_real = worker.Worker._metrics\n"
        "def _nan(self, request):\n    status, body, kind = _real(self, request)\n"
        "    import re\n    return status, re.sub(rb'(?m)^(vllm:kv_cache_usage_perc\\S*) \\S+', rb'\\1 NaN', body), kind\n"
        "worker.Worker._metrics = _nan\nworker.main()\n"
    )

    def prepare(fleet: Fleet) -> None:
        fleet.worker_script["decode-0"] = worker
        fleet.worker_env["decode-0"] = {"PYTHONPATH": str(Path(__file__).parents[2] / "examples" / "local-fleet")}

    s = scene(policies={"save.yaml": SAVE, "shift.yaml": SHIFT}, prepare=prepare)
    s.stream(400)
    s.fleet.start_engine()

    def about_nan() -> bool:  # the query and the labels are named, as the reader must find the exporter
        return any(
            f["body"]["verdict"] == "inconclusive" and "not a finite number" in str(f["body"])
            for f in s.audit("finding")
            if f["body"]["policy"] == "shift"
        )

    s.wait("a finding that names NaN", about_nan)
    s.fleet.nodes["node-a"].post_notice("preemption", "60s", "n1")
    assert s.outcome("move")["status"] == "succeeded"
    s.whole()
    assert not s.outcomes("park")


def test_a_broken_policy_leaves_its_last_good_version_in_force(scene: MakeScene) -> None:
    """The error names file, line and column; Git away keeps the commit; the next good commit takes over."""
    s = scene(policies={"save.yaml": SAVE})
    engine_log = s.fleet.folder / "engine.log"
    s.fleet.start_engine()
    s.wait("the policies", lambda: s.audit("policies"))
    file = s.fleet.folder / "policies-work" / "policies" / "save.yaml"
    file.write_text(SAVE.replace("reserve: 5s", "reserv: 5s"))
    broken = s.fleet.commit("Break it")
    s.wait("the broken commit", lambda: s.audit("policies")[-1]["subject"] == broken)
    (problem,) = s.audit("policies")[-1]["body"]["problems"]
    assert problem["place"]["file"].endswith("save.yaml")
    assert (problem["place"]["line"], problem["place"]["column"]) == (5, SAVE.splitlines()[4].index("reserve") + 1)
    assert "reserve" in problem["remedy"] + problem["what"]
    assert "save.yaml:5:" in engine_log.read_text()
    # the remote goes away: the commit stays, and it is said
    away = s.fleet.repository.with_name("away.git")
    s.fleet.repository.rename(away)
    s.wait("the source to be away", lambda: [r for r in s.audit("source") if r["subject"] == "policies"])
    # and what was good still acts
    s.stream(300)
    s.fleet.nodes["node-a"].post_notice("preemption", "60s", "n1")
    moved = s.outcome("move")
    assert (moved["status"], moved["policy"]) == ("succeeded", "save")
    s.whole()
    away.rename(s.fleet.repository)
    file.write_text(SAVE.replace("reserve: 5s", "reserve: 6s"))
    mended = s.fleet.commit("Mend it")
    s.wait("the mended commit", lambda: s.audit("policies")[-1]["subject"] == mended)
    assert s.audit("policies")[-1]["body"]["problems"] == []


def test_the_destinations_agent_is_killed_during_the_restore(scene: MakeScene) -> None:
    """The source resumes, the streams go on, and the audit says so."""
    gates: list[Path] = []
    s = scene(policies={"save.yaml": SAVE}, prepare=lambda fleet: gates.extend(give_slow_criu(fleet, "node-b")))
    begun, go = gates
    s.stream(500)
    s.fleet.start_engine()
    arm(s.fleet, "node-b")
    s.fleet.nodes["node-a"].post_notice("preemption", "60s", "n1")
    s.wait("CRIU to be asked for", begun.exists)  # which is before the dump: it is to wait for it
    s.wait("the restore to begin", lambda: s.step("decode-0", "move") == ("frozen", False) and ordered(s.fleet, "node-b", "restore"))
    s.fleet.nodes["node-b"].kill_agent()
    go.touch()
    moved = s.outcome("move")
    assert moved["status"] == "rolled-back", moved
    assert moved["outcome"]["reason"], "the audit says why"
    assert s.copies("decode-0") == 1
    # no node is left to go to, so it drains: only once its streams have ended is it ended too
    s.whole()
    assert s.outcome("drain")["status"] == "succeeded"


def test_the_sources_agent_is_killed_while_the_worker_stands_still(scene: MakeScene) -> None:
    """The dump is undone by CRIU itself: the worker runs on in place. The copy at the destination never runs."""
    gates: list[Path] = []
    s = scene(policies={"save.yaml": SAVE}, prepare=lambda fleet: gates.extend(give_slow_criu(fleet, "node-b")))
    begun, go = gates
    s.stream(500)
    s.fleet.start_engine()
    arm(s.fleet, "node-b")
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    s.wait("CRIU to be asked for", begun.exists)  # which is before the dump: it is to wait for it
    s.wait("the restore to begin", lambda: s.step("decode-0", "move") == ("frozen", False) and ordered(s.fleet, "node-b", "restore"))
    before = [seen["got"] for seen in s.streams()]
    s.fleet.nodes["node-a"].kill_agent()
    s.wait("the worker to run on without its agent", lambda: all(a["got"] > b for a, b in zip(s.streams(), before, strict=True)))
    go.touch()
    s.fleet.nodes["node-a"].start()
    # the agent finds its worker again; what was begun is settled, and the worker is moved after all
    s.wait("a move to succeed", lambda: [o for o in s.outcomes("move") if o["status"] == "succeeded"], 100)
    s.whole()
    assert s.copies("decode-0") == 1


def test_criu_refuses_the_dump(scene: MakeScene, tmp_path: Path) -> None:
    """The worker runs on, the reason is recorded, and the fallback is taken: here `drain`, as a checkpoint is refused alike."""
    worker = tmp_path / "stuck_worker.py"
    # a userfaultfd can't be dumped by any CRIU
    worker.write_text(
        "import ctypes, os, threading, worker\n"
        "def hold():\n    fd = ctypes.CDLL(None).syscall(323, os.O_CLOEXEC | 1)\n    assert fd >= 0\n    worker.held = fd\n"
        "hold()\nworker.main()\n"
    )

    def prepare(fleet: Fleet) -> None:
        fleet.worker_script["decode-0"] = worker
        fleet.worker_env["decode-0"] = {"PYTHONPATH": str(Path(__file__).parents[2] / "examples" / "local-fleet")}

    s = scene(policies={"save.yaml": SAVE}, prepare=prepare)
    s.stream(250)
    s.fleet.start_engine()
    s.fleet.nodes["node-a"].post_notice("preemption", "40s", "n1")
    moved = s.outcome("move")
    assert moved["status"] == "rolled-back", moved
    assert moved["outcome"]["code"].startswith("SH7")
    assert "userfaultfd" in moved["outcome"]["reason"]
    drained = s.outcome("drain")
    assert drained["status"] == "succeeded", drained
    s.whole()


STEPS = ["intended", "prepared", "fenced", "frozen", "held", "committing", "released", "resumed"]


@pytest.mark.parametrize("at", STEPS)
def test_the_engine_is_killed_in_the_middle_of_a_move(scene: MakeScene, at: str) -> None:
    """Whatever step it had come to, the next engine finishes the move or takes it back; never are there two copies, never none."""
    s = scene(policies={"save.yaml": SAVE})
    s.stream(350)
    engine = s.fleet.start_engine()
    s.wait("the engine to follow", lambda: s.audit("policies"))
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    assert soon(lambda: s.step("decode-0", "move")[0] in STEPS[STEPS.index(at) :], 30), s.logs()
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()
    killed_at, ended = s.step("decode-0", "move")
    assert not ended, f"the move was over before the engine died, at {killed_at}"
    s.fleet.start_engine("engine-2.log")
    s.wait("the move to be settled", lambda: [o for o in s.outcomes("move") if o["status"] == "succeeded"])
    s.whole()
    assert s.copies("decode-0") == 1
    assert s.discovered() == 1
    assert s.fleet.shunter("audit", "verify", "--state", str(s.fleet.state)).returncode == 0


def test_two_engines_never_lead_on_one_state(scene: MakeScene) -> None:
    """The second says who leads, and ends."""
    s = scene(policies={"save.yaml": SAVE})
    first = s.fleet.start_engine()
    s.wait("the engine to lead", lambda: s.audit("engine"))
    second = s.fleet.shunter("engine", "--config", str(s.fleet.engine_config), check=False)
    assert second.returncode == 1
    assert "SH507" in second.stderr
    assert str(first.pid) in second.stderr


SHIFTING = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("prefill-0", "prefill", 0, 121),)),
    NodePlan("node-b", 12, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-c", 13, (DECODE, DECODE), (WorkerPlan("decode-1", "decode", 0, 112),)),
)


def operations(fleet: Fleet) -> dict[str, OperationRecord]:
    """By kind."""
    with contextlib.closing(Store(fleet.state / "engine.db", read_only=True)) as store:
        return {record.planned.kind.value: record for record in (*store.recent(0.0), *store.active())}


CHAIN = [
    *(f"move {step}" for step in ("intended", "prepared", "fenced", "frozen", "held", "committing", "released", "resumed", "unfenced")),
    *(f"restore {step}" for step in ("intended", "prepared", "held", "committing", "resumed", "unfenced")),
]
SOME = ["", "move committing", "restore intended", "restore committing"]


@pytest.mark.parametrize("dies", ["", *CHAIN] if os.environ.get("SHUNTER_CRASH") == "1" else SOME)
def test_a_reassignment_keeps_its_second_half(scene: MakeScene, dies: str) -> None:
    """Decode makes way for a parked prefill worker; the restore belongs to the same plan as the move, also where the engine dies within."""
    shift = SHIFT.replace("sessions: park", "sessions: move").replace("kvUsage < 0.9", "kvUsage < 0.9 && pools.prefill.workers == 0")
    s = scene(nodes=SHIFTING, policies={"save.yaml": SAVE.replace("preemption, gone", "preemption"), "shift.yaml": shift})
    s.stream(600, "1,1")
    engine = s.fleet.start_engine()
    s.fleet.nodes["node-a"].post_notice("preemption", "60s", "n1")
    assert s.outcome("park")["status"] == "succeeded"
    s.fleet.nodes["node-a"].power_off()
    if dies:
        kind, step = dies.split()

        def there() -> bool:
            record = operations(s.fleet).get(kind)
            return record is not None and not record.waits and any(one == step for one, _ in record.history)

        wait_for(f"the {kind} to be at {step}", there, 60, every=0.002)
        engine.kill()
        engine.wait()
        s.fleet.start_engine()
    s.wait("both halves to end", lambda: s.outcomes("move") and s.outcomes("restore"), 120)
    moved, restored = s.outcomes("move")[-1], s.outcomes("restore")[-1]
    if dies in CHAIN[:5] and moved["status"] == "rolled-back":  # before its commit: the whole chain is given up, and both are as they were
        assert restored["status"] == "superseded", restored
        assert (s.copies("decode-0"), s.copies("prefill-0")) == (1, 0)
        s.whole()
        return
    assert (moved["status"], moved["policy"], moved["to"]) == ("succeeded", "shift", "node-c/1")
    assert (restored["policy"], restored["to"]) == ("shift", "node-b/0")
    if dies.startswith("restore") and restored["status"] == "failed":  # before its commit: it went back to its image
        assert restored["image"], restored
    else:
        assert restored["status"] == "succeeded", restored
        assert s.copies("prefill-0") == 1
    assert s.copies("decode-0") == 1
    s.whole()


def test_a_changed_policy_directory_is_read_at_once(scene: MakeScene) -> None:
    """Policies from a directory: no commit and no waiting for the next poll, and a bad file leaves its last good version in force."""
    s = scene(policies={"save.yaml": SAVE}, prometheus=False)
    folder = s.fleet.folder / "policies-work" / "policies"
    config = s.fleet.engine_config.read_text().splitlines()
    config = [line for line in config if not line.startswith(("git =", "folder =", "poll ="))]
    at = config.index("[policies]") + 1
    s.fleet.engine_config.write_text("\n".join([*config[:at], f'directory = "{folder}"', 'poll = "1h"', *config[at:]]) + "\n")
    s.fleet.start_engine()
    s.wait("the policies", lambda: s.audit("policies"))
    (folder / "save.yaml").write_text(SAVE.replace("reserve: 5s", "reserve: 5"))
    s.wait("the change", lambda: len(s.audit("policies")) == 2, 10)
    (problem,) = s.audit("policies")[-1]["body"]["problems"]
    assert problem["place"]["file"] == "save.yaml"
    assert s.audit("policies")[-1]["body"]["policies"] == ["save"]


def test_a_node_that_died_unannounced_is_declared_gone(scene: MakeScene) -> None:
    """Silence alone moves nothing: its worker may serve. Declared dead, it is restored elsewhere from its last image, and serves."""
    checkpoints = """
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec: {workers: {graph: tiny}, every: 1h, copies: 2}
"""
    s = scene(policies={"save.yaml": SAVE, "images.yaml": checkpoints})
    s.fleet.start_engine()
    assert s.outcome("checkpoint")["status"] == "succeeded"
    config = str(s.fleet.engine_config)
    # a node that answers can't be declared dead
    s.fleet.shunter("gone", "node-a", "--yes", "--config", config)
    s.wait("the declaration to be void", lambda: "SH915" in (s.fleet.folder / "engine.log").read_text())
    s.fleet.shunter("gone", "node-a", "--undo", "--config", config)
    s.fleet.nodes["node-a"].power_off()
    s.wait("the silence to be noticed", lambda: [r for r in s.audit("source") if r["subject"] == "agent node-a"])
    assert not s.outcomes("restore")
    assert s.fleet.shunter("gone", "node-a", "--config", config, check=False).returncode == 1, "without a terminal it wants --yes"
    s.fleet.shunter("gone", "node-a", "--yes", "--detail", "power cut", "--config", config)
    restored = s.outcome("restore")
    assert (restored["status"], restored["to"], restored["policy"]) == ("succeeded", "node-b/0", "save")
    assert "old" in restored["why"], "how old the image is"
    assert s.copies("decode-0") == 1
    s.stream(50)
    s.whole()
