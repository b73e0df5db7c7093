"""What git says of a tree and of blobs, taken apart without trusting a byte of it."""

import hashlib
from collections.abc import Iterator

import msgspec

from shunter.model.errors import Problem, Rejected
from shunter.source.limits import Limits, is_policy, not_regular, refuse_path, too_large, too_many

_KINDS = {"120000": "a symbolic link", "160000": "a submodule"}
_REGULAR = ("100644", "100755")


class Unsound(Exception):
    """The clone's answer contradicts itself: an object is missing, or its content isn't what its id says."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One policy file of a tree; `size` in bytes."""

    path: str
    blob: str
    size: int


def parse(listing: bytes, limits: Limits) -> tuple[tuple[Entry, ...], tuple[Problem, ...]]:
    """`git ls-tree -r -l -z` into the files to read and the problems of those that aren't, both by path.

    Raises Rejected SH213 when there are too many of them, or too much in them, and Unsound when one isn't there.
    """
    records = listing.split(b"\0")
    if len(records) > limits.entries:
        raise Rejected(too_many("entries", limits.entries))
    entries: list[Entry] = []
    problems: list[Problem] = []
    for record in filter(None, records):
        entry = _entry(record, limits)
        if isinstance(entry, Problem):
            problems.append(entry)
        elif entry is not None:
            entries.append(entry)
    if len(entries) > limits.files:
        raise Rejected(too_many("policy files", limits.files))
    if sum(e.size for e in entries) > limits.total_bytes:
        raise Rejected(too_many("bytes of policy files", limits.total_bytes))
    return tuple(sorted(entries, key=lambda e: e.path)), tuple(sorted(problems, key=lambda p: p.subject))


def _entry(record: bytes, limits: Limits) -> Entry | Problem | None:
    head, _, raw = record.partition(b"\t")
    mode, _, blob, size = head.decode("ascii").split()
    path = raw.decode("utf-8", "surrogateescape")
    if mode in _REGULAR and not is_policy(path):
        return None
    bad = refuse_path(path)
    if bad is not None:
        return bad
    if mode not in _REGULAR:
        return not_regular(path, _KINDS.get(mode, f"an entry of mode {mode}"))
    if not size.isdecimal():
        raise Unsound(blob)  # git says BAD for an object that it hasn't got
    if int(size) > limits.file_bytes:
        return too_large(path, int(size), limits.file_bytes)
    return Entry(path=path, blob=blob, size=int(size))


def contents(batch: bytes, entries: tuple[Entry, ...]) -> Iterator[tuple[Entry, bytes]]:
    """`git cat-file --batch` for the entries, in their order, each content checked against its object id. Raises Unsound."""
    at = 0
    for entry in entries:
        head = f"{entry.blob} blob {entry.size}\n".encode()
        start = at + len(head)
        data = batch[start : start + entry.size]
        at = start + entry.size + 1
        if batch[start - len(head) : start] != head or len(data) != entry.size or object_id(data, entry.blob) != entry.blob:
            raise Unsound(entry.blob)
        yield entry, data


def object_id(data: bytes, like: str, kind: str = "blob") -> str:
    """Git's id of an object with this content, by the hash that `like` was made with: 40 hex digits are SHA-1, 64 are SHA-256."""
    framed = f"{kind} {len(data)}\0".encode() + data
    return hashlib.sha256(framed).hexdigest() if len(like) == 64 else hashlib.sha1(framed, usedforsecurity=False).hexdigest()
