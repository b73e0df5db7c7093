"""A preview: what the engine would decide now, from the same inputs by the same function, without carrying it out.

What a running engine has seen tick by tick is read from Prometheus' history instead; what it did is read from its store.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from shunter.act.agents import AgentClient, TlsFiles
from shunter.act.store import Store
from shunter.app.gone import SOURCE, declared
from shunter.app.policies import PolicyFeed
from shunter.app.settings import Settings
from shunter.app.sources import source_of
from shunter.app.world import HOLD_MARGIN_S, Memory, World
from shunter.decide.evaluate import evaluate
from shunter.decide.hold import horizon
from shunter.lang.cel import CelRules
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import NodeId, NoticeId, WorkerId
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Notice, NoticeKind, Snapshot
from shunter.model.units import Duration, UnitError
from shunter.observe.catalog import Catalog
from shunter.observe.prometheus import Prometheus

STEPS = 60
"""Past snapshots are taken at most at so many instants."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen and decided. `unreachable` says why nodes didn't answer."""

    snapshot: Snapshot
    evaluation: Evaluation
    policies: PolicySet
    unreachable: tuple[Problem, ...]


class Assumed(msgspec.Struct, frozen=True, kw_only=True):
    """A notice that somebody asks about: it isn't there. `lead` in seconds; None: no deadline."""

    node: NodeId
    kind: NoticeKind
    lead: float | None


def assumed(text: str) -> Assumed:
    """Read `node-a=preemption:120s` or `node-a=gone`. Raises Rejected SH912."""
    node, _, rest = text.partition("=")
    kind, colon, lead = rest.partition(":")
    try:
        if not node:
            raise ValueError("the node is missing")
        return Assumed(node=NodeId(node), kind=NoticeKind(kind), lead=float(Duration.parse(lead)) if colon else None)
    except (UnitError, ValueError) as error:
        kinds = ", ".join(NoticeKind)
        raise Rejected(
            Problem(
                code="SH912",
                what=f"{text!r} is not a notice: {error}",
                remedy=f"Write NODE=KIND:LEAD, as in node-a=preemption:120s; kinds are {kinds}",
            )
        ) from error


async def preview(settings: Settings, cache: Path, notices: Sequence[Assumed] = (), *, now: float | None = None) -> Preview:
    """Look and decide once, at `now` (seconds since the epoch; None: the clock's). `cache` is a folder for a clone of the policies.

    Raises what the policy source raises; Rejected SH912 for a notice about a node that isn't in the settings. Agents and a Prometheus that
    don't answer are part of what is seen.
    """
    at = time.time() if now is None else now
    feed = PolicyFeed(source_of(settings.policies, cache), lambda: at)
    await feed.refresh()
    if feed.current is None:
        raise Retry(feed.problem or Problem(code="SH209", what="no policies could be read", remedy="Look at the policy source"))
    tls = TlsFiles(ca=settings.tls.ca, cert=settings.tls.cert, key=settings.tls.key)
    agents = {NodeId(a.node): AgentClient(NodeId(a.node), a.address, tls) for a in settings.agents}
    state, memory = _remembered(settings.state / "engine.db", at)
    memory = msgspec.structs.replace(memory, gone_after=float(settings.hold) + HOLD_MARGIN_S)
    try:
        async with Prometheus(settings.prometheus.url, deadline_s=float(settings.prometheus.deadline)) as prometheus:
            world = World(agents, prometheus, Catalog(label=settings.prometheus.label))
            inventory = await world.look(memory, at)
            known = {node.id for node in inventory.fleet.nodes}
            told = (*inventory.notices, *(_notice(one, at, known) for one in notices))
            times = past(at, horizon(feed.current), float(settings.tick))
            history = await world.history(inventory.fleet, feed.current, times)
            samples = await world.measure(inventory.fleet, feed.current, at, within_s=float(settings.prometheus.deadline))
            current = Snapshot(at=at, fleet=inventory.fleet, samples=samples, notices=tuple(sorted(told, key=lambda n: (n.node, n.id))))
    finally:
        for agent in agents.values():
            await agent.close()
    evaluation = evaluate(feed.current, [*history, current], state, at, CelRules(), settings.rates())
    return Preview(snapshot=current, evaluation=evaluation, policies=feed.current, unreachable=tuple(world.unreachable.values()))


def past(now: float, reach: float, tick: float) -> list[float]:
    """Instants before `now` that go back `reach` seconds, oldest first: one a tick, or further apart so that there are at most STEPS."""
    if reach <= 0:
        return []
    step = max(tick, reach / (STEPS - 1))  # the first instant lies at or beyond `reach`: one more than the steps in between
    count = int(reach / step + 1e-9) + 1
    return [now - step * k for k in range(count, 0, -1)]


def _notice(one: Assumed, at: float, known: set[NodeId]) -> Notice:
    if one.node not in known:
        raise Rejected(Problem(code="SH912", what=f"there is no node {one.node}", remedy=f"Nodes are {', '.join(sorted(known))}"))
    deadline = None if one.lead is None else at + one.lead
    return Notice(
        id=NoticeId(f"assumed-{one.kind}-{one.node}"), kind=one.kind, node=one.node, seen_at=at, deadline=deadline, source="assumed"
    )


def _remembered(path: Path, now: float) -> tuple[EngineState, Memory]:
    """What the engine on this state directory did and remembers; nothing if there never was one."""
    if not path.exists():
        return EngineState(), Memory()
    with closing(Store(path, read_only=True)) as store:
        last = store.load_fleet()
        busy = frozenset(WorkerId(r.planned.worker) for r in store.active() if not r.waits)
        said = declared(path.parent)
        before = tuple(n for n in last.notices if n.source != SOURCE) if last else ()
        memory = Memory(fleet=last.fleet if last else None, notices=(*before, *said), ended=store.ended(), busy=busy)
        return store.state(now), memory
