"""What a leading engine sees: the fleet by its agents, notices, and what Prometheus measures. It writes what it must remember."""

from collections.abc import Callable, Collection, Mapping

import msgspec

from shunter.act.beyond import Remembered, pack
from shunter.act.store import Store
from shunter.app import gone
from shunter.app.aside import Aside
from shunter.app.degraded import Watch, places
from shunter.app.duty import Duty
from shunter.app.settled import settled, unseen
from shunter.app.silence import Silence
from shunter.app.standing import relayed
from shunter.app.voice import Voice
from shunter.app.world import Memory, World, gone_after
from shunter.model.canon import plain
from shunter.model.errors import Problem
from shunter.model.ids import NodeId, OperationId, WorkerId
from shunter.model.operation import EngineState, OperationRecord
from shunter.model.policy import PolicySet
from shunter.model.record import RecordKind
from shunter.model.sample import Known, say
from shunter.model.snapshot import Fleet, Notice, Samples, Snapshot
from shunter.observe.inventory import Inventory

SAVE_S = 30.0
"""A fleet in which nothing has changed its place is written down so often, for what was measured of it."""


class Sight:
    """Looks for the engine, and keeps `duty.scene` up to date."""

    def __init__(
        self,
        duty: Duty,
        store: Store,
        watch: Watch,
        world: World,
        nodes: Collection[NodeId],
        voice: Voice,
        aside: Aside | None = None,
        knows: Callable[[OperationId], bool] = lambda _operation: False,
    ) -> None:
        """What takes long is done `aside`; None: where it is called. `knows`: see `standing.relayed`."""
        self._knows = knows
        self._aside = aside or Aside()
        self._duty, self._store, self._watch, self.world, self._voice = duty, store, watch, world, voice
        self.nodes = nodes
        self.gone: frozenset[NodeId] = frozenset()
        """Nodes that are dead for good, by the last look."""
        self._namesakes: Mapping[WorkerId, frozenset[NodeId]] = {}
        self.silence = Silence()
        self.looked_at: float | None = None
        self.measured_at: float | None = None
        self._meanwhile: list[OperationRecord] = []
        """Operations that ended since the last look began."""
        self._before: tuple[OperationRecord, ...] = ()
        """Those that ended in the time of the look before, as long as anybody decides on that."""
        self._heard: list[Notice] = []
        """Notices that came since then."""
        self._saved_at = float("-inf")
        self._saved: tuple[Notice, ...] = ()
        self._saved_places: object = None

    def recall(self) -> None:
        """Begin with what the engine before remembered."""
        remembered = self._store.load_fleet()
        if remembered:
            scene = self._duty.scene
            scene.fleet = settled(remembered.fleet, self._store.recent(remembered.at - 1.0))
            scene.notices = remembered.notices
            self._namesakes = remembered.namesakes

    def ended(self, record: OperationRecord) -> None:
        """What an operation did is seen at once, and not undone by a look that began before."""
        self._meanwhile.append(record)
        self._duty.scene.fleet = settled(self._duty.scene.fleet, [record])

    def state(self, now: float) -> EngineState:
        """What the engine has done and is doing, for a decision on the fleet as it was last seen."""
        return unseen(self._store.state(now), (*self._before, *self._meanwhile))

    def seen(self) -> None:
        """From now on everybody decides on the last look."""
        self._before = ()

    def heard(self, notice: Notice) -> None:
        """A notice that is in the scene already isn't lost by a look that began before it came."""
        self._heard.append(notice)

    async def snapshot(self, policies: PolicySet | None, now: float) -> Snapshot:
        """The scene, and what is measured of it when anything is to be decided."""
        scene, duty = self._duty.scene, self._duty
        if policies is None or not duty.looks_ahead:
            return Snapshot(at=now, fleet=scene.fleet, notices=scene.notices)
        fleet, notices = scene.fleet, scene.notices
        samples = await self.world.measure(fleet, policies, now, within_s=float(duty.settings.prometheus.deadline))
        self._measured(samples, now)
        return Snapshot(at=now, fleet=fleet, samples=samples, notices=notices)

    def _measured(self, samples: Samples, now: float) -> None:
        """Note whether metrics come at all. A fleet without a live worker has none, and lacks none."""
        if not samples.workers or any(isinstance(s, Known) for fields in samples.workers.values() for s in fields.values()):
            self.measured_at = now
            self._voice.tell_or_clear("metrics", None)
            return
        why = next(s for fields in samples.workers.values() for s in fields.values())
        what = f"no worker has a fresh value of any metric: {say(why)}"
        problem = Problem(code="SH530", what=what, remedy="Look at Prometheus and its scrapes", subject="metrics")
        self._voice.tell_or_clear("metrics", problem)

    async def look(self, now: float) -> bool:
        """Ask every agent for its node. Whether there is a notice that nobody had told of."""
        scene, state = self._duty.scene, self._duty.settings.state
        said = gone.declared(state)
        known, active = tuple(n for n in scene.notices if n.source != gone.SOURCE), self._store.active()
        memory = Memory(
            fleet=scene.fleet,
            notices=(*known, *said, *relayed(scene.fleet, self._knows)),
            ended=self._store.ended(),
            busy=frozenset(WorkerId(r.planned.worker) for r in active if not r.waits),
            gone_after=gone_after(float(self._duty.settings.hold), float(self._duty.settings.tick)),
            silent=self.silence.lasts(),
            namesakes=self._namesakes,
        )
        self._before = tuple(self._meanwhile)
        self._meanwhile.clear()
        self._heard.clear()
        inventory = await self.world.look(memory, now)
        seen = Remembered(at=now, fleet=inventory.fleet, notices=inventory.notices, namesakes=inventory.namesakes)
        packed = await self._aside.call(lambda: self._packed(seen))
        self.silence.looked(self.world.unreachable, inventory.notices, now)
        # what ended while we looked is news to what was seen
        inventory = msgspec.structs.replace(
            inventory, fleet=settled(inventory.fleet, self._meanwhile), notices=_with(inventory.notices, self._heard)
        )
        before = {n.id: n for n in scene.notices}
        answering = frozenset(self.nodes) - frozenset(self.world.unreachable)
        for problem in gone.void(said, answering):
            self._voice.tell(problem)
        self._remember(seen, packed, inventory)
        scene.fleet, scene.notices, self.gone = inventory.fleet, inventory.notices, inventory.gone
        self._namesakes = inventory.namesakes
        if answering:
            self.looked_at = now
        self._tell_of_nodes(inventory.fleet, inventory.clocks)
        gauges, nodes, silent = self._duty.metrics.fleet, tuple(self.nodes), self.world.unreachable
        self._aside.later(lambda: gauges.show(inventory.fleet, inventory.notices, active, nodes, silent, now))
        for problem in inventory.problems:
            self._voice.tell(problem)
        news = [notice for notice in inventory.notices if notice.id not in before]
        for notice in news:
            what = f"{notice.kind.value} of {notice.node}"
            self._voice.record(RecordKind.NOTICE, notice.node, what, {"notice": plain(notice)})
        for over in sorted(before.keys() - {notice.id for notice in inventory.notices}):
            notice = before[over]
            what = f"{notice.kind.value} of {notice.node} is open no more"
            self._voice.record(RecordKind.NOTICE, notice.node, what, {"withdrawn": plain(notice)})
        return bool(news)

    def _tell_of_nodes(self, fleet: Fleet, clocks: Mapping[NodeId, Problem]) -> None:
        for node in self.nodes:
            self._voice.tell_or_clear(f"agent {node}", self.world.unreachable.get(node))
            if node not in self.world.unreachable:
                self._voice.tell_or_clear(f"clock {node}", clocks.get(node))
        for seen in fleet.nodes:
            self._voice.tell_each(f"notices {seen.id}", seen.problems)
            self._voice.tell_each(f"troubles {seen.id}", seen.troubles)

    def _packed(self, seen: Remembered) -> tuple[object, bytes] | None:
        """What has its place where, and all of it as it is written down; None where it needn't be. Not each tick: only once a worker, an
        image or a node has changed its place, or has another of its name, or now and then; on a full disk, only the former.
        """
        where = places(seen.fleet), seen.namesakes
        due = seen.at - self._saved_at >= SAVE_S and self._watch.now is None
        return (where, pack(seen, self._aside.breathe)) if due or where != self._saved_places else None

    def _remember(self, seen: Remembered, packed: tuple[object, bytes] | None, inventory: Inventory) -> None:
        """What operations that ended meanwhile have done isn't in it: who reads it knows those."""
        if packed is not None:
            self._store.save_fleet(seen.fleet, seen.notices, seen.at, packed[1], namesakes=seen.namesakes)
            self._saved_at, self._saved, self._saved_places = seen.at, seen.notices, packed[0]
        if inventory.notices != self._saved:
            self._store.save_notices(inventory.fleet, inventory.notices, seen.at, namesakes=seen.namesakes)
            self._saved = inventory.notices


def _with(notices: tuple[Notice, ...], heard: list[Notice]) -> tuple[Notice, ...]:
    """With those that were heard of, sorted; what was seen of the same one counts."""
    found = {(n.node, n.id): n for n in (*heard, *notices)}
    return tuple(found[key] for key in sorted(found)) if heard else notices
