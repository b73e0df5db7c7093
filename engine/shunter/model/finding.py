"""What one policy says of one subject, with the evidence that decided it."""

import enum
from typing import Literal

import msgspec

from shunter.model.expression import Scalar
from shunter.model.ids import PolicyName, WorkerId
from shunter.model.sample import Sample

Lane = Literal["voluntary", "involuntary"]


class Verdict(enum.StrEnum):
    """The four things that a policy can say."""

    ACT = "act"
    HOLD = "hold"
    """It would act, but a gate (a time, a limit, a higher policy) keeps it from it for now."""
    INCONCLUSIVE = "inconclusive"
    """An input is missing or stale, so it can't be said."""
    PASS = "pass"  # noqa: S105
    """Nothing to do."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """One variable that an expression read. `sample` is set for metrics, `value` for the rest (None: it had none)."""

    name: str
    value: Scalar | None = None
    sample: Sample | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One gate of a policy and how it came out.

    `gate` is the YAML field (`workers.where`, `when`, `for`, `cooldown`, `limits.from.min`, `pick.where`, `move.to.where`, ...);
    `result` is None when the expression had no answer; `detail` says the value against the threshold, in words.
    """

    gate: str
    result: bool | None
    detail: str = ""
    expression: str = ""
    inputs: tuple[Input, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one subject. `subject` is a worker id, or `<graph>` for a finding on pools; `gate` names the evidence that decided.

    `since` is when the deciding condition began to hold, as far back as the snapshots reach (seconds since the epoch), or None.
    """

    policy: PolicyName
    subject: str
    verdict: Verdict
    lane: Lane
    reason: str
    gate: str = ""
    since: float | None = None
    evidence: tuple[Evidence, ...] = ()


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one incarnation: what an operation is about."""

    worker: WorkerId
    incarnation: int
