import ctypes
import errno
import os
from pathlib import Path

import pytest
from blake3 import blake3
from shunter.model.errors import Rejected
from shunter_agent.images import folders
from shunter_agent.images import store as stores
from shunter_agent.images.folders import sync_folder
from shunter_agent.images.manifest import ImageFile, ImageInfo, check_id, check_name
from shunter_agent.images.store import ImageStore
from shunter_agent.runtime.port import WorkerSpec

SPEC = WorkerSpec(worker="w1", role="decode", graph="g", engine="vllm", address="10.0.0.1:9000", labels={"tier": "gold"})


def info(image: str = "i1", taken_at: float = 100.0) -> ImageInfo:
    return ImageInfo(id=image, spec=SPEC, incarnation=2, taken_at=taken_at, runtime="criu", pause_s=0.5, facts={"kernel": "6.1"})


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def made(store: ImageStore, image: str = "i1", taken_at: float = 100.0) -> Path:
    folder = store.begin(image)
    (folder / "pages-1.img").write_bytes(b"p" * 5000)
    (folder / "core-1.img").write_bytes(b"c" * 7)
    store.commit(info(image, taken_at))
    return store.folder(image)


def test_an_image_is_invisible_until_committed_and_whole_after(store: ImageStore) -> None:
    folder = store.begin("i1")
    (folder / "core-1.img").write_bytes(b"abc")
    (folder / "empty.img").touch()
    assert store.list() == []
    with pytest.raises(Rejected, match=r"SH802"):
        store.get("i1")
    manifest = store.commit(info())
    assert manifest.bytes == 3
    assert manifest.files == (
        ImageFile(name="core-1.img", size=3, blake3=blake3(b"abc").hexdigest()),
        ImageFile(name="empty.img", size=0, blake3=blake3(b"").hexdigest()),
    )
    assert store.get("i1") == manifest
    assert ImageStore(store.root).list() == [manifest]
    assert (manifest.spec, manifest.pause_s, manifest.facts) == (SPEC, 0.5, {"kernel": "6.1"})
    assert store.verify("i1") == ()


def test_nobody_else_can_read_any_of_it(store: ImageStore) -> None:
    folder = store.begin("i1")
    (folder / "core-1.img").write_bytes(b"abc")
    (folder / "core-1.img").chmod(0o644)
    store.commit(info())
    modes = {path: path.stat().st_mode & 0o777 for path in [store.root, *store.root.rglob("*")]}
    assert set(modes.values()) == {0o700, 0o600}
    assert all((mode == 0o700) == path.is_dir() for path, mode in modes.items())


@pytest.mark.parametrize("image", ["", "..", "a/b", "/etc", "a.partial", "a\0b", ".hidden", "a" * 129, "ä", "a\n"])
def test_an_id_can_not_lead_out_of_the_store(store: ImageStore, image: str) -> None:
    for call in (store.begin, store.get, store.discard, store.abandon, store.verify, store.folder, store.sync, check_id):
        with pytest.raises(Rejected, match=r"SH801"):
            call(image)


@pytest.mark.parametrize(
    "name", ["", "..", ".", "../core", "a/b", "/etc/passwd", "manifest.json", "dump.log", "stats-dump", "a\0", "x" * 129]
)
def test_a_file_name_can_not_lead_out_of_an_image(name: str) -> None:
    with pytest.raises(Rejected, match=r"SH801"):
        check_name(name)


def test_one_id_is_one_image(store: ImageStore) -> None:
    store.begin("i1")
    with pytest.raises(Rejected, match=r"SH803 .* at this moment"):
        store.begin("i1")
    store.commit(info())
    with pytest.raises(Rejected, match=r"SH803 .* here already"):
        store.begin("i1")


def test_what_a_dead_run_left_half_done_is_swept(store: ImageStore) -> None:
    made(store)
    (store.begin("half") / "core-1.img").touch()
    (store.root / "old.discarded").mkdir()
    again = ImageStore(store.root)
    assert sorted(path.name for path in store.root.iterdir()) == ["i1"]
    assert again.begin("half").is_dir()


def test_abandon_and_discard_delete_and_may_be_repeated(store: ImageStore) -> None:
    store.begin("half")
    store.abandon("half")
    store.abandon("half")
    made(store)
    store.abandon("i1")
    assert [manifest.id for manifest in store.list()] == ["i1"]
    store.discard("i1")
    store.discard("i1")
    assert list(store.root.iterdir()) == []


def test_verify_tells_what_is_damaged(store: ImageStore) -> None:
    folder = made(store)
    (folder / "restore.log").write_text("a driver's log is not part of it")
    assert store.verify("i1") == ()
    pages = folder / "pages-1.img"
    pages.write_bytes(b"p" * 4999 + b"q")
    assert [(p.code, "pages-1.img" in p.what, "bytes of" in p.what) for p in store.verify("i1")] == [("SH804", True, True)]
    pages.write_bytes(b"p")
    (folder / "core-1.img").unlink()
    assert [p.what for p in store.verify("i1")] == [
        "the image is damaged: core-1.img can't be read: No such file or directory",
        "the image is damaged: pages-1.img has 1 bytes instead of 5000",
    ]


def test_a_manifest_that_can_not_be_read_is_told_and_not_listed(store: ImageStore) -> None:
    folder = made(store)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(Rejected, match=r"SH804"):
        store.get("i1")
    assert store.list() == []


def test_a_manifest_of_another_image_is_not_believed(store: ImageStore) -> None:
    folder = made(store)
    folder.rename(store.root / "other")
    with pytest.raises(Rejected, match=r"SH804 .*'i1'"):
        store.get("other")


def test_logs_of_the_dump_stay_beside_the_image(store: ImageStore) -> None:
    folder = store.begin("i1")
    (folder / "dump.log").write_text("x")
    (folder / "core-1.img").write_text("x")
    assert [file.name for file in store.commit(info()).files] == ["core-1.img"]
    with (store.folder("i1") / "dump.log").open("a") as log:
        log.write("more")
    assert store.verify("i1") == ()


def test_known_digests_are_taken_but_not_for_a_file_that_changed(store: ImageStore) -> None:
    folder = store.begin("i1")
    (folder / "pages-1.img").write_bytes(b"1234")
    known = {"pages-1.img": ImageFile(name="pages-1.img", size=3, blake3="aa")}
    with pytest.raises(Rejected, match=r"SH804 .*4 bytes, and had 3"):
        store.commit(info(), known)
    (folder / "pages-1.img").write_bytes(b"123")
    assert store.commit(info(), known).files[0].blake3 == "aa"


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_only_plain_files_make_an_image(store: ImageStore, kind: str) -> None:
    odd = store.begin("i1") / "odd"
    {"folder": odd.mkdir, "link": lambda: odd.symlink_to("/etc/passwd"), "pipe": lambda: os.mkfifo(odd)}[kind]()
    with pytest.raises(Rejected, match=r"SH804 .*odd"):
        store.commit(info())


def test_oldest_first(store: ImageStore) -> None:
    for image, taken_at in (("b", 300.0), ("c", 100.0), ("a", 200.0)):
        made(store, image, taken_at)
    assert [manifest.id for manifest in store.list()] == ["c", "a", "b"]


@pytest.mark.parametrize("fsync", [True, False])
def test_fsync_is_done_when_asked_for_and_later_by_sync(store: ImageStore, monkeypatch: pytest.MonkeyPatch, fsync: bool) -> None:
    synced: list[str] = []

    def record(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))

    monkeypatch.setattr(os, "fsync", record)
    (store.begin("i1") / "core-1.img").write_text("x")
    store.commit(info(), fsync=fsync)
    assert sorted(synced) == (["core-1.img", "i1.partial", "images", "manifest.json"] if fsync else [])
    synced.clear()
    store.sync("i1")
    assert sorted(synced) == ["core-1.img", "i1", "images", "manifest.json"]


def test_what_goes_to_the_disk_may_be_held_up_on_its_way(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_AT_ONCE", 4096)
    (store.begin("i1") / "pages-1.img").write_bytes(b"p" * 5 * 4096)
    store.commit(info(), fsync=False)
    parts: list[int] = []
    store.sync("i1", lambda: parts.append(1))
    small = store.folder("i1") / "manifest.json"
    assert len(parts) == 5 + -(-small.stat().st_size // 4096)
    parts.clear()
    sync_folder(store.folder("i1"))
    assert not parts


class Disk:
    """Tells once what it couldn't write, to whoever waits for it first, as Linux does."""

    def __init__(self, *answers: int) -> None:
        self._answers = list(answers)

    def sync_file_range(self, *_where: object) -> int:
        failed = self._answers.pop(0) if self._answers else 0
        ctypes.set_errno(failed)
        return -1 if failed else 0


@pytest.mark.parametrize("wrong", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_what_a_part_did_not_write_is_not_said_to_be_on_the_disk(store: ImageStore, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    monkeypatch.setattr(stores, "looks", lambda _folder: frozenset())  # what a disk loses shows in nothing that is seen of a file
    folder = made(store)
    monkeypatch.setattr(folders, "_libc", Disk(0, wrong))
    with pytest.raises(OSError, match=os.strerror(wrong)):
        store.sync("i1", lambda: None)
    (folder / "core-1.img").write_bytes(b"?" * 7)  # what lies there, once the kernel has forgotten what it couldn't write
    with pytest.raises(Rejected, match="SH804"):
        store.open_to_restore("i1")


@pytest.mark.parametrize("unable", [errno.ENOSYS, errno.ESPIPE])
def test_a_file_system_that_writes_no_parts_writes_it_all_at_the_end(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, unable: int
) -> None:
    made(store)
    synced: list[int] = []
    monkeypatch.setattr(folders, "_libc", Disk(*[unable] * 3))
    monkeypatch.setattr(os, "fsync", synced.append)
    store.sync("i1", lambda: None)
    assert len(synced) == 5


def test_room_on_a_tmpfs_is_no_more_than_there_is_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ImageStore(tmp_path / "images")
    assert made.free_bytes() > 1000
    monkeypatch.setattr(stores, "available_memory", lambda: 1000)
    monkeypatch.setattr(stores, "is_in_memory", lambda _path: False)  # wherever temporary files are here
    assert made.free_bytes() > 1000, "it is on a disk"
    monkeypatch.setattr(stores, "is_in_memory", lambda _path: True)
    assert made.free_bytes() == 1000
