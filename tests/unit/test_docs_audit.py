"""The output shown in docs/how-to/read-the-audit.md is what the commands print, on an audit made here by the engine's own parts.

SHUNTER_GOLDEN=write writes it into the page instead, to be read before it is committed.
"""

import asyncio
import os
import re
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest
from shunter.act.run import Parts, Run
from shunter.act.store import Store
from shunter.audit.decisions import Tracker
from shunter.audit.inputs import Decided, Inputs, inputs_path
from shunter.audit.journal import Journal
from shunter.cli.main import execute
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.cel import CelRules
from shunter.lang.load import load
from shunter.model.canon import encode, plain
from shunter.model.ids import Commit, Epoch, Incarnation, NodeId, NoticeId, SlotId, WorkerId
from shunter.model.operation import EngineState, OperationRecord, Status, Step
from shunter.model.plan import Plan
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "read-the-audit.md"
BLOCK = re.compile(r"(?<=^```\n)\$ (shunter audit [^\n]*)\n(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
NOW = 1_800_000_000.0
EPOCH = Epoch(3)
COMMIT = Commit("8c1d52a07e0f4b6c9a3d2e1f0b5a49687c3d2e1f")
POLICIES = b"""\
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save-sessions}
spec: {workers: {all: true}, notices: [preemption]}
---
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: recent-images}
spec: {workers: {role: decode}, every: 5m, when: worker.kvUsage > 0.2}
"""


class Clock:
    """A clock that the story moves."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def policies() -> PolicySet:
    file = SourceFile(path="policies.yaml", blob="b", data=POLICIES)
    found = load(Revision(commit=COMMIT, committed_at=None, files=(file,)), None)
    assert found.problems == ()
    return found


def world(at: float, *, known: bool, noticed: bool) -> Snapshot:
    """decode-0 on node-a, and a free slot on node-b."""
    worker = Worker(
        id=WorkerId("decode-0"),
        role="decode",
        graph="chat",
        engine="vllm",
        state=WorkerState.RUNNING,
        node=NodeId("node-a"),
        slot=SlotId("node-a/0"),
        incarnation=Incarnation(0),
        memory=40 * 10**9,
    )
    slots = {"node-a": Slot(id=SlotId("node-a/0"), worker=worker.id), "node-b": Slot(id=SlotId("node-b/0"))}
    nodes = tuple(Node(id=NodeId(name), slots=(slot,), seen_at=at) for name, slot in slots.items())
    lost = Missing(reason="Prometheus can't be reached")
    usage = Known(value=0.1, unit="1", at=at - 2, query="vllm:kv_cache_usage_perc") if known else lost
    notice = Notice(id=NoticeId("p-1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=NOW + 20, deadline=NOW + 140)
    return Snapshot(
        at=at,
        fleet=Fleet(nodes=nodes, workers=(worker,)),
        samples=Samples(workers={"decode-0": {"kvUsage": usage}}),
        notices=(notice,) if noticed else (),
    )


def tell(journal: Journal, at: float, kind: RecordKind, subject: str, what: str, **body: object) -> None:
    journal.append([Record(at=at, kind=kind, subject=subject, what=what, epoch=EPOCH, commit=COMMIT, body=body)])


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The audit of two minutes: Prometheus goes away, then node-a is preempted, and its worker moves."""
    in_force, tracker, clock = policies(), Tracker(), Clock()
    store = Store(tmp_path / "engine.db")
    with Journal(tmp_path / "audit.db") as journal:

        def decide(after: float, *, known: bool, noticed: bool) -> None:
            nonlocal tracker
            seen = world(NOW + after, known=known, noticed=noticed)
            evaluation = evaluate(in_force, [seen], EngineState(), seen.at, CelRules())
            tracker, records = tracker.observe(evaluation, seen.at, EPOCH, seen.fleet)
            if records:
                journal.append(records)
            if any(r.kind is RecordKind.PLAN for r in records):
                keep(evaluation.plan, seen)
            planned.extend((evaluation.plan, one) for one in evaluation.plan.operations)

        def keep(plan: Plan, seen: Snapshot) -> None:
            files = {("policies.yaml", "b"): POLICIES}
            with Inputs(inputs_path(tmp_path / "audit.db")) as inputs:
                inputs.keep(
                    Decided(
                        plan=plan,
                        policies=in_force,
                        files=files,
                        snapshots=(seen,),
                        state=EngineState(),
                        profile=encode(Profile()),
                        version=version("shunter"),
                    )
                )

        planned: list = []
        tell(journal, NOW, RecordKind.ENGINE, "engine", "leads at epoch 3")
        tell(journal, NOW, RecordKind.POLICIES, COMMIT, "2 policies in force, 0 problems", policies=["recent-images", "save-sessions"])
        decide(1, known=True, noticed=False)
        decide(10, known=False, noticed=False)
        tell(
            journal,
            NOW + 20,
            RecordKind.NOTICE,
            "node-a",
            "preemption of node-a",
            notice=plain(world(NOW + 20, known=False, noticed=True).notices[0]),
        )
        decide(20, known=False, noticed=True)
        ((plan, operation),) = planned
        record = OperationRecord(planned=operation, plan=plan.digest, epoch=EPOCH, created_at=NOW + 20)
        store.insert([record])
        fleet = world(NOW + 20, known=False, noticed=True).fleet
        parts = Parts(
            store=store, agents={}, fleet=lambda: fleet, audit=lambda one: void(journal.append([one])), clock=clock, sleep=asyncio.sleep
        )
        run = Run(parts, record)
        clock.now = NOW + 20
        run.tell(RecordKind.INTENT, f"{operation.kind.value} of {operation.worker}: {operation.reason}")
        for number, step in enumerate(
            (Step.PREPARED, Step.FENCED, Step.FROZEN, Step.HELD, Step.COMMITTING, Step.RELEASED, Step.RESUMED, Step.UNFENCED)
        ):
            clock.now = NOW + 21 + number
            run.step(step, measured=run.measure(stopped=4.2, dump=1.9, send=2.0, restore=1.7, bytes=40 * 10**9) if number == 6 else None)
        run.finish(Status.SUCCEEDED)
    store.close()
    return tmp_path


def void(_value: object) -> None:
    """Drop a result."""


def printed(line: str, state: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command of the page prints, with its hashes shortened as on the page."""
    command, _, most = line.partition(" | head -n ")
    words = [str(state) if word == "state" else word for word in shlex.split(command)[1:]]
    assert execute(words) == 0, line
    shown = capsys.readouterr().out
    if most:
        shown = "".join(shown.splitlines(keepends=True)[: int(most)])
    return re.sub(r"(?<=SHA256:)[0-9A-Za-z+/]{43}|[0-9a-f]{64}", "...", shown)


def test_the_page_shows_what_the_commands_print(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    shown = BLOCK.findall(text)
    assert {line.split()[2] for line, _ in shown} == {"list", "show", "verify", "replay"}
    now = BLOCK.sub(lambda found: f"$ {found[1]}\n{printed(found[1], state, capsys)}", text)
    if os.environ.get("SHUNTER_GOLDEN") == "write":
        PAGE.write_text(now)
    assert PAGE.read_text() == now


def test_a_changed_record_is_found(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    with sqlite3.connect(state / "audit.db") as db:
        db.execute("UPDATE records SET body = CAST(replace(CAST(body AS TEXT), 'node-b/0', 'node-c/0') AS BLOB) WHERE seq = 9")
    db.close()
    assert execute(["audit", "verify", "--state", str(state)]) == 1
    assert "broken at record 9" in capsys.readouterr().out
