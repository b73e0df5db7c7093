"""Loading a copy's memory: with a process (this one) whose memory is registered with a real userfaultfd, as CRIU does it with a copy's."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter_agent.images.criu_images_pb2 import MmEntry
from shunter_agent.images.lazy import LazyMemory
from shunter_agent.images.pagemap import LAZY, PAGE, PRESENT, Pagemap, Run, dump
from shunter_agent.images.stretches import Stretch
from shunter_agent.runtime import filling
from shunter_agent.runtime.filling import SOCKET, Filling

USERFAULTFD = {"x86_64": 323, "aarch64": 282}
API, REGISTER = 0xC018AA3F, 0xC020AA00
LIBC = ctypes.CDLL(None, use_errno=True)
BYTES = 6 << 20
PID = 7
WITHIN_S = 20.0


def userfaultfd() -> int:
    descriptor = int(LIBC.syscall(USERFAULTFD[platform.machine()], os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(descriptor, API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    return descriptor


def allowed() -> bool:
    with contextlib.suppress(OSError, KeyError):
        os.close(userfaultfd())
        return True
    return False


pytestmark = pytest.mark.skipif(not allowed(), reason="this machine doesn't let this user have a userfaultfd")


class Copy:
    """Memory that nobody has loaded, and the image of it: all but the last of its pages are in it."""

    def __init__(self, folder: Path) -> None:
        self.memory = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.content = random.Random(1).randbytes(BYTES - PAGE)
        self.folder = folder
        self.links: list[socket.socket] = []
        run, entry = Run(self.address, BYTES // PAGE - 1, PRESENT | LAZY), MmEntry()
        entry.vmas.add(start=self.address, end=self.address + BYTES)
        (folder / f"mm-{PID}.img").write_bytes(struct.pack("<III", 0x54564319, 0x57492820, entry.ByteSize()) + entry.SerializeToString())
        (folder / f"pagemap-{PID}.img").write_bytes(dump(Pagemap(pages_id=1, runs=(run,))))
        (folder / "pages-1.img").write_bytes(self.content)

    def connect(self) -> socket.socket:
        """What CRIU does first."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.links.append(link)
        at = os.open(self.folder, os.O_RDONLY)
        link.connect(f"/proc/self/fd/{at}/{SOCKET}")
        os.close(at)
        return link

    def introduced(self, pid: int = PID) -> None:
        """What CRIU does for each process of a copy."""
        link, descriptor = self.connect(), userfaultfd()
        fcntl.ioctl(descriptor, REGISTER, bytearray(struct.pack("QQQQ", self.address, BYTES, 1, 0)))
        link.send(struct.pack("=i", -3))  # one that was dead already
        link.send(struct.pack("=i", pid))
        socket.send_fds(link, [b"\0"], [descriptor])
        os.close(descriptor)

    def says(self, times: int) -> None:
        """As CRIU goes on to introduce processes."""
        for _ in range(times):
            self.links[0].send(struct.pack("=i", PID + 1))

    def touch(self, at: int) -> int:
        """What is there. Whoever waits for it here waits in the kernel, where other threads go on."""
        out, into = os.pipe()
        try:
            os.write(into, memoryview(self.memory)[at : at + 1])
            return os.read(out, 1)[0]
        finally:
            os.close(out)
            os.close(into)

    def right(self) -> bool:
        return self.memory[: BYTES - PAGE] == self.content and self.memory[BYTES - PAGE :] == bytes(PAGE)


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    folder = tmp_path / ("of-a-long-name" * 10)  # longer than the address of a socket can be
    folder.mkdir(mode=0o700)
    made = Copy(folder)
    yield made
    for link in made.links:
        link.close()


def open_files() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}


def begun(copy: Copy) -> Filling:
    loader = filling.begin(copy.folder)
    assert loader is not None
    return loader


def test_all_of_it_is_there_before_it_is_let_go_and_nothing_is_left_open(copy: Copy) -> None:
    before = open_files()
    with contextlib.closing(begun(copy)) as loader:
        assert loader.options == {"lazy_pages": True}
        assert (copy.folder / SOCKET).is_socket()
        assert (copy.folder / SOCKET).stat().st_mode & 0o077 == 0
        copy.introduced()
        loader.finish(WITHIN_S)
        assert copy.right()
        assert not (copy.folder / SOCKET).exists(), "whoever looks into the image's folder sees its files alone"
        copy.links[0].send(b"goodbye")  # as CRIU does, which takes it for a failure if nobody is there
    assert not (copy.folder / SOCKET).exists()
    copy.links[0].close()
    assert open_files() <= before
    loader.close()


def test_what_the_copy_touches_on_its_way_is_loaded_at_once(copy: Copy) -> None:
    with contextlib.closing(begun(copy)) as loader:
        copy.introduced()
        seen: list[int] = []
        places = [0, PAGE * 3 + 17, BYTES // 2, BYTES - PAGE - 1, BYTES - 1]
        toucher = threading.Thread(target=lambda: seen.extend(map(copy.touch, places)), daemon=True)
        toucher.start()
        toucher.join(WITHIN_S)
        assert seen == [copy.content[at] for at in places[:-1]] + [0]
        loader.finish(WITHIN_S)
        assert copy.right()


def test_what_the_kernel_put_off_is_done_again(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so while the mappings of the process are being changed."""
    ioctl, put_off = fcntl.ioctl, []

    def busy(descriptor: int, what: int, told: bytearray) -> int:
        if what == filling._COPY and len(put_off) < 5:
            put_off.append(descriptor)
            told[:] = told[:32] + struct.pack("=q", -errno.EAGAIN)
            raise BlockingIOError(errno.EAGAIN, "try again")
        return ioctl(descriptor, what, told)  # type: ignore[call-overload, no-any-return]

    with contextlib.closing(begun(copy)) as loader:
        copy.introduced()
        monkeypatch.setattr(fcntl, "ioctl", busy)
        loader.finish(WITHIN_S)
        assert len(put_off) == 5
        assert copy.right()


def test_a_page_that_is_there_already_is_taken_for_nothing(copy: Copy) -> None:
    """Where CRIU's reading of one page has brought others with it, they are empty."""
    with contextlib.closing(begun(copy)) as loader:
        copy.memory[PAGE * 700] = 0
        copy.introduced()
        with pytest.raises(OSError, match="there already"):
            loader.finish(WITHIN_S)


@pytest.mark.parametrize("early", [True, False])
def test_a_fault_of_ours_is_no_success(copy: Copy, monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    load, broken = filling._Copy.load, []

    def breaks(self: filling._Copy, part: Stretch, buffer: filling._Buffer) -> None:
        broken.append(part)
        if early or len(broken) == 3:
            raise IndexError("list index out of range")
        load(self, part, buffer)

    with contextlib.closing(begun(copy)) as loader:
        copy.introduced()
        monkeypatch.setattr(filling._Copy, "load", breaks)
        if early:
            toucher = threading.Thread(target=copy.touch, args=(PAGE,), daemon=True)
            toucher.start()
            toucher.join(WITHIN_S)
            assert not toucher.is_alive()
        with pytest.raises(OSError, match="IndexError: list index"):
            loader.finish(WITHIN_S)


def test_after_a_failure_no_other_process_waits_for_it(copy: Copy) -> None:
    with contextlib.closing(begun(copy)) as loader:
        copy.introduced()
        os.truncate(copy.folder / "pages-1.img", 0)
        copy.touch(PAGE)  # it fails by that
        with pytest.raises(OSError, match=r"pipe|reset"):
            copy.says(1000)
        with pytest.raises(OSError, match="shorter"):
            loader.finish(WITHIN_S)


def test_where_all_memory_is_huge_it_is_left_to_criu(copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enabled = tmp_path / "enabled"
    monkeypatch.setattr(filling, "_HUGE", enabled)
    enabled.write_text("[always] madvise never\n")
    assert filling.begin(copy.folder) is None
    enabled.write_text("always [madvise] never\n")
    begun(copy).close()


def test_a_machine_without_threads_is_left_to_criu(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        assert filling.begin(copy.folder) is None
    assert open_files() == before
    with contextlib.closing(begun(copy)) as loader:
        copy.introduced()
        os.eventfd_write(loader._stop, 1)
        loader._threads[0].join(WITHIN_S)
        monkeypatch.setattr(threading.Thread, "start", refuses)
        with pytest.raises(OSError, match="can't start new thread"):
            loader.finish(WITHIN_S)


def test_a_process_that_criu_says_nothing_of_is_missed(copy: Copy) -> None:
    with contextlib.closing(begun(copy)) as loader:
        copy.introduced(pid=PID + 1)  # of which the image has nothing to load
        with pytest.raises(OSError, match=f"no way to load the memory of process {PID}") as raised:
            loader.finish(WITHIN_S)
    assert raised.value.errno == errno.ENODATA


def test_a_criu_that_ends_early_is_no_reason_to_wait(copy: Copy) -> None:
    loader = begun(copy)
    copy.connect().close()
    loader.close()
    assert not (copy.folder / SOCKET).exists()


@pytest.mark.parametrize("early", [True, False])
def test_bytes_that_cant_be_read_fail_it_and_keep_nobody_waiting(copy: Copy, early: bool) -> None:
    with contextlib.closing(begun(copy)) as loader:
        copy.introduced()
        os.truncate(copy.folder / "pages-1.img", 0)
        if early:
            toucher = threading.Thread(target=copy.touch, args=(PAGE,), daemon=True)
            toucher.start()
            toucher.join(WITHIN_S)
            assert not toucher.is_alive()
        with pytest.raises(OSError, match="shorter than its pagemap says"):
            loader.finish(WITHIN_S)


def test_a_disk_that_gives_nothing_is_given_up_in_time(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    read = os.preadv

    def slow(*what: object) -> int:
        hangs.set()
        goes_on.wait(WITHIN_S)
        return read(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(filling, "_END_S", 0.01)
    loader = begun(copy)
    copy.introduced()
    monkeypatch.setattr(os, "preadv", slow)
    with pytest.raises(TimeoutError):
        loader.finish(0.05)
    assert hangs.is_set()
    loader.close()  # waits for nobody
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("filling"):
            thread.join(WITHIN_S)
    assert not any("userfaultfd" in name or name.endswith(".img") for name in open_files())


def test_little_is_left_to_criu(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "LEAST", BYTES)
    assert filling.begin(copy.folder) is None
    assert not (copy.folder / SOCKET).exists()


def test_what_processes_may_share_is_left_to_criu(copy: Copy) -> None:
    for name in ("mm", "pagemap"):
        (copy.folder / f"{name}-8.img").write_bytes((copy.folder / f"{name}-{PID}.img").read_bytes())
    with LazyMemory(copy.folder) as memory:
        assert memory.shared == BYTES - PAGE
    assert filling.begin(copy.folder) is None


def test_an_image_that_doesnt_fit_is_left_to_criu(copy: Copy) -> None:
    (copy.folder / f"mm-{PID}.img").write_bytes(b"")
    before = open_files()
    assert filling.begin(copy.folder) is None
    assert open_files() == before
