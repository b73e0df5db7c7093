"""Memory of running processes: this one's own."""

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter_agent.runtime import live, process
from shunter_agent.runtime.live import LiveMemory
from shunter_agent.runtime.port import Process

PAGE = mmap.PAGESIZE
frames_told = pytest.mark.skipif(os.geteuid() != 0, reason="only root is told which frames are the page of zeros")


@pytest.fixture
def own() -> Iterator[LiveMemory]:
    memory = LiveMemory(os.getpid(), os.getpid())
    yield memory
    memory.close()


@pytest.fixture
def region() -> Iterator[tuple[mmap.mmap, int]]:
    """Eight pages, of which the third, fourth and last were written to, and the sixth was only read."""
    with mmap.mmap(-1, 8 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        where = ctypes.c_char.from_buffer(pages)
        address = ctypes.addressof(where)
        del where
        for n in (2, 3, 7):
            pages[n * PAGE] = n
        assert pages[5 * PAGE] == 0
        yield pages, address


def inside(memory: LiveMemory, address: int, pages: int) -> set[int]:
    """Which of these pages a dump would have."""
    every = (at for begin, count in memory.runs() for at in range(begin, begin + count * PAGE, PAGE))
    return {(at - address) // PAGE for at in every if address <= at < address + pages * PAGE}


def test_pages_that_were_written_are_found(own: LiveMemory, region: tuple[mmap.mmap, int]) -> None:
    found = inside(own, region[1], 8)
    assert {2, 3, 7} <= found
    assert not found & {0, 1, 4, 6}


@frames_told
def test_the_page_of_zeros_is_nobodys(own: LiveMemory, region: tuple[mmap.mmap, int]) -> None:
    assert inside(own, region[1], 8) == {2, 3, 7}


def test_memory_is_read_as_it_is(own: LiveMemory, region: tuple[mmap.mmap, int]) -> None:
    pages, address = region
    pages[2 * PAGE : 4 * PAGE] = os.urandom(2 * PAGE)
    into = bytearray(2 * PAGE)
    assert own.read(address + 2 * PAGE, memoryview(into))
    assert into == pages[2 * PAGE : 4 * PAGE]


def test_what_is_mapped_no_more_is_told_apart(own: LiveMemory) -> None:
    assert not own.read(PAGE, memoryview(bytearray(PAGE)))


def test_shared_memory_files_and_what_can_not_be_read_are_left_out(own: LiveMemory, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"f" * PAGE)
    with (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    shared = mmap.mmap(-1, PAGE)
    shared[0] = 1
    for pages, expected in ((shared, set()), (mapped, set())):
        assert pages[0]
        where = ctypes.c_char.from_buffer(pages)
        assert inside(own, ctypes.addressof(where), 1) == expected
        if pages is mapped:
            pages[0] = 7
            assert inside(own, ctypes.addressof(where), 1) == {0}, "it has a copy of its own now"
        del where
        pages.close()


def test_all_processes_of_a_tree_are_found_and_a_dead_one_is_an_error() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"], stdin=-1, stdout=-1)
    assert child.stdout
    assert child.stdin
    child.stdout.readline()
    me = process.note(os.getpid())
    found = live.memories(me)
    assert {memory.pid for memory in found} >= {os.getpid(), child.pid}
    for memory in found:
        memory.close()
    alone = live.memories(process.note(child.pid))
    child.stdin.close()
    child.wait()
    child.stdout.close()
    with pytest.raises(OSError):
        alone[0].read(PAGE, memoryview(bytearray(PAGE)))
    alone[0].close()
    with pytest.raises(OSError):
        live.memories(Process(pid=child.pid, started=1))
