"""What Dynamo's resources say of pools, for people: in a file beside the store for `shunter status`, and what is wrong told once."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from shunter.model.canon import decode, encode
from shunter.model.errors import Problem
from shunter.model.ids import Epoch

_MOST: Final = 50
"""Lines that are kept; of more, the number is told."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What Dynamo's resources said when the engine of `epoch` last wrote it down: a line a pool, and what is wrong."""

    epoch: Epoch
    pools: tuple[str, ...] = ()
    troubles: tuple[Problem, ...] = ()
    more: int = 0
    """Lines and troubles beyond those."""

    @classmethod
    def of(cls, epoch: Epoch, pools: Sequence[str], troubles: Sequence[Problem]) -> Self:
        """As much of it as is kept."""
        more = max(0, len(pools) - _MOST) + max(0, len(troubles) - _MOST)
        return cls(epoch=epoch, pools=tuple(pools[:_MOST]), troubles=tuple(troubles[:_MOST]), more=more)


def write(state: Path, new: Shown, written: Shown | None) -> Shown | None:
    """Write it down if it differs from what was `written`. What stands there then: a full disk keeps the older one."""
    if new == written:
        return written
    partial = _path(state).with_name(f".{_path(state).name}")
    with contextlib.suppress(OSError):
        partial.touch(mode=0o600)
        partial.write_bytes(encode(new))
        partial.replace(_path(state))
        return new
    return written


def shown(state: Path, epoch: Epoch) -> Shown:
    """What the engine of `epoch` last wrote down; nothing where there is no such word."""
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        found = decode(_path(state).read_bytes(), Shown)
        if found.epoch == epoch:
            return found
    return Shown(epoch=epoch)


def _path(state: Path) -> Path:
    return state / "graphs"


class Drifting:
    """Tells what is wrong with graphs, and when it is over. What is there for a moment only, between a write and what follows from it, is
    told by nobody.
    """

    def __init__(self, tell_or_clear: Callable[[str, Problem | None], None], *, looks: int = 5) -> None:
        """`looks` in a row it has to be there, the same."""
        self._tell_or_clear, self._looks = tell_or_clear, looks
        self._seen: dict[str, tuple[Problem, int]] = {}

    def tell(self, wrong: Sequence[Problem]) -> None:
        """What is wrong by this look."""
        now = {f"{one.code} {one.subject}: {one.what}": one for one in wrong}
        for about in self._seen.keys() - now.keys():
            _, times = self._seen.pop(about)
            if times >= self._looks:
                self._tell_or_clear(f"graph {about}", None)
        for about, one in now.items():
            _, times = self._seen.get(about, (one, 0))
            self._seen[about] = (one, times + 1)
            if times + 1 == self._looks:
                self._tell_or_clear(f"graph {about}", one)
