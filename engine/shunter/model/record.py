"""Audit records: one per decision that changed and per step of each operation."""

import enum

import msgspec

from shunter.model.ids import Commit, Digest, Epoch


class RecordKind(enum.StrEnum):
    """What an audit record is about."""

    ENGINE = "engine"
    """Started, stopped, took over, recovered."""
    POLICIES = "policies"
    """The policy set changed, or a version was refused."""
    SOURCE = "source"
    """The policy source, a metric source or an agent went away or came back."""
    NOTICE = "notice"
    FINDING = "finding"
    """A finding's verdict or reason changed. Repeats are counted in `ticks`, not written."""
    PLAN = "plan"
    INTENT = "intent"
    STEP = "step"
    OUTCOME = "outcome"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One entry. `body` is a JSON-able value whose shape goes by `kind`; `pretend` is True when the runtime involved doesn't really
    move anything.
    """

    at: float
    kind: RecordKind
    subject: str
    what: str
    epoch: Epoch
    commit: Commit | None = None
    snapshot: Digest | None = None
    plan: Digest | None = None
    operation: str | None = None
    pretend: bool = False
    body: dict[str, object] = {}


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """A record in the chain: `hash` is sha256 over the previous hash and this record's canonical bytes."""

    seq: int
    previous: str
    hash: str
    record: Record
