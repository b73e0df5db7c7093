"""Images in an archive: a folder, and an object store.

The object store is moto's: it speaks S3's language over HTTP, from memory. It leaves out real credentials and rights, a network that fails
half-way, throttling, and stores that answer with an older listing (Amazon's doesn't any more).
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import boto3
import pytest
from shunter.model.errors import Rejected, Retry
from shunter_agent.depot import ARCHIVE
from shunter_agent.images import archive as archives
from shunter_agent.images.archive import GRACE_S, Archive, Ring
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.folder_objects import FolderObjects
from shunter_agent.images.pacing import Pacing, Urgency
from shunter_agent.images.port import Objects
from shunter_agent.images.s3_objects import S3Objects
from shunter_agent.images.server import Allowance
from shunter_agent.images.store import ImageStore
from shunter_agent.stored import StoredDepot
from test_chunks_sent import memory, write
from test_images_sealed import sealed
from test_images_trusted import trusted
from test_transfer import Authority, Pair, info, until

KEYS = (b"1" * 32, b"2" * 32)
SECRET = b"what the user said in confidence"


class Making(Protocol):
    def __call__(self) -> Objects: ...


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The URL of an object store."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Objects:
    if request.param == "folder":
        return FolderObjects(tmp_path / "archive")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    url: str = request.getfixturevalue("s3")
    bucket = f"b{abs(hash(tmp_path)):x}"[:40]
    boto3.client("s3", endpoint_url=url, region_name="us-east-1").create_bucket(Bucket=bucket)
    return S3Objects(bucket, "fleet/one", endpoint=url, region="us-east-1")


@pytest.fixture
def here(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "there")


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def made(store: ImageStore, image: str = "i1", pages: int = 600) -> None:
    folder = store.begin(image)
    write(folder, memory(pages))
    (folder / "secret.img").write_bytes(SECRET)
    (folder / "empty.img").touch()
    store.commit(info(image))


def keys_of(objects: Objects) -> list[str]:
    return sorted(kept.key for kept in objects.all(""))


@pytest.mark.parametrize("ring", [Ring(), Ring(KEYS)], ids=["plain", "encrypted"])
def test_an_image_comes_back_as_it_was(objects: Objects, here: ImageStore, there: ImageStore, ring: Ring) -> None:
    made(here)
    kept = Archive(objects, ring, Clock())
    progress: list[int] = []
    assert kept.put(here, "i1", progress.append) == progress[-1] == here.get("i1").bytes
    assert kept.all() == ("i1",)
    assert kept.manifest("i1") == here.get("i1")
    assert kept.fetch(there, "i1", progress.append) == here.get("i1")
    assert there.verify("i1") == ()
    assert there.get("i1") == here.get("i1")
    assert progress[-1] == here.get("i1").bytes


def test_what_is_kept_already_is_not_put_again(objects: Objects, here: ImageStore) -> None:
    """Of whatever image and worker: weights lie there once."""
    kept = Archive(objects, Ring(KEYS), Clock())
    pages = memory(900)
    for image, more in (("i1", {}), ("i2", memory(3, first=7000))):
        write(here.begin(image), pages | more)
        here.commit(info(image))
    first = kept.put(here, "i1")
    assert kept.put(here, "i1") == 0
    assert kept.put(here, "i2") < 8 * 4096 < first
    assert len(keys_of(objects)) < len(here.get("i1").files[0].parts) + 12


def test_nobody_reads_it_without_the_key(objects: Objects, here: ImageStore, there: ImageStore) -> None:
    made(here)
    Archive(objects, Ring(KEYS[:1]), Clock()).put(here, "i1")
    data = b"".join(objects.get(key) or b"" for key in keys_of(objects))
    assert len(data) > here.get("i1").bytes
    for word in (SECRET, b"decode", b"pages-1"):
        assert word not in data
    digests = {part.blake3 for file in here.get("i1").files for part in file.parts}
    assert not digests & {key.removeprefix("chunks/") for key in keys_of(objects)}
    with pytest.raises(Rejected, match="SH824"):
        Archive(objects, Ring(KEYS[1:]), Clock()).fetch(there, "i1")
    assert Archive(objects, Ring(KEYS[::-1]), Clock()).fetch(there, "i1") is not None, "an old key still decrypts"


def test_an_image_that_is_not_kept_is_none(objects: Objects, there: ImageStore) -> None:
    kept = Archive(objects, Ring(), Clock())
    assert (kept.fetch(there, "i1"), kept.manifest("i1"), kept.all(), kept.discard("i1"), kept.sweep()) == (None, None, (), False, 0)
    with pytest.raises(Rejected, match="SH801"):
        kept.fetch(there, "../i1")


@pytest.mark.parametrize("ring", [Ring(), Ring(KEYS)], ids=["plain", "encrypted"])
@pytest.mark.parametrize("how", ["changed", "gone", "swapped"])
def test_what_was_changed_in_the_archive_is_not_taken(objects: Objects, here: ImageStore, there: ImageStore, ring: Ring, how: str) -> None:
    made(here)
    kept = Archive(objects, ring, Clock())
    kept.put(here, "i1")
    chunks = [key for key in keys_of(objects) if key.startswith("chunks/")]
    data = objects.get(chunks[0]) or b""
    if how == "changed":
        objects.put(chunks[0], bytes([*data[:-1], data[-1] ^ 1]) if data else b"x")
    elif how == "gone":
        objects.delete(chunks[0])
    else:
        objects.put(chunks[0], objects.get(chunks[1]) or b"")
    with pytest.raises(Rejected, match=r"SH804 .*missing in the archive, or isn't"):
        kept.fetch(there, "i1")
    assert list(there.root.iterdir()) == []


def test_only_what_an_agent_of_the_fleet_made_is_taken(objects: Objects, here: ImageStore, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    strict, kept = trusted(tmp_path / "strict", authority, authority.agent("n1")), Archive(objects, Ring(), Clock())
    made(here)
    kept.put(here, "i1")
    with pytest.raises(Rejected, match="SH815"):
        kept.fetch(strict, "i1")
    made(strict, "i2")
    kept.put(strict, "i2")
    other = trusted(tmp_path / "other", authority, authority.agent("n2"))
    assert kept.fetch(other, "i2") == strict.get("i2")
    assert other.open_to_restore("i2").is_dir()


def test_images_that_are_sealed_on_the_node_are_archived_and_sealed_again(objects: Objects, tmp_path: Path) -> None:
    here, there, kept = sealed(tmp_path / "a"), sealed(tmp_path / "b"), Archive(objects, Ring(KEYS), Clock())
    made(here)
    kept.put(here, "i1")
    kept.fetch(there, "i1")
    assert list(here.work.iterdir()) == list(there.work.iterdir()) == []
    with there.opened("i1") as folder:
        assert (folder / "secret.img").read_bytes() == SECRET


def test_an_image_is_there_only_with_all_of_its_chunks(
    objects: Objects, here: ImageStore, there: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(here, pages=2000)
    put, count = type(objects).put, iter(range(100))

    def failing(one: Objects, key: str, data: bytes) -> None:
        if next(count) == 4:
            raise Retry(archives.damaged("i1", "told to fail"))
        put(one, key, data)

    monkeypatch.setattr(type(objects), "put", failing)
    kept = Archive(objects, Ring(), Clock())
    with pytest.raises(Retry):
        kept.put(here, "i1")
    assert (kept.all(), kept.fetch(there, "i1")) == ((), None)
    assert kept.put(here, "i1") < here.get("i1").bytes, "what had gone there needn't go again"
    assert kept.fetch(there, "i1") == here.get("i1")


def test_damage_on_the_node_is_not_archived(objects: Objects, here: ImageStore) -> None:
    made(here)
    (here.folder("i1") / "secret.img").write_bytes(SECRET[::-1])
    kept = Archive(objects, Ring(), Clock())
    with pytest.raises(Rejected, match=r"SH804 .*secret\.img"):
        kept.put(here, "i1")
    assert kept.all() == ()


@pytest.mark.parametrize("ring", [Ring(), Ring(KEYS)], ids=["plain", "encrypted"])
def test_chunks_go_with_the_last_image_that_needs_them_a_day_later(
    objects: Objects, here: ImageStore, there: ImageStore, ring: Ring
) -> None:
    clock = Clock()
    kept = Archive(objects, ring, clock)
    pages = memory(600)
    for image, more in (("i1", memory(300, first=9000)), ("i2", {})):
        write(here.begin(image), pages | more)
        here.commit(info(image))
        kept.put(here, image)
    assert kept.discard("i1")
    assert kept.sweep() == 0, "they may be part of what is just being put there"
    clock.now += GRACE_S + 60
    assert kept.sweep() > 0
    assert kept.sweep() == 0
    assert kept.fetch(there, "i2") == here.get("i2")
    kept.discard("i2")
    kept.sweep()
    assert keys_of(objects) == []


def test_a_chunk_that_nobody_needed_for_long_is_written_anew_before_it_is_counted_on(objects: Objects, here: ImageStore) -> None:
    clock = Clock()
    kept = Archive(objects, Ring(), clock)
    made(here)
    first = kept.put(here, "i1")
    kept.discard("i1")
    clock.now += GRACE_S / 2 + 60
    assert kept.put(here, "i1") == first


def test_nothing_is_swept_when_an_image_can_not_be_read(objects: Objects, here: ImageStore) -> None:
    clock = Clock()
    made(here)
    Archive(objects, Ring(KEYS[1:]), clock).put(here, "i1")
    before = keys_of(objects)
    clock.now += GRACE_S + 60
    with pytest.raises(Rejected, match="SH824"):
        Archive(objects, Ring(KEYS[:1]), clock).sweep()
    assert keys_of(objects) == before


def test_a_store_that_is_away_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(Retry, match="SH822"):
        S3Objects("bucket", endpoint="http://127.0.0.1:1", region="us-east-1").get("chunks/x")
    (tmp_path / "archive").write_text("in the way")
    with pytest.raises(Retry, match="SH822"):
        FolderObjects(tmp_path / "archive").put("chunks/x", b"")


def test_many_objects_are_all_listed(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an object store, page by page."""
    if isinstance(objects, S3Objects):
        pages = objects._client.list_objects_v2
        monkeypatch.setattr(objects._client, "list_objects_v2", lambda **asked: pages(**asked, MaxKeys=3))
    for n in range(10):
        objects.put(f"chunks/{n}", b"x")
    objects.put("images/a", b"")
    assert sorted(kept.key for kept in objects.all("chunks/")) == [f"chunks/{n}" for n in range(10)]
    objects.delete("chunks/3")
    objects.delete("chunks/3")
    assert objects.find("chunks/3") is None
    assert objects.find("images/a") is not None
    assert objects.get("images/a") == b""


def test_nobody_else_can_read_an_archive_in_a_folder_and_a_power_cut_takes_nothing_of_it(
    tmp_path: Path, here: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(here)
    root, synced, fsync = tmp_path / "archive", set[Path](), os.fsync

    def noted(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    before = os.umask(0o022)
    try:
        Archive(FolderObjects(root), Ring(), Clock()).put(here, "i1")
    finally:
        os.umask(before)
    inside = [root, *root.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in inside if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in inside if path.is_file()} == {0o600}
    assert {path for path in inside if path.is_dir()} <= synced, "names, too, are on the disk"


# -- how fast, and who first

RATE = 40 * CHUNK


def test_what_goes_to_the_archive_shares_the_limit_and_gives_way_to_a_worker_that_has_to_leave(objects: Objects, tmp_path: Path) -> None:
    """A checkpoint is on its way to the archive, at a rate that all share, when a worker has to leave."""
    pair = Pair(tmp_path, Allowance(idle_s=20, handshake_s=2, resume_s=5))
    with contextlib.closing(pair.server):
        pair.image("kept", size=30 * CHUNK)
        pair.image("move", size=10 * CHUNK)
        depot = StoredDepot(pair.here, pair.tls, Pacing(rate=RATE), Archive(objects, Ring(), Clock()))
        sent, ended = {"kept": 0, "move": 0}, []

        def send(image: str, address: str, deadline: float | None) -> None:
            depot.send(image, pair.peer.node, address, lambda count: sent.__setitem__(image, count), deadline)
            ended.append(image)

        began = time.monotonic()
        keeping = threading.Thread(target=send, args=("kept", ARCHIVE, None))
        keeping.start()
        until(lambda: sent["kept"] >= 3 * CHUNK, "the image is on its way to the archive")
        moving = threading.Thread(target=send, args=("move", f"{pair.peer.host}:{pair.peer.port}", 1000.0))
        moving.start()
        until(lambda: sent["move"] >= CHUNK, "the move has begun")
        before = sent["kept"]
        until(lambda: "move" in ended, "the move is over", 20)
        between = sent["kept"] - before
        moving.join(20)
        keeping.join(20)
        assert between <= 10 * CHUNK, "meanwhile, at most what its eight threads had under way"
        assert ended == ["move", "kept"]
        assert time.monotonic() - began >= (sent["kept"] + sent["move"]) / RATE - 2 / 40, "together they kept to the limit"
        assert pair.there.verify("move") == ()
        assert depot.archive is not None
        assert depot.archive.manifest("kept") == pair.here.get("kept")


def test_what_comes_from_the_archive_keeps_to_the_limit_and_tells_how_far_it_is(
    objects: Objects, here: ImageStore, there: ImageStore
) -> None:
    made(here, pages=2500)
    kept, pacing, told = Archive(objects, Ring(), Clock()), Pacing(rate=RATE), list[int]()
    kept.put(here, "i1")
    began = time.monotonic()
    with pacing.sending(Urgency()) as pace:
        kept.fetch(there, "i1", told.append, pace)
    size = here.get("i1").bytes
    assert time.monotonic() - began >= size / RATE - 2 / 40
    assert told == sorted(told)
    assert told[-1] == size
    assert len(told) > 5, "not once a file"
