"""The way from a notice to its freeze, taken apart: what the engine's loop is at, from when to when, and for how much of its processor."""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any, Final

from shunter.act.agents import AgentClient
from shunter.act.scheduler import Scheduler
from shunter.act.store import Store
from shunter.app.heeding import Heeding
from shunter.app.leading import Leading
from shunter.audit.trail import Trail

_CALLS: Final = ("report", "preflight", "prepare", "fence")
Span = tuple[str, float, float, float]
"""What, when it began and ended (seconds by the machine's monotonic clock), and the loop's own processor time in it."""


class Way:
    """Spans since the last notice. `install` once; `tell` is given them as the freeze is sent."""

    def __init__(self, tell: Callable[[list[Span]], None]) -> None:
        self._tell, self._spans, self._on = tell, list[Span](), False

    def install(self) -> None:
        """Put itself around the engine's parts."""
        self._around(Heeding, "decide")
        self._around(Trail, "add")
        self._around(Scheduler, "offer")
        self._around(Store, "_write")
        for call in _CALLS:
            self._around_call(call)
        self._first()
        self._last()

    def _note(self, name: str, began: float, cpu: float) -> None:
        if self._on:
            self._spans.append((name, began, time.monotonic(), time.thread_time() - cpu))

    def _around(self, owner: type, name: str) -> None:
        whole = getattr(owner, name)

        @functools.wraps(whole)
        def done(*args: Any, **more: Any) -> Any:
            began, cpu = time.monotonic(), time.thread_time()
            try:
                return whole(*args, **more)
            finally:
                if _in_loop():
                    self._note(name, began, cpu)

        setattr(owner, name, done)

    def _around_call(self, name: str) -> None:
        whole = getattr(AgentClient, name)

        @functools.wraps(whole)
        async def done(*args: Any, **more: Any) -> Any:
            began, cpu = time.monotonic(), time.thread_time()
            try:
                return await whole(*args, **more)
            finally:
                if _in_loop():
                    self._note(name, began, cpu)

        setattr(AgentClient, name, done)

    def _first(self) -> None:
        whole = Leading.heed

        def heed(leading: Leading, notice: Any) -> None:
            self._spans, self._on = [], True
            began, cpu = time.monotonic(), time.thread_time()
            whole(leading, notice)
            self._note("heed", began, cpu)

        Leading.heed = heed  # type: ignore[method-assign]

    def _last(self) -> None:
        whole = AgentClient.freeze

        async def freeze(*args: Any, **more: Any) -> Any:
            if self._on:
                self._note("freeze", time.monotonic(), time.thread_time())
                self._on = False
                self._tell(self._spans)
            return await whole(*args, **more)

        AgentClient.freeze = freeze  # type: ignore[method-assign]


def _in_loop() -> bool:
    try:
        return asyncio.get_running_loop() is not None
    except RuntimeError:
        return False


def table(ways: list[list[Span]], seen: list[float]) -> list[str]:
    """For each thing on the way, in its order: milliseconds from the notice to its beginning, how long it took, and its processor time;
    medians, and the longest that it took.
    """
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for spans, at in zip(ways, seen, strict=True):
        number: dict[str, int] = {}
        for name, began, ended, cpu in sorted(spans, key=lambda s: s[1]):
            number[name] = number.get(name, 0) + 1
            rows.setdefault(f"{name} {number[name]}", []).append((1000 * (began - at), 1000 * (ended - began), 1000 * cpu))
    found = [(sorted(values), name) for name, values in rows.items() if 2 * len(values) > len(ways)]
    lines = []
    for values, name in sorted(found, key=lambda one: one[0][len(one[0]) // 2][0]):
        middle = len(values) // 2
        begins, takes, cpus = (sorted(column) for column in zip(*values, strict=True))
        lines.append(
            f"{name:14} at {begins[middle]:7.1f}  takes {takes[middle]:6.1f} (most {takes[-1]:6.1f})  processor {cpus[middle]:5.1f}"
        )
    return lines


def slowest(ways: list[list[Span]], seen: list[float], took: list[float], number: int = 5) -> list[str]:
    """Those that took longest, each with what was on its way: milliseconds at which it began and that it took, and its processor time."""
    lines = []
    for took_ms, spans, at in sorted(zip(took, ways, seen, strict=True), reverse=True)[:number]:
        steps = (f"{n} {1000 * (a - at):.0f}+{1000 * (b - a):.0f} ({1000 * cpu:.0f})" for n, a, b, cpu in sorted(spans, key=lambda s: s[1]))
        lines.append(f"{took_ms:.1f}: {', '.join(steps)}")
    return lines
