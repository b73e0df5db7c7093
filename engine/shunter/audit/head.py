"""The head of the chain: how far the audit had come when it was last written, signed.

A chain of hashes shows changed, moved and missing records, but not that its end was cut off, nor that all of it was computed anew. The
head does: it names the last record, and whoever hasn't the key can't make one. It is signed twice. In the database, in the transaction
that adds the records: what was added by somebody else shows. And in a file beside it, synced after the commit, so that it is never ahead
of the database, and an end that is missing shows. Only the newest is kept there, so that nobody finds an older one to go back to.

The file has two slots that are written in turn: a write that a power cut tears spoils only the older one. The two name successive turns,
and each commit has a turn, so a slot that is spoilt while the database has no later turn than the other one is no power cut: the newest
head was taken away. What can't be seen from here is a folder that was put back as a whole: `Export`s that are kept elsewhere show that.
"""

import fcntl
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from shunter.audit.faults import bad_heads
from shunter.audit.key import Key, Public

GENESIS: Final = "0" * 64
"""What the first record follows."""
_SLOT: Final = 4096
"""Bytes between the slots: each in a block of its own."""
COMMIT: Final = b"shunter audit commit 1\n"
SLOT: Final = b"shunter audit head 1\n"
_EXPORT: Final = b"shunter audit export 1\n"
"""Signed before the words, so that what is in the database, its log or an export can't be put into a slot."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last record's number and hash; 0 and GENESIS for an empty audit."""

    seq: int = 0
    hash: str = GENESIS


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """A head with its signature: the how-manieth it is, and `base`, the last record that retention dropped (0: none was)."""

    turn: int
    head: Head
    base: Head = Head()
    signature: str = ""

    @property
    def words(self) -> str:
        """What is signed."""
        return f"{self.turn} {self.head.seq} {self.head.hash} {self.base.seq} {self.base.hash}"

    def sealed(self, key: Key, context: bytes) -> Self:
        """The same, signed for the context: COMMIT or SLOT."""
        return msgspec.structs.replace(self, signature=key.sign(context + self.words.encode()).hex())

    def by(self, key: Public, context: bytes) -> bool:
        """Whether the key's owner signed it for this."""
        return key.signed(context + self.words.encode(), _unhex(self.signature))


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A signed head for keeping elsewhere: at `at` (seconds since the epoch) the audit had `seq` records, the last one with `hash`."""

    seq: int
    hash: str
    at: float
    key: str
    """The key's fingerprint."""
    signature: str

    @classmethod
    def of(cls, head: Head, at: float, key: Key) -> Self:
        """Sign one."""
        return cls(seq=head.seq, hash=head.hash, at=at, key=key.public.name, signature=key.sign(_exported(head.seq, head.hash, at)).hex())

    def by(self, key: Public) -> bool:
        """Whether the key's owner signed it."""
        return key.signed(_exported(self.seq, self.hash, self.at), _unhex(self.signature))


class HeadFile:
    """The writer's side: holds the file, and a lock on it, for as long as it lives. Raises OSError; BlockingIOError when another has it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._fd, 0o600)
            os.posix_fallocate(self._fd, 0, 2 * _SLOT)  # so that a disk that is full later takes heads all the same
            slots = Slots.parse(os.pread(self._fd, 2 * _SLOT, 0))
        except BaseException:
            os.close(self._fd)
            raise
        self.turn = slots.newest.turn if slots.newest else 0
        """Of the newest head in it; 0 for a file that holds none."""

    def write(self, newest: Signed, key: Key) -> None:
        """Note the head, and its turn's predecessor if the file has missed that; durable on return. Raises OSError."""
        for turn in (newest.turn - 1, newest.turn):
            if turn > self.turn:
                signed = msgspec.structs.replace(newest, turn=turn).sealed(key, SLOT)
                os.pwrite(self._fd, _slot(signed), turn % 2 * _SLOT)
                os.fdatasync(self._fd)
                self.turn = turn

    def close(self) -> None:
        """Let go of the file and its lock."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """What a head file holds. `whole` are the heads that can be read, newest first, `complete` that both are there, one after the other."""

    whole: tuple[Signed, ...]
    complete: bool

    @property
    def newest(self) -> Signed | None:
        """None for a file that holds no head."""
        return self.whole[0] if self.whole else None

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read the bytes of a file."""
        both = [_parse(data[:_SLOT]), _parse(data[_SLOT : 2 * _SLOT])]
        whole = sorted((slot for turn, slot in enumerate(both) if slot is not None and slot.turn % 2 == turn), key=lambda slot: -slot.turn)
        complete = len(whole) == 2 and whole[0].turn == whole[1].turn + 1 and len(data) == 2 * _SLOT
        return cls(whole=tuple(whole), complete=complete)


def chained(previous: str, body: bytes) -> str:
    """The hash of a record: sha256 over the previous hash, as bytes, and the record's canonical JSON."""
    return hashlib.sha256(bytes.fromhex(previous) + body).hexdigest()


def read(path: Path) -> Slots:
    """What the file holds; nothing when there is none. Raises OSError."""
    try:
        return Slots.parse(path.read_bytes())
    except FileNotFoundError:
        return Slots(whole=(), complete=False)


def read_exports(path: Path) -> tuple[Export, ...]:
    """Exported heads, one JSON object a line. A last line that isn't whole (a power cut) is none. Raises OSError, ValueError."""
    lines = path.read_bytes().split(b"\n")
    return tuple(msgspec.json.decode(line, type=Export) for line in lines[:-1] if line.strip())


def trim_exports(path: Path, base: int) -> None:
    """Take away the heads of records that are there no more. Raises OSError, ValueError."""
    exports = read_exports(path)
    left = [export for export in exports if export.seq >= base]
    if len(left) == len(exports):
        return
    part = path.with_name(f".{path.name}.part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.writelines(msgspec.json.encode(export) + b"\n" for export in left)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def load_exports(path: Path) -> tuple[Export, ...]:
    """Exported heads that were kept elsewhere. Raises Rejected SH972."""
    try:
        return read_exports(path)
    except (OSError, ValueError) as error:
        raise bad_heads(path, str(error)) from error


def contradiction(exports: Sequence[Export], key: Public) -> str:
    """Why exported heads can't be used: one isn't the key's. Empty when all are."""
    for export in exports:
        if not export.by(key):
            return f"the kept head of record {export.seq} isn't signed by {key.name}"
    return ""


def _unhex(text: str) -> bytes:
    """Nothing, which is nobody's signature, for what isn't hexadecimal."""
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _exported(seq: int, hashed: str, at: float) -> bytes:
    return _EXPORT + f"{seq} {hashed} {at!r}".encode()


def _slot(signed: Signed) -> bytes:
    text = f"{signed.words} {signed.signature}"
    return f"{text} {_checksum(text)}\n".encode().ljust(_SLOT, b"\n")


def _parse(data: bytes) -> Signed | None:
    parts = data.decode("ascii", "replace").split()
    if len(parts) != 7 or not all(number.isdecimal() for number in (parts[0], parts[1], parts[3])):
        return None
    head, base = Head(seq=int(parts[1]), hash=parts[2]), Head(seq=int(parts[3]), hash=parts[4])
    found = Signed(turn=int(parts[0]), head=head, base=base, signature=parts[5])
    return found if _slot(found) == data else None


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
