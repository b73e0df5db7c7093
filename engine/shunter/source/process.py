"""Run one command with a deadline and a cap on its output, and leave nothing of it behind."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence

import msgspec

_ERROR_BYTES = 8_000


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended. `error` is the end of its standard error; `cut` is True when it wrote more than it may and was killed for it."""

    code: int
    output: bytes
    error: str
    timed_out: bool = False
    cut: bool = False


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    given: bytes = b"",
    output_bytes: int = 2**20,
    files: Collection[int] = (),
) -> Ended:
    """Run `command` in a process group of its own; the whole group is killed at the deadline, or when it writes more than `output_bytes`.

    `given` is its standard input. Input and errors go through files, so that no pipe can fill up and block either side. `files` are open
    files that it gets under the same numbers.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        late = threading.Event()
        with subprocess.Popen(
            command, env=dict(env), stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True, pass_fds=tuple(files)
        ) as child:
            assert child.stdout is not None

            def expire() -> None:
                late.set()
                _kill_group(child.pid)

            timer = threading.Timer(timeout_s, expire)
            timer.daemon = True
            timer.start()
            try:
                output = child.stdout.read(output_bytes + 1)
                if len(output) > output_bytes:
                    _kill_group(child.pid)
                # Not reaped yet: its group's id can't be anybody else's while helpers (ssh, index-pack) that outlived it are killed.
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            finally:
                timer.cancel()
                timer.join()
                _kill_group(child.pid)
            code = child.wait()
        size = stderr.seek(0, os.SEEK_END)
        stderr.seek(max(0, size - _ERROR_BYTES))
        error = stderr.read().decode(errors="replace")
    return Ended(code=code, output=output[:output_bytes], error=error, timed_out=late.is_set(), cut=len(output) > output_bytes)
