"""What is wrong with a test file is said with its line and column."""

from pathlib import Path

import pytest
from case_files import FILES, LEAVE, one, ran, told
from jsonschema import Draft202012Validator
from shunter.cases.read import is_test_file
from shunter.cases.schema import case_schema, rendered

SCHEMA = Path(__file__).parents[3] / "schemas" / "policy-test.v1alpha1.json"
FLEET = "fleet: {nodes: {a: {slots: 2}, b: {}}, workers: {decode-0: {node: a}}}\n"
PASS = "expect: [{findings: [{policy: leave, subject: decode-0, verdict: pass}]}]"
ONE = "policies: [leave.yaml]\n" + FLEET + "tests:\n  - name: t\n    "


def test_the_schema_file_is_what_the_structs_say():
    assert SCHEMA.read_text() == rendered()
    Draft202012Validator.check_schema(case_schema())


def test_a_sound_file_runs():
    assert one(ONE + PASS).passed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ONE + "expects: []", '4:5 SH112 tests.0 lacks the key "expect"'),
        (ONE + "carryout: true\n    " + PASS, '5:5 SH111 "carryout" is not a key of tests.0. Did you mean "carryOut"?'),
        (
            ONE + "expect: [{findings: [{subject: decode-0, verdict: pas}]}]",
            "5:55 SH114 pas can't be tests.0.expect.0.findings.0.verdict. Did you",
        ),
        (
            ONE + "expect: [{at: 5, operations: []}]",
            "5:19 SH116 tests.0.expect.0.at must be a duration: 5 is not. Write it with a unit, such as 5s",
        ),
        (
            ONE + "expect: [{findings: [{subject: decode-1, verdict: pass}]}]",
            '5:36 SH162 there is no worker or graph "decode-1". Did you mean "decode-0"?',
        ),
        (
            ONE + "expect: [{findings: [{policy: leaf, subject: decode-0, verdict: pass}]}]",
            '5:35 SH162 there is no policy "leaf". Did you mean "leave"?',
        ),
        (ONE + "expect: [{operations: [{kind: move, worker: decode-0, to: c}]}]", '5:63 SH162 there is no node or slot "c"'),
        (ONE + "expect: [{operations: [{kind: move, worker: decode-0, to: a/2}]}]", '5:63 SH162 there is no node or slot "a/2"'),
        (ONE + "expect: [{workers: {decode-9: {node: a}}}]", '5:25 SH162 there is no worker "decode-9". Did you mean "decode-0"?'),
        (ONE + "samples: {decode-0: {kvUsge: 1}}\n    " + PASS, '5:26 SH162 there is no worker metric "kvUsge". Did you mean "kvUsage"?'),
        (
            ONE + "samples: {decode-0: {kvUsage: 1y}}\n    " + PASS,
            "5:35 SH163 these values can't be read: '1y' is no value. Write a number",
        ),
        (ONE + "notices: [{node: c, kind: gone}]\n    " + PASS, '5:22 SH162 there is no node "c". Write a or b'),
        (ONE + "notices: [{node: a, kind: gone, at: 10s, until: 10s}]\n    " + PASS, "5:53 SH164 the notice ends before it begins"),
        (ONE + "changes: [{at: 5s, node: a, state: lost}]\n    " + PASS, "5:15 SH168 it isn't clear what changes"),
        (
            ONE + "expect: [{at: 7s, operations: []}]",
            "5:19 SH164 7s is not at a step: there is one every 5s. Write 5s or 10s, or change step",
        ),
        (ONE + "expect: [{at: 100d, operations: []}]", "5:19 SH164 100d is step 1,728,000: there are 20,000 at most"),
        (ONE + "step: 0s\n    " + PASS, "5:11 SH164 a step must be more than 0"),
        (ONE + "expect: []", "5:13 SH166 the test expects nothing"),
        (ONE + "expect: [{at: 5s}]", "5:14 SH166 nothing is expected here"),
        (ONE + "expect: [{exactly: false, operations: []}]", "5:14 SH166 with exactly: false, operations: [] can't fail"),
        (ONE + "expect: [{workers: {decode-0: {}}}]", "5:35 SH166 nothing is expected of this worker"),
        (ONE + "start: yesterday\n    " + PASS, "5:12 SH169 'yesterday' is no moment"),
        (ONE + "start: 2026-01-01T00:00:00\n    " + PASS, "5:12 SH169 2026-01-01T00:00:00 has no time zone"),
        (ONE + PASS + "\n  - name: t\n    " + PASS, '6:11 SH161 two tests are called "t"'),
        (ONE + PASS + "\nprofile: {dump: fast}", "6:17 SH169 this size can't be read: 'fast' is not a size"),
        (ONE + PASS + "\nprofile: {dump: 0B}", "6:17 SH169 a rate must be more than 0"),
        ("tests: []\n", "1:8 SH166 the file has no test"),
        ("- tests", "1:1 SH160 this is no mapping"),
        ("tests: []\n---\ntests: []\n", "3:1 SH160 a test file is one mapping, and this has 2 documents"),
        ("tests: [", "SH102"),
        (
            "policies: [leav.yaml]\n" + FLEET + "tests: [{name: t, expect: [{operations: []}]}]",
            '1:12 SH162 there is no policy file "leav.yaml". Did you mean "leave.yaml"?',
        ),
        ("policies: []\n" + FLEET + "tests: [{name: t, expect: [{operations: []}]}]", "1:11 SH162 the list of policies is empty"),
        (
            FLEET + "tests: [{name: t, expect: [{findings: [{subject: decode-0, verdict: pass}]}]}]",
            "2:40 SH167 it isn't said of which policy: there are 3. Add policy: images or leave or shift",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, problem: str):
    assert any(problem in said for said in told(text)), told(text)


@pytest.mark.parametrize(
    ("fleet", "problem"),
    [
        ("{nodes: {a: {}}, workers: {decode-0: {node: a}, decode-1: {node: a}}}", "SH165 a has no free slot for decode-1: it has 1"),
        ("{nodes: {a: {}}, workers: {decode-0: {node: a/1}}}", "SH165 a/1 is taken or isn't there"),
        ("{nodes: {a: {}}, workers: {decode-0: {node: a/0}, decode-1: {node: a/0}}}", "SH165 a/0 is taken or isn't there"),
        ("{nodes: {a: {roles: [prefill]}}, workers: {decode-0: {node: a}}}", "SH165 a takes no decode worker"),
        ("{nodes: {a: {slots: -1}}, workers: {}}", "SH165 a can't have -1 slots of 0 GPUs"),
        ("{nodes: {a/0: {}}, workers: {}}", "SH165 \"a/0\" can't be a node's name"),
        ("{nodes: {a: {}}, workers: {w: {node: a}}}", "SH165 it isn't clear which role w has"),
        ("{nodes: {a: {}}, workers: {decode: {node: a}}}", "SH165 it isn't clear which role decode has"),
        ("{nodes: {a: {}}, workers: {decode-0: {node: a, state: parked}}}", "SH165 a worker that is parked has no node. Remove the node"),
        ("{nodes: {a: {}}, workers: {decode-0: {state: running}}}", "SH165 a worker that is running needs a node. Say which"),
        ("{nodes: {a: {}}, workers: {decode-0: {node: a, memory: 80}}}", "SH113"),
        ("{nodes: {a: {}}, workers: {decode-0: {node: a, memory: 80gb}}}", "SH169 this size can't be read: '80gb' is not a size"),
        ("{nodes: {a: {}}, workers: {decode-0: {images: [{nodes: [b]}]}}}", 'SH162 there is no node "b"'),
    ],
)
def test_fleets_that_cannot_be(fleet: str, problem: str):
    said = told(f"policies: [leave.yaml]\nfleet: {fleet}\ntests: [{{name: t, expect: [{{operations: []}}]}}]")
    assert any(problem in one for one in said), said


def test_a_test_with_a_problem_is_not_run_and_the_others_are():
    result = ran(ONE + "expect: [{at: 7s, operations: []}]\n  - name: u\n    " + PASS)
    assert [r.name for r in result.results] == ["u"]
    assert [p.code for p in result.problems] == ["SH164"]
    assert not result.passed


def test_a_policy_that_is_refused_fails_its_tests_with_its_own_place():
    files = {**FILES, "leave.yaml": LEAVE.replace(b"notices:", b"notice:")}
    result = ran(ONE + PASS, files)
    assert result.results == ()
    assert ("SH111", "repo/leave.yaml", 7) in [(p.code, p.place.file, p.place.line) for p in result.problems if p.place]


def test_without_a_list_all_policies_of_the_folder_are_in_force():
    result = one(FLEET + "tests: [{name: t, expect: [{operations: []}]}]")
    assert result.policies == ("images", "leave", "shift")


def test_a_test_has_its_own_policies_fleet_step_and_start():
    result = one(
        "policies: [shift.yaml]\nstep: 1m\n" + FLEET + "tests:\n  - name: t\n    policies: [leave.yaml]\n    step: 3s\n"
        "    fleet: {graph: g, nodes: {b: {slots: 0}, c: {}}, workers: {decode-1: {node: a}}}\n"
        "    notices: [{node: a, kind: preemption, at: 6s, lead: 10m}]\n"
        "    expect: [{at: 6s, findings: [{subject: decode-0, verdict: act}], operations: [\n"
        "      {kind: move, worker: decode-0, to: c}, {kind: park, worker: decode-1}]}]"
    )
    assert (result.policies, result.steps, result.failures) == (("leave",), 3, ())


def test_names_of_test_files():
    assert is_test_file("a_test.yaml")
    assert is_test_file("a_test.yml")
    assert not is_test_file("a.yaml")
    assert not is_test_file("test.yaml")
