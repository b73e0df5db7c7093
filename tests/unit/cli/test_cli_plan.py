"""`shunter plan` on what was recorded, and on a fleet and a Prometheus that don't answer."""

import json
from pathlib import Path

import msgspec
import pytest
from shunter.app.exact import load as load_exact
from shunter.app.preview import preview_again
from shunter.app.recording import Past, Recording, save
from shunter.app.sources import read_directory
from shunter.cli.main import execute
from shunter.model.canon import encode
from shunter.model.snapshot import NoticeKind
from test_cli_why import NOW, POLICIES, SETTINGS, seen

FLEET = ["--snapshot", "fleet.json", "--policies", "policies"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with policies and a recording, without settings."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "a.yaml").write_bytes(POLICIES)
    snapshot = seen().snapshot
    save(Recording.of(snapshot, tuple(Past(at=NOW - back, samples=snapshot.samples) for back in (60, 30))), tmp_path / "fleet.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], *more: str) -> dict:
    assert execute(["plan", *FLEET, "--format", "json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_recording_and_a_directory_need_no_settings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = planned(capsys)
    assert (shown["at"], shown["snapshot"]) == (NOW, seen().snapshot.id)
    shift = next(f for f in shown["findings"] if f["policy"] == "relieve-prefill")
    assert (shift["verdict"], shift["gate"], shift["since"]) == ("hold", "for", NOW - 60)


def test_an_assumed_notice_on_a_recording(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = planned(capsys, "--notice", "node-a=preemption:600s")
    assert next((o["kind"], o["worker"], o["lane"]) for o in shown["operations"]) == ("move", "decode-0", "involuntary")
    assert execute(["plan", *FLEET, "--notice", "node-z=gone"]) == 1
    assert "SH912" in capsys.readouterr().err
    assert execute(["plan", *FLEET, "--notice", "node-a=preemption:600s", "--exit-code"]) == 2
    assert execute(["plan", *FLEET, "--exit-code"]) == 0


@pytest.mark.parametrize("wrong", [["--no-such-option"], ["--snapshot", "fleet.json", "--at", "10m"], ["--config", "nowhere.toml"]])
def test_where_2_says_that_something_would_be_done_what_could_not_run_says_1(here: Path, wrong: list[str]) -> None:
    assert execute(["plan", *wrong, "--exit-code"]) == 1


def test_settings_name_the_policies_of_a_recording(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "engine.toml").write_text(SETTINGS)
    assert execute(["plan", "--snapshot", "fleet.json", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == planned(capsys)


def test_the_comment_for_a_pull_request(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", *FLEET, "--format", "markdown", "--link", "https://ci.example/7"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("<!-- shunter: plan -->\n### Shunter: ")
    assert "[All of it](https://ci.example/7)" in shown.out
    assert shown.err == ""


def test_an_exact_plan_is_the_plan_that_is_shown(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter.cli.plan.time.time", lambda: NOW + 5)
    assert execute(["plan", *FLEET, "--format", "json", "--out", "plan.json", "--expires", "2m"]) == 0
    shown = capsys.readouterr()
    exact = load_exact(here / "plan.json")
    assert exact.digest == json.loads(shown.out)["digest"]
    assert exact.expires_at == NOW + 120
    assert "good until 2027-01-15 08:02:00 UTC" in shown.err
    again = preview_again(
        Recording.of(seen().snapshot, tuple(Past(at=NOW - b, samples=seen().snapshot.samples) for b in (60, 30))),
        read_directory(here / "policies"),
    )
    assert encode(again.evaluation.plan) == encode(exact.plan)


def test_an_exact_plan_of_an_old_recording_is_not_written(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shunter.cli.plan.time.time", lambda: NOW + 601)
    assert execute(["plan", *FLEET, "--out", "plan.json"]) == 1
    shown = capsys.readouterr()
    assert "SH951" in shown.err
    assert not (here / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--at", "10m"], 2),
        (["--expires", "10m"], 2),
        (["--out", "plan.json", "--expires", "soon"], 1),
        (["--out", "plan.json", "--expires", "0s"], 1),
    ],
)
def test_what_does_not_go_together(here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int) -> None:
    assert execute(["plan", *FLEET, *arguments]) == status
    assert not (here / "plan.json").exists()


def test_a_past_instant_says_what_is_of_now(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "engine.toml").write_text(SETTINGS)
    for name in ("ca.pem", "engine.pem", "engine.key"):
        (here / name).write_text("")
    assert execute(["plan", "--at", "2026-01-31T12:00:00", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["at"] == 1769860800.0
    assert execute(["plan", "--at", "2026-01-31T12:00:00"]) == 0
    shown = capsys.readouterr()
    assert "note: Samples are as they were then; the fleet is the one of now" in shown.err
    assert "Plan at 2026-01-31 12:00:00 UTC" in shown.out


def test_notices_of_the_recording_count(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assumed = msgspec.structs.replace(seen().snapshot, notices=())
    assert NoticeKind.PREEMPTION.value not in json.dumps([o["reason"] for o in planned(capsys)["operations"]])
    save(Recording.of(assumed), here / "bare.json")
    assert execute(["plan", "--snapshot", "bare.json", "--policies", "policies", "--format", "json"]) == 0
    shift = next(f for f in json.loads(capsys.readouterr().out)["findings"] if f["policy"] == "relieve-prefill")
    assert (shift["verdict"], shift["gate"]) == ("hold", "for"), "without history it isn't known how long it has held"
