"""What other policies would have done otherwise over the past, and what did it: both decide on the very same snapshots, step by step."""

from collections import deque
from collections.abc import Sequence

import msgspec

from shunter.backtest.diff import Turn, altered, turns
from shunter.backtest.run import Decided, Simulation, horizon_of
from shunter.decide.evaluate import evaluate
from shunter.decide.memory import Memory
from shunter.decide.profile import Profile
from shunter.model.backtest import Act, Altered, Backtest, Contrast, Turned
from shunter.model.difference import Flip
from shunter.model.expression import Rules
from shunter.model.finding import Verdict
from shunter.model.ids import OperationId, PolicyName
from shunter.model.plan import Evaluation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Samples, Snapshot

_REMARK = (
    "Operations are those of two simulated fleets, which differ more and more; findings were compared on the snapshots of the base's fleet,"
    " so that nothing but the policies makes them differ"
)


class _Seen(msgspec.Struct):
    """A finding that turned, as far as it has been seen."""

    flip: Flip
    first: float
    last: float
    steps: int = 0


class Contrasting:
    """A contrast in the making. Call `step` for each step of the base, then `result`."""

    def __init__(self, head: PolicySet, rules: Rules, profile: Profile) -> None:
        """`head` are the other policies."""
        self._head, self._rules, self._profile = head, rules, profile
        self._kept: deque[Snapshot] = deque()
        self._window = horizon_of(head)
        self._memory = Memory()
        self._seen: dict[tuple[PolicyName, str, Verdict | None, Verdict | None], _Seen] = {}
        self._met: set[OperationId] = set()

    def step(self, decided: Decided, samples: Samples) -> None:
        """Let the other policies decide on what the base has decided on; `samples` are what they were given for it. All findings are
        compared at steps that are looked at, those of a policy also when only one side wants to begin an operation by it.
        """
        base, at = decided.snapshot, decided.snapshot.at
        own = msgspec.structs.replace(base.samples, policies=samples.policies)
        self._kept.append(Simulation(at=at, fleet=base.fleet, samples=own, notices=base.notices))
        while at - self._kept[0].at > self._window:
            self._kept.popleft()
        found = evaluate(self._head, list(self._kept), decided.state, at, self._rules, self._profile, self._memory)
        unlike = self._unlike(decided.evaluation, found)
        if decided.looked or unlike:
            for turn in turns(decided.evaluation, found, None if decided.looked else unlike):
                self._note(turn, at)

    def _unlike(self, base: Evaluation, head: Evaluation) -> set[PolicyName]:
        """Policies by which one side begins something, now for the first time, that the other doesn't."""
        one, other = ({o.id: o.policy for o in e.plan.operations} for e in (base, head))
        apart = {o: (one | other)[o] for o in one.keys() ^ other.keys() if o not in self._met}
        self._met.update(apart)
        return set(apart.values())

    def _note(self, turn: Turn, at: float) -> None:
        key = (turn.policy, turn.subject, turn.before, turn.after)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen(flip=turn.told(), first=at, last=at)
        seen.last, seen.steps = at, seen.steps + 1

    def result(self, base: Backtest, head: Backtest) -> Contrast:
        """All of it. The two backtests are those of both sides."""
        added, removed, changed = _compared(base.acts, head.acts, base.step)
        turned = [Turned(flip=s.flip, first=s.first, last=s.last, steps=s.steps) for s in self._seen.values()]
        return Contrast(
            base=base.commit,
            head=head.commit,
            added=added,
            removed=removed,
            altered=changed,
            turned=tuple(sorted(turned, key=lambda t: (t.first, t.flip.policy, t.flip.subject))),
            remarks=(_REMARK,),
        )


_FOLLOW = ("deadline", "image")
"""Fields that follow from when, and under which name, simulated operations began."""


def _compared(base: Sequence[Act], head: Sequence[Act], step: float) -> tuple[tuple[Act, ...], tuple[Act, ...], tuple[Altered, ...]]:
    """Added, removed, altered. The same decision, made again, is an operation with the same id, also at another time; and what both do with
    a worker at the same time is compared, whatever each calls it.
    """
    pairs, added, removed = _paired(base, head)
    changed = []
    for was, now in pairs:
        fields = tuple(f for f in altered(was.operation, now.operation) if f[0] not in _FOLLOW)
        if abs(late := now.at - was.at) >= step:
            fields = (*fields, ("begun", "at its time", f"{abs(late):g} s {'later' if late > 0 else 'earlier'}"))
        if fields:
            changed.append(Altered(before=was, after=now, fields=fields))
    return added, removed, tuple(changed)


def _paired(base: Sequence[Act], head: Sequence[Act]) -> tuple[list[tuple[Act, Act]], tuple[Act, ...], tuple[Act, ...]]:
    by_id = {a.operation.id: a for a in head}
    pairs = [(a, by_id[a.operation.id]) for a in base if a.operation.id in by_id]
    paired = {id(a) for pair in pairs for a in pair}
    at_once = {_when(a): a for a in head if id(a) not in paired}
    for act in base:
        if id(act) not in paired and (other := at_once.pop(_when(act), None)) is not None:
            pairs.append((act, other))
            paired |= {id(act), id(other)}
    pairs.sort(key=lambda pair: pair[1].at)
    added, removed = (tuple(a for a in acts if id(a) not in paired) for acts in (head, base))
    return pairs, added, removed


def _when(act: Act) -> tuple[float, str, str]:
    return act.at, act.operation.kind.value, act.operation.worker
