"""What images take of a disk that can let files share blocks: a real XFS, in a file."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from shunter_agent import check
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.pagemap import PAGE
from shunter_agent.images.sharing import can_share, share, share_chunks
from shunter_agent.images.store import ImageStore
from shunter_agent.settings import ImageSettings, Settings, SlotSettings, TlsSettings
from test_chunks_sent import Memory, memory, write
from test_images_sealed import sealed
from test_transfer import info, until

MKFS = shutil.which("mkfs.xfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
pytestmark = [pytest.mark.lab, pytest.mark.skipif(MKFS is None, reason="no mkfs.xfs (Debian: xfsprogs)")]
REFUSALS = ("Operation not permitted", "permission denied", "failed to setup loop device", "unknown filesystem type")
"""What ``mount`` says where root isn't the machine's own, and where the kernel has no loop devices or no XFS."""
WEIGHTS, OWN = 6000, 1500
"""Pages of a worker: those that all of its model have, and those that no other has."""


@pytest.fixture
def xfs(tmp_path: Path) -> Iterator[Path]:
    file, mounted = tmp_path / "disk", tmp_path / "xfs"
    mounted.mkdir()
    with file.open("wb") as made:
        made.truncate(512 << 20)
    subprocess.run([MKFS or "", "-q", file], check=True)
    mount = subprocess.run(["mount", "-o", "loop", file, mounted], check=False, capture_output=True, text=True)
    if mount.returncode and any(refusal in mount.stderr for refusal in REFUSALS):
        pytest.skip(f"this machine mounts no XFS from a file: {mount.stderr.splitlines()[0].rpartition(': ')[2]}")
    assert mount.returncode == 0, mount.stderr
    yield mounted
    subprocess.run(["umount", mounted], check=True)


def used(folder: Path) -> int:
    """Bytes of the file system that are in use, with all on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        subprocess.run(["sync", "-f", folder], check=True)
        stat = os.fstatvfs(descriptor)
    finally:
        os.close(descriptor)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def checkpoint(store: ImageStore, image: str, pages: Memory) -> int:
    """How many bytes more are in use after it."""
    before = used(store.root)
    write(store.begin(image), pages)
    store.commit(info(image))
    store.sync(image)
    return used(store.root) - before


def test_what_checkpoints_have_in_common_lies_on_the_disk_once(xfs: Path) -> None:
    """Three of one worker, and the first of another of its model. CRIU's files, cut as CRIU's are."""
    store, weights = ImageStore(xfs / "images"), memory(WEIGHTS)
    first = weights | memory(OWN, first=WEIGHTS)
    second = first | memory(OWN // 3, first=WEIGHTS)
    third = second | memory(OWN // 3, first=WEIGHTS + OWN // 3)
    other = weights | memory(OWN, first=WEIGHTS)
    took = [checkpoint(store, f"i{n}", pages) for n, pages in enumerate((first, second, third, other), 1)]
    whole = (WEIGHTS + OWN) * PAGE
    assert whole <= took[0] < whole * 1.1
    assert max(took[1:3]) < OWN // 3 * PAGE + 3 * CHUNK, "what has changed, and the chunks at its edges"
    assert took[3] < OWN * PAGE + 3 * CHUNK, "what its model's other worker hasn't"
    for image in ("i1", "i2", "i3", "i4"):
        assert store.verify(image) == ()
    before = used(xfs)
    for image in ("i1", "i2", "i4"):
        store.discard(image)
    assert before - used(xfs) < sum(took) - whole + 3 * CHUNK, "what others share stays for them"
    assert store.verify("i3") == ()
    assert checkpoint(store, "i5", third) < 3 * CHUNK


def test_sharing_changes_nothing_that_anybody_sees(xfs: Path) -> None:
    """An image whose bytes were compared needn't be read again for it before a restore."""
    store, pages = ImageStore(xfs / "images"), memory(600)
    checkpoint(store, "i1", pages)
    write(store.begin("i2"), pages)
    store.commit(info("i2"))
    seen = [(path.name, path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in sorted(store.folder("i2").iterdir())]
    before = used(xfs)
    store.sync("i2")
    assert before - used(xfs) > 500 * PAGE, "they share now"
    assert [(path.name, path.stat().st_mtime_ns, path.stat().st_ctime_ns) for path in sorted(store.folder("i2").iterdir())] == seen
    (store.folder("i2") / "core-1.img").write_bytes(b"evil")
    (problem,) = store.verify("i2")
    assert problem.code == "SH804"
    assert store.verify("i1") == (), "a file that is written to is the other's no more"


def test_bytes_that_differ_are_never_shared_whatever_somebody_says_of_them(xfs: Path) -> None:
    with (xfs / "a").open("w+b", buffering=0) as one, (xfs / "b").open("w+b", buffering=0) as other:
        one.write(b"a" * 2 * PAGE)
        other.write(b"a" * PAGE + b"b" * PAGE)
        assert share(one.fileno(), 0, other.fileno(), 0, 2 * PAGE) == 0
        assert share(one.fileno(), 0, other.fileno(), 0, PAGE + 5) == PAGE
        assert (xfs / "b").read_bytes() == b"a" * PAGE + b"b" * PAGE


def test_an_image_that_is_discarded_meanwhile_makes_room_at_once(xfs: Path) -> None:
    store, pages = ImageStore(xfs / "images"), memory(3000)
    checkpoint(store, "i1", pages)
    write(store.begin("i2"), pages)
    store.commit(info("i2"))
    before, discarded = used(xfs), []

    def meanwhile() -> None:
        if not discarded:
            discarded.extend(store.discard(image) for image in ("i1", "i2"))
            until(lambda: before - used(xfs) > 1.9 * len(pages) * PAGE, "there is room")  # the kernel does that beside

    assert share_chunks(store.folder("i2"), store.get("i2"), store.index.find, store.plain_path, meanwhile) == 0
    assert discarded == [True, True]


def test_check_says_where_nothing_can_be_shared(xfs: Path, tmp_path: Path) -> None:
    tls = TlsSettings(ca=tmp_path, cert=tmp_path, key=tmp_path)
    asked = Settings(node="n", listen="h:1", image_listen="h:2", state=xfs, tls=tls, slots=(SlotSettings(index=0),))
    assert can_share(xfs)
    assert check.remarks(asked) == ()
    memory_only = msgspec.structs.replace(asked, state=Path("/dev/shm"))
    (remark,) = check.remarks(memory_only)
    assert remark.code == "SH829"
    assert remark.what.startswith("memory can't let files share blocks")
    assert check.remarks(msgspec.structs.replace(memory_only, images=ImageSettings(keys=(tmp_path,)))) == (), "there is nothing to share"


def test_sealed_images_share_nothing(xfs: Path) -> None:
    store = sealed(xfs / "images", work=Path("/dev/shm") / f"sharing-{os.getpid()}")
    try:
        pages = memory(1000)
        assert min(checkpoint(store, image, pages) for image in ("i1", "i2")) > len(pages) * PAGE
    finally:
        shutil.rmtree(store.work)
