"""The agent's end of a helper: requests with a bound on each silence."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from shunter_agent.runtime.port import Process

FIRST_S: Final = 60.0
"""Seconds until a helper's first word: it loads the driver's library."""
GRACE_S: Final = 5.0
"""Seconds more than a helper has said that it takes."""
END_S: Final = 5.0


class Failed(Exception):
    """It was tried, and didn't work. `code` and `call` are the driver's, if it was the driver (None, empty); `stuck` says why what was done
    couldn't be undone (empty: it was)."""

    def __init__(self, why: str, code: int | None = None, call: str = "", stuck: str = "") -> None:
        super().__init__(why)
        self.code, self.call, self.stuck = code, call, stuck


class Died(Exception):
    """The helper ended, or was ended since it hung. What it was at is in an unknown state."""


class Session:
    """A helper. Raises Died when it can't be started."""

    def __init__(self, warm: bool, environment: Mapping[str, str] | None = None, patience: float = 1.0) -> None:
        """`warm`: it starts the driver at once, which takes seconds on a node with many GPUs, and isn't to wait for the first request.
        `environment`: what it gets besides the agent's own; `patience`: all bounds are multiplied by it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._helper = subprocess.Popen(
                [sys.executable, "-m", "shunter_agent.runtime.cuda.helper", str(theirs.fileno()), *(["warm"] if warm else [])],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            ours.close()
            raise Died(f"the process that calls the CUDA driver can't be started: {error}") from error
        finally:
            theirs.close()
        self._link, self._patience = ours, patience

    @property
    def alive(self) -> bool:
        """It can be asked, as far as is known."""
        return self._helper.poll() is None

    def ask(self, do: str, **arguments: object) -> Any:  # noqa: ANN401  (JSON has no narrower type)
        """What it answers. Raises Failed; Died, when it has to be ended too."""
        doing = f"asked to {do}"
        try:
            self._link.settimeout(FIRST_S * self._patience)
            self._link.send(json.dumps({"do": do, **arguments}).encode(), socket.MSG_NOSIGNAL)
            while True:
                packet = self._link.recv(1 << 20)
                if not packet:
                    raise ConnectionResetError("it ended")
                answer = json.loads(packet)
                if "calling" not in answer:
                    break
                doing = f"in {answer['calling']} of process {answer['pid']}"
                self._link.settimeout((answer["within_s"] + GRACE_S) * self._patience)
        except OSError as error:
            why = f"died ({self._ended()})"
            if isinstance(error, TimeoutError):
                why = f"said nothing for {self._link.gettimeout():.0f} s, and was ended"
            self.kill()
            raise Died(f"the process that calls the CUDA driver {why}: {doing}") from error
        if "failed" in answer:
            raise Failed(answer["failed"], answer.get("code"), answer.get("call", ""), answer.get("stuck", ""))
        return answer["done"]

    def about(self, do: str, process: Process, **arguments: object) -> Any:  # noqa: ANN401
        """Ask about a process."""
        return self.ask(do, pid=process.pid, started=process.started, **arguments)

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._helper.wait(1)
        code = self._helper.returncode
        return f"signal {-code}" if code is not None and code < 0 else f"status {code}"

    def leave(self) -> None:
        """Close the socket, so that it puts right what it has in hand, however long that takes. Nobody waits for it."""
        self._link.close()
        threading.Thread(target=self._helper.wait, name="cuda helper", daemon=True).start()  # so that it is no zombie afterwards

    def close(self) -> None:
        """End it. What it has in hand is put right first, unless it takes too long."""
        self._link.close()
        try:
            self._helper.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once. A copy that it guards dies with it."""
        self._link.close()
        self._helper.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._helper.wait(END_S)
