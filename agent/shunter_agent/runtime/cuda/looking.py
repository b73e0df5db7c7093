"""The node's GPUs as NVIDIA's library shows them now, asked through a helper that stays: a library that hangs is given up for a while."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from shunter.model.errors import Problem

from shunter_agent.notices.xid import address
from shunter_agent.runtime.cuda import problems
from shunter_agent.runtime.cuda.session import Died, Failed, Session
from shunter_agent.runtime.port import Gpu, Gpus

AGAIN_S: Final = 60.0
"""Seconds for which a library that hung or died isn't asked again."""
FRESH_S: Final = 0.5
"""Seconds for which an answer is good enough to be given again: an inventory asks once for each worker."""
_SIGNS: Final = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"))


def present(signs: tuple[Path, ...] = _SIGNS) -> bool:
    """There may be a GPU: its driver is loaded, or a library stands in for it. Costs nothing, unlike to ask."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any(sign.exists() for sign in signs) or any(Path(folder, "libcuda.so.1").exists() for folder in folders if folder)


class Looker:
    """May be used from several threads."""

    def __init__(self, session: Callable[[bool], Session] = Session, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._new, self._elapsed = session, elapsed
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._aside: threading.Thread | None = None
        self._known: tuple[float, Gpus, dict[int, int]] | None = None
        self._not_before = 0.0
        self._why: Problem | None = None

    def gpus(self) -> Gpus:
        """All of them, and what is wrong."""
        return self._look()[0]

    def used(self) -> Mapping[int, int]:
        """Bytes of GPU memory by process, as of the last look. Empty when it can't be told.

        It never waits, since a report on the node must not hang with a GPU: where the last look is too old, the next one is made aside.
        """
        known = self._known
        if known is None or self._elapsed() - known[0] > FRESH_S:
            self._look_aside()
        return known[2] if known is not None else {}

    def _look_aside(self) -> None:
        if self._aside is None or not self._aside.is_alive():
            self._aside = threading.Thread(target=self._look, name="look at gpus", daemon=True)
            self._aside.start()

    def close(self) -> None:
        """End the helper."""
        with self._lock:
            if self._session is not None:
                self._session.close()
                self._session = None

    def _look(self) -> tuple[Gpus, dict[int, int]]:
        with self._lock:
            now = self._elapsed()
            if self._known is None or now - self._known[0] > FRESH_S:
                self._known = (now, *self._ask(now))
            return self._known[1], self._known[2]

    def _ask(self, now: float) -> tuple[Gpus, dict[int, int]]:
        if now < self._not_before:
            return Gpus(trouble=self._why), {}
        try:
            if self._session is None or not self._session.alive:  # one that somebody ended while it had nothing to do says nothing of a GPU
                self._session = self._new(False)
            answer = self._session.ask("look")
        except Failed as failed:  # no library, say: it stays so until somebody installs one
            return Gpus(trouble=problems.unusable(failed)), {}
        except Died as died:
            self._session, self._why = None, problems.unusable(died)
            self._not_before = self._elapsed() + AGAIN_S
            return Gpus(trouble=self._why), {}
        return _gpus(answer), _used(answer)


def _gpus(answer: Mapping[str, Any]) -> Gpus:
    version = int(answer["cuda"])
    return Gpus(
        driver=answer["driver"],
        cuda=f"{version // 1000}.{version % 1000 // 10}",
        gpus=tuple(_gpu(gpu) for gpu in answer["gpus"]),
        trouble=_trouble(answer["lacks"]),
        lost=tuple(answer["lost"]),
    )


def _trouble(lacks: str) -> Problem | None:
    return problems.unusable(lacks) if lacks else None


def _gpu(gpu: Mapping[str, Any]) -> Gpu:
    return Gpu(
        uuid=gpu["uuid"],
        model=gpu["model"],
        pci=address(gpu["pci"]),
        memory=gpu["memory"],
        free=gpu["free"],
        mig=gpu["mig"],
        used=_by_pid(gpu),
        domain=_domain(gpu["domain"]),
    )


def _domain(name: str) -> str:
    """One within the node is named by an address."""
    return address(name) if name.count(":") > 1 else name


def _by_pid(gpu: Mapping[str, Any]) -> dict[int, int]:
    return {int(pid): size for pid, size in gpu["used"].items()}


def _used(answer: Mapping[str, Any]) -> dict[int, int]:
    found: dict[int, int] = {}
    for gpu in answer["gpus"]:
        for pid, size in _by_pid(gpu).items():
            found[pid] = found.get(pid, 0) + size
    return found
