"""What was expected at a step against what was found: the differences, and what the expectations that were met have shown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from shunter.cases.document import WantedFinding, WantedOperation, WantedWorker
from shunter.cases.scenario import Due
from shunter.cases.simulate import Moment
from shunter.model.errors import Place
from shunter.model.finding import Evidence, Finding, Verdict
from shunter.model.ids import OperationId, SlotId, node_of
from shunter.model.plan import PlannedOperation
from shunter.model.policy import Policy
from shunter.model.snapshot import Worker


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An expectation that wasn't met. `at` is in seconds since the test's beginning; `expected` or `found` is empty where there should be
    nothing, or was. `policy` is the one that it is about, empty where that can't be told.
    """

    at: float
    place: Place
    expected: str
    found: str
    evidence: tuple[Evidence, ...] = ()
    policy: str = ""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A met expectation shows that a policy can say this."""

    policy: str
    verdict: Verdict
    gate: str = ""


Outcome: TypeAlias = Failure | Shown | None
"""None: met, and it says nothing of a policy."""


def compare(due: Due, moment: Moment, begins: float, policies: Sequence[Policy]) -> list[Outcome]:
    """One outcome for each expectation of the step, and one for each operation that should not be there. `begins`: of the test, in
    seconds since the epoch. `policies` are those in force.
    """
    comparison = _Comparison(due, moment, moment.snapshot.at - begins, policies)
    return [*comparison.findings(), *comparison.operations(), *comparison.workers()]


class _Comparison:
    def __init__(self, due: Due, moment: Moment, at: float, policies: Sequence[Policy]) -> None:
        self.wanted, self.place, self.at, self.policies = due.wanted, due.place, at, policies
        self.only = str(policies[0].name) if len(policies) == 1 else ""
        self.evaluation = moment.evaluation
        self.fleet = {str(w.id): w for w in moment.snapshot.fleet.workers}

    def failure(self, expected: str, found: str, evidence: tuple[Evidence, ...] = (), policy: str | None = None) -> Failure:
        return Failure(at=self.at, place=self.place, expected=expected, found=found, evidence=evidence, policy=policy or self.only)

    def findings(self) -> Iterator[Outcome]:
        for wanted in self.wanted.findings:
            own = [f for f in self.evaluation.findings if f.subject == wanted.subject and wanted.policy in (None, f.policy)]
            if any(_is(wanted, f) for f in own):
                yield from (Shown(policy=f.policy, verdict=f.verdict, gate=f.gate) for f in own if _is(wanted, f))
            elif own:
                yield self.failure(wanted_finding(wanted), found_finding(own[0]), own[0].evidence, own[0].policy)
            else:
                told = f"finding  {wanted.subject}: nothing is said of it{self._unsaid(wanted)}"
                yield self.failure(wanted_finding(wanted), told, policy=wanted.policy)

    def _unsaid(self, wanted: WantedFinding) -> str:
        """Why the policy has nothing to say of the subject, where its selector alone tells that."""
        worker = self.fleet.get(wanted.subject)
        graphs = {w.graph for w in self.fleet.values()}
        for policy in self.policies:
            select = policy.selector
            if wanted.policy not in (None, policy.name) or select is None:
                continue
            graph = worker.graph if worker is not None else wanted.subject
            if select.graph is not None and select.graph != graph and graph in graphs:
                there = f"the worker serves {graph}" if worker is not None else f"this fleet has {' and '.join(sorted(graphs))}"
                remedy = f"write `graph: {select.graph}` under `fleet`"
                return f", as {policy.name} covers the graph {select.graph}, and {there}: {remedy}, unless another graph is meant"
            if worker is not None and select.role not in (None, worker.role):
                return f", as {policy.name} covers {select.role} workers"
        return ""

    def operations(self) -> Iterator[Outcome]:
        if self.wanted.operations is None:
            return
        planned = self.evaluation.plan.operations
        whose = {o.id: str(o.worker) for o in planned}
        left = list(planned)
        for wanted in self.wanted.operations:
            found = next((o for o in left if o.worker == wanted.worker), None)
            if found is not None:
                left.remove(found)
            if found is not None and not _differs(wanted, found, whose):
                yield Shown(policy=found.policy, verdict=Verdict.ACT)
            else:
                told = f"operation  {wanted.worker}: nothing is planned for it" if found is None else found_operation(found, whose)
                about = wanted.policy or (found.policy if found is not None else None)
                yield self.failure(wanted_operation(wanted), told, self._evidence(wanted.worker, found), about)
        if self.wanted.exactly:
            yield from (self.failure("", found_operation(o, whose), self._evidence(o.worker, o), o.policy) for o in left)

    def _evidence(self, worker: str, planned: PlannedOperation | None) -> tuple[Evidence, ...]:
        """What the policy that planned it says of the worker; where nothing was planned, what any says that doesn't act."""
        own = [f for f in self.evaluation.findings if f.subject == worker and (planned is None or f.policy == planned.policy)]
        return own[0].evidence if own else ()

    def workers(self) -> Iterator[Outcome]:
        for name, wanted in self.wanted.workers.items():
            worker = self.fleet.get(name)
            if worker is None or not _stands(wanted, worker):
                yield self.failure(_place(name, wanted.node, wanted.state), _actual(name, worker))
            else:
                yield None


def _is(wanted: WantedFinding, found: Finding) -> bool:
    return (
        found.verdict is wanted.verdict
        and wanted.gate in (None, found.gate)
        and (wanted.reason is None or wanted.reason.casefold() in found.reason.casefold())
    )


def _differs(wanted: WantedOperation, found: PlannedOperation, whose: Mapping[OperationId, str]) -> bool:
    start = found.from_slot or found.expect.at
    same = (
        found.kind is wanted.kind,
        wanted.policy in (None, found.policy),
        wanted.from_ is None or _at(wanted.from_, start),
        wanted.to is None or _at(wanted.to, found.to_slot),
        wanted.after is None or sorted(wanted.after) == sorted(whose[one] for one in found.after),
        wanted.copies is None or sorted(wanted.copies) == sorted(found.copies),
        wanted.preview in (None, found.preview),
    )
    return not all(same)


def _at(wanted: str, slot: SlotId | None) -> bool:
    """The slot is the one wanted, or on the node wanted."""
    return slot is not None and wanted in (slot, node_of(slot))


def _stands(wanted: WantedWorker, worker: Worker) -> bool:
    return (wanted.node is None or _at(wanted.node, worker.slot)) and wanted.state in (None, worker.state)


def _place(name: str, node: str | None, state: str | None) -> str:
    return f"worker  {name}: {', '.join(part for part in (state, f'on {node}' if node else None) if part)}"


def _actual(name: str, worker: Worker | None) -> str:
    return f"worker  {name}: not there any more" if worker is None else _place(name, worker.slot, worker.state.value)


def wanted_finding(wanted: WantedFinding) -> str:
    """An expected finding in one line."""
    policy = f"{wanted.policy} " if wanted.policy else ""
    gate = f" at {wanted.gate}" if wanted.gate else ""
    reason = f': "...{wanted.reason}..."' if wanted.reason else ""
    return f"finding  {policy}{wanted.subject}: {wanted.verdict.value}{gate}{reason}"


def found_finding(found: Finding) -> str:
    """A finding in one line."""
    gate = f" at {found.gate}" if found.gate else ""
    return f'finding  {found.policy} {found.subject}: {found.verdict.value}{gate}: "{found.reason}"'


def wanted_operation(wanted: WantedOperation) -> str:
    """An expected operation in one line."""
    parts = [f"operation  {wanted.kind.value} {wanted.worker}"]
    parts += [f"{word} {value}" for word, value in (("from", wanted.from_), ("to", wanted.to), ("by", wanted.policy)) if value]
    for word, names in (("after", wanted.after), ("copies", wanted.copies)):
        if names is not None:
            parts.append(f"{word} {', '.join(sorted(names)) or 'none'}")
    if wanted.preview is not None:
        parts.append("in preview" if wanted.preview else "not in preview")
    return " ".join(parts)


def found_operation(found: PlannedOperation, whose: Mapping[OperationId, str]) -> str:
    """A planned operation in one line."""
    start = found.from_slot or found.expect.at
    parts = [f"operation  {found.kind.value} {found.worker}"]
    parts += [f"{word} {value}" for word, value in (("from", start), ("to", found.to_slot), ("by", found.policy)) if value]
    if found.after:
        parts.append(f"after {', '.join(sorted(whose[one] for one in found.after))}")
    if found.copies:
        parts.append(f"copies {', '.join(sorted(found.copies))}")
    return " ".join([*parts, "in preview"] if found.preview else parts)
