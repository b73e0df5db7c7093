"""Where a record's decision came from: the commit of the policies that it was made with, and the place of its policy in them.

Operations know the plan that they are of. Whoever reads one of their records wants the commit, the file and the line without looking for
the plan's record first.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from shunter.audit.journal import Journal
from shunter.model.ids import Commit, Digest, PolicyName
from shunter.model.plan import Plan
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind

_SETS: Final = 16
_PLANS: Final = 10_000
"""So many of each are known, the newest: an operation that is older than that many plans is told without."""
PLACE: Final = "policy_at"
"""The key in a record's body: `policies/save.yaml:3:1`."""


class Origins:
    """For any thread. What isn't known is left out."""

    def __init__(self, before: Iterable[Record] = ()) -> None:
        """`before`: records of earlier engines, whose operations this one may go on with."""
        self._lock = threading.Lock()
        self._places: OrderedDict[Commit, Mapping[PolicyName, str]] = OrderedDict()
        self._plans: OrderedDict[Digest, Commit] = OrderedDict()
        self._learnt: PolicySet | None = None
        for record in before:
            if record.plan is not None and record.commit is not None:
                self._plans[record.plan] = record.commit

    @classmethod
    def of(cls, journal: Journal) -> "Origins":
        """With the plans that it has lately recorded. Raises Stalled as `Journal.list` does."""
        return cls(sealed.record for sealed in journal.list(kind=RecordKind.PLAN, limit=_PLANS))

    def learn(self, policies: PolicySet) -> None:
        """Decisions may be made with these from now on."""
        if policies is self._learnt:
            return
        with self._lock:
            self._learnt = policies
            self._places[policies.commit] = {policy.name: str(policy.place) for policy in policies.policies}
            _forget(self._places, _SETS)

    def planned(self, plan: Plan) -> None:
        """Operations of this plan may begin from now on."""
        with self._lock:
            self._plans[plan.digest] = plan.commit
            self._plans.move_to_end(plan.digest)
            _forget(self._plans, _PLANS)

    def told(self, record: Record) -> Record:
        """The record with its commit, and in its body with where its policy stands."""
        with self._lock:
            commit = record.commit or (self._plans.get(record.plan) if record.plan is not None else None)
            policy = record.body.get("policy")
            place = self._places.get(commit, {}).get(PolicyName(policy)) if commit is not None and isinstance(policy, str) else None
        if commit == record.commit and place is None:
            return record
        body = record.body if place is None else {**record.body, PLACE: place}
        return msgspec.structs.replace(record, commit=commit, body=body)


def _forget(known: OrderedDict[Commit, Mapping[PolicyName, str]] | OrderedDict[Digest, Commit], most: int) -> None:
    while len(known) > most:
        known.popitem(last=False)
