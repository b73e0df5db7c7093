"""What the CUDA driver can be asked about another process, through `cuda.bindings.driver`. For the helper alone: each call may hang."""

import ctypes
import enum
import importlib
import uuid
from collections.abc import Sequence
from typing import Any, Final, Protocol


class State(enum.IntEnum):
    """The driver's CUprocessState. A process is dumped when CHECKPOINTED: then it holds no GPU memory and no /dev/nvidia* any more."""

    RUNNING = 0
    LOCKED = 1
    CHECKPOINTED = 2
    FAILED = 3
    CHECKPOINTING = 4
    RESTORING = 5


class Refused(Exception):
    """The driver said no. `code` is its CUresult (-1: it never came to that), `name` what that is called."""

    def __init__(self, call: str, pid: int, code: int, name: str) -> None:
        super().__init__(f"{call} of process {pid}: {name} ({code})")
        self.call, self.pid, self.code, self.name = call, pid, code, name


class Absent(Exception):
    """There is no driver, no library or no checkpoint in it; the text says which."""


class Api(Protocol):
    """The calls that matter. All but `state` and `restore_thread` change the process. Each raises Refused."""

    def state(self, pid: int) -> State | None:
        """None: it isn't a CUDA process, or not yet."""
        ...

    def restore_thread(self, pid: int) -> int:
        """The thread of it that must be able to run for a checkpoint or a restore, as this process sees it."""
        ...

    def lock(self, pid: int, timeout_ms: int) -> None:
        """RUNNING to LOCKED: wait for the work that its GPUs have, and keep it from giving them more. If that takes too long it runs on."""
        ...

    def checkpoint(self, pid: int) -> None:
        """LOCKED to CHECKPOINTED: its GPU memory becomes host memory of its own."""
        ...

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        """CHECKPOINTED to LOCKED. `pairs` are UUIDs of GPUs, before and now, and must name each that it knew; empty: they are the same."""
        ...

    def unlock(self, pid: int) -> None:
        """LOCKED to RUNNING."""
        ...


NOT_CUDA: Final = frozenset({1, 3})
"""CUDA_ERROR_INVALID_VALUE and CUDA_ERROR_NOT_INITIALIZED: what is said of a process that has no CUDA in it."""


class Driver:
    """Implements `Api`. Raises Absent when it can't be had."""

    def __init__(self) -> None:
        self._cuda = bindings("driver")
        self._ready = False

    def version(self) -> int:
        """Of CUDA, as in 13000 for 13.0. Needs no GPU. Raises Absent, Refused."""
        try:
            result, version = self._cuda.cuDriverGetVersion()
        except RuntimeError as error:
            raise Absent(f"the driver's library can't be loaded ({error})") from error
        self._check("cuDriverGetVersion", 0, result)
        return int(version)

    def checkpoints(self) -> str:
        """Empty when it can checkpoint; else what is missing, in words."""
        if not hasattr(getattr(self._cuda, "CUcheckpointRestoreArgs", None), "gpuPairs"):
            return "this version of cuda-bindings can't name other GPUs at a restore (13.4.1 can)"
        try:
            self._cuda.cuCheckpointProcessGetState(1)
        except RuntimeError as error:
            return f"the driver has no checkpoints: {error}"
        return ""

    def state(self, pid: int) -> State | None:
        """See `Api`."""
        self._init()
        result, state = self._cuda.cuCheckpointProcessGetState(pid)
        if int(result) in NOT_CUDA:
            return None
        self._check("cuCheckpointProcessGetState", pid, result)
        return State(int(state))

    def restore_thread(self, pid: int) -> int:
        """See `Api`."""
        self._init()
        result, thread = self._cuda.cuCheckpointProcessGetRestoreThreadId(pid)
        self._check("cuCheckpointProcessGetRestoreThreadId", pid, result)
        return int(thread)

    def lock(self, pid: int, timeout_ms: int) -> None:
        """See `Api`."""
        arguments = self._cuda.CUcheckpointLockArgs()
        arguments.timeoutMs = timeout_ms
        self._check("cuCheckpointProcessLock", pid, self._cuda.cuCheckpointProcessLock(pid, arguments)[0])

    def checkpoint(self, pid: int) -> None:
        """See `Api`."""
        self._check("cuCheckpointProcessCheckpoint", pid, self._cuda.cuCheckpointProcessCheckpoint(pid, None)[0])

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        """See `Api`."""
        arguments: Any = None
        kept: list[Any] = []
        if pairs:
            arguments = self._cuda.CUcheckpointRestoreArgs()
            found = []
            for before, now in pairs:
                pair = self._cuda.CUcheckpointGpuPair()
                pair.oldUuid, pair.newUuid = self._uuid(before, kept), self._uuid(now, kept)
                found.append(pair)
            arguments.gpuPairs = found
            arguments.gpuPairsCount = len(found)
        self._check("cuCheckpointProcessRestore", pid, self._cuda.cuCheckpointProcessRestore(pid, arguments)[0])

    def unlock(self, pid: int) -> None:
        """See `Api`."""
        self._check("cuCheckpointProcessUnlock", pid, self._cuda.cuCheckpointProcessUnlock(pid, None)[0])

    def _init(self) -> None:
        # without it the driver forgets everything between calls where persistence mode is off, and refuses to restore
        if not self._ready:
            try:
                result = self._cuda.cuInit(0)[0]
            except RuntimeError as error:
                raise Absent(f"the driver's library can't be loaded ({error})") from error
            self._check("cuInit", 0, result)
            self._ready = True

    def _uuid(self, text: str, kept: list[Any]) -> Any:  # noqa: ANN401  (the bindings have no types)
        raw = ctypes.create_string_buffer(uuid.UUID(text.removeprefix("GPU-")).bytes, 16)
        kept.append(raw)  # the bindings read it where it lies, later
        return self._cuda.CUuuid(ctypes.addressof(raw))

    def _check(self, call: str, pid: int, result: Any) -> None:  # noqa: ANN401
        if int(result) != 0:
            raise Refused(call, pid, int(result), str(getattr(result, "name", result)))


def bindings(module: str) -> Any:  # noqa: ANN401
    """`cuda.bindings.<module>`. Raises Absent when the package isn't installed."""
    try:
        return importlib.import_module(f"cuda.bindings.{module}")
    except ImportError as error:
        raise Absent(f"cuda-bindings can't be imported ({error})") from error
