"""What a Prometheus query gave, read from its JSON no further than it is looked at.

Of each series of a range the newest value counts, while the others only tell how old a silent one is: they are left as text. And a fleet's
series are the same from tick to tick, so that the labels of each are read once and then known by their bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, Literal, TypeAlias, overload

import msgspec

from shunter.model.errors import Problem, Retry

Point: TypeAlias = tuple[float, float | None]
"""Time in seconds since the epoch, and a finite value; None for NaN, infinities and native histograms."""

Labels: TypeAlias = dict[str, str]


class Series(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One series of an answer, its points in the order of time. A vector's point has the time of evaluation, a matrix' points their own.
    The labels may be shared with other answers: don't change them.
    """

    labels: Labels
    points: Sequence[Point]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a query gave. A scalar is one series without labels.

    `warnings` mean that the answer may be partial (a store behind Thanos is away): don't decide on it. `infos` are hints to the author.
    """

    kind: Literal["vector", "matrix", "scalar"]
    series: tuple[Series, ...]
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()


_NOTHING: Final = msgspec.Raw(b"")


class _Element(msgspec.Struct, gc=False):
    metric: msgspec.Raw = msgspec.Raw(b"{}")
    value: msgspec.Raw = _NOTHING
    values: msgspec.Raw = _NOTHING
    histogram: msgspec.Raw = _NOTHING
    histograms: msgspec.Raw = _NOTHING


class _Whole(msgspec.Struct):
    """An element with all that is in it."""

    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []
    histogram: tuple[float, Any] | None = None
    histograms: list[tuple[float, Any]] = []


_AT_ONCE: Final = 2000
"""Series that are read in one go."""
_ELEMENTS: Final = msgspec.json.Decoder(list[_Element])
_WHOLE: Final = msgspec.json.Decoder(list[_Whole])
_LABELS: Final = msgspec.json.Decoder(Labels)
_NEWEST: Final = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
_POINTS: Final = msgspec.json.Decoder(list[tuple[float, str]])
_SCALAR: Final = msgspec.json.Decoder(tuple[float, str])


class Points(Sequence[Point]):
    """A series' points, of which all but the newest are read when one of them is asked for. Reading them raises Retry SH304 where a server
    gave a point that is none.
    """

    __slots__ = ("_all", "_newest", "_text")

    def __init__(self, newest: Point, text: bytes) -> None:
        """`text` is the JSON of all of them."""
        self._newest, self._text = newest, text
        self._all: tuple[Point, ...] | None = None

    @property
    def text(self) -> bytes:
        """The JSON of all of them; empty once they were read."""
        return self._text

    def _read(self) -> tuple[Point, ...]:
        if self._all is None:
            try:
                self._all = tuple((at, number(text)) for at, text in _POINTS.decode(self._text))
            except ValueError as error:
                said = f"the reply isn't Prometheus' JSON ({error})"
                raise Retry(Problem(code="SH304", what=said, remedy="Check that the URL is a Prometheus server's")) from error
            self._text = b""
        return self._all

    @overload
    def __getitem__(self, index: int) -> Point: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Point, ...]: ...

    def __getitem__(self, index: int | slice) -> Point | tuple[Point, ...]:
        return self._newest if index == -1 else self._read()[index]

    def __iter__(self) -> Iterator[Point]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __eq__(self, other: object) -> bool:
        return self._read() == tuple(other) if isinstance(other, Points | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._read())

    def __repr__(self) -> str:
        return repr(self._read())


class LabelSets:
    """The labels of series, read once for as long as the same query gives the series again."""

    def __init__(self, most: int = 500_000) -> None:
        """At most so many are kept, those of the queries that were asked last; a thousand take about a megabyte."""
        self._most = most
        self._known: dict[str, dict[bytes, Labels]] = {}

    def read(self, query: str, texts: Sequence[bytes]) -> list[Labels]:
        """The labels in each of the texts, JSON that a query gave. Raises msgspec.DecodeError for what are no labels."""
        before: Mapping[bytes, Labels] = self._known.pop(query, {})
        found = {text: known if (known := before.get(text)) is not None else _LABELS.decode(text) for text in texts}
        self._known[query] = found
        kept = sum(map(len, self._known.values()))
        while kept > self._most:
            kept -= len(self._known.pop(next(iter(self._known))))
        return list(map(found.__getitem__, texts))


def scalar(result: msgspec.Raw) -> Series:
    """The one series of a scalar. Raises ValueError (msgspec.DecodeError is one) for what isn't one."""
    at, text = _SCALAR.decode(result)
    return Series(labels={}, points=((at, number(text)),))


def series_of(
    result: msgspec.Raw, labels: Callable[[Sequence[bytes]], list[Labels]], breathe: Callable[[], None] = lambda: None
) -> tuple[Series, ...]:
    """The series of a vector or a matrix. Raises ValueError for what is neither, and for a series without a value. `breathe` is called
    where this can stand still for a moment.
    """
    elements = _ELEMENTS.decode(result)
    breathe()
    own = labels([bytes(element.metric) for element in elements])
    breathe()
    texts = [bytes(element.values) for element in elements]
    plain = all(texts) and not any(e.histograms is not _NOTHING or e.histogram is not _NOTHING for e in elements)
    found: list[Series] = []
    for begin in range(0, len(texts), _AT_ONCE) if plain else ():
        breathe()
        some = texts[begin : begin + _AT_ONCE]
        newest = _newest(some)
        if newest is None:
            plain = False
            break
        both = zip(own[begin : begin + _AT_ONCE], newest, some, strict=True)
        found += [Series(labels=known, points=Points(last if isfinite(last[1]) else (last[0], None), text)) for known, last, text in both]
    if not plain:
        return tuple(Series(labels=known, points=points) for known, points in zip(own, map(_points, _WHOLE.decode(result)), strict=True))
    return tuple(found)


def _newest(texts: Sequence[bytes]) -> list[tuple[float, float]] | None:
    """The last point of each; None where they have to be looked at one by one: for `+Inf`, which isn't a number in JSON's words, and for
    `-0`, which would lose its sign as a whole number.
    """
    last = b",".join([text[text.rfind(b"[") : -1] for text in texts])
    if b'"-0"' in last:
        return None
    try:
        found = _NEWEST.decode(b"[%b]" % last)
    except msgspec.DecodeError:
        return None
    return found if len(found) == len(texts) else None


def _points(element: _Whole) -> tuple[Point, ...]:
    points: list[Point] = [(at, number(text)) for at, text in element.values]
    if element.value is not None:
        points.append((element.value[0], number(element.value[1])))
    if element.histogram is not None or element.histograms:
        points += [(at, None) for at, _ in (*element.histograms, *filter(None, (element.histogram,)))]
        points.sort(key=lambda p: p[0])
    if not points:
        raise ValueError("a series without a value")
    return tuple(points)


def number(text: str) -> float | None:
    """A value as Prometheus writes it; None where it isn't finite. Raises ValueError for what is no number."""
    value = float(text)
    return value if isfinite(value) else None
