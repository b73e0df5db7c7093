"""What a node has told of its end binds it until an engine is known to know better, and nothing else frees it."""

from pathlib import Path

import msgspec
import pytest
from agent_fakes import SPEC, Bench, FakeClock
from shunter.model.errors import Problem, Stalled
from shunter_agent.journal import Journal
from shunter_agent.notices.port import Notice
from shunter_agent.standing import Standing
from shunter_agent.word import SHARE, Words

PRESUMED = 60.0
NOTICE = Notice(id="n", kind="preemption", seen_at=1000.0, deadline=1030.0)
OPEN = {"n": NOTICE}


class Told:
    """A node's words, and the engine's questions to it."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.path = FakeClock(), folder / "journal.db"
        self.said: list[Problem] = []
        self.restart()

    def restart(self, boot: str = "b") -> None:
        self.words = Words(Journal(self.path), self.clock, self.clock, self.said.append, boot)

    def asked(self, notices: dict[str, Notice], taken: float = 0.0, kept: float = 0.0, presumed: float = PRESUMED) -> float:
        """A question and its answer; the answer's `at`."""
        self.clock.now += 1.0
        self.words.heard(taken, kept, presumed)
        self.words.reported(self.clock.now, notices, self.clock.now)
        return self.clock.now

    def due_at(self) -> float:
        """When workers are ended if nothing is heard any more."""
        (word,) = self.words.open
        return word.over


@pytest.fixture
def told(tmp_path: Path) -> Told:
    made = Told(tmp_path)
    made.asked({})
    made.words.tell(OPEN)
    return made


def test_workers_are_ended_before_an_engine_takes_the_node_for_dead(told: Told) -> None:
    heard = told.asked(OPEN)
    told.asked(OPEN, taken=heard)
    told.words.tell({})  # withdrawn, and the link is cut
    assert told.due_at() == 1001.0 + 29.0 + SHARE * PRESUMED
    told.clock.now = told.due_at() - 0.1
    assert told.words.due() is None
    told.clock.now += 0.2
    assert told.words.due() is not None


def test_what_counts_is_what_an_engine_took_in_and_not_that_it_asks(told: Told) -> None:
    heard = told.asked(OPEN)
    before = told.due_at()
    for _ in range(50):
        told.asked(OPEN)  # the link lets questions through, and no answers
    assert told.due_at() == before
    told.asked(OPEN, taken=heard + 50.0)
    assert told.due_at() == heard + 50.0 + SHARE * PRESUMED


def test_it_is_free_once_an_engine_keeps_a_report_without_the_notice(told: Told) -> None:
    first = told.asked(OPEN)
    told.words.tell({})
    without = told.asked({}, taken=first, kept=first)
    assert told.words.open, "it isn't known yet that the answer arrived"
    told.asked({}, taken=without, kept=first)
    assert told.words.open, "an engine that goes on elsewhere may not know of it yet"
    told.asked({}, taken=without, kept=without)
    assert not told.words.open


def test_a_report_from_before_it_was_told_frees_of_nothing(told: Told) -> None:
    earlier = told.asked({})
    told.clock.now += 1.0
    told.words.tell({})
    told.words.tell(OPEN)  # the same one comes back
    told.asked(OPEN, taken=earlier, kept=earlier)
    assert told.words.open


def test_two_reports_of_one_instant_count_as_what_either_says(told: Told) -> None:
    at = told.asked(OPEN)
    told.words.reported(at, {}, at)
    told.asked({}, taken=at, kept=at)
    assert told.words.open


def test_it_outlives_the_agent_and_not_the_machine(told: Told) -> None:
    heard = told.asked(OPEN)
    told.asked(OPEN, taken=heard)
    due = told.due_at()
    told.clock.now += 20.0
    told.restart()
    assert told.due_at() <= due, "what it had heard of since may be forgotten, and not the other way round"
    told.restart("another start of the machine")
    assert not told.words.open, "nothing has lived since"


def test_an_engine_that_says_nothing_of_it_is_promised_nothing(tmp_path: Path) -> None:
    told = Told(tmp_path)
    told.asked({}, presumed=0.0)
    told.words.tell(OPEN)
    told.clock.now += 1e6
    assert told.words.due() is None
    told.asked(OPEN)
    assert told.words.due() is not None, "one that does counts from its first question"


@pytest.mark.parametrize(("kind", "deadline"), [("maintenance", 2.0), ("preemption", None)])
def test_what_takes_no_node_for_dead_promises_nothing(tmp_path: Path, kind: str, deadline: float | None) -> None:
    told = Told(tmp_path)
    told.asked({})
    told.words.tell({"n": Notice(id="n", kind=kind, seen_at=1.0, deadline=deadline)})
    assert not told.words.open


def test_a_disk_that_takes_no_writes_keeps_nothing_from_being_told(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(notice: str, body: bytes) -> None:
        raise Stalled(Problem(code="SH610", what="full", remedy="Free it"))

    monkeypatch.setattr(told.words._journal, "put_word", full)
    told.words.tell({**OPEN, "m": Notice(id="m", kind="preemption", seen_at=1.0, deadline=2.0)})
    assert {word.notice for word in told.words.open} == {"n", "m"}
    assert [problem.code for problem in told.said] == ["SH610"]


@pytest.mark.parametrize(("image", "incarnation", "lives"), [(True, 0, False), (False, 0, True), (False, 1, False)])
async def test_only_workers_that_could_come_back_elsewhere_are_ended(tmp_path: Path, image: bool, incarnation: int, lives: bool) -> None:
    bench = Bench(tmp_path)
    bench.boot()
    bench.node.networks["w"] = bench.runtime.network(SPEC)
    bench.journal.put_worker(msgspec.structs.replace(bench.node.row("w"), incarnation=incarnation))
    if image:
        bench.journal.done("o", "send:m:i", "w", 1.0, b"")
    bench.journal.begin("o", "send:m:j", "x", 1.0)
    standing = Standing(bench.orders, bench.source, bench.transfers)
    standing.words.heard(0.0, 0.0, PRESUMED)
    bench.node.notices_changed({"n": Notice(id="n", kind="preemption", seen_at=bench.clock.now, deadline=bench.clock.now + 30.0)})
    bench.node.notices_changed({})
    bench.clock.now += 30.0 + SHARE * PRESUMED - 1.0
    await standing.look()
    assert bench.runtime.alive
    bench.clock.now += 1.5
    await standing.look()
    assert bool(bench.runtime.alive) is lives
    said = [(problem.code, problem.what.partition(":")[0]) for problem in standing.words.problems()]
    assert said == ([] if lives else [("SH681", "w was ended here")])
    bench.journal.close()


async def test_a_worker_that_is_back_with_the_same_incarnation_is_ended_for_the_next_word_too(tmp_path: Path) -> None:
    """Brought back by an engine that knew it from an older image alone, say."""
    bench = Bench(tmp_path)
    bench.node.change("w", incarnation=1)
    standing = Standing(bench.orders, bench.source, bench.transfers)

    async def silent_after(name: str) -> None:
        standing.words.heard(0, 0, PRESUMED)
        notice = Notice(id=name, kind="preemption", seen_at=bench.clock.now, deadline=bench.clock.now + 30.0)
        bench.node.notices_changed({name: notice})
        bench.node.notices_changed({})
        bench.clock.now += 30 + SHARE * PRESUMED + 1
        await standing.look()

    await silent_after("n1")
    assert (bench.runtime.alive, bench.state()) == (set(), "none")
    standing.words.reported(bench.clock.now, {}, bench.clock.now)
    standing.words.heard(bench.clock.now, bench.clock.now, PRESUMED)

    bench.give_image()
    await bench.destination.prepare(bench.prepare(operation="back"))
    await bench.destination.restore(bench.restore("back"))
    await bench.destination.resume(bench.step("back"))
    await bench.source.unfence(bench.step("back"))
    row = bench.journal.worker("w")
    assert row is not None
    assert (row.incarnation, len(bench.runtime.alive)) == (1, 1)
    await silent_after("n2")
    assert (bench.runtime.alive, bench.state()) == (set(), "none")
