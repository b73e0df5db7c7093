"""A thread for what takes long in a tick, so that the loop which gives orders is never kept from one.

It has an event loop of its own. It shares the interpreter with the orders: `hold` has it stand still, at the next question to the rules,
while something can't wait.
"""

import asyncio
import selectors
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from shunter.model.expression import BulkRules, Expression, Rules, Scope, Sheet, Undecided, in_bulk

T = TypeVar("T")
SWITCH_S: Final = 0.0005
"""After so many seconds the interpreter lets another thread have its turn. Its own 5 ms are, in each of the dozen hops from a notice to an
order, too long."""
HASTE_S: Final = 0.00005
"""The same while something can't wait: each write to a disk, and each answer of an agent, gives the interpreter away and takes it back."""
LONGEST_S: Final = 1.0
"""The longest pause: whatever becomes of an order, ticks go on."""
_FAREWELL_S: Final = 5.0


class Aside:
    """Runs work beside the loop once it was started; before, and after `close`, where it is called."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._free = threading.Event()
        self._free.set()
        self._switch: float | None = None

    def start(self) -> None:
        """Begin to run work in the thread."""
        self._loop = asyncio.SelectorEventLoop(_Resting(self.breathe))
        self._thread = threading.Thread(target=self._loop.run_forever, name="aside", daemon=True)
        self._thread.start()
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(min(self._switch, SWITCH_S))

    async def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await something in the thread's loop. What it uses must belong to no other loop."""

        async def done() -> T:
            return await work()

        if self._loop is None:
            return await work()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(done(), self._loop))

    async def call(self, work: Callable[[], T]) -> T:
        """The same for what doesn't wait."""

        async def done() -> T:
            return work()

        return await self.do(done)

    def later(self, work: Callable[[], None]) -> None:
        """Have it done, and don't wait; after whatever else was given before."""
        if self._loop is None:
            work()
        else:
            self._loop.call_soon_threadsafe(work)

    def hold(self) -> None:
        """Have the thread stand still until `release`, but no longer than `LONGEST_S`."""
        self._free.clear()
        if self._switch is not None:
            sys.setswitchinterval(min(self._switch, HASTE_S))

    def release(self) -> None:
        """Let it go on."""
        self._free.set()
        if self._switch is not None:
            sys.setswitchinterval(min(self._switch, SWITCH_S))

    @property
    def goes_on(self) -> bool:
        """Nobody holds it."""
        return self._free.is_set()

    def breathe(self) -> None:
        """A point at which the thread can stand still. Nothing anywhere else."""
        if threading.current_thread() is self._thread:
            self._free.wait(LONGEST_S)

    def close(self) -> None:
        """End the thread; what it is at is seen through. Idempotent."""
        loop, thread = self._loop, self._thread
        self._loop = None
        if loop is None or thread is None:
            return
        self._free.set()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_FAREWELL_S)
        if not thread.is_alive():
            loop.close()
        if self._switch is not None:
            sys.setswitchinterval(self._switch)
            self._switch = None


class _Resting(selectors.DefaultSelector):
    """Asks `breathe` before the loop does what has become due: no step of a tick begins while something can't wait."""

    def __init__(self, breathe: Callable[[], None]) -> None:
        super().__init__()
        self._breathe = breathe

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        self._breathe()
        return found


class Breathing:
    """`BulkRules` that ask `breathe` before each answer: where a decision can stand still."""

    def __init__(self, rules: Rules, breathe: Callable[[], None]) -> None:
        self._rules: BulkRules = in_bulk(rules)
        self._breathe = breathe
        self.inputs = rules.inputs

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        """As the rules say."""
        self._breathe()
        return self._rules.test(expression, scope)

    def measure(self, expression: Expression, scope: Scope) -> float | Undecided:
        """As the rules say."""
        self._breathe()
        return self._rules.measure(expression, scope)

    def test_all(self, expression: Expression, sheet: Sheet) -> Sequence[bool | None]:
        """As the rules say."""
        self._breathe()
        return self._rules.test_all(expression, sheet)

    def measure_all(self, expression: Expression, sheet: Sheet) -> Sequence[float | None]:
        """As the rules say."""
        self._breathe()
        return self._rules.measure_all(expression, sheet)
