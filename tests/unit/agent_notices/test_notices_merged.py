from collections.abc import Callable, Mapping

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from shunter.model.errors import Problem
from shunter.model.snapshot import FAR_S
from shunter_agent.notices.merged import DAMPED_S, FLAPPING_S, FLAPS, STALE_S, Event, Merged, merge
from shunter_agent.notices.port import Notice


def notice(
    key: str, at: float = 100.0, deadline: float | None = None, kind: str = "preemption", source: str = "aws", detail: str = ""
) -> Notice:
    return Notice(id=key, kind=kind, seen_at=at, deadline=deadline, source=source, detail=detail)


def told(events: Mapping[str, Event]) -> list[Notice]:
    return [e.told for e in events.values() if e.told is not None]


def test_two_sources_of_one_event_make_one_notice_with_the_earlier_deadline() -> None:
    events = merge([notice("a", 101, 220, detail="spot"), notice("b", 100, 230, source="taint", detail="taint")], {}, 102)
    assert told(events) == [notice("b", 100, 220, source="aws, taint", detail="taint; spot")]


def test_a_deadline_that_was_over_when_it_came_is_now_and_no_missing_one() -> None:
    """An agent that restarts after the deadline still knows that the node goes; without a deadline nobody would ever take it for gone."""
    assert told(merge([notice("a", 100, 40)], {}, 102))[0].deadline == 100
    assert told(merge([notice("a", 100, 40), notice("b", 101, 220)], {}, 102))[0].deadline == 100
    assert told(merge([notice("a", 100)], {}, 102))[0].deadline is None


def test_a_deadline_that_was_over_long_ago_isnt_believed_beside_another() -> None:
    """A source that tells an old story would leave no time for the real one."""
    old, new = notice("a", 10_000, 10_000 - STALE_S - 1, source="taint"), notice("b", 10_001, 10_120)
    assert [n.deadline for n in told(merge([old, new], {}, 10_002))] == [10_120]
    assert [n.deadline for n in told(merge([old], {}, 10_002))] == [10_000], "alone it still says that the node goes"
    late = notice("a", 10_000, 10_000 - STALE_S + 1, source="taint")
    assert [n.deadline for n in told(merge([late, new], {}, 10_002))] == [10_000], "an agent that started late"


def test_maintenance_that_has_begun_isnt_put_off_by_what_is_planned() -> None:
    """A deadline that is far away makes a hint of maintenance, and it has begun."""
    planned, begun = notice("a", 100, 100 + FAR_S + 60, kind="maintenance"), notice("b", 100, kind="maintenance", source="taint")
    assert told(merge([planned], {}, 101))[0].deadline == 100 + FAR_S + 60
    assert told(merge([planned, begun], {}, 101))[0].deadline is None
    assert told(merge([planned, begun], {}, 161))[0].deadline == 100 + FAR_S + 60, "by then it is near"


def test_a_canary_is_merged_with_nothing_and_not_damped() -> None:
    real = notice("a", 100, 220)
    bird = msgspec.structs.replace(notice("canary-aws", 101, 103), canary=True)
    other = msgspec.structs.replace(notice("canary-file", 101, 103, source="file"), canary=True)
    events = merge([real, bird, other], {}, 102)
    assert sorted(told(events), key=lambda n: n.id) == [real, bird, other]
    later = msgspec.structs.replace(bird, seen_at=200.0)
    assert [n.seen_at for n in told(merge([later], {**events}, 202)) if n.canary] == [200.0], "when it was last heard"
    for at in range(10):
        events = merge([bird], events, 300.0 + at)
        events = merge([], events, 300.5 + at)
        assert not any(n.canary for n in told(events))


def test_different_kinds_stay_apart() -> None:
    assert {n.id for n in told(merge([notice("a"), notice("b", kind="rebalance")], {}, 102))} == {"a", "b"}


def test_the_name_stays_when_the_first_source_falls_silent() -> None:
    events = merge([notice("a", 100), notice("b", 101)], {}, 102)
    events = merge([notice("b", 101, 150)], events, 103)
    assert [(n.id, n.deadline) for n in told(events)] == [("a", 150)]
    assert told(merge([], events, 104)) == []


def test_one_that_comes_and_goes_is_held_open() -> None:
    events: dict[str, Event] = {}
    now = 0.0
    for _ in range(FLAPS - 1):
        events = merge([notice("a", now)], events, now)
        events = merge([], events, now + 1)
        assert told(events) == []
        now += 10
    events = merge([notice("a", now)], events, now)
    events = merge([], events, now + 1)
    assert told(events), "the third withdrawal isn't believed at once"
    assert told(merge([], events, now + DAMPED_S))
    assert told(merge([], events, now + 1 + DAMPED_S)) == []
    assert merge([], merge([], events, now + 1 + DAMPED_S), now + FLAPPING_S + DAMPED_S) == {}, "in the end all is forgotten"


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c"]), max_size=3), max_size=12))
def test_whatever_comes_and_goes_nothing_open_is_hidden(rounds: list[list[str]]) -> None:
    events: dict[str, Event] = {}
    for index, keys in enumerate(rounds):
        events = merge([notice(key, float(index)) for key in keys], events, float(index))
        assert bool(told(events)) >= bool(keys)
        assert len(told(events)) <= 1


class Fake:
    name = "fake"

    def __init__(self, problem: Problem | None = None) -> None:
        self.say: Callable[[Mapping[str, Notice]], None] = lambda _notices: None
        self.problem = problem
        self.stopped = False

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        self.say = changed
        changed({})

    def stop(self) -> None:
        self.stopped = True

    def health(self) -> tuple[Problem, ...]:
        return (self.problem,) if self.problem else ()


def test_sources_are_merged_as_they_speak() -> None:
    one, other = Fake(), Fake(Problem(code="SH645", what="blind", remedy="look"))
    heard: list[list[str]] = []
    merged = Merged([one, other], clock=lambda: 102.0)
    merged.start(lambda notices: heard.append(sorted(notices)))
    one.say({"a": notice("a")})
    other.say({"b": notice("b", 101)})
    one.say({})
    other.say({})
    assert heard == [[], ["a"], []] or heard == [[], ["a"], ["a"], []]
    assert [p.code for p in merged.health()] == ["SH645"]
    merged.stop()
    assert one.stopped
    assert other.stopped
    one.say({"a": notice("a")})
    assert heard[-1] == []
