"""The process that calls the CUDA driver: `python -m shunter_agent.runtime.cuda.helper FD`, one JSON object a packet on that socket.

One thread does everything, as ptrace wants it. When the socket closes (the agent died) it puts right what it has in hand: a worker gets its
GPU back and runs on, once CRIU has let go of it; a copy that nobody has let run is ended.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from shunter_agent.runtime import connections
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.cuda import stopping
from shunter_agent.runtime.cuda.api import Absent, Driver, Refused
from shunter_agent.runtime.cuda.nvml import Nvml
from shunter_agent.runtime.cuda.seen import cuda_processes
from shunter_agent.runtime.cuda.steps import FAILURES, QUICK_S, Steps, Stuck
from shunter_agent.runtime.port import Process

PUT_BACK_S: Final = 900.0
"""Seconds that CRIU may still take to let a worker go after its agent's death: it learns of it when it has dumped all."""
TRIES: Final = 2
"""How often a worker is tried to be given its GPU back once its agent has died. Each time from what the driver says then."""
LOOK_S: Final = 5.0
"""Seconds for a look at what GPUs there are, once the library is loaded."""
ALONE_S: Final = 15.0
"""Seconds after which a call that is over its time ends this process, should the agent not have done it by then."""
Request = Mapping[str, Any]


class Helper:
    """Answers requests until the socket closes. See `session` for them."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._driver: Driver | None = None
        self._nvml: Nvml | None = None
        self._in_hand: tuple[str, Process, Request] | None = None
        self._hushed: dict[int, int] = {}
        self._verbs: dict[str, Callable[[Request], object]] = {
            "ready": lambda _request: None,
            "look": self._look,
            "states": self._states,
            "freeze": self._freeze,
            "thaw": self._thaw,
            "guard": self._guard,
            "revive": self._revive,
            "go": self._go,
            "forget": self._forget,
        }

    def warm(self) -> None:
        """Start the driver. What fails here fails again, and is told, when the driver is needed."""
        with contextlib.suppress(Refused, Absent):
            self._cuda().state(os.getpid())

    def serve(self) -> None:
        """Until the socket closes; then put right what is in hand."""
        while packet := self._receive():
            request = json.loads(packet)
            answer = self._answer(request)
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._send(answer)
        self._put_right()

    def _receive(self) -> bytes:
        try:
            return self._link.recv(1 << 16)
        except ConnectionError:
            return b""

    def _send(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):  # the agent is gone: seen at the next request
            self._link.send(json.dumps(message).encode())

    def _tell(self, call: str, pid: int, within_s: float) -> None:
        self._send({"calling": call, "pid": pid, "within_s": within_s})
        # a call that hangs, and no agent that would end this process for it: then nothing else lets go of what it holds
        signal.setitimer(signal.ITIMER_REAL, within_s + ALONE_S)

    def _answer(self, request: Request) -> Mapping[str, object]:
        try:
            return {"done": self._verbs[request["do"]](request)}
        except Stuck as stuck:
            return {"failed": str(stuck.first or stuck), "stuck": str(stuck), **_code(stuck.first)}
        except Absent as absent:
            return {"failed": str(absent)}
        except FAILURES as failed:
            return {"failed": str(failed), **_code(failed)}

    # -- what can be asked

    def _look(self, _request: Request) -> object:
        self._tell("NVML", 0, LOOK_S if self._nvml else QUICK_S)  # at first it may have to start the driver
        nvml = self._nvml = self._nvml or Nvml()
        gpus, lost = nvml.gpus()
        driver = self._cuda()
        return {"driver": nvml.driver(), "cuda": driver.version(), "lacks": driver.checkpoints(), "gpus": gpus, "lost": lost}

    def _states(self, request: Request) -> object:
        driver, found = self._cuda(), {}
        for pid in request["pids"]:
            self._tell("cuCheckpointProcessGetState", pid, QUICK_S)
            state = driver.state(pid)
            found[str(pid)] = state.name if state is not None else ""
        return found

    def _freeze(self, request: Request) -> object:
        process = _process(request)
        self._in_hand = ("worker", process, request)
        try:
            found = self._steps(request).freeze(process.pid, request["but"], request["lock_s"])
        except BaseException:
            self._in_hand = None
            raise
        if not found:
            self._in_hand = None
        return found

    def _thaw(self, request: Request) -> object:
        process = _process(request)
        self._in_hand = None
        self._tell("waiting for its tracer", process.pid, stopping.FREE_S + QUICK_S)
        if not stopping.wait_untraced(process.pid, lambda: processes.find(process)):
            raise stopping.NotStopped(f"process {process.pid} is gone, or still traced by somebody else")
        self._steps(request).thaw(process.pid, request["but"])
        return None

    def _guard(self, request: Request) -> object:
        self._in_hand = ("copy", _process(request), request)
        return None

    def _revive(self, request: Request) -> object:
        process = _process(request)
        self._in_hand = ("copy", process, request)
        stops = stopping.Kernel(or_die=True)
        stops.stop(process.pid)
        stops.guard(process.pid)
        self._hushed = connections.hush(processes.tree(process.pid))
        pairs = [(str(before), str(now)) for before, now in request["pairs"]]
        self._steps(request, stops).revive(process.pid, request["count"], pairs)
        return None

    def _go(self, request: Request) -> object:
        process, stops = _process(request), stopping.Kernel()
        connections.speak(processes.tree(process.pid), self._hushed)
        stops.unguard(process.pid)
        stops.go_on(process.pid, request["but"])
        self._in_hand = None
        return None

    def _forget(self, _request: Request) -> object:
        self._in_hand = None
        return None

    # -- how

    def _cuda(self) -> Driver:
        self._driver = self._driver or Driver()
        return self._driver

    def _steps(self, request: Request, stops: stopping.Stops | None = None) -> Steps:
        return Steps(self._cuda(), stops or stopping.Kernel(), cuda_processes, self._tell, request["size"])

    def _put_right(self) -> None:
        if self._in_hand is None:
            return
        kind, process, request = self._in_hand
        if kind == "copy":
            if processes.find(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        else:
            self._give_back(process, request)

    def _give_back(self, process: Process, request: Request) -> None:
        for _ in range(TRIES):
            if not stopping.wait_untraced(process.pid, lambda: processes.find(process), PUT_BACK_S):
                return
            try:
                self._steps(request).thaw(process.pid, request["but"])
            except (Stuck, Absent):  # nobody is left to tell; its next agent finds it as it is, and tries again
                continue
            return


def _process(request: Request) -> Process:
    """The process that is meant. Raises OSError when it is gone."""
    process = Process(pid=int(request["pid"]), started=int(request["started"]))
    if not processes.find(process):
        raise ProcessLookupError(f"process {process.pid} is gone")
    return process


def _code(failed: BaseException | None) -> dict[str, object]:
    return {"code": failed.code, "call": failed.call} if isinstance(failed, Refused) else {}


def main(descriptor: int, *, warm: bool) -> None:
    """Serve on this socket."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends when its agent does, and not before it has put things right
    with socket.socket(fileno=descriptor) as link:
        helper = Helper(link)
        if warm:
            helper.warm()
        helper.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), warm="warm" in sys.argv)
