"""Canaries: every source's own code hears a notice that is none, and nothing can take it for one."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.model.errors import Problem, Retry
from shunter_agent.notices import aws, canary, gcp, nodepods
from shunter_agent.notices.canary import Canary, canaries, stands
from shunter_agent.notices.merged import Merged
from shunter_agent.notices.port import Notice, NoticeSource
from shunter_agent.settings import CloudSettings, HttpSettings, KubernetesSettings, Settings, SlotSettings, TlsSettings

EVERYTHING = Settings(
    node="n",
    listen="",
    image_listen="",
    state=Path("/nowhere"),
    tls=TlsSettings(ca=Path("ca"), cert=Path("cert"), key=Path("key")),
    slots=(SlotSettings(index=0, pci=("0000:4f:00",)),),
    notices=Path("/nowhere/notices"),
    clouds=tuple(CloudSettings(name=name) for name in ("aws", "gcp", "azure", "alibaba")),
    kernel_log=Path("/nowhere/kmsg"),
    dcgm="http://127.0.0.1:1",
    kubernetes=KubernetesSettings(pods=True),
    http=(HttpSettings(name="slurm", url="http://127.0.0.1:1/notices"),),
)
NAMES = ["alibaba", "aws", "azure", "dcgm", "file", "gcp", "gpu", "kubernetes", "slurm"]


class Heard:
    def __init__(self) -> None:
        self.last: Mapping[str, Notice] = {}
        self.problems: list[Problem] = []

    def __call__(self, found: Mapping[str, Notice]) -> None:
        self.last = dict(found)

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 20
        while not done():
            assert time.monotonic() < end, (self.last, self.problems)
            time.sleep(0.01)


def test_each_source_in_the_settings_has_one() -> None:
    assert sorted(stands(EVERYTHING, time.time)) == NAMES
    assert canaries(msgspec.structs.replace(EVERYTHING, canaries=0.0), clock=time.time, log=lambda _: None) == []


def test_every_sources_code_hears_its_canary_and_merging_keeps_them_apart() -> None:
    """Through the services' own protocols over real HTTP, files and threads; a real notice beside them stays what it is."""
    heard = Heard()
    real = Notice(id="real", kind="preemption", seen_at=1.0, deadline=121.0, source="file")
    merged = Merged([Said({"real": real}), *canaries(EVERYTHING, clock=lambda: 1_000.0, log=heard.problems.append)], clock=lambda: 1_000.0)
    merged.start(heard)
    try:
        heard.until(lambda: len(heard.last) == len(NAMES) + 1)
    finally:
        merged.stop()
    assert heard.problems == []
    assert heard.last["real"] == real
    told = {n.source: n for n in heard.last.values() if n.canary}
    assert sorted(told) == NAMES
    assert {n.seen_at for n in told.values()} == {1_000.0}
    assert {name: n.kind for name, n in told.items()} == {**dict.fromkeys(NAMES, "preemption"), "dcgm": "gpu-failing", "gpu": "gpu-failing"}


class Said:
    name = "said"

    def __init__(self, found: Mapping[str, Notice]) -> None:
        self._found = found

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        changed(self._found)

    def stop(self) -> None:
        pass

    def health(self) -> tuple[Problem, ...]:
        return ()


def rehearsed(stand: Callable[..., NoticeSource], **more: Any) -> tuple[Canary, Heard]:
    heard = Heard()
    one = Canary("aws", stand, every=3600, clock=lambda: 1_000.0, log=heard.problems.append, **more)
    one._changed = heard
    one.rehearse()
    return one, heard


def test_a_detector_that_has_gone_blind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's answer is as always, and our code doesn't find the notice in it."""
    stand = stands(EVERYTHING, time.time)["aws"]
    one, heard = rehearsed(stand)
    assert [n.source for n in heard.last.values()] == ["aws"]
    assert one.health() == ()
    monkeypatch.setattr(aws, "_SPOT", "/latest/meta-data/spot/instance-akshun")
    monkeypatch.setattr(aws, "EVERY_S", 0.05)
    one, heard = rehearsed(stand, within=0.3)
    assert heard.last == {}
    assert [p.code for p in one.health()] == ["SH654"]
    assert heard.problems == list(one.health())
    monkeypatch.undo()
    one._within = canary.WITHIN_S
    one.rehearse()
    assert one.health() == ()
    assert [n.source for n in heard.last.values()] == ["aws"]


@pytest.mark.parametrize(
    ("source", "module", "name", "deaf"),
    [
        ("aws", aws, "_SPOT", "aws spot"),
        ("aws", aws, "_REBALANCE", "aws rebalance"),
        ("aws", aws, "_MAINTENANCE", "aws maintenance"),
        ("aws", aws, "_LIFECYCLE", "aws lifecycle"),
        ("gcp", gcp, "_UPCOMING", "gcp elsewhere"),
    ],
)
def test_each_way_of_looking_has_to_hear_it(monkeypatch: pytest.MonkeyPatch, source: str, module: object, name: str, deaf: str) -> None:
    """What the others hear hides none that hears nothing: it is told which."""
    monkeypatch.setattr(module, name, "/elsewhere" if source == "aws" else "elsewhere")
    one, heard = rehearsed(stands(EVERYTHING, time.time)[source], within=0.5)
    (problem,) = one.health()
    assert (heard.last, problem.code) == ({}, "SH654")
    assert problem.what.endswith(f"nothing was heard of it by {deaf}")


def test_pods_have_to_be_heard_where_they_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodepods, "SLOT", "shunter.dev/elsewhere")
    one, _ = rehearsed(stands(EVERYTHING, time.time)["kubernetes"], within=0.5)
    (problem,) = one.health()
    assert problem.what.endswith("by kubernetes pods")
    without = msgspec.structs.replace(EVERYTHING, kubernetes=KubernetesSettings())
    one, _ = rehearsed(stands(without, time.time)["kubernetes"])
    assert one.health() == ()


def test_one_that_cant_be_set_up_is_missed_too() -> None:
    def broken(*_: object) -> NoticeSource:
        raise Retry(Problem(code="SH643", what="no room", remedy="make some"))

    one, _ = rehearsed(broken, within=0.0)
    (problem,) = one.health()
    assert "no room" in problem.what


def test_what_was_set_up_by_half_is_taken_down() -> None:
    class Half(Said):
        stopped = False

        def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
            raise OSError("no more watches")

        def stop(self) -> None:
            self.stopped = True

    half = Half({})
    one, _ = rehearsed(lambda *_: half, within=0.0)
    (problem,) = one.health()
    assert ("no more watches" in problem.what, half.stopped) == (True, True)


def test_one_that_never_comes_to_an_end_is_told_and_so_is_that_none_begins_any_more() -> None:
    """Whatever its thread hangs in: that nobody tries is no proof either."""
    now, hangs, released = [1_000.0], threading.Event(), threading.Event()

    def stand(*_: object) -> NoticeSource:
        hangs.set()
        released.wait(10)
        return Said({"real": Notice(id="real", kind="preemption", seen_at=1.0, source="file")})

    heard = Heard()
    one = Canary("aws", stand, every=3600, elapsed=lambda: now[0])
    one.start(heard)
    try:
        assert hangs.wait(10)
        assert one.health() == ()
        now[0] += 121
        assert [(p.code, p.subject) for p in one.health()] == [("SH654", "aws")]
        released.set()
        heard.until(lambda: one.health() == () and bool(heard.last))
        now[0] += 3600
        assert one.health() == ()
        now[0] += 121
        assert [p.code for p in one.health()] == ["SH654"]
    finally:
        one.stop()
