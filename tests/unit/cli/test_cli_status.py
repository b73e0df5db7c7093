import json
from pathlib import Path

import msgspec
import pytest
from shunter.act.store import Store
from shunter.app.degraded import Condition, condition_path
from shunter.app.drifting import Shown, write
from shunter.app.sendings import Sendings
from shunter.app.turns import Turns
from shunter.audit.journal import Journal
from shunter.cli import status as verb
from shunter.cli.main import execute
from shunter.model.errors import Problem
from shunter.model.ids import Commit, Digest, Epoch, NodeId, NoticeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Slot, Worker, WorkerState
from shunter.wire import agent_pb2 as pb

NOW = 1_800_000_000.0


def operation(worker: str) -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId(f"move-{worker}"), kind=OperationKind.MOVE, worker=WorkerId(worker), lane="voluntary", policy=PolicyName("p"),
        reason="r", expect=Preconditions(incarnation=0), from_slot=SlotId("node-a/0"), to_slot=SlotId("node-b/0"),
    )  # fmt: skip
    return OperationRecord(planned=planned, plan=Digest("sha256:x"), epoch=Epoch(1), created_at=NOW - 9)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(verb.time, "time", lambda: NOW)
    slot = Slot(id=SlotId("node-a/0"), worker=WorkerId("decode-0"))
    worker = Worker(
        id=WorkerId("decode-0"), role="decode", graph="tiny", engine="vllm", state=WorkerState.RUNNING, node=NodeId("node-a"), slot=slot.id,
        incarnation=0,
    )  # fmt: skip
    node = Node(id=NodeId("node-a"), slots=(slot,), seen_at=NOW - 4, runtime="pretend")
    notice = Notice(id=NoticeId("n"), kind=NoticeKind.DRAIN, node=node.id, seen_at=NOW - 5)
    store = Store(tmp_path / "engine.db")
    store.next_epoch()
    store.save_fleet(Fleet(nodes=(node,), workers=(worker,)), (notice,), NOW - 3)
    store.insert([operation("decode-0"), operation("decode-1"), operation("decode-2")])
    store.finish(OperationId("move-decode-1"), Outcome(status=Status.SUCCEEDED, at=NOW - 7))
    store.finish(OperationId("move-decode-2"), Outcome(status=Status.SUCCEEDED, at=NOW - 7200))
    store.close()
    with Journal(tmp_path / "audit.db") as journal:
        plan = Record(at=NOW - 3, kind=RecordKind.PLAN, subject="plan", what="w", epoch=Epoch(1), commit=Commit("5eed" + "0" * 36))
        journal.append([plan, Record(at=NOW - 2, kind=RecordKind.STEP, subject="decode-0", what="w", epoch=Epoch(1))])
    return tmp_path


def test_how_things_stand(state: Path, capsys: pytest.CaptureFixture[str]):
    assert execute(["status", "--state", str(state)]) == 0
    out = capsys.readouterr().out
    assert "epoch 1, policies at 5eed00000000" in out
    assert "fleet: 3.00 s ago" in out
    assert "audit: 2.00 s ago" in out
    assert "operations: 7.00 s ago" in out
    assert "1 node, 1 worker, 0 images, as written down 3.00 s ago" in out
    assert "[pretend] node-a: answered" in out, "how seldom that is written says nothing of the node"
    assert "[pretend] node-a/0: decode-0, decode, running, no image" in out
    assert "drain notice, no deadline" in out
    under_way, _, ended = out.partition("Ended lately")
    assert "move decode-0 from node-a/0 to node-b/0: intended" in under_way
    assert "move decode-1 from node-a/0 to node-b/0: done" in ended
    assert "decode-2" not in out, "it ended hours ago"


def test_what_waits_for_its_turn_is_shown(state: Path, capsys: pytest.CaptureFixture[str]):
    def out(*arguments: str) -> str:
        assert execute(["status", "--state", str(state), *arguments]) == 0
        return capsys.readouterr().out

    assert "waiting for their turn" not in out()
    Turns(state, Epoch(1)).note([operation(f"decode-{n}").planned for n in range(7, 60)])
    _, _, waiting = out().partition("Planned, and waiting for their turn")
    assert "[pretend] move decode-7 from node-a/0 to node-b/0" in waiting
    assert ("decode-56" in waiting, "decode-57" in waiting, "and 3 more" in waiting) == (True, False, True)
    found = json.loads(out("--json"))["waiting"]
    assert (found["number"], len(found["first"])) == (53, 50)


def test_how_far_images_on_their_way_are(state: Path, capsys: pytest.CaptureFixture[str]):
    def out(*arguments: str) -> str:
        assert execute(["status", "--state", str(state), *arguments]) == 0
        return capsys.readouterr().out

    assert "sent" not in out()
    told = pb.Progress(operation="move-decode-0", step="freeze", bytes=1_200_000_000, total=4_000_000_000, rate=210e6, left_s=13.3)
    Sendings(state, Epoch(1), lambda: NOW - 2).heard(told)
    under_way, _, ended = out().partition("Ended lately")
    assert "sent 1.2GB of about 4GB, 210MB a second, about 11s left" in under_way
    assert "sent" not in ended
    (found,) = json.loads(out("--json"))["sending"]
    assert found == {"operation": "move-decode-0", "at": NOW - 2, "bytes": 1.2e9, "total": 4e9, "rate": 210e6, "left": 13.3}


def test_as_json(state: Path, capsys: pytest.CaptureFixture[str]):
    assert execute(["status", "--state", str(state), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["epoch"], found["commit"][:4]) == (1, "5eed")
    assert found["ages"] == {"fleet": 3.0, "audit": 2.0, "operations": 7.0}
    assert [o["planned"]["worker"] for o in found["active"]] == ["decode-0"]
    assert [o["planned"]["worker"] for o in found["ended"]] == ["decode-1"]
    assert found["fleet"]["fleet"]["nodes"][0]["id"] == "node-a"


def test_it_is_asked_while_the_engine_runs_and_changes_nothing(state: Path, capsys: pytest.CaptureFixture[str]):
    running, audit = Store(state / "engine.db"), Journal(state / "audit.db")
    before = running._db.execute("PRAGMA data_version").fetchone()
    assert execute(["status", "--state", str(state)]) == 0
    assert running._db.execute("PRAGMA data_version").fetchone() == before
    running.close()
    audit.close()


def test_without_an_audit_or_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Store(tmp_path / "engine.db").close()
    assert execute(["status", "--state", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "policies at unknown" in out
    assert "fleet: never" in out
    assert "Nothing is under way." in out
    assert not (tmp_path / "audit.db").exists()


def test_where_no_engine_has_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert execute(["status", "--state", str(tmp_path)]) == 1
    assert "SH931" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "a look makes nothing"
    assert execute(["status", "--state", str(tmp_path), "--config", "x.toml"]) == 1
    assert "SH930" in capsys.readouterr().err
    assert execute(["status", "--config", str(tmp_path / "x.toml")]) == 1
    assert "SH910" in capsys.readouterr().err


def test_a_disk_that_is_full_is_shown(state: Path, capsys: pytest.CaptureFixture[str]):
    problem = Problem(code="SH531", what="since then the engine's disk takes no more", remedy="Free some space", subject=str(state))
    written = json.dumps(msgspec.to_builtins(Condition(since=NOW - 60, problem=problem, records=2)))
    condition_path(state).write_text(written.ljust(4096, "\n"))
    assert execute(["status", "--state", str(state)]) == 0
    assert "degraded: SH531 since then the engine's disk takes no more. Free some space" in capsys.readouterr().out
    assert execute(["status", "--state", str(state), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["degraded"]
    assert (shown["problem"]["code"], shown["since"], shown["records"]) == ("SH531", NOW - 60, 2)
    condition_path(state).write_text("\n" * 4096)
    assert execute(["status", "--state", str(state)]) == 0
    assert "degraded" not in capsys.readouterr().out


def test_looking_changes_no_file(state: Path, capsys: pytest.CaptureFixture[str]):
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    assert execute(["status", "--state", str(state)]) == 0
    assert {path.name: path.read_bytes() for path in state.iterdir() if not path.name.endswith(("-shm", "-wal"))} == before


def test_what_is_of_record_is_shown_with_what_differs_below_it(state: Path, capsys: pytest.CaptureFixture[str]):
    drift = Problem(code="SH271", what="the graph asks for 3 of decode, and there are 2 pods", remedy="Look", subject="ns/llama")
    write(state, Shown.of(Epoch(1), ["llama/decode: 3 of record"], [drift]), None)
    assert execute(["status", "--state", str(state)]) == 0
    out = capsys.readouterr().out
    assert "llama/decode: 3 of record" in out
    assert "ns/llama: SH271 the graph asks for 3 of decode, and there are 2 pods" in out
    assert execute(["status", "--state", str(state), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graphs"]["pools"] == ["llama/decode: 3 of record"]
