"""The running engine: look, decide, record, act; every tick, and at once when an agent says that its node is going.

All state that matters is in the store, the audit and the agents: killed at any moment, the next engine goes on from there. What happens
while their disk takes no writes is in `app.degraded`.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from shunter.act.agents import AgentClient, TlsFiles
from shunter.act.execute import Executor
from shunter.act.lease import Lease
from shunter.act.run import Parts, Times
from shunter.act.scheduler import Scheduler
from shunter.act.store import Store
from shunter.act.unfence import Unfencing
from shunter.app import gone
from shunter.app.applications import Applications
from shunter.app.astray import astray
from shunter.app.audits import audit_path, shipping, write
from shunter.app.degraded import Watch, places, urgent
from shunter.app.health import Health, Metrics, serve
from shunter.app.keeping import Keeper, Keeping
from shunter.app.overtaken import overtaken
from shunter.app.policies import PolicyFeed
from shunter.app.recheck import Now
from shunter.app.room import Room, suiting
from shunter.app.settings import Settings
from shunter.app.settled import settled
from shunter.app.sightings import Sightings
from shunter.app.silence import Silence
from shunter.app.turns import Turns
from shunter.app.withdrawn import withdrawn
from shunter.app.world import HOLD_MARGIN_S, Memory, World
from shunter.audit.decisions import Tracker
from shunter.audit.inputs import inputs_path
from shunter.audit.trail import Trail
from shunter.decide.evaluate import evaluate
from shunter.decide.hold import horizon
from shunter.lang.bulk import BulkCelRules
from shunter.model.canon import plain
from shunter.model.errors import Problem, ShunterError, Stalled
from shunter.model.ids import Commit, Epoch, NodeId, NoticeId, OperationId, WorkerId, node_of
from shunter.model.operation import OperationRecord
from shunter.model.plan import Evaluation, PlannedOperation
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from shunter.model.sample import Known, say
from shunter.model.snapshot import Fleet, Notice, Samples, Snapshot
from shunter.observe.prometheus import Prometheus

HISTORY_MARGIN_S = 15.0
"""Snapshots are kept for the longest `for` of the policies and this much more."""
URGENT_METRICS_S = 0.1
"""How long a tick waits for metrics when a notice is new: what is involuntary never waits for them."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a tick has to show to people: see `Engine.on_tick`."""

    snapshot: Snapshot
    evaluation: Evaluation
    policies: PolicySet
    plan_changed: bool


class Engine:
    """One engine process. `run` returns when `stop` is set.

    `on_tick`, `on_step` and `on_problem` are for people (the command line prints them); they must not raise.
    """

    def __init__(
        self,
        settings: Settings,
        feed: PolicyFeed,
        *,
        clock: Callable[[], float] = time.time,
        on_tick: Callable[[Told], None] = lambda _told: None,
        on_step: Callable[[OperationRecord], None] = lambda _record: None,
        on_problem: Callable[[Problem], None] = lambda _problem: None,
        decides: bool = True,
    ) -> None:
        """Without `decides` it carries out what was begun or is handed to it, and plans nothing of its own; but what is involuntary, while
        `hurries` is set.
        """
        self.decides, self.hurries = decides, False
        self.settings, self.feed, self.clock = settings, feed, clock
        self.on_tick, self.on_step, self.on_problem = on_tick, on_step, on_problem
        self.metrics = Metrics()
        self.health = Health(self.metrics)
        self.rules = BulkCelRules()
        self.profile = settings.rates()
        self._snapshots: deque[Snapshot] = deque()
        self._tracker = Tracker()
        self._fleet = Fleet()
        self._notices: tuple[Notice, ...] = ()
        self._wake = asyncio.Event()
        self._said: dict[str, Problem] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Lead until `stop` is set. Raises Rejected SH507 when another engine does; Stalled when state can't be written at the start, and
        SH911 when the health port is taken.
        """
        state = self.settings.state
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        sizes = suiting(state)
        audit = self.settings.audit
        own = () if audit.database else (audit_path(state),)
        room = Room(state, (state / "engine.db", *own), sizes)
        with contextlib.ExitStack() as stack:
            stack.callback(room.close)
            store = stack.enter_context(contextlib.closing(Store(state / "engine.db", wal_pages=sizes.wal_pages)))
            lease = stack.enter_context(Lease(state / "engine.lock", store))
            journal = stack.enter_context(write(state, audit, sizes.wal_pages))
            keeper = Keeper(inputs_path(audit_path(state)), audit, journal.redaction, self.feed.read, self.clock)
            stack.callback(keeper.close)
            shipper = shipping(state, audit)
            if shipper is not None:
                stack.callback(shipper.close)
                shipper.start()
            trail = Trail(journal, self.clock)
            room.hold()
            watch = Watch(store, trail, room, state, self.clock)
            if self.settings.listen:
                stack.callback(self._serve())
            agents = {NodeId(a.node): AgentClient(NodeId(a.node), a.address, _tls(self.settings)) for a in self.settings.agents}
            prometheus = Prometheus(self.settings.prometheus.url, deadline_s=float(self.settings.prometheus.deadline))
            try:
                await _Leading(self, store, lease, trail, watch, agents, prometheus, Keeping(audit, journal, keeper, shipper)).run(stop)
            finally:
                await asyncio.gather(*(agent.close() for agent in agents.values()), prometheus.aclose())

    def pretends(self, operation: PlannedOperation) -> bool:
        """A node that the operation is about doesn't really move anything."""
        slots = (operation.from_slot, operation.to_slot, operation.expect.at)
        about = {node_of(slot) for slot in slots if slot} | set(operation.copies)
        return any(node.runtime == "pretend" for node in self._fleet.nodes if node.id in about)

    def _serve(self) -> Callable[[], None]:
        try:
            return serve(self.settings.listen, self.metrics, self.health)
        except (OSError, ValueError) as error:
            problem = Problem(
                code="SH911", what=f"can't listen: {error}", remedy="Change `listen` in the settings", subject=self.settings.listen
            )
            raise Stalled(problem) from error


class _Leading:
    """The engine while it leads: what `Engine.run` opened, and the loops over it."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        lease: Lease,
        trail: Trail,
        watch: Watch,
        agents: Mapping[NodeId, AgentClient],
        prometheus: Prometheus,
        keeping: Keeping | None = None,
    ) -> None:
        self.e, self.store, self.lease, self.trail, self.watch, self.agents = engine, store, lease, trail, watch, agents
        self.keeping = keeping
        self.epoch: Epoch = lease.epoch
        self.world = World(agents, prometheus, engine.settings.prometheus.catalog())
        self.fresh: set[NoticeId] = set()
        """Notices that came since the last tick."""
        self.told_commit: Commit | None = None
        """Of the newest policy set that has its record."""
        self.meanwhile: list[OperationRecord] = []
        """Operations that ended since the last look began."""
        self.gone: frozenset[NodeId] = frozenset()
        """Nodes that are dead for good, by the last look."""
        self.silence = Silence()
        self.sightings = Sightings(engine.settings.state, float(engine.settings.tick))
        self.in_force: PolicySet | None = None
        """The policies of the last tick."""
        self.looked_at: float | None = None
        self.measured_at: float | None = None
        parts = Parts(
            store=store,
            agents=agents,
            fleet=lambda: self.e._fleet,
            audit=watch.audit,
            clock=engine.clock,
            sleep=asyncio.sleep,
            gone=lambda node: node in self.gone,
            astray=lambda planned: astray(planned, self.e._notices),
            progress=self._progress,
            times=Times(hold=float(engine.settings.hold)),
        )
        self.executor = Executor(parts, self.epoch)
        self.scheduler = Scheduler(self.executor, voluntary=engine.settings.limits.voluntary, on_error=self._unsettled)
        self.turns = Turns(engine.settings.state, self.epoch)
        self.unfencing = Unfencing(
            parts,
            self.epoch,
            record=lambda worker, what, body: self._record(RecordKind.ENGINE, worker, what, body),
            tell=lambda worker, problem: self._tell_or_clear(f"fenced {worker}", problem),
        )
        self.applications = Applications(
            engine.settings.state, store, self.scheduler.accept, lambda plan, what, body: self._record(RecordKind.PLAN, plan, what, body)
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Recover what was under way, then tick until told to stop."""
        e = self.e
        e.metrics.epoch.set(self.epoch)
        remembered = self.store.load_fleet()
        if remembered:
            e._fleet = settled(remembered.fleet, self.store.recent(remembered.at - 1.0))
            e._notices = remembered.notices
        self._check_disk()
        self._record(RecordKind.ENGINE, "engine", f"leads at epoch {self.epoch}")
        await self._follow_policies_once()
        await self._look(e.clock())
        # taken up by the first tick's pump, beside looking and deciding: a drain may take until its deadline
        for record in self.store.adopt(self.epoch):
            self._record(
                RecordKind.ENGINE, record.id, f"takes over {record.planned.kind.value} of {record.planned.worker} at {record.step.value}"
            )
        helpers = [asyncio.create_task(self._follow_policies(), name="policies")]
        helpers += [asyncio.create_task(self._watch(node), name=f"watch {node}") for node in self.agents]
        try:
            await self._loop(stop, helpers)
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self.scheduler.stop()
            await self.unfencing.stop()
            self.turns.note(())
            self.sightings.close()
            self._record(RecordKind.ENGINE, "engine", "stopped")
            lost = self.watch.farewell()
            if lost is not None:
                e.on_problem(lost)

    async def _loop(self, stop: asyncio.Event, helpers: list[asyncio.Task[None]]) -> None:
        e = self.e
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                began = time.monotonic()
                e._wake.clear()
                if not self.lease.held():
                    raise Stalled(
                        Problem(
                            code="SH508",
                            what="the lock file isn't ours any more",
                            remedy="Start one engine on a state directory",
                            subject="engine.lock",
                        )
                    )
                try:
                    await self._tick(e.clock())
                except Stalled as error:
                    # The store can't even be read, or something voluntary met a disk that takes no writes: it must be visible.
                    self._tell(error.problem)
                e.metrics.tick_seconds.observe(time.monotonic() - began)
                for task in helpers:
                    if task.done() and task.exception():
                        task.result()
                left = max(0.0, float(e.settings.tick) - (time.monotonic() - began))
                waking = asyncio.create_task(e._wake.wait())
                await asyncio.wait([stopping, waking], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
        finally:
            stopping.cancel()

    # -- one tick

    async def _tick(self, now: float) -> None:
        e = self.e
        self._check_disk()
        snapshot, policies = await self._snapshot(now)
        self._ages(now)
        if policies is not None:
            self._take_back(policies)
        self._make_way(now)
        self.unfencing.look(e._fleet, e._notices, now)
        self._apply(now, policies)
        if policies is None or not (e.decides or e.hurries):
            self.scheduler.pump()
            return
        e._snapshots.append(snapshot)
        while e._snapshots and now - e._snapshots[0].at > horizon(policies) + HISTORY_MARGIN_S:
            e._snapshots.popleft()
        if self.watch.now is None:  # a full disk is for what must be remembered
            self._tell_or_clear("sightings", self.sightings.note(snapshot, horizon(policies)))
        state = self.store.state(now)
        with e.metrics.decide_seconds.time():
            evaluation = evaluate(policies, list(e._snapshots), state, now, e.rules, e.profile)
        plan = evaluation.plan if e.decides and self.store.healthy else urgent(evaluation.plan)
        if not e.decides and not plan.operations:
            self.scheduler.pump()
            return
        told = self._account(evaluation, now, snapshot.fleet)
        if self.keeping and self.watch.now is None:
            self.keeping.keeper.offer(told, evaluation, policies, e._snapshots, state, e.profile)
            self._tell_or_clear("audit's upkeep", self.keeping.house(now))
            self._tell_or_clear("audit's collector", self.keeping.unsent)
        for verdict in ("act", "hold", "inconclusive", "pass"):
            e.metrics.findings.labels(verdict).set(sum(f.verdict.value == verdict for f in evaluation.findings))
        e.on_tick(Told(snapshot=snapshot, evaluation=evaluation, policies=policies, plan_changed=_has_plan(told)))
        self.scheduler.offer(plan)
        self.turns.note(self.scheduler.waiting)

    def _apply(self, now: float, policies: PolicySet | None) -> None:
        """Look at the plans that were handed over. On a disk that takes no writes they wait."""
        try:
            fleet, notices = self.e._fleet, self.e._notices
            self.applications.settle(Now(at=now, policies=policies, fleet=fleet, notices=notices, active=self.store.active()))
        except Stalled as error:
            self._tell(error.problem)

    def _take_back(self, policies: PolicySet) -> None:
        """Give up what a newer commit doesn't want: what is under way goes to a safe point, what waits is dropped. What couldn't be given
        up is tried again at the next tick.
        """
        if self.in_force is None or self.in_force.commit != policies.commit:
            given_up = [self._give_up(*one) for one in withdrawn(self.store.active(), self.in_force, policies)]
            if not all(given_up):
                return
        self.in_force = policies

    def _make_way(self, now: float) -> None:
        """Give up what a notice has overtaken."""
        for operation, because in overtaken(self.store.active(), self.e._notices, now):
            self._give_up(operation, because)

    def _give_up(self, operation: OperationId, because: str) -> bool:
        """False, and told, when that can't be written: a disk that takes no writes keeps nothing else from being decided."""
        try:
            self.scheduler.cancel(operation, because)
        except Stalled as error:
            self._tell(error.problem)
            return False
        return True

    def _account(self, evaluation: Evaluation, now: float, fleet: Fleet) -> tuple[Record, ...]:
        """Record what changed in the decisions. What can be told later is, when too much waits for the disk."""
        if self.trail.crowded:
            return ()
        self.e._tracker, records = self.e._tracker.observe(evaluation, now, self.epoch, fleet)
        self.trail.add(records)
        return records

    def _check_disk(self) -> None:
        wrong = self.watch.check()
        self.e.health.disk(wrong)
        if wrong is None:
            gone.set_aside(self.e.settings.state)
        self._tell_or_clear("engine's disk", wrong.problem if wrong is not None else None)

    async def _snapshot(self, now: float) -> tuple[Snapshot, PolicySet | None]:
        e = self.e
        policies = e.feed.current
        urgent = bool(self.fresh)
        self.fresh.clear()
        await self._look(now)
        if policies is None or not (e.decides or e.hurries):
            return Snapshot(at=now, fleet=e._fleet, notices=e._notices), policies
        within = URGENT_METRICS_S if urgent else float(e.settings.prometheus.deadline)
        samples: Samples = await self.world.measure(e._fleet, policies, now, within_s=within)
        self._measured(samples, now)
        return Snapshot(at=now, fleet=e._fleet, samples=samples, notices=e._notices), policies

    def _measured(self, samples: Samples, now: float) -> None:
        """Note whether metrics come at all. A fleet without a live worker has none, and lacks none."""
        if not samples.workers or any(isinstance(s, Known) for fields in samples.workers.values() for s in fields.values()):
            self.measured_at = now
            self._tell_or_clear("metrics", None)
            return
        why = next(s for fields in samples.workers.values() for s in fields.values())
        what = f"no worker has a fresh value of any metric: {say(why)}"
        self._tell_or_clear("metrics", Problem(code="SH530", what=what, remedy="Look at Prometheus and its scrapes", subject="metrics"))

    async def _look(self, now: float) -> None:
        e = self.e
        active = self.store.active()
        busy = frozenset(WorkerId(r.planned.worker) for r in active if not r.waits)
        before = {n.id for n in e._notices}
        said = gone.declared(e.settings.state)
        known = tuple(n for n in e._notices if n.source != gone.SOURCE)
        memory = Memory(
            fleet=e._fleet,
            notices=(*known, *said),
            ended=self.store.ended(),
            busy=busy,
            gone_after=float(e.settings.hold) + HOLD_MARGIN_S,
            silent=self.silence.lasts(),
        )
        self.meanwhile.clear()
        inventory = await self.world.look(memory, now)
        self.silence.looked(self.world.unreachable, inventory.notices, now)
        # what ended while we looked is news to what was seen
        inventory = msgspec.structs.replace(inventory, fleet=settled(inventory.fleet, self.meanwhile))
        answering = frozenset(self.agents) - frozenset(self.world.unreachable)
        for problem in gone.void(said, answering):
            self._tell(problem)
        self._remember(inventory.fleet, inventory.notices, now)
        e._fleet, e._notices, self.gone = inventory.fleet, inventory.notices, inventory.gone
        if len(self.world.unreachable) < len(self.agents):
            self.looked_at = now
        for node in self.agents:
            self._tell_or_clear(f"agent {node}", self.world.unreachable.get(node))
            if node not in self.world.unreachable:
                self._tell_or_clear(f"clock {node}", inventory.clocks.get(node))
        for seen in inventory.fleet.nodes:
            self._tell_or_clear(f"notices {seen.id}", next(iter(seen.problems), None))
        for problem in inventory.problems:
            self._tell(problem)
        for notice in inventory.notices:
            if notice.id not in before:
                self._record(RecordKind.NOTICE, notice.node, f"{notice.kind.value} of {notice.node}", {"notice": plain(notice)})

    def _remember(self, fleet: Fleet, notices: tuple[Notice, ...], now: float) -> None:
        e = self.e
        if (fleet, notices) == (e._fleet, e._notices):
            return
        if self.watch.now is None or notices != e._notices or places(fleet) != places(e._fleet):  # not each tick on a disk that is full
            self.store.save_fleet(fleet, notices, now)

    def _ages(self, now: float) -> None:
        def age(at: float | None) -> float | None:
            return None if at is None else now - at

        self.e.health.update({"policies": self.e.feed.age(now), "inventory": age(self.looked_at), "metrics": age(self.measured_at)})
        self.e.metrics.problems.set(len(self.e.feed.current.problems) if self.e.feed.current else 0)

    # -- what runs beside the ticks

    async def _follow_policies(self) -> None:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        close = self.e.feed.watch(lambda: void(loop.call_soon_threadsafe(changed.set)))
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), float(self.e.settings.policies.poll))
                changed.clear()
                await self._follow_policies_once()
        finally:
            await asyncio.to_thread(close)

    async def _follow_policies_once(self) -> None:
        feed = self.e.feed
        await feed.refresh()
        self._tell_or_clear("policies", feed.problem)
        if feed.current and feed.current.commit != self.told_commit:
            body = {
                "policies": [p.name for p in feed.current.policies],
                "problems": plain(feed.current.problems),
                "signed_by": feed.signed_by,
            }
            what = f"{len(feed.current.policies)} policies in force, {len(feed.current.problems)} problems"
            self._record(RecordKind.POLICIES, feed.current.commit, what, body)
            self.told_commit = feed.current.commit
            if self.keeping:
                self.keeping.keeper.learn(feed.current)
            for problem in feed.current.problems:
                self.e.on_problem(problem)
            self.e._wake.set()

    async def _watch(self, node: NodeId) -> None:
        """Wake the engine for each notice. The stream only makes it faster: every tick asks for the whole inventory anyway."""
        while True:
            with contextlib.suppress(ShunterError):
                async for event in self.agents[node].watch(self.epoch):
                    if event.HasField("notice"):
                        self.fresh.add(NoticeId(event.notice.id))
                        self.e._wake.set()
                    elif event.HasField("exit"):
                        self.e._wake.set()
            await asyncio.sleep(float(self.e.settings.tick))

    # -- small parts

    def _progress(self, record: OperationRecord) -> None:
        if record.outcome:
            kind = record.planned.kind.value
            self.e.metrics.operations.labels(kind, record.outcome.status.value).inc()
            if record.outcome.measured.stopped is not None:
                self.e.metrics.stopped.labels(kind).observe(record.outcome.measured.stopped)
            self.meanwhile.append(record)
            self.e._fleet = settled(self.e._fleet, [record])
            self.e._wake.set()
        self.e.on_step(record)

    def _unsettled(self, _operation: OperationId, error: ShunterError) -> None:
        self._tell(error.problem)

    def _tell_or_clear(self, key: str, problem: Problem | None) -> None:
        """Record and say that an input went away or came back, once each."""
        before = self.e._said.get(key)
        if problem is None:
            if before is not None:
                del self.e._said[key]
                self._record(RecordKind.SOURCE, key, "is back")
        elif before is None or (before.code, before.subject) != (problem.code, problem.subject):  # another commit refused is news
            self.e._said[key] = problem
            self.e.on_problem(problem)
            self._record(RecordKind.SOURCE, key, problem.what, {"problem": plain(problem)})

    def _tell(self, problem: Problem) -> None:
        """Say a problem once for as long as it is the same."""
        key = f"{problem.code} {problem.subject}"
        if self.e._said.get(key) != problem:
            self.e._said[key] = problem
            self.e.on_problem(problem)

    def _record(self, kind: RecordKind, subject: str, what: str, body: Mapping[str, object] | None = None) -> None:
        commit = self.e.feed.current.commit if self.e.feed.current else None
        record = Record(at=self.e.clock(), kind=kind, subject=subject, what=what, epoch=self.epoch, commit=commit, body=dict(body or {}))
        self.trail.add([record])


def _has_plan(records: tuple[Record, ...]) -> bool:
    return any(record.kind is RecordKind.PLAN for record in records)


def void(_value: object) -> None:
    """Drop a result."""


def _tls(settings: Settings) -> TlsFiles:
    return TlsFiles(ca=settings.tls.ca, cert=settings.tls.cert, key=settings.tls.key)
