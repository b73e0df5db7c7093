"""Each cloud's source against a service that speaks its protocol over real HTTP."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest
from metadata_services import Alibaba, Aws, Azure, Gcp, Service, serving
from shunter.model.errors import Problem, Retry
from shunter_agent.notices import alibaba, aws, azure, clouds, gcp
from shunter_agent.notices.metadata import LARGEST, Metadata
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import BLIND_S, Look, Watching

NOW = 1_767_322_800.0  # 2026-01-02T03:00:00Z
SPOT = "spot/instance-action"
ENDS = '{"action": "terminate", "time": "2026-01-02T03:02:00Z"}'


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def metadata(stack: ExitStack, service: Service, clock: Clock, timeout_s: float = 2.0) -> Metadata:
    stack.enter_context(serving(service, clock))
    client = Metadata("test", service.url, timeout_s=timeout_s, clock=clock)
    stack.callback(client.close)
    return client


def facts(found: Mapping[str, Notice]) -> list[tuple[str, str, float | None]]:
    """Id, kind and seconds to the deadline."""
    return [(n.id, n.kind, None if n.deadline is None else n.deadline - NOW) for n in found.values()]


# -- AWS


def ask_aws(client: Metadata) -> Callable[[], dict[str, Notice]]:
    """Ask all paths, as the threads do."""
    looks = aws.looks(client)
    return lambda: {key: notice for look in looks for key, notice in look.ask().items()}


def test_aws_says_nothing_until_there_is_something(stack: ExitStack, clock: Clock) -> None:
    service = Aws()
    ask = ask_aws(metadata(stack, service, clock))
    assert ask() == {}
    service.says[SPOT] = ENDS
    assert facts(ask()) == [("aws-spot-1767322920", "preemption", 120.0)]
    assert len(service.tokens) == 1, "the token is kept"


@pytest.mark.parametrize(("action", "left"), [("terminate", 120.0), ("stop", 120.0), ("hibernate", 0.0)])
def test_aws_gives_two_minutes_for_whatever_it_does_but_a_hibernation(stack: ExitStack, clock: Clock, action: str, left: float) -> None:
    service = Aws()
    ask = ask_aws(metadata(stack, service, clock))
    service.says[SPOT] = ENDS.replace("terminate", action)
    assert facts(ask()) == [("aws-spot-1767322920", "preemption", left)]
    clock.now += 5.0
    assert facts(ask()) == [("aws-spot-1767322920", "preemption", left)], "it doesn't move with each answer"


def test_aws_tells_hints_maintenance_and_the_groups_wish(stack: ExitStack, clock: Clock) -> None:
    service = Aws()
    ask = ask_aws(metadata(stack, service, clock))
    event = {"NotBefore": "2 Jan 2026 04:00:00 GMT", "Code": "system-reboot", "Description": "", "EventId": "instance-event-1"}
    service.says["events/recommendations/rebalance"] = '{"noticeTime": "2026-01-02T02:59:00Z"}'
    service.says["events/maintenance/scheduled"] = json.dumps(
        [{**event, "State": "active"}, {**event, "EventId": "x", "State": "canceled"}]
    )
    service.says["autoscaling/target-lifecycle-state"] = "Terminated"
    assert facts(ask()) == [
        ("aws-rebalance-1767322740", "rebalance", None),
        ("instance-event-1", "maintenance", 3600.0),
        ("aws-asg-termination", "drain", None),
    ]
    service.says["autoscaling/target-lifecycle-state"] = "InService"
    assert "aws-asg-termination" not in ask()


def test_aws_gets_a_new_token_when_its_own_is_refused_or_old(stack: ExitStack, clock: Clock) -> None:
    service = Aws()
    service.says[SPOT] = ENDS
    ask = ask_aws(metadata(stack, service, clock))
    ask()
    service.tokens.clear()  # the service was restarted
    assert ask()
    assert service.count("PUT", "/latest/api/token") == 2
    clock.now += 3 * 3600 + 1
    ask()
    assert service.count("PUT", "/latest/api/token") == 3


def test_a_clock_that_is_wrong_here_doesnt_move_the_deadline(stack: ExitStack, clock: Clock) -> None:
    service = Aws()
    service.says[SPOT] = ENDS
    service.ahead = 60.0  # the service says 03:01:00, so one minute is left
    ask = ask_aws(metadata(stack, service, clock))
    assert facts(ask()) == [("aws-spot-1767322920", "preemption", 60.0)]


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ((500, "", {}), "SH644"),
        ((200, "<html>login</html>", {}), "SH644"),
        ((200, '{"action": "terminate"}', {}), "SH644"),
        ((200, '{"action": "terminate", "time": "soon"}', {}), "SH644"),
        ((200, '{"action": "terminate", "time": "2026-01-02T03:02:00"}', {}), "SH644"),
        ((200, "x" * (LARGEST + 1), {}), "SH643"),
        ((403, "", {}), "SH644"),
    ],
)
def test_wrong_content_is_no_notice_and_no_all_clear(
    stack: ExitStack, clock: Clock, broken: tuple[int, str, dict[str, str]], code: str
) -> None:
    service = Aws()
    look = aws.looks(metadata(stack, service, clock))[0]
    look.ask()
    service.broken = broken
    with pytest.raises(Retry) as caught:
        look.ask()
    assert caught.value.problem.code == code
    assert "login" not in str(caught.value.problem)


def test_a_service_that_is_away_is_told_as_such(clock: Clock) -> None:
    client = Metadata("aws", "http://127.0.0.1:1", clock=clock)
    with pytest.raises(Retry) as caught:
        aws.looks(client)[0].ask()
    assert caught.value.problem.code == "SH643"
    client.close()


@pytest.mark.parametrize("path", ["events/maintenance/scheduled", "autoscaling/target-lifecycle-state", "events/recommendations/rebalance"])
def test_a_broken_path_hides_no_interruption(stack: ExitStack, clock: Clock, path: str) -> None:
    service = Aws()
    service.says |= {SPOT: ENDS, path: "{"}
    answer = service.answer

    def broken(method: str, asked: str, headers: dict[str, str], body: bytes) -> tuple[int, str, dict[str, str]]:
        return (503, "", {}) if asked.endswith(path) else answer(method, asked, headers, body)

    service.answer = broken  # type: ignore[method-assign]
    stack.enter_context(serving(service, clock))
    told = Told()
    source = clouds.source("aws", url=service.url, clock=clock)
    stack.callback(source.stop)
    source._changed = told
    for look in source._looks:
        source.once(look)
    assert list(told.all[-1]) == ["aws-spot-1767322920"]
    clock.now += BLIND_S
    for look in source._looks:
        source.once(look)
    (problem,) = source.health()
    assert problem.code == "SH645"


# -- Google


def test_gcp_answers_as_soon_as_it_changes_and_its_deadline_stays(stack: ExitStack, clock: Clock) -> None:
    service = Gcp()
    looks = {look.name: look for look in gcp.looks(lambda: metadata(stack, service, clock))}
    preempted = looks["gcp preempted"]
    assert preempted.ask() == {}
    heard: list[Mapping[str, Notice]] = []
    waiting = threading.Thread(target=lambda: heard.append(preempted.ask()))
    waiting.start()
    while not service.waiting:
        waiting.join(0.005)
    service.say("preempted", "TRUE")
    waiting.join(5)
    assert facts(heard[0]) == [("gcp-preempted", "preemption", gcp.LEAD_S)]
    clock.now += 7.0
    service.say("preempted", "TRUE ")  # another answer, the same word
    assert preempted.ask() == heard[0], "the deadline was counted from when it was first seen"


def test_gcp_tells_a_stop_but_no_migration(stack: ExitStack, clock: Clock) -> None:
    service = Gcp()
    host = {look.name: look for look in gcp.looks(lambda: metadata(stack, service, clock))}["gcp maintenance-event"]
    service.say("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    assert host.ask() == {}
    service.say("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    assert facts(host.ask()) == [("gcp-host-maintenance", "maintenance", 60.0)]
    given = {look.name: look for look in gcp.looks(lambda: metadata(stack, service, clock), host_lead_s=3600.0)}
    assert facts(given["gcp maintenance-event"].ask()) == [("gcp-host-maintenance", "maintenance", 3600.0)]
    service.say("maintenance-event", "NONE")
    assert host.ask() == {}
    service.say("maintenance-event", "SOMETHING_NEW")
    with pytest.raises(Retry) as caught:
        host.ask()
    assert caught.value.problem.code == "SH644"


@pytest.mark.parametrize("key", ["windowStartTime", "window_start_time"])
def test_gcp_tells_planned_work(stack: ExitStack, clock: Clock, key: str) -> None:
    service = Gcp()
    upcoming = {look.name: look for look in gcp.looks(lambda: metadata(stack, service, clock))}["gcp upcoming-maintenance"]
    assert upcoming.ask() == {}, "404: there is none"
    service.say("upcoming-maintenance", json.dumps({"type": "SCHEDULED", key: "2026-01-02T04:00:00+01:00"}))
    assert facts(upcoming.ask()) == [("gcp-upcoming-1767322800", "maintenance", 0.0)]


def test_another_server_at_googles_address_is_not_believed(stack: ExitStack, clock: Clock) -> None:
    service = Gcp()
    service.broken = (200, "TRUE", {})
    look = gcp.looks(lambda: metadata(stack, service, clock))[0]
    with pytest.raises(Retry) as caught:
        look.ask()
    assert caught.value.problem.code == "SH644"


# -- Azure


def event(key: str = "e1", **more: object) -> dict[str, object]:
    before = {"EventId": key, "EventStatus": "Scheduled", "EventType": "Preempt", "ResourceType": "VirtualMachine"}
    return {**before, "Resources": ["vm-0"], "NotBefore": "Fri, 02 Jan 2026 03:00:30 GMT", "Description": "", **more}


def test_azure_tells_its_own_machines_events_alone(stack: ExitStack, clock: Clock) -> None:
    service = Azure()
    service.events = [event(), event("e2", Resources=["vm-1"]), event("e3", EventType="Freeze"), event("e4", EventType="Reboot")]
    (look,) = azure.looks(metadata(stack, service, clock), empty=lambda: False)
    assert facts(look.ask()) == [("e1", "preemption", 30.0), ("e4", "maintenance", 30.0)]
    service.events = [event(EventStatus="Started", NotBefore="")]
    clock.now += 10.0
    assert facts(look.ask()) == [("e1", "preemption", 30.0)], "what was told before it started still counts"
    service.events = []
    assert look.ask() == {}
    service.events = [event("e9", EventStatus="Started", NotBefore="")]
    assert facts(look.ask()) == [("e9", "preemption", 10.0)], "never told before: it is now"


def test_azure_is_told_to_go_ahead_only_when_nobody_is_left_and_nobody_else_is_named(stack: ExitStack, clock: Clock) -> None:
    service = Azure()
    workers = ["decode-0"]
    (look,) = azure.looks(metadata(stack, service, clock), empty=lambda: not workers, acknowledge=True)
    service.events = [event(), event("shared", Resources=["vm-0", "vm-1"]), event("begun", EventStatus="Started")]
    look.ask()
    assert service.started == []
    workers.clear()
    look.ask()
    look.ask()
    assert service.started == ["e1"]


def test_an_acknowledgement_that_isnt_taken_hides_no_event(stack: ExitStack, clock: Clock) -> None:
    service = Azure()
    (look,) = azure.looks(metadata(stack, service, clock), empty=lambda: True, acknowledge=True)
    service.refuses = True
    service.events = [event()]
    assert list(look.ask()) == ["e1"]
    assert [p.code for p in look.problems()] == ["SH644"]
    service.say([event("e2")])
    assert list(look.ask()) == ["e2"]
    service.refuses = False
    assert (list(look.ask()), service.started, look.problems()) == (["e2"], ["e2"], ())


def test_azure_isnt_told_anything_unless_that_is_wanted(stack: ExitStack, clock: Clock) -> None:
    service = Azure()
    service.events = [event()]
    (look,) = azure.looks(metadata(stack, service, clock), empty=lambda: True)
    look.ask()
    assert service.started == []


def test_azures_slow_first_answer_is_waited_for(stack: ExitStack, clock: Clock) -> None:
    service = Azure()
    began = threading.Event()
    answer = service.answer

    def slow(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, dict[str, str]]:
        if path.startswith("/metadata/scheduledevents") and not began.is_set():
            began.wait(0.4)
        return answer(method, path, headers, body)

    service.answer = slow  # type: ignore[method-assign]
    client = metadata(stack, service, clock, timeout_s=0.1)
    (look,) = azure.looks(client, empty=lambda: False)
    assert look.ask() == {}
    with pytest.raises(Retry):
        look.ask()  # the second one may not take so long
    began.set()


# -- Alibaba


@pytest.mark.parametrize("hardened", [True, False])
def test_alibaba_with_and_without_tokens(stack: ExitStack, clock: Clock, hardened: bool) -> None:
    service = Alibaba(hardened=hardened)
    (look,) = alibaba.looks(metadata(stack, service, clock))
    assert look.ask() == {}
    service.ends = "2026-01-02T03:05:00Z"
    assert facts(look.ask()) == [("alibaba-spot-1767323100", "preemption", 300.0)]


# -- the threads


class Told:
    def __init__(self) -> None:
        self.all: list[dict[str, Notice]] = []
        self.problems: list[Problem] = []
        self.news = threading.Event()

    def __call__(self, found: Mapping[str, Notice]) -> None:
        self.all.append(dict(found))
        self.news.set()


def test_a_source_tells_news_and_forgets_nothing_while_its_service_is_away(stack: ExitStack, clock: Clock) -> None:
    service = Aws()
    stack.enter_context(serving(service, clock))
    told = Told()
    source = clouds.source("aws", url=service.url, clock=clock, log=told.problems.append)
    look = source._looks[0]
    source._changed = told
    service.says[SPOT] = ENDS
    source.once(look)
    assert list(told.all[-1]) == ["aws-spot-1767322920"]
    service.broken = (500, "", {})
    clock.now += 5.0
    source.once(look)
    assert source.health() == (), "a moment's silence is no blindness"
    clock.now += BLIND_S
    source.once(look)
    source.once(look)
    (problem,) = source.health()
    assert (problem.code, problem.what[:45]) == ("SH645", "aws spot is blind since 2026-01-02T03:00:05Z:")
    assert told.problems == [problem], "it is logged once"
    assert len(told.all) == 1, "and the notice stands"
    service.broken = None
    source.once(look)
    assert (source.health(), len(told.all)) == ((), 1)
    del service.says[SPOT]
    source.once(look)
    assert told.all[-1] == {}
    source.stop()


def test_a_running_source_finds_a_notice_by_itself_and_stops(stack: ExitStack) -> None:
    service = Gcp()
    stack.enter_context(serving(service))
    told = Told()
    source = clouds.source("gcp", url=service.url)
    source.start(told)
    assert told.all == [{}], "what is open is told at once"
    told.news.clear()
    service.say("preempted", "TRUE")
    assert told.news.wait(10)
    assert list(told.all[-1]) == ["gcp-preempted"]
    source.stop()
    service.say("preempted", "FALSE")


def test_a_fault_of_ours_makes_a_source_blind_and_not_dead(clock: Clock) -> None:
    def ask() -> Mapping[str, Notice]:
        raise KeyError("oops")

    look = Look(name="odd", ask=ask, every=1.0)
    source = Watching("odd", [look], clock=clock)
    source.once(look)
    clock.now += BLIND_S
    (problem,) = source.health()
    assert "KeyError" in problem.what
