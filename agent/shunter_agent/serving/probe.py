"""Is a worker that was just let run really serving? A driver's success isn't proof: restored processes have been seen to die at once."""

import socket
import time
from collections.abc import Callable
from typing import Final

import httpx

from shunter_agent.refusals import rejected
from shunter_agent.runtime.port import WorkerSpec

EVERY_S: Final = 0.05


class Probe:
    """Asks a worker's `GET <control>/health`; without a control URL it connects to the serving address instead. Blocks."""

    def __init__(
        self,
        client: httpx.Client | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client or httpx.Client(timeout=1.0, trust_env=False)
        self._monotonic = monotonic
        self._wait = wait

    def __call__(self, spec: WorkerSpec, alive: Callable[[], bool], within_s: float) -> str:
        """Ask until it is healthy; returns the evidence in words.

        Raises Rejected SH631 (its process is gone), SH632 (it isn't healthy within `within_s` seconds; the last answer is named).
        """
        began = self._monotonic()
        while True:
            if not alive():
                raise rejected(
                    "SH631", "the worker's process died right after it was let run", "Restore it again from its image", spec.worker
                )
            problem = self._ask(spec)
            took = self._monotonic() - began
            if problem is None:
                return f"process alive, {'health endpoint answers' if spec.control else 'serving port accepts'} after {took * 1000:.0f} ms"
            if took >= within_s:
                raise rejected(
                    "SH632", f"the worker isn't healthy after {within_s:g} s: {problem}", "Restore it again, here or elsewhere", spec.worker
                )
            self._wait(EVERY_S)

    def _ask(self, spec: WorkerSpec) -> str | None:
        if not spec.control:
            host, _, port = spec.address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), timeout=1.0).close()
            except (OSError, ValueError) as error:
                return f"{spec.address}: {error}"
            return None
        try:
            response = self._client.get(spec.control.rstrip("/") + "/health")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{spec.control}/health: {type(error).__name__}"
        return None if response.is_success else f"{spec.control}/health answers {response.status_code}"
