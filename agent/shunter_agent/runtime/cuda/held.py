"""The two points at which a worker with GPUs stands and waits: CRIU's, and around it what a helper has in hand."""

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from typing import Final

from shunter.model.errors import Problem, Rejected, Unknown

from shunter_agent.runtime import process as processes
from shunter_agent.runtime.cuda import problems
from shunter_agent.runtime.cuda.session import Died, Failed, Session
from shunter_agent.runtime.port import Dump, Frozen, Process

TRIES: Final = 2
"""How often a worker's GPU memory is tried to be put back. Each time from what the driver says then."""


class Taken:
    """A worker that is stopped, its GPU memory in its own host memory. Exactly one of `put_back`, `leave` and `forget` ends it."""

    def __init__(
        self, session: Session, process: Process, but: Sequence[int], size: int, fresh: Callable[[bool], Session], frozen_at: float
    ) -> None:
        """`but` were stopped before; `size`: bytes of GPU memory; `fresh` makes another helper where this one has died; `frozen_at`: when
        it last ran for certain, seconds since the epoch."""
        self.size, self.frozen_at = size, frozen_at
        self._session, self._process, self._but, self._fresh = session, process, list(but), fresh
        self.over = False

    def put_back(self) -> str:
        """Give it its GPU back and let it run. Empty when it runs; else why it doesn't, after `TRIES` tries."""
        why = ""
        for _ in range(TRIES):
            try:
                if not self._session.alive:
                    self._session.close()
                    self._session = self._fresh(True)
                self._session.about("thaw", self._process, but=self._but, size=self.size)
            except (Failed, Died) as failed:
                why = str(failed)
                self._session.kill()
                continue
            self.over = True
            self._session.close()
            return ""
        return why

    def leave(self) -> None:
        """Whoever holds it will let it go by himself: the helper puts it right then, and nobody waits for it."""
        self.over = True
        self._session.leave()

    def forget(self) -> None:
        """It is dead."""
        self.over = True
        try:
            self._session.ask("forget")
        except (Failed, Died):
            self._session.kill()
        self._session.close()


class CudaFrozen:
    """Implements `port.Frozen`: CRIU's hold within the helper's."""

    def __init__(self, inner: Frozen, taken: Taken, process: Process, dump: Dump) -> None:
        self.dump = dump
        self._inner, self._taken, self._process = inner, taken, process

    def alive(self) -> bool:
        """See `port.Frozen`. Of a worker whose hold is lost `thaw` makes sure that it has its GPU: CRIU lets it go as it was, stopped."""
        return self._inner.alive()

    def thaw(self) -> None:
        """See `port.Frozen`. Raises Unknown SH711, SH742; after the latter it was ended, as it could never run: its image is whole."""
        self._inner.thaw()
        if self._taken.over:
            return
        why = self._taken.put_back()
        if why:
            self._taken.over = True
            processes.end(self._process)
            raise Unknown(problems.stuck(why, self._process.pid, ended=True))

    def release(self) -> None:
        """See `port.Frozen`. Raises Rejected SH708, Unknown SH707."""
        try:
            self._inner.release()
        except Unknown:
            self._taken.leave()  # it lives, and its GPU is given back should it ever be able to run
            raise
        self._taken.forget()


class CudaHeld:
    """Implements `port.Held`: a stopped copy with its GPU memory in place, which dies with its helper."""

    def __init__(self, session: Session, process: Process, but: Sequence[int]) -> None:
        """`but` of its processes stay stopped."""
        self.process = process
        self._session, self._but = session, list(but)
        self._open, self._runs = True, False

    def resume(self) -> Process:
        """See `port.Held`. Raises Rejected SH708 when it is dead; Unknown SH707, however often it is called, for as long as it isn't."""
        try:
            if not self._open:
                raise Died("it was aborted")
            self._session.about("go", self.process, but=self._but)
        except (Failed, Died) as failed:
            self.abort()
            raise Rejected(_over(self.process, f"the held copy is gone: {failed}", "Restore the image again")) from failed
        self._open, self._runs = False, True
        self._session.close()
        return self.process

    def abort(self) -> None:
        """See `port.Held`. Does nothing once the copy is dead. Raises Rejected SH708 after a resume, Unknown SH707."""
        if self._runs and processes.find(self.process):
            raise Rejected(_over(self.process, "the copy runs: it was resumed", "End it as a running worker"))
        self._open = False
        end_copy(self._session, self.process)


def end_copy(session: Session, process: Process) -> None:
    """End a copy and its helper, which may be tracing it: only then is its pid free. Raises Unknown SH707."""
    if processes.find(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    session.kill()
    processes.end(process)


def _over(process: Process, what: str, to_do: str) -> Problem:
    return Problem(code="SH708", what=what, remedy=to_do, subject=f"pid {process.pid}")
