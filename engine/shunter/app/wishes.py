"""A person's wishes that an operation be given up, handed to the engine that leads, and its answers: files in the state folder.

A wish lies as `NAME.json` until it is answered, as `NAME.answer`. To give an operation up twice does no harm, so that one which an engine
has heard, and ended before it could say so, is simply heard again.
"""

import contextlib
import enum
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from shunter.app.private import write_private
from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Stalled
from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord, Status

ANSWER_S: Final = 30.0
"""How long an engine that leads may take to hear a wish: it does each tick."""
PAUSE_S: Final = 0.1
"""Between two looks for the answer."""
_KEPT_S: Final = 86400.0
"""An answer that nobody has read is kept for a day."""
_LONGEST: Final = 2**16
"""Bytes of a file that are read."""


class Became(enum.StrEnum):
    """What an engine did about a wish."""

    UNHEARD_OF = "unheard-of"
    """There is no such operation."""
    OVER = "over"
    """It had ended before."""
    COMMITTED = "committed"
    """It can only be finished: there is nothing to go back to."""
    GOES_BACK = "goes-back"
    """It goes back to a safe point once the order under way is answered."""
    DROPPED = "dropped"
    """It waited for its turn: nothing of it was begun, nor will be."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """That `operation` be given up. `by` is who says so, as far as the system knows; `because` is why; `at` in seconds since the epoch."""

    operation: OperationId
    by: str
    because: str
    at: float


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is how it had ended, None unless it is OVER."""

    at: float
    became: Became
    status: Status | None = None


class Slip:
    """One wish's place in the state folder."""

    def __init__(self, state: Path, name: str) -> None:
        self._wish, self._reply = (state / "cancel" / f"{name}.{what}" for what in ("json", "answer"))

    @classmethod
    def hand_over(cls, state: Path, wish: Wish) -> "Slip":
        """Durable on return. Raises OSError."""
        slip = cls(state, f"{int(wish.at * 1000):015d}-{secrets.token_hex(4)}")
        slip._wish.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(slip._wish, encode(wish))
        return slip

    def withdraw(self) -> bool:
        """Take it back; False when it was answered."""
        try:
            self._wish.unlink()
        except FileNotFoundError:
            return False
        return True

    def reply(self) -> Reply | None:
        """None: there is none yet."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return decode(_start_of(self._reply), Reply)
        return None

    def forget(self) -> None:
        """Remove an answer that was read."""
        self._reply.unlink(missing_ok=True)

    def read(self) -> Wish | None:
        """None: it is none, or was taken back."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            return decode(_start_of(self._wish), Wish)
        return None

    def answer(self, reply: Reply) -> None:
        """Durable on return. Raises OSError."""
        write_private(self._reply, encode(reply))
        self._wish.unlink(missing_ok=True)


class Store(Protocol):
    """What is asked of the engine's."""

    def get(self, operation: OperationId) -> OperationRecord | None:
        """None when there never was one."""
        ...


class Wishes:
    """The engine's side. `cancel` gives an operation up and says whether it still can be, as `Scheduler.cancel` does; `tell` records what
    became of a wish.
    """

    def __init__(
        self,
        state: Path,
        store: Store,
        cancel: Callable[[OperationId, str], bool],
        tell: Callable[[OperationId, str, dict[str, object]], None],
    ) -> None:
        self._state, self._store, self._cancel, self._tell = state, store, cancel, tell

    def hear(self, now: float) -> None:
        """Answer all that wait. Raises Stalled where store or audit take no writes, or an answer can't be written (SH959): what isn't
        answered is heard again.
        """
        folder = self._state / "cancel"
        for path in sorted(folder.glob("*.json")):
            slip = Slip(self._state, path.stem)
            if (wish := slip.read()) is None:
                path.unlink(missing_ok=True)
                continue
            reply = self._one(wish, now)
            try:
                slip.answer(reply)
            except OSError as error:
                raise _unanswerable(wish, error) from error
        for path in folder.glob("*.answer"):
            slip = Slip(self._state, path.stem)
            if (old := slip.reply()) is None or now - old.at > _KEPT_S:
                slip.forget()

    def _one(self, wish: Wish, now: float) -> Reply:
        record = self._store.get(wish.operation)
        if record is not None and record.outcome is not None:
            return Reply(at=now, became=Became.OVER, status=record.outcome.status)
        can = self._cancel(wish.operation, f"{wish.because} ({wish.by})")
        became = Became.GOES_BACK if can else Became.COMMITTED
        if record is None:
            became = Became.DROPPED if can else Became.UNHEARD_OF
        elif can and record.waits:
            became = Became.DROPPED
        if became is not Became.UNHEARD_OF:
            self._tell(
                wish.operation,
                f"{wish.by} wants {wish.operation} to be given up: {became.value}",
                {"by": wish.by, "because": wish.because, "became": became.value},
            )
        return Reply(at=now, became=became)


def ask(state: Path, wish: Wish, *, clock: Callable[[], float], pause: Callable[[float], object]) -> Reply | None:
    """Hand a wish over and wait for the answer. None: nobody has heard it within `ANSWER_S`, and it was taken back. Raises OSError."""
    slip = Slip.hand_over(state, wish)
    until = clock() + ANSWER_S
    try:
        while (reply := slip.reply()) is None:
            if clock() >= until and slip.withdraw():
                return None
            pause(PAUSE_S)
        return reply
    finally:
        slip.withdraw()  # whatever stopped us: nobody is to hear it later, unseen
        slip.forget()


def _unanswerable(wish: Wish, error: OSError) -> Stalled:
    what = f"a wish to give an operation up can't be answered: {error.strerror}"
    return Stalled(Problem(code="SH959", what=what, remedy="Free the disk or mend the permissions", subject=wish.operation))


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LONGEST)
