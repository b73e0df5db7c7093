"""What is found to differ from a copy is what differs, page by page, however much is kept of it."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shunter_agent.images import differences
from shunter_agent.images.copying import Copied
from shunter_agent.images.cutting import CHUNK, Piece, along
from shunter_agent.images.differences import Differences, fits
from shunter_agent.images.frames import Broken
from shunter_agent.images.pagemap import PAGE, Run

BASE = 64 * CHUNK
NAME = "pagemap-7.img"


class Memory:
    """Of a process: single bytes stand for pages, by their number from `BASE` on."""

    pid = 7

    def __init__(self, pages: dict[int, int]) -> None:
        self.pages = dict(sorted(pages.items()))

    def runs(self) -> Sequence[tuple[int, int]]:
        return [(BASE + number * PAGE, 1) for number in self.pages]

    def read(self, address: int, into: memoryview) -> bool:
        first = (address - BASE) // PAGE
        into[:] = b"".join(bytes([self.pages[first + n]]) * PAGE for n in range(len(into) // PAGE))
        return True

    def close(self) -> None:
        pass


def pieces(pages: dict[int, int]) -> tuple[Piece, ...]:
    """As a dump's pagemap has them: neighbours in one run."""
    runs: list[Run] = []
    for number in sorted(pages):
        address = BASE + number * PAGE
        if runs and runs[-1].end == address:
            runs[-1] = Run(runs[-1].vaddr, runs[-1].pages + 1)
        else:
            runs.append(Run(address, 1))
    return along(runs)


def numbers(runs: Sequence[Run]) -> list[int]:
    return [(run.vaddr - BASE) // PAGE + n for run in runs for n in range(run.pages)]


def written(folder: Path, pages: dict[int, int]) -> Path:
    path = folder / "pages-1.img"
    path.write_bytes(b"".join(bytes([pages[number]]) * PAGE for number in sorted(pages)))
    return path


def copied(pages: dict[int, int]) -> Copied:
    made = Copied(Memory(pages), 1, time.monotonic() + 60)
    for _ in made.chunks():
        pass
    return made


PAGES = st.dictionaries(st.integers(0, 70), st.integers(0, 2), min_size=1, max_size=71)


@given(PAGES, st.dictionaries(st.integers(0, 70), st.integers(0, 2), max_size=4), st.sets(st.integers(0, 70), max_size=2))
def test_pages_are_the_same_where_they_were_copied_as_they_are(before: dict[int, int], newer: dict[int, int], gone: set[int]) -> None:
    after = {number: page for number, page in (before | newer).items() if number not in gone}
    made = copied(before)
    for piece in pieces(after):
        own = numbers(piece.runs)
        same, fresh = made.compare(piece, b"".join(bytes([after[number]]) * PAGE for number in own))
        assert numbers(same) == [number for number in own if before.get(number) == after[number]]
        assert fresh == b"".join(bytes([after[number]]) * PAGE for number in own if before.get(number) != after[number])
        assert all(run.pages > 0 for run in same)


BEFORE = dict.fromkeys(range(300), 1)
AFTER = BEFORE | {3: 2, 4: 2, 40: 2, 299: 2}


@pytest.mark.parametrize("kept", [differences.KEPT, 2 * PAGE, 0], ids=["all", "some", "none"])
def test_what_is_too_much_to_keep_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(differences, "KEPT", kept)
    path, against = written(tmp_path, AFTER), Differences({NAME: copied(BEFORE)})
    for _ in range(2):  # what was sent makes room again
        found = [against.look(path, NAME, piece) for piece in pieces(AFTER)]
        assert [one.fresh is None for one in found] == [kept < 3 * PAGE, kept == 0]
        assert b"".join(against.fresh(path, one) for one in found) == bytes([2]) * 4 * PAGE
        assert [n for one in found for n in numbers(one.same)] == [n for n in AFTER if AFTER[n] == 1]


def test_a_dump_that_changes_after_it_was_looked_at_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differences, "KEPT", 0)
    path, against = written(tmp_path, AFTER), Differences({NAME: copied(BEFORE)})
    found = against.look(path, NAME, pieces(AFTER)[0])
    written(tmp_path, AFTER | {7: 2})
    with pytest.raises(Broken, match="changed since"):
        against.fresh(path, found)


def test_of_what_was_never_copied_everything_differs(tmp_path: Path) -> None:
    path = written(tmp_path, AFTER)
    found = Differences({}).look(path, NAME, pieces(AFTER)[0])
    assert (found.same, found.fresh) == ((), path.read_bytes()[:CHUNK])


def test_what_was_seen_counts_for_this_piece_of_this_process_alone(tmp_path: Path) -> None:
    path, (first, second) = written(tmp_path, AFTER), pieces(AFTER)
    found = Differences({NAME: copied(BEFORE)}).look(path, NAME, first)
    assert fits(found, NAME, first)
    assert fits(found, NAME, Piece(first.offset, first.size, tuple(Run(run.vaddr, run.pages, 0) for run in first.runs)))
    assert not fits(found, NAME, second)
    assert not fits(found, "pagemap-8.img", first)
    assert not fits(None, NAME, first)
