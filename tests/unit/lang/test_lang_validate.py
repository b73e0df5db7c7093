"""`shunter validate`: what people read, what programs read, and the exit status."""

import json

import pytest
import typer
from lang_documents import CHECKPOINT, PREEMPT, REASSIGN
from shunter.cli.validate import check, text, validate
from typer.testing import CliRunner

app = typer.Typer()
app.command()(validate)


def run(*arguments, stdin=None):
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)


BROKEN = (
    CHECKPOINT.replace("every: 5m", "every: 300")
    .replace("kvUsage", "kvUsge")
    .replace("copies: 2", "\tcopies: 2")
    .replace("\tcopies", "copees")
)

GOLDEN = """\
bad.yaml:6:10: SH116 spec.every must be a duration: 300 is not
      every: 300
             ^
    Write it with a unit, such as 300s
bad.yaml:7:9: SH131 worker.kvUsge is not a variable
      when: worker.kvUsge < 0.9
            ^
    Did you mean "worker.kvUsage"?
bad.yaml:9:3: SH111 "copees" is not a key of spec
      copees: 2
      ^
    Did you mean "copies"?
empty.yaml:1:1: SH109 warning: the file has no policy
    # to do
    ^
    Add a policy, or remove the file
3 files, 1 valid policy, 3 errors, 1 warning"""


def test_the_text_for_people():
    files = [("bad.yaml", BROKEN.encode()), ("empty.yaml", b"# to do\n"), ("good.yaml", PREEMPT.encode())]
    assert text(check(files)) == GOLDEN


def test_colour_changes_nothing_but_colour():
    import re

    report = check([("bad.yaml", BROKEN.encode()), ("empty.yaml", b"# to do\n"), ("good.yaml", PREEMPT.encode())])
    coloured = text(report, colour=True)
    assert "\x1b[31m" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == GOLDEN


def test_sound_files_are_valid(tmp_path):
    (tmp_path / "a.yaml").write_text(REASSIGN)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yml").write_text(PREEMPT)
    (tmp_path / "sub" / "b_test.yaml").write_text("{")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "c.yaml").write_text("{")
    result = run(tmp_path, tmp_path / "a.yaml")
    assert result.exit_code == 0, result.output
    assert result.output == "2 files, 2 valid policies, 0 errors, 0 warnings\n"


def test_a_bad_file_is_invalid_and_without_colour_off_a_terminal(tmp_path):
    (tmp_path / "bad.yaml").write_text(BROKEN)
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "bad.yaml:6:10: SH116" in result.output
    assert "\x1b" not in result.output


def test_json(tmp_path):
    (tmp_path / "bad.yaml").write_text(BROKEN)
    result = run(tmp_path, "--format", "json")
    report = json.loads(result.output)
    assert (result.exit_code, report["valid"], report["errors"], report["policies"]) == (1, False, 3, 0)
    assert report["problems"][0]["place"]["line"] == 6
    assert report["problems"][0]["excerpt"] == "  every: 300"


def test_warnings_are_errors_when_strict(tmp_path):
    (tmp_path / "empty.yaml").write_text("# to do\n")
    assert run(tmp_path).exit_code == 0
    strict = run(tmp_path, "--strict")
    assert (strict.exit_code, "SH109 the file" in strict.output) == (1, True)


def test_standard_input():
    assert run("-", stdin=PREEMPT).exit_code == 0
    bad = run("-", stdin=BROKEN)
    assert (bad.exit_code, bad.output.splitlines()[0]) == (1, "<stdin>:6:10: SH116 spec.every must be a duration: 300 is not")


def test_a_path_that_is_not_there_could_not_run(tmp_path):
    result = run(tmp_path / "nothing.yaml")
    assert result.exit_code == 2
    assert "nothing.yaml" in result.stderr
    assert "Traceback" not in result.output


def test_names_are_unique_over_files_and_both_places_are_named(tmp_path):
    (tmp_path / "a.yaml").write_text(PREEMPT)
    (tmp_path / "b.yaml").write_text(PREEMPT)
    result = run(tmp_path)
    assert result.exit_code == 1
    first = result.output.splitlines()[0]
    assert "b.yaml:3:18: SH124" in first
    assert "a.yaml:3:18" in first
    assert "    metadata: {name: save-sessions}" in result.output


@pytest.mark.parametrize("at", [0, 300])
def test_long_lines_are_cut_around_the_caret_and_control_characters_are_shown_safely(at):
    line = "x" * at + "\x85" + "y" * 200
    report = check([("long.yaml", f"a: '{line}\n".encode())])
    for shown in text(report).splitlines():
        assert len(shown) < 220
        assert shown.isprintable() or not shown
