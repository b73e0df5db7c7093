"""What the rules say, noted as they decide and made into findings when somebody asks.

Most of what is said is why nothing happens, of workers that no plan depends on. So a finding's parts may be left to be worked out later:
its evidence, or all of it. What is worked out later may depend only on what doesn't change while a plan is made: snapshots, policies and
the time, never the ledger or the plan.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias

from shunter.model.finding import Brief, Chapter, Evidence, Finding, Lane, Verdict
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

Gists: TypeAlias = Callable[[Sequence[Worker]], Sequence[Brief | None]]
"""The same of each of these workers, without the evidence. Most of a fleet is told the same in every tick, so it gives the same few values
again and again.
"""

UNCOVERED: Final = Said(Verdict.PASS, "the policy doesn't cover it", "workers.where")


class Left(NamedTuple):
    """Workers, but some, of whom is said what `explain` says, in brief what `gists` says."""

    workers: Sequence[Worker]
    explain: Explain
    gists: Gists
    but: Set[WorkerId]


class Notes:
    """All that is said in one evaluation. Said of the same subject again, it replaces what was said before."""

    def __init__(self) -> None:
        self._said: dict[PolicyName, dict[str, Said]] = {}
        self._left: dict[PolicyName, list[Left]] = {}
        self._lanes: dict[PolicyName, Lane] = {}
        self._among: dict[int, frozenset[WorkerId]] = {}

    def say(self, policy: PolicyName, lane: Lane, subject: str, said: Said) -> None:
        """Note it."""
        self._lanes[policy] = lane
        self._said.setdefault(policy, {})[subject] = said

    def leave(self, policy: PolicyName, lane: Lane, left: Left) -> None:
        """Leave what is said of workers to be worked out later, unless something else is said of them."""
        self._lanes[policy] = lane
        self._left.setdefault(policy, []).append(left)

    def get(self, policy: PolicyName, worker: Worker) -> Said | None:
        """What was said of the worker, be it left for later; None: nothing."""
        said = self._said.get(policy, {}).get(worker.id)
        if said is None:
            left = (one for one in self._left.get(policy, ()) if worker.id not in one.but and worker.id in self._ids(one.workers))
            said = next((one.explain(worker) for one in left), None)
        return said

    def _ids(self, workers: Sequence[Worker]) -> frozenset[WorkerId]:
        """Their ids, gathered once for workers who are kept here: many are asked for one after the other."""
        if id(workers) not in self._among:
            self._among[id(workers)] = frozenset([w.id for w in workers])
        return self._among[id(workers)]

    def chapters(self) -> tuple[Chapter, ...]:
        """All of it in brief, in the order of policies and subjects."""
        return tuple(self._of(policy) for policy in sorted(self._lanes))

    def _of(self, policy: PolicyName) -> Chapter:
        own, left = self._said.get(policy, {}), self._left.get(policy, ())
        briefs: dict[str, Brief] = {**own}
        for one in left:
            others = [w for w in one.workers if w.id not in briefs and w.id not in one.but]
            briefs |= {w.id: told for w, told in zip(others, one.gists(others), strict=True) if told is not None}
        subjects = sorted(briefs)
        in_order = [briefs[subject] for subject in subjects]
        return Chapter(policy, subjects, in_order, _Telling(policy, self._lanes[policy], subjects, in_order, own, left).tell)


class _Telling:
    """What it takes to tell one policy's findings whole."""

    def __init__(
        self,
        policy: PolicyName,
        lane: Lane,
        subjects: Sequence[str],
        briefs: Sequence[Brief],
        own: Mapping[str, Said],
        left: Sequence[Left],
    ) -> None:
        self._lane: Lane = lane
        self._policy, self._subjects, self._briefs, self._own, self._left = policy, subjects, briefs, own, left

    @cached_property
    def _explained(self) -> Mapping[str, list[tuple[Explain, Worker]]]:
        """Who can explain what was left, in order."""
        found: dict[str, list[tuple[Explain, Worker]]] = {}
        for one in self._left:
            for worker in one.workers:
                if worker.id not in one.but:
                    found.setdefault(worker.id, []).append((one.explain, worker))
        return found

    def tell(self, place: int) -> Finding:
        """The finding of the subject at this place."""
        subject, brief = self._subjects[place], self._briefs[place]
        said = self._own.get(subject)
        if said is None:
            said = next((told for explain, worker in self._explained[subject] if (told := explain(worker)) is not None), None)
        assert said is not None, "there is something to say of it"
        assert (said.verdict, said.reason, said.gate) == (brief.verdict, brief.reason, brief.gate), "in brief it is said alike"
        return Finding(
            policy=self._policy,
            subject=subject,
            verdict=said.verdict,
            lane=self._lane,
            reason=said.reason,
            gate=said.gate,
            since=said.since,
            evidence=tuple(part() if callable(part) else part for part in said.evidence),
        )
