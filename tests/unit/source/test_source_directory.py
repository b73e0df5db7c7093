"""Policies in a directory."""

import os
import threading
from pathlib import Path

import pytest
from shunter.model.errors import Problem, Rejected, Retry
from shunter.source.directory import DirectorySource, _load
from shunter.source.limits import Limits


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "policies"
    (path / "deep").mkdir(parents=True)
    (path / "b.yaml").write_text("b: 1")
    (path / "deep" / "a.yml").write_text("a: 1")
    (path / "readme.md").write_text("no policy")
    (path / ".git").mkdir()
    (path / ".git" / "config.yaml").write_text("not ours")
    return path


def test_reads_policy_files_in_the_order_of_their_paths(folder: Path) -> None:
    revision = DirectorySource(folder).read()
    assert [(f.path, f.data) for f in revision.files] == [("b.yaml", b"b: 1"), ("deep/a.yml", b"a: 1")]
    assert revision.committed_at is None
    assert revision.problems == ()


def test_the_commit_names_the_contents_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    first = DirectorySource(folder).read().commit
    assert first.startswith("directory:")
    assert len(first) == len("directory:") + 64
    os.utime(folder / "b.yaml", (0, 0))
    (folder / "readme.md").write_text("changed")
    assert DirectorySource(folder).read().commit == first
    (folder / "b.yaml").rename(folder / "c.yaml")
    renamed = DirectorySource(folder).read().commit
    assert renamed != first
    (folder / "c.yaml").write_text("b: 2")
    assert DirectorySource(folder).read().commit not in {first, renamed}
    copy = tmp_path / "copy"
    (copy / "deep").mkdir(parents=True)
    (copy / "deep" / "a.yml").write_text("a: 1")
    (copy / "c.yaml").write_text("b: 1")
    assert DirectorySource(copy).read().commit == renamed


def test_what_is_refused_is_a_change_too(folder: Path, tmp_path: Path) -> None:
    plain = DirectorySource(folder).read().commit
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    linked = DirectorySource(folder).read()
    assert linked.commit != plain
    assert DirectorySource(folder).read().commit == linked.commit
    (folder / "link.yaml").rename(folder / "other.yaml")
    assert DirectorySource(folder).read().commit not in {plain, linked.commit}
    (folder / "other.yaml").unlink()
    os.mkfifo(folder / "link.yaml")
    assert DirectorySource(folder).read().commit not in {plain, linked.commit}, "another reason"
    (folder / "link.yaml").unlink()
    assert DirectorySource(folder).read().commit == plain


def test_links_pipes_and_large_files_are_told_and_not_read(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("hunter2")
    (folder / "link.yaml").symlink_to(secret)
    (folder / "team").symlink_to(tmp_path)
    (folder / "dangling.yaml").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "large.yaml").write_bytes(b"x" * 101)
    (folder / "fits.yaml").write_bytes(b"x" * 100)
    revision = DirectorySource(folder, limits=Limits(file_bytes=100)).read()
    assert [f.path for f in revision.files] == ["b.yaml", "deep/a.yml", "fits.yaml"]
    assert [(p.subject, p.code) for p in revision.problems] == [
        ("dangling.yaml", "SH211"),
        ("large.yaml", "SH212"),
        ("link.yaml", "SH211"),
        ("pipe.yaml", "SH211"),
        ("team", "SH211"),
    ]


def test_a_link_that_takes_a_files_place_meanwhile_is_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("hunter2")
    (folder / "b.yaml").unlink()
    (folder / "b.yaml").symlink_to(secret)
    got = _load(folder, "b.yaml", 1000)  # as if the walk had still seen the file
    assert isinstance(got, Problem)
    assert got.code == "SH211"


def test_a_name_that_is_no_text_is_told(folder: Path) -> None:
    (folder / os.fsdecode(b"not-\xff.yaml")).write_text("x")
    revision = DirectorySource(folder).read()
    assert [p.code for p in revision.problems] == ["SH210"]
    assert revision.problems[0].subject == "not-\\udcff.yaml"


def test_the_directory_itself_may_be_a_link_that_is_swapped(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "..data"
    link.symlink_to(folder)
    source = DirectorySource(link)
    before = source.read()
    other = tmp_path / "other"
    other.mkdir()
    (other / "z.yaml").write_text("z: 1")
    link.unlink()
    link.symlink_to(other)
    assert [f.path for f in source.read().files] == ["z.yaml"]
    assert len(before.files) == 2


def test_a_missing_directory_may_come_back(tmp_path: Path) -> None:
    with pytest.raises(Retry) as caught:
        DirectorySource(tmp_path / "nowhere").read()
    assert caught.value.problem.code == "SH220"
    with pytest.raises(Retry) as unwatched:
        DirectorySource(tmp_path / "nowhere").watch(lambda: None)
    assert unwatched.value.problem.code == "SH220"


@pytest.mark.parametrize("limits", [Limits(files=1), Limits(total_bytes=7), Limits(entries=2)])
def test_too_much_is_refused_as_a_whole(folder: Path, limits: Limits) -> None:
    with pytest.raises(Rejected) as caught:
        DirectorySource(folder, limits=limits).read()
    assert caught.value.problem.code == "SH213"


def test_a_file_that_never_stands_still(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.fstat, 0

    def restless(handle: int) -> os.stat_result:
        nonlocal calls
        calls += 1
        with (folder / "b.yaml").open("a") as file:
            file.write("x")
        return real(handle)

    monkeypatch.setattr(os, "fstat", restless)
    with pytest.raises(Retry) as caught:
        DirectorySource(folder).read()
    assert caught.value.problem.code == "SH221"
    assert calls >= 5


def test_watch_tells_of_changes_once_they_have_settled(folder: Path) -> None:
    told = threading.Semaphore(0)
    source = DirectorySource(folder)
    seen: list[str] = []

    def on_change() -> None:
        seen.append(source.read().commit)  # reading must not count as a change
        told.release()

    close = source.watch(on_change, quiet_s=0.05)
    try:
        for number in range(20):
            (folder / "b.yaml").write_text(f"b: {number}")
        assert told.acquire(timeout=10)
        (folder / "new").mkdir()
        (folder / "new" / "c.yaml").write_text("c: 1")
        while seen[-1] != source.read().commit:
            assert told.acquire(timeout=10)
    finally:
        close()
    assert len(seen) < 20, "many writes are few changes"
    calls = len(seen)
    (folder / "b.yaml").write_text("after")
    assert not told.acquire(timeout=0.15)
    assert len(seen) == calls


def test_a_failing_listener_does_not_end_the_watch(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    told = threading.Semaphore(0)
    calls: list[int] = []

    def on_change() -> None:
        calls.append(1)
        told.release()
        if len(calls) == 1:
            raise RuntimeError("listener's own fault")

    close = DirectorySource(folder).watch(on_change, quiet_s=0.02)
    try:
        (folder / "b.yaml").write_text("1")
        assert told.acquire(timeout=10)
        (folder / "b.yaml").write_text("2")
        assert told.acquire(timeout=10)
    finally:
        close()
    assert "listener's own fault" in caplog.text


def test_constant_change_is_told_too(folder: Path) -> None:
    told = threading.Event()
    stop = threading.Event()
    close = DirectorySource(folder).watch(told.set, quiet_s=30, at_most_s=0.1)

    def write() -> None:
        number = 0
        while not stop.is_set():
            (folder / "b.yaml").write_text(str(number := number + 1))
            stop.wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert told.wait(10)
    finally:
        stop.set()
        writer.join()
        close()
