"""GPU errors, from the kernel log: one bad GPU condemns the worker on it, not the node."""

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem

from shunter_agent.notices import gpus
from shunter_agent.notices.doubts import Doubt
from shunter_agent.notices.port import Notice
from shunter_agent.notices.xid import Effect, Xid, read
from shunter_agent.refusals import rejected

KERNEL_LOG: Final = Path("/dev/kmsg")
_RECORD: Final = 8192
"""Bytes of the longest record that the kernel gives."""
_MOST: Final = 100_000
"""Records that are taken in before what they say is told: more than a kernel keeps, and no flood goes on for ever."""
_LOOK_S: Final = 0.5
"""How often a thread that waits for lines looks whether it shall stop."""
_AGAIN_S: Final = 5.0
"""How long after a failure the log is opened again."""


class GpuNotices:
    """Implements `port.NoticeSource` for the GPUs of this node.

    All that the kernel still has since boot counts, so that a restart of the agent forgets nothing. It is told once all of it is read: an
    error that was followed by a recovery is no news.
    """

    name = "gpu"

    def __init__(
        self,
        slots: Mapping[str, str],
        log_file: Path = KERNEL_LOG,
        *,
        clock: Callable[[], float] = time.time,
        log: Callable[[Problem], None] = lambda _problem: None,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`slots` is PCI address (see `xid.address`) to slot: a GPU that isn't in it is taken for the node. `clock` gives seconds since the
        epoch; `log` gets each new problem once; `elapsed` gives seconds since the machine's start.
        """
        self._elapsed = elapsed
        self._doubts: dict[str, Doubt] = {}
        """By GPU, the last error by which nothing is to be trusted that was computed there before."""
        self._slots = slots
        self._file = log_file
        self._clock = clock
        self._log = log
        self._changed: Callable[[Mapping[str, Notice]], None] = lambda _notices: None
        self._open: dict[str, Notice] = {}
        self._told: dict[str, Notice] = {}
        self._since: dict[str, frozenset[int]] = {}
        """By GPU that has recovered, the XIDs since."""
        self._suspect: dict[str, tuple[float, Problem]] = {}
        """By GPU, when it last made the process on it suspect."""
        self._problem: Problem | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        """See the port."""
        self._changed = changed
        changed({})
        self._thread = threading.Thread(target=self._run, name="gpu notices", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See the port."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
            self._thread = None

    def health(self) -> tuple[Problem, ...]:
        """See the port: SH646 when the kernel log can't be read, SH647 for each process that is suspect."""
        oldest = self._clock() - gpus.DISTRUSTED_S
        suspect = tuple(problem for at, problem in dict(self._suspect).values() if at > oldest)
        return ((self._problem,) if self._problem is not None else ()) + suspect

    def doubts(self) -> tuple[Doubt, ...]:
        """See `doubts.Doubting`."""
        return tuple(dict(self._doubts).values())

    def heard(self, error: Xid, at: float) -> None:
        """Take in one error, that came at `at` (seconds since the epoch), and tell what is new."""
        self._take(error, at)
        self._tell()

    def mended(self, gpu: str, number: int) -> bool:
        """Whether the kernel has said that the GPU needs no recovery any more, and nothing of this XID since. For whoever knows only which
        XID was the last, and not when. From any thread.
        """
        since = self._since.get(gpu)
        return since is not None and number not in since

    def _take(self, error: Xid, at: float) -> None:
        slot = self._slots.get(error.gpu, "")
        before = self._open
        if error.effect in (Effect.RESTART, Effect.GONE):
            what = gpus.distrusted(error.number, error.gpu, slot, error.text).what
            self._doubts[error.gpu] = Doubt(slot=slot, at=self._elapsed() - (self._clock() - at), what=what)
        if error.gpu in self._since:
            self._since[error.gpu] = self._since[error.gpu] | {error.number}
        if error.effect is Effect.RECOVERED:
            self._since[error.gpu] = frozenset()
            self._suspect.pop(error.gpu, None)
            self._open = {key: n for key, n in before.items() if not key.startswith(gpus.prefix(error.gpu))}
        elif error.effect is Effect.RESTART:
            problem = gpus.distrusted(error.number, error.gpu, slot, error.text)
            self._suspect[error.gpu] = at, problem
            self._log(problem)
        else:
            detail = f"XID {error.number} on {error.gpu}{f': {error.text}' if error.text else ''}"
            found = gpus.notice(error.effect, error.gpu, slot=slot, at=at, source="gpu", detail=detail)
            assert found is not None, "only what leaves the GPU sound is none"
            self._open = {**before, found.id: before.get(found.id, found)}

    def _tell(self) -> None:
        if self._open != self._told:
            self._told = dict(self._open)
            self._changed(dict(self._open))

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except OSError as failed:
                remedy = "Let the agent read /dev/kmsg (CAP_SYSLOG); until then GPU errors aren't seen"
                self._blind(failed.strerror or str(failed), remedy)
            except Exception as fault:  # a fault of ours must make the source blind, not end its thread without a word
                self._blind(repr(fault), "Report it; until then GPU errors aren't seen")
            self._stop.wait(_AGAIN_S)

    def _follow(self) -> None:
        """From the oldest record on. What is read a second time after a failure changes nothing: each notice has its name."""
        for records in self._records():
            for age, text in records:
                if (error := read(text)) is not None:
                    self._take(error, self._clock() - age)
            self._tell()

    def _blind(self, why: str, remedy: str) -> None:
        problem = rejected("SH646", f"the kernel log can't be read: {why}", remedy, str(self._file)).problem
        if problem != self._problem:
            self._problem = problem
            self._log(problem)

    def _records(self) -> Iterator[Sequence[tuple[float, str]]]:
        """The records of the kernel log, from the oldest that is left, until `stop`: all that there are, then those that come. Of each
        its age in seconds, and its text.
        """
        descriptor = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._problem = None
        try:
            while not self._stop.is_set():
                if not select.select([descriptor], [], [], _LOOK_S)[0]:
                    continue
                found = list(islice(iter(lambda: _record(descriptor), b""), _MOST))
                if found:
                    now = time.monotonic()
                    yield [(_age(data, now), _text(data)) for data in found]
                else:
                    self._stop.wait(_LOOK_S)
        finally:
            os.close(descriptor)


def _record(descriptor: int) -> bytes:
    """The next record; empty when there is none. One that was overwritten before it was read is skipped: the kernel says so by EPIPE."""
    while True:
        try:
            return os.read(descriptor, _RECORD)
        except BrokenPipeError:
            continue
        except BlockingIOError:
            return b""


def _age(record: bytes, now: float) -> float:
    """Seconds since a record was made, by its header: `priority,number,microseconds since boot,flags;`. 0 when it doesn't say."""
    fields = record.partition(b";")[0].split(b",")
    if len(fields) < 3 or not fields[2].isdigit():
        return 0.0
    return max(0.0, now - int(fields[2]) / 1e6)


def _text(record: bytes) -> str:
    head, found, text = record.decode(errors="replace").partition(";")
    return (text if found else head).partition("\n")[0]
