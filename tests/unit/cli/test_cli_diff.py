"""`shunter diff`: two revisions on what was recorded; the golden files are read before they are committed."""

import json
import os
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from shunter.app.recording import Past, Recording, save
from shunter.cli.main import execute
from test_cli_why import NOW, POLICIES, seen

GOLDEN = Path(__file__).parents[2] / "golden"
CHANGED = (
    POLICIES.replace(b"waiting > 30", b"waiting > 50")
    .replace(b"every: 5m\n", b"every: 5m\n  copies: 2\n")
    .replace(b"worker.kvUsage < 0.5", b"worker.kvUsage < 0.95")
    .replace(b"notices: [gone]", b"notices: [gone, drain]")
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("base", POLICIES), ("head", CHANGED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_bytes(text)
    snapshot = seen().snapshot
    save(Recording.of(snapshot, tuple(Past(at=NOW - back, samples=snapshot.samples) for back in (60, 30))), tmp_path / "fleet.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def difference(capsys: pytest.CaptureFixture[str], *more: str, status: int = 2) -> dict:
    assert execute(["diff", "base", "head", "--snapshot", "fleet.json", "--format", "json", *more]) == status
    shown = json.loads(capsys.readouterr().out)
    assert shown["changes"] == (status == 2)
    return shown["snapshots"][0]


def same_as_golden(name: str, text: str) -> None:
    """Digests change with every field that the model gets."""
    text = re.sub(r"sha256:[0-9a-f]{12}", "sha256:(digest)", text)
    if os.environ.get("SHUNTER_GOLDEN") == "write":
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


@pytest.mark.parametrize(("form", "name"), [("text", "diff.txt"), ("markdown", "diff.md")])
def test_for_people(here: Path, capsys: pytest.CaptureFixture[str], form: str, name: str) -> None:
    assert execute(["diff", "base", "head", "--snapshot", "fleet.json", "--format", form]) == 2
    same_as_golden(name, capsys.readouterr().out)


def test_the_expression_that_did_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = difference(capsys)["difference"]
    flips = {(f["policy"], f["subject"]): f for f in found["flipped"]}
    quiet = flips["images-when-quiet", "decode-0"]
    assert (quiet["before"], quiet["after"]) == ("pass", "act")
    assert quiet["by_before"]["expression"] == "worker.kvUsage < 0.5 && worker.waiting == 0"
    assert ["worker.kvUsage", "0.9"] in quiet["by_before"]["inputs"]
    assert (quiet["by_after"]["gate"], quiet["by_after"]["expression"]) == ("when", "worker.kvUsage < 0.95 && worker.waiting == 0")
    shift = flips["relieve-prefill", "tiny"]
    assert (shift["before"], shift["after"]) == ("hold", "pass")
    assert shift["by_before"]["gate"] == "for"
    assert (shift["by_after"]["gate"], shift["by_after"]["expression"]) == ("when", "pools.prefill.waiting > 50")
    assert ("images-when-quiet", "decode-1") not in flips, "inconclusive on both sides"


def test_nothing_differs_between_a_set_and_itself(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "head" / "a.yaml").write_bytes(POLICIES + b"# a comment\n")
    found = difference(capsys, status=0)
    assert found["counts"] == {"added": 0, "removed": 0, "changed": 0, "flipped": 0}
    assert execute(["diff", "base", "base", "--snapshot", "fleet.json"]) == 0
    assert "no difference in outcome" in capsys.readouterr().out


def test_the_way_back_is_the_mirror_image(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = difference(capsys)["difference"]
    assert execute(["diff", "head", "base", "--snapshot", "fleet.json", "--format", "json"]) == 2
    back = json.loads(capsys.readouterr().out)["snapshots"][0]["difference"]
    assert [o["id"] for o in back["added"]] == [o["id"] for o in there["removed"]]
    assert [o["id"] for o in back["removed"]] == [o["id"] for o in there["added"]]
    assert [(f["subject"], f["before"], f["after"]) for f in back["flipped"]] == [
        (f["subject"], f["after"], f["before"]) for f in there["flipped"]
    ]


def test_a_destination_that_changes_is_a_change_of_the_operation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = POLICIES.replace(b"notices: [preemption]\n", b'notices: [preemption]\n  move: {to: {where: node.id == "node-c"}}\n')
    assert head != POLICIES
    (here / "head" / "a.yaml").write_bytes(head)
    found = difference(capsys, "--notice", "node-a=preemption:600s")["difference"]
    (changed,) = found["changed"]
    assert changed["fields"] == [["to_slot", "node-b/1", "node-c/1"]]
    assert (found["added"], found["removed"]) == ([], [])


def test_several_recordings_are_compared_one_by_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = msgspec.structs.replace(Recording.of(seen(waiting=1.0).snapshot), at=NOW + 60)
    save(later, here / "later.json")
    assert execute(["diff", "base", "head", "--snapshot", "fleet.json", "--snapshot", "later.json", "--format", "json"]) == 2
    first, second = json.loads(capsys.readouterr().out)["snapshots"]
    assert (first["at"], second["at"]) == (NOW, NOW + 60)
    assert first["difference"]["flipped"] != second["difference"]["flipped"]


def test_a_file_that_is_refused_is_said_not_to_be_compared(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "head" / "bad.yaml").write_text("kind: Nonsense\n")
    (remark,) = difference(capsys)["remarks"]
    assert remark.startswith("Files of the head were refused, and what they say isn't compared: bad.yaml")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_revisions_of_the_repository_around(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(here, "init", "-q", "-b", "main", "repo")
    (here / "repo" / "p").mkdir()
    for text, tag in ((POLICIES, "v1"), (CHANGED, "v2")):
        (here / "repo" / "p" / "a.yaml").write_bytes(text)
        git(here / "repo", "add", ".")
        git(here / "repo", "commit", "-qm", "x")
        git(here / "repo", "tag", tag)
    directories = difference(capsys)
    asked = ["--snapshot", "fleet.json", "--format", "json", "--repository", "repo", "--folder", "p"]
    assert execute(["diff", "v1", "v2", *asked]) == 2
    revisions = json.loads(capsys.readouterr().out)["snapshots"][0]
    assert revisions["difference"] == directories["difference"]
    assert len(revisions["head"]) == 40
    assert execute(["diff", "v1", "head", *asked]) == 2, "a revision and a directory"
    capsys.readouterr()
    assert execute(["diff", "v1", "v9", *asked]) == 1
    assert "SH217" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["base", "head"],
        ["base", "head", "--snapshot", "nothing.json"],
        ["base", "nowhere", "--snapshot", "fleet.json"],
        ["base", "head", "--snapshot", "fleet.json", "--notice", "node-z=gone"],
        ["base", "head", "--snapshot", "fleet.json", "--config", "nothing.toml"],
    ],
)
def test_what_cannot_be_compared_is_an_error_and_never_a_change(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert execute(["diff", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "error: SH" in shown.err
