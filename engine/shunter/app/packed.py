"""A recording in fewer bytes: what many of its samples have alike, their queries, labels and reasons, is written once. Pure.

With a long `for` a recording is mostly that: each sample of each instant says anew of which series it is.
"""

from collections.abc import Mapping
from operator import itemgetter
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from shunter.app.recording import Recording, checked
from shunter.model.canon import decode, encode
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Samples

T = TypeVar("T")
_NAME: Final = itemgetter(0)
Place: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""In the list of series, or of texts."""


class _Known(msgspec.Struct, frozen=True, array_like=True, tag="k", gc=False):
    at: float
    value: float
    series: Place


class _Missing(msgspec.Struct, frozen=True, array_like=True, tag="m", gc=False):
    reason: Place
    query: Place


class _Stale(msgspec.Struct, frozen=True, array_like=True, tag="s", gc=False):
    value: float
    age: float
    max_age: float
    query: Place


_Sample: TypeAlias = _Known | _Missing | _Stale


class _Series(msgspec.Struct, frozen=True, array_like=True):
    query: str
    unit: str
    labels: dict[str, str]


class _Samples(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `Samples` has them."""

    workers: dict[str, dict[str, _Sample]]
    policies: dict[str, dict[str, dict[str, _Sample]]]
    pools: dict[str, dict[str, _Sample]]


class Packed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bare` is the recording without samples; `samples` are its own and then those of its history, in that order."""

    bare: Recording
    samples: tuple[_Samples, ...]
    series: tuple[_Series, ...]
    texts: tuple[str, ...]


def packed(recording: Recording) -> bytes:
    """Its canonical bytes, packed: equal recordings have equal ones."""
    writer = _Writer()
    samples = tuple(writer.samples(one) for one in (recording.samples, *(past.samples for past in recording.history)))
    history = tuple(msgspec.structs.replace(past, samples=Samples()) for past in recording.history)
    bare = msgspec.structs.replace(recording, samples=Samples(), history=history)
    return encode(Packed(bare=bare, samples=samples, series=tuple(writer.series.values()), texts=tuple(writer.texts)))


def unpacked(data: bytes) -> Recording:
    """The recording that `packed` was given. Raises ValueError and msgspec.DecodeError for anything else."""
    found = decode(data, Packed)
    bare = checked(found.bare)
    if len(found.samples) != 1 + len(bare.history):
        raise ValueError(f"it has samples of {len(found.samples)} instants, and is of {1 + len(bare.history)}")
    try:
        own, *past = (_samples(one, found) for one in found.samples)
    except IndexError:
        raise ValueError("a sample is of a series that isn't there") from None
    history = tuple(msgspec.structs.replace(one, samples=its) for one, its in zip(bare.history, past, strict=True))
    return msgspec.structs.replace(bare, samples=own, history=history)


class _Writer:
    """Gives each series and text its place, in the order in which they are met. What is met is sorted: that is the same for equal ones."""

    def __init__(self) -> None:
        self._places: dict[object, int] = {}
        self.series: dict[int, _Series] = {}
        self.texts: dict[str, int] = {}

    def samples(self, of: Samples) -> _Samples:
        return _Samples(
            workers={name: self._fields(fields) for name, fields in _sorted(of.workers)},
            policies={name: {metric: self._fields(own) for metric, own in _sorted(metrics)} for name, metrics in _sorted(of.policies)},
            pools={name: self._fields(fields) for name, fields in _sorted(of.pools)},
        )

    def _fields(self, fields: Mapping[str, Sample]) -> dict[str, _Sample]:
        return {name: self._sample(sample) for name, sample in _sorted(fields)}

    def _sample(self, sample: Sample) -> _Sample:
        match sample:
            case Known(at=at, value=value):
                return _Known(at, value, self._series(sample))
            case Missing(reason=reason, query=query):
                return _Missing(self._text(reason), self._text(query))
            case Stale(value=value, age=age, max_age=max_age, query=query):
                return _Stale(value, age, max_age, self._text(query))

    def _series(self, sample: Known) -> int:
        key = sample.query, sample.unit, *sorted(sample.labels.items())
        place = self._places.setdefault(key, len(self._places))
        if place == len(self.series):
            self.series[place] = _Series(sample.query, sample.unit, sample.labels)
        return place

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


def _sorted(of: Mapping[str, T]) -> list[tuple[str, T]]:
    return sorted(of.items(), key=_NAME)


def _samples(of: _Samples, found: Packed) -> Samples:
    series, texts = found.series, found.texts

    def sample(one: _Sample) -> Sample:
        match one:
            case _Known(at=at, value=value, series=place):
                own = series[place]
                return Known(at=at, value=value, query=own.query, unit=own.unit, labels=own.labels)
            case _Missing(reason=reason, query=query):
                return Missing(reason=texts[reason], query=texts[query])
            case _Stale(value=value, age=age, max_age=max_age, query=query):
                return Stale(value=value, age=age, max_age=max_age, query=texts[query])

    def fields(own: Mapping[str, _Sample]) -> dict[str, Sample]:
        return {name: sample(one) for name, one in own.items()}

    return Samples(
        workers={name: fields(own) for name, own in of.workers.items()},
        policies={name: {metric: fields(own) for metric, own in metrics.items()} for name, metrics in of.policies.items()},
        pools={name: fields(own) for name, own in of.pools.items()},
    )
