"""Tables: the variables of many subjects, a column each. A text is held once for all its rows; labels become columns when read."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shunter.lang.cel import bound
from shunter.lang.columns.vectors import Bools, Codes, Dictionary, Figures, Mask, Numbers, Words
from shunter.model.expression import Scope, Sheet, Value
from shunter.model.sample import Known, Missing
from shunter.model.table import SampleColumn
from shunter.model.vocabulary import VARIABLES, Kind

_KEPT_BYTES: Final = 32 * 2**20
"""How much a table keeps of what was worked out from its texts."""

_VALUE: Final[Callable[[object], Any]] = attrgetter("value")

T = TypeVar("T")
Why = Callable[[int], Value | None]
"""Why a row has no value: a Missing, a Stale, or None for a variable that isn't there at all. Asked for explanations only."""


def _nothing(row: int) -> None:
    return None


class Column:
    """A variable's values for all subjects. A column with one row stands for the same value everywhere, such as a pool's figure."""

    def __init__(
        self,
        kind: Kind,
        size: int,
        *,
        known: Mask | None,
        why: Why,
        figures: Figures | None = None,
        truths: Mask | None = None,
        words: Words | None = None,
        maps: Sequence[Mapping[str, str] | None] = (),
    ) -> None:
        """Use the named ways to make one: they check the values, and give those that aren't known a harmless one."""
        self.kind: Final = kind
        self.size: Final = size
        self.known: Final = known
        self.maps: Final = maps
        self._why = why
        self._figures, self._truths, self._words = figures, truths, words
        self._bools: Bools | None = None
        self._identity: NDArray[np.int64] | None = None

    # -- ways to make one

    @classmethod
    def doubles(cls, values: ArrayLike, known: Mask | None = None, why: Why = _nothing) -> "Column":
        """From an array, which isn't copied if it holds doubles and all of its rows are known: then don't write to it.
        Rows that aren't finite are unknown."""
        array = _one_dimension(np.asarray(values, dtype=np.float64))
        finite = np.isfinite(array)
        if not finite.all():
            known = finite if known is None else known & finite
        return cls._numeric(Kind.DOUBLE, array, known, why)

    @classmethod
    def ints(cls, values: ArrayLike, known: Mask | None = None, why: Why = _nothing) -> "Column":
        """From an array of whole numbers of up to 64 bits. Raises ValueError for others."""
        array = _one_dimension(np.asarray(values))
        if array.size and not np.can_cast(array.dtype, np.int64):
            raise ValueError(f"whole numbers of at most 64 bits are wanted, not {array.dtype}")
        return cls._numeric(Kind.INT, array.astype(np.int64, copy=False), known, why)

    @classmethod
    def _numeric(cls, kind: Kind, array: Figures, known: Mask | None, why: Why) -> "Column":
        known = _mask(known, array.size)
        if known is not None:
            array = np.where(known, array, array.dtype.type(0))
        return cls(kind, array.size, known=known, why=why, figures=array)

    @classmethod
    def bools(cls, values: ArrayLike, known: Mask | None = None, why: Why = _nothing) -> "Column":
        """From an array of truth values. Raises ValueError for others."""
        array = _one_dimension(np.asarray(values))
        if array.size and array.dtype != np.bool_:
            raise ValueError(f"truth values are wanted, not {array.dtype}")
        known = _mask(known, array.size)
        array = array.astype(np.bool_, copy=False)
        return cls(Kind.BOOL, array.size, known=known, why=why, truths=array if known is None else array & known)

    @classmethod
    def strings(cls, values: Sequence[str | None], why: Why = _nothing) -> "Column":
        """From texts; None is unknown."""
        return cls.of(Kind.STRING, values, why)

    @classmethod
    def coded(cls, codes: ArrayLike, words: Sequence[str], known: Mask | None = None, why: Why = _nothing) -> "Column":
        """From positions in a list of texts. Raises ValueError for a position outside it, and for a text that CEL can't hold."""
        array = _one_dimension(np.asarray(codes, dtype=np.intp))
        known = _mask(known, array.size)
        if known is not None:
            array = np.where(known, array, 0)
        dictionary = Dictionary(words)
        if array.size and not (array.min() >= 0 and array.max() < len(dictionary.words)):
            raise ValueError(f"a code is outside the {len(dictionary.words)} texts")
        if any(bound(Kind.STRING, word)[0] is None for word in dictionary.words):
            raise ValueError("a text isn't valid Unicode")
        return cls(Kind.STRING, array.size, known=known, why=why, words=Words(array, dictionary, known))

    @classmethod
    def labels(cls, maps: Sequence[Mapping[str, str] | None], why: Why = _nothing) -> "Column":
        """From maps of labels; None is unknown."""
        return cls.of(Kind.LABELS, maps, why)

    @classmethod
    def of(cls, kind: Kind, values: Sequence[Value | None], why: Why | None = None) -> "Column":
        """From values as scopes hold them: samples, plain values, and None for those that aren't there. What `CelRules` would not
        give to CEL (a text where a number belongs, NaN) is unknown here too.
        """
        if kind is Kind.DOUBLE and isinstance(values, SampleColumn):
            return cls.doubles(values.values, values.known, values.__getitem__)
        plain = _PLAIN[kind](values)
        known = np.array([value is not None for value in plain], dtype=np.bool_) if None in plain else None

        def reason(row: int) -> Value | None:
            return why(row) if why and values[row] is None else values[row]

        return _FROM_VALUES[kind](plain, known, reason)

    @classmethod
    def unknown(cls, kind: Kind, why: Why = _nothing) -> "Column":
        """One that has no value for any subject."""
        return cls.of(kind, [None], why)

    # -- what is read

    def numbers(self) -> Numbers:
        """Its numbers. For columns of that kind only, like the others."""
        assert self._figures is not None
        return Numbers(self._figures, self.known)

    def truths(self) -> Bools:
        """Its truth values."""
        assert self._truths is not None
        if self._bools is None:
            self._bools = Bools(self._truths, ~self._truths if self.known is None else self.known & ~self._truths)
        return self._bools

    def words(self, name: str) -> Words:
        """Its texts, under the variable's name."""
        assert self._words is not None
        return Words(self._words.codes, self._words.dictionary, self.known, name)

    def value(self, row: int) -> Value | None:
        """What a scope would hold for a row: the plain value, or why there is none."""
        if self.size == 1:
            row = 0
        if self.known is not None and not self.known[row]:
            return self._why(row)
        if self._figures is not None:
            return float(self._figures[row]) if self.kind is Kind.DOUBLE else int(self._figures[row])
        if self._truths is not None:
            return bool(self._truths[row])
        return self._words.dictionary.words[self._words.codes[row]] if self._words else self.maps[row]

    def identity(self) -> NDArray[np.int64]:
        """A number for each row: rows with one number hold the same value. Unknown rows have any: see `known`."""
        if self._identity is None:
            self._identity = self._identify()
        return self._identity

    def _identify(self) -> NDArray[np.int64]:
        if self._figures is not None:
            return self._figures.view(np.int64)  # the bits: -0.0 isn't 0.0
        if self._truths is not None:
            return self._truths.astype(np.int64)
        if self._words is not None:
            return self._words.codes.astype(np.int64, copy=False)
        seen: dict[object, int] = {}
        return np.array([seen.setdefault(frozenset(m.items()) if m is not None else None, len(seen)) for m in self.maps], dtype=np.int64)


class Table:
    """Columns of one length, by qualified variable name. It doesn't change, and is for one tick: what is worked out is kept with it."""

    def __init__(self, size: int, find: Callable[[str], Column | None]) -> None:
        """`find` gives a variable's column, once; None when it has none."""
        self.size: Final = size
        self._find = find
        self._columns: dict[str, Column] = {}
        self._derived: dict[object, Any] = {}
        self._kept = 0

    @classmethod
    def of(cls, columns: Mapping[str, Column], size: int) -> "Table":
        """From columns. Raises ValueError for one that is neither `size` rows long nor a single row, or not of its variable's kind."""
        for name, column in columns.items():
            if column.size not in (1, size):
                raise ValueError(f"{name} has {column.size} rows: {size}, or one for all, are wanted")
            if column.kind is not kind_of(name):
                raise ValueError(f"{name} is of kind {kind_of(name).value}, not {column.kind.value}")
        return cls(size, dict(columns).get)

    @classmethod
    def of_scopes(cls, scopes: Sequence[Scope]) -> "Table":
        """From a scope for each subject. A variable's column is made when an expression first reads it."""
        return cls(len(scopes), lambda name: Column.of(kind_of(name), [scope.get(name) for scope in scopes]))

    @classmethod
    def of_sheet(cls, sheet: Sheet) -> "Table":
        """From the values of a sheet, for as long as there is one: the table doesn't keep it. A column is made when it is first read."""
        kept = ref(sheet)

        def find(name: str) -> Column | None:
            held = kept()
            return None if held is None else Column.of(kind_of(name), held.values(name))

        return cls(sheet.size, find)

    def column(self, name: str) -> Column:
        """A variable's column; one without values when the table has none."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._find(name) or Column.unknown(kind_of(name))
        return found

    def scope(self, row: int, names: Sequence[str]) -> Scope:
        """The scope of one subject, with the named variables only. Raises IndexError for a row outside the table."""
        if not 0 <= row < self.size:
            raise IndexError(f"row {row} of {self.size}")
        held = ((name, self.column(name).value(row)) for name in names)
        return {name: value for name, value in held if value is not None}

    def derived(self, key: object, make: Callable[[], T], bytes_per_row: int = 2) -> T:
        """What `make` gives, made once for a key; forgotten when too much is kept. The size is that of two masks unless said."""
        found: T | None = self._derived.get(key)
        if found is None:
            weight = bytes_per_row * self.size + 500
            if self._kept + weight > _KEPT_BYTES:
                self._derived.clear()
                self._kept = 0
            self._kept += weight
            found = self._derived[key] = make()
        return found

    def label(self, name: str, key: str) -> Words:
        """The texts under one key of a column of labels; unknown where the key isn't."""
        return self.derived((name, key, "label"), lambda: self._label(name, key), 24)

    def _label(self, name: str, key: str) -> Words:
        column = Column.strings([m.get(key) if m is not None else None for m in self.column(name).maps])
        return column.words(f'{name}["{key}"]')

    def has_label(self, name: str, key: str) -> Bools:
        """Whether a map of labels has the key; unknown where the map is."""
        words, column = self.label(name, key), self.column(name)
        there = np.ones_like(words.codes, dtype=np.bool_) if words.known is None else words.known
        return Bools(there, ~there if column.known is None else column.known & ~there)

    def label_count(self, name: str) -> Numbers:
        """How many labels each map has."""
        column = self.column(name)
        count = self.derived((name, "count"), lambda: np.array([len(m) if m is not None else 0 for m in column.maps], dtype=np.int64), 8)
        return Numbers(count, column.known)


def kind_of(name: str) -> Kind:
    """A variable's kind. Raises ValueError for a name that isn't one."""
    if name in VARIABLES:
        return VARIABLES[name].kind
    if name.startswith("metrics."):
        return Kind.DOUBLE
    raise ValueError(f"{name} is not a variable")


def _one_dimension(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 1:
        raise ValueError(f"a column has one dimension, not {array.ndim}")
    return array


def _mask(known: Mask | None, size: int) -> Mask | None:
    if known is None:
        return None
    known = np.asarray(known, dtype=np.bool_)
    if known.shape != (size,):
        raise ValueError(f"the mask has the shape {known.shape} for {size} rows")
    return None if known.all() else known


# -- the usual types first: `bound` decides about all others


def _plain_doubles(values: Sequence[Value | None]) -> list[Any]:
    if set(map(type, values)) == {Known}:
        known = list(map(_VALUE, values))
        if set(map(type, known)) == {float}:
            return known
    held = [value.value if type(value) is Known else value for value in values]
    return [value if type(value) is float else None if type(value) is Missing else bound(Kind.DOUBLE, value)[0] for value in held]


def _plain_ints(values: Sequence[Value | None]) -> list[Any]:
    return [value if type(value) is int and -_WHOLE <= value < _WHOLE else bound(Kind.INT, value)[0] for value in values]


def _plain_strings(values: Sequence[Value | None]) -> list[Any]:
    try:
        distinct = set(values)
    except TypeError:  # a sample can't be hashed
        distinct = {0}
    if all(value is None or (type(value) is str and value.isascii()) for value in distinct):
        return values if type(values) is list else list(values)
    return [value if type(value) is str and value.isascii() else bound(Kind.STRING, value)[0] for value in values]


def _plain_labels(values: Sequence[Value | None]) -> list[Any]:
    """All at once where all of them are ASCII texts: the keys, of which there are few, and the values."""
    maps = [value for value in values if type(value) is dict]
    try:
        ascii_only = "".join(chain(set[str]().union(*maps), chain.from_iterable(map(dict.values, maps)))).isascii()
    except TypeError:
        ascii_only = False
    if ascii_only and len(maps) == len(values):
        return values if type(values) is list else list(values)
    return [bound(Kind.LABELS, value)[0] for value in values]


_WHOLE: Final = 2**63
_PLAIN: Final[dict[Kind, Callable[[Sequence[Value | None]], list[Any]]]] = {
    Kind.DOUBLE: _plain_doubles,
    Kind.INT: _plain_ints,
    Kind.BOOL: lambda values: [value if type(value) is bool else bound(Kind.BOOL, value)[0] for value in values],
    Kind.STRING: _plain_strings,
    Kind.LABELS: _plain_labels,
}


def _encode(values: Sequence[Any]) -> tuple[Codes, Dictionary]:
    """Positions of texts among the distinct ones; None is at any."""
    words = [word for word in dict.fromkeys(values) if word is not None]
    place = {word: code for code, word in enumerate(words)} | {None: 0}
    return np.fromiter(map(place.__getitem__, values), dtype=np.intp, count=len(values)), Dictionary(words)


def _strings(plain: Sequence[Any], known: Mask | None, why: Why) -> Column:
    codes, dictionary = _encode(plain)
    return Column(Kind.STRING, len(plain), known=known, why=why, words=Words(codes, dictionary, known))


def _filled(plain: Sequence[Any], known: Mask | None, kind: type) -> NDArray[Any]:
    if known is None:
        return np.array(plain, dtype=kind)
    return np.array([0 if value is None else value for value in plain], dtype=kind)


_FROM_VALUES: Final[dict[Kind, Callable[[Sequence[Any], Mask | None, Why], Column]]] = {
    Kind.DOUBLE: lambda plain, known, why: Column.doubles(_filled(plain, known, np.float64), known, why),
    Kind.INT: lambda plain, known, why: Column.ints(_filled(plain, known, np.int64), known, why),
    Kind.BOOL: lambda plain, known, why: Column.bools(_filled(plain, known, np.bool_), known, why),
    Kind.STRING: _strings,
    Kind.LABELS: lambda plain, known, why: Column(Kind.LABELS, len(plain), known=known, why=why, maps=plain),
}
