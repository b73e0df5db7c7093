"""Policies from a source into force: the last good set is never lost, and a new one comes whole or not at all."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from shunter.app.policies import PolicyFeed
from shunter.app.settings import PoliciesSettings
from shunter.app.sources import source_of
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import Commit
from shunter.model.source import Revision, SourceFile
from shunter.source.memory import Remembered

AWAY = Problem(code="SH203", what="the remote didn't answer", remedy="Check it")
GOOD = b"""apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: NAME}
spec: {workers: {all: true}, every: 5m}
"""
BAD = GOOD.replace(b"every", b"evry")


def files(**content: bytes) -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(path=f"{name}.yaml", blob=str(hash(data)), data=data.replace(b"NAME", name.encode())) for name, data in content.items()
    )


class Fake:
    """A source whose newest commit, content and failures are set by the test."""

    def __init__(self, **content: bytes) -> None:
        self.newest, self.content = "1", files(**content)
        self.fetch_fails: Exception | None = None
        self.read_fails: Exception | None = None
        self.reads: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def push(self, commit: str, **content: bytes) -> None:
        self.newest, self.content = commit, files(**content)

    def fetch(self) -> str:
        if self.fetch_fails:
            raise self.fetch_fails
        return self.newest

    def read(self, revision: str) -> Revision:
        self.reads.append(revision)
        assert self.go_on.wait(10)
        if self.read_fails:
            raise self.read_fails
        return Revision(commit=Commit(revision), committed_at=None, files=self.content)


def names(feed: PolicyFeed) -> list[str]:
    assert feed.current is not None
    return [policy.name for policy in feed.current.policies]


async def test_a_new_commit_replaces_the_set_and_the_same_one_is_not_read_again() -> None:
    source = Fake(a=GOOD)
    feed = PolicyFeed(source, lambda: 100.0)
    assert (feed.current, feed.age(100.0)) == (None, None)
    assert await feed.refresh()
    first = feed.current
    assert not await feed.refresh()
    assert feed.current is first
    source.push("2", a=GOOD, b=GOOD)
    assert await feed.refresh()
    assert (names(feed), source.reads) == (["a", "b"], ["1", "2"])


@pytest.mark.parametrize("where", ["fetch_fails", "read_fails"])
async def test_while_the_source_is_away_the_last_set_stays_and_grows_old(where: str) -> None:
    source, now = Fake(a=GOOD), [100.0]
    feed = PolicyFeed(source, lambda: now[0])
    await feed.refresh()
    source.push("2", b=GOOD)
    setattr(source, where, Retry(AWAY))
    now[0] = 160.0
    assert not await feed.refresh()
    assert (names(feed), feed.problem, feed.age(now[0])) == (["a"], AWAY, 60.0)
    setattr(source, where, None)
    assert await feed.refresh()
    assert (names(feed), feed.problem, feed.age(now[0])) == (["b"], None, 0.0)


async def test_a_source_that_never_answered() -> None:
    source = Fake()
    source.fetch_fails = Rejected(AWAY)
    feed = PolicyFeed(source, lambda: 100.0)
    assert not await feed.refresh()
    assert (feed.current, feed.problem, feed.age(200.0)) == (None, AWAY, None)


async def test_a_bad_file_keeps_its_last_version_and_the_others_go_on() -> None:
    source = Fake(a=GOOD, b=GOOD)
    feed = PolicyFeed(source, lambda: 100.0)
    await feed.refresh()
    source.push("2", a=BAD, c=GOOD)
    assert await feed.refresh()
    assert feed.current is not None
    assert [(policy.name, policy.commit) for policy in feed.current.policies] == [("a", "1"), ("c", "2")]
    assert {(problem.code, problem.place.file if problem.place else "") for problem in feed.current.problems} == {("SH111", "a.yaml")}
    assert feed.problem is None


async def test_readers_see_the_old_set_until_the_new_one_is_whole() -> None:
    source = Fake(a=GOOD)
    feed = PolicyFeed(source, lambda: 100.0)
    await feed.refresh()
    source.push("2", b=GOOD)
    source.go_on.clear()
    refreshing = asyncio.create_task(feed.refresh())
    while source.reads != ["1", "2"]:
        await asyncio.sleep(0)
    assert names(feed) == ["a"]
    source.go_on.set()
    assert await asyncio.wait_for(refreshing, 10)
    assert names(feed) == ["b"]


class Lasting(Fake):
    """A source that remembers, all of whose commits stay readable."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: dict[str, tuple[SourceFile, ...]] = {}
        self.kept: Remembered | None = None

    def push(self, commit: str, **content: bytes) -> None:
        self.newest, self.commits[commit] = commit, files(**content)

    def read(self, revision: str) -> Revision:
        if self.read_fails:
            raise self.read_fails
        return Revision(commit=Commit(revision), committed_at=None, files=self.commits[revision], signed_by=f"of {revision}")

    def remembered(self) -> Remembered | None:
        return self.kept

    def remember(self, remembered: Remembered) -> None:
        self.kept = remembered


async def test_after_a_start_while_the_source_is_away_the_last_set_is_in_force_and_as_old_as_it_is() -> None:
    source = Lasting()
    source.push("1", a=GOOD)
    await PolicyFeed(source, lambda: 100.0).refresh()
    source.fetch_fails = Retry(AWAY)
    feed = PolicyFeed(source, lambda: 160.0)
    assert await feed.refresh()
    assert (names(feed), feed.problem, feed.age(160.0), feed.signed_by) == (["a"], AWAY, 60.0, "of 1")
    assert not await feed.refresh()
    source.fetch_fails = None
    source.push("2", b=GOOD)
    assert await feed.refresh()
    assert (names(feed), feed.problem, feed.age(160.0), feed.signed_by) == (["b"], None, 0.0, "of 2")


async def test_a_start_does_not_wait_for_a_source_that_hangs_and_takes_its_answer_when_it_comes() -> None:
    class Hanging(Lasting):
        def fetch(self) -> str:
            assert self.go_on.wait(10)
            return super().fetch()

    source = Hanging()
    source.push("1", a=GOOD)
    await PolicyFeed(source, lambda: 100.0).refresh()
    source.push("2", b=GOOD)
    source.go_on.clear()
    feed = PolicyFeed(source, lambda: 160.0, patience_s=0.01)
    assert await feed.refresh()
    assert (names(feed), feed.age(160.0)) == (["a"], 60.0)
    assert feed.problem is not None
    assert feed.problem.code == "SH223"
    going_on = asyncio.create_task(feed.refresh())
    source.go_on.set()
    assert await asyncio.wait_for(going_on, 10)
    assert (names(feed), feed.problem, feed.age(160.0)) == (["b"], None, 0.0)


async def test_a_file_that_was_refused_keeps_its_last_version_across_a_restart() -> None:
    source = Lasting()
    source.push("1", a=GOOD, b=GOOD)
    feed = PolicyFeed(source, lambda: 100.0)
    await feed.refresh()
    source.push("2", a=BAD, b=GOOD)
    await feed.refresh()
    source.push("3", a=BAD, b=BAD)
    await feed.refresh()
    before = feed.current
    for fails in (None, Retry(AWAY)):
        source.fetch_fails = fails
        again = PolicyFeed(source, lambda: 100.0)
        assert await again.refresh()
        assert again.current == before
        assert [(p.name, p.commit) for p in again.current.policies] == [("a", "1"), ("b", "2")]


async def test_what_was_in_force_counts_and_not_what_was_refused_since() -> None:
    """A commit that holds too much, say: it was fetched, and never came into force."""
    source = Lasting()
    source.push("1", a=GOOD)
    feed = PolicyFeed(source, lambda: 100.0)
    await feed.refresh()
    source.push("2", b=GOOD)
    source.read_fails = Rejected(AWAY)
    await feed.refresh()
    source.read_fails = None
    source.fetch_fails = Retry(AWAY)
    again = PolicyFeed(source, lambda: 100.0)
    await again.refresh()
    assert names(again) == ["a"]


def test_a_source_that_can_not_tell_of_changes_is_polled() -> None:
    feed = PolicyFeed(Fake(), lambda: 100.0)
    feed.watch(lambda: None)()
    assert feed.problem is None


def test_watching_that_fails_is_a_problem_not_an_end() -> None:
    class Broken(Fake):
        def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
            raise Retry(AWAY)

    feed = PolicyFeed(Broken(), lambda: 100.0)
    feed.watch(lambda: None)()
    assert feed.problem == AWAY


async def test_a_directory_is_a_source(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_bytes(GOOD.replace(b"NAME", b"a"))
    feed = PolicyFeed(source_of(PoliciesSettings(directory=folder), tmp_path / "cache"), lambda: 100.0)
    assert await feed.refresh()
    assert feed.current is not None
    assert feed.current.commit.startswith("directory:")
    assert not await feed.refresh()
    (folder / "b.yaml").write_bytes(GOOD.replace(b"NAME", b"b"))
    assert await feed.refresh()
    assert names(feed) == ["a", "b"]


async def test_a_link_that_is_added_to_a_directory_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_bytes(GOOD.replace(b"NAME", b"a"))
    feed = PolicyFeed(source_of(PoliciesSettings(directory=folder), tmp_path / "cache"), lambda: 100.0)
    await feed.refresh()
    (folder / "b.yaml").symlink_to(folder / "a.yaml")
    assert await feed.refresh()
    assert feed.current is not None
    assert names(feed) == ["a"]
    assert ["b.yaml" in str(problem) for problem in feed.current.problems] == [True]


def test_a_directory_that_changes_between_fetch_and_read_is_seen_as_it_was_fetched(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(GOOD)
    source = source_of(PoliciesSettings(directory=tmp_path), tmp_path)
    commit = source.fetch()
    (tmp_path / "a.yaml").write_bytes(BAD)
    revision = source.read(commit)
    assert (revision.commit, revision.files[0].data) == (commit, GOOD)


@pytest.mark.parametrize(("url", "branch", "code"), [("ext::sh -c true", "main", "SH201"), ("https://host/x.git", "a..b", "SH202")])
def test_a_repository_that_can_not_be_one_is_refused_at_once(tmp_path: Path, url: str, branch: str, code: str) -> None:
    with pytest.raises(Rejected) as caught:
        source_of(PoliciesSettings(git=url, branch=branch), tmp_path)
    assert caught.value.problem.code == code


async def test_a_budget_that_only_counts_as_zero_does_not_pass_for_the_good_version_after_a_start() -> None:
    budget = GOOD.replace(b"CheckpointPolicy", b"DisruptionBudget").replace(b"every: 5m", b"maxConcurrent: 2")
    broken = budget + b"---\n" + budget.replace(b"NAME", b"more").replace(b"max", b"mux")
    source = Lasting()
    source.push("1", a=budget)
    feed = PolicyFeed(source, lambda: 100.0)
    await feed.refresh()
    source.push("2", a=broken)
    await feed.refresh()
    assert feed.current is not None
    assert [(p.name, p.refused is None) for p in feed.current.policies] == [("a", True), ("more", False)]
    again = PolicyFeed(source, lambda: 160.0)
    await again.refresh()
    assert again.current == feed.current
