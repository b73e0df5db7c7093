"""The disk of the images is shared: what is promised to one isn't to another, and the journal's part to none."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shunter.model.errors import Retry, Stalled
from shunter_agent.depot import ImageFacts
from shunter_agent.images import room, store
from shunter_agent.images.room import KEEP, STEP, Room
from shunter_agent.images.store import ImageStore
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import WorkerSpec
from shunter_agent.stored import StoredDepot
from shunter_agent.tls import TlsFiles

SPEC = WorkerSpec(worker="w1", role="decode", graph="g", engine="vllm", address="10.0.0.1:9000")
MB = 10**6


def of(free: int) -> Callable[[], int]:
    return lambda: KEEP + free


def test_what_is_promised_to_one_image_is_not_left_for_another() -> None:
    shared = Room(of(100 * MB))
    with shared.share("i1") as first:
        first.announce(70 * MB)
        with pytest.raises(Retry, match=r"i2: SH814 .*needs 40MB .* 30MB are left") as refused, shared.share("i2") as second:
            second.announce(40 * MB)
        assert "Discard" in refused.value.problem.remedy
        with shared.share("i3") as third:
            third.announce(30 * MB)
    with shared.share("i2") as second:
        second.announce(100 * MB)


def test_what_is_written_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "STEP", MB)
    written = 0
    shared = Room(lambda: KEEP + 100 * MB - written)
    with shared.share("i1") as first, shared.share("i2") as second:
        first.announce(60 * MB)
        for _ in range(60):
            first.need(MB)
            written += MB
            first.wrote(MB)
        second.announce(40 * MB)
        with pytest.raises(Retry, match="SH814"):
            first.need(1)


def test_the_journals_part_is_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    with Room(of(0)).share("i1") as share, pytest.raises(Retry, match="0B are left"):
        share.announce(1)
    with Room(lambda: 0).share("i1") as share, pytest.raises(Retry, match="0B are left"):
        share.announce(1)


@pytest.mark.parametrize("announced", [0, -1, 10])
def test_an_image_larger_than_announced_asks_for_more_in_steps(announced: int) -> None:
    written = 0
    shared = Room(lambda: KEEP + 2 * STEP - written)
    with shared.share("i1") as share:
        share.announce(announced)
        for _ in range(STEP // MB + 1):
            share.need(MB)
            written += MB
            share.wrote(MB)
        with pytest.raises(Retry), shared.share("i2") as other:
            other.announce(STEP)


def test_a_disk_that_somebody_else_fills_is_noticed_in_spite_of_a_promise() -> None:
    free = KEEP + 10 * STEP
    shared = Room(lambda: free)
    with shared.share("i1") as share:
        share.announce(10 * STEP)
        share.need(MB)
        free = KEEP - 1
        with pytest.raises(Retry, match="SH814"):
            share.need(STEP)


def test_a_dump_gets_what_there_is_and_others_get_the_rest(tmp_path: Path) -> None:
    written = 0
    shared = Room(lambda: KEEP + 100 * MB - written)
    dump = shared.dump("d1", 70 * MB, tmp_path)
    with pytest.raises(Retry, match="30MB are left"), shared.share("i1") as other:
        other.announce(31 * MB)
    with (tmp_path / "pages-1.img").open("wb") as pages:
        pages.truncate(60 * MB)
    written = 60 * MB
    with pytest.raises(Retry, match="30MB are left"), shared.share("i1") as other:
        other.announce(31 * MB)
    dump.close()
    with shared.share("i1") as other:
        other.announce(40 * MB)
        with pytest.raises(Retry, match=r"d2: SH814 .*needs 50MB .* 0B are left"):
            shared.dump("d2", 50 * MB, tmp_path)
    shared.dump("d2", 50 * MB, tmp_path)


def test_a_depot_begins_no_dump_on_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_free", lambda _root: KEEP)
    kept = ImageStore(tmp_path / "images")
    depot = StoredDepot(kept, TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path))
    with pytest.raises(Retry, match="SH814"):
        depot.begin("d1", 100)
    assert list(kept.root.iterdir()) == []
    monkeypatch.setattr(store, "_free", lambda _root: KEEP + 100)
    depot.begin("d1", 100)
    with pytest.raises(Retry, match="SH814"):
        depot.begin("d2", 100)
    depot.abandon("d1")
    depot.begin("d2", 100)
    depot.commit(ImageFacts(id="d2", spec=SPEC, incarnation=1, taken_at=1.0), durable=False)
    depot.begin("d3", 100)


def test_a_dump_that_cannot_be_deleted_keeps_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_free", lambda _root: KEEP + 100)
    depot = StoredDepot(ImageStore(tmp_path / "images"), TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path))
    depot.begin("d1", 100)

    def unwilling(_folder: Path) -> Path:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(store, "doom", unwilling)
    with pytest.raises(Stalled, match="SH667"):
        depot.abandon("d1")
    depot.begin("d2", 100)


def test_a_dump_that_can_not_succeed_is_refused_and_what_is_merely_expected_refuses_none(tmp_path: Path) -> None:
    shared = Room(of(100 * MB), most=lambda: KEEP + 150 * MB)
    with pytest.raises(Retry, match=r"d1: SH827 .*at least 101MB, and 100MB can be written"):
        shared.dump("d1", 101 * MB, tmp_path, 101 * MB)
    with shared.share("i1") as others:
        others.announce(1)
    shared.dump("d1", 900 * MB, tmp_path, 100 * MB).close()
    assert shared.short("w", 0, urgent=False) is None, "nobody knows how large it will be"


def test_an_urgent_dump_is_refused_only_when_all_that_there_is_is_not_enough(tmp_path: Path) -> None:
    """Others' promises and the journal's part included: its worker is lost if it stays."""
    shared = Room(of(100 * MB), most=lambda: KEEP + 150 * MB)
    with shared.share("i1") as others:
        others.announce(60 * MB)
        assert shared.short("w", 41 * MB, urgent=False) is not None
        assert shared.short("w", KEEP + 150 * MB, urgent=True) is None
        shared.dump("d1", 900 * MB, tmp_path, KEEP + 150 * MB, urgent=True).close()
        with pytest.raises(Retry, match="SH827"):
            shared.dump("d1", 900 * MB, tmp_path, KEEP + 150 * MB + 1, urgent=True)


def test_where_files_may_take_less_than_they_are_nothing_is_known() -> None:
    assert Room(of(MB)).short("w", 10**12, urgent=False) is None


@pytest.mark.parametrize("urgent", [False, True])
def test_of_images_in_memory_a_dump_has_no_more_room_than_there_is_memory(monkeypatch: pytest.MonkeyPatch, *, urgent: bool) -> None:
    folder = Path("/dev/shm") / f"room-{os.getpid()}-{urgent}"
    try:
        kept = ImageStore(folder)
        monkeypatch.setattr(store, "available_memory", lambda *, swapping=False: KEEP + (70 if swapping else 50) * MB)
        monkeypatch.setattr(store, "_free", lambda _root: 10**12)
        most = KEEP + 70 * MB if urgent else 50 * MB
        assert kept.room.short("w", most, urgent=urgent) is None
        short = kept.room.short("w", most + MB, urgent=urgent)
        assert short is not None
        assert short.code == "SH827"
    finally:
        shutil.rmtree(folder)


def test_what_is_just_being_deleted_may_yet_make_room(tmp_path: Path) -> None:
    kept = ImageStore(tmp_path / "images")
    most = kept.most_bytes()
    if most is None:
        pytest.skip("the file system may compress")
    doomed = kept.root / f"i1{store.DOOMED}"
    doomed.mkdir()
    with (doomed / "pages-1.img").open("wb") as pages:
        os.posix_fallocate(pages.fileno(), 0, 64 * MB)
    assert (kept.most_bytes() or 0) > most - 32 * MB


def test_the_kernel_says_what_a_process_has_of_its_own() -> None:
    code = "import sys; kept = bytearray(b'x') * (50 << 20); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        process = processes.note(child.pid)
        own, resident = processes.own_memory(process), processes.memory(process)
        assert resident is not None
        assert 50 << 20 <= own < resident
        child.communicate()
    assert processes.own_memory(process) == 0
