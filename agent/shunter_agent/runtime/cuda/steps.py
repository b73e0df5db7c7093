"""The order of things: lock all, stop, checkpoint all; and back. Each failure is undone by what the driver says of each process then.

Nothing is remembered of what was done: a call whose outcome isn't known (its caller was killed, say) is never made again blindly, but the
process' state is asked for, and what is missing from there is done.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final

from shunter_agent.runtime.cuda.api import NOT_CUDA, Api, Refused, State
from shunter_agent.runtime.cuda.stopping import NotStopped, Stops

Tell = Callable[[str, int, float], None]
"""Told before each call: its name, the process, and within how many seconds it must be over."""

QUICK_S: Final = 30.0
"""Seconds for a call that moves no memory; the first one also starts the driver, which takes seconds on a node with many GPUs."""
LEAST_S: Final = 60.0
SLOWEST: Final = 500e6
"""Bytes a second: what a checkpoint or a restore is taken to do at the very least. (Some 8 GB/s were measured on B200 by others.)"""


class StateWrong(Exception):
    """A process isn't in the state that it should be in, and there is no way from the one to the other."""

    def __init__(self, pid: int, state: State | None, wanted: str) -> None:
        super().__init__(f"process {pid} is {state.name if state is not None else 'no CUDA process'}, not {wanted}")
        self.pid, self.state = pid, state


FAILURES: Final = (Refused, StateWrong, NotStopped, OSError)
"""What can become of a step."""


class Steps:
    """What is done to one tree. `candidates` are the processes of a tree that may be CUDA processes."""

    def __init__(
        self,
        api: Api,
        stops: Stops,
        candidates: Callable[[Iterable[int]], list[int]],
        tell: Tell,
        size: int = 0,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`size`: bytes of GPU memory of the tree, about; calls that move memory get time by it. `elapsed`: seconds since some moment."""
        self._api, self._stops, self._candidates, self._tell, self._elapsed = api, stops, candidates, tell, elapsed
        self._moving_s = LEAST_S + size / SLOWEST

    def processes(self, root: int) -> list[int]:
        """The tree's CUDA processes."""
        return [pid for pid in self._candidates(self._stops.tree(root)) if self._state(pid) is not None]

    def freeze(self, root: int, but: Collection[int], lock_s: float) -> list[int]:
        """All of the tree stopped, its GPUs free of it; gives its CUDA processes. One without any runs on.

        `but` were stopped before; `lock_s` seconds are for all locks.

        Raises one of FAILURES, and the tree runs on; or Stuck, and it doesn't.
        """
        pids = self.processes(root)
        for pid in pids:
            self._expect(pid, State.RUNNING)  # what somebody else has locked isn't ours to unlock
        if not pids:
            return []
        try:
            self._lock(pids, lock_s)
            self._stops.stop(root)
            self._with_each(self._threads(root), self._checkpoint)
        except FAILURES as failed:
            self._undo(root, but, failed)
            raise
        return pids

    def _lock(self, pids: Sequence[int], within_s: float) -> None:
        until = self._elapsed() + within_s
        for pid in pids:
            left = max(until - self._elapsed(), 0.001)
            self._tell("cuCheckpointProcessLock", pid, left + QUICK_S)
            self._api.lock(pid, max(1, int(left * 1000)))

    def _with_each(self, threads: Iterable[tuple[int, int]], call: Callable[[int], None]) -> None:
        for pid, thread in threads:
            self._stops.running(thread, partial(call, pid))

    def _checkpoint(self, pid: int) -> None:
        self._tell("cuCheckpointProcessCheckpoint", pid, self._moving_s)
        self._api.checkpoint(pid)
        self._expect(pid, State.CHECKPOINTED)

    def thaw(self, root: int, but: Collection[int]) -> None:
        """Everything back as it was before `freeze`, from wherever it is; then it runs. Raises Stuck."""
        self._undo(root, but, None)

    def _undo(self, root: int, but: Collection[int], failed: BaseException | None) -> None:
        try:
            self._back(root, ())
        except FAILURES as error:
            raise Stuck(str(error), failed) from error
        self._stops.go_on(root, but)

    def revive(self, root: int, count: int, pairs: Sequence[tuple[str, str]]) -> None:
        """The GPU memory of a stopped copy, with `count` CUDA processes, back on a GPU; the copy stays stopped. Raises one of FAILURES."""
        found = self._back(root, pairs)
        if found != count:
            raise StateWrong(root, None, f"one of {count} CUDA processes ({found} of them were found)")

    def _back(self, root: int, pairs: Sequence[tuple[str, str]]) -> int:
        """Restore all, then unlock all: a process that runs may look for its peers at once. How many there are."""
        threads = self._threads(root)
        self._with_each(threads, partial(self._restore, pairs))
        self._with_each(threads, self._unlock)
        return len(threads)

    def _restore(self, pairs: Sequence[tuple[str, str]], pid: int) -> None:
        if self._state(pid) is not State.CHECKPOINTED:
            return
        self._tell("cuCheckpointProcessRestore", pid, self._moving_s)
        try:
            self._api.restore(pid, pairs)
        except Refused as refused:
            self._unless_done(pid, refused, State.CHECKPOINTED)

    def _unlock(self, pid: int) -> None:
        if self._state(pid) is State.LOCKED:
            self._tell("cuCheckpointProcessUnlock", pid, QUICK_S)
            try:
                self._api.unlock(pid)
            except Refused as refused:
                self._unless_done(pid, refused, State.LOCKED)
        self._expect(pid, State.RUNNING)

    def _unless_done(self, pid: int, refused: Refused, before: State) -> None:
        """What counts is the state that it left: somebody else (the helper of an agent that died) may have been faster, too."""
        if self._state(pid) in (before, None, State.FAILED):
            raise refused

    def _threads(self, root: int) -> list[tuple[int, int]]:
        """The CUDA processes, each with the driver's own thread in it. Works in whatever state they are."""
        found = []
        for pid in self._candidates(self._stops.tree(root)):
            self._tell("cuCheckpointProcessGetRestoreThreadId", pid, QUICK_S)
            try:
                found.append((pid, self._api.restore_thread(pid)))
            except Refused as refused:
                if refused.code not in NOT_CUDA:
                    raise
        return found

    def _state(self, pid: int) -> State | None:
        self._tell("cuCheckpointProcessGetState", pid, QUICK_S)
        return self._api.state(pid)

    def _expect(self, pid: int, wanted: State) -> None:
        state = self._state(pid)
        if state is not wanted:
            raise StateWrong(pid, state, wanted.name)


class Stuck(Exception):
    """The tree can't be let run: `str()` says what is in the way, `first` is what failed before."""

    def __init__(self, why: str, first: BaseException | None) -> None:
        super().__init__(why)
        self.first = first
