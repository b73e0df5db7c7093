import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from shunter.audit.journal import Journal
from shunter.cli.main import execute
from shunter.cli.moments import moment
from shunter.model.errors import Rejected
from shunter.model.ids import Commit, Epoch
from shunter.model.record import Record, RecordKind


@pytest.fixture
def state(tmp_path: Path) -> Path:
    kinds = (RecordKind.INTENT, RecordKind.STEP, RecordKind.OUTCOME)
    with Journal(tmp_path / "audit.db") as journal:
        journal.append(
            [
                Record(
                    at=1_800_000_000.0 + n,
                    kind=kinds[n % 3],
                    subject=f"decode-{n % 2}",
                    what=f"thing {n}",
                    epoch=Epoch(1),
                    commit=Commit("c" * 40),
                    operation=f"move-{n % 2}",
                    body={"operation_kind": "move", "number": n},
                )
                for n in range(6)
            ]
        )
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert execute(["audit", *arguments]) == status
    return capsys.readouterr().out


def numbers(text: str) -> list[int]:
    return [json.loads(line)["seq"] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ((), [1, 2, 3, 4, 5, 6]),
        (("--kind", "outcome"), [3, 6]),
        (("--subject", "decode-1"), [2, 4, 6]),
        (("--operation", "move-0", "--kind", "step"), [5]),
        (("--limit", "2"), [5, 6]),
        (("--limit", "0"), [1, 2, 3, 4, 5, 6]),
        (("--since", "2027-01-15T08:00:02", "--until", "2027-01-15T08:00:04"), [3, 4]),
    ],
)
def test_list_as_json(state: Path, filters: tuple[str, ...], expected: list[int], capsys: pytest.CaptureFixture[str]):
    assert numbers(shown(capsys, "list", "--state", str(state), "--json", *filters)) == expected


def test_json_lines_are_sealed_records(state: Path, capsys: pytest.CaptureFixture[str]):
    first = json.loads(shown(capsys, "list", "--state", str(state), "--json").splitlines()[0])
    assert set(first) == {"seq", "previous", "hash", "record"}
    assert first["record"]["body"] == {"operation_kind": "move", "number": 0}
    assert (first["record"]["kind"], first["record"]["subject"]) == ("intent", "decode-0")


def test_list_for_people(state: Path, capsys: pytest.CaptureFixture[str]):
    out = shown(capsys, "list", "--state", str(state), "--limit", "1")
    assert out == "     6  2027-01-15 08:00:05 UTC  outcome   decode-1: thing 5\n"
    assert shown(capsys, "list", "--state", str(state), "--subject", "nobody") == "No records match.\n"


def test_show_one_and_show_an_operation(state: Path, capsys: pytest.CaptureFixture[str]):
    one = shown(capsys, "show", "3", "--state", str(state))
    assert one.startswith("Record 3: outcome\n")
    assert '"number": 2' in one
    assert numbers(shown(capsys, "show", "move-1", "--state", str(state), "--json")) == [2, 4, 6]
    assert shown(capsys, "show", "move-1", "--state", str(state)).count("Record ") == 3


@pytest.mark.parametrize("told_later", [False, True], ids=["a tick's", "asked for by a notice"])
def test_an_operation_shows_the_finding_behind_it_also_where_the_order_came_first(
    tmp_path: Path, told_later: bool, capsys: pytest.CaptureFixture[str]
):
    def record(kind: RecordKind, plan: str | None, body: dict[str, object], **more: Any) -> Record:
        return Record(at=1_800_000_000.0, kind=kind, subject="w", what="x", epoch=Epoch(1), plan=plan, body=body, **more)  # type: ignore[arg-type]

    def found(plan: str, reason: str) -> Record:
        body: dict[str, object] = {"policy": "save", "verdict": "act", "reason": reason, "evidence": []}
        return record(RecordKind.FINDING, plan, body, commit=Commit("c" * 40))

    begun: dict[str, object] = {
        "kind": "move", "policy": "save", "reason": "it goes", "lane": "involuntary", "from": "a/0", "to": "b/0", "step": "intended",
    }  # fmt: skip
    intent = record(RecordKind.INTENT, "sha256:2", begun, operation="move-w")
    why = found("sha256:2", "what was found")
    between = (intent, why) if told_later else (why, intent)
    with Journal(tmp_path / "audit.db") as journal:
        journal.append([found("sha256:1", "of an earlier plan"), *between, found("sha256:3", "of a later plan")])
    out = shown(capsys, "show", "move-w", "--state", str(tmp_path))
    assert "It had found: what was found." in out
    assert "The policy save, as of commit cccccccccccc, said that w" in out


@pytest.mark.parametrize(("what", "code"), [("99", "SH906"), ("move-9", "SH908")])
def test_what_there_is_no_record_of(state: Path, what: str, code: str, capsys: pytest.CaptureFixture[str]):
    assert execute(["audit", "show", what, "--state", str(state)]) == 1
    assert f"error: {code}" in capsys.readouterr().err


def test_verify(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    whole = shown(capsys, "verify", "--state", str(state))
    assert whole.startswith("whole: 6 records, the last one's hash is ")
    assert "\nsigned by SHA256:" in whole
    assert json.loads(shown(capsys, "verify", "--state", str(state), "--json"))["ok"] is True
    db = sqlite3.connect(state / "audit.db")
    with db:
        db.execute("DELETE FROM records WHERE seq = 4")
    db.close()
    assert shown(capsys, "verify", "--state", str(state), status=1) == (
        "broken at record 4: record 4 is missing: the next one is 5 (3 records before it whole)\n"
    )
    assert json.loads(shown(capsys, "verify", "--state", str(state), "--json", status=1))["how"] == "gap"
    assert execute(["audit", "verify", "--state", str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr().err
    assert "SH905" in said
    assert "--state" in said


def test_no_database_is_a_broken_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "audit.db").write_bytes(b"rubbish" * 1000)
    assert execute(["audit", "verify", "--state", str(tmp_path)]) == 1
    assert "SH903" in capsys.readouterr().err


def test_moments():
    assert moment("--since", None) is None
    assert moment("--since", "1h30m", 10_000.0) == 4600.0
    assert moment("--since", "2027-01-15") == 1_799_971_200.0
    assert moment("--since", "2027-01-15T09:00:00+01:00") == 1_800_000_000.0
    with pytest.raises(Rejected, match=r"SH909 .*'soon'"):
        moment("--since", "soon")
