"""Images that are encrypted at rest: what lies on the disk says nothing without the key, and all of it can be used as before."""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from shunter.model.errors import Rejected, Retry, Stalled
from shunter_agent.images import room, sealing, store
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.manifest import HEAD, MANIFEST, ImageManifest
from shunter_agent.images.room import KEEP
from shunter_agent.images.sealing import Keys, SealedImage, frames_of
from shunter_agent.images.store import ImageStore
from shunter_agent.images.transfer import send_whole
from shunter_agent.stored import StoredDepot
from test_chunks_sent import facts, memory, write
from test_transfer import QUICK, Pair, info

SECRET = b"what the user said in confidence" * 4


def key(path: Path) -> Path:
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path


def sealed(root: Path, *keys: Path, work: Path | None = None) -> ImageStore:
    root.parent.mkdir(exist_ok=True, parents=True)
    files = keys or (key(root.parent / f"{root.name}.key"),)
    return ImageStore(root, keys=Keys(files), work=work or root.parent / f"{root.name}.work")


def again(kept: ImageStore, *keys: Path) -> ImageStore:
    """As after a restart of the agent."""
    return sealed(kept.root, *(keys or (kept.root.parent / f"{kept.root.name}.key",)))


@pytest.fixture
def kept(tmp_path: Path) -> ImageStore:
    return sealed(tmp_path / "images")


def made(kept: ImageStore, image: str = "i1", *, fsync: bool = True) -> ImageManifest:
    folder = kept.begin(image)
    (folder / "pages-1.img").write_bytes(SECRET + os.urandom(2 * CHUNK) + SECRET)
    (folder / "core-1.img").write_bytes(SECRET)
    (folder / "empty.img").touch()
    (folder / "dump.log").write_bytes(SECRET)
    return kept.commit(info(image), fsync=fsync)


def plain(kept: ImageStore, image: str = "i1") -> dict[str, bytes]:
    with kept.opened(image) as folder:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}


def on_disk(kept: ImageStore) -> bytes:
    return b"".join(path.read_bytes() for path in kept.root.rglob("*") if path.is_file())


def test_what_lies_on_the_disk_says_nothing(kept: ImageStore) -> None:
    manifest = made(kept)
    data = on_disk(kept)
    assert len(data) > manifest.bytes
    for word in (SECRET[:32], b"decode", b"vllm", b"pages-1"):
        assert word not in data, "neither what the worker held, nor who it was"
    assert list(kept.work.iterdir()) == []
    assert {path.stat().st_mode & 0o777 for path in kept.root.rglob("*") if path.is_file()} == {0o600}


def test_sealing_may_be_held_up_at_any_mib(kept: ImageStore) -> None:
    made(kept, fsync=False)
    parts: list[int] = []
    kept.sync("i1", lambda: parts.append(sum(path.stat().st_size for path in kept.root.glob("*.sealing/pages-1.img"))))
    assert len(parts) >= 4
    assert parts == sorted(parts)
    assert kept.verify("i1") == ()


def test_it_is_what_it_was_for_whoever_has_the_key(kept: ImageStore) -> None:
    manifest = made(kept)
    after = again(kept)
    assert after.get("i1") == manifest
    assert after.list() == [manifest]
    assert after.verify("i1") == ()
    found = plain(after)
    assert found["core-1.img"] == SECRET
    assert found["pages-1.img"].startswith(SECRET)
    assert found["pages-1.img"].endswith(SECRET)
    assert (found["empty.img"], set(found)) == (b"", {"pages-1.img", "core-1.img", "empty.img"})
    assert list(after.work.iterdir()) == [], "plain files are gone with their last user"


def test_plain_files_stay_for_as_long_as_anybody_uses_them(kept: ImageStore) -> None:
    made(kept)
    first, second = kept.open("i1"), kept.open_to_restore("i1")
    assert first == second
    kept.sync("i1")
    kept.close("i1")
    assert (second / "core-1.img").exists()
    kept.close("i1")
    assert not second.exists()
    assert kept.verify("i1") == ()


def test_without_the_key_there_is_nothing_to_be_had(kept: ImageStore, tmp_path: Path) -> None:
    made(kept)
    other = again(kept, key(tmp_path / "other.key"))
    by, here = (Keys([tmp_path / name]).sealing for name in ("images.key", "other.key"))
    assert other.list() == []
    with pytest.raises(Rejected, match=f"SH819 .*by key {by}, and this node has {here}"):
        other.get("i1")
    with pytest.raises(Rejected, match="SH819"):
        ImageStore(kept.root).get("i1")


def test_a_new_key_seals_and_the_old_one_still_opens(kept: ImageStore, tmp_path: Path) -> None:
    made(kept)
    new, old = key(tmp_path / "new.key"), tmp_path / "images.key"
    both = again(kept, new, old)
    made(both, "i2")
    assert {"i1", "i2"} == {manifest.id for manifest in both.list()}
    only = again(kept, new)
    assert [manifest.id for manifest in only.list()] == ["i2"]


def test_no_nonce_is_used_twice_with_a_key(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    used: Counter[tuple[bytes, bytes]] = Counter()

    class Watched:
        def __init__(self, secret: bytes) -> None:
            self._secret, self._real = secret, AESGCM(secret)

        def encrypt(self, nonce: bytes, data: bytes, said: bytes) -> bytes:
            used[self._secret, nonce] += 1
            return self._real.encrypt(nonce, data, said)

        def decrypt(self, nonce: bytes, data: bytes, said: bytes) -> bytes:
            return self._real.decrypt(nonce, data, said)

    monkeypatch.setattr(sealing, "AESGCM", Watched)
    made(kept)
    kept.discard("i1")
    made(kept)
    made(kept, "i2")
    assert set(used.values()) == {1}
    assert len({secret for secret, _nonce in used}) == 3, "a key for each time that an image is sealed"
    assert len(used) == 3 * (3 + 1 + 1 + 1), "frames of three files, and the manifest"


@pytest.mark.parametrize("name", ["pages-1.img", "core-1.img", "empty.img"])
def test_a_changed_byte_is_found(kept: ImageStore, name: str) -> None:
    made(kept)
    path = kept.root / "i1" / name
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert [problem.code for problem in kept.verify("i1")] == ["SH804"]
    with pytest.raises(Rejected, match=f"SH804 .*{name}"):
        kept.open_to_restore("i1")
    assert list(kept.work.iterdir()) == [], "not even a part of it is left plain"


def test_frames_can_not_be_swapped_cut_off_or_taken_from_elsewhere(kept: ImageStore) -> None:
    made(kept)
    made(kept, "i2")
    path = kept.root / "i1" / "pages-1.img"
    data, frame = path.read_bytes(), CHUNK + 16
    for wrong in (
        data[frame : 2 * frame] + data[:frame] + data[2 * frame :],
        data[: 2 * frame],
        (kept.root / "i2" / "pages-1.img").read_bytes(),
    ):
        path.write_bytes(wrong)
        with pytest.raises(Rejected, match="SH804"):
            kept.open("i1")
    path.write_bytes(data)
    (kept.root / "i1" / HEAD).write_bytes((kept.root / "i2" / HEAD).read_bytes())
    with pytest.raises(Rejected, match="SH804"):
        again(kept).get("i1")


def test_a_sealed_image_is_no_other_ones(kept: ImageStore, tmp_path: Path) -> None:
    """Whoever can write there can't give one worker's image for another's, whatever is made of its manifest later."""
    made(kept)
    (kept.root / "i1").rename(kept.root / "i3")
    with pytest.raises(Rejected, match=r"SH804 .*isn't what was written"):
        SealedImage(kept.root / "i3", Keys([tmp_path / "images.key"]))


def test_a_discarded_image_takes_its_own_key_along(kept: ImageStore) -> None:
    """Somebody who kept the blocks of its files, and gets the node's key later, has nothing."""
    made(kept)
    os.link(kept.root / "i1" / HEAD, kept.root.parent / "block")
    before = (kept.root.parent / "block").read_bytes()
    assert kept.discard("i1")
    after = (kept.root.parent / "block").read_bytes()
    assert len(after) == len(before)
    assert after != before
    assert b"key" not in after
    assert list(kept.root.iterdir()) == list(kept.work.iterdir()) == []
    assert not kept.discard("i1")


# -- on its way


def pair_of(tmp_path: Path) -> Pair:
    return Pair(tmp_path, stores=lambda root, _authority, _tls: sealed(root))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    both = pair_of(tmp_path)
    with contextlib.closing(both.server):
        yield both


def send(pair: Pair, image: str) -> int:
    return send_whole(pair.here, image, pair.peer, pair.tls, limits=QUICK).bytes


def test_another_node_gets_it_and_seals_it_with_a_key_of_its_own(pair: Pair) -> None:
    manifest = made(pair.here)
    assert send(pair, "i1") == manifest.bytes
    assert list(pair.here.work.iterdir()) == []
    assert pair.there.unsealed() == ("i1",), "it may be restored at once"
    pair.there.sync("i1")
    assert pair.there.unsealed() == ()
    assert list(pair.there.work.iterdir()) == []
    assert SECRET[:32] not in on_disk(pair.there)
    assert plain(pair.there) == plain(pair.here)
    assert (pair.here.root / "i1" / HEAD).read_bytes() != (pair.there.root / "i1" / HEAD).read_bytes()
    assert send(pair, "i1") == 0, "and it is known again"


def test_chunks_of_sealed_images_are_not_sent_again(pair: Pair) -> None:
    pages = memory(600)
    for image, extra in (("i1", {}), ("i2", memory(30, first=10_000))):
        write(pair.here.begin(image), pages | extra)
        pair.here.commit(info(image))
        count = send(pair, image)
        pair.there.sync(image)
    assert count < 40 * 4096
    assert pair.there.verify("i2") == ()


def test_what_differs_little_from_a_sealed_image_is_sent_as_a_difference(pair: Pair) -> None:
    depot, pages = StoredDepot(pair.here, pair.tls), memory(600)
    sent = {}
    for image in ("i1", "i2"):
        write(depot.begin(image), pages)
        sending = depot.sending(pair.here.work / f"{image}.partial", image, "n2", f"127.0.0.1:{pair.peer.port}", lambda _b: None, 0, "w1")
        sent[image] = sending.finish(facts(image))
        depot.commit(facts(image), durable=True)
        pair.there.sync(image)
        pages |= {n: os.urandom(4096) for n in range(0, 600, 150)}
    assert sent["i2"] < 8 * 4096
    assert plain(pair.there, "i2") == plain(pair.here, "i2")


# -- what can go wrong


def test_an_image_that_was_not_sealed_yet_is_found_after_a_restart(kept: ImageStore) -> None:
    manifest = made(kept, fsync=False)
    after = again(kept)
    assert after.list() == [manifest]
    assert after.unsealed() == ("i1",)
    after.sync("i1")
    assert list(after.work.iterdir()) == []
    assert after.verify("i1") == ()


def test_images_of_a_time_without_a_key_are_sealed(kept: ImageStore) -> None:
    manifest = made(ImageStore(kept.root))
    after = again(kept)
    assert after.unsealed() == ("i1",)
    after.sync("i1")
    assert SECRET[:32] not in on_disk(after)
    assert after.get("i1") == manifest
    assert after.verify("i1") == ()


def test_plain_files_that_a_dead_run_left_are_removed_where_the_image_is_sealed(kept: ImageStore) -> None:
    made(kept)
    kept.open("i1")
    assert list(kept.work.iterdir()) != []
    after = again(kept)
    assert list(after.work.iterdir()) == []
    assert [manifest.id for manifest in after.list()] == ["i1"]


@pytest.mark.parametrize("at", range(1, 6))
def test_no_image_is_lost_when_sealing_dies(kept: ImageStore, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Of an image that lay there plain, whose folder the sealed one takes."""
    manifest = made(ImageStore(kept.root))
    dying, steps = again(kept), iter(range(1, 100))

    def step(path: Path) -> None:
        if next(steps) == at:
            raise KeyboardInterrupt

    rename = Path.rename
    monkeypatch.setattr(store, "sync_path", step)
    monkeypatch.setattr(Path, "rename", lambda self, to: (step(self), rename(self, to))[1])
    with contextlib.suppress(KeyboardInterrupt):
        dying.sync("i1")
    monkeypatch.undo()
    after = again(kept)
    assert after.list() == [manifest]
    after.sync("i1")
    assert after.verify("i1") == ()


def test_what_could_not_be_deleted_of_a_try_keeps_no_later_one_from_opening_it(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made(kept)

    def broken(_self: SealedImage, folder: Path) -> None:
        (folder / "pages-1.img").write_bytes(SECRET)
        raise OSError("Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(SealedImage, "open_into", broken)
        patched.setattr(store.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(OSError, match="Input/output"):
            kept.open("i1")
    assert len(plain(kept)["empty.img"]) == 0
    assert list(kept.work.iterdir()) == []


def test_it_is_not_sealed_with_bytes_that_are_not_its_own(kept: ImageStore) -> None:
    made(kept, fsync=False)
    (kept.work / "i1" / "core-1.img").write_bytes(SECRET[::-1])
    with pytest.raises(Rejected, match=r"SH804 .*core-1\.img"):
        kept.sync("i1")
    assert kept.unsealed() == ("i1",)


def test_the_room_is_that_of_memory_and_of_the_disk(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_free", lambda root: 100 * CHUNK if root == kept.work else 50 * CHUNK)
    waiting = made(kept, fsync=False).bytes
    assert kept.free_bytes() == 50 * CHUNK - waiting
    kept.sync("i1")
    assert kept.free_bytes() == 50 * CHUNK
    monkeypatch.setattr(store, "is_in_memory", lambda _folder: True)
    monkeypatch.setattr(store, "available_memory", lambda: 7 * CHUNK)
    assert kept.free_bytes() == 7 * CHUNK
    with pytest.raises(Retry, match="SH814"):
        kept.open("i1")


def test_a_tmpfs_is_told_from_a_disk(tmp_path: Path) -> None:
    assert room.is_in_memory(Path("/dev/shm"))
    assert room.available_memory() > KEEP
    assert not room.is_in_memory(Path("/proc"))


def test_a_key_that_others_can_read_is_none(tmp_path: Path) -> None:
    path = key(tmp_path / "key")
    path.chmod(0o640)
    with pytest.raises(Stalled, match=r"SH818 .*others"):
        Keys([path])
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(Stalled, match=r"SH818 .*5 bytes instead of 32"):
        Keys([path])
    with pytest.raises(Stalled, match="SH818"):
        Keys([tmp_path / "nowhere"])


def test_a_folder_for_plain_bytes_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "images.work").symlink_to(tmp_path / "theirs")
    with pytest.raises(Stalled, match="SH820"):
        sealed(tmp_path / "images")


def test_files_of_a_release_without_chunks_are_cut_for_sealing() -> None:
    from shunter_agent.images.manifest import ImageFile

    assert frames_of(ImageFile(name="a", size=2 * CHUNK + 1, blake3="")) == (CHUNK, CHUNK, 1)
    assert frames_of(ImageFile(name="a", size=0, blake3="")) == (0,)


def test_sealing_one_image_holds_up_no_other(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take minutes, and another worker may wait for its restore."""
    made(kept, fsync=False)
    made(kept, "i2")
    begun, go_on = threading.Event(), threading.Event()
    seal = store.seal

    def slowly(*arguments: object) -> None:
        begun.set()
        assert go_on.wait(10)
        seal(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "seal", slowly)
    sealing = threading.Thread(target=kept.sync, args=("i1",))
    sealing.start()
    assert begun.wait(10)
    opened: list[Path] = []
    opening = threading.Thread(target=lambda: opened.append(kept.open_to_restore("i2")), daemon=True)
    opening.start()
    opening.join(5)
    assert opened == [kept.work / "i2"]
    go_on.set()
    sealing.join(10)
    assert kept.unsealed() == ()


def test_an_image_that_is_used_while_it_is_sealed_stays_plain_for_so_long(kept: ImageStore) -> None:
    made(kept, fsync=False)
    with kept.opened("i1") as folder:
        kept.sync("i1")
        assert (folder / "core-1.img").read_bytes() == SECRET
        assert kept.unsealed() == ()
    assert list(kept.work.iterdir()) == []


class Once:
    """Discards an image at one of the looks that something takes between its parts, or of the calls that it makes."""

    def __init__(self, kept: ImageStore, at: int = 0) -> None:
        self.kept, self.left = kept, at
        self.discarded: bool | None = None

    def __call__(self) -> None:
        if self.left == 0:
            self.discarded = self.kept.discard("i1")
            left = [path.name for folder in (self.kept.root, self.kept.work) for path in folder.iterdir()]
            assert [name for name in left if name not in ("i1.partial",)] == [], "nothing is left of it from here on"
        self.left -= 1


@pytest.mark.parametrize("at", range(4))
def test_an_image_that_is_discarded_while_it_is_sealed_leaves_nothing(kept: ImageStore, at: int) -> None:
    made(kept, fsync=False)
    between = Once(kept, at)
    with pytest.raises(Rejected, match="SH802"):
        kept.sync("i1", between)
    assert between.discarded
    assert (kept.list(), list(kept.root.iterdir()), list(kept.work.iterdir())) == ([], [], [])
    assert again(kept).list() == []


@pytest.mark.parametrize("here", [False, True], ids=["in memory", "plain since a time without keys"])
def test_one_that_is_discarded_when_its_sealing_is_done_is_not_back(
    kept: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, here: bool
) -> None:
    if here:
        made(ImageStore(kept.root))
    else:
        made(kept, fsync=False)
    between, sync_path = Once(kept), store.sync_path

    def sync(path: Path) -> None:
        sync_path(path)
        if path.suffix == ".sealing":
            between()

    monkeypatch.setattr(store, "sync_path", sync)
    with pytest.raises(Rejected, match="SH802"):
        kept.sync("i1")
    assert between.discarded
    assert (kept.list(), again(kept).list(), list(kept.root.iterdir())) == ([], [], [])


def test_one_that_is_discarded_while_it_is_opened_is_not_back(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made(kept)
    between, open_into = Once(kept), SealedImage.open_into

    def opened(image: SealedImage, folder: Path) -> None:
        open_into(image, folder)
        between()

    monkeypatch.setattr(SealedImage, "open_into", opened)
    with pytest.raises(Rejected, match="SH802"):
        kept.open("i1")
    assert between.discarded
    assert (kept.list(), list(kept.work.iterdir()), list(kept.root.iterdir())) == ([], [], [])


def test_a_disk_that_is_full_keeps_nothing_of_what_could_not_be_sealed(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made(kept, fsync=False)
    monkeypatch.setattr(store, "sync_path", lambda _path: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        kept.sync("i1")
    assert list(kept.root.iterdir()) == []
    monkeypatch.undo()
    kept.sync("i1")
    assert plain(kept)["core-1.img"] == SECRET


def test_a_depot_takes_an_image_that_is_gone_meanwhile_for_done(kept: ImageStore) -> None:
    made(kept, fsync=False)
    depot = StoredDepot(kept, tls=None)  # type: ignore[arg-type]
    depot.sync("i1", Once(kept, 1))
    assert depot.all() == ()


def test_an_image_of_a_time_without_a_key_is_sealed_once_nobody_reads_it(kept: ImageStore) -> None:
    """Its plain files lie where the sealed ones are to: whoever reads them would find those instead."""
    made(ImageStore(kept.root))
    with kept.opened("i1") as folder:
        kept.sync("i1")
        assert ((folder / "core-1.img").read_bytes(), kept.unsealed()) == (SECRET, ("i1",))
    kept.sync("i1")
    assert (kept.unsealed(), SECRET in on_disk(kept), plain(kept)["core-1.img"]) == ((), False, SECRET)
    assert kept.discard("i1")
    assert list(kept.root.iterdir()) == []


def test_room_is_told_while_an_image_is_discarded(kept: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made(kept, fsync=False)
    found = kept.unsealed()
    assert kept.discard("i1")
    monkeypatch.setattr(kept, "unsealed", lambda: found)
    assert kept.free_bytes() > 0
