"""No worker is frozen, and none is restored, where a small process couldn't be: it is tried when the agent starts."""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest
from agent_fakes import SPEC, Bench, FakeClock, problem
from shunter.model.errors import Problem
from shunter.wire import agent_pb2 as pb
from shunter_agent import convert
from shunter_agent.preflight import Room, preflight
from shunter_agent.runtime import proven
from shunter_agent.runtime.proven import Proven

ROOMY = Room(disk=10**12, memory=10**12)


class Canary:
    """A trial that says what it is told to."""

    def __init__(self) -> None:
        self.says: tuple[Problem, ...] | OSError = ()
        self.flown = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, folder: Path) -> tuple[Problem, ...]:
        self.flown += 1
        assert not folder.exists()
        folder.mkdir()
        self.may_end.wait(20)
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


async def refused(bench: Bench, *, destination: bool, room: Room = ROOMY) -> list[str]:
    order = pb.PreflightOrder(order=bench.order())
    if destination:
        order = pb.PreflightOrder(order=bench.order(), destination=True, slot="n/0", spec=convert.spec_message(SPEC))
    return [one.code for one in (await preflight(bench.node, order, lambda _root: room)).refusals]


@pytest.fixture
def canary() -> Canary:
    return Canary()


async def test_both_sides_refuse_while_it_fails_and_try_again_when_asked_later(tmp_path: Path, canary: Canary) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    here, there = Bench(tmp_path / "here"), Bench(tmp_path / "there", worker=False)
    clock, told = FakeClock(), list[Problem]()
    canary.says = (problem("SH704"),)
    trial = Proven(canary, tmp_path / "canary", told.append, clock)
    here.node.proven = there.node.proven = trial
    assert await refused(here, destination=False) == ["SH704"]
    assert await refused(there, destination=True) == ["SH704"]
    assert (canary.flown, [one.code for one in told]) == (2, ["SH704"]), "it is believed when it comes twice"

    canary.says = ()
    clock.now += proven.AGAIN_S - 1
    assert await refused(here, destination=False) == ["SH704"], "it isn't tried at every question"
    clock.now += 1
    (tmp_path / "canary").mkdir(exist_ok=True)  # of an agent that was killed
    assert await refused(here, destination=False) == []
    assert await refused(there, destination=True) == []
    clock.now += 1e6
    assert await refused(there, destination=True) == []
    assert canary.flown == 3, "what works isn't tried again"
    await trial.close()


async def test_one_that_goes_on_is_waited_for_and_no_longer_than_that(
    tmp_path: Path, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary.may_end.clear()
    trial = Proven(canary, tmp_path / "canary", lambda _problem: None)
    asked = asyncio.create_task(trial.problems())
    await asyncio.sleep(0)
    assert not asked.done()
    canary.may_end.set()
    assert await asked == ()

    canary.may_end.clear()
    monkeypatch.setattr(proven, "PATIENCE_S", 0.01)
    slow = Proven(canary, tmp_path / "other", lambda _problem: None)
    (found,) = await slow.problems()
    assert (found.code, "isn't over yet" in found.what) == ("SH704", True)
    canary.may_end.set()
    monkeypatch.setattr(proven, "PATIENCE_S", 20.0)
    await slow.close()
    assert await slow.problems() == ()


async def test_one_failure_may_have_been_the_moments(tmp_path: Path) -> None:
    said = iter([(problem("SH704"),), ()])
    trial = Proven(lambda _folder: next(said), tmp_path / "canary", lambda _problem: None)
    assert await trial.problems() == ()


async def test_what_was_replaced_is_tried_anew(tmp_path: Path, canary: Canary) -> None:
    of, tried = ["one"], list[str]()
    trial = Proven(canary, tmp_path / "canary", lambda _problem: None, tool=lambda: of[0], tried=lambda: tried.append(of[0]))
    assert await trial.problems() == await trial.problems() == ()
    of[0], canary.says = "another", (problem("SH704"),)
    assert [one.code for one in await trial.problems()] == ["SH704"]
    of[0], canary.says = "one that works", ()
    assert await trial.problems() == await trial.problems() == ()
    assert tried == ["one", "another", "one that works"]


async def test_one_that_cannot_even_be_begun_is_no_yes(tmp_path: Path, canary: Canary) -> None:
    canary.says = OSError("no more processes")
    (found,) = await Proven(canary, tmp_path / "canary", lambda _problem: None).problems()
    assert (found.code, "no more processes" in found.what) == ("SH704", True)


async def test_a_destination_without_its_bridge_is_refused_before_the_freeze(tmp_path: Path) -> None:
    there = Bench(tmp_path, worker=False)
    for bridge, codes in (("", []), ("lo", []), ("no-such-bridge", ["SH676"])):
        there.node.settings = msgspec.structs.replace(there.node.settings, bridge=bridge, runtime="criu")
        assert await refused(there, destination=True) == codes
    there.node.settings = msgspec.structs.replace(there.node.settings, runtime="pretend")
    assert await refused(there, destination=True) == [], "it has no networks"
