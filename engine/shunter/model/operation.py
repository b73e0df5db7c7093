"""Operations as durable records: what was intended, how far it is known to have come, and how it ended."""

import enum
from typing import Final

import msgspec

from shunter.model.errors import Problem
from shunter.model.ids import Digest, Epoch, ImageId, OperationId
from shunter.model.plan import PlannedOperation
from shunter.model.pod import Pod


class Step(enum.StrEnum):
    """The last thing that is durably known of an operation. Each is written before the next effect is asked for.

    A move: intended, prepared, fenced, frozen, held, committing, released, resumed, unfenced; then it is over.
    Until `committing` a failure thaws the source in place. From `released` on the source has no live copy but keeps its image, which
    is what a failure restores, there or at the destination. From `resumed` on the destination is the truth.
    """

    INTENDED = "intended"
    PREPARED = "prepared"
    """Destination: slot reserved, network identity ready, preflight passed on both sides."""
    FENCED = "fenced"
    """The router no longer sees the worker."""
    FROZEN = "frozen"
    """The worker stands still, dumped, able to run on in place; its image is whole at the destination."""
    HELD = "held"
    """Restored at the destination but not running: dies by itself if its agent does."""
    COMMITTING = "committing"
    """The decision that the destination is the truth, written before the source is ended."""
    RELEASED = "released"
    """The source has confirmed that its copy is dead."""
    STARTING = "starting"
    """Of a worker that has left its pool for good: another pool's new worker is started from a golden image in its place."""
    RESUMED = "resumed"
    """The destination runs and has been probed."""
    UNFENCED = "unfenced"
    DUMPED = "dumped"
    """A checkpoint's image is whole on its own node."""
    COPIED = "copied"
    """The image's copies are whole on the other nodes."""
    ROLLING_BACK = "rolling-back"


class Status(enum.StrEnum):
    """How an operation stands."""

    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    ROLLED_BACK = "rolled-back"
    """It failed, and the worker runs on where it was."""
    FAILED = "failed"
    """It failed and its worker is not running; an image may remain (see the outcome)."""
    SUPERSEDED = "superseded"
    """It was never started."""
    UNKNOWN = "unknown"
    """An agent's answer is outstanding: resolved from the agents' journals before anything else happens to its worker or slots."""


UNDER_WAY: Final = frozenset({Status.ACTIVE, Status.UNKNOWN})
"""Of what has no outcome yet."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What agents measured; None where it doesn't apply, or an older agent doesn't say. Seconds and bytes.

    `stopped` is from the freeze to running again, by the agents' clocks; `dump`, `send` and `restore` are parts of it and may overlap:
    `send` is from the freeze until the image is whole where it goes, and `sent` what went over then. `copied` went over before, in `copy`
    seconds, while the worker ran.
    """

    stopped: float | None = None
    dump: float | None = None
    send: float | None = None
    restore: float | None = None
    bytes: int | None = None
    sent: int | None = None
    copy: float | None = None
    copied: int | None = None


class Sending(msgspec.Struct, frozen=True, kw_only=True):
    """How far an operation's image had come on its way at `at` (seconds since the epoch), by the word of the agent that sends it.

    `bytes` of about `total` had gone, at `rate` bytes a second of late; `left` is about how many seconds it then still took. None: not
    known.
    """

    operation: OperationId
    bytes: int
    at: float
    total: int | None = None
    rate: float | None = None
    left: float | None = None


class Outstanding(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that didn't come, since when (seconds since the epoch), and why: its order may have been carried out."""

    since: float
    problem: Problem


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an operation ended: `code` and `reason` are empty on success, unless something less than the purpose went wrong on the way."""

    status: Status
    at: float
    code: str = ""
    reason: str = ""
    measured: Measured = Measured()
    image: ImageId | None = None


class OperationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One operation's durable state. `history` is every step with its time, oldest first.

    `problem` is why it is being rolled back; None while all goes well. `outstanding` is the answer without which it isn't known how far it
    has come, None while that is known. `measured` is what is known so far,
    `frozen_at` when its worker was stopped by the source agent's clock, None before that. `waits` is True while it waits for its turn in
    a chain: it is decided, its worker and slots are taken, and no agent was asked for anything yet. `cancelled` is why it is to be given up
    as far as that still can be done, None while it isn't.
    """

    planned: PlannedOperation
    plan: Digest
    epoch: Epoch
    created_at: float
    step: Step = Step.INTENDED
    history: tuple[tuple[Step, float], ...] = ()
    outcome: Outcome | None = None
    problem: Problem | None = None
    measured: Measured = Measured()
    frozen_at: float | None = None
    waits: bool = False
    cancelled: Problem | None = None
    pod: Pod | None = None
    """The pod that was made for the worker to come to; None: none was, or none yet."""
    left: Pod | None = None
    """The pod that the worker leaves, which is deleted once it is committed that it does; None: it lives in none."""
    outstanding: Outstanding | None = None

    @property
    def id(self) -> OperationId:
        """The planned operation's id."""
        return self.planned.id

    @property
    def promised(self) -> bool:
        """It is voluntary and waits for its turn: it has stopped nobody yet."""
        return self.waits and self.planned.lane == "voluntary"

    @property
    def status(self) -> Status:
        """ACTIVE until there is an outcome, or UNKNOWN for as long as an answer is outstanding."""
        if self.outcome is not None:
            return self.outcome.status
        return Status.ACTIVE if self.outstanding is None else Status.UNKNOWN


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine itself did and is doing, rebuilt from its store: the third input of `evaluate`.

    `recent` holds ended operations newest last, as far back as cooldowns and retries look (an hour).
    """

    active: tuple[OperationRecord, ...] = ()
    recent: tuple[OperationRecord, ...] = ()
