import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from shunter.cli import main
from shunter.model.errors import Place, Problem, Rejected, Retry, Stalled, Unknown

PROBLEM = Problem(code="SH123", what="the dump was refused", remedy="Look at its log", subject="decode-0")


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Make `shunter try` do something."""

    def make(body):
        module = type(sys)("shunter_try")
        module.act = body  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "shunter_try", module)
        monkeypatch.setitem(main.VERBS, "try", ("shunter_try:act", "Try."))

    return make


def test_help_names_every_verb_and_imports_none(capsys: pytest.CaptureFixture[str]):
    assert main.execute(["--help"]) == 0
    out = capsys.readouterr().out
    assert "Move LLM serving workers without losing the sessions they hold." in out
    for name, (_, line) in main.VERBS.items():
        assert f"  {name}" in out
        assert line.split()[0] in out
    program = (
        "import sys; from shunter.cli.main import execute; execute(['--help']); print([m for m in sys.modules if m.startswith('shunter.')])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = set(eval(shown.splitlines()[-1]))
    assert loaded <= {"shunter.cli", "shunter.cli.main", "shunter.model", "shunter.model.errors"}


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]):
    main.execute([])
    shown = capsys.readouterr()
    assert "Commands:" in shown.out + shown.err


def test_version(capsys: pytest.CaptureFixture[str]):
    assert main.execute(["--version"]) == 0
    assert capsys.readouterr().out.startswith("shunter 0.")


@pytest.mark.parametrize("arguments", [["certs", "--help"], ["audit", "--help"], ["audit", "list", "--help"], ["status", "--help"]])
def test_help_of_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main.execute(arguments) == 0
    assert f"Usage: shunter {' '.join(arguments[:-1])}" in capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in main.VERBS if name not in ("plan", "engine")])
def test_every_verb_is_there(name: str):
    module, _, attribute = main.VERBS[name][0].partition(":")
    assert getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(("kind", "status"), [(Rejected, 1), (Stalled, 1), (Retry, 2), (Unknown, 2)])
def test_expected_errors_say_what_and_what_to_do(verb, kind, status: int, capsys: pytest.CaptureFixture[str]):
    def act() -> None:
        raise kind(PROBLEM)

    verb(act)
    assert main.execute(["try"]) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: SH123 decode-0: the dump was refused\n  Look at its log\n"


def test_a_place_goes_before_the_subject(capsys: pytest.CaptureFixture[str]):
    main.complain(Problem(code="SH101", what="w", remedy="r", subject="s", place=Place(file="a.yaml", line=3, column=7)))
    assert capsys.readouterr().err == "error: SH101 a.yaml:3:7: w\n  r\n"


def test_an_unexpected_error_has_a_code_and_no_traceback(verb, capsys: pytest.CaptureFixture[str]):
    def act() -> None:
        raise RuntimeError("no idea")

    verb(act)
    assert main.execute(["try"]) == 2
    err = capsys.readouterr().err
    assert "SH999" in err
    assert "RuntimeError: no idea" in err
    assert "Traceback" not in err
    with pytest.raises(RuntimeError, match="no idea"):
        main.execute(["--debug", "try"])


def test_an_interrupt_exits_130(verb):
    def act() -> None:
        raise KeyboardInterrupt

    verb(act)
    assert main.execute(["try"]) == 130


def test_a_wrong_command_line_exits_2(capsys: pytest.CaptureFixture[str]):
    assert main.execute(["certify"]) == 2
    assert "No such command" in capsys.readouterr().err
    assert main.execute(["certs"]) == 2
    assert "DIR" in capsys.readouterr().err


def test_a_reader_that_goes_away_gets_no_traceback(tmp_path: Path):
    from shunter.audit.journal import Journal
    from shunter.model.ids import Epoch
    from shunter.model.record import Record, RecordKind

    with Journal(tmp_path / "audit.db") as journal:
        journal.append([Record(at=1.0, kind=RecordKind.STEP, subject="s", what="w" * 200, epoch=Epoch(1)) for _ in range(2000)])
    program = "from shunter.cli.main import run; run()"
    command = [sys.executable, "-c", program, "audit", "list", "--limit", "0", "--json", "--state", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline().startswith(b"{")
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait() == 1
