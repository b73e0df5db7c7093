"""Nodes that a person has declared dead: the only way to know it when nothing announced it.

A silent agent isn't a dead node: its workers may serve. Whoever is certain says so with `shunter gone`, which leaves a file in the
engine's state folder; the engine reads it each tick and takes it for a notice of kind `gone`. A declaration about a node that answers is
void, and is told.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from shunter.model.canon import decode
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import NodeId, NoticeId
from shunter.model.snapshot import Notice, NoticeKind

SOURCE: Final = "declared"
"""The `source` of such a notice."""
_SPARE: Final = ".spare"
_SPARE_BYTES: Final = 4096
_LONGEST: Final = 2**20
"""Bytes of a declaration that are read: far more than any has."""
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)


class _Declared(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    detail: str = ""


def declare(state: Path, node: str, now: float, detail: str = "") -> None:
    """Declare `node` dead at `now` (seconds since the epoch); durable on return, idempotent. Raises Rejected SH913, Retry SH914."""
    path = _path(state, node)
    said = msgspec.json.encode(_Declared(at=now, detail=detail))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _written(path, said).replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def set_aside(state: Path) -> None:
    """Keep room for one declaration, so that a node can be declared dead on a disk that is full. Does nothing where it is kept already, or
    can't be.
    """
    spare = state / "gone" / _SPARE
    if spare.exists():
        return
    with contextlib.suppress(OSError):
        spare.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            _write(spare, b" " * _SPARE_BYTES)
        except OSError:
            spare.unlink(missing_ok=True)


def withdraw(state: Path, node: str) -> bool:
    """Take a declaration back; False when there was none. Raises Rejected SH913, Retry SH914."""
    path = _path(state, node)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _unwritable(path, error) from error
    return True


def declared(state: Path) -> tuple[Notice, ...]:
    """All declarations, sorted by node. A file that can't be read is no declaration: half a word must not end a node."""
    found = []
    for path in sorted((state / "gone").glob("*.json")):
        try:
            with path.open("rb") as file:
                said = decode(file.read(_LONGEST), _Declared)
        except (OSError, msgspec.MsgspecError):
            continue
        node = NodeId(path.stem)
        found.append(
            Notice(id=NoticeId(f"gone-{node}"), kind=NoticeKind.GONE, node=node, seen_at=said.at, source=SOURCE, detail=said.detail)
        )
    return tuple(found)


def take_over(state: Path, notices: Iterable[Notice], at: float) -> None:
    """Have the declarations here be those among `notices`, which a leader elsewhere knew at `at` (seconds since the epoch), and what was
    declared here since. One that was taken back there mustn't come to life again. Raises as `declare` does.
    """
    theirs = {notice.node: notice for notice in notices if notice.source == SOURCE}
    ours = {notice.node: notice for notice in declared(state)}
    for node, notice in ours.items():
        if node not in theirs and notice.seen_at <= at:
            withdraw(state, node)
    for node, notice in theirs.items():
        if node not in ours:
            declare(state, node, notice.seen_at, notice.detail)


def void(notices: tuple[Notice, ...], answering: frozenset[NodeId]) -> tuple[Problem, ...]:
    """What to say of declarations about nodes that answer."""
    return tuple(
        Problem(
            code="SH915",
            what="it was declared gone, but its agent answers: the declaration is void",
            remedy=f"Take it back: shunter gone {notice.node} --undo",
            subject=notice.node,
        )
        for notice in notices
        if notice.node in answering
    )


def _written(path: Path, said: bytes) -> Path:
    """A file beside `path` that holds what is said: a new one, or the spare one if there is no room for it. Raises OSError."""
    partial, spare = path.with_name(f".{path.name}"), path.with_name(_SPARE)
    try:
        _write(partial, said)
    except OSError as error:
        partial.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or len(said) > _SPARE_BYTES or not spare.exists():
            raise
        _write(spare, said.ljust(_SPARE_BYTES), os.O_WRONLY)
        return spare
    return partial


def _write(path: Path, data: bytes, how: int = os.O_CREAT | os.O_WRONLY | os.O_TRUNC) -> None:
    with os.fdopen(os.open(path, how, 0o600), "wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())


def _path(state: Path, node: str) -> Path:
    if not _NODE.fullmatch(node):
        raise Rejected(Problem(code="SH913", what=f"{node!r} can't be a node's name", remedy="`shunter status` lists the nodes"))
    return state / "gone" / f"{node}.json"


def _unwritable(path: Path, error: OSError) -> Retry:
    return Retry(
        Problem(
            code="SH914",
            what=f"the declaration can't be written: {error.strerror}",
            remedy="Free the disk or mend the permissions",
            subject=str(path),
        )
    )
