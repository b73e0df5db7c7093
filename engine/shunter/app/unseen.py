"""Deciding where it isn't known what the fleet was: what a condition read of it then has no answer, and breaks `for`.

Samples of the past are Prometheus' own. Where workers were then, in which state and how many, is only known if an engine looked.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from shunter.app.recording import Recording
from shunter.model.expression import BulkRules, Expression, Rules, Scope, Sheet, Undecided, in_bulk
from shunter.model.policy import Policy, PolicySet, ReassignmentPolicy, RebalancePolicy
from shunter.model.snapshot import Snapshot
from shunter.model.vocabulary import VARIABLES
from shunter.report.words import moment

_LASTING: Final = frozenset({"worker.id", "worker.role", "worker.graph", "worker.engine", "now"})
_IMAGES: Final = frozenset({"worker.imageAge", "worker.images"})
"""What is known of now alone: images come and go too often to be kept track of."""
_WHY: Final = "no engine on this state folder looked at the fleet then"


def reads_fleet(names: Sequence[str]) -> list[str]:
    """Those of the variables that say what the fleet is: where workers are, in which state, how many; nodes, labels, images, notices."""
    return [n for n in names if n not in _LASTING and not n.startswith("metrics.") and not ((v := VARIABLES.get(n)) and v.metric)]


class Unseen:
    """Rules that don't answer what nobody saw. `unknown` are the times at which the fleet isn't known, `past` all but now."""

    def __init__(self, rules: Rules, unknown: frozenset[float], past: frozenset[float]) -> None:
        self._rules: BulkRules = in_bulk(rules)
        self._unknown, self._past = unknown, past
        self.inputs = rules.inputs

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        """As the rules say, unless it is about a fleet that nobody saw."""
        return self._unseen(expression, scope) or self._rules.test(expression, scope)

    def measure(self, expression: Expression, scope: Scope) -> float | Undecided:
        """As `test`."""
        return self._unseen(expression, scope) or self._rules.measure(expression, scope)

    def test_all(self, expression: Expression, sheet: Sheet) -> Sequence[bool | None]:
        """What is asked in bulk is about now."""
        return self._rules.test_all(expression, sheet)

    def measure_all(self, expression: Expression, sheet: Sheet) -> Sequence[float | None]:
        """What is asked in bulk is about now."""
        return self._rules.measure_all(expression, sheet)

    def _unseen(self, expression: Expression, scope: Scope) -> Undecided | None:
        at = scope.get("now")
        if at not in self._past:
            return None
        names = [n for n in reads_fleet(self.inputs(expression)) if at in self._unknown or n in _IMAGES]
        return (
            Undecided(inputs=tuple((name, _WHY if at in self._unknown else "images of then aren't known") for name in names))
            if names
            else None
        )


def veiled(recording: Recording, policies: PolicySet, rules: Rules) -> tuple[list[Snapshot], Rules, tuple[str, ...]]:
    """The recording's snapshots, rules that don't answer what isn't known of them, and what a reader must know, in sentences."""
    snapshots = recording.snapshots()
    past = frozenset(one.at for one in recording.history if one.at < recording.at)
    if not past:
        return snapshots, rules, ()
    unknown = frozenset(one.at for one in recording.history if one.seen is None)
    careful = Unseen(rules, unknown, past)
    if not unknown:
        return snapshots, careful, ()
    told = tuple(p.name for p in policies.policies if p.mode != "off" and _looks_back(p, rules, recording.at - max(unknown)))
    if any(_follows(p) for p in policies.policies):
        # what the planner wants is compared with the workers that there were
        snapshots = [_without_pools(s) if s.at in unknown else s for s in snapshots]
    return snapshots, careful, (_remark(max(unknown), told),) if told else ()


def _remark(at: float, policies: Sequence[str]) -> str:
    return (
        f"What the fleet was at {moment(at)} and before isn't known: {_WHY}. Conditions with `for` that read places, states, labels or"
        f" numbers of workers count as held only since then ({', '.join(sorted(policies))}); sums over a pool are"
        " those of its workers of now"
    )


def _looks_back(policy: Policy, rules: Rules, known: float) -> bool:
    """It has a `for` longer than `known` seconds on what the fleet is."""
    document = policy.document
    if _follows(policy):
        return isinstance(document, ReassignmentPolicy) and float(document.spec.for_) > known
    asked: list[tuple[Expression | None, float]] = []
    if isinstance(document, RebalancePolicy):
        asked.append((document.spec.when, float(document.spec.for_)))
    if isinstance(document, ReassignmentPolicy):
        asked.append((document.spec.when, float(document.spec.for_)))
        if document.spec.revert is not None:
            asked.append((document.spec.revert.when, float(document.spec.revert.for_)))
    return any(when is not None and lasts > known and bool(reads_fleet(rules.inputs(when))) for when, lasts in asked)


def _follows(policy: Policy) -> bool:
    return isinstance(policy.document, ReassignmentPolicy) and policy.document.spec.follow == "planner"


def _without_pools(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, samples=msgspec.structs.replace(snapshot.samples, pools={}))
