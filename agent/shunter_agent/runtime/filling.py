"""Loads the memory of a copy that CRIU makes, by several threads at once and before the copy runs.

CRIU reads a process' memory page by page, each of them a fault of its own, and one process by one thread. What it was made to do that with
more than one thread is a way to let a process run before its memory is there (`lazy_pages`): it registers the memory with userfaultfd, and
hands that to whoever listens at a socket in the image's folder. We take it, load everything while the copy stands still at `post-restore`,
make sure that nothing is missing, and let userfaultfd go. So a copy that runs has all of its memory, and needs nobody (see
docs/decisions/0037).

What the copy itself touches before that, on its way there, is loaded at once.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from shunter.model.errors import Problem

from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.lazy import LazyMemory
from shunter_agent.images.pagemap import PAGE, NotAPagemap
from shunter_agent.images.stretches import Stretch

T = TypeVar("T")
SOCKET: Final = "lazy-pages.socket"
"""CRIU's own name for it."""
LEAST: Final = 4 << 20
"""Bytes from which on it is worth it."""
SHARED: Final = 1 / 16
"""Part of the memory that may lie at the same addresses in several processes: CRIU lets such pages be shared again, and this can't."""
THREADS: Final = min(8, len(os.sched_getaffinity(0)))
"""More gain little: the memory itself is what is waited for then."""
_PUT_OFF: Final = 10_000
"""Times that the kernel may put off a page."""
_END_S: Final = 1.0
"""Seconds in which threads end that are told to."""
_HUGE: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_COPY: Final = 0xC028AA03
_ZEROPAGE: Final = 0xC020AA04
_COPYING: Final = struct.Struct("=QQQQq")
"""To, from, bytes, how; then how many bytes it were, or the negative of an error's number."""
_ZEROING: Final = struct.Struct("=QQQq")
_MESSAGE: Final = 32
"""Bytes of what userfaultfd tells."""
_PAGEFAULT: Final = 0x12
_ADDRESS: Final = struct.Struct("=16xQ")
_PID: Final = struct.Struct("=i")


class _Buffer(threading.local):
    """A piece of memory for each thread that reads into it."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, CHUNK, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.bytes = memoryview(memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory))


class _Copy:
    """A process in the making: its userfaultfd, and what is to be loaded through it."""

    def __init__(self, descriptor: int, parts: tuple[Stretch, ...]) -> None:
        self.parts = parts
        self._descriptor = descriptor
        self._begins = [part.vaddr for part in parts]
        self._loaded = 0
        self._lock = threading.Lock()

    @property
    def whole(self) -> bool:
        """Every byte of it was put there from here. One that was there already, whoever put it there, is none of ours."""
        return self._loaded == sum(part.end - part.vaddr for part in self.parts)

    def load(self, part: Stretch, buffer: _Buffer) -> None:
        """All of it that isn't there yet. Raises OSError."""
        size = part.end - part.vaddr
        if os.preadv(part.descriptor, [buffer.bytes[:size]], part.offset) != size:
            raise OSError(errno.EIO, "a pages file is shorter than its pagemap says")
        at, put_off = 0, 0
        while at < size:
            done = self._put(part.vaddr + at, buffer.address + at, size - at)
            if done > 0:
                with self._lock:
                    self._loaded += done
            elif done != -errno.EEXIST:
                put_off += 1
                if put_off > _PUT_OFF:
                    raise OSError(errno.EAGAIN, "its mappings are being changed all the time")
            at += PAGE if done == -errno.EEXIST else max(0, done)

    def _put(self, to: int, source: int, size: int) -> int:
        """How many bytes were put there; -EEXIST: the first page was there already; -EAGAIN: its mappings were being changed."""
        told = bytearray(_COPYING.pack(to, source, size, 0, 0))
        try:
            fcntl.ioctl(self._descriptor, _COPY, told)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.EAGAIN):
                raise
        return int(_COPYING.unpack(told)[4])

    def heard(self, buffer: _Buffer) -> None:
        """Read what it tells, and load the page that it waits for. Raises OSError."""
        try:
            message = os.read(self._descriptor, _MESSAGE)
        except BlockingIOError:
            return  # whoever waited has been ended
        if message[0] != _PAGEFAULT:
            return  # it goes on once this is read
        (address,) = _ADDRESS.unpack_from(message)
        page = address // PAGE * PAGE
        n = bisect_right(self._begins, page) - 1
        if n >= 0 and page < self.parts[n].end:
            part = self.parts[n]
            self.load(Stretch(page, page + PAGE, part.descriptor, part.offset + page - part.vaddr), buffer)
        else:
            with contextlib.suppress(FileExistsError):
                fcntl.ioctl(self._descriptor, _ZEROPAGE, bytearray(_ZEROING.pack(page, PAGE, 0, 0)))

    def close(self) -> None:
        """Let go of the process' memory: what isn't there is zero from here on. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Loader(Protocol):
    """How the memory of a copy comes into it."""

    @property
    def options(self) -> Mapping[str, object]:
        """What CRIU is told besides."""
        ...

    def finish(self, within_s: float) -> None:
        """Load all that isn't there yet: to be called while the copy stands still. Raises OSError when anything is missing at the end."""
        ...

    def close(self) -> None:
        """Let go of whatever is left, once CRIU has ended: it still says goodbye."""
        ...


class ByCriu:
    """Implements `Loader`: CRIU has loaded all of it."""

    options: Mapping[str, object] = {}

    def finish(self, within_s: float) -> None:
        """See `Loader`."""

    def close(self) -> None:
        """See `Loader`."""


def begin(folder: Path) -> "Filling | None":
    """For the image in `folder`, of which CRIU will be asked next. None: there is too little to load, or nobody can tell what.

    Nor is it done where all memory comes in huge pages: CRIU's own reading is fast there, and with a page that it has read itself it would
    put its neighbours there, too, which are to be loaded from here.
    """
    if _huge():
        return None
    try:
        memory = LazyMemory(folder)
    except (NotAPagemap, OSError):
        return None  # if that is wrong, CRIU says so
    if memory.bytes < LEAST or memory.shared > memory.bytes * SHARED:
        memory.close()
        return None
    try:
        return Filling(folder, memory)
    except OSError:
        return None


def _huge() -> bool:
    try:
        return "[always]" in _HUGE.read_text()
    except OSError:
        return False  # a kernel without


def given_up(why: Problem) -> Problem:
    """SH715: restores are slower than they have to be."""
    return Problem(
        code="SH715",
        what=f"from here on CRIU alone loads memory, which takes longer: a restore failed in which the agent loaded it ({why.what})",
        remedy="If it comes again once the agent was started anew: give it CAP_SYS_PTRACE on all nodes, and kernels with userfaultfd",
        subject=why.subject,
    )


class Filling:
    """Implements `Loader`: listens from the moment at which CRIU is asked to restore until it has ended."""

    options: Mapping[str, object] = {"lazy_pages": True}

    def __init__(self, folder: Path, memory: LazyMemory) -> None:
        """Of the image in `folder`, whose `memory` it closes. Raises OSError."""
        self._memory = memory
        self._copies: dict[int, _Copy] = {}
        """By their userfaultfd."""
        self._told: set[int] = set()
        self._folder = folder
        self._peer: socket.socket | None = None
        self._buffer = _Buffer()
        self._failed: OSError | None = None
        self._closed = False
        with contextlib.ExitStack() as undo:
            undo.callback(memory.close)
            self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._stop)
            self._listener = undo.enter_context(_listener(folder))
            undo.callback((folder / SOCKET).unlink, missing_ok=True)
            self._open = undo.pop_all()
        self._threads: list[threading.Thread] = []
        try:
            self._start(self._serve)
        except OSError:
            self._open.close()
            raise

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="filling", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error
        self._threads.append(thread)

    def finish(self, within_s: float) -> None:
        """See `Loader`."""
        until = time.monotonic() + within_s
        os.eventfd_write(self._stop, 1)
        self._wait(until)
        missing = self._memory.processes.keys() - self._told
        if missing:
            raise OSError(errno.ENODATA, f"CRIU gave no way to load the memory of process {min(missing)}")
        work = deque((copy, part) for copy in self._copies.values() for part in copy.parts)
        self._threads.clear()
        try:
            for _thread in range(THREADS):
                self._start(partial(self._load, work))
            self._wait(until)
        finally:
            work.clear()
        if not all(copy.whole for copy in self._copies.values()):
            raise OSError(errno.EEXIST, "some of its memory was there already, whatever is in it")
        for copy in self._copies.values():
            copy.close()
        self._memory.close()  # the copy may be held for long, and its image be deleted meanwhile

    def _wait(self, until: float) -> None:
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                raise TimeoutError(errno.ETIMEDOUT, "the memory can't be read in time")
        if self._failed is not None:
            raise self._failed

    def _load(self, work: deque[tuple[_Copy, Stretch]]) -> None:
        try:
            while (one := _next(work)) is not None:
                copy, part = one
                copy.load(part, self._buffer)
        except Exception as error:
            self._fail(error)
            work.clear()

    def _fail(self, error: Exception) -> None:
        """For `_wait` to raise: whatever it was, nothing may be taken for loaded."""
        self._failed = error if isinstance(error, OSError) else OSError(errno.EIO, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """See `Loader`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        try:
            self._wait(time.monotonic() + _END_S)
        except TimeoutError:  # a disk gives nothing: what is open is in use until it does
            threading.Thread(target=self._let_go, name="filling-end", daemon=True).start()
            return
        except OSError:
            pass  # it was told when it was of use
        self._let_go()

    def _let_go(self) -> None:
        for thread in self._threads:
            thread.join()
        for copy in self._copies.values():
            copy.close()
        self._open.close()

    # -- until the copy stands still

    def _serve(self) -> None:
        try:
            self._listen()
        except Exception as error:
            self._fail(error)
            for copy in self._copies.values():
                copy.close()  # nothing of it may wait for us; it will never run
            self._listener.close()  # nor may what is still on its way to us
            if self._peer is not None:
                self._peer.close()

    def _listen(self) -> None:
        poll = select.poll()
        poll.register(self._stop, select.POLLIN)
        poll.register(self._listener, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _events in poll.poll()]
            if ready == [self._stop]:  # and nothing else is to be heard
                return
            for descriptor in ready:
                if descriptor == self._listener.fileno():
                    self._peer = self._open.enter_context(self._listener.accept()[0])
                    self._folder.joinpath(SOCKET).unlink(missing_ok=True)  # nobody else is to come
                    poll.register(self._peer, select.POLLIN)
                elif self._peer is not None and descriptor == self._peer.fileno():
                    self._introduced(self._peer, poll)
                elif descriptor in self._copies:
                    self._copies[descriptor].heard(self._buffer)

    def _introduced(self, peer: socket.socket, poll: select.poll) -> None:
        """Hear of another process: the pid that it knows itself by, and its userfaultfd."""
        said = peer.recv(_PID.size, socket.MSG_WAITALL)
        if len(said) < _PID.size:
            poll.unregister(peer)  # CRIU has ended
            return
        (pid,) = _PID.unpack(said)
        if pid < 0:
            return  # it was dead when it was dumped, and has no memory
        _data, descriptors, _flags, _address = socket.recv_fds(peer, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if len(descriptors) != 1:
            raise OSError(errno.EPROTO, f"CRIU gave no way to load the memory of process {pid}")
        self._copies[descriptors[0]] = _Copy(descriptors[0], self._memory.processes.get(pid, ()))
        self._told.add(pid)
        poll.register(descriptors[0], select.POLLIN)


def _next(work: deque[T]) -> T | None:
    try:
        return work.popleft()
    except IndexError:
        return None


def _listener(folder: Path) -> socket.socket:
    """Raises OSError."""
    (folder / SOCKET).unlink(missing_ok=True)
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC))
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        undo.callback(os.close, at)
        listener.bind(f"/proc/self/fd/{at}/{SOCKET}")  # the folder's own path may be too long for an address
        os.chmod(SOCKET, 0o600, dir_fd=at)
        listener.listen(1)
        os.close(at)
        undo.pop_all()
    return listener
