"""Plans handed to the engine that leads, and its answers: files in the state folder, so that neither side's end loses one.

A request lies as `NAME.json` until the engine begins with it, as `NAME.taken` while it does, and ends as `NAME.answer`. Its name is its
own, so that a plan which is applied twice gets two answers.
"""

import contextlib
import os
import secrets
from pathlib import Path

import msgspec

from shunter.app.exact import MAX_BYTES, ExactPlan, verify
from shunter.app.private import sync_folder, write_private
from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Rejected, Retry

KEPT_S = 86400.0
"""An answer that nobody has read is kept for a day."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A plan to be carried out. `by` is who says so, as far as the system knows; `at` in seconds since the epoch."""

    by: str
    at: float
    exact: ExactPlan


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a request: `problems` is what speaks against it; none: its operations are in the store."""

    at: float
    problems: tuple[Problem, ...] = ()


class Ticket:
    """One request's place in the inbox of `state`."""

    def __init__(self, state: Path, name: str) -> None:
        self.name = name
        self._folder = state / "apply"
        self._request, self._taken = self._folder / f"{name}.json", self._folder / f"{name}.taken"
        self._answer = self._folder / f"{name}.answer"

    # -- who applies

    @classmethod
    def submit(cls, state: Path, request: Request) -> "Ticket":
        """Hand a plan over; durable on return. Raises Retry SH959."""
        # first come, first served
        ticket = cls(state, f"{int(request.at * 1000):015d}-{request.exact.digest[7:19]}-{secrets.token_hex(4)}")
        try:
            ticket._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(ticket._request, encode(request))
        except OSError as error:
            raise Retry(
                Problem(
                    code="SH959",
                    what=f"the plan can't be handed over: {error.strerror}",
                    remedy="Free the disk or mend the permissions",
                    subject=str(ticket._folder),
                )
            ) from error
        return ticket

    def withdraw(self) -> bool:
        """Take it back; False when the engine has begun with it."""
        try:
            self._request.unlink()
        except FileNotFoundError:
            return False
        return True

    def answer(self) -> Answer | None:
        """None: there is none yet."""
        with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):
            return decode(_bounded(self._answer), Answer)
        return None

    def forget(self) -> None:
        """Remove an answer that was read."""
        self._answer.unlink(missing_ok=True)

    # -- the engine

    def read(self) -> Request:
        """What is asked. Raises Rejected SH953 when it isn't a whole, unchanged plan."""
        path = self._taken if self.taken else self._request
        try:
            request = decode(_bounded(path), Request)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise Rejected(
                Problem(code="SH953", what=f"this request can't be read: {error}", remedy="Apply the plan again", subject=self.name)
            ) from error
        verify(request.exact, self.name)
        return request

    @property
    def taken(self) -> bool:
        """An engine has begun with it: if there is no answer, it ended in between."""
        return self._taken.exists()

    def take(self) -> None:
        """Note durably that an engine begins with it. Raises OSError."""
        if not self.taken:
            os.replace(self._request, self._taken)
            sync_folder(self._folder)

    def settle(self, answer: Answer) -> None:
        """Answer it, durably. Raises OSError."""
        write_private(self._answer, encode(answer))
        self._taken.unlink(missing_ok=True)
        self._request.unlink(missing_ok=True)


def waiting(state: Path) -> tuple[Ticket, ...]:
    """Requests without an answer: those that an engine had begun with first, then the others in the order of their times."""
    folder = state / "apply"
    taken, asked = (sorted(path.stem for path in folder.glob(which) if path.is_file()) for which in ("*.taken", "*.json"))
    return tuple(Ticket(state, name) for name in (*taken, *asked))


def tidy(state: Path, now: float) -> None:
    """Remove answers that nobody came for, where the disk lets us: if not, later."""
    for path in (state / "apply").glob("*.answer"):
        ticket = Ticket(state, path.stem)
        answer = ticket.answer()
        if answer is None or now - answer.at > KEPT_S:
            with contextlib.suppress(OSError):
                ticket.forget()


def _bounded(path: Path) -> bytes:
    """What is in it. Raises OSError, and ValueError for more than a plan may be: whatever lies there, the engine doesn't take it in."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return data
