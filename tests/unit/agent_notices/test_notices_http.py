"""Anything that answers HTTP as a source of notices."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from metadata_services import Answer, Service, serving
from shunter.model.errors import Retry
from shunter_agent.notices import sources
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import Watching
from shunter_agent.settings import HttpSettings

NOW = 1_767_322_800.0


Facts = list[tuple[str, str, float | None, str]]
"""Id, kind, seconds to the deadline, source."""
Asks = Callable[..., Callable[[], Facts]]


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


class Provider(Service):
    def __init__(self) -> None:
        super().__init__()
        self.says: Any = None
        self.token = ""

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if path != "/v1/notices?node=n":
            return 404, "", {}
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            return 401, "", {}
        return (204, "", {}) if self.says is None else (200, self.says if isinstance(self.says, str) else json.dumps(self.says), {})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def provider(clock: Clock) -> Iterator[Provider]:
    with serving(found := Provider(), clock):
        yield found


@pytest.fixture
def asks(provider: Provider, clock: Clock) -> Iterator[Asks]:
    made: list[Watching] = []

    def asks(path: str = "/v1/notices?node=n", **more: Any) -> Callable[[], Facts]:
        given = HttpSettings(name="oci", url=provider.url + path, **more)
        made.append(source := sources.asked(given, clock=clock, log=lambda _problem: None))

        def ask() -> Facts:
            found: list[Notice] = list(source._looks[0].ask().values())
            return [(n.id, n.kind, None if n.deadline is None else n.deadline - NOW, n.source) for n in found]

        return ask

    yield asks
    for source in made:
        source.stop()


def test_it_has_nothing_to_say_until_it_has(asks: Asks, provider: Provider, clock: Clock) -> None:
    ask = asks()
    assert ask() == []
    provider.says = {"id": "a", "kind": "preemption", "deadline": "2026-01-02T03:02:00Z", "detail": "reclaimed"}
    assert ask() == [("a", "preemption", 120.0, "oci")]
    provider.says = [provider.says, {"id": "b", "kind": "maintenance"}]
    assert ask() == [("a", "preemption", 120.0, "oci"), ("b", "maintenance", None, "oci")]
    provider.says = []
    assert ask() == []


def test_a_lead_doesnt_move_with_each_answer_and_a_clock_that_differs_is_allowed_for(asks: Asks, provider: Provider, clock: Clock) -> None:
    ask = asks()
    provider.says = {"id": "a", "kind": "preemption", "lead": "120s"}
    assert ask() == [("a", "preemption", 120.0, "oci")]
    clock.now += 30
    assert ask() == [("a", "preemption", 120.0, "oci")]
    clock.now = NOW
    provider.ahead = 60.0
    provider.says = {"id": "c", "kind": "preemption", "deadline": "2026-01-02T03:03:00Z"}
    assert ask() == [("c", "preemption", 120.0, "oci")], "by our clock"


@pytest.mark.parametrize("says", ["nonsense", '{"id": "a"}', '{"id": "a", "kind": "soon"}', '[{"id": "a", "kind": "drain"}, 7]', "[1", ""])
def test_half_an_answer_isnt_believed(asks: Asks, provider: Provider, clock: Clock, says: str) -> None:
    provider.says = says
    with pytest.raises(Retry) as caught:
        asks()()
    assert caught.value.problem.code == "SH644"


def test_a_wrong_address_isnt_nothing_to_say(asks: Asks, provider: Provider, clock: Clock) -> None:
    with pytest.raises(Retry):
        asks("/v2")()


def test_its_token_is_read_anew_each_time(asks: Asks, provider: Provider, clock: Clock, tmp_path: Path) -> None:
    token = tmp_path / "token"
    ask = asks(token=token)
    provider.token = "one"
    with pytest.raises(Retry, match="token can't be read"):
        ask()
    token.write_text("one\n")
    assert ask() == []
    provider.token = "two"
    with pytest.raises(Retry):
        ask()
    token.write_text("two\n")
    assert ask() == []
