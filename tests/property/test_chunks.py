"""Cutting images: for any pagemap, what is cut is joined to the same bytes, and what is inserted changes only the chunks beside it."""

import random
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from shunter_agent.images import pagemap as pagemaps
from shunter_agent.images.cutting import CHUNK, along, fixed, pieces_of
from shunter_agent.images.pagemap import LAZY, PAGE, PARENT, PRESENT, NotAPagemap, Pagemap, Run, joined

FLAGS = st.sampled_from([PRESENT, PRESENT | LAZY, PARENT, LAZY])


@st.composite
def memories(draw: st.DrawFn, flags: st.SearchStrategy[int] = FLAGS) -> tuple[Run, ...]:
    """Ascending runs, some touching each other, some far apart."""
    at, runs = 0x5000_0000_0000, []
    for gap, pages, flag in draw(st.lists(st.tuples(st.integers(0, 700), st.integers(1, 600), flags), max_size=12)):
        at += gap * PAGE
        runs.append(Run(at, pages, flag))
        at += pages * PAGE
    return tuple(runs)


def page(address: int, salt: int = 0) -> bytes:
    return random.Random(address * 31 + salt).randbytes(16) * (PAGE // 16)


def content(runs: tuple[Run, ...]) -> bytes:
    return b"".join(page(run.vaddr + n * PAGE) for run in runs for n in range(run.pages))


def hashes(data: bytes, runs: tuple[Run, ...]) -> dict[int, bytes]:
    return {piece.window: blake3(data[piece.offset : piece.offset + piece.size]).digest() for piece in along(runs)}


@given(memories(), st.integers(1, 2**32 - 1))
def test_a_pagemap_is_read_as_it_was_written(runs: tuple[Run, ...], number: int) -> None:
    written = Pagemap(pages_id=number, runs=runs)
    assert pagemaps.parse(pagemaps.dump(written)) == written


@given(memories(), st.data())
def test_a_pagemap_that_ends_early_is_none_or_a_shorter_one(runs: tuple[Run, ...], data: st.DataObject) -> None:
    text = pagemaps.dump(Pagemap(pages_id=1, runs=runs))
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    try:
        found = pagemaps.parse(cut)
    except NotAPagemap:
        return
    assert found.runs == runs[: len(found.runs)]


@given(memories(st.just(PRESENT)))
def test_pieces_lie_side_by_side_and_each_within_one_stretch_of_addresses(runs: tuple[Run, ...]) -> None:
    pieces = along(runs)
    at = 0
    for piece in pieces:
        assert (piece.offset, piece.size) == (at, sum(run.pages for run in piece.runs) * PAGE)
        assert 0 < piece.size <= CHUNK
        assert {run.vaddr // CHUNK for run in piece.runs} == {(run.end - 1) // CHUNK for run in piece.runs} == {piece.window // CHUNK}
        at += piece.size
    assert at == sum(run.pages for run in runs) * PAGE
    assert joined(run for piece in pieces for run in piece.runs) == joined(runs)
    assert len({piece.window for piece in pieces}) == len(pieces)


@given(memories(st.just(PRESENT)), st.randoms(use_true_random=False))
def test_pages_that_come_or_change_alter_the_chunks_of_their_own_stretch_alone(runs: tuple[Run, ...], chance: random.Random) -> None:
    before = hashes(content(runs), runs)
    if not runs:
        return
    grown = chance.randrange(len(runs))
    room = (runs[grown + 1].vaddr if grown + 1 < len(runs) else runs[grown].end + CHUNK) - runs[grown].end
    more = min(room // PAGE, 300)
    after_runs = tuple(Run(r.vaddr, r.pages + more, r.flags) if n == grown else r for n, r in enumerate(runs))
    after = hashes(content(after_runs), after_runs)
    touched = {at // CHUNK * CHUNK for at in range(runs[grown].end, runs[grown].end + more * PAGE, PAGE)}
    assert {window for window in before if before[window] != after.get(window)} <= touched
    assert set(after) - set(before) <= touched


@given(st.integers(0, 5 * CHUNK))
def test_fixed_pieces_cover_a_file(size: int) -> None:
    pieces = fixed(size)
    assert [piece.offset for piece in pieces] == [n * CHUNK for n in range(len(pieces))]
    assert sum(piece.size for piece in pieces) == size
    assert all(0 < piece.size <= CHUNK for piece in pieces) or size == 0


def test_a_file_of_pages_is_cut_only_as_a_pagemap_of_its_size_says(tmp_path: Path) -> None:
    runs = (Run(CHUNK - 2 * PAGE, 4), Run(9 * CHUNK, 1, PARENT))
    (tmp_path / "pages-1.img").write_bytes(content(runs[:1]))
    (tmp_path / "pages-2.img").write_bytes(b"x" * PAGE)
    (tmp_path / "pagemap-7.img").write_bytes(pagemaps.dump(Pagemap(pages_id=1, runs=runs)))
    (tmp_path / "pagemap-8.img").write_bytes(pagemaps.dump(Pagemap(pages_id=2, runs=runs)))
    (tmp_path / "pagemap-9.img").write_bytes(b"no pagemap")
    (tmp_path / "pagemap-10.img").write_bytes(pagemaps.dump(Pagemap(pages_id=3, runs=runs)))
    assert {name: [piece.size for piece in pieces] for name, pieces in pieces_of(tmp_path).items()} == {"pages-1.img": [2 * PAGE, 2 * PAGE]}


@pytest.mark.parametrize("data", [b"", b"12345678", pagemaps.dump(Pagemap(pages_id=1, runs=()))[:10]], ids=["empty", "other", "torn"])
def test_what_is_no_pagemap_is_not_read_as_one(data: bytes) -> None:
    with pytest.raises(NotAPagemap):
        pagemaps.parse(data)


def test_older_releases_of_criu_wrote_pages_and_parents_otherwise() -> None:
    from shunter_agent.images.criu_images_pb2 import PagemapEntry

    text = pagemaps.dump(Pagemap(pages_id=1, runs=()))
    for entry in (PagemapEntry(vaddr=PAGE, compat_nr_pages=3), PagemapEntry(vaddr=9 * PAGE, compat_nr_pages=2, in_parent=True)):
        body = entry.SerializeToString()
        text += len(body).to_bytes(4, "little") + body
    assert pagemaps.parse(text).runs == (Run(PAGE, 3, PRESENT), Run(9 * PAGE, 2, PARENT))
