"""CEL's logic on masks: `&&`, `||` and `? :` have an answer exactly when the known rows decide it."""

import numpy as np

from shunter.lang.columns.vectors import Bools, Dictionary, Mask, Numbers, Words


def conjunction(a: Bools, b: Bools) -> Bools:
    """`a && b`."""
    return Bools(a.true & b.true, a.false | b.false)


def disjunction(a: Bools, b: Bools) -> Bools:
    """`a || b`."""
    return Bools(a.true | b.true, a.false & b.false)


def negation(a: Bools) -> Bools:
    """`!a`."""
    return Bools(a.false, a.true)


def same(a: Bools, b: Bools) -> Bools:
    """`a == b`, for truth values."""
    return Bools((a.true & b.true) | (a.false & b.false), (a.true & b.false) | (a.false & b.true))


def truth_where(test: Bools, a: Bools, b: Bools) -> Bools:
    """`test ? a : b`, for truth values."""
    return Bools((test.true & a.true) | (test.false & b.true), (test.true & a.false) | (test.false & b.false))


def number_where(test: Bools, a: Numbers, b: Numbers) -> Numbers:
    """`test ? a : b`, for numbers of one type."""
    return Numbers(np.where(test.true, a.values, b.values), _chosen(test, a.known, b.known))


def words_where(test: Bools, a: Words, b: Words) -> Words:
    """`test ? a : b`, for texts."""
    dictionary, place = union(a.dictionary, b.dictionary)
    return Words(np.where(test.true, a.codes, place[b.codes]), dictionary, _chosen(test, a.known, b.known))


def _chosen(test: Bools, a: Mask | None, b: Mask | None) -> Mask:
    return (test.true if a is None else test.true & a) | (test.false if b is None else test.false & b)


def union(a: Dictionary, b: Dictionary) -> tuple[Dictionary, np.ndarray[tuple[int], np.dtype[np.intp]]]:
    """A dictionary of both, in which the codes of `a` stay, and where the codes of `b` are in it."""
    index = dict(a.index)
    place = np.array([index.setdefault(word, len(index)) for word in b.words], dtype=np.intp)
    return Dictionary(tuple(index)), place
