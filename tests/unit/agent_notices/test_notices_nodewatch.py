"""List and watch against a server whose every word is chosen here; tests/apiserver has a real one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from metadata_services import Answer, Service, serving
from shunter.model.errors import Problem, Retry
from shunter_agent.notices import listwatch, nodewatch
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.kubernetes import NodeObject
from shunter_agent.notices.listwatch import Access, Copy, Times
from shunter_agent.notices.nodewatch import NodeSource

TIMES = Times(least=1, most=1, steady=1.0, doubt=60.0, rest_first=1.0, rest_most=10.0)


def node(version: int, *taints: str, uid: str = "u") -> dict[str, Any]:
    meta = {"name": "n", "uid": uid, "resourceVersion": str(version)}
    return {"kind": "Node", "metadata": meta, "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]}}


class Server(Service):
    """Answers lists with `nodes`, and each watch with the next of `events`."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[dict[str, Any]] = [node(5)]
        self.version = "5"
        self.events: list[Answer | list[Any]] = []

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if "watch=true" not in path:
            return 200, json.dumps({"metadata": {"resourceVersion": self.version}, "items": self.nodes}), {}
        said = self.events.pop(0) if self.events else []
        return said if isinstance(said, tuple) else (200, "".join(json.dumps(event) + "\n" for event in said), {})

    @property
    def watched(self) -> list[str]:
        """The versions that watches began from."""
        return [httpx.URL(path).params["resourceVersion"] for _, path in self.asked if "watch=true" in path]

    @property
    def lists(self) -> int:
        return sum("watch=true" not in path for _, path in self.asked)


class Clock:
    """Each look at it is a second later, so that no watch seems to end at once."""

    now, step = 0.0, 1.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(found := Server()):
        yield found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copy(server: Server, clock: Clock) -> Iterator[Copy[NodeObject]]:
    access = Access(server=server.url)
    made = Copy(lambda: access.client(TIMES), "/api/v1/nodes", "metadata.name=n", NodeObject, TIMES, clock=clock, rnd=lambda: 0.5)
    yield made
    made.close()


def taints(copy: Copy[NodeObject]) -> list[str]:
    return [taint.key for found in copy.objects.values() for taint in found.spec.taints or ()]


def test_it_lists_once_and_follows_from_there(server: Server, copy: Copy[NodeObject]) -> None:
    marked = {"type": "BOOKMARK", "object": {"kind": "Node", "metadata": {"resourceVersion": "9"}}}
    server.events = [
        [{"type": "MODIFIED", "object": node(6, "a")}, {"type": "MODIFIED", "object": node(7, "a", "b")}],
        [marked],
        [{"type": "DELETED", "object": node(10)}, {"type": "ADDED", "object": node(11, "c", uid="v")}],
    ]
    seen = []
    for _ in range(8):
        copy.step()
        seen.append(taints(copy))
    assert seen == [[], ["a"], ["a", "b"], ["a", "b"], ["a", "b"], [], ["c"], ["c"]]
    assert (server.lists, server.watched) == (1, ["5", "7", "9"])
    assert "fieldSelector=metadata.name%3Dn" in server.asked[0][1], "its own node and no other"


@pytest.mark.parametrize(
    "said",
    [
        (410, '{"message": "too old"}', {}),
        (500, "", {}),
        (403, "", {}),
        [{"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}],
        (200, "<html>\n", {}),
        (200, '{"type": "MODIFIED"}\n', {}),
        (200, '{"type": "MODIFIED", "object": {"metadata": {"name": 7}}}\n', {}),
    ],
)
def test_after_whatever_goes_wrong_it_is_listed_anew(server: Server, copy: Copy[NodeObject], said: Any) -> None:
    server.events = [said]
    copy.step()
    with pytest.raises(Retry) as caught:
        copy.step()
    assert caught.value.problem.code == "SH648"
    assert taints(copy) == [], "what was known stays"
    server.nodes, server.version = [node(20, "x")], "20"
    copy.step()
    assert (taints(copy), server.lists) == (["x"], 2)


def test_half_an_event_is_none(server: Server, copy: Copy[NodeObject]) -> None:
    server.events = [(200, json.dumps({"type": "MODIFIED", "object": node(6, "a")}), {})]
    copy.step()
    copy.step()
    assert taints(copy) == [], "its end never came"


def test_a_copy_that_wasnt_listed_for_long_is_listed_anew(server: Server, copy: Copy[NodeObject], clock: Clock) -> None:
    """A server that was set back to an older state takes our version for one of the future, and stays silent."""
    copy.step()
    copy.step()
    assert server.lists == 1
    clock.now += TIMES.doubt
    server.nodes = [node(2, "old")]
    copy.step()
    assert (taints(copy), server.lists) == (["old"], 2)


def test_an_event_without_an_end_is_no_event(server: Server, copy: Copy[NodeObject], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listwatch, "LARGEST", 1000)
    server.events = [(200, "x" * 2000, {})]
    copy.step()
    with pytest.raises(Retry, match="more than 1,000 bytes"):
        copy.step()


def test_the_nodes_taints_are_told_besides_its_notices(server: Server) -> None:
    made = nodewatch.source(Access(server=server.url), "n", "n", Gpus(), times=TIMES)
    assert list(made.taints()) == [], "before it was seen"
    server.nodes = [node(5, "team", "gpu")]
    source = NodeSource(Access(server=server.url), "n", "n", Gpus(), pods=False, times=TIMES)
    (look,) = source.looks()
    look.ask()
    assert list(map(str, source.taints())) == ["gpu:NoSchedule", "team:NoSchedule"]
    server.events = [[{"type": "DELETED", "object": node(6, "team", "gpu")}]]
    look.ask()
    assert len(source.taints()) == 2, "that its object is gone is no reason to come"
    source.close()


def test_where_no_watch_gets_through_it_asks_ever_less_often(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list is an answer, and no reason to hurry."""
    monkeypatch.setattr(nodewatch.random, "random", lambda: 1.0)
    source = NodeSource(Access(server=server.url), "n", "n", Gpus(), pods=False, times=TIMES)
    (look,) = source.looks()
    assert look.rest is not None
    rests, told = [], []
    for _ in range(6):
        look.ask()
        told.append(len(look.problems()))
        with pytest.raises(Retry, match="at once"):
            look.ask()
        rests.append(look.rest(1))
    source.close()
    assert rests == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert told == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("access", "why"),
    [
        (Access(), "this is no pod"),
        (Access(server="https://127.0.0.1:1", ca=Path("/nowhere/ca.crt")), "TLS can't be set up"),
        (Access(server="http://127.0.0.1:1", token=Path("/nowhere/token")), "No such file"),
        (Access(server="http://127.0.0.1:1"), "Connection refused"),
    ],
)
def test_what_keeps_it_from_asking_is_told(access: Access, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    problems: list[Problem] = []
    source = nodewatch.source(access, "n", "n", Gpus(), log=problems.append)
    with pytest.raises(Retry) as caught:
        source._looks[0].ask()
    source.stop()
    assert caught.value.problem.code == "SH648"
    assert why in caught.value.problem.what
