"""Looking for a preview: at the live fleet, at a past instant of Prometheus, or at what was recorded.

What a running engine has measured tick by tick is read from Prometheus' history instead. What the fleet was is read from what the engine
kept of it, and unknown where it kept nothing; what it did is read from its store.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from shunter.act.store import looked_at
from shunter.app.assumed import Assumed, with_assumed
from shunter.app.gone import SOURCE, declared
from shunter.app.graphs import following, known
from shunter.app.inputs import Asked, asked, fitted
from shunter.app.pictures import Pictured
from shunter.app.recording import Past, Recording
from shunter.app.roster import named
from shunter.app.settings import Settings
from shunter.app.sightings import Series, Sighting, series
from shunter.app.world import VIEW_TIMEOUT_S, Memory, World, gone_after
from shunter.decide.hold import horizon
from shunter.model.errors import Problem
from shunter.model.ids import WorkerId
from shunter.model.operation import EngineState, OperationRecord
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Notice, Samples, Snapshot
from shunter.model.view import NodeView
from shunter.observe.prometheus import Prometheus

_OF_NOW = "Samples are as they were then; the fleet is the one of now, since no engine on this state folder looked then"
_OF_THEN = "Samples are as they were then, and so is the fleet, as the engine saw it; but images are those that are still there"
STEPS = 60
"""Past snapshots are taken at most at so many instants."""
_HOUR = 3600.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to decide on. `unreachable` says why nodes didn't answer, `remarks` what else a reader must know, in sentences."""

    recording: Recording
    unreachable: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()


async def look(
    settings: Settings, sets: Sequence[PolicySet], notices: Sequence[Assumed] = (), *, now: float, at: float | None = None
) -> tuple[Seen, ...]:
    """Look once, for each of the sets; what is seen differs only where two of them ask different queries under one name.

    `now` and `at` are seconds since the epoch. With `at`, a past instant, samples are as they were then, and the fleet is the one that the
    engine saw then; where none looked, the one of now without what wasn't there yet. Raises Rejected SH912 for a notice about a node that
    isn't in the settings. Agents and a Prometheus that don't answer are part of what is seen.
    """
    moment = now if at is None else at
    state, memory = _remembered(settings, now, moment)
    async with _connected(settings) as world:
        inventory = await world.look(memory, now)
        fleet, open_notices = without_later(inventory.fleet, inventory.notices, at)
        times = past(moment, max((horizon(s) for s in sets), default=0.0), float(settings.tick))
        seen = series(settings.state, [*times, moment][0], moment, float(settings.tick)) if times or at is not None else Series((), 0.0)
        then = _seen_at(seen, at)
        if then is not None:
            fleet, open_notices = _as_it_was_seen(then, fleet), then.notices
        spells, images = during(seen, [*times, moment]), seen.pictured([*times, moment])
        fleets = [seen.sightings[spell[-1]].fleet if spell else fleet for spell in spells[:-1]]
        found = await sampled(world, [*fleets, fleet], asked(sets), (*times, moment), float(settings.prometheus.deadline))
    told = with_assumed(open_notices, notices, moment, {node.id for node in fleet.nodes})
    unreachable = tuple(world.unreachable.values())
    remarks = () if at is None else (_OF_NOW if then is None else _OF_THEN,)
    return tuple(
        Seen(
            recording=Recording.of(
                Snapshot(at=moment, fleet=fleet, samples=samples[-1], notices=told),
                history_of(times, moment, spells, images, samples),
                state,
                settings.rates(),
                seen.sightings,
            ),
            unreachable=unreachable,
            remarks=remarks,
        )
        for samples in found
    )


def _seen_at(seen: Series, at: float | None) -> Sighting | None:
    """What the engine saw at that time; None: none looked, or it is now."""
    spell = seen.during(at, at) if at is not None else None
    return seen.sightings[spell[-1]] if spell else None


def _as_it_was_seen(then: Sighting, fleet: Fleet) -> Fleet:
    """With images of `fleet`, of now: those of workers that run are kept track of by their age alone."""
    away = {w.id for w in then.fleet.workers if w.slot is None}
    images = {i.id: i for i in (*(i for i in then.fleet.images if i.worker in away), *fleet.images)}
    return msgspec.structs.replace(then.fleet, images=tuple(images[name] for name in sorted(images)))


async def look_at_fleet(settings: Settings, now: float) -> tuple[Fleet, tuple[Problem, ...]]:
    """The fleet alone, as agents report it or it is remembered, and why nodes didn't answer."""
    _, memory = _remembered(settings, now, now)
    async with _connected(settings) as world:
        return (await world.look(memory, now)).fleet, tuple(world.unreachable.values())


def look_again(recording: Recording, sets: Sequence[PolicySet], notices: Sequence[Assumed] = ()) -> tuple[Seen, ...]:
    """What a recording shows to each of the sets: a sample counts only for the query that it was taken with.

    Raises Rejected SH912 for a notice about a node that isn't in it.
    """
    told = with_assumed(recording.notices, notices, recording.at, {node.id for node in recording.fleet.nodes})
    shown = msgspec.structs.replace(recording, notices=told) if notices else recording
    found = []
    for policies in sets:
        current, remarks = fitted(shown.samples, policies, shown.at)
        history = tuple(msgspec.structs.replace(p, samples=fitted(p.samples, policies, p.at)[0]) for p in shown.history)
        found.append(Seen(recording=msgspec.structs.replace(shown, samples=current, history=history), remarks=remarks))
    return tuple(found)


def past(now: float, reach: float, tick: float) -> list[float]:
    """Instants before `now` that go back `reach` seconds, oldest first: one a tick, or further apart so that there are at most STEPS."""
    if reach <= 0:
        return []
    step = max(tick, reach / (STEPS - 1))  # the first instant lies at or beyond `reach`: one more than the steps in between
    count = int(reach / step + 1e-9) + 1
    return [now - step * k for k in range(count, 0, -1)]


def during(seen: Series, times: Sequence[float]) -> list[tuple[int, ...] | None]:
    """For each time all that the fleet was since the one before, as places in the series; None: for some of that it isn't known. For the
    last time, that of the look itself, what isn't known counts for the one before.
    """
    spells = [seen.during(before, at) for before, at in zip([times[0], *times], times, strict=False)]
    if len(spells) > 1 and spells[-1] is None:
        spells[-2] = None
    return [*spells[:-1], spells[-1] if len(spells) > 1 else None]


def history_of(
    times: Sequence[float],
    moment: float,
    spells: Sequence[tuple[int, ...] | None],
    images: Sequence[tuple[Mapping[WorkerId, Pictured], ...] | None],
    samples: Sequence[Samples],
) -> tuple[Past, ...]:
    """The last of `times`' spells, `moment`'s own, is followed by the look itself."""
    found: list[Past] = []
    for at, spell, pictured, taken in zip((*times, moment), spells, images, samples, strict=True):
        if spell is not None:
            found += [Past(at=at, samples=taken, seen=place, images=pictured) for place in spell]
        elif at < moment:
            found.append(Past(at=at, samples=taken))
    return tuple(found)


def _unheard(_views: Sequence[NodeView]) -> None:
    """Nobody has to know what agents answered."""


@contextlib.asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[World]:
    async with following(settings) as (housed, graphs), contextlib.AsyncExitStack() as stack:
        agents = named(settings, looks_on=True)
        stack.push_async_callback(agents.close)
        if housed is not None:
            housed.follow(agents, Fleet())
        if graphs is not None:
            await graphs.listed(VIEW_TIMEOUT_S)
        prometheus = await stack.enter_async_context(Prometheus(settings.prometheus.url, deadline_s=float(settings.prometheus.deadline)))
        yield World(agents, prometheus, settings.prometheus.catalog(), None, _unheard, **known(housed, graphs))


async def sampled(world: World, fleets: Sequence[Fleet], ask: Asked, times: Sequence[float], within_s: float) -> list[list[Samples]]:
    """For each set the samples at each time, of the fleet that there was then (one of `fleets` for each). The catalog is
    asked once, so that all sets see the same. The last time gets `within_s` seconds, those before it VIEW_TIMEOUT_S.
    """
    found: list[list[Samples]] = [[] for _ in ask.own]
    for at, fleet in zip(times, fleets, strict=True):
        within = within_s if at == times[-1] else VIEW_TIMEOUT_S
        common = await world.measure(fleet, ask.common, at, within_s=within)
        for index, own in enumerate(ask.own):
            if own is None:
                found[index].append(common)
            else:
                other = await world.measure(fleet, own, at, within_s=within)
                found[index].append(msgspec.structs.replace(common, policies={**common.policies, **other.policies}))
    return found


def without_later(fleet: Fleet, notices: Sequence[Notice], at: float | None) -> tuple[Fleet, tuple[Notice, ...]]:
    """The fleet without images, and the notices without those, that came after `at`; None: as they are. Notices sorted."""
    if at is not None:
        fleet = msgspec.structs.replace(fleet, images=tuple(i for i in fleet.images if i.taken_at <= at))
        notices = [n for n in notices if n.seen_at <= at]
    return fleet, tuple(sorted(notices, key=lambda n: (n.node, n.id)))


def _remembered(settings: Settings, now: float, at: float) -> tuple[EngineState, Memory]:
    """What the engine on this state directory had done by `at`, and remembers now; nothing if there never was one."""
    path, presumed = settings.state / "engine.db", gone_after(float(settings.hold), float(settings.tick))
    with looked_at(path) as store:
        if store is None:
            return EngineState(), Memory(gone_after=presumed)
        last = store.load_fleet()
        busy = frozenset(WorkerId(r.planned.worker) for r in store.active() if not r.waits)
        said = declared(path.parent)
        before = tuple(n for n in last.notices if n.source != SOURCE) if last else ()
        memory = Memory(
            fleet=last.fleet if last else None,
            notices=(*before, *said),
            ended=store.ended(),
            busy=busy,
            gone_after=presumed,
            namesakes=last.namesakes if last else {},
        )
        state = store.state(now) if at >= now else state_at(store.active(), store.recent(at - _HOUR), at)
        return state, memory


def state_at(active: Sequence[OperationRecord], ended: Sequence[OperationRecord], at: float) -> EngineState:
    """What the engine's state was at `at`, from its operations since: what ended later was under way, what began later wasn't there."""
    then = [r for r in (*active, *ended) if r.created_at <= at]
    over = [r for r in then if r.outcome is not None and r.outcome.at <= at]
    return EngineState(
        active=tuple(_as_it_was(r, at) for r in then if r.outcome is None or r.outcome.at > at),
        recent=tuple(r for r in over if r.outcome is not None and r.outcome.at >= at - _HOUR),
    )


def _as_it_was(record: OperationRecord, at: float) -> OperationRecord:
    history = tuple(step for step in record.history if step[1] <= at)
    return msgspec.structs.replace(record, outcome=None, problem=None, history=history, step=history[-1][0] if history else record.step)
