"""One CRIU process that serves one request over a socket (`criu swrk`), and its protocol: protobuf messages, one a packet.

CRIU asks at each stage whether to go on (a notification), and waits for the answer. Should this process die, the socket closes, CRIU takes
that for a no, and puts everything back: a dump's worker runs on, a restore's copy is killed.

CRIU may hang, too: on a disk, a file system or a driver that doesn't answer. A worker must not stand still for that without bound, so each
of its silences is bounded; what follows is as if it had died, and it does: it is killed, and the kernel lets go of what it held.
"""

import contextlib
import itertools
import os
import re
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Rejected, Retry

from shunter_agent.runtime import criu_rpc_pb2 as rpc
from shunter_agent.runtime.namespaces import inside

_ERROR: Final = re.compile(r"\bError \([^)]*\): (.*)")
_NOISE: Final = ("rlimit: Can't setup RLIMIT_NOFILE",)
"""What CRIU calls an error in every log where it lacks CAP_SYS_RESOURCE."""
_RUN_ID: Final = " CRIU run id = "
_HEAD_LINES: Final = 40
LEAST_S: Final = 60.0
"""Seconds of CRIU's silence that are always waited for."""
MOST_S: Final = 600.0
"""Seconds of CRIU's silence after which it is given up, however much it has to read or write."""
SLOWEST: Final = 100e6
"""Bytes a second: what the slowest disk is taken to do that a worker is dumped to or restored from."""
VERSION_S: Final = 15.0
"""Seconds in which CRIU must say its version, for which it has nothing to do."""
LET_GO_S: Final = 30.0
"""Seconds that CRIU may take to undo or finish what stands complete already: no bytes are read or written for that."""
CLEAN_S: Final = 30.0
"""Seconds that CRIU may take to put things back and end, once its socket is closed."""
DEATH_S: Final = 10.0
"""Seconds that a killed CRIU may take to be gone. One that waits in the kernel isn't; it is left to itself."""

Place = Callable[[Callable[[], "subprocess.Popen[bytes]"]], "subprocess.Popen[bytes]"]
"""Calls a function where the process that it starts is to live."""
Answer = Callable[[rpc.Notify], bool | None]
"""Says yes or no to a notification; None: stop here, and answer later."""


def patience_s(size: int) -> float:
    """How many seconds CRIU may be silent while it dumps or restores so many bytes: it says nothing until it has them all."""
    return min(LEAST_S + size / SLOWEST, MOST_S)


class Session:
    """A running CRIU and its socket. Use `ask` once, then `answer` if it stopped; `close` always."""

    def __init__(self, criu: Path, place: int | Place | None, silent_s: float, descriptors: Sequence[int] = ()) -> None:
        """Start CRIU in the network namespace `place` (None: the agent's own), or where that function starts it. It is killed, and counts
        as dead, once it has said nothing for `silent_s` seconds where it must. `descriptors` go along. Raises Retry SH703."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def spawn() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [str(criu), "swrk", str(theirs.fileno())],
                pass_fds=[theirs.fileno(), *descriptors],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the agent; CRIU then sees the socket close, and cleans up
                restore_signals=False,  # SIGPIPE stays ignored: writing to a dead agent must fail, not kill CRIU before it has cleaned up
                umask=0o077,
            )

        try:
            self._criu = place(spawn) if callable(place) else inside(place, spawn)
        except OSError as error:
            ours.close()
            raise Retry(
                Problem(
                    code="SH703",
                    what=f"CRIU can't be started: {error}",
                    remedy="Install it with scripts/install-criu, and run the agent as root",
                    subject=str(criu),
                )
            ) from error
        finally:
            theirs.close()
        ours.settimeout(silent_s)
        self._socket = ours
        self._killed = False
        self._after = contextlib.ExitStack()

    def closing(self, also: Callable[[], None]) -> None:
        """Call `also` once CRIU has ended."""
        self._after.callback(also)

    def be_patient(self, silent_s: float) -> None:
        """As `__init__` says of `silent_s`, from here on."""
        self._socket.settimeout(silent_s)

    def ask(self, request: rpc.Request, answer: Answer) -> rpc.Response:
        """Send the request and answer notifications until one is left open (its NOTIFY response is returned) or CRIU has ended.

        Raises ConnectionError, with the reason, when CRIU dies on the way or is given up.
        """
        self._send(request)
        return self._listen(answer)

    def answer(self, success: bool) -> rpc.Response:
        """Answer the notification that was left open, say yes to all that follow, and return how it ended. Raises ConnectionError."""
        self._socket.settimeout(LET_GO_S)
        self._reply(success)
        return self._listen(lambda _notify: True)

    def _listen(self, answer: Answer) -> rpc.Response:
        while True:
            try:
                packet = self._socket.recv(1 << 16)
            except TimeoutError as error:
                raise self._given_up() from error
            except ConnectionError:  # it died with something of ours unread
                packet = b""
            if not packet:
                raise ConnectionResetError("CRIU died")
            response = rpc.Response.FromString(packet)
            if response.type != rpc.NOTIFY:
                return response
            verdict = answer(response.notify)
            if verdict is None:
                return response
            self._reply(verdict)

    def _reply(self, success: bool) -> None:
        self._send(rpc.Request(type=rpc.NOTIFY, notify_success=success))

    def _send(self, request: rpc.Request) -> None:
        try:
            self._socket.send(request.SerializeToString(), socket.MSG_NOSIGNAL)
        except TimeoutError as error:
            raise self._given_up() from error
        except ConnectionError:
            pass  # it died: what it said before is still to be read, and then its end

    def _given_up(self) -> ConnectionError:
        silent_s = self._socket.gettimeout() or 0.0
        self._kill()
        return ConnectionResetError(f"CRIU said nothing for {silent_s:.0f} s, and was ended")

    def _kill(self) -> None:
        self._killed = True
        self._criu.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._criu.wait(DEATH_S)

    @property
    def alive(self) -> bool:
        """CRIU still runs. After `close`: it can't be ended, and holds whatever it held."""
        return self._criu.poll() is None

    @property
    def pid(self) -> int:
        """CRIU's process."""
        return self._criu.pid

    def close(self) -> None:
        """Close the socket, which is a no to whatever is open, and wait until CRIU has cleaned up; end it if it doesn't. Idempotent."""
        self._socket.close()
        with self._after:
            if self._killed:
                return
            try:
                self._criu.wait(CLEAN_S)
            except subprocess.TimeoutExpired:
                self._kill()


def options(folder: int, log: str, values: Mapping[str, object]) -> rpc.Options:
    """The options of every dump and restore. `folder` is a descriptor of the image folder; `values` are those of this one."""
    return rpc.Options(
        log_file=log,
        log_level=3,  # the least at which the log names the run id
        notify_scripts=True,
        tcp_established=True,
        ext_unix_sk=True,
        file_locks=True,
        shell_job=True,
        manage_cgroups_mode=rpc.IGNORE,  # else a copy would be in the cgroup of the node that it left, made anew, and not in its agent's
        # the other lock, iptables, needs a command that nodes may not have
        **{"images_dir_fd": folder, "network_lock": rpc.NFTABLES, **values},  # type: ignore[arg-type]
    )


def reasons(log: Path, most: int = 3) -> str:
    """The last error lines of a CRIU log, oldest first: the first ones are noise of its start. Empty when there are none."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return ""
    found = [line for line in _ERROR.findall(text) if not line.startswith(_NOISE)]
    return "; ".join(line.strip().rstrip(".") for line in found[-most:])


def run_id(log: Path) -> str | None:
    """CRIU's id of a dump, after which its network lock is named. None when the log doesn't say.

    The log begins with the id that CRIU made for itself at its start and then, for each request, a new one; the last counts.
    """
    try:
        with log.open(errors="replace") as lines:
            found = [line.partition(_RUN_ID)[2].strip() for line in itertools.islice(lines, _HEAD_LINES) if _RUN_ID in line]
    except OSError:
        return None
    return found[-1] if found else None


def version(criu: Path) -> tuple[int, int]:
    """CRIU's major and minor version. Raises Retry SH703, Rejected SH703 for an answer that isn't one."""
    session = Session(criu, None, VERSION_S)
    try:
        response = session.ask(rpc.Request(type=rpc.VERSION), lambda _notify: True)
    except OSError as error:
        raise Rejected(
            Problem(
                code="SH703",
                what=f"CRIU doesn't answer ({error})",
                remedy="Run `criu check` by hand on this node",
                subject=os.fspath(criu),
            )
        ) from error
    finally:
        session.close()
    return response.version.major_number, response.version.minor_number
