"""Images on top of a copy: for any dump and any copy made before it, joining them gives what was dumped, also after dying on the way."""

import contextlib
import itertools
import os
import random
import tempfile
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter_agent.images import spread
from shunter_agent.images.criu_images_pb2 import PagemapEntry, PagemapHead
from shunter_agent.images.cutting import CHUNK, along
from shunter_agent.images.manifest import Chunk, ImageFile, ImageInfo, ImageManifest, manifest_of
from shunter_agent.images.pagemap import LAZY, PAGE, PARENT, PRESENT, Pagemap, Run, dump, joined, parse
from shunter_agent.runtime.port import WorkerSpec

SPEC = WorkerSpec(worker="w1", role="decode", graph="g", engine="vllm", address="10.0.0.1:9000")
BASE = 0x7000_0000_0000
Memory = dict[int, int]
"""Page number -> what is in it."""


@lru_cache(maxsize=4096)
def page(address: int, value: int) -> bytes:
    return random.Random(address * 17 + value).randbytes(32) * (PAGE // 32)


@st.composite
def moments(draw: st.DrawFn) -> tuple[Memory, Memory]:
    """A memory when it was copied, and when it was dumped."""
    copied = {
        n: 0
        for start, length in draw(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 80)), max_size=5))
        for n in range(start, start + length)
    }
    dumped = dict(copied)
    for n in draw(st.lists(st.integers(0, 980), max_size=12)):
        dumped[n] = 1
    for start, length in draw(st.lists(st.tuples(st.integers(0, 980), st.integers(1, 40)), max_size=3)):
        for n in range(start, start + length):
            dumped.pop(n, None)
    return copied, dumped or {0: 1}


def runs_of(memory: Memory, flags: int = PRESENT) -> tuple[Run, ...]:
    return joined(Run(BASE + n * PAGE, 1, flags) for n in sorted(memory))


def content(memory: Memory, runs: tuple[Run, ...]) -> bytes:
    return b"".join(page(at, memory[(at - BASE) // PAGE]) for run in runs for at in range(run.vaddr, run.end, PAGE))


def chunks_of(data: bytes, runs: tuple[Run, ...]) -> list[Chunk]:
    return [Chunk(blake3(data[p.offset : p.offset + p.size]).hexdigest(), p.size) for p in along(runs)]


def build(folder: Path, copied: Memory, dumped: Memory) -> tuple[ImageManifest, dict[int, Chunk], bytes]:
    """A spread image as a sender makes it; its manifest, the copy's chunks by offset, and the pages as they were dumped."""
    for area in (spread.COPY, spread.ORIGINALS):
        (folder / area).mkdir()
    copy_runs, runs = runs_of(copied), runs_of(dumped, PRESENT | LAZY)
    pages = content(dumped, runs)
    same = runs_of({n: v for n, v in dumped.items() if copied.get(n) == v})
    changed = {n: v for n, v in dumped.items() if copied.get(n) != v}
    now = spread.on_top(Pagemap(pages_id=1, runs=runs), same)
    (folder / spread.ORIGINALS / "pagemap-1.img").write_bytes(dump(Pagemap(pages_id=1, runs=runs)))
    (folder / spread.COPY / "pagemap-1.img").write_bytes(dump(Pagemap(pages_id=5, runs=copy_runs)))
    (folder / spread.COPY / "pages-5.img").write_bytes(content(copied, copy_runs))
    (folder / "pagemap-1.img").write_bytes(dump(now))
    (folder / f"pages-{1 + spread.CHANGED}.img").write_bytes(content(changed, runs_of(changed)))
    (folder / "core-1.img").write_bytes(b"core")
    text = dump(Pagemap(pages_id=1, runs=runs))
    files = (
        ImageFile.of("pages-1.img", chunks_of(pages, runs)),
        ImageFile.of("pagemap-1.img", [Chunk(blake3(text).hexdigest(), len(text))]),
        ImageFile.of("core-1.img", [Chunk(blake3(b"core").hexdigest(), 4)]),
    )
    offsets = dict(
        zip(
            itertools.accumulate((p.size for p in along(copy_runs)), initial=0),
            chunks_of(content(copied, copy_runs), copy_runs),
            strict=False,
        )
    )
    return manifest_of(ImageInfo(id="i1", spec=SPEC, incarnation=0, taken_at=1.0, runtime="criu"), files), offsets, pages


def joined_is(folder: Path, manifest: ImageManifest, pages: bytes) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["core-1.img", "pagemap-1.img", "pages-1.img"]
    assert (folder / "pages-1.img").read_bytes() == pages
    assert blake3((folder / "pagemap-1.img").read_bytes()).hexdigest() == manifest.files[1].blake3


@settings(deadline=None, max_examples=60)
@given(moments())
def test_what_is_joined_is_what_was_dumped(moment: tuple[Memory, Memory]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest, offsets, pages = build(folder, *moment)
        assert spread.is_spread(folder)
        assert spread.wrong(folder, manifest, lambda _name: offsets) == ""
        assert spread.join(folder, manifest)
        assert not spread.is_spread(folder)
        joined_is(folder, manifest, pages)


@settings(deadline=None, max_examples=60)
@given(moments(), st.data())
def test_a_byte_that_is_wrong_anywhere_is_found(moment: tuple[Memory, Memory], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest, offsets, _pages = build(folder, *moment)
        changed = folder / f"pages-{1 + spread.CHANGED}.img"
        size = changed.stat().st_size
        if not size:
            return
        at = data.draw(st.integers(0, size - 1))
        with changed.open("r+b") as file:
            file.seek(at)
            (old,) = file.read(1)
            file.seek(at)
            file.write(bytes([old ^ 1]))
        assert spread.wrong(folder, manifest, lambda _name: offsets) != ""
        assert not spread.join(folder, manifest)
        assert spread.is_spread(folder)
        assert not list(folder.glob("*.log"))


@given(moments())
def test_on_top_keeps_every_page_in_its_place(moment: tuple[Memory, Memory]) -> None:
    copied, dumped = moment
    runs = joined(Run(BASE + n * PAGE, 1, PRESENT | (LAZY if n % 7 else 0)) for n in sorted(dumped))
    same = runs_of({n: v for n, v in dumped.items() if copied.get(n) == v})
    now = spread.on_top(Pagemap(pages_id=1, runs=runs), same)
    assert joined(Run(r.vaddr, r.pages, 0) for r in now.runs) == joined(Run(r.vaddr, r.pages, 0) for r in runs)
    assert {at for r in now.runs if not r.flags & PRESENT for at in range(r.vaddr, r.end, PAGE)} == {
        at for r in same for at in range(r.vaddr, r.end, PAGE)
    }
    assert {at for r in now.runs if r.flags & LAZY for at in range(r.vaddr, r.end, PAGE)} == {
        at for r in runs if r.flags & LAZY for at in range(r.vaddr, r.end, PAGE)
    }, "what may be loaded by others still may"


class _Died(Exception):
    pass


@contextlib.contextmanager
def dying_after(changes: int) -> Iterator[None]:
    """Let so many names be changed or removed, and die before the next."""
    left = [changes]

    def spend(real, *args, **named):
        if not left[0]:
            raise _Died
        left[0] -= 1
        return real(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        for call in ("rename", "unlink", "rmdir"):
            patch.setattr(os, call, partial(spend, getattr(os, call)))
        yield


def test_a_death_anywhere_on_the_way_leaves_what_can_be_joined(tmp_path: Path) -> None:
    copied = {n: 0 for n in range(600)}
    dumped = {**copied, 3: 1, 700: 1}
    for changes in itertools.count():
        folder = tmp_path / str(changes)
        folder.mkdir()
        manifest, _offsets, pages = build(folder, copied, dumped)
        try:
            with dying_after(changes):
                spread.join(folder, manifest)
        except _Died:
            assert spread.is_spread(folder)
            assert spread.join(folder, manifest)
            joined_is(folder, manifest, pages)
        else:
            joined_is(folder, manifest, pages)
            break
    assert changes >= 5


def named(runs: tuple[Run, ...], flags: int) -> tuple[Run, ...]:
    return tuple(Run(run.vaddr, run.pages, flags) for run in runs)


@pytest.mark.parametrize("flags", [PRESENT | PARENT, 0, LAZY, PARENT | 8, PRESENT | 8])
def test_a_page_is_in_one_place_or_nothing_is_taken(tmp_path: Path, flags: int) -> None:
    """CRIU reads what is said to be in both places from the copy, of which no digest says anything where it has changed."""
    copied = {n: 0 for n in range(4)}
    manifest, offsets, _pages = build(tmp_path, copied, {n: 1 for n in range(4)})
    assert spread.wrong(tmp_path, manifest, lambda _name: offsets) == ""
    now = Pagemap(pages_id=1 + spread.CHANGED, runs=named(runs_of(copied), flags))
    (tmp_path / "pagemap-1.img").write_bytes(dump(now))
    if not flags & PRESENT:
        (tmp_path / f"pages-{1 + spread.CHANGED}.img").write_bytes(b"")
    assert "two places, or in none" in spread.wrong(tmp_path, manifest, lambda _name: offsets)
    assert not spread.join(tmp_path, manifest)


def test_an_older_word_for_a_page_in_the_copy_is_not_overlooked(tmp_path: Path) -> None:
    copied = {n: 0 for n in range(4)}
    manifest, offsets, _pages = build(tmp_path, copied, {n: 1 for n in range(4)})
    (run,) = runs_of(copied)
    head, entry = PagemapHead(pages_id=1 + spread.CHANGED), PagemapEntry(vaddr=run.vaddr, compat_nr_pages=4, flags=PRESENT, in_parent=True)
    parts = [part.SerializeToString() for part in (head, entry)]
    data = dump(Pagemap(pages_id=1, runs=()))[:8] + b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    assert parse(data).runs[0].flags == PRESENT | PARENT
    (tmp_path / "pagemap-1.img").write_bytes(data)
    assert "as agents write them" in spread.wrong(tmp_path, manifest, lambda _name: offsets)


@pytest.mark.parametrize("order", ["twice", "back", "over each other"])
def test_a_copy_that_says_twice_what_is_in_a_page_is_not_taken(tmp_path: Path, order: str) -> None:
    """CRIU takes what comes first, and whoever looks for a place takes what comes last."""
    copied = {n: 0 for n in range(8)}
    manifest, offsets, _pages = build(tmp_path, copied, copied)
    assert spread.wrong(tmp_path, manifest, lambda _name: offsets) == ""
    evil, good = content({n: 2 for n in range(8)}, runs_of(copied)), content(copied, runs_of(copied))
    (run,) = runs_of(copied)
    runs = {
        "twice": (run, run),
        "back": (Run(run.vaddr + 4 * PAGE, 4), Run(run.vaddr, 4)),
        "over each other": (Run(run.vaddr, 6), Run(run.vaddr + 2 * PAGE, 6)),
    }[order]
    pages = (evil + good)[: sum(r.pages for r in runs) * PAGE]
    (tmp_path / spread.COPY / "pagemap-1.img").write_bytes(dump(Pagemap(pages_id=5, runs=runs)))
    (tmp_path / spread.COPY / "pages-5.img").write_bytes(pages)
    twice = {0: Chunk(blake3(evil).hexdigest(), len(evil)), **{len(evil) + at: chunk for at, chunk in offsets.items()}}
    assert spread.wrong(tmp_path, manifest, lambda _name: twice) != ""
    assert not spread.join(tmp_path, manifest)


def test_a_copy_on_top_of_another_is_not_taken(tmp_path: Path) -> None:
    copied = {n: 0 for n in range(8)}
    manifest, offsets, _pages = build(tmp_path, copied, copied)
    (tmp_path / spread.COPY / "pagemap-1.img").write_bytes(dump(Pagemap(pages_id=5, runs=named(runs_of(copied), PARENT))))
    (tmp_path / spread.COPY / "pages-5.img").write_bytes(b"")
    assert "on top of another" in spread.wrong(tmp_path, manifest, lambda _name: offsets)


def test_parts_that_do_not_fit_together_are_found(tmp_path: Path) -> None:
    copied = {n: 0 for n in range(CHUNK // PAGE)}
    manifest, offsets, _pages = build(tmp_path, copied, {**copied, 5: 1})
    (tmp_path / "pagemap-1.img").write_bytes(dump(Pagemap(pages_id=1 + spread.CHANGED, runs=runs_of(copied)[:0])))
    assert "other pages" in spread.wrong(tmp_path, manifest, lambda _name: offsets)
    (tmp_path / "pagemap-1.img").write_bytes(dump(Pagemap(pages_id=1 + spread.CHANGED, runs=runs_of(copied))))
    assert "another size" in spread.wrong(tmp_path, manifest, lambda _name: offsets)
