"""Operations, faults, deaths of engine and agents, and time, in any order: never two copies, never none, and every operation ends."""

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from fleet_in_memory import FAULTS, PLAN, Copy, Crash, CrashingStore, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from next_engine import take_over
from shunter.act import resolve
from shunter.act.execute import Executor
from shunter.act.run import Unresolved
from shunter.model.ids import NodeId, node_of
from shunter.model.operation import Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation

STEPS = ("prepare", "fence", "freeze", "restore", "release", "resume", "unfence", "thaw", "abort", "checkpoint", "drain")
one = st.sampled_from([(step, fault) for step in STEPS for fault in FAULTS])
faults = st.one_of(st.just([]), st.lists(one, min_size=2, max_size=5))
"""By order: to draw their numbers would hardly ever hit the one order that matters."""


def deaths(most: int) -> st.SearchStrategy[int]:
    """At which write the engine dies; 0, most often: at none, or it would hardly ever come to the end of an operation."""
    return st.one_of(st.just(0), st.just(0), st.integers(1, most))


alive = st.sampled_from([OperationKind.MOVE, OperationKind.MOVE, OperationKind.PARK, OperationKind.CHECKPOINT, OperationKind.DRAIN])
LEAVING = (OperationKind.MOVE, OperationKind.PARK, OperationKind.DRAIN)


class Protocol(RuleBasedStateMachine):
    tried: ClassVar[Counter[str]] = Counter()
    """What all its stories together were made of; told at the end of the test run (see tests/conftest.py)."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(CrashingStore(Path(self.folder.name) / "s.db"))
        self.number = 0
        self.crashes = 0

    def carry(self, kind: OperationKind, found: list[tuple[str, str]], crash: int, after: bool) -> None:
        world = self.world
        self.number += 1
        world.healthy = True
        self.expect(found)
        world.store.crash_at = world.store.writes + crash if crash else 0
        world.store.after = after
        planned = world.plan(kind, self.number, "involuntary" if self.number % 2 else "voluntary")
        self.tried["operations"] += 1
        with contextlib.suppress(Unresolved, Crash), self.counting_deaths():
            self.loop.run_until_complete(Executor(world.parts(), world.epoch()).start(planned, PLAN))
        world.store.crash_at = 0
        record = world.store.get(planned.id)
        if record is not None and record.outcome is not None and kind in LEAVING:
            self.told_the_truth(planned, record.outcome)

    @contextlib.contextmanager
    def counting_deaths(self) -> Iterator[None]:
        try:
            yield
        except Crash:
            self.tried["deaths of the engine"] += 1
            raise

    def expect(self, found: list[tuple[str, str]]) -> None:
        """These faults, wherever the orders go."""
        self.world.named = {(node, step): [f for s, f in found if s == step] for step, _ in found for node in self.world.agents}

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
    @rule(kind=alive, found=faults, crash=deaths(12), after=st.booleans())
    def operate(self, kind: OperationKind, found: list[tuple[str, str]], crash: int, after: bool) -> None:
        self.carry(kind, found, crash, after)

    @precondition(lambda self: self.world.home() and not self.world.store.active())
    @rule(found=faults)
    def move(self, found: list[tuple[str, str]]) -> None:
        """Most often, as most can go wrong in it."""
        self.carry(OperationKind.MOVE, found, 0, False)

    @precondition(lambda self: all(a.copy is None for a in self.world.agents.values()) and not self.world.store.active())
    @rule(found=faults, crash=deaths(8), after=st.booleans())
    def bring_back(self, found: list[tuple[str, str]], crash: int, after: bool) -> None:
        self.carry(OperationKind.RESTORE, found, crash, after)

    @precondition(lambda self: self.world.store.active())
    @rule(found=faults, crash=deaths(6))
    def restart_engine(self, found: list[tuple[str, str]], crash: int) -> None:
        self.expect(found)
        self.world.store.crash_at = self.world.store.writes + crash if crash else 0
        with contextlib.suppress(Crash), self.counting_deaths():
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
            self.tried["looks at how many copies there are"] += 1
            self.world.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.come_to_rest()
            self.tried["stories"] += 1
            self.tried["orders"] += len(self.world.orders)
        finally:
            self.world.store.close()
            self.loop.close()
            self.folder.cleanup()

    def come_to_rest(self) -> None:
        self.world.named = {}
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
TestProtocol.tried = Protocol.tried  # type: ignore[attr-defined]
TestProtocol.settings = settings(max_examples=120, stateful_step_count=12, deadline=None)


def test_its_invariants_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes a silent source for a dead one: the rule that everything hangs on."""
    monkeypatch.setattr(resolve, "_committing", lambda _record, _source, _destination: resolve.go_on(Step.RELEASED, "surely"))
    machine = Protocol()
    machine.begin()
    with pytest.raises(AssertionError, match="2 copies run or could run"):
        machine.carry(OperationKind.MOVE, [("release", "cut")], 0, False)
    machine.world.store.close()
    machine.loop.close()
    machine.folder.cleanup()
