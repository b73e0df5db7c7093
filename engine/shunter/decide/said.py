"""What the rules say, noted as they decide and made into findings when somebody asks.

Most of what is said is why nothing happens, of workers that no plan depends on. So a finding's parts may be left to be worked out later:
its evidence, or all of it. What is worked out later may depend only on what doesn't change while a plan is made: snapshots, policies and
the time, never the ledger or the plan.
"""

from collections.abc import Callable, Sequence, Set
from typing import NamedTuple, TypeAlias

from shunter.model.finding import Evidence, Finding, Lane, Verdict
from shunter.model.ids import PolicyName, WorkerId
from shunter.model.snapshot import Worker

Part: TypeAlias = Evidence | Callable[[], Evidence]
"""Evidence, or what gives it."""


class Said(NamedTuple):
    """What a policy says of a subject. `gate`, `since` as in a Finding."""

    verdict: Verdict
    reason: str
    gate: str = ""
    evidence: Sequence[Part] = ()
    since: float | None = None


Explain: TypeAlias = Callable[[Worker], Said | None]
"""Why there is nothing to do for a worker; None when the policy isn't about it."""


class _Left(NamedTuple):
    """Workers, but some, of whom is said what `explain` says."""

    workers: Sequence[Worker]
    explain: Explain
    but: Set[WorkerId]


class Notes:
    """All that is said in one evaluation. Said of the same subject again, it replaces what was said before."""

    def __init__(self) -> None:
        self._said: dict[PolicyName, dict[str, Said]] = {}
        self._left: dict[PolicyName, list[_Left]] = {}
        self._lanes: dict[PolicyName, Lane] = {}

    def say(self, policy: PolicyName, lane: Lane, subject: str, said: Said) -> None:
        """Note it."""
        self._lanes[policy] = lane
        self._said.setdefault(policy, {})[subject] = said

    def leave(self, policy: PolicyName, lane: Lane, workers: Sequence[Worker], explain: Explain, but: Set[WorkerId]) -> None:
        """Leave what is said of the workers, `but` some, to `explain`, unless something else is said of them."""
        self._lanes[policy] = lane
        self._left.setdefault(policy, []).append(_Left(workers, explain, but))

    def get(self, policy: PolicyName, worker: WorkerId) -> Said | None:
        """What was said of the worker, be it left for later; None: nothing."""
        said = self._said.get(policy, {}).get(worker)
        if said is None:
            left = ((one, w) for one in self._left.get(policy, ()) if worker not in one.but for w in one.workers if w.id == worker)
            said = next((one.explain(w) for one, w in left), None)
        return said

    def findings(self) -> tuple[Finding, ...]:
        """All of it, in the order of policies and subjects."""
        return tuple(finding for policy in sorted(self._lanes) for finding in self._of(policy))

    def _of(self, policy: PolicyName) -> list[Finding]:
        said: dict[str, Said] = dict(self._said.get(policy, {}))
        for one in self._left.get(policy, ()):
            left = [w for w in one.workers if w.id not in said and w.id not in one.but]
            said |= {w.id: told for w in left if (told := one.explain(w)) is not None}
        lane = self._lanes[policy]
        return [_finding(policy, lane, subject, said[subject]) for subject in sorted(said)]


def _finding(policy: PolicyName, lane: Lane, subject: str, said: Said) -> Finding:
    return Finding(
        policy=policy,
        subject=subject,
        verdict=said.verdict,
        lane=lane,
        reason=said.reason,
        gate=said.gate,
        since=said.since,
        evidence=tuple(part() if callable(part) else part for part in said.evidence),
    )
