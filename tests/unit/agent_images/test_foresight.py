"""Digests that are computed while a dump writes: those of whole pieces only, and none that could be taken for another's."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shunter_agent.images.cutting import CHUNK, Piece, along
from shunter_agent.images.foresight import Foresight
from shunter_agent.images.pagemap import PAGE, Run

RUNS = ((CHUNK - 2 * PAGE, 5), (9 * CHUNK, 3))
PIECES = along(Run(*run) for run in RUNS)


class Standing:
    pid = 1

    def __init__(self, runs: Sequence[tuple[int, int]] | OSError = RUNS) -> None:
        self.found = runs

    def runs(self) -> Sequence[tuple[int, int]]:
        if isinstance(self.found, OSError):
            raise self.found
        return self.found

    def read(self, address: int, into: memoryview) -> bool:
        raise AssertionError("what was dumped counts, not what is in memory")

    def close(self) -> None:
        pass


class Dumping:
    """A dump of which more and more is there."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor, *memories: Standing) -> None:
        self.folder, self.memories, self.asked = folder, memories, []
        self.foresight = Foresight(folder, memories, pool, self._look)

    def _look(self, path: Path, memory: object, piece: Piece) -> str:
        assert memory in self.memories
        self.asked.append((path.name, piece.offset))
        with path.open("rb") as file:
            file.seek(piece.offset)
            data = file.read(piece.size)
        assert len(data) == piece.size, "it was looked at too early"
        return data[:4].decode()

    def write(self, data: bytes, name: str = "pages-1.img") -> None:
        with (self.folder / name).open("ab") as file:
            file.write(data)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def test_each_piece_is_looked_at_once_it_is_whole(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    dumping = Dumping(tmp_path, pool, Standing())
    assert not dumping.foresight.look()
    dumping.write(b"aaaa" * (2 * PAGE // 4) + b"bbbb")
    assert dumping.foresight.look()
    assert not dumping.foresight.look()
    assert [dumping.foresight.of("pages-1.img", piece) for piece in PIECES] == ["aaaa", None, None]
    dumping.write(b"bbbb" * (3 * PAGE // 4 - 1) + b"cccc" * (3 * PAGE // 4))
    assert dumping.foresight.look()
    assert [dumping.foresight.of("pages-1.img", piece) for piece in PIECES] == ["aaaa", "bbbb", "cccc"]
    assert dumping.asked == [("pages-1.img", piece.offset) for piece in PIECES]


def test_a_wrong_guess_answers_for_nothing_else(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    dumping = Dumping(tmp_path, pool, Standing())
    dumping.write(b"aaaa" * (8 * PAGE // 4))
    dumping.foresight.look()
    assert dumping.foresight.of("pages-1.img", Piece(PAGE, 2 * PAGE)) is None
    assert dumping.foresight.of("pages-1.img", Piece(0, 3 * PAGE)) is None
    assert dumping.foresight.of("pages-2.img", PIECES[0]) is None


def test_a_process_that_can_not_be_looked_at_costs_only_its_own(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    dumping = Dumping(tmp_path, pool, Standing(ProcessLookupError()), Standing())
    for name in ("pages-1.img", "pages-2.img"):
        dumping.write(b"aaaa" * (8 * PAGE // 4), name)
    assert dumping.foresight.look()
    assert dumping.foresight.of("pages-1.img", PIECES[0]) is None
    assert dumping.foresight.of("pages-2.img", PIECES[0]) == "aaaa"
