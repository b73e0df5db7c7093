"""A test fails when what it expects isn't so, whichever part of it; and the report says what was found, and why."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from case_files import FILES, differences, one, ran
from shunter.cases.coverage import coverage
from shunter.cases.junit import junit
from shunter.cases.text import report_text
from shunter.cli.main import execute
from shunter.lang.load import check_text

BASE = (
    "policies: [leave.yaml]\nfleet: {nodes: {a: {slots: 2}, b: {}, c: {}}, workers: {decode-0: {node: a, kvTokens: 5},"
    " prefill-0: {node: a}, decode-1: {node: b}}}\n"
    "tests:\n  - name: t\n    carryOut: true\n    notices: [{node: a, kind: preemption, at: 5s, lead: 10m}]\n    expect:\n      - "
)
MOVE = "operation  move decode-0 from a/0 to c/0 by leave"
PARK = "operation  park prefill-0 from a/1 by leave copies b"
PASSED = 'finding  leave decode-0: pass at notices: "no notice for a"'
NOTHING = "operation  decode-0: nothing is planned for it"
BOTH = "{kind: move, worker: decode-0}, {kind: park, worker: prefill-0}"


@pytest.mark.parametrize(
    "expected",
    [
        "{findings: [{subject: decode-0, verdict: pass, gate: notices, reason: NO NOTICE}], operations: []}",
        "{at: 5s, findings: [{policy: leave, subject: decode-0, verdict: act, gate: move.to}]}",
        "{at: 5s, operations: [" + BOTH + "]}",
        "{at: 5s, operations: [{kind: park, worker: prefill-0, from: a, copies: [b], after: []}], exactly: false}",
        "{at: 5s, operations: [{kind: move, worker: decode-0, from: a/0, to: c, policy: leave, preview: false}], exactly: false}",
        "{at: 60s, workers: {decode-0: {node: c, state: running}, decode-1: {node: b/0}, prefill-0: {state: parked}}}",
    ],
)
def test_what_is_so_passes(expected: str):
    assert differences(BASE + expected) == []


@pytest.mark.parametrize(
    ("expected", "wanted", "found"),
    [
        ("{findings: [{subject: decode-0, verdict: act}]}", "finding  decode-0: act", PASSED),
        ("{findings: [{subject: decode-0, verdict: pass, gate: when}]}", "finding  decode-0: pass at when", PASSED),
        ("{findings: [{subject: decode-0, verdict: pass, reason: busy}]}", 'finding  decode-0: pass: "...busy..."', PASSED),
        (
            "{findings: [{policy: leave, subject: demo, verdict: pass}]}",
            "finding  leave demo: pass",
            "finding  demo: nothing is said of it",
        ),
        ("{operations: [{kind: move, worker: decode-0}]}", "operation  move decode-0", NOTHING),
        ("{at: 5s, operations: [{kind: park, worker: prefill-0}]}", "", MOVE),
        ("{at: 5s, operations: [{kind: move, worker: decode-0}]}", "", PARK),
        ("{at: 5s, operations: [{kind: park, worker: decode-0}], exactly: false}", "operation  park decode-0", MOVE),
        ("{at: 5s, operations: [{kind: move, worker: decode-0, to: b}], exactly: false}", "operation  move decode-0 to b", MOVE),
        ("{at: 5s, operations: [{kind: move, worker: decode-0, from: a/1}], exactly: false}", "operation  move decode-0 from a/1", MOVE),
        (
            "{at: 5s, operations: [{kind: move, worker: decode-0, preview: true}], exactly: false}",
            "operation  move decode-0 in preview",
            MOVE,
        ),
        (
            "{at: 5s, operations: [{kind: move, worker: decode-0, after: [prefill-0]}], exactly: false}",
            "operation  move decode-0 after prefill-0",
            MOVE,
        ),
        (
            "{at: 5s, operations: [{kind: park, worker: prefill-0, copies: [b, c]}], exactly: false}",
            "operation  park prefill-0 copies b, c",
            PARK,
        ),
        (
            "{at: 5s, operations: [{kind: park, worker: prefill-0, copies: []}], exactly: false}",
            "operation  park prefill-0 copies none",
            PARK,
        ),
        ("{at: 5s, operations: [" + BOTH + ", {kind: move, worker: decode-0}]}", "operation  move decode-0", NOTHING),
        ("{at: 60s, workers: {decode-0: {node: a}}}", "worker  decode-0: on a", "worker  decode-0: running, on c/0"),
        ("{at: 60s, workers: {prefill-0: {state: lost}}}", "worker  prefill-0: lost", "worker  prefill-0: parked"),
    ],
)
def test_what_is_not_so_fails(expected: str, wanted: str, found: str):
    assert differences(BASE + expected) == [(wanted, found)]


def test_an_expectation_holds_at_its_own_step_alone():
    assert differences(BASE + "{at: 10s, operations: [{kind: move, worker: decode-0}], exactly: false}") == [
        ("operation  move decode-0", NOTHING)
    ]


def test_a_failure_has_its_time_its_place_and_the_evidence():
    result = one(
        BASE + "{findings: [{subject: decode-1, verdict: pass}]}\n      - {at: 5s, findings: [{subject: decode-0, verdict: pass}]}"
    )
    (failure,) = result.failures
    assert (failure.at, str(failure.place), result.checks) == (5.0, "repo/x_test.yaml:9:9", 2)
    assert [(e.gate, e.result) for e in failure.evidence] == [("notices", True)]
    assert not result.passed


FAILING = BASE + "{at: 5s, findings: [{subject: decode-0, verdict: hold}]}"
GOOD = BASE + "{findings: [{subject: decode-0, verdict: pass, gate: notices}]}"


def test_the_text_shows_the_difference_and_why():
    result = ran(FAILING)
    text = report_text([result], [])
    assert "FAIL  repo/x_test.yaml  (1 test)" in text
    assert "  FAIL  t  repo/x_test.yaml:4:5" in text
    assert "at 5s, expected by repo/x_test.yaml:8:9:" in text
    assert "- finding  decode-0: hold\n" in text
    assert '+ finding  leave decode-0: act at move.to: "a is preempted at 00:10:05 UTC: it moves to c/0"' in text
    assert "yes notices  preemption a-preemption-0 from test" in text
    assert text.endswith("0 passed, 1 failed, 0 problems (1 checks in 1 file)")
    assert "\x1b[31mFAIL" in report_text([result], [], colour=True)
    assert "\x1b" not in text


def test_the_text_shows_problems_with_their_line():
    text = report_text([ran(GOOD.replace("verdict", "verdct"))], [])
    assert 'SH111 "verdct" is not a key' in text
    assert "- {findings: [{subject: decode-0, verdct: pass" in text
    assert text.splitlines()[3].endswith("^")


def test_passed_tests_are_named_on_demand():
    assert "ok    t" not in report_text([ran(GOOD)], [])
    assert "ok    t" in report_text([ran(GOOD)], [], verbose=True)


def test_coverage_counts_what_expectations_show_and_names_what_they_do_not():
    policies = [p for name, data in FILES.items() for p in check_text(f"repo/{name}", data)[0]]
    covered = {c.policy: c for c in coverage([ran(GOOD)], policies)}
    assert (covered["leave"].tests, covered["leave"].verdicts) == (1, {"act": 0, "hold": 0, "inconclusive": 0, "pass": 1})
    assert (covered["leave"].gates, covered["leave"].unshown) == (("notices",), ())
    assert covered["shift"].tests == 0
    longer = {c.policy: c for c in coverage([ran(GOOD + "\n      - {at: 10s, workers: {decode-0: {node: a}}}")], policies)}
    assert longer["leave"].unshown == ("move.to", "otherwise", "worker")
    failed = {c.policy: c for c in coverage([ran(FAILING)], policies)}
    assert (failed["leave"].tests, failed["leave"].failing, failed["shift"].failing) == (0, 1, 0)
    said = report_text([ran(FAILING)], [failed["leave"]]).splitlines()[-3]
    assert said.endswith("1 test of it, and what it expects isn't so")
    text = report_text([ran(GOOD)], list(covered.values()))
    assert "no test says anything of it (repo/shift.yaml)" in text


def test_what_a_policy_is_not_about_is_said_with_the_reason():
    here = BASE.replace("policies: [leave.yaml]", "policies: [elsewhere.yaml]")
    files = {"elsewhere.yaml": FILES["leave.yaml"].replace(b"workers: {all: true}", b"workers: {graph: tiny, role: decode}")}
    assert files["elsewhere.yaml"] != FILES["leave.yaml"]
    for subject, there in (("demo", "this fleet has demo"), ("decode-0", "the worker serves demo")):
        ((_, found),) = differences(here + "{findings: [{subject: " + subject + ", verdict: pass}]}", files)
        why = f"leave covers the graph tiny, and {there}: write `graph: tiny` under `fleet`, unless another graph is meant"
        assert found == f"finding  {subject}: nothing is said of it, as {why}"
    ours = here.replace("fleet: {", "fleet: {graph: tiny, ")
    ((_, found),) = differences(ours + "{findings: [{subject: prefill-0, verdict: pass}]}", files)
    assert found == "finding  prefill-0: nothing is said of it, as leave covers decode workers"
    assert differences(ours + "{findings: [{subject: decode-0, verdict: pass}]}", files) == []


def test_a_planned_operation_that_was_expected_shows_that_its_policy_acts():
    policies = check_text("repo/leave.yaml", FILES["leave.yaml"])[0]
    (covered,) = coverage([ran(BASE + "{at: 5s, operations: [" + BOTH + "]}")], policies)
    assert covered.verdicts["act"] == 1


def test_the_same_name_in_another_folder_is_another_policy():
    policies = check_text("elsewhere/leave.yaml", FILES["leave.yaml"])[0]
    assert [c.tests for c in coverage([ran(GOOD)], policies)] == [0]


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_test():
    files = [ran(GOOD), ran(FAILING.replace("name: t", 'name: "bell \\a <x>"')), ran("tests: []")]
    root = ET.fromstring(junit(files))
    suites = root.findall("testsuite")
    assert [(s.get("tests"), s.get("failures"), s.get("errors")) for s in suites] == [("1", "0", "0"), ("1", "1", "0"), ("1", "0", "1")]
    case = suites[1].find("testcase")
    assert case is not None
    assert (case.get("name"), case.get("line")) == ("bell \ufffd <x>", "4")
    failure = case.find("failure")
    assert failure is not None
    assert "- finding  decode-0: hold" in (failure.text or "")
    error = suites[2].find("testcase/error")
    assert error is not None
    assert error.get("type") == "SH166"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "x_test.yaml").write_text(GOOD)
    return tmp_path


def test_the_command_exits_0_when_all_passed(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert execute(["test", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "1 passed, 0 failed, 0 problems" in out
    assert "images" in out


def test_the_command_exits_1_when_a_test_failed_or_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "y_test.yaml").write_text(FAILING)
    assert execute(["test", str(folder)]) == 1
    assert execute(["test", str(folder / "x_test.yaml")]) == 0
    (folder / "x_test.yaml").write_text(GOOD.replace("leave.yaml", "leaf.yaml"))
    assert execute(["test", str(folder / "x_test.yaml")]) == 1
    assert "SH162" in capsys.readouterr().out


def test_the_command_exits_2_without_tests_or_with_a_path_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert execute(["test", str(tmp_path)]) == 2
    assert execute(["test", str(tmp_path / "no_test.yaml")]) == 2
    assert "no_test.yaml: No such file or directory. Check the path" in capsys.readouterr().err


def test_the_command_finds_tests_in_folders_once_and_skips_hidden_ones(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name in ("deep/er", ".git"):
        (folder / name / "leave.yaml").write_bytes(FILES["leave.yaml"])
        (folder / name / "z_test.yaml").write_text(GOOD)
    assert execute(["test", str(folder), str(folder / "x_test.yaml"), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [Path(f["path"]).relative_to(folder).as_posix() for f in report["files"]] == ["x_test.yaml", "deep/er/z_test.yaml"]
    assert report["passed"] is True
    assert report["files"][0]["results"][0]["passed"] is True
    assert {c["policy"]: c["tests"] for c in report["coverage"] if "deep" not in c["file"]} == {"images": 0, "leave": 1, "shift": 0}


def test_junit_on_the_command_line_is_xml(folder: Path):
    program = "import sys; from shunter.cli.main import execute; sys.exit(execute(sys.argv[1:]))"
    ran_it = subprocess.run([sys.executable, "-c", program, "test", str(folder), "-f", "junit"], capture_output=True, text=True, check=True)
    assert ET.fromstring(ran_it.stdout).tag == "testsuites"
