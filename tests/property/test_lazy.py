"""Memory that CRIU leaves to others to load: of any image, every such page is found once, with its bytes, within one mapping."""

import itertools
import os
import random
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shunter_agent.images.criu_images_pb2 import MmEntry
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.lazy import LazyMemory
from shunter_agent.images.pagemap import LAZY, PAGE, PARENT, PRESENT, NotAPagemap, Pagemap, Run, dump, joined

BASE = 0x7000_0000_0000
PAGES = 700
EAGER, OWN, COPIED = PRESENT, PRESENT | LAZY, PARENT | LAZY


@lru_cache(maxsize=4096)
def page(number: int, copy: bool) -> bytes:
    return random.Random(number * 2 + copy).randbytes(32) * (PAGE // 32)


def mm(borders: list[int]) -> bytes:
    entry = MmEntry()
    for begin, end in itertools.pairwise(borders):
        entry.vmas.add(start=BASE + begin * PAGE, end=BASE + end * PAGE)
    # CRIU's own file has more in it, which is left alone
    body = b"\x08\x01" + entry.SerializeToString()
    return (0x54564319).to_bytes(4, "little") + (0x57492820).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body


def image(folder: Path, pid: int, kinds: dict[int, int], borders: list[int]) -> None:
    """An image of a process whose pages are `kinds`, on top of a copy that has every page of 0 to `PAGES` that is COPIED or OWN."""
    runs = joined(Run(BASE + n * PAGE, 1, kind) for n, kind in sorted(kinds.items()))
    copied = [n for n, kind in sorted(kinds.items()) if kind != EAGER]
    (folder / "parent").mkdir(exist_ok=True)
    (folder / f"pagemap-{pid}.img").write_bytes(dump(Pagemap(pages_id=pid, runs=runs)))
    (folder / f"pages-{pid}.img").write_bytes(b"".join(page(n, False) for n, kind in sorted(kinds.items()) if kind & PRESENT))
    (folder / f"mm-{pid}.img").write_bytes(mm(borders))
    copy = Pagemap(pages_id=pid + 100, runs=joined(Run(BASE + n * PAGE, 1) for n in copied))
    (folder / "parent" / f"pagemap-{pid}.img").write_bytes(dump(copy))
    (folder / "parent" / f"pages-{pid + 100}.img").write_bytes(b"".join(page(n, True) for n in copied))


@st.composite
def processes(draw: st.DrawFn) -> dict[int, int]:
    kinds = {}
    for start, length, kind in draw(
        st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 300), st.sampled_from((EAGER, OWN, COPIED))), max_size=8)
    ):
        kinds |= dict.fromkeys(range(start, min(start + length, PAGES)), kind)
    return kinds


BORDERS = st.lists(st.integers(1, PAGES - 1), max_size=6, unique=True).map(lambda inner: [0, *sorted(inner), PAGES])


@given(processes(), BORDERS)
def test_every_page_is_found_once_with_its_bytes_and_within_one_mapping(kinds: dict[int, int], borders: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        image(folder, 7, kinds, borders)
        (folder / "pagemap-shmem-9.img").write_bytes(b"nobody reads it: shared memory is never left out")
        with LazyMemory(folder) as memory:
            parts = memory.processes.get(7, ())
            found: dict[int, bytes] = {}
            for part in parts:
                assert part.end - part.vaddr <= CHUNK
                first, last = (part.vaddr - BASE) // PAGE, (part.end - BASE) // PAGE - 1
                assert not any(first < border <= last for border in borders), "it lies in two mappings"
                data = os.pread(part.descriptor, part.end - part.vaddr, part.offset)
                for n in range(first, last + 1):
                    assert n not in found
                    found[n] = data[(n - first) * PAGE : (n - first + 1) * PAGE]
            assert found == {n: page(n, kind == COPIED) for n, kind in kinds.items() if kind & LAZY}
            assert list(parts) == sorted(parts)
            assert memory.bytes == len(found) * PAGE


@given(st.tuples(processes(), processes(), processes()))
def test_what_may_be_shared_is_what_lies_at_the_same_addresses(trees: tuple[dict[int, int], ...]) -> None:
    with tempfile.TemporaryDirectory() as name:
        for pid, kinds in enumerate(trees, 1):
            image(Path(name), pid, kinds, [0, PAGES])
        with LazyMemory(Path(name)) as memory:
            lazy = [{n for n, kind in kinds.items() if kind & LAZY} for kinds in trees]
            assert memory.shared == (sum(map(len, lazy)) - len(set.union(*lazy))) * PAGE


def spoilt(folder: Path, kinds: dict[int, int], borders: list[int]) -> str:
    before = len(os.listdir("/proc/self/fd"))
    image(folder, 7, kinds, borders)
    if kinds.get(5) == COPIED:
        (folder / "parent" / "pagemap-7.img").write_bytes(dump(Pagemap(pages_id=107, runs=(Run(BASE, 1),))))
        (folder / "parent" / "pages-107.img").write_bytes(bytes(PAGE))
    with pytest.raises(NotAPagemap) as raised:
        LazyMemory(folder)
    assert len(os.listdir("/proc/self/fd")) == before
    return str(raised.value)


def test_an_image_whose_files_dont_fit_is_told_from_one_that_can_be_loaded(tmp_path: Path) -> None:
    for name in ("outside", "nowhere", "short", "list"):
        (tmp_path / name).mkdir()
    assert spoilt(tmp_path / "outside", {5: OWN}, [0, 5]) == "a page lies in no mapping of its process"
    assert spoilt(tmp_path / "nowhere", {5: COPIED}, [0, 9]) == "a page is neither in the copy nor among what changed"
    image(tmp_path / "short", 7, {5: OWN}, [0, 9])
    os.truncate(tmp_path / "short" / "pages-7.img", PAGE - 1)
    with pytest.raises(NotAPagemap, match="another size"):
        LazyMemory(tmp_path / "short")
    image(tmp_path / "list", 7, {5: OWN}, [0, 9])
    for wrong in (b"", b"x" * 40, (tmp_path / "list" / "mm-7.img").read_bytes()[:12] + b"\xff" * 5):
        (tmp_path / "list" / "mm-7.img").write_bytes(wrong)
        with pytest.raises(NotAPagemap, match="list a process' mappings"):
            LazyMemory(tmp_path / "list")
    (tmp_path / "list" / "mm-7.img").unlink()
    with pytest.raises(FileNotFoundError):
        LazyMemory(tmp_path / "list")
