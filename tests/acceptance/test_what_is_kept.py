"""What is kept of decisions, and where: in full in the audit, before anything is done; in brief in the cluster, however much there is."""

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from fleet import ANY, Fleet, NodePlan, WorkerPlan
from machine import wait_for
from node import BIN
from shunter.app.shipping import Shipper
from shunter.audit.journal import Journal
from shunter.cluster.operation import Batch, resource, status
from shunter.cluster.reading import read
from shunter.cluster.telling import gather, statuses
from shunter.lang.load import load
from shunter.model.errors import Problem
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, PolicyName, WorkerId
from shunter.model.operation import Measured, OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.record import Record, RecordKind

NODES = (
    NodePlan("node-a", 11, (ANY, ANY), (WorkerPlan("decode-0", "decode", 0, 111), WorkerPlan("decode-1", "decode", 1, 112))),
    NodePlan("node-b", 12, (ANY, ANY), ()),
)
SAVE = """\
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s}
"""
SAVE_RESOURCE = yaml.safe_load(SAVE)
ETCD_TAKES = 1_500_000
"""Bytes of one object, by etcd's default."""
BENCH = Path(__file__).resolve().parents[1] / "bench"
MEMORY, PROCESSOR = 768 * 2**20, 90.0
"""Bytes and seconds of a plan of 5,000 rules over 2,000 workers, all of it as JSON, as docs/how-to/preview-a-change.md has them."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "source" / "policies").mkdir(parents=True)
    (tmp_path / "source" / "policies" / "save.yaml").write_text(SAVE)
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        made.start_nodes()
        made.make_repository(tmp_path / "source")
        yield made


def audited(fleet: Fleet, kind: str) -> list[dict[str, Any]]:
    listed = fleet.shunter("audit", "list", "--state", str(fleet.state), "--kind", kind, "--limit", "0", "--json", check=False)
    return [json.loads(line)["record"] for line in listed.stdout.splitlines()]


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return db.execute(query).fetchall()


def test_ac50_whatever_an_agent_was_told_had_its_intent_written_before(fleet: Fleet) -> None:
    """The engine is killed at any moment, again and again: each time the audit and the store know of all that any agent knows of."""
    fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
    chance, journals = random.Random(50), [node.folder / "state" / "journal.db" for node in fleet.nodes.values()]

    def known_to_agents() -> dict[str, float]:
        """Operations, and when an agent first wrote one down."""
        heard: dict[str, float] = {}
        for path in journals:
            for operation, at in rows(path, "SELECT operation, min(at) FROM steps GROUP BY operation"):
                heard[operation] = min(at, heard.get(operation, at))
        return heard

    for round_ in range(5):
        engine = fleet.start_engine(f"engine-{round_}.log")
        wait_for("the engine to lead", lambda number=round_ + 1: len(audited(fleet, "engine")) >= number, 30)
        heard = known_to_agents()
        if len(heard) < 2:
            wait_for("an agent to hear of something new", lambda heard=heard: known_to_agents() != heard, 30, every=0.002)
        time.sleep(chance.uniform(0, 0.2))  # the moment of the kill
        os.kill(engine.pid, signal.SIGKILL)
        engine.wait()
        intents = {record["operation"]: record["at"] for record in audited(fleet, "intent")}
        stored = {name for (name,) in rows(fleet.state / "engine.db", "SELECT id FROM operations")}
        agents = known_to_agents()
        assert set(agents) <= stored
        assert {name: at for name, at in agents.items() if at < intents.get(name, float("inf"))} == {}, "an effect before its intent"
    assert len(known_to_agents()) >= 2, "both workers were moved, one of them perhaps at its second attempt, or it showed nothing"
    assert fleet.shunter("audit", "verify", "--state", str(fleet.state)).stdout.startswith("whole: ")


def test_ac50_records_that_a_collector_is_too_slow_for_wait_and_none_is_dropped(tmp_path: Path) -> None:
    """It answers `too many requests` to nine out of ten for as long as it likes, and gets all of them, in order."""
    chance, got = random.Random(8123), []

    def collector(request: httpx.Request) -> httpx.Response:
        if chance.random() < 0.9:
            return httpx.Response(429)
        for one in json.loads(request.content)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]:
            got.append(int(next(a["value"]["intValue"] for a in one["attributes"] if a["key"] == "shunter.audit.seq")))
        return httpx.Response(200, json={})

    with Journal(tmp_path / "audit.db") as audit:
        for batch in range(30):
            audit.append([record(batch * 100 + n) for n in range(100)])
        for _ in range(20):  # the engine starts anew each time: what was sent is known from a file
            shipper = Shipper(
                lambda: Journal(tmp_path / "audit.db", read_only=True),
                "http://collector/v1/logs",
                tmp_path / "sent",
                httpx.MockTransport(collector),
            )
            for _ in range(20):
                with contextlib.suppress(httpx.HTTPStatusError):
                    shipper.send()
    assert got == list(range(1, 3001))


def record(number: int) -> Record:
    return Record(at=float(number), kind=RecordKind.STEP, subject="w", what=f"step {number}", epoch=Epoch(1))


def test_ac51_a_policys_status_is_a_summary_however_many_subjects_and_words_there_are() -> None:
    """50,000 subjects of which each has a reason of 10,000 characters: what goes to the cluster is a few hundred words of them."""
    names = [f"worker-{n:05d}" for n in range(50_000)]
    long = "because " * 1250
    meta = {"name": "save", "namespace": "shunter", "uid": "u", "generation": 3, "resourceVersion": "9"}
    one = {**SAVE_RESOURCE, "metadata": meta}
    reading = read([("PreemptionPolicy", one)])
    findings = tuple(
        Finding(policy=PolicyName("save"), subject=name, verdict=(Verdict.ACT, Verdict.HOLD)[n % 2], lane="involuntary", reason=long)
        for n, name in enumerate(names)
    )
    (found,) = statuses(reading, load(reading.revision, None), gather(findings), lambda _path, _resource: {}, 1_800_000_000.0).values()
    assert found.counts is not None
    assert (found.counts.act, found.counts.hold) == (25_000, 25_000)
    assert found.last_decision is not None
    assert found.last_decision.subject == "worker-00000", "the pointer: `shunter audit list` and `shunter explain` know it by this name"
    assert len(msgspec.json.encode(found)) < 8_192 < ETCD_TAKES


def test_ac51_an_operations_resource_holds_no_more_than_its_steps() -> None:
    """Every text in it may be as long as it likes, and it may be at every step there is."""
    long = "because " * 100_000
    problem = Problem(code="SH513", what=long, remedy=long, subject=long)
    planned = PlannedOperation(
        id=OperationId("move-1"), kind=OperationKind.MOVE, worker=WorkerId("w"), lane="involuntary", policy=PolicyName("save"),
        reason=long, cause=long, expect=Preconditions(incarnation=Incarnation(0)),
    )  # fmt: skip
    outcome = Outcome(status=Status.FAILED, at=2.0, code="SH513", reason=long, measured=Measured())
    one = OperationRecord(
        planned=planned, plan=Digest("p"), epoch=Epoch(1), created_at=1.0, history=tuple((step, 1.0) for step in Step),
        problem=problem, cancelled=problem, outcome=outcome,
    )  # fmt: skip
    whole = {**resource(one, Batch(first="move-1", size=1), "shunter"), "status": status(one)}
    assert len(msgspec.json.encode(whole)) < 32_768 < ETCD_TAKES
    assert whole["metadata"]["name"] == "move-1", "the pointer: the audit's records of the operation have its id"


MANY = """
import pathlib, sys
import large
from shunter.observe.recorded import save

folder = pathlib.Path(sys.argv[1])
save(large.snapshot(graphs=10), folder / "fleet.json")
for graph in range(10):
    for number in range(125):
        text = large.four(f"graph-{graph}", 600 + number)
        for name in ("save", "relieve", "often", "seldom"):
            text = text.replace(f"name: {name}-graph-{graph}", f"name: {name}-{graph}-{number}")
        (folder / "policies" / f"{graph}-{number}.yaml").write_text(text)
"""

MEASURED = """
import atexit, pathlib, runpy, sys
sys.argv = sys.argv[1:]
status = pathlib.Path("/proc/self/status")
most = lambda: next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
atexit.register(lambda path: pathlib.Path(path).write_text(most().split()[1]), "most")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The most memory that a program had, in KiB. `ru_maxrss` is no less than what its parent has, which forked it."""


@pytest.mark.timeout(600)
def test_ac52_5000_rules_over_2000_workers_are_planned_in_the_stated_memory_and_processor_time(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], check=True, env={**os.environ, "PYTHONPATH": str(BENCH)})
    command = [
        sys.executable,
        "-c",
        MEASURED,
        str(BIN / "shunter"),
        "plan",
        "--snapshot",
        "fleet.json",
        "--policies",
        "policies",
        "--format",
        "json",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    size = 0
    while part := process.stdout.read(2**20):
        size += len(part)
    process.stdout.close()
    _, ended, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(ended)
    assert process.returncode == 0
    assert size > 400 * 2**20, "each of a million findings is told"
    assert 200 * 2**20 < int((tmp_path / "most").read_text()) * 1024 < MEMORY
    assert used.ru_utime + used.ru_stime < PROCESSOR
