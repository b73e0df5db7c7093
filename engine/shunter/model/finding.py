"""What one policy says of one subject, with the evidence that decided it."""

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, overload

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


class Brief(Protocol):
    """A finding in brief: what it says, without the evidence."""

    @property
    def verdict(self) -> Verdict:
        """As in a Finding."""
        ...

    @property
    def reason(self) -> str:
        """As in a Finding."""
        ...

    @property
    def gate(self) -> str:
        """As in a Finding."""
        ...


class Chapter(NamedTuple):
    """All that one policy says: its subjects, sorted, what is said of each in brief, and the whole finding by its place among them."""

    policy: PolicyName
    subjects: Sequence[str]
    briefs: Sequence[Brief]
    tell: Callable[[int], Finding]


class Findings(Sequence[Finding]):
    """Findings that are worked out when one is first looked at: what is done doesn't depend on them, and often nobody asks.

    `make` must give the same whenever it is called. It is called once, and forgotten once all findings are told.
    """

    def __init__(self, make: Callable[[], Sequence[Chapter]]) -> None:
        """`make` gives the chapters in the order of the policies' names."""
        self._make: Callable[[], Sequence[Chapter]] | None = make
        self._chapters: Sequence[Chapter] | None = None
        self._told: tuple[Finding, ...] | None = None

    def chapters(self) -> Sequence[Chapter]:
        """What each policy says, in brief. No evidence is worked out for it."""
        if self._told is not None:
            return chapters(self._told)
        if self._chapters is None:
            assert self._make is not None, "it is only forgotten when its answer is kept"
            self._chapters, self._make = self._make(), None
        return self._chapters

    def _all(self) -> tuple[Finding, ...]:
        if self._told is None:
            self._told = tuple(tell(place) for _, subjects, _, tell in self.chapters() for place in range(len(subjects)))
            self._chapters = None
        return self._told

    @overload
    def __getitem__(self, index: int) -> Finding: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...

    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self._all()[index]

    def __len__(self) -> int:
        return sum(len(chapter.subjects) for chapter in self.chapters()) if self._told is None else len(self._told)

    def __eq__(self, other: object) -> bool:
        return self._all() == tuple(other) if isinstance(other, Findings | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return f"Findings({len(self)})"


def chapters(findings: Sequence[Finding]) -> Sequence[Chapter]:
    """Any findings by their policies: those of each in the order in which they are, the policies in the order in which they first come."""
    if isinstance(findings, Findings):
        return findings.chapters()
    by_policy: dict[PolicyName, list[Finding]] = {}
    for finding in findings:
        by_policy.setdefault(finding.policy, []).append(finding)
    return [Chapter(policy, [f.subject for f in own], own, own.__getitem__) for policy, own in by_policy.items()]


def tally(findings: Sequence[Finding]) -> Counter[Verdict]:
    """How many findings say what."""
    return Counter(brief.verdict for chapter in chapters(findings) for brief in chapter.briefs)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A worker at one incarnation: what an operation is about."""

    worker: WorkerId
    incarnation: int
