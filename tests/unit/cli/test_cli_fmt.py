import os
from pathlib import Path

import pytest
from shunter.cli.main import execute
from typer.testing import CliRunner

NEAT = """\
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: recent-images}
spec:
  # on every worker
  workers: {all: true}
  every: 5m
"""
MESSY = NEAT.replace("  workers", "  workers  ").replace("\n  ", "\n      ").replace("every: ", "every:    ") + "\n\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "neat.yaml").write_text(NEAT)
    (tmp_path / "messy.yaml").write_text(MESSY)
    (tmp_path / "notes.txt").write_text("a:    1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_are_formatted_and_named_and_others_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "messy.yaml").chmod(0o640)
    before = (folder / "neat.yaml").stat()
    assert execute(["fmt", "."]) == 0
    assert capsys.readouterr().out == "messy.yaml\n"
    assert (folder / "messy.yaml").read_text() == NEAT
    assert (folder / "messy.yaml").stat().st_mode & 0o777 == 0o640
    assert (folder / "neat.yaml").stat().st_ino == before.st_ino
    assert (folder / "notes.txt").read_text() == "a:    1"
    assert sorted(p.name for p in folder.iterdir()) == ["messy.yaml", "neat.yaml", "notes.txt"]
    assert execute(["fmt", "--check", "."]) == 0


def test_check_changes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert execute(["fmt", "--check", "."]) == 1
    assert capsys.readouterr().out == "would change messy.yaml\n"
    assert (folder / "messy.yaml").read_text() == MESSY


def test_files_with_errors_are_left_alone_and_the_others_formatted(folder: Path, capsys: pytest.CaptureFixture[str]):
    bad = MESSY.replace("every", "evry").replace("workers  :", "worker  :")
    (folder / "bad.yaml").write_text(bad)
    (folder / "broken.yaml").write_text("a: {")
    assert execute(["fmt", "."]) == 1
    shown = capsys.readouterr()
    assert shown.out == "messy.yaml\n"
    assert "error: SH111 bad.yaml:7:7:" in shown.err or "error: SH112 bad.yaml:" in shown.err
    assert "(and 2 more)" in shown.err
    assert "error: SH102 broken.yaml:1:5:" in shown.err
    assert (folder / "bad.yaml").read_text() == bad


def test_a_link_stays_a_link(folder: Path):
    (folder / "elsewhere").mkdir()
    target = folder / "elsewhere" / "a.yaml"
    target.write_text(MESSY)
    (folder / "link.yaml").symlink_to(target)
    assert execute(["fmt", "link.yaml"]) == 0
    assert (folder / "link.yaml").is_symlink()
    assert target.read_text() == NEAT


def test_tests_of_policies_are_formatted_when_named(folder: Path):
    (folder / "a_test.yaml").write_text("given:\n    x:   1\n")
    assert execute(["fmt", "a_test.yaml"]) == 0
    assert (folder / "a_test.yaml").read_text() == "given:\n  x: 1\n"


def test_standard_input():
    import typer
    from shunter.cli.fmt import fmt

    app = typer.Typer()
    app.command()(fmt)
    assert CliRunner().invoke(app, ["-"], input=MESSY).stdout == NEAT
    checked = CliRunner().invoke(app, ["--check", "-"], input=MESSY)
    assert (checked.exit_code, checked.stdout) == (1, "")
    assert CliRunner().invoke(app, ["--check", "-"], input=NEAT).exit_code == 0
    assert CliRunner().invoke(app, ["-"], input="a: {").stdout == ""


def test_paths_that_cannot_be_read_or_written(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert execute(["fmt", "nothing.yaml"]) == 2

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device", "messy.yaml")

    monkeypatch.setattr(os, "replace", refuse)
    assert execute(["fmt", "."]) == 2
    assert "messy.yaml: No space left on device" in capsys.readouterr().err
    assert (folder / "messy.yaml").read_text() == MESSY
    assert sorted(p.name for p in folder.iterdir()) == ["messy.yaml", "neat.yaml", "notes.txt"]
