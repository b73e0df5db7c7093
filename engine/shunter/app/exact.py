"""An exact plan: what `shunter plan --out` writes and `shunter apply` carries out, once, if the world is still the one it was made for.

With it goes all that it was decided on, so that whoever carries it out can make that decision again, and keep it for the audit. Its seal
shows a file that was changed by accident or edited by hand. It isn't a signature: whoever may write to the engine's state folder may order
what the policies in force say, of whatever world they make up.
"""

import hashlib
import zlib
from pathlib import Path
from typing import Final, Literal, NoReturn, Self

import msgspec

from shunter.app.assumed import SOURCE
from shunter.app.packed import packed, unpacked
from shunter.app.private import write_private
from shunter.app.recording import Recording
from shunter.app.recording import decoded as recording_of
from shunter.model.canon import decode, digest, plain
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import Digest
from shunter.model.plan import Plan, PlannedOperation
from shunter.report.words import moment, span

FORMAT: Final = "shunter.dev/exact-plan/v3"
MAX_BYTES: Final = 64 * 2**20
_MAX_RECORDING: Final = 512 * 2**20
EXPIRES_S: Final = 600.0
"""How long a plan is good for unless said otherwise, from the time of its snapshot."""
_AHEAD_S: Final = 5.0
"""How far ahead of our clock a snapshot may be."""


class ExactPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. `digest` is the plan's, `expires_at` in seconds since the epoch, `recording` what it was decided on (as `packed` gives it,
    compressed by zlib; base64 in the file), `seal` a digest over all the rest.
    """

    format: Literal["shunter.dev/exact-plan/v3", "shunter.dev/exact-plan/v2"] = FORMAT
    """v2: the recording isn't packed. It is read still."""
    digest: Digest
    expires_at: float
    plan: Plan
    recording: bytes
    seal: Digest

    @classmethod
    def of(cls, plan: Plan, recording: Recording, *, now: float, lasts: float = EXPIRES_S) -> Self:
        """Make it exact, good for `lasts` seconds from the snapshot on. `recording` has a profile, and is what the plan was decided on.

        Raises Rejected: SH950 when it was made for a notice that is only assumed, SH951 when it isn't good at `now`, SH947 when it would be
        too large to be read.
        """
        assumed = {n.id for n in recording.notices if n.source == SOURCE}
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
        data = packed(recording)
        if len(data) > _MAX_RECORDING:
            raise _too_large(len(data), _MAX_RECORDING)
        small, expires_at = zlib.compress(data), plan.at + lasts
        return cls(digest=plan.digest, expires_at=expires_at, plan=plan, recording=small, seal=_seal(FORMAT, plan, expires_at, small))

    @property
    def operations(self) -> tuple[PlannedOperation, ...]:
        """What is carried out: not what preview policies decided."""
        return tuple(o for o in self.plan.operations if not o.preview)

    def basis(self) -> Recording:
        """What it was decided on. Raises Rejected SH953 when that is no recording."""
        unpacking = zlib.decompressobj()
        try:
            data = unpacking.decompress(self.recording, _MAX_RECORDING)
            if not unpacking.eof:
                _refuse(self.digest, "what it was decided on is cut off, or has more than can be read")
            return unpacked(data) if self.format == FORMAT else recording_of(data)
        except (zlib.error, msgspec.DecodeError, ValueError) as error:
            _refuse(self.digest, f"what it was decided on can't be read: {error}")


def save(exact: ExactPlan, path: Path) -> None:
    """Write it for people and programs, mode 0600. Raises Rejected SH947 when `load` wouldn't read it, Retry SH952."""
    data = to_json(exact)
    if len(data) > MAX_BYTES:
        raise _too_large(len(data), MAX_BYTES)
    try:
        write_private(path, data)
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
    seal = _seal(exact.format, exact.plan, exact.expires_at, exact.recording)
    if exact.seal != seal:
        _refuse(subject, f"its seal is {exact.seal}, and that of what it holds is {seal}")


def _seal(form: str, plan: Plan, expires_at: float, recording: bytes) -> Digest:
    decided_on = hashlib.sha256(recording).hexdigest()
    return digest({"digest": plan.digest, "expires_at": expires_at, "format": form, "recording": decided_on})


def _too_large(size: int, most: int) -> Rejected:
    what = f"what the plan was decided on has {size:,} bytes, and an exact plan can carry {most:,}"
    remedy = "Shorten the longest `for` of the policies, or have the engine carry it out by itself: it needs no exact plan"
    return Rejected(Problem(code="SH947", what=what, remedy=remedy))


def _refuse(subject: str, why: str) -> NoReturn:
    raise Rejected(
        Problem(
            code="SH953",
            what=f"this is not a plan as `shunter plan --out` wrote it: {why}",
            remedy="Write a new one: shunter plan --out FILE; a plan isn't edited",
            subject=subject,
        )
    )
