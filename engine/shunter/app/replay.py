"""Making a recorded decision again, from what it was made on, by the function that made it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from shunter.app.unseen import careful
from shunter.audit.filter import Filter, operations_of
from shunter.audit.inputs import NOT_KEPT, Inputs, Kept, KeptFile, gone, inputs_path
from shunter.audit.journal import Journal
from shunter.audit.redact import Redaction
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.cel import CelRules
from shunter.lang.load import load
from shunter.model.canon import decode, digest, plain
from shunter.model.errors import Problem, Rejected
from shunter.model.finding import Finding
from shunter.model.ids import Commit, Digest
from shunter.model.plan import Evaluation, Plan
from shunter.model.policy import Policy, PolicySet
from shunter.model.record import RecordKind, Sealed
from shunter.model.snapshot import Snapshot, as_one
from shunter.model.source import Revision, SourceFile

_ANY = Redaction()


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What came out. `record` is the number of the record of the decision, `plan` its plan's digest, `again` that of the plan made now;
    `differs` says in sentences what isn't the same, `remarks` what a reader must know; times in seconds since the epoch.
    """

    record: int
    plan: Digest
    again: Digest
    at: float
    commit: Commit
    snapshot: Digest
    snapshots: int
    operations: int
    findings: int
    differs: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Byte for byte, as far as what was kept can tell (see `remarks`)."""
        return not self.differs


def replay(journal: Journal, what: str) -> Replay:
    """Make the decision of a record (its number), or of an operation (its id), again, from the inputs that are kept beside the audit.

    Raises Rejected: SH906 and SH977 for a record that there isn't, or that is of no decision; SH975 when its inputs aren't kept; SH976 with
    the one that is gone. Raises Stalled as `Journal` and `Inputs` do.
    """
    path = inputs_path(journal.path)
    asked = _record(journal, what)
    if not path.exists():
        raise _not_kept(asked)
    with Inputs(path, read_only=True) as inputs:
        made, kept = _decision(journal, inputs, asked)
        return _again(inputs, made, kept)


def _record(journal: Journal, what: str) -> Sealed:
    if what.isascii() and what.isdigit():
        found = journal.get(int(what))
    else:
        of_it = journal.select(Filter(operation=what))
        if not of_it:
            raise _no_decision(f"the audit has no record of the operation {what}", "`shunter audit list` shows those that it has", what)
        found = of_it[0]
    if found.record.plan is None:
        remedy = "Replay a record of a plan, of a finding, or of an operation: `shunter audit list --kind plan`"
        raise _no_decision(f"record {found.seq} ({found.record.kind.value}) isn't of a decision", remedy, what)
    return found


def _decision(journal: Journal, inputs: Inputs, asked: Sealed) -> tuple[Sealed, Kept]:
    """The record to compare with, and what is kept of its decision. An operation is decided on anew at each tick until it is begun: what is
    kept is the first of those decisions, when it came into the plan.
    """
    assert asked.record.plan is not None  # `_record` saw to it
    kept = inputs.find(asked.record.plan)
    if kept is not None and asked.record.operation is None:
        return asked, kept
    plans = [s for s in journal.select(Filter(kind=RecordKind.PLAN, until=asked.record.at + 1.0)) if s.seq <= asked.seq]
    about = [s for s in plans if s.record.plan == asked.record.plan or asked.record.operation in operations_of(s.record)]
    for sealed in reversed(about):
        assert sealed.record.plan is not None
        if (found := inputs.find(sealed.record.plan)) is not None:
            return sealed, found
    if kept is not None:
        return asked, kept
    raise _not_kept(asked)


def _again(inputs: Inputs, made: Sealed, kept: Kept) -> Replay:
    recorded = made.record
    assert recorded.plan is not None
    policies = _policies(inputs, kept)
    snapshots = [_snapshot(inputs, which, exact=not kept.left_out) for which in kept.snapshots]
    state, profile = inputs.state(kept), decode(inputs.profile(kept), Profile)
    rules = careful(CelRules(), kept.unknown, kept.unpictured)
    evaluation = evaluate(policies, snapshots, state, kept.plan.at, rules, profile)
    plan = evaluation.plan
    if kept.left_out:
        plan = msgspec.structs.replace(plan, snapshot=kept.plan.snapshot)
    return Replay(
        record=made.seq,
        plan=recorded.plan,
        again=plan.digest,
        at=kept.plan.at,
        commit=kept.plan.commit,
        snapshot=kept.plan.snapshot,
        snapshots=len(snapshots),
        operations=len(plan.operations),
        findings=len(evaluation.findings),
        differs=tuple(_differences(made, kept, plan, evaluation)),
        remarks=_remarks(kept),
    )


def _policies(inputs: Inputs, kept: Kept) -> PolicySet:
    found = sorted((p for file in kept.files for p in _parsed(file, inputs.file(file))), key=lambda p: p.name)
    content = [(p.place.file, p.blob, p.document) for p in found]
    return PolicySet(commit=kept.plan.commit, digest=digest(content), policies=tuple(found))


def _parsed(file: KeptFile, data: bytes) -> list[Policy]:
    source = SourceFile(path=file.path, blob=file.blob, data=data)
    read = load(Revision(commit=file.commit, committed_at=None, files=(source,)), None)
    found = [p for p in read.policies if p.name in file.names]
    if len(found) != len(file.names):
        raise gone(f"the policy file {file.path} (blob {file.blob})", "doesn't have its policies in this version's eyes")
    return found


def _snapshot(inputs: Inputs, which: Digest, *, exact: bool) -> Snapshot:
    found = inputs.snapshot(which)
    if exact and which not in (found.id, as_one(found)):
        raise gone(f"the snapshot {which}", "was changed")
    vars(found)["id"] = which
    return found


def _differences(made: Sealed, kept: Kept, plan: Plan, evaluation: Evaluation) -> list[str]:
    said = []
    if plan.policy_set != kept.plan.policy_set:
        said.append(f"the policy set's digest is {plan.policy_set}, and was {kept.plan.policy_set}")
    if plan.digest != made.record.plan:
        said.append(f"the plan's digest is {plan.digest}, and was {made.record.plan}")
    if made.record.kind is RecordKind.PLAN:
        said += _operations(made.record.body.get("operations"), plan)
    if made.record.kind is RecordKind.FINDING:
        said += _finding(made, evaluation.findings)
    return said


def _operations(recorded: object, plan: Plan) -> list[str]:
    before = {one["id"]: one for one in recorded if isinstance(one, dict)} if isinstance(recorded, list) else {}
    after: dict[str, Any] = {str(o.id): _ANY.plain(plain(o)) for o in plan.operations}
    lost = [f"{name} was planned, and isn't" for name in before if name not in after]
    new = [f"{name} is planned, and wasn't" for name in after if name not in before]
    changed = [
        f"{name}: {field} is {after[name].get(field)}, and was {before[name].get(field)}"
        for name in before
        if name in after
        for field in sorted(before[name])
        if before[name].get(field) != after[name].get(field)
    ]
    return [*lost, *new, *changed]


def _finding(made: Sealed, findings: Sequence[Finding]) -> list[str]:
    body, subject = made.record.body, made.record.subject
    policy = body.get("policy")
    now = next((f for f in findings if (f.policy, f.subject) == (policy, subject)), None)
    if now is None:
        return [] if body.get("verdict") == "none" else [f"{policy} says nothing of {subject}, and said {body.get('verdict')}"]
    return [
        f"{policy} of {subject}: {name} is {after!r}, and was {body.get(name)!r}"
        for name, after in (("verdict", now.verdict.value), ("gate", now.gate), ("reason", _ANY.plain(now.reason)), ("since", now.since))
        if body.get(name) != after
    ]


def _remarks(kept: Kept) -> tuple[str, ...]:
    from importlib.metadata import version

    said = []
    if kept.left_out:
        left = ", ".join(kept.left_out)
        said.append(f"What isn't recorded was left out of what was kept ({left}), so the snapshot's own digest can't be checked")
    if kept.version != version("shunter"):
        said.append(f"The decision was made by Shunter {kept.version}, and again by {version('shunter')}")
    return tuple(said)


def _not_kept(asked: Sealed) -> Rejected:
    return Rejected(
        Problem(
            code=NOT_KEPT,
            what=f"what record {asked.seq} was decided on isn't kept",
            remedy="Inputs are kept when a plan changes or something is to be done, for as long as `inputs` under [audit] says",
            subject=str(asked.record.plan),
        )
    )


def _no_decision(what: str, remedy: str, subject: str) -> Rejected:
    return Rejected(Problem(code="SH977", what=what, remedy=remedy, subject=subject))
