"""The engine while it leads: look, decide, record, act; every tick, and at once when an agent says that its node is going.

All state that matters is in the store, the audit and the agents: killed at any moment, the next engine goes on from there. What happens
while their disk takes no writes is in `app.degraded`.
"""

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from shunter.act.beside import Beside
from shunter.act.execute import Executor
from shunter.act.freeing import Freeing
from shunter.act.lease import Leadership
from shunter.act.run import Parts, Times
from shunter.act.scheduler import Scheduler
from shunter.act.store import Store
from shunter.act.unfence import Unfencing
from shunter.app import gone
from shunter.app.applications import Applications
from shunter.app.aside import Aside, Breathing
from shunter.app.astray import astray
from shunter.app.collector import Sweeping, paused
from shunter.app.degraded import Watch, urgent
from shunter.app.digests import Digests
from shunter.app.drifting import Drifting
from shunter.app.duty import Duty, Told
from shunter.app.following import Following
from shunter.app.graphs import Graphs, known
from shunter.app.heeding import Haste, Heard, Heeding
from shunter.app.housed import Housed
from shunter.app.keeping import Keeping
from shunter.app.looking import Seen
from shunter.app.origins import Origins
from shunter.app.overtaken import overtaken
from shunter.app.preview import Preview, decided
from shunter.app.recheck import Now
from shunter.app.roster import Roster
from shunter.app.sendings import Sendings
from shunter.app.showing import Showing
from shunter.app.sight import Sight
from shunter.app.sightings import Sightings
from shunter.app.standing import Standing
from shunter.app.turns import Turns
from shunter.app.voice import Voice
from shunter.app.wishes import Wishes
from shunter.app.withdrawn import withdrawn
from shunter.app.world import World
from shunter.audit.decisions import Tracker
from shunter.audit.trail import Trail
from shunter.decide.allowed import not_allowed
from shunter.decide.evaluate import evaluate
from shunter.decide.hold import horizon
from shunter.decide.memory import Memory
from shunter.model.canon import plain
from shunter.model.errors import Rejected, ShunterError, Stalled
from shunter.model.finding import Verdict, tally
from shunter.model.ids import Epoch, NodeId, OperationId, WorkerId
from shunter.model.operation import OperationRecord, Step
from shunter.model.plan import Evaluation, Plan, PlannedOperation
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Notice, Samples, Snapshot
from shunter.observe.prometheus import Prometheus
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert

HISTORY_MARGIN_S = 15.0
"""Snapshots are kept for the longest `for` of the policies and this much more."""
AT_ONCE = 32
"""Records of a tick that are written at a time, which takes some 10 ms."""
TICK_AFTER_S = 0.2
"""Seconds from an order that a notice asked for to the next tick."""
News: TypeAlias = tuple[Tracker, tuple[Record, ...]]
"""What a tick's decisions leave to compare with, and the records of what changed in them."""


class Leading:
    """The engine while it leads: what `Engine.run` opened, and the loops over it."""

    def __init__(
        self,
        duty: Duty,
        store: Store,
        lease: Leadership,
        trail: Trail,
        watch: Watch,
        agents: Roster,
        prometheus: Prometheus,
        keeping: Keeping | None = None,
        housed: Housed | None = None,
        origins: Origins | None = None,
        graphs: Graphs | None = None,
        aside: Aside | None = None,
    ) -> None:
        self.duty, self.store, self.lease, self.trail, self.watch, self.agents = duty, store, lease, trail, watch, agents
        self.keeping, self.housed, self.graphs = keeping, housed, graphs
        self.epoch: Epoch = lease.epoch
        self.voice = Voice.of(duty, trail, self.epoch)
        self.prometheus = prometheus
        self.aside = aside or Aside()
        self.heeding = Heeding(duty, self.epoch, self.aside.breathe)
        self.haste = Haste(self.aside)
        self.standing = Standing(
            duty, agents, self.epoch, store, call=self.aside.call, tell=self.voice.tell_or_clear, add=trail.add, breathe=self.aside.breathe
        )
        world = World(agents, prometheus, duty.settings.prometheus.catalog(), self.aside, self.standing.learn, **known(housed, graphs))
        self.sight = Sight(duty, store, watch, world, agents, self.voice, self.aside, self.standing.knows)
        self.origins = origins or Origins()
        self.following = Following(duty, self.voice, self._learn)
        self.sightings = Sightings(duty.settings.state, float(duty.settings.tick), self.aside.breathe)
        self.snapshots: deque[Snapshot] = deque()
        """Those behind the policies' `for`, oldest first."""
        self.tracker = Tracker()
        self.memory = Memory()
        """Indexes over the snapshots behind every `for`: only the newest one is indexed in a tick."""
        self.rules = Breathing(duty.rules, self.aside.breathe)
        """The same for each tick: their answers on earlier snapshots are in the memory, and are theirs alone."""
        self.in_force: PolicySet | None = None
        """The policies of the last tick."""
        parts = Parts(
            store=store,
            agents=agents,
            fleet=lambda: self.duty.scene.fleet,
            audit=watch.audit,
            audits=watch.audits,
            clock=duty.clock,
            sleep=asyncio.sleep,
            gone=lambda node: node in self.sight.gone,
            astray=lambda planned: astray(planned, self.duty.scene.notices, self.duty.clock()),
            progress=self._progress,
            lead=lease,
            places=housed.places if housed is not None else None,
            replicas=graphs.replicas if graphs is not None else None,
            router=graphs.router if graphs is not None else None,
            starts=graphs.starts if graphs is not None else None,
            times=Times(hold=float(duty.settings.hold)),
        )
        self.executor = Executor(parts, self.epoch)
        self.scheduler = Scheduler(
            self.executor,
            voluntary=duty.settings.limits.voluntary,
            on_error=self._unsettled,
            note=lambda records: self.aside.later(lambda: self._write(records)),
        )
        self.tidying = Beside(duty.clock, lambda about, problem: self.voice.tell_or_clear(f"tidying {about}", problem))
        self.showing: Showing | None = None
        if housed is not None:
            duty.health.explain("inventory", lambda: housed.estate().doubt)
            orders = Beside(duty.clock, lambda about, problem: self.voice.tell_or_clear(f"readiness of {about}", problem))

            def busy() -> set[WorkerId]:
                return {r.planned.worker for r in store.active() if not r.waits}

            self.showing = Showing(orders, housed.estate, housed.places, busy, parts.still_leads)
        self.watching: dict[NodeId, asyncio.Task[None]] = {}
        self.drifting = Drifting(self.voice.tell_or_clear)
        self.turns = Turns(duty.settings.state, self.epoch)
        self.sendings = Sendings(duty.settings.state, self.epoch, duty.clock, lease.show)
        self.unfencing = Unfencing(
            parts,
            self.epoch,
            record=lambda worker, what, body: self.voice.record(RecordKind.ENGINE, worker, what, body),
            tell=lambda worker, problem: self.voice.tell_or_clear(f"fenced {worker}", problem),
        )
        self.freeing = Freeing(
            parts,
            self.epoch,
            record=lambda slot, what, body: self.voice.record(RecordKind.ENGINE, slot, what, body),
            tell=lambda slot, problem: self.voice.tell_or_clear(f"reserved {slot}", problem),
        )
        self.wishes = Wishes(
            duty.settings.state,
            store,
            cancel=self.scheduler.cancel,
            tell=lambda operation, what, body: self.voice.record(RecordKind.ENGINE, operation, what, body),
        )
        self.applications = Applications(
            duty.settings.state,
            store,
            decide=lambda policies, recording: decided(policies, Seen(recording=recording), duty.profile, self.rules),
            note=self._note,
            accept=self._accept,
            tell=lambda plan, what, body: self.voice.record(RecordKind.PLAN, plan, what, body),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Recover what was under way, then tick until told to stop."""
        self.aside.start()
        try:
            await self._lead(stop)
        finally:
            self.haste.end()
            await self.aside.do(self.prometheus.aclose)  # it belongs to the thread's loop
            self.aside.close()

    async def _lead(self, stop: asyncio.Event) -> None:
        duty = self.duty
        duty.metrics.epoch.set(self.epoch)
        self.sight.recall()
        if self.housed is not None:
            self.housed.recall(self.duty.scene.fleet, self.store.recent(0.0))
        self.check_disk()
        ended = self.keeping.untold(self.store.recent) if self.keeping is not None else ()
        self.voice.record(RecordKind.ENGINE, "engine", f"leads at epoch {self.epoch}")
        for record in ended:
            self.executor.tell_end(record)
        await self.following.once()
        self._find()
        await self.sight.look(duty.clock())
        # taken up by the first tick's pump, beside looking and deciding: a drain may take until its deadline
        for record in self.store.adopt(self.epoch):
            self.voice.record(
                RecordKind.ENGINE, record.id, f"takes over {record.planned.kind.value} of {record.planned.worker} at {record.step.value}"
            )
        helpers = [asyncio.create_task(self.following.run(), name="policies")]
        try:
            await self._loop(stop, helpers)
        finally:
            helpers += self.watching.values()
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self.tidying.stop()
            if self.showing is not None:
                await self.showing.stop()
            await self.scheduler.stop()
            await self.unfencing.stop()
            await self.freeing.stop()
            await self.standing.stop()
            self.turns.note(())
            await self.aside.call(self.sightings.close)  # and before it, what was left to be written later
            self.voice.record(RecordKind.ENGINE, "engine", "stopped")
            lost = self.watch.farewell()
            if lost is not None:
                duty.on_problem(lost)

    async def _loop(self, stop: asyncio.Event, helpers: list[asyncio.Task[None]]) -> None:
        duty = self.duty
        stopping = asyncio.create_task(stop.wait())
        with Sweeping(time.monotonic) as sweeping, contextlib.ExitStack() as ends:
            ends.callback(stopping.cancel)
            while not stop.is_set():
                began = time.monotonic()
                duty.wake.clear()
                if not self.lease.held():
                    raise Stalled(self.lease.lost)
                try:
                    await self.tick(duty.clock())
                except Stalled as error:
                    # The store can't even be read, or something voluntary met a disk that takes no writes: it must be visible.
                    self.voice.tell(error.problem)
                if not self.haste.on:
                    sweeping.sweep()
                duty.metrics.tick_seconds.observe(time.monotonic() - began)
                for task in (*helpers, *self.watching.values()):
                    if task.done() and task.exception():
                        task.result()
                left = max(0.0, float(duty.settings.tick) - (time.monotonic() - began))
                waking = asyncio.create_task(duty.wake.wait())
                await asyncio.wait([stopping, waking], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()

    # -- one tick

    async def tick(self, now: float) -> None:
        """Look, decide, record, act, once."""
        duty = self.duty
        self.check_disk()
        for about, trouble in self.lease.troubles.items():
            self.voice.tell_or_clear(about, trouble)
        self._find()
        news = await self.sight.look(now)
        self._make_way(now)
        if news:  # of which no stream has told
            self._hurry_quietly(now, seen=duty.scene.fleet)
        policies = duty.feed.current  # only now: a silent agent takes seconds, in which a newer commit may have come
        began = self.heeding.number
        await self._get_ready(policies, now)
        snapshot = await self.sight.snapshot(policies, now)
        self._ages(now)
        if policies is not None:
            self.origins.learn(policies)
            self.take_back(policies)
        self.unfencing.look(duty.scene.fleet, duty.scene.notices, now)
        self.freeing.look(duty.scene.fleet)
        await self._apply(snapshot, now, policies)
        if policies is None or not duty.looks_ahead:
            self.scheduler.pump()
            return
        await self._decide(snapshot, policies, now, began)

    async def _get_ready(self, policies: PolicySet | None, now: float) -> None:
        """For the next notice, with what was just seen."""
        if policies is None or not self.duty.looks_ahead:
            return
        fleet, state = self.duty.scene.fleet, self.sight.state(now)
        self.heeding.begin()
        self.heeding.take(await self.aside.call(lambda: self.heeding.get_ready(fleet, policies, state, now)))
        self.sight.seen()

    async def _decide(self, snapshot: Snapshot, policies: PolicySet, now: float, began: int) -> None:
        duty = self.duty
        self.snapshots.append(snapshot)
        while self.snapshots and now - self.snapshots[0].at > horizon(policies) + HISTORY_MARGIN_S:
            self.snapshots.popleft()
        if self.watch.now is None:  # a full disk is for what must be remembered
            unkept = await self.aside.call(lambda: self.sightings.note(snapshot, horizon(policies)))
            self.voice.tell_or_clear("sightings", unkept)
        state, snapshots, crowded = self.sight.state(now), list(self.snapshots), self.trail.crowded
        ready = self.heeding.ready
        digests, indexed = (ready.digests.copy(), ready.memory) if ready is not None else (Digests(self.aside.breathe), Memory())

        def weigh() -> tuple[Evaluation, News | None, Counter[Verdict]]:
            digests.take(snapshot)
            self.memory.learn(indexed)
            with paused(), duty.metrics.decide_seconds.time():
                found = evaluate(policies, snapshots, state, now, self.rules, duty.profile, self.memory, self.aside.breathe)
            news = None if crowded else self.tracker.observe(found, now, self.epoch, snapshot.fleet, self.aside.breathe)
            self.aside.breathe()
            return found, news, tally(found.findings)

        evaluation, news, verdicts = await self.aside.call(weigh)
        self.heeding.measured(snapshot, digests, self.memory.beside())
        if self.heeding.overtook(began):  # what a notice asks for is ordered already; this was decided without it
            duty.wake.set()
            self.scheduler.pump()
            return
        plan = evaluation.plan if duty.decides and self.store.healthy else urgent(evaluation.plan)
        if not duty.decides and not plan.operations:
            self.scheduler.pump()
            return
        told = await self.account(news)
        if self.keeping and self.watch.now is None:
            self.keeping.keeper.offer(told, evaluation, policies, snapshots, state, duty.profile)
            self.voice.tell_or_clear("audit's upkeep", self.keeping.house(now))
            self.voice.tell_or_clear("audit's collector", self.keeping.unsent)
        for verdict in Verdict:
            duty.metrics.findings.labels(verdict.value).set(verdicts[verdict])
        self.executor.parts.still_leads()  # what is told goes into statuses, and the next engine writes those by now
        duty.on_tick(Told(snapshot=snapshot, evaluation=evaluation, policies=policies, plan_changed=_has_plan(told)))
        if self.heeding.overtook(began):
            duty.wake.set()
            return
        self.heeding.kept_up()
        if not self._still(policies):  # a newer commit has come while this was decided: what can wait is decided by that
            plan = urgent(plan)
            duty.wake.set()
        self.origins.planned(plan)
        self._offer(plan)
        self.standing.look(policies, snapshot, state, now)
        self.turns.note(self.scheduler.waiting)

    def _still(self, policies: PolicySet) -> bool:
        now = self.duty.feed.current
        return now is not None and (now.commit, now.digest) == (policies.commit, policies.digest)

    def _learn(self, policies: PolicySet) -> None:
        """What it doesn't want isn't begun any more, whatever the tick that goes on at this moment decides."""
        self.origins.learn(policies)
        self.take_back(policies)
        self.scheduler.withdraw(policies)
        if self.keeping:
            self.keeping.keeper.learn(policies)

    def _accept(self, plan: Plan) -> None:
        self.origins.planned(plan)
        self.scheduler.accept(plan)

    def _note(self, found: Preview) -> None:
        """A decision that was made elsewhere is carried out here."""
        assert found.recording is not None
        assert found.known is not None
        now, fleet = self.duty.clock(), found.snapshot.fleet
        records = self.tracker.carried(found.evaluation, now, self.epoch, fleet)
        self._write(records)
        self.aside.later(lambda: self._write(self.tracker.besides(found.evaluation, now, self.epoch, fleet)))
        if self.keeping and self.watch.now is None:
            made_on = found.known.snapshots, found.recording.state, found.recording.profile or self.duty.profile
            self.keeping.keeper.offer(
                records, found.evaluation, found.policies, *made_on, unknown=found.known.unknown, unpictured=found.known.unpictured
            )

    async def _apply(self, snapshot: Snapshot, now: float, policies: PolicySet | None) -> None:
        """Look at the plans that were handed over. On a disk that takes no writes they wait."""
        if not self.applications.wait() or not self.store.healthy or self.watch.now is not None:
            return
        await self.aside.call(lambda: self.applications.weigh(policies))
        state = self.sight.state(now)

        def budgets(operations: Sequence[PlannedOperation]) -> Mapping[OperationId, str]:
            if policies is None:
                return {}
            return not_allowed(operations, policies, [*self.snapshots, snapshot], state, now, self.rules, self.duty.profile)

        try:
            fleet, notices = self.duty.scene.fleet, self.duty.scene.notices
            world = Now(at=now, policies=policies, fleet=fleet, notices=notices, active=state.active, budgets=budgets)
            self.applications.settle(world)
        except Stalled as error:
            self.voice.tell(error.problem)

    def take_back(self, policies: PolicySet) -> None:
        """Give up what a newer commit doesn't want: what is under way goes to a safe point, what waits is dropped. What couldn't be given
        up is tried again at the next tick.
        """
        if self.in_force is None or self.in_force.commit != policies.commit:
            given_up = [self._give_up(*one) for one in withdrawn(self.store.active(), self.in_force, policies)]
            if not all(given_up):
                return
        self.in_force = policies

    def _make_way(self, now: float) -> None:
        """Give up what a notice has overtaken, what somebody has deleted, and what a person wants to be given up."""
        for operation, because in overtaken(self.store.active(), self.duty.scene.notices, now):
            self._give_up(operation, because)
        if revoked := self.lease.revoked:
            for record in self.store.active():
                if record.id in revoked and record.cancelled is None:
                    self._give_up(record.id, "its resource was deleted")
        try:
            self.wishes.hear(now)
        except Stalled as error:
            self.voice.tell(error.problem)

    def _give_up(self, operation: OperationId, because: str) -> bool:
        """False, and told, when that can't be written: a disk that takes no writes keeps nothing else from being decided."""
        try:
            self.scheduler.cancel(operation, because)
        except Stalled as error:
            self.voice.tell(error.problem)
            return False
        return True

    async def account(self, news: News | None) -> tuple[Record, ...]:
        """Record what changed in the decisions, in pieces between which orders can be given. None: what can be told later is, as too much
        waits for the disk.
        """
        if news is None:
            return ()
        self.tracker, records = news
        await self.aside.call(lambda: self._write(records))
        return records

    def _write(self, records: Sequence[Record]) -> None:
        for begin in range(0, len(records), AT_ONCE):
            self.aside.breathe()
            self.trail.add(records[begin : begin + AT_ONCE])

    def check_disk(self) -> None:
        """See whether the engine's disk takes writes, and say so when that changed."""
        wrong = self.watch.check()
        self.duty.health.disk(wrong)
        if wrong is None:
            gone.set_aside(self.duty.settings.state)
        self.voice.tell_or_clear("engine's disk", wrong.problem if wrong is not None else None)

    def _ages(self, now: float) -> None:
        def age(at: float | None) -> float | None:
            return None if at is None else now - at

        inventory = age(self.sight.looked_at)
        if self.housed is not None and inventory is not None:
            inventory = max(inventory, self.housed.overdue())  # agents that answer say nothing of pods
        self.duty.health.update({"policies": self.duty.feed.age(now), "inventory": inventory, "metrics": age(self.sight.measured_at)})
        self.duty.metrics.problems.set(len(self.duty.feed.current.problems) if self.duty.feed.current else 0)

    # -- what runs beside the ticks

    def _find(self) -> None:
        """Agents that are there now, each with its stream, and what operations have left in the cluster."""
        if self.housed is not None:
            self.voice.tell_or_clear("cluster's pods", self.housed.follow(self.agents, self.duty.scene.fleet))
            self.tidying.check()
            if self.sight.looked_at is not None:
                fleet, samples = self.duty.scene.fleet, self.snapshots[-1].samples if self.snapshots else Samples()
                self.housed.tidy(self.tidying, self.store, fleet, self.executor.parts.still_leads, self._tidied, samples)
        if self.showing is not None:
            self.showing.look(self.duty.scene.fleet)
        if self.graphs is not None:
            self.drifting.tell(self.graphs.note(self.duty.settings.state, self.epoch, self.duty.clock()))
        self.watching = {node: task for node, task in self.watching.items() if not task.done() or task.exception()}
        for node in self.agents:
            if node not in self.watching:
                self.watching[node] = asyncio.create_task(self._watch(node), name=f"watch {node}")

    def _tidied(self, what: str) -> None:
        self.voice.record(RecordKind.ENGINE, "pods", what)

    async def _watch(self, node: NodeId) -> None:
        """Heed each notice. The stream only makes it faster: every tick asks for the whole inventory anyway."""
        while node in self.agents:
            with contextlib.suppress(ShunterError):
                async for event in self.agents[node].watch(self.epoch):
                    if event.HasField("notice"):
                        if (notice := _understood(event.notice, node)) is not None:
                            self.heed(notice)
                    elif event.HasField("exit"):
                        self.duty.wake.set()
                    elif event.HasField("progress"):
                        self.sendings.heard(event.progress)
            await asyncio.sleep(float(self.duty.settings.tick))

    def heed(self, notice: Notice) -> None:
        """Order what the notice asks for, now, by what was last seen. The next tick sees to the rest, and to all of one that asks for no
        more haste than it did before.
        """
        self.sight.heard(notice)
        if not self.heeding.news(notice):
            return
        now = self.duty.clock()
        self.haste.begin()
        said = self.voice.made(RecordKind.NOTICE, notice.node, f"{notice.kind.value} of {notice.node}", {"notice": plain(notice)})
        self._make_way(now)
        if self._hurry_quietly(now, (said,)):  # the orders come first
            asyncio.get_running_loop().call_later(TICK_AFTER_S, self.duty.wake.set)
        else:
            self.haste.end()
            self.duty.wake.set()

    def _hurry_quietly(self, now: float, said: tuple[Record, ...] = (), seen: Fleet | None = None) -> bool:
        """Whether anything was ordered. `said` is recorded, with the plan if there is one. `seen` as in `Heeding.decide`."""
        try:
            return self._hurry(now, said, seen)
        except Stalled as error:
            self.voice.tell(error.problem)
            return False

    def _hurry(self, now: float, said: tuple[Record, ...], seen: Fleet | None) -> bool:
        heard = self.heeding.decide(self.sight.state(now), now, seen)
        if heard is None:
            self.trail.add(said)
            return False
        self.origins.planned(heard.evaluation.plan)
        with self.watch.gathering((*said, *heard.records)):
            self._offer(heard.evaluation.plan, whole=False)
        self.aside.later(lambda: self._tell_why(heard))
        if self.keeping and self.watch.now is None:
            kept = heard.evaluation, heard.policies, [heard.snapshot], heard.state, self.duty.profile
            self.keeping.keeper.offer(heard.records, *kept)
        return True

    def _offer(self, plan: Plan, *, whole: bool = True) -> None:
        """One that was carried out before to the letter (SH504), at a moment that a clock has shown twice, keeps nothing else from being
        done: the next tick makes another one.
        """
        try:
            self.scheduler.offer(plan, whole=whole)
        except Rejected as error:
            self.voice.tell(error.problem)
            self.scheduler.pump()

    def _tell_why(self, heard: Heard) -> None:
        self.aside.breathe()
        self._write(heard.why(self.epoch))

    # -- small parts

    def _progress(self, record: OperationRecord) -> None:
        if record.outcome:
            kind = record.planned.kind.value
            self.duty.metrics.operations.labels(kind, record.outcome.status.value).inc()
            if record.outcome.measured.stopped is not None:
                self.duty.metrics.stopped.labels(kind).observe(record.outcome.measured.stopped)
            self.sight.ended(record)
            self.heeding.ended(record)
            self.sendings.ended(record.id)
            self.duty.wake.set()
        elif record.step is Step.FENCED:
            self.haste.fenced()
        self.duty.on_step(record)

    def _unsettled(self, _operation: OperationId, error: ShunterError) -> None:
        self.voice.tell(error.problem)


def _understood(told: pb.NoticeReport, node: NodeId) -> Notice | None:
    """None for one of a kind that this engine has no word for."""
    try:
        return convert.notice(told, node)
    except ValueError:
        return None


def _has_plan(records: tuple[Record, ...]) -> bool:
    return any(record.kind is RecordKind.PLAN for record in records)
