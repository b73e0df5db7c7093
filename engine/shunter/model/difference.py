"""How two decisions on one snapshot differ in outcome."""

from typing import TypeAlias

import msgspec

from shunter.model.finding import Verdict
from shunter.model.ids import Commit, Digest, PolicyName
from shunter.model.plan import PlannedOperation

Change: TypeAlias = tuple[str, str, str]
"""A field, and its value before and after, in words."""


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """What decided: the finding's gate, its expression (empty: it has none), and the values that it read, in words."""

    gate: str
    expression: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    detail: str = ""


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """One finding with another verdict than before. None: the policy had, or has, nothing to say of the subject."""

    policy: PolicyName
    subject: str
    before: Verdict | None
    after: Verdict | None
    by_before: Gate | None
    by_after: Gate | None
    reason: str
    """Of the side that has a finding, the later one first."""


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that both sides plan, each in its way."""

    before: PlannedOperation
    after: PlannedOperation
    fields: tuple[Change, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `policies_added` and `policies_removed` are those that only one side has findings of."""

    added: tuple[PlannedOperation, ...] = ()
    removed: tuple[PlannedOperation, ...] = ()
    changed: tuple[Changed, ...] = ()
    flipped: tuple[Flip, ...] = ()
    policies_added: tuple[PolicyName, ...] = ()
    policies_removed: tuple[PolicyName, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many of each."""
        return {
            "added": len(self.added),
            "removed": len(self.removed),
            "changed": len(self.changed),
            "flipped": len(self.flipped),
        }

    def __bool__(self) -> bool:
        """There is one."""
        return any(self.counts.values())


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The difference on one snapshot. `base` and `head` are the revisions' commits; `remarks` say what a reader must know, in sentences."""

    at: float
    snapshot: Digest
    base: Commit
    head: Commit
    difference: Difference
    remarks: tuple[str, ...] = ()
