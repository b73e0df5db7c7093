"""Samples by the column: the numbers of many subjects at hand as arrays, and a `Sample` made of one only when it is looked at.

A `SampleTable` is what `Samples.workers` may be instead of dictionaries, a `SampleMap` what a metric in `Samples.policies` may be. They say
the same; whoever knows of them needn't make an object for each of a large fleet's samples. The arrays are numpy's, which isn't needed to
read them sample by sample.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, overload

from shunter.model.sample import Sample


class SampleColumn(Sequence[Sample | None]):
    """One field's samples of many subjects. None: it has none, not even a Missing.

    `known` tells which samples are Known (booleans); there, `values` (doubles) are their values, all finite, and `times` (doubles) when
    they were measured, seconds since the epoch. Elsewhere the two mean nothing.
    """

    __slots__ = ("_make", "known", "times", "values")

    def __init__(self, values: Any, times: Any, known: Any, make: Callable[[int], Sample | None]) -> None:  # noqa: ANN401  (numpy's)
        """`make` gives the sample of a row."""
        self.values, self.times, self.known, self._make = values, times, known, make

    @overload
    def __getitem__(self, index: int) -> Sample | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample | None]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample | None] | None:
        if isinstance(index, slice):
            return [self._make(row) for row in range(*index.indices(len(self)))]
        return self._make(range(len(self))[index])

    def __len__(self) -> int:
        return len(self.known)


class SampleTable(Mapping[str, Mapping[str, Sample]]):
    """Worker id to catalog field to sample, that also gives whole columns. It doesn't change."""

    @abstractmethod
    def column(self, field: str, workers: Sequence[str]) -> SampleColumn:
        """The field's samples of these workers, in their order."""

    @abstractmethod
    def only(self, workers: Set[str]) -> "SampleTable":
        """The same without all other workers. `workers` must not be changed afterwards."""

    @property
    @abstractmethod
    def anything(self) -> bool:
        """Whether any sample is Known."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers())

    def __len__(self) -> int:
        return len(self._workers())

    @abstractmethod
    def _workers(self) -> Sequence[str]:
        """The ids, in order."""


class SampleMap(Mapping[str, Sample]):
    """Worker id to sample, for one metric that a policy declares, that also gives them as a column. It doesn't change."""

    @abstractmethod
    def column(self, workers: Sequence[str]) -> SampleColumn:
        """The samples of these workers, in their order."""
