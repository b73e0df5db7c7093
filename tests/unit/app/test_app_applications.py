"""Plans handed to the engine: each request gets one answer, each plan is carried out once, wherever an engine ends in between."""

import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import pytest
from shunter.app import exact, inbox
from shunter.app.applications import Applications
from shunter.app.exact import ExactPlan
from shunter.app.inbox import KEPT_S, Answer, Request, Ticket, tidy, waiting
from shunter.app.preview import Preview
from shunter.app.recheck import Now
from shunter.app.recording import Recording
from shunter.model.canon import encode
from shunter.model.errors import Problem, Rejected, Retry, Stalled
from shunter.model.ids import Commit, Digest, OperationId
from shunter.model.operation import OperationRecord
from shunter.model.plan import Evaluation, Plan
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Snapshot

NOW = 1_800_000_000.0
PLAN = Plan(at=NOW, commit=Commit("c"), policy_set=Digest("sha256:p"), snapshot=Digest("sha256:s"))
RECORDING = Recording(at=NOW, fleet=Fleet())
EXACT = ExactPlan.of(PLAN, RECORDING, now=NOW)
WORLD = Now(at=NOW + 1, policies=PolicySet(commit=Commit("c"), digest=Digest("sha256:p")), fleet=Fleet())


class Crash(Exception):
    """The engine's process ends here."""


class Engine:
    """What of an engine outlives it, and one that can end at a named point."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.plans: list[Digest] = []
        self.told: list[str] = []
        self.noted: list[Digest] = []
        self.ends_at = ""
        self.stalls = False
        self.says: Plan | None = None
        """What the policies in force make of what a plan was decided on; None: that very plan."""

    def get(self, operation: OperationId) -> OperationRecord | None:
        return None

    def consumed(self, plan: Digest) -> bool:
        return plan in self.plans

    def accept(self, plan: Plan) -> None:
        self._perhaps("before accepting")
        if self.stalls:
            raise Stalled(Problem(code="SH501", what="disk full", remedy="free it"))
        assert plan.digest not in self.plans, "carried out twice"
        assert plan.digest in self.noted, "what it was decided on isn't known"
        self.plans.append(plan.digest)
        self._perhaps("after accepting")

    def decide(self, policies: PolicySet, recording: Recording) -> Preview:
        plan = self.says or msgspec.structs.replace(PLAN, at=recording.at)
        snapshot = Snapshot(at=recording.at, fleet=recording.fleet)
        return Preview(snapshot=snapshot, evaluation=Evaluation(findings=(), plan=plan), policies=policies)

    def note(self, found: Preview) -> None:
        self._perhaps("before noting")
        self.noted.append(found.evaluation.plan.digest)

    def tell(self, _digest: Digest, what: str, _body: dict[str, object]) -> None:
        self._perhaps("before telling")
        self.told.append(what)

    def _perhaps(self, point: str) -> None:
        if self.ends_at == point:
            self.ends_at = ""
            raise Crash

    def tick(self, now: Now = WORLD) -> None:
        applications = Applications(self.state, self, self.decide, self.note, self.accept, self.tell)
        applications.weigh(now.policies)
        applications.settle(now)


def submit(state: Path, asked: ExactPlan = EXACT) -> Ticket:
    return Ticket.submit(state, Request(by="ada", at=NOW, exact=asked))


def test_a_plan_is_carried_out_and_answered(tmp_path: Path) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)
    assert stat.S_IMODE((tmp_path / "apply").stat().st_mode) == 0o700
    assert ticket.answer() is None
    engine.tick()
    assert ticket.answer() == Answer(at=NOW + 1)
    assert engine.plans == [PLAN.digest]
    assert engine.told == ["applied: 0 operations"]
    assert waiting(tmp_path) == ()
    ticket.forget()
    assert list((tmp_path / "apply").iterdir()) == []


def test_the_same_plan_applied_twice_at_once_is_carried_out_once(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    tickets = [submit(tmp_path), submit(tmp_path)]
    engine.tick()
    answers = [t.answer() for t in tickets]
    assert engine.plans == [PLAN.digest]
    assert sorted(len(a.problems) for a in answers if a) == [0, 1]
    late = submit(tmp_path)
    engine.tick()
    answer = late.answer()
    assert answer is not None
    assert [p.code for p in answer.problems] == ["SH960"]


@pytest.mark.parametrize("point", ["before noting", "before accepting", "after accepting", "before telling"])
def test_an_engine_that_ends_in_between_neither_loses_nor_repeats(tmp_path: Path, point: str) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)
    engine.ends_at = point
    with pytest.raises(Crash):
        engine.tick()
    assert ticket.answer() is None
    assert not ticket.withdraw(), "the engine has begun with it"
    engine.tick()
    assert ticket.answer() == Answer(at=NOW + 1)
    assert engine.plans == [PLAN.digest]
    second = submit(tmp_path)
    engine.tick()
    assert (second.answer() or Answer(at=0)).problems[0].code == "SH960"


def test_a_second_request_does_not_get_the_first_ones_yes(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.plans.append(PLAN.digest)
    ticket = submit(tmp_path)
    engine.tick()
    engine.tick()
    answer = ticket.answer()
    assert answer is not None
    assert answer.problems


def test_a_plan_that_the_policies_dont_make_of_what_it_was_decided_on_is_refused(tmp_path: Path) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)
    engine.says = msgspec.structs.replace(PLAN, snapshot=Digest("sha256:t"))
    engine.tick()
    answer = ticket.answer()
    assert answer is not None
    assert [p.code for p in answer.problems] == ["SH948"]
    assert engine.says.digest[7:19] in answer.problems[0].what
    assert (engine.plans, engine.noted) == ([], [])


def test_what_comes_after_the_others_were_weighed_waits(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    applications = Applications(tmp_path, engine, engine.decide, engine.note, engine.accept, engine.tell)
    assert not applications.wait()
    applications.weigh(WORLD.policies)
    ticket = submit(tmp_path)
    assert applications.wait()
    applications.settle(WORLD)
    assert ticket.answer() is None
    engine.tick()
    assert ticket.answer() == Answer(at=NOW + 1)


@pytest.mark.parametrize("broken", [b"", b"zlib?", zlib.compress(b"[]"), zlib.compress(encode(RECORDING))[:-1]])
def test_what_came_with_a_plan_can_be_anything(tmp_path: Path, broken: bytes) -> None:
    """Sealed anew, as whoever may write to the inbox can."""
    seal = exact._seal(exact.FORMAT, PLAN, EXACT.expires_at, broken)
    engine, ticket = Engine(tmp_path), submit(tmp_path, msgspec.structs.replace(EXACT, recording=broken, seal=seal))
    engine.tick()
    answer = ticket.answer()
    assert answer is not None
    assert [p.code for p in answer.problems] == ["SH953"]
    assert engine.plans == []


@pytest.mark.parametrize("error", [ZeroDivisionError("by 0"), OverflowError("too large"), KeyError("w"), AssertionError()])
def test_whatever_deciding_meets_in_it_ends_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)

    def decide(_policies: PolicySet, _recording: Recording) -> Preview:
        raise error

    monkeypatch.setattr(engine, "decide", decide)
    engine.tick()
    answer = ticket.answer()
    assert answer is not None
    assert [p.code for p in answer.problems] == ["SH953"]
    assert type(error).__name__ in answer.problems[0].what


def test_what_moved_is_answered_and_the_plan_stays_unused(tmp_path: Path) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)
    engine.tick(msgspec.structs.replace(WORLD, at=NOW + 600))
    answer = ticket.answer()
    assert answer is not None
    assert [p.code for p in answer.problems] == ["SH954"]
    assert engine.plans == []
    assert engine.told[0].startswith("refused: the plan was good until")


def test_a_full_disk_leaves_the_request_for_later(tmp_path: Path) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)
    engine.stalls = True
    with pytest.raises(Stalled):
        engine.tick()
    assert ticket.answer() is None
    engine.stalls = False
    engine.tick()
    assert ticket.answer() == Answer(at=NOW + 1)


def test_a_request_that_was_tampered_with_is_refused(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    ticket = submit(tmp_path, msgspec.structs.replace(EXACT, expires_at=NOW + 10**6))
    (tmp_path / "apply" / "rubbish.json").write_text("{")
    engine.tick()
    answer = ticket.answer()
    assert answer is not None
    assert [p.code for p in answer.problems] == ["SH953"]
    assert engine.plans == []
    assert waiting(tmp_path) == ()


DEEP = b'{"by": "me", "at": 1, "zz": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize("data", [DEEP, b"[" * 200_000, b'{"by": 1' + b" " * 2**20])
def test_no_file_ends_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(inbox, "MAX_BYTES", 2**19)
    folder = tmp_path / "apply"
    folder.mkdir()
    for name in ("a.json", "b.taken", "c.answer"):
        (folder / name).write_bytes(data)
    ticket = submit(tmp_path)
    engine = Engine(tmp_path)
    engine.tick()
    assert ticket.answer() == Answer(at=NOW + 1)
    for name in ("a", "b"):
        answer = Ticket(tmp_path, name).answer()
        assert answer is not None
        assert [p.code for p in answer.problems] == ["SH953"]
    assert not (folder / "c.answer").exists()
    assert waiting(tmp_path) == ()


def test_only_a_plain_file_is_a_request(tmp_path: Path) -> None:
    folder = tmp_path / "apply"
    (folder / "a.json").mkdir(parents=True)
    os.mkfifo(folder / "b.json")
    (folder / "c.json").symlink_to("/dev/zero")
    assert waiting(tmp_path) == ()
    Engine(tmp_path).tick()


def read_only(path: Path, missing_ok: bool = False) -> None:
    raise OSError(30, "Read-only file system")


def test_on_a_disk_that_is_read_only_old_answers_stay_and_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)
    engine.tick()
    with monkeypatch.context() as dead:
        dead.setattr(Path, "unlink", read_only)
        engine.tick(msgspec.structs.replace(WORLD, at=NOW + 2 * KEPT_S))
    assert ticket.answer() is not None
    engine.tick(msgspec.structs.replace(WORLD, at=NOW + 2 * KEPT_S))
    assert ticket.answer() is None


def test_one_that_cant_be_answered_doesnt_keep_the_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tmp_path)
    first, second = sorted((submit(tmp_path), submit(tmp_path)), key=lambda ticket: ticket.name)
    settle = Ticket.settle

    def refuse(ticket: Ticket, answer: Answer) -> None:
        if ticket.name == first.name:
            raise OSError(13, "Permission denied")
        settle(ticket, answer)

    with monkeypatch.context() as stuck:
        stuck.setattr(Ticket, "settle", refuse)
        with pytest.raises(Stalled, match=f"{first.name}: SH959 .*Permission denied"):
            engine.tick()
    assert second.answer() is not None
    assert first.answer() is None
    engine.tick()
    assert first.answer() == Answer(at=NOW + 1)
    assert engine.plans == [PLAN.digest]


def test_one_can_be_withdrawn_until_it_is_taken(tmp_path: Path) -> None:
    ticket = submit(tmp_path)
    assert ticket.withdraw()
    engine = Engine(tmp_path)
    engine.tick()
    assert engine.plans == []


def test_an_inbox_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "apply").write_text("in the way")
    with pytest.raises(Retry) as caught:
        submit(tmp_path)
    assert caught.value.problem.code == "SH959"


def test_answers_that_nobody_reads_go_after_a_day(tmp_path: Path) -> None:
    engine, ticket = Engine(tmp_path), submit(tmp_path)
    engine.tick()
    tidy(tmp_path, NOW + 1 + KEPT_S)
    assert ticket.answer() is not None
    tidy(tmp_path, NOW + 2 + KEPT_S)
    assert ticket.answer() is None


def test_nothing_waits_where_nothing_was_ever_asked(tmp_path: Path) -> None:
    assert waiting(tmp_path) == ()
    Engine(tmp_path).tick()
    with pytest.raises(Rejected):
        Ticket(tmp_path, "nothing").read()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_ends_when_each_plan_gets_one_yes_and_each_request_an_answer(tmp_path: Path, seed: int) -> None:
    """Requests come and go, engines end at any point: as many plans are carried out as requests got a yes, and each at most once."""
    dice, engine = Random(seed), Engine(tmp_path)
    times = [NOW + n / 8 for n in range(3)]
    plans = [ExactPlan.of(msgspec.structs.replace(PLAN, at=at), Recording(at=at, fleet=Fleet()), now=NOW + 1) for at in times]
    tickets: list[tuple[Ticket, Digest]] = []
    withdrawn: set[str] = set()
    for _ in range(25):
        match dice.choice(["submit", "tick", "crash", "withdraw"]):
            case "submit":
                exact = dice.choice(plans)
                tickets.append((submit(tmp_path, exact), exact.digest))
            case "withdraw" if tickets:
                ticket, _ = dice.choice(tickets)
                if ticket.withdraw():
                    withdrawn.add(ticket.name)
            case "crash":
                engine.ends_at = dice.choice(["before noting", "before accepting", "after accepting", "before telling"])
                with suppress(Crash):
                    engine.tick()
                engine.ends_at = ""
            case _:
                engine.tick()
    engine.tick()
    answers = {ticket.name: ticket.answer() for ticket, _ in tickets}
    assert {name for name, answer in answers.items() if answer is None} == withdrawn
    for exact in plans:
        yes = [t for t, digest in tickets if digest == exact.digest and (a := answers[t.name]) is not None and not a.problems]
        assert len(yes) == engine.plans.count(exact.digest) <= 1
    assert waiting(tmp_path) == ()
