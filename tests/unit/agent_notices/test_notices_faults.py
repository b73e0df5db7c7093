"""Every cloud's source under every fault: what was said stands, what can't be seen is told, and all is as before once the service is."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from email.utils import formatdate

import msgspec
import pytest
from metadata_services import Alibaba, Answer, Aws, Azure, Gcp, Service, serving
from shunter.model.errors import Problem
from shunter_agent.notices import alibaba, aws, azure, gcp
from shunter_agent.notices.metadata import Metadata
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import BLIND_S, Look, Watching

NOW = 1_767_322_800.0  # 2026-01-02T03:00:00Z
LEAD = 120.0


class Case(msgspec.Struct):
    """A cloud: its service, what to ask it, how it says that the machine goes in LEAD seconds, and how it takes that back."""

    service: Service
    look: Callable[[Metadata], Look]
    says: Callable[[], object]
    unsays: Callable[[], object]


def aws_case() -> Case:
    service = Aws()
    path = "spot/instance-action"
    return Case(
        service=service,
        look=lambda client: aws.looks(client)[0],
        says=lambda: service.says.update({path: '{"action": "terminate", "time": "2026-01-02T03:02:00Z"}'}),
        unsays=lambda: service.says.pop(path),
    )


def gcp_case() -> Case:
    service = Gcp()
    return Case(
        service=service,
        look=lambda client: gcp.looks(lambda: client, lead_s=LEAD)[0],
        says=lambda: service.say("preempted", "TRUE"),
        unsays=lambda: service.say("preempted", "FALSE"),
    )


def azure_case() -> Case:
    service = Azure()
    event = {"EventId": "e1", "EventType": "Preempt", "Resources": ["vm-0"], "NotBefore": formatdate(NOW + LEAD, usegmt=True)}
    return Case(
        service=service,
        look=lambda client: azure.looks(client, empty=lambda: False)[0],
        says=lambda: service.say([event]),
        unsays=lambda: service.say([]),
    )


def alibaba_case() -> Case:
    service = Alibaba()
    return Case(
        service=service,
        look=lambda client: alibaba.looks(client)[0],
        says=lambda: setattr(service, "ends", "2026-01-02T03:02:00Z"),
        unsays=lambda: setattr(service, "ends", None),
    )


CASES = {"aws": aws_case, "gcp": gcp_case, "azure": azure_case, "alibaba": alibaba_case}


class Asked:
    """A cloud's source over real HTTP, with a clock that only the test moves."""

    def __init__(self, case: Case, stack: ExitStack) -> None:
        self.now, self.case = NOW, case
        self.problems: list[Problem] = []
        stack.enter_context(serving(case.service, lambda: self.now))
        client = Metadata("cloud", case.service.url, timeout_s=0.15, clock=lambda: self.now)
        stack.callback(client.close)
        self.look = case.look(client)
        self.source = Watching("cloud", [self.look], clock=lambda: self.now, log=self.problems.append)
        self.source._changed = self._changed
        self.open: Mapping[str, Notice] = {}

    def _changed(self, found: Mapping[str, Notice]) -> None:
        self.open = found

    def ask(self) -> list[float | None]:
        """Ask once; the seconds that are left by each notice that is open."""
        self.source.once(self.look)
        return [None if n.deadline is None else n.deadline - self.now for n in self.open.values()]


@pytest.fixture(params=sorted(CASES))
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    monkeypatch.setattr(gcp, "WAIT_S", 0.05)
    monkeypatch.setattr(gcp, "_LATE_S", 0.15)
    monkeypatch.setattr(azure, "FIRST_S", 0.6)
    with ExitStack() as stack:
        yield Asked(CASES[request.param](), stack)


GOOGLE = {"Metadata-Flavor": "Google"}
WRONG: Mapping[str, Answer] = {
    "500": (500, "", GOOGLE),
    "503": (503, "try later", GOOGLE),
    "401 for good": (401, "", GOOGLE),
    "403": (403, "", GOOGLE),
    "302": (302, "", {**GOOGLE, "Location": "http://127.0.0.1:1/"}),
    "another's page": (200, "<html>log in</html>", GOOGLE),
    "nothing": (200, "", GOOGLE),
    "half of it": (200, '{"action": "terminate", "ti', GOOGLE),
    "another's JSON": (200, '{"Events": "none", "time": 7}', GOOGLE),
    "too much": (200, "x" * 300_000, GOOGLE),
}


@pytest.mark.parametrize("fault", sorted(WRONG))
def test_whatever_is_answered_instead_of_the_protocol_is_no_word_that_the_machine_stays(asked: Asked, fault: str) -> None:
    _stands(asked, lambda: setattr(asked.case.service, "broken", WRONG[fault]), lambda: setattr(asked.case.service, "broken", None))


def test_an_answer_that_doesnt_come_is_no_word_that_the_machine_stays(asked: Asked) -> None:
    service, released = asked.case.service, threading.Event()
    answer = service.answer

    def never(method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        released.wait(5.0)
        return answer(method, path, headers, body)

    _stands(asked, lambda: setattr(service, "answer", never), lambda: (setattr(service, "answer", answer), released.set()))


def test_a_404_is_no_word_that_the_machine_stays_but_where_the_protocol_says_so(asked: Asked) -> None:
    service = asked.case.service
    if isinstance(service, (Aws, Alibaba)):
        asked.case.says()
        assert asked.ask() == [LEAD]
        asked.case.unsays()  # to a 404
        assert (asked.ask(), asked.source.health()) == ([], ())
        return
    _stands(asked, lambda: setattr(service, "broken", (404, "", GOOGLE)), lambda: setattr(service, "broken", None))


def _stands(asked: Asked, breaks: Callable[[], object], mends: Callable[[], object]) -> None:
    assert asked.ask() == []
    asked.case.says()
    assert asked.ask() == [LEAD]
    breaks()
    asked.now += 1.0
    assert asked.ask() == [LEAD - 1]
    assert asked.source.health() == ()
    asked.now += BLIND_S
    assert asked.ask() == [LEAD - 1 - BLIND_S], "counted from when it was said, and not anew"
    assert [p.code for p in asked.source.health()] == [p.code for p in asked.problems] == ["SH645"]
    assert "log in" not in asked.problems[0].what
    mends()
    assert (asked.ask(), asked.source.health()) == ([LEAD - 1 - BLIND_S], ())
    asked.case.unsays()
    assert asked.ask() == [], "it was cancelled"


@pytest.mark.parametrize("ahead", [-3600.0, -45.0, 45.0, 3600.0])
def test_a_clock_that_differs_from_the_services_changes_nothing_of_how_long_is_left(asked: Asked, ahead: float) -> None:
    """All but Google's name the instant, by their own clock."""
    asked.now -= ahead
    asked.case.service.ahead = ahead
    asked.case.says()
    assert asked.ask() == [LEAD]


@pytest.mark.parametrize("asked", ["alibaba", "aws"], indirect=True)
def test_a_token_that_is_refused_or_old_is_made_anew(asked: Asked) -> None:
    service = asked.case.service
    assert isinstance(service, (Aws, Alibaba))
    asked.case.says()
    assert asked.ask() == [LEAD]
    service.forget_tokens()  # as after a restart of the service
    assert (asked.ask(), asked.source.health()) == ([LEAD], ())
    assert service.count("PUT", "/latest/api/token") == 2
    asked.now += 3 * 3600 + 1
    asked.ask()
    assert service.count("PUT", "/latest/api/token") == 3
