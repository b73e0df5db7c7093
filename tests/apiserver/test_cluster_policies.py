"""Policies as custom resources of a real server: read as Git has them, and told what became of them."""

import copy
import itertools
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import admin, install
from control_plane import ControlPlane, until
from corpus import WHOLE
from shunter.app.clustered import Clustered
from shunter.app.policies import PolicyFeed
from shunter.cluster.api import Api
from shunter.cluster.kinds import PLURALS
from shunter.cluster.policies import ClusterSource
from shunter.cluster.reflector import Reflector, Times
from shunter.lang.load import load
from shunter.model.errors import Rejected, Retry
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import PolicyName
from shunter.model.policy import PolicySet
from shunter.model.units import Share
from test_operations import kubectl

OLD, NEW = "a" * 40, "b" * 40
APPLY = "application/apply-patch+yaml"
QUICK = Times(watch_least=2, watch_most=3, margin=0.7, request=1.5, steady=0.8, doubt=6.0, wait_first=0.05, wait_most=0.4)
NAMESPACES = itertools.count()


class Git:
    """What Argo CD does with a repository: server-side apply, each resource with the commit that it came from."""

    def __init__(self, plane: ControlPlane, namespace: str = "") -> None:
        self.plane, self.namespace = plane, namespace or f"policies-{next(NAMESPACES)}"
        plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})

    def where(self, name: str) -> str:
        return f"/apis/shunter.dev/v1alpha1/namespaces/{self.namespace}/{PLURALS[WHOLE[name]['kind']]}/{name}"

    def sync(self, name: str, commit: str | None = OLD, **spec: Any) -> Any:
        document = copy.deepcopy(WHOLE[name])
        document["spec"].update(spec)
        if commit:
            document["metadata"]["annotations"] = {"shunter.dev/commit": commit}
        return self.plane.must("PATCH", f"{self.where(name)}?fieldManager=argocd-controller&force=true", document, APPLY)

    def get(self, name: str) -> Any:
        return self.plane.must("GET", self.where(name))

    def prune(self, name: str) -> None:
        self.plane.must("DELETE", self.where(name))

    def conditions(self, name: str) -> dict[str, str]:
        return {c["type"]: f"{c['status']} {c['reason']}" for c in self.get(name).get("status", {}).get("conditions", [])}

    def condition(self, name: str, kind: str) -> Any:
        return next(c for c in self.get(name)["status"]["conditions"] if c["type"] == kind)


@pytest.fixture
def git(plane: ControlPlane) -> Git:
    return Git(plane)


@pytest.fixture
def source(plane: ControlPlane, git: Git) -> Iterator[ClusterSource]:
    found = source_at(plane, git.namespace)
    yield found
    found.close()


def source_at(plane: ControlPlane, namespace: str, **options: Any) -> ClusterSource:
    return ClusterSource(lambda: Api(admin(plane)), namespace, times=QUICK, **{"settle_s": 1.5, "quiet_s": 0.1, **options})


def holds(source: ClusterSource, done: Any) -> PolicySet:
    """The policy set, once it is what is waited for."""

    def look() -> PolicySet | None:
        try:
            found = load(source.read(source.fetch()), None)
        except Retry:
            return None
        return found if done(found) else None

    return until(look, 10.0)


def names(policies: PolicySet) -> set[str]:
    return {policy.name for policy in policies.policies}


def finding(policy: str, verdict: Verdict, subject: str = "w0", reason: str = "kvUsage 0.7 of 0.6") -> Finding:
    return Finding(policy=PolicyName(policy), subject=subject, verdict=verdict, lane="voluntary", reason=reason)


# -- reading


def test_what_is_read_is_what_git_says(git: Git, source: ClusterSource) -> None:
    for name in WHOLE:
        git.sync(name)
    policies = holds(source, lambda found: len(found.policies) == len(WHOLE))
    assert policies.problems == ()
    assert policies.commit.startswith(f"{OLD}+cluster:")
    for file in source.read(policies.commit).files:
        document = json.loads(file.data)
        name = document["metadata"]["name"]
        assert document == WHOLE[name]
        assert file.path == f"{PLURALS[document['kind']]}/{name}.yaml"


def test_an_edit_by_hand_is_another_commit_though_it_claims_the_same(git: Git, source: ClusterSource) -> None:
    git.sync("images")
    before = holds(source, lambda found: found.policies)
    git.plane.must("PATCH", git.where("images"), {"spec": {"every": "7m"}}, "application/merge-patch+json")
    after = holds(source, lambda found: found.commit != before.commit)
    assert after.commit.startswith(f"{OLD}+cluster:")
    assert after.digest != before.digest
    git.sync("images")
    assert holds(source, lambda found: found.commit != after.commit).commit == before.commit, "and back again"


def test_without_the_annotation_it_is_the_content_that_names_it(git: Git, source: ClusterSource) -> None:
    git.sync("images", None)
    assert holds(source, lambda found: found.policies).commit.startswith("cluster:")


def test_half_a_sync_is_not_taken(git: Git, source: ClusterSource) -> None:
    git.sync("images", OLD)
    git.sync("budget", OLD)
    before = holds(source, lambda found: len(found.policies) == 2)
    git.sync("images", NEW, every="9m")
    time.sleep(0.5)
    assert source.fetch() == before.commit, "the budget is still of the older commit"
    git.sync("budget", NEW)
    after = holds(source, lambda found: found.commit != before.commit)
    assert after.commit.startswith(f"{NEW}+cluster:")


def test_a_sync_that_stops_in_the_middle_is_taken_as_it_is_after_a_while(git: Git, source: ClusterSource) -> None:
    git.sync("images", OLD)
    git.sync("budget", OLD)
    before = holds(source, lambda found: len(found.policies) == 2)
    began = time.monotonic()
    git.sync("images", NEW, every="9m")
    after = holds(source, lambda found: found.commit != before.commit)
    assert 1.0 < time.monotonic() - began < 4.0
    assert after.commit.startswith("cluster:")


def test_ac37_a_policy_that_is_replaced_by_deleting_it_is_never_absent(plane: ControlPlane, git: Git) -> None:
    """`kubectl replace --force`, or Argo CD's Replace with Force: for a moment a budget isn't there, and nothing may come of that."""
    source = source_at(plane, git.namespace, quiet_s=1.0, settle_s=10.0)
    stop, seen = threading.Event(), set[tuple[str, ...]]()

    def look() -> None:
        while not stop.is_set():
            seen.add(tuple(sorted(names(load(source.read(source.fetch()), None)))))

    try:
        git.sync("images")
        git.sync("budget")
        before = holds(source, lambda found: len(found.policies) == 2)
        looking = threading.Thread(target=look)
        looking.start()
        try:
            for most in ("20%", "30%", "40%"):
                git.prune("budget")
                git.sync("budget", maxConcurrent=most)
            after = holds(source, lambda found: found.commit != before.commit)
        finally:
            stop.set()
            looking.join()
    finally:
        source.close()
    assert seen == {("budget", "images")}
    assert {p.document.spec.max_concurrent for p in after.policies if p.name == "budget"} == {Share(0.4)}  # type: ignore[union-attr]


def test_what_is_pruned_is_withdrawn(git: Git, source: ClusterSource) -> None:
    git.sync("images")
    git.sync("budget")
    holds(source, lambda found: len(found.policies) == 2)
    git.prune("images")
    assert names(holds(source, lambda found: len(found.policies) == 1)) == {"budget"}


def test_a_policy_that_waits_for_its_finalizer_is_withdrawn_already(git: Git, source: ClusterSource) -> None:
    git.sync("images")
    holds(source, lambda found: found.policies)
    git.plane.must("PATCH", git.where("images"), {"metadata": {"finalizers": ["example.com/x"]}}, "application/merge-patch+json")
    git.prune("images")
    holds(source, lambda found: not found.policies)
    git.plane.must("PATCH", git.where("images"), {"metadata": {"finalizers": None}}, "application/merge-patch+json")


def test_other_namespaces_are_none_of_its_business(git: Git, source: ClusterSource) -> None:
    other = Git(git.plane)
    other.sync("budget")
    git.sync("images")
    assert names(holds(source, lambda found: found.policies)) == {"images"}


def test_a_change_is_told(git: Git, source: ClusterSource) -> None:
    told = threading.Event()
    source.fetch()
    end = source.watch(told.set)
    told.clear()
    git.sync("images")
    assert told.wait(30.0)
    assert names(holds(source, lambda found: found.policies)) == {"images"}
    end()
    told.clear()
    git.sync("budget")
    holds(source, lambda found: len(found.policies) == 2)
    assert not told.wait(0.5)


async def test_the_engine_keeps_the_last_policies_while_the_server_is_away(own_plane: ControlPlane) -> None:
    source = source_at(own_plane, "policies-away", patience_s=3.0)
    try:
        feed = PolicyFeed(source, time.time)
        await feed.refresh()
        assert feed.problem is not None
        assert feed.problem.code == "SH252", "the kinds aren't installed yet"
        install(own_plane)
        git = Git(own_plane, "policies-away")
        git.sync("images")
        holds(source, lambda found: found.policies)
        assert await feed.refresh()
        assert feed.current is not None
        assert names(feed.current) == {"images"}
        own_plane.kill_api()
        until(lambda: _problem(source) == "SH251", 10.0)
        assert not await feed.refresh()
        assert names(feed.current) == {"images"}
        assert feed.problem is not None
        assert "no answer" in feed.problem.what
        own_plane.start_api()
        own_plane.wait_ready()
        git.sync("budget")
        holds(source, lambda found: len(found.policies) == 2)
        assert await feed.refresh()
        assert feed.problem is None
    finally:
        source.close()


async def test_an_engine_that_starts_while_the_server_is_away_has_what_was_in_force(own_plane: ControlPlane, tmp_path: Path) -> None:
    install(own_plane)
    git = Git(own_plane)
    git.sync("images")
    first = Clustered(source_at(own_plane, git.namespace), tmp_path / "kept")
    feed = PolicyFeed(first, time.time)
    assert await feed.refresh()
    git.sync("images", when="worker.kvusage < 1")  # refused: an older version is in force from now on
    until(lambda: first.fetch() != feed.current.commit)
    await feed.refresh()
    assert feed.current is not None
    assert feed.current.problems
    first.close()
    own_plane.kill_api()
    second = Clustered(source_at(own_plane, git.namespace, patience_s=1.0), tmp_path / "kept")
    later = PolicyFeed(second, time.time)
    try:
        assert await later.refresh()
        assert later.current is not None
        assert later.current.digest == feed.current.digest
        assert later.problem is not None
        assert later.problem.code in ("SH251", "SH223")
    finally:
        second.close()


async def test_policies_that_move_to_another_namespace_are_in_force_all_the_while(plane: ControlPlane, tmp_path: Path) -> None:
    """As docs/how-to/upgrade-and-roll-back.md has it: applied there, the engine started anew with that namespace, the old ones deleted."""
    old, new = Git(plane), Git(plane)
    for git in (old, new):
        git.sync("images")
        git.sync("budget")
    first = Clustered(source_at(plane, old.namespace), tmp_path / "kept")
    before = PolicyFeed(first, time.time)
    assert await before.refresh()
    first.close()
    second = Clustered(source_at(plane, new.namespace), tmp_path / "kept")
    after = PolicyFeed(second, time.time)
    try:
        assert await after.refresh()
        assert before.current is not None
        assert after.current is not None
        assert (after.current.digest, after.problem) == (before.current.digest, None)
        for name in ("images", "budget"):
            old.prune(name)
        new.sync("images", when="worker.kvusage < 1")  # refused: the version of before stays
        until(lambda: second.fetch() != after.current.commit, 10.0)
        assert await after.refresh()
        assert (names(after.current), after.problem) == ({"images", "budget"}, None)
    finally:
        second.close()


async def test_an_engine_that_is_sent_where_no_policies_are_has_none(plane: ControlPlane, tmp_path: Path) -> None:
    """An empty namespace is an answer, as an empty branch is: nothing of another one stays in force."""
    old, new = Git(plane), Git(plane)
    old.sync("images")
    first = Clustered(source_at(plane, old.namespace), tmp_path / "kept")
    assert await PolicyFeed(first, time.time).refresh()
    first.close()
    second = Clustered(source_at(plane, new.namespace), tmp_path / "kept")
    feed = PolicyFeed(second, time.time)
    try:
        await feed.refresh()
        assert feed.current is not None
        assert (names(feed.current), feed.problem) == (set(), None)
    finally:
        second.close()


def _problem(source: ClusterSource) -> str:
    try:
        source.fetch()
    except Retry as error:
        return error.problem.code
    return ""


def test_a_thread_that_failed_begins_anew(
    git: Git, source: ClusterSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that we know of makes it fail; should it, the engine must not go on with an old copy for good."""
    told = threading.Event()
    git.sync("images")
    holds(source, lambda found: found.policies)
    source.watch(told.set)

    def broken(*_: object) -> None:
        raise AssertionError("what nobody thought of")

    with monkeypatch.context() as patch:
        patch.setattr(Reflector, "_apply", broken)  # for whatever the watch that goes on brings
        git.sync("images", every="9m")
        until(lambda: "what nobody thought of" in caplog.text)
    told.clear()
    git.sync("budget")
    assert names(holds(source, lambda found: len(found.policies) == 2)) == {"images", "budget"}
    assert told.wait(30.0), "and whoever watches is still told"


def test_only_the_present_can_be_read(source: ClusterSource) -> None:
    with pytest.raises(Rejected) as raised:
        source.read("cluster:abc")
    assert raised.value.problem.code == "SH259"


# -- telling


def test_status_says_what_became_of_it(git: Git, source: ClusterSource) -> None:
    for name, mode in (("shift", "enforce"), ("images", "preview"), ("rebalance", "off"), ("budget", "enforce")):
        git.sync(name, mode=mode)
    policies = holds(source, lambda found: len(found.policies) == 4)
    findings = [
        finding("shift", Verdict.PASS, "tiny"),
        finding("shift", Verdict.ACT, "w3", "prefill waits"),
        finding("shift", Verdict.ACT, "w4"),
        finding("images", Verdict.INCONCLUSIVE, "w1", "worker.kvUsage: no data"),
    ]
    source.report(policies, findings, 1_800_000_000.0)
    until(lambda: all(git.get(name).get("status") for name in ("shift", "images", "rebalance", "budget")))
    assert git.conditions("shift") == {"Accepted": "True InForce", "Active": "True Enforced", "Degraded": "False AsWanted"}
    assert git.conditions("images") == {"Accepted": "True InForce", "Active": "False Preview", "Degraded": "True InputsMissing"}
    assert git.conditions("rebalance")["Active"] == "False Off"
    assert "w1: worker.kvUsage: no data" in git.condition("images", "Degraded")["message"]
    status = git.get("shift")["status"]
    assert status["observedGeneration"] == git.get("shift")["metadata"]["generation"]
    assert status["commit"] == OLD
    assert status["counts"] == {"act": 2, "hold": 0, "inconclusive": 0, "pass": 1}
    assert status["lastDecision"] == {"at": "2027-01-15T08:00:00Z", "verdict": "act", "subject": "w3", "reason": "prefill waits"}
    assert "counts" not in git.get("budget")["status"], "a budget decides nothing"


def test_kubectl_shows_what_became_of_it(plane: ControlPlane, git: Git, source: ClusterSource) -> None:
    git.sync("shift", mode="enforce")
    git.sync("images", when="1 +")
    policies = holds(source, lambda found: found.policies)
    source.report(policies, [finding("shift", Verdict.ACT, "w3", "prefill waits")], 1_800_000_000.0)
    until(lambda: git.conditions("shift") and git.conditions("images"))
    shown = kubectl(plane, "get", "shunter", "-n", git.namespace, "-o", "wide")
    rows = {line.split()[0].partition("/")[2]: line.split()[1:] for line in shown.splitlines() if "/" in line}
    assert {name: row[:3] for name, row in rows.items()} == {"shift": ["True", "True", "False"], "images": ["False", "False", "True"]}
    assert rows["shift"][3:-1] == ["act", "1", "0", "0", OLD]
    heads = next(line.split() for line in shown.splitlines() if line.startswith("NAME"))
    assert heads == ["NAME", "ACCEPTED", "ACTIVE", "DEGRADED", "SAYS", "ACT", "HOLD", "UNKNOWN", "COMMIT", "AGE"]


def test_status_tells_of_a_refused_version_and_of_its_mending(git: Git, source: ClusterSource) -> None:
    git.sync("images")
    first = holds(source, lambda found: found.policies)
    source.report(first, [], 1_800_000_000.0)
    until(lambda: git.conditions("images"))
    made = git.sync("images", NEW, when="worker.kvusage < 0.9")
    commit = until(lambda: (found := source.fetch()) != first.commit and found)
    second = load(source.read(commit), first)
    source.report(second, [], 1_800_000_060.0)
    until(lambda: git.conditions("images")["Accepted"] == "False Refused")
    status = git.get("images")["status"]
    assert status["observedGeneration"] == made["metadata"]["generation"] == 2
    assert git.conditions("images")["Degraded"] == "True OlderVersion"
    assert status["commit"] == OLD, "what is in force is the older one"
    accepted = git.condition("images", "Accepted")
    assert "SH114" in accepted["message"] or "kvusage" in accepted["message"]
    assert accepted["message"].startswith("line ")
    assert accepted["lastTransitionTime"] == "2027-01-15T08:01:00Z"
    assert git.condition("images", "Active")["lastTransitionTime"] == "2027-01-15T08:00:00Z", "that is as it was"
    git.sync("images", NEW, when="worker.kvUsage < 0.8")
    commit = until(lambda: (found := source.fetch()) not in (first.commit, second.commit) and found)
    source.report(load(source.read(commit), second), [], 1_800_000_120.0)
    until(lambda: git.conditions("images")["Accepted"] == "True InForce")
    assert git.get("images")["status"]["commit"] == NEW
    assert git.conditions("images")["Degraded"] == "False AsWanted"


def test_a_new_policy_that_is_refused_is_degraded_and_nothing_of_it_in_force(git: Git, source: ClusterSource) -> None:
    git.sync("images", when="1 +")
    commit = until(lambda: (found := source.fetch()) and source.read(found).files and found)
    source.report(load(source.read(commit), None), [], 1_800_000_000.0)
    until(lambda: git.conditions("images"))
    assert git.conditions("images") == {"Accepted": "False Refused", "Active": "False NotInForce", "Degraded": "True Refused"}
    assert "commit" not in git.get("images")["status"]


def test_nothing_is_written_where_nothing_changed(git: Git, source: ClusterSource) -> None:
    git.sync("shift")
    policies = holds(source, lambda found: found.policies)
    source.report(policies, [finding("shift", Verdict.ACT, "w1", "0.71 of 0.6")], 1_800_000_000.0)
    until(lambda: source._running is not None and source._running.writer.writes == 1, 5.0)  # and knows what it has written
    version = git.get("shift")["metadata"]["resourceVersion"]
    for tick in range(20):  # the figures of the reason change, the counts change, and what it says doesn't
        extra = [finding("shift", Verdict.PASS, f"w{n}") for n in range(2, 2 + tick % 3)]
        source.report(policies, [finding("shift", Verdict.ACT, "w1", f"0.{tick} of 0.6"), *extra], 1_800_000_001.0 + tick)
        time.sleep(0.02)
    assert git.get("shift")["metadata"]["resourceVersion"] == version
    source.report(policies, [finding("shift", Verdict.HOLD, "w1", "cooldown")], 1_800_000_100.0)
    until(lambda: git.get("shift")["status"]["lastDecision"]["verdict"] == "hold")


def test_the_next_engine_goes_on_from_the_status_that_stands(plane: ControlPlane, git: Git, source: ClusterSource) -> None:
    git.sync("shift")
    policies = holds(source, lambda found: found.policies)
    source.report(policies, [finding("shift", Verdict.ACT)], 1_800_000_000.0)
    until(lambda: git.conditions("shift"))
    version = git.get("shift")["metadata"]["resourceVersion"]
    other = source_at(plane, git.namespace)
    try:
        policies = holds(other, lambda found: found.policies)
        other.report(policies, [finding("shift", Verdict.ACT)], 1_900_000_000.0)
        time.sleep(0.5)
        assert git.get("shift")["metadata"]["resourceVersion"] == version, "not even the times differ"
    finally:
        other.close()


def test_status_never_touches_what_git_says(git: Git, source: ClusterSource) -> None:
    """Argo CD applies again and finds nothing to do; another's condition stays."""
    git.sync("images")
    theirs = {
        "type": "Accepted", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }  # fmt: skip
    body = {
        "apiVersion": "shunter.dev/v1alpha1",
        "kind": "CheckpointPolicy",
        "metadata": {"name": "images"},
        "status": {"observedGeneration": 1, "conditions": [theirs]},
    }
    git.plane.must("PATCH", f"{git.where('images')}/status?fieldManager=somebody", body, APPLY)
    policies = holds(source, lambda found: found.policies)
    source.report(policies, [], 1_800_000_000.0)
    until(lambda: "Degraded" in git.conditions("images"))
    before = git.get("images")
    assert before["spec"] == WHOLE["images"]["spec"]
    assert before["metadata"]["generation"] == 1
    assert {m["manager"]: m.get("subresource", "") for m in before["metadata"]["managedFields"]} == {
        "argocd-controller": "", "somebody": "status", "shunter-engine": "status",
    }  # fmt: skip
    git.sync("images")
    assert git.get("images")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_one_of_the_same_name_made_anew_gets_no_old_status(git: Git, source: ClusterSource) -> None:
    first = git.sync("images")
    git.sync("images", every="9m")  # generation 2
    policies = holds(source, lambda found: found.policies and source.read(found.commit).files[0].data.count(b"9m"))
    git.prune("images")
    assert git.sync("images")["metadata"]["uid"] != first["metadata"]["uid"]
    source.report(policies, [], 1_800_000_000.0)  # of the reading before
    time.sleep(0.5)
    found = git.get("images")
    told = found.get("status")
    assert told is None or told["observedGeneration"] == found["metadata"]["generation"]
    assert source.status_problem is None
