"""The head of the chain, kept beside the database: how far the audit had come when it was last written.

A chain of hashes shows changed, moved and missing records, but not that its end was cut off. The head does: it names the last record, in
a file that is synced after each commit, so it is never ahead of the database. Two slots are written in turn, each with a checksum: a
write that a power cut tears spoils only the older one.
"""

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final, Self

import msgspec

GENESIS: Final = "0" * 64
"""What the first record follows."""
_SLOT: Final = 4096
"""Bytes between the slots: each in a block of its own."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last record's number and hash; 0 and GENESIS for an empty audit."""

    seq: int = 0
    hash: str = GENESIS


class HeadFile:
    """The writer's side: holds the file, and a lock on it, for as long as it lives. Raises OSError; BlockingIOError when another has it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._fd, 0o600)
            os.posix_fallocate(self._fd, 0, 2 * _SLOT)  # so that a disk that is full later takes heads all the same
            slots = [_parse(os.pread(self._fd, _SLOT, at)) for at in (0, _SLOT)]
        except BaseException:
            os.close(self._fd)
            raise
        self.last = _newest(slots)
        """None for a file that holds no head."""
        self._turn = 1 if slots[0] is not None and slots[0] == self.last else 0

    def write(self, head: Head) -> None:
        """Note the head; durable on return. Raises OSError."""
        text = f"{head.seq} {head.hash}"
        os.pwrite(self._fd, f"{text} {_checksum(text)}\n".encode().ljust(_SLOT, b"\n"), self._turn * _SLOT)
        os.fdatasync(self._fd)
        self.last = head
        self._turn = 1 - self._turn

    def close(self) -> None:
        """Let go of the file and its lock."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chained(previous: str, body: bytes) -> str:
    """The hash of a record: sha256 over the previous hash, as bytes, and the record's canonical JSON."""
    return hashlib.sha256(bytes.fromhex(previous) + body).hexdigest()


def read(path: Path) -> Head | None:
    """The newest whole head in the file; None when there is none. Raises OSError."""
    data = path.read_bytes()
    return _newest([_parse(data[:_SLOT]), _parse(data[_SLOT:])])


def _newest(slots: list[Head | None]) -> Head | None:
    return max((slot for slot in slots if slot is not None), key=lambda head: head.seq, default=None)


def _parse(data: bytes) -> Head | None:
    parts = data.decode("ascii", "replace").split()
    if len(parts) != 3 or not parts[0].isdigit() or _checksum(f"{parts[0]} {parts[1]}") != parts[2]:
        return None
    return Head(seq=int(parts[0]), hash=parts[1])


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
