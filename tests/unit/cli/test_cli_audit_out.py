"""What leaves the audit: filters by what a record is about, exports, records as they come, and checks with what is kept elsewhere."""

import contextlib
import csv
import hashlib
import importlib
import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shunter.audit.filter import Filter
from shunter.audit.follow import following
from shunter.audit.head import GENESIS
from shunter.audit.journal import Journal
from shunter.audit.key import Key
from shunter.cli.main import execute
from shunter.model.ids import Commit, Epoch
from shunter.model.record import Record, RecordKind

SHUNTER = Path(sys.executable).with_name("shunter")
NOW = 1_800_000_000.0
MOVE: dict[str, object] = {
    "id": "move-1",
    "worker": "w-1",
    "from_slot": "node-a/0",
    "to_slot": "node-b/0",
    "policy": "save",
    "copies": ["node-c"],
}


def record(number: int, kind: RecordKind, subject: str, commit: str = "a", **body: object) -> Record:
    return Record(
        at=NOW + number, kind=kind, subject=subject, what=f"thing {number}", epoch=Epoch(1), commit=Commit(commit * 40), body=body
    )


RECORDS = [
    record(1, RecordKind.ENGINE, "engine"),
    record(2, RecordKind.POLICIES, "a" * 40, policies=["save", "images"]),
    record(3, RecordKind.NOTICE, "node-a", notice={"node": "node-a", "id": "n"}),
    record(4, RecordKind.FINDING, "w-1", policy="save", verdict="act"),
    record(5, RecordKind.PLAN, "plan", operations=[MOVE]),
    record(6, RecordKind.OUTCOME, "w-1", policy="save", **{"from": "node-a/0", "to": "node-b/0", "copies": []}),
    record(7, RecordKind.FINDING, "w-10", commit="b", policy="images", verdict="hold", reason="=cmd|' /C calc'!A0 of save and node-a"),
]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with Journal(tmp_path / "audit.db") as journal:
        journal.append(RECORDS)
    return tmp_path


def out(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert execute(["audit", *arguments]) == status
    return capsys.readouterr().out


FILTERS = [
    (("--worker", "w-1"), [4, 5, 6]),
    (("--worker", "w-10"), [7]),
    (("--node", "node-a"), [3, 5, 6]),
    (("--node", "node-b"), [5, 6]),
    (("--node", "node-c"), [5]),
    (("--policy", "save"), [2, 4, 5, 6]),
    (("--policy", "sav"), []),
    (("--commit", "bbb"), [7]),
    (("--commit", "a" * 40, "--kind", "finding"), [4]),
    (("--worker", "w-1", "--node", "node-c"), [5]),
    (("--worker", "w-1", "--since", "2027-01-15T08:00:05"), [5, 6]),
    (("--worker", "w-1", "--until", "2027-01-15T08:00:05"), [4]),
    (("--worker", '"'), []),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS)
@pytest.mark.parametrize("command", ["list", "export"])
def test_filters(state: Path, command: str, filters: tuple[str, ...], expected: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--json",) if command == "list" else ()
    text = out(capsys, command, "--state", str(state), *more, *filters)
    assert [json.loads(line)["seq"] for line in text.splitlines()] == expected


def test_the_limit_counts_what_fits(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = out(capsys, "list", "--state", str(state), "--json", "--worker", "w-1", "--limit", "2")
    assert [json.loads(line)["seq"] for line in text.splitlines()] == [5, 6]


def test_exported_lines_carry_the_chain(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody else's program can check it, knowing nothing but what the documentation says."""
    previous = GENESIS
    for line in out(capsys, "export", "--state", str(state)).splitlines():
        sealed = json.loads(line)
        canonical = json.dumps(sealed["record"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert line.encode().endswith(b'"record":' + canonical + b',"seq":%d}' % sealed["seq"])
        assert sealed["previous"] == previous
        previous = hashlib.sha256(bytes.fromhex(previous) + canonical).hexdigest()
        assert sealed["hash"] == previous


def test_csv(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "out.csv"
    assert out(capsys, "export", "--state", str(state), "--format", "csv", "--out", str(there)) == f"{there}: 7 records\n"
    assert there.stat().st_mode & 0o777 == 0o600
    rows = list(csv.DictReader(io.StringIO(there.read_text(), newline="")))
    assert [int(row["seq"]) for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert (rows[0]["at"], rows[0]["pretend"], rows[4]["kind"]) == ("2027-01-15T08:00:01.000000+00:00", "false", "plan")
    assert json.loads(rows[4]["body"]) == {"operations": [MOVE]}


def test_no_cell_is_a_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(tmp_path / "audit.db") as journal:
        journal.append(
            [record(1, RecordKind.FINDING, "=HYPERLINK(1)"), record(2, RecordKind.FINDING, "@x"), record(3, RecordKind.FINDING, "-1")]
        )
    rows = list(csv.DictReader(io.StringIO(out(capsys, "export", "--state", str(tmp_path), "--format", "csv"), newline="")))
    assert [row["subject"] for row in rows] == ["'=HYPERLINK(1)", "'@x", "'-1"]


def test_parquet_without_pyarrow_says_what_to_do(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it weren't there
    assert execute(["audit", "export", "--state", str(state), "--format", "parquet", "--out", str(tmp_path / "x.parquet")]) == 1
    assert "SH973" in (told := capsys.readouterr().err)
    assert "shunter[parquet]" in told
    assert not list(tmp_path.glob("*x.parquet*")), "no half a file"


def test_parquet(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = importlib.import_module("pyarrow.parquet")
    assert execute(["audit", "export", "--state", str(state), "--format", "parquet", "--out", str(tmp_path / "x.parquet")]) == 0
    rows: list[dict[str, Any]] = parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert (rows[0]["at"].timestamp(), rows[0]["pretend"], rows[1]["operation"]) == (NOW + 1, False, None)
    assert json.loads(rows[4]["body"]) == {"operations": [MOVE]}


def test_an_export_that_cannot_be_written(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["audit", "export", "--state", str(state), "--out", str(tmp_path / "nowhere" / "x")]) == 2
    assert "SH974" in capsys.readouterr().err
    assert execute(["audit", "export", "--state", str(tmp_path / "nowhere"), "--out", str(tmp_path / "y")]) == 1
    assert not (tmp_path / "y").exists()


def test_following_gives_each_record_once_and_in_order_whatever_comes_while_it_looks(state: Path) -> None:
    with Journal(state / "audit.db") as writer, Journal(state / "audit.db", read_only=True) as reader:
        pauses: list[int] = []

        def pause() -> None:
            pauses.append(1)
            if len(pauses) == 2:
                writer.append([record(n, RecordKind.STEP, f"w-{n % 2}") for n in range(8, 12)])
            if len(pauses) > 4:
                raise KeyboardInterrupt

        seen: list[int] = []
        with contextlib.suppress(KeyboardInterrupt):
            for sealed in following(reader, Filter(worker="w-1"), 4, pause):
                seen.append(sealed.seq)
                if sealed.seq == 9:
                    writer.append([record(12, RecordKind.STEP, "w-1")])
        assert seen == [5, 6, 9, 11, 12]


def test_follow_in_another_process_and_ctrl_c(state: Path) -> None:
    with Journal(state / "audit.db") as journal:
        command = [str(SHUNTER), "audit", "follow", "--state", str(state), "--json", "--last", "1", "--kind", "finding"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["seq"] == 7
            journal.append([record(8, RecordKind.STEP, "w-1"), record(9, RecordKind.FINDING, "w-2")])
            assert json.loads(process.stdout.readline())["seq"] == 9
            process.send_signal(signal.SIGINT)
            rest, told = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
    assert (rest, told, process.returncode) == ("", "", 0)


def test_verify_with_a_key_and_heads_that_are_kept_elsewhere(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    auditor = tmp_path / "auditor"
    auditor.mkdir()
    shutil.copy(state / "audit.pub", auditor / "engine.pub")
    shutil.copy(state / "audit.heads", auditor / "heads")
    arguments = ("verify", "--state", str(state), "--key", str(auditor / "engine.pub"), "--head", str(auditor / "heads"))
    told = out(capsys, *arguments)
    assert "the key in the folder" not in told
    assert "found in it" in told
    other = Key.make()
    other.publish(auditor / "other.pub", anew=True)
    told = out(capsys, "verify", "--state", str(state), "--key", str(auditor / "other.pub"), status=1)
    assert other.public.name in told
    (auditor / "heads").write_text((auditor / "heads").read_text().replace('"seq":7', '"seq":9'))
    assert "isn't signed by" in out(capsys, *arguments, status=1)
    for bad in ("nowhere", "engine.pub"):
        assert execute(["audit", "verify", "--state", str(state), "--head", str(auditor / bad)]) == 2
        assert "SH972" in capsys.readouterr().err
    (auditor / "engine.pub").write_text("rubbish")
    assert execute(["audit", *arguments]) == 2
    assert "SH971" in capsys.readouterr().err
