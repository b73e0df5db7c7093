"""`shunter why`: decided by the engine's own function over a small fleet; only the looking is replaced."""

import json
import os
from pathlib import Path

import pytest
from shunter.app.preview import Preview
from shunter.cli import snapshot as recorder
from shunter.cli import why as verb
from shunter.cli.main import execute
from shunter.decide.evaluate import evaluate
from shunter.lang.cel import CelRules
from shunter.lang.load import load
from shunter.model.errors import Problem
from shunter.model.ids import Commit, NodeId, NoticeId, WorkerId, slot_id
from shunter.model.operation import EngineState
from shunter.model.sample import Known, Missing
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile
from shunter.observe.recorded import load as read_snapshot

GOLDEN = Path(__file__).parents[2] / "golden"
NOW = 1_800_000_000.0
POLICIES = b"""\
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save-sessions}
spec:
  workers: {role: decode}
  notices: [preemption]
---
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images-when-quiet}
spec:
  workers: {graph: tiny}
  every: 5m
  when: worker.kvUsage < 0.5 && worker.waiting == 0
---
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: relieve-prefill}
spec:
  mode: preview
  workers: {graph: tiny}
  from: decode
  to: prefill
  when: pools.prefill.waiting > 30
  for: 90s
---
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: prefill-only}
spec:
  workers: {role: prefill}
  notices: [gone]
"""
SETTINGS = """\
state = "state"
[policies]
directory = "policies"
[prometheus]
url = "http://127.0.0.1:1"
deadline = "1s"
[tls]
ca = "ca.pem"
cert = "engine.pem"
key = "engine.key"
[[agents]]
node = "node-a"
address = "127.0.0.1:1"
"""


def seen(*, waiting: float = 45.0, notices: tuple[Notice, ...] = (), runtime: str = "criu") -> Preview:
    def worker(name: str, node: str) -> Worker:
        at = NodeId(node)
        return Worker(
            id=WorkerId(name), role=name.split("-")[0], graph="tiny", engine="vllm", state=WorkerState.RUNNING, node=at,
            slot=slot_id(at, 0), incarnation=0, memory=10**9,
        )  # type: ignore[arg-type]  # fmt: skip

    def known(value: float) -> Known:
        return Known(value=value, unit="1", at=NOW - 1, query="q")

    workers = (worker("decode-0", "node-a"), worker("decode-1", "node-b"), worker("prefill-0", "node-c"))
    nodes = tuple(
        Node(id=w.node, slots=(Slot(id=w.slot, worker=w.id), Slot(id=slot_id(w.node, 1))), seen_at=NOW, runtime=runtime) for w in workers
    )
    samples = {
        "decode-0": {"kvUsage": known(0.9), "waiting": known(0.0)},
        "decode-1": {"kvUsage": known(0.1), "waiting": Missing(reason="query returned 0 series")},
        "prefill-0": {"kvUsage": known(0.1), "waiting": known(waiting)},
    }

    def snapshot(at: float) -> Snapshot:
        return Snapshot(at=at, fleet=Fleet(nodes=nodes, workers=workers), samples=Samples(workers=samples), notices=notices)

    revision = Revision(commit=Commit("c" * 40), committed_at=None, files=(SourceFile(path="a.yaml", blob="b", data=POLICIES),))
    policies = load(revision, None)
    assert policies.problems == ()
    current = snapshot(NOW)
    evaluation = evaluate(policies, [snapshot(NOW - 60), snapshot(NOW - 30), current], EngineState(), NOW, CelRules())
    away = Problem(code="SH504", what="node-d doesn't answer", remedy="Look at its agent", subject="node-d")
    return Preview(snapshot=current, evaluation=evaluation, policies=policies, unreachable=(away,))


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Let the verb see what is given instead of agents and Prometheus."""
    (tmp_path / "engine.toml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)

    def let(what: Preview) -> None:
        async def preview(*_: object) -> Preview:
            return what

        monkeypatch.setattr(verb, "preview", preview)
        monkeypatch.setattr(recorder, "preview", preview)

    return let


def test_the_text_for_people(look, capsys: pytest.CaptureFixture[str]):
    look(seen())
    assert execute(["why", "decode-0"]) == 0
    shown = capsys.readouterr()
    path = GOLDEN / "why.txt"
    if os.environ.get("SHUNTER_GOLDEN") == "write":
        path.write_text(shown.out)
    assert shown.out == path.read_text()
    assert shown.err == "warning: node-d: SH504 node-d doesn't answer. Look at its agent\n"


def told(capsys: pytest.CaptureFixture[str], worker: str) -> dict[str, dict]:
    assert execute(["why", worker, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["worker"]["id"], shown["commit"], shown["at"]) == (worker, "c" * 40, NOW)
    return {policy["policy"]: policy for policy in shown["policies"]}


def test_each_policy_names_its_first_gate_its_value_and_since_when(look, capsys: pytest.CaptureFixture[str]):
    look(seen())
    by = told(capsys, "decode-0")
    assert sorted(by) == ["images-when-quiet", "prefill-only", "relieve-prefill", "save-sessions"]
    assert (by["save-sessions"]["verdict"], by["save-sessions"]["gate"]) == ("pass", "notices")
    assert (by["prefill-only"]["verdict"], by["prefill-only"]["gate"]) == ("pass", "workers.role")
    quiet = by["images-when-quiet"]
    assert (quiet["verdict"], quiet["gate"], quiet["expression"]) == ("pass", "when", "worker.kvUsage < 0.5 && worker.waiting == 0")
    assert "worker.kvUsage = 0.9" in quiet["value"]
    shift = by["relieve-prefill"]
    assert (shift["verdict"], shift["gate"], shift["subject"], shift["since"]) == ("hold", "for", "tiny", NOW - 60)
    assert "90 s wanted" in shift["value"]


def test_a_missing_value_is_said_to_be_missing(look, capsys: pytest.CaptureFixture[str]):
    look(seen())
    quiet = told(capsys, "decode-1")["images-when-quiet"]
    assert (quiet["verdict"], quiet["gate"]) == ("inconclusive", "when")
    assert "worker.waiting" in quiet["value"]
    assert "query returned 0 series" in quiet["value"]


def test_what_is_done_is_shown_first_with_the_operation(look, capsys: pytest.CaptureFixture[str]):
    notice = Notice(id=NoticeId("n1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=NOW - 5, deadline=NOW + 600)
    look(seen(notices=(notice,)))
    assert execute(["why", "decode-0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "save-sessions (PreemptionPolicy) acts"
    assert any(line.startswith("  does      move decode-0 from node-a/0 to node-b/1") for line in lines)
    assert any(line.startswith("  since") and line.endswith("for 5.00 s") for line in lines)


def test_what_only_pretends_says_so(look, capsys: pytest.CaptureFixture[str]):
    notice = Notice(id=NoticeId("n1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=NOW - 5, deadline=NOW + 600)
    look(seen(notices=(notice,), runtime="pretend"))
    assert execute(["why", "decode-0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("[pretend] decode-0 at ")
    assert "  does      [pretend] move decode-0" in out


@pytest.mark.parametrize("subject", ["worker/decode-0", "policy/save-sessions", "node/node-a"])
def test_explain_answers_the_same_of_a_subject(look, capsys: pytest.CaptureFixture[str], subject: str):
    look(seen())
    answers = []
    for word in ("why", "explain"):
        assert execute([word, subject, "--format", "json"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != ""


def test_no_such_worker(look, capsys: pytest.CaptureFixture[str]):
    look(seen())
    assert execute(["why", "decode-9"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    away, error, remedy = shown.err.splitlines()
    assert "node-d doesn't answer" in away
    assert error == "error: SH940 decode-9: there is no worker decode-9 in the fleet"
    assert remedy.startswith('  Did you mean "decode-')


def test_settings_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert execute(["why", "decode-0", "--config", str(tmp_path / "nothing.toml")]) == 1
    said = capsys.readouterr().err
    assert "SH910" in said
    assert "--config" in said


def test_a_recorded_snapshot_is_the_one_that_was_decided_on(look, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]):
    what = seen()
    look(what)
    assert execute(["snapshot", "fleet.json"]) == 0
    shown = capsysbinary.readouterr()
    assert shown.out.startswith(b"fleet.json: 3 nodes, 3 workers, 0 images, sha256:")
    assert b"node-d doesn't answer" in shown.err
    assert read_snapshot(tmp_path / "fleet.json").id == what.snapshot.id
    assert execute(["snapshot", "-"]) == 0
    assert capsysbinary.readouterr().out == (tmp_path / "fleet.json").read_bytes() + b"\n"
    assert execute(["snapshot", "save", "again.json"]) == 0
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "fleet.json").read_bytes()
    assert [execute(["snapshot", *wrong]) for wrong in (["save"], ["a.json", "b.json"])] == [2, 2]
    capsysbinary.readouterr()
    (tmp_path / "p.yaml").write_bytes(POLICIES.replace(b"role: prefill", b"graph: tinny"))
    assert execute(["validate", "p.yaml", "--fleet", "fleet.json"]) == 0
    assert b"SH143 warning: the fleet has no graph tinny" in capsysbinary.readouterr().out


def test_of_a_policy_what_it_makes_of_all(look, capsys: pytest.CaptureFixture[str]):
    look(seen())
    assert execute(["why", "policy/images-when-quiet"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("images-when-quiet (CheckpointPolicy, mode enforce) at ")
    assert "can't tell for 1: decode-1" in text
    assert "does nothing for 2: decode-0, prefill-0" in text
    assert "worker.kvUsage is 0.9, and would have to be < 0.5" in " ".join(text.split())
    assert execute(["why", "policy/images-when-quiet", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(g["number"], g["example"]["verdict"]) for g in shown["groups"]] == [(1, "inconclusive"), (2, "pass")]
    assert "worker.waiting (query returned 0 series)" in shown["groups"][0]["example"]["needed"]


def test_of_a_node_who_is_on_it_and_who_comes(look, capsys: pytest.CaptureFixture[str]):
    notice = Notice(id=NoticeId("n1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=NOW - 5, deadline=NOW + 600)
    look(seen(notices=(notice,)))
    assert execute(["why", "node/node-a"]) == 0
    text = capsys.readouterr().out
    assert "1 free slots; preemption: a notice is open for it" in text
    assert "goes      move decode-0 from node-a/0 to node-b/1" in text
    assert "  save-sessions (PreemptionPolicy) acts" in text
    assert "prefill-only" not in text, "it has nothing to do with who is there"
    assert execute(["why", "node/node-b", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["node"], shown["against"], [o["worker"] for o in shown["arriving"]]) == ("node-b", "", ["decode-0"])
    assert [name for name, _ in shown["workers"]] == ["decode-1"]


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("policy/images-when-quite", "there is no policy images-when-quite in the set"),
        ("node/node-x", "there is no node node-x in the fleet"),
        ("worker/decode-9", "there is no worker decode-9 in the fleet"),
        ("pod/decode-0", "there is no worker pod/decode-0 in the fleet"),
    ],
)
def test_who_isnt_there_is_said(look, capsys: pytest.CaptureFixture[str], subject: str, said: str):
    look(seen())
    assert execute(["why", subject]) == 1
    assert f"SH940 {subject.partition('/')[2] if 'pod' not in subject else subject}: {said}" in capsys.readouterr().err
    assert execute(["why", "worker/decode-0"]) == 0
