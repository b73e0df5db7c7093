"""`follow: planner`: carrying out what the Dynamo planner wants of two pools, as far as the hardware goes."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.gates import missing
from shunter.decide.give import give
from shunter.decide.hold import Held, held
from shunter.decide.shift import Condition, Stop, flipping, opposed, restraints, spec_of
from shunter.decide.words import clock
from shunter.decide.world import STANDING, World
from shunter.model.expression import Undecided
from shunter.model.finding import Evidence, Input, Verdict
from shunter.model.ids import WorkerId, pool_id
from shunter.model.plan import OperationKind
from shunter.model.policy import Policy, ReassignmentPolicy
from shunter.model.sample import Known, Missing, Sample
from shunter.model.snapshot import Role, WorkerState

ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
_STAYING: Final = frozenset({OperationKind.CHECKPOINT, OperationKind.MOVE})


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner wants of each pool, and what there is, in workers.

    What is in motion counts neither as missing nor as too many: `most` has the workers that stand still or are on their way, `least`
    hasn't, nor those that are about to leave. One that stands still for its own checkpoint or move is there.
    """

    desired: Mapping[Role, int]
    least: Mapping[Role, int]
    most: Mapping[Role, int]

    def short(self, role: Role) -> int:
        """Workers that the pool lacks."""
        return max(0, self.desired[role] - self.most[role])

    def over(self, role: Role) -> int:
        """Workers that the pool has too many."""
        return max(0, self.least[role] - self.desired[role])

    def way(self) -> tuple[Role | None, Role] | None:
        """From which pool to which hardware is to go; from none where only the one lacks workers; None where none does."""
        taker: Role | None = next((r for r in ROLES if self.short(r)), None)
        if taker is None:
            return None
        giver: Role | None = next((r for r in ROLES if r != taker and self.over(r)), None)
        return giver, taker

    def __str__(self) -> str:
        wanted = " and ".join(f"{self.desired[r]} {r}" for r in ROLES)
        there = " and ".join(f"{self.least[r]}" + (f" to {self.most[r]}" if self.most[r] > self.least[r] else "") for r in ROLES)
        return f"the planner wants {wanted} workers, and there are {there}"


def follow(d: Deciding, policy: Policy, graph: str) -> None:
    """Find and plan for one graph."""
    inputs = tuple(Input(name=f"pools.{r}.desired", sample=_desired(d.world, graph, r)) for r in ROLES)
    wanted = _wanted(d, d.world, graph, moving=True)
    if isinstance(wanted, Undecided):
        unknown = Evidence(gate="follow", result=None, detail=str(wanted), inputs=inputs)
        d.find(policy, graph, Verdict.INCONCLUSIVE, missing(wanted), gate="follow", evidence=(unknown,))
        return
    way, impossible = wanted.way(), _impossible(d, graph, wanted)
    told = Evidence(gate="follow", result=way is not None, detail=str(wanted), inputs=inputs)
    bound = Evidence(gate="desired", result=impossible is None, detail=impossible or "there are slots for all of them")
    if way is None:
        d.find(policy, graph, Verdict.PASS, _content(wanted), gate="follow", evidence=(told, bound))
        return
    stretch = _stretch(d, graph, way, float(spec_of(policy).for_))
    since = f"since {clock(stretch.since)}" if stretch.since is not None else "not at all"
    lasted = f"{since}, {float(spec_of(policy).for_):g} s wanted{'; ' if stretch.why else ''}{stretch.why}"
    evidence = (told, Evidence(gate="for", result=stretch.remaining <= 0, detail=lasted), bound)
    trigger = Condition(answer=True, held=stretch, evidence=evidence)
    stop, gates = _shift(d, policy, graph, wanted, trigger)
    if stop.gate == "to" and impossible is not None:
        stop = Stop(verdict=Verdict.HOLD, reason=impossible, gate="desired")
    d.find(policy, graph, stop.verdict, stop.reason, gate=stop.gate, evidence=(*evidence, *gates), since=stretch.since)


def _shift(d: Deciding, policy: Policy, graph: str, wanted: Wanted, trigger: Condition) -> tuple[Stop, tuple[Evidence, ...]]:
    """Take it through the gates, then shift as many as both pools can do with."""
    way = wanted.way()
    assert way is not None, "something is wanted"
    giver, taker = way
    if trigger.held.remaining > 0:
        since = trigger.held.since
        told = f"the planner has wanted it since {clock(since)}" if since is not None else f"the planner wants it, but {trigger.held.why}"
        return Stop(verdict=Verdict.HOLD, reason=f"{told}: not long enough", gate="for"), ()
    gates: tuple[Evidence, ...] = ()
    stop = flipping(policy)
    if stop is None:
        stop, gates = restraints(d, policy, graph)
    if stop is not None:
        return stop, gates
    # where both pools lack workers, the one that none can be brought back for doesn't keep the other from getting some
    takers: list[Role] = [taker] if giver is not None else [r for r in ROLES if wanted.short(r)]
    for role in takers:
        number = min(wanted.short(role), wanted.over(giver)) if giver is not None else wanted.short(role)
        turned = _turned(policy, giver or _other(role), role, number)
        stop = opposed(d, turned, graph)
        if stop is None:
            cause = f"shift:{policy.name}:{role}:{trigger.since(d.now)}"
            stop, more = give(d, turned, graph, cause, trigger, make_way=giver is not None)
            gates = (*gates, *more)
        if stop.verdict is Verdict.ACT:
            break
    assert stop is not None, "one pool lacks workers"
    return stop, gates


def _other(role: Role) -> Role:
    return "decode" if role == "prefill" else "prefill"


def _turned(policy: Policy, giver: Role, taker: Role, number: int) -> Policy:
    """The policy with the direction that the planner wants, and no more steps than it wants. Its ceiling is that of the pool it names."""
    document, spec = policy.document, spec_of(policy)
    assert isinstance(document, ReassignmentPolicy), "its spec was read"
    ceiling = spec.limits.to if taker == spec.to else None
    limits = msgspec.structs.replace(spec.limits, step=max(1, min(spec.limits.step, number)), to=ceiling)
    spec = msgspec.structs.replace(spec, from_=giver, to=taker, limits=limits)
    return msgspec.structs.replace(policy, document=msgspec.structs.replace(document, spec=spec))


def _stretch(d: Deciding, graph: str, way: tuple[Role | None, Role], needed: float) -> Held:
    """How long hardware has been wanted this way."""
    answers: list[tuple[float, bool | None]] = []
    for world in d.worlds[:-1]:
        wanted = _wanted(d, world, graph, moving=False)
        answers.append((world.at, None if isinstance(wanted, Undecided) else wanted.way() == way))
    return held([*answers, (d.world.at, True)], d.now, needed)


def _wanted(d: Deciding, world: World, graph: str, *, moving: bool) -> Wanted | Undecided:
    """What is wanted in this snapshot; with `moving`, operations under way or planned are taken into account."""
    samples: dict[Role, Sample] = {r: _desired(world, graph, r) for r in ROLES}
    unknown = [(f"pools.{r}.desired", why) for r, s in samples.items() if (why := _unusable(s)) is not None]
    if unknown:
        return Undecided(inputs=tuple(unknown))
    least: dict[Role, int] = {}
    most: dict[Role, int] = {}
    coming, leaving = _in_motion(d) if moving else (frozenset[str](), frozenset[str]())
    for role in ROLES:
        pool = world.pools.get(pool_id(graph, role), ())
        there = [w for w in pool if w.state in STANDING or (w.state is WorkerState.FROZEN and _stood_still(d, w.id, world.at))]
        least[role] = sum(w.id not in leaving for w in there)
        most[role] = sum(w.state in STANDING or w.state is WorkerState.FROZEN or w.id in coming for w in pool)
    desired: dict[Role, int] = {r: int(s.value) for r, s in samples.items() if isinstance(s, Known)}
    return Wanted(desired=desired, least=least, most=most)


def _in_motion(d: Deciding) -> tuple[frozenset[str], frozenset[str]]:
    """Workers that are being brought back, and those that are about to leave."""
    operations = [r.planned for r in d.history.active] + [one.operation for one in d.ranked]
    coming = frozenset(o.worker for o in operations if o.kind is OperationKind.RESTORE)
    return coming, frozenset(o.worker for o in operations if o.kind in (OperationKind.PARK, OperationKind.DRAIN))


def _stood_still(d: Deciding, worker: WorkerId, at: float) -> bool:
    """It stood still at that time only until its checkpoint or its move was done: it is of its pool all the while."""
    own = (*(r for r in d.history.active if r.planned.worker == worker), *d.history.of_worker(worker))
    return any(r.planned.kind in _STAYING and r.created_at <= at and (r.outcome is None or r.outcome.at >= at) for r in own)


def _desired(world: World, graph: str, role: Role) -> Sample:
    return world.snapshot.samples.pools.get(pool_id(graph, role), {}).get("desired", Missing(reason="not collected"))


def _unusable(sample: Sample) -> str | None:
    """Why a sample isn't a number of workers, or None."""
    if not isinstance(sample, Known):
        return sample.reason if isinstance(sample, Missing) else f"{sample.age:.0f} s old"
    return None if sample.value >= 0 and float(sample.value).is_integer() else f"{sample.value:g} is not a number of workers"


def _impossible(d: Deciding, graph: str, wanted: Wanted) -> str | None:
    """Why the hardware can't hold what is wanted, or None: by the slots of nodes that stay and that no other graph's worker occupies."""
    slots = d.world.room.get(None, Counter()) + d.world.room.get(graph, Counter())
    total = sum(wanted.desired.values())
    if total > slots.total():
        return f"the planner wants {total} workers of {graph}, and there are slots for {slots.total()}"
    for role in ROLES:
        able = sum(number for roles, number in slots.items() if role in roles)
        if wanted.desired[role] > able:
            return f"the planner wants {wanted.desired[role]} {role} workers of {graph}, and there are slots for {able}"
    return None


def _content(wanted: Wanted) -> str:
    over = [r for r in ROLES if wanted.over(r)]
    if not over:
        return "the pools are as the planner wants them, or on the way to it"
    return f"there are more {' and '.join(over)} workers than the planner wants, and nobody needs their slots: they stay"
