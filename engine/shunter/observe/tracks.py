"""Series over a stretch of time, and how far each has come."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shunter.observe.answer import Series
from shunter.observe.packed import Packed, Places


class Tracks:
    """The newest point of every series, instant by instant. Behind the last series there is one more that has no points."""

    def __init__(self, packed: Packed, *, reach: float, ahead: float = 0.0) -> None:
        """`reach` is how far back from an instant a point counts, `ahead` how far after it, in seconds."""
        self.labels, self._reach, self._ahead = packed.labels, reach, ahead
        self._begins, self._ends = np.append(packed.begins[:-1], packed.begins[-1]), np.append(packed.begins[1:], packed.begins[-1])
        self.times, self.values = packed.times, packed.values
        self._next = self._begins.copy()

    def newest(self, at: float) -> tuple[Places, NDArray[np.bool_]]:
        """The place of each series' newest point that is not after `at`, and whether it is within reach. Never ask for an earlier one."""
        latest = at + self._ahead
        while True:
            further = (self._next < self._ends) & (self.times[self._next] <= latest)
            if not np.count_nonzero(further):
                break
            self._next = self._next + further
        places = np.maximum(self._next - 1, 0)
        there = (self._next > self._begins) & (self.times[places] >= at - self._reach)
        return places, there

    def series(self, number: int, place: Any) -> Series:  # noqa: ANN401  (numpy's own integers)
        """The series with this point alone."""
        value = float(self.values[place])
        return Series(labels=self.labels[number], points=((float(self.times[place]), value if value == value else None),))
