"""Deciding where it isn't known what the fleet was: what a condition read of it then has no answer, and breaks `for`.

Samples of the past are Prometheus' own. Where workers were then, in which state, how many, and which images they had, is only known if an
engine looked.
"""

from collections.abc import Callable, Sequence
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
"""What is kept track of by itself, as images come and go so often: see `app.pictures`."""
_WHY: Final = "no engine on this state folder looked at the fleet then"
_NO_IMAGES: Final = "no engine on this state folder kept track of images then"


def reads_fleet(names: Sequence[str]) -> list[str]:
    """Those of the variables that say what the fleet is: where workers are, in which state, how many; nodes, labels, images, notices."""
    return [n for n in names if n not in _LASTING and not n.startswith("metrics.") and not ((v := VARIABLES.get(n)) and v.metric)]


class Unseen:
    """Rules that don't answer what nobody saw. `unknown` are the times at which the fleet isn't known, `unpictured` those at which
    workers' images aren't.
    """

    def __init__(self, rules: Rules, unknown: frozenset[float], unpictured: frozenset[float]) -> None:
        self._rules: BulkRules = in_bulk(rules)
        self._unknown, self._unpictured = unknown, unpictured | unknown
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
        if at not in self._unpictured:
            return None
        names = [n for n in reads_fleet(self.inputs(expression)) if at in self._unknown or n in _IMAGES]
        why = _WHY if at in self._unknown else _NO_IMAGES
        return Undecided(inputs=tuple((name, why) for name in names)) if names else None


class Veiled(msgspec.Struct, frozen=True, kw_only=True):
    """A recording's snapshots, oldest first, the times (seconds since the epoch, ascending) at which the fleet isn't known, those at which
    the fleet is and its images aren't, and what a reader must know of that, in sentences.
    """

    snapshots: tuple[Snapshot, ...]
    unknown: tuple[float, ...] = ()
    unpictured: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()

    def rules(self, rules: Rules) -> Rules:
        """The rules, but that they don't answer what isn't known."""
        return careful(rules, self.unknown, self.unpictured)


def careful(rules: Rules, unknown: Sequence[float], unpictured: Sequence[float]) -> Rules:
    """Rules that don't answer what nobody saw at these times: see `Veiled`."""
    return Unseen(rules, frozenset(unknown), frozenset(unpictured)) if unknown or unpictured else rules


def veiled(recording: Recording, policies: PolicySet, rules: Rules) -> Veiled:
    """What is known of the recording's past, for a decision by these policies."""
    past = [one for one in recording.history if one.at < recording.at]
    images = any(_looks_back(p, rules, 0.0, _images) for p in policies.policies)
    snapshots = recording.snapshots(images=images)
    if not past:
        return Veiled(snapshots=tuple(snapshots))
    unknown = frozenset(one.at for one in past if one.seen is None)
    unpictured = frozenset(one.at for one in past if one.images is None) - unknown
    remarks: list[str] = []
    if unknown and (told := _told(policies, rules, recording.at - max(unknown), reads_fleet)):
        remarks.append(_remark(max(unknown), told))
    if unpictured and (told := _told(policies, rules, recording.at - max(unpictured), _images)):
        remarks.append(_remark_on_images(max(unpictured), told))
    if unknown and any(_follows(p) for p in policies.policies):
        # what the planner wants is compared with the workers that there were
        snapshots = [_without_pools(s) if s.at in unknown else s for s in snapshots]
    return Veiled(snapshots=tuple(snapshots), unknown=tuple(sorted(unknown)), unpictured=tuple(sorted(unpictured)), remarks=tuple(remarks))


def _remark(at: float, policies: Sequence[str]) -> str:
    return (
        f"What the fleet was at {moment(at)} and before isn't known: {_WHY}. Conditions with `for` that read places, states, labels,"
        f" images or numbers of workers count as held only since then ({', '.join(policies)}); sums over a pool are"
        " those of its workers of now"
    )


def _remark_on_images(at: float, policies: Sequence[str]) -> str:
    return (
        f"How many images workers had at {moment(at)} and before, and how old those were, isn't known: {_NO_IMAGES}. Conditions with `for`"
        f" that read worker.images or worker.imageAge count as held only since then ({', '.join(policies)})"
    )


def _told(policies: PolicySet, rules: Rules, known: float, read: Callable[[Sequence[str]], list[str]]) -> list[str]:
    return sorted(p.name for p in policies.policies if _looks_back(p, rules, known, read))


def _images(names: Sequence[str]) -> list[str]:
    return [n for n in names if n in _IMAGES]


def _looks_back(policy: Policy, rules: Rules, known: float, read: Callable[[Sequence[str]], list[str]]) -> bool:
    """It is in force and has a `for` longer than `known` seconds on what is `read`."""
    document = policy.document
    if policy.mode == "off":
        return False
    if _follows(policy):
        return read is reads_fleet and isinstance(document, ReassignmentPolicy) and float(document.spec.for_) > known
    asked: list[tuple[Expression | None, float]] = []
    if isinstance(document, RebalancePolicy):
        asked.append((document.spec.when, float(document.spec.for_)))
    if isinstance(document, ReassignmentPolicy):
        asked.append((document.spec.when, float(document.spec.for_)))
        if document.spec.revert is not None:
            asked.append((document.spec.revert.when, float(document.spec.revert.for_)))
    return any(when is not None and lasts > known and bool(read(rules.inputs(when))) for when, lasts in asked)


def _follows(policy: Policy) -> bool:
    return isinstance(policy.document, ReassignmentPolicy) and policy.document.spec.follow == "planner"


def _without_pools(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, samples=msgspec.structs.replace(snapshot.samples, pools={}))
