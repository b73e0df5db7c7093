"""What one policy says of one subject, with the evidence that decided it."""

import enum
from collections.abc import Callable, Sequence
from typing import Literal, overload

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


class Input(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One variable that an expression read. `sample` is set for metrics, `value` for the rest (None: it had none)."""

    name: str
    value: Scalar | None = None
    sample: Sample | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One gate of a policy and how it came out.

    `gate` is the YAML field (`workers.where`, `when`, `for`, `cooldown`, `limits.from.min`, `pick.where`, `move.to.where`, ...);
    `result` is None when the expression had no answer; `detail` says the value against the threshold, in words.
    """

    gate: str
    result: bool | None
    detail: str = ""
    expression: str = ""
    inputs: tuple[Input, ...] = ()


class Finding(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Findings(Sequence[Finding]):
    """Findings that are worked out when one is first looked at: what is done doesn't depend on them, and often nobody asks.

    `make` must give the same whenever it is called. It is called once, and forgotten.
    """

    def __init__(self, make: Callable[[], tuple[Finding, ...]]) -> None:
        self._make: Callable[[], tuple[Finding, ...]] | None = make
        self._made: tuple[Finding, ...] = ()

    def _all(self) -> tuple[Finding, ...]:
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made

    @overload
    def __getitem__(self, index: int) -> Finding: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...

    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == tuple(other) if isinstance(other, Findings | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return f"Findings({len(self._all())})"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one incarnation: what an operation is about."""

    worker: WorkerId
    incarnation: int
