"""`unknown` is a state: durable before anybody is asked what happened, and nothing new is ordered until that is known."""

from pathlib import Path

import msgspec
import pytest
from fleet_in_memory import CrashingStore, World
from shunter.act.execute import Executor
from shunter.act.port import CopyView
from shunter.act.run import Unresolved
from shunter.act.store import Store
from shunter.model.canon import decode, encode
from shunter.model.ids import Digest, OperationId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind
from test_protocol import carry_out, fresh

PLAN = Digest("sha256:plan")
AGAIN = {"unfence", "thaw", "discard", "release", "drain"}
"""Orders that do no harm when they are given twice, which are given until there is an answer."""
KINDS = (OperationKind.MOVE, OperationKind.PARK, OperationKind.RESTORE, OperationKind.CHECKPOINT)


class Watched:
    """Looks into the store at each question and each order, as a next engine would."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world, self.asked, self.broken = world, 0, list[str]()
        self.lost = False
        """Nobody was asked yet since an order got no answer, or since an engine began anew."""
        ordered = world.next_fault

        def order(node: object, step: str) -> str:
            if self.unknown() and (node, step) not in world.orders and step not in AGAIN:
                self.broken.append(f"{step} at {node} after {world.orders[-3:]}")
            found = ordered(node, step)  # type: ignore[arg-type]
            self.lost |= bool(found) and not step.startswith("send")  # sent again, without asking
            return found

        monkeypatch.setattr(world, "next_fault", order)
        for name, agent in world.agents.items():
            journal = agent.journal

            async def look(operation: OperationId, timeout: float, name: str = name, journal: object = journal) -> CopyView:
                self.asked += 1
                if self.lost and not self.unknown():
                    self.broken.append(f"{name} was asked what had happened, and nobody had written down that it isn't known")
                self.lost = False
                return await journal(operation, timeout)  # type: ignore[operator,no-any-return]

            monkeypatch.setattr(agent, "journal", look)

    def unknown(self) -> bool:
        return any(record.status is Status.UNKNOWN for record in self.world.store.active())


@pytest.mark.parametrize("fault", ["before", "after", "restart-after", "cut-after"])
@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_written_down_before_the_journals_are_asked_and_nothing_new_is_ordered_before_they_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: OperationKind, fault: str
) -> None:
    calm = fresh(tmp_path, kind, "calm")
    await carry_out(calm, kind)
    asked = 0
    for number in range(1, len(calm.orders) + 1):
        world = fresh(tmp_path, kind, f"{number}")
        watched = Watched(world, monkeypatch)
        world.faults = {number: fault}
        await carry_out(world, kind)
        assert watched.broken == [], f"{fault} at order {number}: {calm.orders[number - 1]}"
        asked += watched.asked
    assert asked, "somebody had to be asked"


async def test_a_next_engine_finds_it_and_only_the_journals_end_it(tmp_path: Path) -> None:
    """The source hears Release, and is away for longer than anybody looks into it."""
    world = World(CrashingStore(tmp_path / "engine.db"))
    world.named = {("a", "release"): ["cut-after"]}
    with pytest.raises(Unresolved):
        await Executor(world.parts(), world.epoch()).start(world.plan(OperationKind.MOVE), PLAN)
    store = Store(tmp_path / "engine.db", read_only=True)
    (left,) = store.active()
    assert (left.status, left.step) == (Status.UNKNOWN, Step.COMMITTING)
    assert left.outstanding is not None
    since = left.outstanding.since
    with pytest.raises(Unresolved):  # it is still away
        await Executor(world.parts(), world.epoch()).resume(left)
    (left,) = store.active()
    assert left.outstanding is not None
    assert left.outstanding.since == since < world.now, "one silence, since when it began"
    store.close()
    await world.sleep(100)
    done = await Executor(world.parts(), world.epoch()).resume(left)
    assert (done.status, done.outstanding) == (Status.SUCCEEDED, None)
    assert world.home() == "b"
    said = [record.what for record in world.records]
    assert said.index("move: unknown after committing") < said.index("move: released")
    assert "lost after release" in str(next(r.body["outstanding"] for r in world.records if r.what == "move: unknown after committing"))


async def test_what_an_older_engine_wrote_is_read_and_is_unknown_as_soon_as_it_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(CrashingStore(tmp_path / "engine.db"))
    executor = Executor(world.parts(), world.epoch())
    begun = executor.intend(world.plan(OperationKind.MOVE), PLAN)
    old = msgspec.json.decode(encode(begun))
    old.pop("outstanding", None)
    found = decode(encode(old), OperationRecord)
    assert (found.status, found.outstanding) == (Status.ACTIVE, None)
    watched = Watched(world, monkeypatch)
    watched.lost = True
    await Executor(world.parts(), world.epoch()).resume(found)
    assert watched.asked
    assert watched.broken == []
