"""Problems for code scanning and for CI: the shape that those readers need, to the byte."""

import json
from xml.etree import ElementTree as ET

import pytest
from shunter.lang.extent import end_columns
from shunter.model.errors import Place, Problem, Severity
from shunter.report.junit import junit
from shunter.report.sarif import sarif
from test_report_text import same_as_golden

PROBLEMS = (
    Problem(
        code="SH131",
        what='worker.kvUsge is not a variable <"&">',
        remedy='Did you mean "worker.kvUsage"?',
        place=Place(file="sub dir/é.yaml", line=7, column=9),
        excerpt="  when: worker.kvUsge < 0.9",
    ),
    Problem(
        code="SH109",
        what="the file has no policy",
        remedy="Add one",
        place=Place(file="b.yaml", line=1, column=1),
        severity=Severity.WARNING,
    ),
    Problem(code="SH131", what="another", remedy="Mend it", place=Place(file="b.yaml", line=2, column=3)),
    Problem(code="SH211", what="it is a symbolic link", remedy="Put the file itself there", subject="link.yaml"),
)
TITLES = {"SH109": "the file has no policy", "SH131": "an unknown variable", "SH211": "a link"}


def log(problems=PROBLEMS, **more):
    return sarif(problems, TITLES, version="0.1.0", **more)


def test_sarif_to_the_byte():
    ends = {PROBLEMS[0]: 22}
    same_as_golden("problems.sarif", log(ends=ends, relative=lambda path: f"policies/{path}").decode())
    assert log(ends=ends) == log(ends=ends)


def test_every_result_has_what_code_scanning_needs():
    document = json.loads(log(ends={PROBLEMS[0]: 22}))
    assert (document["version"], len(document["runs"])) == ("2.1.0", 1)
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["columnKind"] == "unicodeCodePoints"
    assert [r["id"] for r in rules] == ["SH109", "SH131", "SH211"]
    assert all(r["shortDescription"]["text"] and r["help"]["text"] for r in rules)
    assert len(run["results"]) == len(PROBLEMS)
    for result, problem in zip(run["results"], PROBLEMS, strict=True):
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == problem.code
        assert result["level"] == problem.severity.value
        assert problem.what in result["message"]["text"]
        assert problem.remedy in result["message"]["text"]
        (location,) = result["locations"]
        region = location["physicalLocation"]["region"]
        assert region["startLine"] >= 1
        assert region.get("endColumn", 10**6) > region.get("startColumn", 1) - 1
    first, *_, last = (r["locations"][0]["physicalLocation"] for r in run["results"])
    assert first["region"] == {"startLine": 7, "startColumn": 9, "endColumn": 22}
    assert first["contextRegion"] == {"startLine": 7, "snippet": {"text": "  when: worker.kvUsge < 0.9"}}
    assert first["artifactLocation"] == {"uri": "sub%20dir/%C3%A9.yaml", "uriBaseId": "%SRCROOT%"}
    assert (last["artifactLocation"]["uri"], last["region"]) == ("link.yaml", {"startLine": 1})


def test_no_problems_are_an_empty_run():
    (run,) = json.loads(log(()))["runs"]
    assert (run["results"], run["tool"]["driver"]["rules"]) == ([], [])


def test_a_code_without_a_title_is_a_rule_all_the_same():
    (run,) = json.loads(sarif(PROBLEMS[:1], {}, version="0"))["runs"]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"] == "A problem"


def test_junit_to_the_byte():
    same_as_golden("problems.junit.xml", junit(["a.yaml", "b.yaml", "sub dir/é.yaml"], PROBLEMS).decode())


def test_junit_has_a_case_for_each_file_and_counts_failures_as_files():
    suites = ET.fromstring(junit(["a.yaml", "b.yaml", "sub dir/é.yaml"], PROBLEMS))
    cases = {case.get("name"): case for case in suites.iter("testcase")}
    assert list(cases) == ["a.yaml", "b.yaml", "sub dir/é.yaml", "link.yaml"]
    assert (suites.get("tests"), suites.get("failures")) == ("4", "3")
    assert {name for name, case in cases.items() if case.find("failure") is not None} == {"b.yaml", "sub dir/é.yaml", "link.yaml"}
    assert list(cases["a.yaml"]) == []
    assert '<"&">' in cases["sub dir/é.yaml"].find("failure").text
    assert "SH109" in cases["b.yaml"].find("system-out").text


def test_junit_warnings_alone_do_not_fail():
    suites = ET.fromstring(junit(["b.yaml"], PROBLEMS[1:2]))
    assert suites.get("failures") == "0"
    assert suites.find(".//failure") is None


def test_what_xml_cannot_hold_is_replaced():
    bad = Problem(code="SH102", what="a \x00 \x1b[31m \ufffe \ud800 b", remedy="r", place=Place(file="\x01.yaml", line=1, column=1))
    suites = ET.fromstring(junit(["\x01.yaml"], (bad,)))
    assert suites.find(".//failure").get("message") == "SH102 a \ufffd \ufffd[31m \ufffd \ufffd b"


POLICY = """\
spec:
  when: worker.kvUsge < 0.9 && 'a' == "é"
  quoted: 'pools.x > 1'
  block: |
    worker.id == 1
  "copees" : 2
"""


def at(line, column, code):
    return Problem(code=code, what="w", remedy="r", place=Place(file="a.yaml", line=line, column=column))


@pytest.mark.parametrize(
    ("line", "column", "code", "end"),
    [
        (1, 1, "SH111", 5),  # a key
        (2, 9, "SH131", 22),  # a name in an expression
        (2, 9, "SH134", 42),  # the whole expression
        (2, 25, "SH130", 28),  # a number
        (3, 11, "SH113", 24),  # a quoted value
        (3, 12, "SH131", 19),  # a name in it
        (6, 3, "SH111", 11),  # a quoted key
        (5, 5, "SH131", None),  # in a block
        (4, 10, "SH113", None),  # over lines
        (2, 10, "SH131", None),  # nothing begins there
        (99, 1, "SH111", None),
    ],
)
def test_the_end_of_what_a_problem_is_about(line, column, code, end):
    problem = at(line, column, code)
    assert end_columns("a.yaml", POLICY.encode(), [problem]) == ({} if end is None else {problem: end})


def test_ends_in_files_that_are_no_text_or_no_yaml():
    assert end_columns("a.yaml", b"\xff", [at(1, 1, "SH101")]) == {}
    assert end_columns("a.yaml", b"a: {", [at(1, 1, "SH102")]) == {}
