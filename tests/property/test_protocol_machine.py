"""Operations, faults, deaths of engine and agents, and time, in any order: never two copies, never none, and every operation ends."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

from fleet_in_memory import FAULTS, PLAN, Copy, Crash, CrashingStore, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from next_engine import take_over
from shunter.act.execute import Executor
from shunter.act.run import Unresolved
from shunter.model.ids import NodeId, node_of
from shunter.model.operation import Outcome, Status
from shunter.model.plan import OperationKind, PlannedOperation

faults = st.dictionaries(st.integers(1, 14), st.sampled_from(FAULTS), max_size=4)
alive = st.sampled_from([OperationKind.MOVE, OperationKind.MOVE, OperationKind.PARK, OperationKind.CHECKPOINT, OperationKind.DRAIN])
LEAVING = (OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN)


class Protocol(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(CrashingStore(Path(self.folder.name) / "s.db"))
        self.number = 0
        self.crashes = 0

    def carry(self, kind: OperationKind, found: dict[int, str], crash: int, after: bool) -> None:
        world = self.world
        self.number += 1
        world.healthy = True
        world.faults = {len(world.orders) + n: fault for n, fault in found.items()}
        world.store.crash_at = world.store.writes + crash if crash else 0
        world.store.after = after
        planned = world.plan(kind, self.number, "involuntary" if crash % 2 else "voluntary")
        with contextlib.suppress(Unresolved, Crash):
            self.loop.run_until_complete(Executor(world.parts(), world.epoch()).start(planned, PLAN))
        world.store.crash_at = 0
        record = world.store.get(planned.id)
        if record is not None and record.outcome is not None and kind in LEAVING:
            self.told_the_truth(planned, record.outcome)

    def told_the_truth(self, planned: PlannedOperation, outcome: Outcome) -> None:
        """Nothing has happened since it ended."""
        home, source, to = self.world.home(), planned.from_slot, planned.to_slot
        if outcome.status is Status.ROLLED_BACK and not ("nothing had been asked" in outcome.reason and home is None):
            assert source is not None
            assert home == node_of(source), outcome
        if outcome.status is Status.FAILED:
            assert home is None, outcome
        if outcome.status is Status.SUCCEEDED:
            assert home == (node_of(to) if to else None), outcome

    @precondition(lambda self: self.world.home() and not self.world.store.active())
    @rule(kind=alive, found=faults, crash=st.integers(0, 12), after=st.booleans())
    def operate(self, kind: OperationKind, found: dict[int, str], crash: int, after: bool) -> None:
        self.carry(kind, found, crash, after)

    @precondition(lambda self: all(a.copy is None for a in self.world.agents.values()) and not self.world.store.active())
    @rule(found=faults, crash=st.integers(0, 8), after=st.booleans())
    def bring_back(self, found: dict[int, str], crash: int, after: bool) -> None:
        self.carry(OperationKind.RESTORE, found, crash, after)

    @precondition(lambda self: self.world.store.active())
    @rule(found=faults, crash=st.integers(0, 6))
    def restart_engine(self, found: dict[int, str], crash: int) -> None:
        self.world.faults = {len(self.world.orders) + n: fault for n, fault in found.items()}
        self.world.store.crash_at = self.world.store.writes + crash if crash else 0
        with contextlib.suppress(Crash):
            self.loop.run_until_complete(take_over(self.world))
        self.world.store.crash_at = 0

    @rule(node=st.sampled_from("abc"))
    def restart_agent(self, node: str) -> None:
        self.world.agents[node].restart()  # type: ignore[index]

    @rule()
    def worker_dies(self) -> None:
        self.world.die()

    @precondition(lambda self: all(a.copy is None for a in self.world.agents.values()) and not self.world.store.active())
    @rule()
    def start_anew(self) -> None:
        """Natively, as somebody would whose worker can't be brought back."""
        self.world.drained = False
        self.world.agents[NodeId("a")].copy = Copy("running")

    @rule(seconds=st.sampled_from([1.0, 10.0, 40.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(self.world.sleep(seconds))

    @invariant()
    def one_copy(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.come_to_rest()
        finally:
            self.world.store.close()
            self.loop.close()
            self.folder.cleanup()

    def come_to_rest(self) -> None:
        self.world.faults = {}
        self.world.healthy = True
        for _ in range(4):
            self.loop.run_until_complete(self.world.sleep(100))
            self.loop.run_until_complete(take_over(self.world))
        self.loop.run_until_complete(self.world.sleep(100))
        assert not self.world.store.active(), "every operation ends"
        ended = self.world.store.recent(0)
        assert all(r.outcome and r.outcome.status is not Status.UNKNOWN for r in ended)
        assert all(a.copy is None or a.copy.state == "running" for a in self.world.agents.values()), "nothing is left standing still"
        told = any("the router doesn't see it" in r.outcome.reason for r in ended if r.outcome)
        assert told or not self.world.fenced(), "the router sees it again, unless that was refused, and told"
        self.world.check()


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
