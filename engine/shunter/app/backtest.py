"""A backtest: the engine's own deciding over Prometheus' history, on the fleet that there is."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec

from shunter.app.differing import refused
from shunter.app.inputs import Asked, asked
from shunter.app.world import inputs_of
from shunter.audit.journal import Journal
from shunter.backtest.contrast import Contrasting
from shunter.backtest.run import Run
from shunter.decide.profile import Profile
from shunter.lang.bulk import BulkCelRules
from shunter.model.backtest import Backtest, Contrast
from shunter.model.errors import ShunterError
from shunter.model.policy import Policy, PolicySet
from shunter.model.record import RecordKind
from shunter.model.snapshot import Fleet, Notice, Samples, WorkerState
from shunter.model.table import SampleTable
from shunter.observe.catalog import Catalog
from shunter.observe.history import History, Ranged
from shunter.observe.moments import Moments
from shunter.observe.sample import sample
from shunter.report.words import count

_ANSWER_S = 120.0
"""How long one instant may take: once in a while a chunk of history is fetched for it."""
_BLOCK = 20
"""So many instants are decided on in one go."""
_SELDOM = 100_000
"""So many more objects must there be before the garbage collector looks at the young ones."""
_RUNNING = (WorkerState.RUNNING, WorkerState.FENCED)
_REMARKS = (
    "Workers begin where they are now, each with its newest image as if it had just been taken: where they were then isn't recorded",
    "A worker that didn't exist yet has no metrics, so nothing voluntary is decided on it",
    "Load doesn't react to what would have been done: a shift that relieves a queue doesn't shorten it here",
    "Operations succeed and take exactly their estimate; the engine's own queue, and what else happened to workers, isn't simulated",
)


_Seen: TypeAlias = tuple[float, list[Samples]]
"""An instant, and what each of the sets has seen of it."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """From `begin` to `end`, seconds since the epoch, a step every `step` seconds."""

    begin: float
    end: float
    step: float

    @property
    def times(self) -> list[float]:
        """Every instant, oldest first; the last is not after the end."""
        return [self.begin + n * self.step for n in range(int((self.end - self.begin) / self.step + 1e-9) + 1)]


class Past(NamedTuple):
    """What to step through: a fleet and what happened to it. `remarks` are what isn't known of it, in sentences."""

    fleet: Fleet
    notices: Sequence[Notice]
    span: Span
    catalog: Catalog
    profile: Profile
    remarks: Sequence[str] = ()


async def backtest(
    server: Ranged, sets: Sequence[PolicySet], past: Past, *, progress: Callable[[float], None] = lambda _share: None
) -> tuple[Backtest, ...]:
    """One for each set, over the same samples. `progress` is told the share that is done."""
    runs = _runs(sets, past, BulkCelRules())
    gaps = await _stepped(server, sets, past, partial(_play, runs), progress)
    return tuple(run.result((*past.remarks, *gaps, *_REMARKS)) for run in runs)


async def contrasted(
    server: Ranged, base: PolicySet, head: PolicySet, past: Past, *, progress: Callable[[float], None] = lambda _share: None
) -> tuple[Backtest, Backtest, Contrast]:
    """The backtests of both, and what differs between them. `progress` as in `backtest`."""
    rules = BulkCelRules()
    one, other = _runs((base, head), past, rules)
    contrast = Contrasting(head, rules, past.profile)

    def play(block: Sequence[_Seen]) -> None:
        for at, (ours, theirs) in block:
            contrast.step(one.step(at, ours), theirs)
            other.step(at, theirs)

    gaps = await _stepped(server, (base, head), past, play, progress)
    before, after = (run.result((*past.remarks, *gaps, *_REMARKS)) for run in (one, other))
    found = contrast.result(before, after)
    remarks = (*refused("the base", base), *refused("the head", head), *found.remarks)
    return before, after, msgspec.structs.replace(found, remarks=remarks)


def _runs(sets: Sequence[PolicySet], past: Past, rules: BulkCelRules) -> list[Run]:
    times, began = past.span.times, _as_it_began(past.fleet, past.span.begin)
    return [Run(s, began, past.notices, rules, past.profile, begin=times[0], end=times[-1], step=past.span.step) for s in sets]


async def _stepped(
    server: Ranged,
    sets: Sequence[PolicySet],
    past: Past,
    play: Callable[[Sequence[_Seen]], None],
    progress: Callable[[float], None],
) -> list[str]:
    """Give `play` all that was to be seen, some steps at a time. Returns what is to be said of gaps in it."""
    number = len(past.span.times)
    everybody = _all_running(_as_it_began(past.fleet, past.span.begin))
    silent = done = 0
    seen = _seen(server, asked(sets), everybody, past.span, past.catalog)
    async with contextlib.aclosing(seen) as blocks, _seldom_collected():
        async for block in blocks:
            # while one thread decides, this one goes on fetching
            await asyncio.to_thread(play, block)
            silent += sum(_says_nothing(samples[0]) for _, samples in block)
            done += len(block)
            progress(done / number)
    return [f"At {silent:,} of {number:,} steps no worker had a value of any metric"] if silent else []


async def _seen(server: Ranged, ask: Asked, fleet: Fleet, span: Span, catalog: Catalog) -> AsyncGenerator[list[_Seen], None]:
    """All instants in their order, some at a time."""
    times, bare = span.times, msgspec.structs.replace(catalog, fields=())
    common = Moments(server, fleet, times[-1], span.step, catalog=catalog, inputs=inputs_of(ask.common))
    own = [None if o is None else Moments(server, fleet, times[-1], span.step, catalog=bare, inputs=inputs_of(o)) for o in ask.own]
    pools = History(server, times[-1], span.step)
    try:
        for first in range(0, len(times), _BLOCK):
            block: list[_Seen] = []
            for at in times[first : first + _BLOCK]:
                # only the pools' own figures: what is known of each worker is by far the most, and comes as columns
                found = await sample(pools, fleet, {}, at, catalog=bare, within_s=_ANSWER_S)
                instant = await common.at(at)
                more = [(await o.at(at)).policies if o is not None else {} for o in own]
                seen = [Samples(workers=instant.workers, policies={**instant.policies, **m}, pools=found.pools) for m in more]
                block.append((at, seen))
            yield block
    finally:
        for moments in (common, *(o for o in own if o is not None)):
            await moments.aclose()


@contextlib.asynccontextmanager
async def _seldom_collected() -> AsyncGenerator[None, None]:
    """Deciding leaves no rings of objects behind, and what it keeps only grows: looking for rings takes time and finds nothing."""
    before = gc.get_threshold()
    gc.set_threshold(_SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _play(runs: Sequence[Run], block: Sequence[_Seen]) -> None:
    for at, seen in block:
        for run, samples in zip(runs, seen, strict=True):
            run.step(at, samples)


def enforced(policies: PolicySet) -> PolicySet:
    """The set as if no policy were in preview. Its commit and digest stay those of what is written."""
    return msgspec.structs.replace(policies, policies=tuple(_enforced(p) if p.mode == "preview" else p for p in policies.policies))


def _enforced(policy: Policy) -> Policy:
    document = policy.document
    spec = msgspec.structs.replace(document.spec, mode="enforce")
    return msgspec.structs.replace(policy, document=msgspec.structs.replace(document, spec=spec))


def noticed(state: Path, span: Span) -> tuple[tuple[Notice, ...], str]:
    """The notices that the audit has of that time, and what to say of where they are from."""
    try:
        with Journal(state / "audit.db", read_only=True) as journal:
            records = journal.list(kind=RecordKind.NOTICE, since=span.begin, until=span.end, limit=None)
    except ShunterError:
        return (), "Notices aren't known: there is no audit of that time here, so policies that answer notices had nothing to answer"
    found: dict[tuple[str, str], Notice] = {}
    for sealed in records:
        notice = msgspec.convert(sealed.record.body.get("notice"), Notice | None)
        if notice is not None:
            found.setdefault((notice.node, notice.id), notice)
    return tuple(
        found.values()
    ), f"Notices are the {count(len(found), 'one')} that the audit has of that time; one that was withdrawn counts as open"


def _as_it_began(fleet: Fleet, at: float) -> Fleet:
    """The fleet of now for `at`: all nodes answer, no slot is reserved, and no worker is in the middle of an operation."""
    nodes = tuple(
        msgspec.structs.replace(n, reachable=True, slots=tuple(msgspec.structs.replace(s, reserved_by=None) for s in n.slots))
        for n in fleet.nodes
    )
    workers = tuple(w if w.slot is None else msgspec.structs.replace(w, state=WorkerState.RUNNING) for w in fleet.workers)
    trusted = (i for i in fleet.images if not i.doubt)
    newest = {i.worker: i for i in sorted(trusted, key=lambda i: (i.incarnation, i.taken_at, i.id))}
    images = sorted((msgspec.structs.replace(i, taken_at=min(i.taken_at, at)) for i in newest.values()), key=lambda i: i.id)
    return Fleet(nodes=nodes, workers=workers, images=tuple(images))


def _all_running(fleet: Fleet) -> Fleet:
    """Whom to take samples of: whoever runs at some time."""
    workers = tuple(w if w.state in _RUNNING else msgspec.structs.replace(w, state=WorkerState.RUNNING) for w in fleet.workers)
    return msgspec.structs.replace(fleet, workers=workers)


def _says_nothing(samples: Samples) -> bool:
    return isinstance(samples.workers, SampleTable) and not samples.workers.anything
