"""Small policies and test files, as bytes, and what comes of them."""

from shunter.cases.run import FileResult, TestResult, run_file
from shunter.lang.cel import CelRules

RULES = CelRules()

LEAVE = b"""
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: leave}
spec:
  workers: {all: true}
  notices: [preemption, gone]
"""
SHIFT = b"""
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: shift}
spec:
  workers: {role: decode}
  metrics:
    wait: {query: prefill_wait_seconds, unit: seconds, maxAge: 10s, onMissing: 0}
    other: {query: other_seconds, unit: seconds}
  from: decode
  to: prefill
  when: metrics.wait > 2 && pools.decode.kvUsage < 0.5 && metrics.other < 5
  for: 20s
  sessions: drain
  cooldown: 1m
"""
IMAGES = b"""
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec:
  workers: {role: decode}
  every: 1m
  when: worker.kvTokens > 10
  copies: 2
"""
FILES = {"leave.yaml": LEAVE, "shift.yaml": SHIFT, "images.yaml": IMAGES}


def ran(text: str, files: dict[str, bytes] = FILES) -> FileResult:
    """The result of a test file beside `files`, in the folder `repo`."""
    return run_file("repo/x_test.yaml", text.encode(), files, RULES)


def one(text: str, files: dict[str, bytes] = FILES) -> TestResult:
    """The result of the only test of a file that has nothing wrong with it."""
    result = ran(text, files)
    assert result.problems == ()
    assert len(result.results) == 1
    return result.results[0]


def told(text: str, files: dict[str, bytes] = FILES) -> list[str]:
    """The problems of a file, each as `line:column code what. remedy`."""
    result = ran(text, files)
    assert not result.passed
    return [f"{p.place.line}:{p.place.column} {p.code} {p.what}. {p.remedy}" for p in result.problems if p.place]


def differences(text: str, files: dict[str, bytes] = FILES) -> list[tuple[str, str]]:
    """What was expected and what was found, for each failure of the only test."""
    return [(failure.expected, failure.found) for failure in one(text, files).failures]
