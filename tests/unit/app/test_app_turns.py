"""What waits for its turn is told, by previews and by the engine."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from shunter.act import scheduler
from shunter.app import preview as previews
from shunter.app.leading import Leading
from shunter.app.looking import Seen
from shunter.app.preview import Preview, preview
from shunter.app.settings import LimitsSettings, load
from shunter.app.turns import Queue, Turns, queue, turns
from shunter.model.ids import Commit, Digest, Epoch, OperationId
from shunter.model.operation import EngineState, OperationRecord
from shunter.model.plan import Evaluation, Plan, PlannedOperation
from shunter.model.snapshot import Fleet, Snapshot
from test_app_degraded import planned
from test_app_engine import Serving, Stage, stage
from test_app_settings import WHOLE, write

__all__ = ["stage"]


def plan(*operations: PlannedOperation) -> Plan:
    return Plan(at=1.0, commit=Commit("c"), policy_set=Digest("s"), snapshot=Digest("t"), operations=operations)


def active(one: PlannedOperation, *, waits: bool = False) -> OperationRecord:
    return OperationRecord(planned=one, plan=Digest("d"), epoch=Epoch(1), created_at=1.0, waits=waits)


def test_the_limit_is_a_setting(tmp_path: Path) -> None:
    assert load(write(tmp_path, WHOLE)).limits.voluntary == scheduler.VOLUNTARY == 16
    assert load(write(tmp_path, WHOLE + "[limits]\nvoluntary = 3\n")).limits.voluntary == 3


def test_a_plan_says_how_many_of_its_chains_could_not_begin_at_once() -> None:
    chain = (planned("a"), planned("b", after=("a",)))
    others = tuple(planned(f"o{n}") for n in range(3))
    new = plan(*chain, *others, planned("urgent", "involuntary"), msgspec.structs.replace(planned("shown"), preview=True))
    assert turns(new, (), 4) == ()
    (said,) = turns(new, (), 3)
    assert said == (
        "0 voluntary chains under way, and no more than 3 at a time may be (`limits.voluntary`): of the 4 planned here 1 waits for its turn"
    )
    busy = [active(planned("x")), active(planned("y"), waits=True), active(planned("z", "involuntary"))]
    assert turns(new, busy, 5) == ()
    (said,) = turns(new, busy, 2)
    assert said.startswith("1 voluntary chain under way")
    assert said.endswith("of the 4 planned here 3 wait for their turn")


def test_what_goes_on_isnt_counted_as_new() -> None:
    assert turns(plan(planned("a"), planned("b", after=("a",))), [active(planned("a"))], 1) == ()


async def test_a_preview_on_these_settings_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot(at=1.0, fleet=Fleet())

    class Recorded:
        state = EngineState(active=(active(planned("x")),))

    async def look(*_: object, **__: object) -> list[Seen]:
        return [Seen(recording=Recorded())]  # type: ignore[arg-type]

    async def policies_of(*_: object) -> None:
        return None

    def decided(*_: object) -> Preview:
        return Preview(snapshot=snapshot, evaluation=Evaluation(findings=(), plan=plan(planned("a"))), policies=None, remarks=("one",))  # type: ignore[arg-type]

    for name, fake in (("look", look), ("policies_of", policies_of), ("decided", decided)):
        monkeypatch.setattr(previews, name, fake)
    settings = load(write(tmp_path, WHOLE + "[limits]\nvoluntary = 1\n"))
    first, said = (await preview(settings, tmp_path, now=1.0)).remarks
    assert (first, said.endswith("of the 1 planned here 1 waits for its turn")) == ("one", True)
    settings = msgspec.structs.replace(settings, limits=LimitsSettings(voluntary=2))
    assert (await preview(settings, tmp_path, now=1.0)).remarks == ("one",)


def test_the_engine_says_what_waits_when_that_changes(tmp_path: Path) -> None:
    said = Turns(tmp_path, Epoch(3))
    said.note([planned(f"o{n}") for n in range(60)])
    found = queue(tmp_path, Epoch(3))
    assert (found.number, len(found.first), found.first[0].id) == (60, 50, "o0")
    assert queue(tmp_path, Epoch(4)) == Queue(epoch=Epoch(4)), "another engine said it"
    (tmp_path / "waiting").unlink()
    said.note([planned(f"o{n}") for n in range(60)])
    assert not (tmp_path / "waiting").exists(), "nothing changed"
    said.note([])
    assert queue(tmp_path, Epoch(3)).number == 0
    (tmp_path / "waiting").write_text("{")
    assert queue(tmp_path, Epoch(3)).number == 0


def test_on_a_disk_that_takes_no_writes_it_is_said_later(tmp_path: Path) -> None:
    said = Turns(tmp_path / "none", Epoch(1))
    said.note([planned("a")])
    (tmp_path / "none").mkdir()
    said.note([planned("a")])
    assert queue(tmp_path / "none", Epoch(1)).number == 1


async def test_a_leading_engine_keeps_to_its_limit_and_says_what_waits(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage(0)
    s.engine.settings = msgspec.structs.replace(s.engine.settings, limits=LimitsSettings(voluntary=3))
    leading = Leading(s.engine, s.leading.store, s.leading.lease, s.leading.trail, s.leading.watch, {}, None)  # type: ignore[arg-type]

    async def carry(record: OperationRecord) -> OperationRecord:
        await asyncio.Event().wait()
        return record

    monkeypatch.setattr(leading.executor, "carry", carry)
    leading.scheduler.offer(plan(*(planned(f"o{n}") for n in range(5))))
    leading.turns.note(leading.scheduler.waiting)
    assert len(leading.scheduler.running) == 3
    assert [o.id for o in queue(s.engine.settings.state, leading.epoch).first] == [OperationId("o3"), OperationId("o4")]
    await leading.scheduler.stop()


async def test_what_waits_is_passed_over_while_a_notice_is_answered_and_begins_with_the_next_tick(
    stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = stage(0)
    scheduler = s.leading.scheduler

    async def carry(record: OperationRecord) -> OperationRecord:
        await asyncio.Event().wait()
        return record

    monkeypatch.setattr(s.leading.executor, "carry", carry)
    monkeypatch.setattr(scheduler, "_voluntary", 0)
    scheduler.offer(plan(planned("o0"), planned("o1")))
    monkeypatch.setattr(scheduler, "_voluntary", 2)
    scheduler.offer(plan(planned("urgent", "involuntary")), whole=False)
    assert [o.id for o in scheduler.running] == ["urgent"]
    assert [o.id for o in scheduler.waiting] == ["o0", "o1"], "they wait as they did"
    scheduler.pump()
    assert [o.id for o in scheduler.running] == ["urgent", "o0", "o1"]
    await scheduler.stop()


async def test_each_tick_says_what_waits(stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage(0)
    s.leading.sight.world = Serving()  # type: ignore[assignment]
    await s.leading.following.once()
    monkeypatch.setattr(s.leading.scheduler, "_voluntary", 0)
    await s.leading.tick(100.0)
    (one,) = queue(s.engine.settings.state, s.leading.epoch).first
    assert one.worker == "w"
    assert [o.id for o in s.leading.scheduler.waiting] == [one.id]
