"""What is being sent, said to people: agents tell their engine, and the status reads it from a file beside the store.

It is worth nothing a moment later, so it isn't kept: whoever reads it looks at how old it is.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from shunter.model.canon import decode, encode
from shunter.model.ids import Epoch, OperationId
from shunter.model.operation import Sending
from shunter.wire import agent_pb2 as pb

FRESH_S: Final = 10.0
"""Seconds after which what was heard says nothing any more."""
_WRITE_S: Final = 1.0
"""Seconds between two writes."""


class _Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine of `epoch` has heard."""

    epoch: Epoch
    sendings: tuple[Sending, ...] = ()


class Sendings:
    """The engine's side. `heard` what an agent tells; `ended` operations are forgotten."""

    def __init__(
        self, folder: Path, epoch: Epoch, clock: Callable[[], float], show: Callable[[Sending], None] = lambda _sending: None
    ) -> None:
        """`show` is given what is heard, for people who look elsewhere; it neither raises nor waits."""
        self._path, self._epoch, self._clock, self._show = _path(folder), epoch, clock, show
        self._sendings: dict[OperationId, Sending] = {}
        self._written_at = float("-inf")

    def heard(self, told: pb.Progress) -> None:
        """A word of progress. One without bytes says that a step is over, and nothing is being sent for it any more."""
        operation = OperationId(told.operation)
        if not told.bytes:
            self.ended(operation)
            return
        now = self._clock()
        self._sendings[operation] = sending = Sending(
            operation=operation,
            bytes=told.bytes,
            at=now,  # by our own clock: agents have others
            total=told.total or None,
            rate=told.rate or None,
            left=told.left_s or None,
        )
        self._show(sending)
        if not 0 <= now - self._written_at < _WRITE_S:
            self._write(now)

    def ended(self, operation: OperationId) -> None:
        """Nothing is sent for it any more."""
        if self._sendings.pop(operation, None) is not None:
            self._write(self._clock())

    def _write(self, now: float) -> None:
        partial = self._path.with_name(f".{self._path.name}")
        with contextlib.suppress(OSError):  # on a full disk it isn't said
            partial.touch(mode=0o600)
            partial.write_bytes(encode(_Heard(epoch=self._epoch, sendings=tuple(self._sendings.values()))))
            partial.replace(self._path)
            self._written_at = now


def sendings(folder: Path, epoch: Epoch, now: float) -> tuple[Sending, ...]:
    """What is being sent at `now` by the word of the engine of `epoch` on this state folder; nothing where that is old."""
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
        found = decode(_path(folder).read_bytes(), _Heard)
        if found.epoch == epoch:
            return tuple(one for one in found.sendings if abs(now - one.at) < FRESH_S)
    return ()


def _path(folder: Path) -> Path:
    return folder / "sending"
