"""What a person wants to be given up: heard by the engine that leads, in the middle of an operation."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fleet_in_memory import CrashingStore, World
from gated_executor import plan
from shunter.act.execute import Executor
from shunter.act.scheduler import Scheduler
from shunter.app.wishes import ANSWER_S, Became, Reply, Slip, Wish, Wishes, ask
from shunter.model.ids import OperationId
from shunter.model.operation import Status
from shunter.model.plan import OperationKind


class Heard:
    """An engine that carries out one move, and the wishes about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World(CrashingStore(folder / "engine.db"))
        self.scheduler = Scheduler(Executor(self.world.parts(), self.world.epoch()))
        self.said: list[tuple[str, dict[str, object]]] = []
        self.wishes = Wishes(folder, self.world.store, self.scheduler.cancel, lambda _id, what, body: self.said.append((what, body)))

    def wish(self, operation: str = "move-0") -> Reply:
        slip = Slip.hand_over(
            self.folder, Wish(operation=OperationId(operation), by="ann@host", because="the rack is rewired", at=self.world.now)
        )
        self.wishes.hear(self.world.now)
        reply = slip.reply()
        assert reply is not None
        assert not slip.withdraw(), "it was answered"
        return reply

    async def carry_out(self, at: str, do: Callable[[], object]) -> Status:
        """The move, with something done while the order `at` is under way."""
        plain = self.world.next_fault

        def order(node: object, step: str) -> str:
            if step == at:
                do()
            return plain(node, step)  # type: ignore[arg-type]

        self.world.next_fault = order  # type: ignore[method-assign, assignment]
        self.scheduler.offer(plan(self.world.plan(OperationKind.MOVE)))
        await self.scheduler.idle()
        record = self.world.store.get(OperationId("move-0"))
        assert record is not None
        return record.status


@pytest.mark.parametrize(
    ("at", "became", "ends", "home"),
    [
        ("prepare", Became.GOES_BACK, Status.ROLLED_BACK, "a"),
        ("fence", Became.GOES_BACK, Status.ROLLED_BACK, "a"),
        ("freeze", Became.GOES_BACK, Status.ROLLED_BACK, "a"),
        ("release", Became.COMMITTED, Status.SUCCEEDED, "b"),
        ("resume", Became.COMMITTED, Status.SUCCEEDED, "b"),
    ],
)
async def test_before_the_commit_it_goes_back_and_after_it_it_is_finished(
    tmp_path: Path, at: str, became: Became, ends: Status, home: str
) -> None:
    heard, replies = Heard(tmp_path), list[Reply]()
    assert await heard.carry_out(at, lambda: replies.append(heard.wish())) is ends
    assert [reply.became for reply in replies] == [became]
    assert heard.world.home() == home
    (said,) = heard.said
    assert said[0].startswith("ann@host wants move-0 to be given up")
    assert said[1] == {"by": "ann@host", "because": "the rack is rewired", "became": became.value}
    record = heard.world.store.get(OperationId("move-0"))
    assert record is not None
    assert record.outcome is not None
    assert ("the rack is rewired (ann@host)" in record.outcome.reason) is (ends is Status.ROLLED_BACK)
    assert heard.wish() == Reply(at=heard.world.now, became=Became.OVER, status=ends)


async def test_what_waits_is_dropped_and_what_nobody_knows_is_said_to_be_unheard_of(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    assert heard.wish("move-9").became is Became.UNHEARD_OF
    assert heard.said == []
    heard.world.store.gate = lambda: False  # nothing voluntary begins
    heard.scheduler.offer(plan(heard.world.plan(OperationKind.MOVE)))
    assert [o.id for o in heard.scheduler.waiting] == ["move-0"]
    assert heard.wish().became is Became.DROPPED
    assert heard.scheduler.waiting == ()
    assert heard.world.orders == []
    await heard.scheduler.stop()


def test_a_wish_that_nobody_hears_is_taken_back(tmp_path: Path) -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    wish = Wish(operation=OperationId("move-0"), by="ann@host", because="so", at=1.0)
    assert ask(tmp_path, wish, clock=lambda: now[0], pause=pause) is None
    assert now[0] == pytest.approx(ANSWER_S, abs=0.2)
    assert list((tmp_path / "cancel").iterdir()) == []


async def test_what_is_no_wish_holds_nobody_up_and_an_answer_that_nobody_reads_goes_after_a_day(tmp_path: Path) -> None:
    heard = Heard(tmp_path)
    heard.wish("move-9")
    (tmp_path / "cancel" / "0.json").write_text("{")
    heard.wishes.hear(heard.world.now + 80_000)
    assert [path.suffix for path in (tmp_path / "cancel").iterdir()] == [".answer"]
    heard.wishes.hear(heard.world.now + 90_000)
    assert list((tmp_path / "cancel").iterdir()) == []
