"""Memory is copied ahead while its worker runs, and nothing depends on it."""

import threading
from pathlib import Path

import pytest
from agent_fakes import Bench, FakeLive, FakeSending, problem
from shunter.model.errors import Retry, Stalled, Unknown
from shunter_agent.depot import ImageFacts
from shunter_agent.notices.port import Notice
from shunter_agent.orders.ahead import COPY_S
from shunter_agent.refusals import Undone


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.runtime.lives = (FakeLive(),)
    return made


async def test_it_is_copied_before_the_worker_is_stopped(bench: Bench) -> None:
    await bench.source.freeze(bench.freeze())
    order = bench.faults.order
    assert order.index("sending") < order.index("copy") < order.index("freeze")
    assert all(live.closed for live in bench.runtime.lives)


@pytest.mark.parametrize(("within", "seconds"), [(None, COPY_S), (30.0, 15.0), (1000.0, COPY_S)])
async def test_for_half_of_the_time_that_the_caller_waits(bench: Bench, within: float | None, seconds: float) -> None:
    await bench.source.freeze(bench.freeze(), within)
    assert bench.depot.copied == [seconds]


@pytest.mark.parametrize(("deadline", "copied"), [(1120.0, []), (None, [COPY_S])])
async def test_a_worker_that_has_to_leave_soon_is_not_kept_for_it(bench: Bench, deadline: float | None, copied: list[float]) -> None:
    bench.node.notices = {"n": Notice(id="n", kind="preemption", seen_at=1000.0, deadline=deadline)}
    await bench.source.freeze(bench.freeze())
    assert bench.depot.copied == copied
    assert bench.state() == "frozen"


@pytest.mark.parametrize("deadline", [1120.0, None])
@pytest.mark.parametrize(("allowed", "copied"), [(0.0, []), (12.5, [12.5]), (COPY_S + 1, [COPY_S])])
async def test_for_no_longer_than_whoever_has_planned_allows(
    bench: Bench, deadline: float | None, allowed: float, copied: list[float]
) -> None:
    bench.node.notices = {"n": Notice(id="n", kind="preemption", seen_at=1000.0, deadline=deadline)}
    order = bench.freeze()
    order.ahead_s = allowed
    await bench.source.freeze(order)
    assert bench.depot.copied == copied


async def test_what_went_ahead_is_told_apart_from_what_went_while_it_stood_still(bench: Bench) -> None:
    reply = await bench.source.freeze(bench.freeze())
    assert (reply.copied_bytes, reply.sent_bytes) == (900, 100)
    assert reply.copy_s > 0
    assert reply.send_s >= reply.dump_s


async def test_an_image_that_stays_here_needs_none(bench: Bench) -> None:
    await bench.source.freeze(bench.freeze(to=False))
    assert bench.depot.copied == []
    assert bench.faults.done["live"] == 0


async def test_memory_that_can_not_be_read_holds_nothing_up(bench: Bench) -> None:
    bench.faults.at["live"] = PermissionError("not allowed")
    await bench.source.freeze(bench.freeze())
    assert bench.state() == "frozen"
    assert "not allowed" in bench.said()


async def test_a_link_that_broke_meanwhile_ends_the_order_before_the_worker_is_stopped(bench: Bench) -> None:
    bench.faults.at["copy"] = Retry(problem("SH806"))
    with pytest.raises(Retry, match="SH806"):
        await bench.source.freeze(bench.freeze())
    assert (bench.faults.done["freeze"], bench.faults.done["cancel"], bench.state()) == (0, 1, "running")
    assert all(live.closed for live in bench.runtime.lives)


async def test_the_rest_goes_over_while_the_journal_waits_for_its_disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dump of a large worker keeps the disk busy, for as long as which it would stand still."""
    sending, waited = threading.Event(), list[bool]()
    finish, change = FakeSending.finish, bench.node.change

    def finishes(one: FakeSending, image: ImageFacts) -> int:
        sending.set()
        return finish(one, image)

    def changes(worker: str, **fields: object) -> None:
        if fields.get("state") == "frozen":
            waited.append(sending.wait(5))
        change(worker, **fields)

    monkeypatch.setattr(FakeSending, "finish", finishes)
    monkeypatch.setattr(bench.node, "change", changes)
    await bench.source.freeze(bench.freeze())
    assert waited == [True]
    assert bench.state() == "frozen"


async def test_a_journal_that_fails_meanwhile_lets_the_worker_run_on_and_leaves_no_image(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = bench.node.change

    def changes(worker: str, **fields: object) -> None:
        if fields.get("state") == "frozen":
            raise Stalled(problem("SH610"))
        change(worker, **fields)

    monkeypatch.setattr(bench.node, "change", changes)
    with pytest.raises((Undone, Unknown), match="SH610"):
        await bench.source.freeze(bench.freeze())
    assert (bench.faults.done["thaw"], bench.state(), bench.node.frozen) == (1, "running", {})
    assert bench.depot.all() == ()
