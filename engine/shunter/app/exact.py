"""An exact plan: what `shunter plan --out` writes and `shunter apply` carries out, once, if the world is still the one it was made for.

Its seal shows a file that was changed by accident or edited by hand. It isn't a signature: whoever may write to the engine's state folder
may order anything.
"""

from pathlib import Path
from typing import Final, Literal, NoReturn, Self

import msgspec

from shunter.app.assumed import SOURCE
from shunter.app.private import write_private
from shunter.model.canon import decode, digest, plain
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import Digest
from shunter.model.plan import Plan, PlannedOperation
from shunter.model.snapshot import Notice
from shunter.report.words import moment, span

FORMAT: Final = "shunter.dev/exact-plan/v1"
MAX_BYTES: Final = 64 * 2**20
EXPIRES_S: Final = 600.0
"""How long a plan is good for unless said otherwise, from the time of its snapshot."""
_AHEAD_S: Final = 5.0
"""How far ahead of our clock a snapshot may be."""


class ExactPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. `digest` is the plan's, `expires_at` in seconds since the epoch, `seal` a digest over all the rest."""

    format: Literal["shunter.dev/exact-plan/v1"] = FORMAT
    digest: Digest
    expires_at: float
    plan: Plan
    seal: Digest

    @classmethod
    def of(cls, plan: Plan, notices: tuple[Notice, ...], *, now: float, lasts: float = EXPIRES_S) -> Self:
        """Make it exact, good for `lasts` seconds from the snapshot on.

        Raises Rejected: SH950 when it was made for a notice that is only assumed, SH951 when it isn't good at `now`.
        """
        assumed = {n.id for n in notices if n.source == SOURCE}
        if assumed:
            raise Rejected(
                Problem(
                    code="SH950",
                    what=f"the plan answers {', '.join(sorted(assumed))}, which isn't there",
                    remedy="Leave --notice out to write a plan that can be carried out",
                )
            )
        if not now - lasts < plan.at <= now + _AHEAD_S:
            raise Rejected(
                Problem(
                    code="SH951",
                    what=f"the plan isn't good at {moment(now)}: its snapshot is from {moment(plan.at)}, and it lasts {span(lasts)}",
                    remedy="Plan on the live fleet; what was recorded long ago can be looked at, not carried out",
                )
            )
        return cls(digest=plan.digest, expires_at=plan.at + lasts, plan=plan, seal=_seal(plan, plan.at + lasts))

    @property
    def operations(self) -> tuple[PlannedOperation, ...]:
        """What is carried out: not what preview policies decided."""
        return tuple(o for o in self.plan.operations if not o.preview)


def save(exact: ExactPlan, path: Path) -> None:
    """Write it for people and programs, mode 0600. Raises Retry SH952."""
    try:
        write_private(path, to_json(exact))
    except OSError as error:
        what = f"the plan can't be written: {error.strerror}"
        raise Retry(Problem(code="SH952", what=what, remedy="Check the folder, its permissions and the disk", subject=str(path))) from error


def to_json(exact: ExactPlan) -> bytes:
    """The file's bytes."""
    return msgspec.json.format(msgspec.json.encode(plain(exact), order="sorted"), indent=2) + b"\n"


def load(path: Path) -> ExactPlan:
    """Read what `save` wrote. Raises Rejected SH953: it can't be read, it is no exact plan, or it was changed since."""
    try:
        if path.stat().st_size > MAX_BYTES:
            _refuse(str(path), "it is too large to be one")
        return from_json(path.read_bytes(), str(path))
    except OSError as error:
        _refuse(str(path), f"it can't be read: {error.strerror}")


def from_json(data: bytes, subject: str) -> ExactPlan:
    """Read its bytes. Raises Rejected SH953; `subject` says which file is meant."""
    try:
        exact = decode(data, ExactPlan)
    except (msgspec.DecodeError, ValueError) as error:
        _refuse(subject, str(error))
    verify(exact, subject)
    return exact


def verify(exact: ExactPlan, subject: str) -> None:
    """Raises Rejected SH953 when digest or seal aren't those of what it holds."""
    if exact.digest != exact.plan.digest:
        _refuse(subject, f"it says that its plan is {exact.digest}, and the plan in it is {exact.plan.digest}")
    if exact.seal != _seal(exact.plan, exact.expires_at):
        _refuse(subject, f"its seal is {exact.seal}, and that of what it holds is {_seal(exact.plan, exact.expires_at)}")


def _seal(plan: Plan, expires_at: float) -> Digest:
    return digest({"digest": plan.digest, "expires_at": expires_at, "format": FORMAT})


def _refuse(subject: str, why: str) -> NoReturn:
    raise Rejected(
        Problem(
            code="SH953",
            what=f"this is not a plan as `shunter plan --out` wrote it: {why}",
            remedy="Write a new one: shunter plan --out FILE; a plan isn't edited",
            subject=subject,
        )
    )
