"""What a source that has to be asked tells of its own silence."""

import threading
from collections.abc import Mapping

from shunter.model.errors import Problem, Retry
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import Look, Watching

NOW = 1_767_322_800.0


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def test_a_question_that_never_ends_is_silence_too() -> None:
    """No answer and no failure: a peer that keeps the connection and says nothing."""
    clock, asked, end = Clock(), threading.Event(), threading.Event()

    def ask() -> Mapping[str, Notice]:
        asked.set()
        assert end.wait(20)
        return {}

    look = Look(name="slow", ask=ask, every=0.01, patience=60.0)
    source = Watching("slow", [look], clock=clock)
    source.start(lambda _found: None)
    assert asked.wait(10)
    clock.now += 59
    assert source.health() == ()
    clock.now += 1
    (problem,) = source.health()
    assert (problem.code, problem.what) == (
        "SH645",
        "slow is blind since 2026-01-02T03:00:00Z: it doesn't answer within 60 s",
    )
    end.set()
    while source.health():
        assert asked.wait(10)
    source.stop()


def test_it_rests_longer_after_each_failure_and_not_after_an_answer() -> None:
    answers, failures, done = iter("fffaf"), list[int](), threading.Event()

    def ask() -> Mapping[str, Notice]:
        match next(answers, ""):
            case "f":
                raise Retry(Problem(code="SH643", what="away", remedy=""))
            case "a":
                return {}
        done.set()
        return {}

    def rest(number: int) -> float:
        failures.append(number)
        return 0.0

    source = Watching("s", [Look(name="s", ask=ask, every=0.01, rest=rest)])
    source.start(lambda _found: None)
    assert done.wait(10)
    source.stop()
    assert failures == [1, 2, 3, 1]


def test_what_a_look_finds_wrong_besides_is_told_once_and_shown_while_it_is_so() -> None:
    stuck, logged = Problem(code="SH650", what="old", remedy=""), list[Problem]()
    found = [stuck]
    look = Look(name="k", ask=dict, every=1.0, problems=lambda: tuple(found))
    source = Watching("k", [look], log=logged.append)
    source.once(look)
    source.once(look)
    assert (source.health(), logged) == ((stuck,), [stuck])
    found.clear()
    source.once(look)
    assert source.health() == ()
