"""Resources as files and a commit, and the status that they get."""

import json
from typing import Any

import pytest
from shunter.cluster.reading import git_commit, read
from shunter.cluster.status import PolicyStatus
from shunter.cluster.telling import gather, statuses
from shunter.lang.load import load
from shunter.model.finding import Chapter, Finding, Findings, Verdict
from shunter.model.ids import PolicyName

OLD, NEW = "a" * 40, "b" * 64
SPEC = {"workers": {"all": True}, "every": "5m"}


def images(name: str = "images", commit: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
    meta = {"name": name, "namespace": "n", "uid": f"uid-{name}", "generation": 3, "resourceVersion": "9", "managedFields": [{}]}
    meta["annotations"] = {"shunter.dev/commit": commit, "argocd.argoproj.io/tracking-id": "x"} if commit else {}
    return "CheckpointPolicy", {"metadata": {**meta, **more.pop("metadata", {})}, "spec": SPEC, **more}


def test_a_file_holds_what_git_says_and_nothing_of_the_servers() -> None:
    [file] = read([images(commit=OLD, metadata={"labels": {"team": "a"}}, status={"observedGeneration": 1})]).revision.files
    assert file.path == "checkpointpolicies/images.yaml"
    assert json.loads(file.data) == {
        "apiVersion": "shunter.dev/v1alpha1",
        "kind": "CheckpointPolicy",
        "metadata": {"name": "images", "labels": {"team": "a"}},
        "spec": SPEC,
    }


@pytest.mark.parametrize(
    ("commits", "wanted", "mixed"),
    [((OLD, OLD), OLD, False), ((NEW, NEW), NEW, False), ((OLD, NEW), "", True), ((OLD, ""), "", False), (("", ""), "", False),
     (("main", "main"), "", False)],
)  # fmt: skip
def test_a_commit_is_claimed_only_where_all_agree(commits: tuple[str, str], wanted: str, mixed: bool) -> None:
    reading = read([images("a", commits[0]), images("b", commits[1])])
    assert git_commit(reading.revision.commit) == wanted
    assert reading.revision.commit.startswith(f"{wanted}+cluster:" if wanted else "cluster:")
    assert reading.mixed is mixed


def test_order_and_status_change_nothing_and_a_word_changes_the_commit() -> None:
    first = read([images("a", OLD), images("b", OLD)]).revision.commit
    assert read([images("b", OLD, status={"x": 1}), images("a", OLD, metadata={"resourceVersion": "12"})]).revision.commit == first
    kind, other = images("b", OLD)
    assert read([images("a", OLD), (kind, {**other, "spec": {**SPEC, "every": "6m"}})]).revision.commit != first


def test_one_that_is_being_deleted_is_gone() -> None:
    assert read([images(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})]).revision.files == ()


def told(findings: list[Finding], before: dict[str, Any] | None = None, halted: str = "") -> PolicyStatus:
    reading = read([images(commit=OLD)])
    path = "checkpointpolicies/images.yaml"
    return statuses(
        reading, load(reading.revision, None), gather(findings), lambda _path, _resource: before or {}, 1_800_000_000.0, halted
    )[path]


def finding(verdict: Verdict, subject: str) -> Finding:
    return Finding(policy=PolicyName("images"), subject=subject, verdict=verdict, lane="voluntary", reason=f"of {subject}")


def test_the_weightiest_is_told_and_the_first_of_them() -> None:
    status = told([finding(v, s) for v, s in ((Verdict.PASS, "a"), (Verdict.HOLD, "b"), (Verdict.HOLD, "c"), (Verdict.INCONCLUSIVE, "d"))])
    assert status.last_decision is not None
    assert (status.last_decision.verdict, status.last_decision.subject, status.last_decision.reason) == ("hold", "b", "of b")
    assert status.counts is not None
    assert (status.counts.act, status.counts.hold, status.counts.inconclusive, status.counts.pass_) == (0, 2, 1, 1)


@pytest.mark.parametrize(("verdicts", "degraded"), [((Verdict.INCONCLUSIVE,) * 2, "True"), ((Verdict.INCONCLUSIVE, Verdict.PASS), "False")])
def test_only_one_that_can_decide_nothing_is_degraded(verdicts: tuple[Verdict, ...], degraded: str) -> None:
    status = told([finding(verdict, f"w{n}") for n, verdict in enumerate(verdicts)])
    assert {c.type: c.status for c in status.conditions} == {"Accepted": "True", "Active": "True", "Degraded": degraded}


def test_what_the_engine_cannot_do_is_not_said_to_be_done() -> None:
    active = {c.type: c for c in told([], halted="SH531 the disk is full").conditions}["Active"]
    assert (active.status, active.reason) == ("False", "Halted")
    assert "SH531 the disk is full" in active.message
    meta = {"name": "save", "uid": "u", "generation": 1}
    saving = {"metadata": meta, "spec": {"workers": {"all": True}, "notices": ["preemption"], "reserve": "5s"}}
    reading = read([("PreemptionPolicy", saving)])
    found = statuses(reading, load(reading.revision, None), {}, lambda _path, _resource: {}, 1.0, "SH531 the disk is full")
    assert {c.type: c.status for c in found["preemptionpolicies/save.yaml"].conditions}["Active"] == "True", "a node that goes doesn't wait"


def test_nothing_decided_is_nothing_told() -> None:
    status = told([])
    assert status.counts is None
    assert status.last_decision is None
    assert status.observed_generation == 3
    assert status.commit == OLD


def test_a_long_reason_is_cut() -> None:
    long = Finding(policy=PolicyName("images"), subject="w", verdict=Verdict.ACT, lane="voluntary", reason="x" * 9_000)
    status = told([long])
    assert status.last_decision is not None
    assert len(status.last_decision.reason) == 1024


def test_of_each_policy_one_finding_is_told_the_first_of_the_weightiest():
    told: list[int] = []

    def chapter(policy: str, *verdicts: Verdict) -> Chapter:
        own = [
            Finding(policy=PolicyName(policy), subject=f"w{n}", verdict=v, lane="voluntary", reason=f"{n}") for n, v in enumerate(verdicts)
        ]

        def tell(place: int) -> Finding:
            told.append(place)
            return own[place]

        return Chapter(PolicyName(policy), [f.subject for f in own], own, tell)

    made = [chapter("a", Verdict.PASS, Verdict.HOLD, Verdict.HOLD), chapter("b"), chapter("c", Verdict.INCONCLUSIVE, Verdict.PASS)]
    found = gather(Findings(lambda: made))
    assert {name: (said.counts, said.first and said.first.subject) for name, said in found.items()} == {
        "a": ({Verdict.PASS: 1, Verdict.HOLD: 2}, "w1"),
        "c": ({Verdict.INCONCLUSIVE: 1, Verdict.PASS: 1}, "w0"),
    }
    assert told == [1, 0]
    assert found["c"].blind is False
