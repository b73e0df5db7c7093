"""How far images on their way are: heard from agents, written where the status reads it, and forgotten in time."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from shunter.app.sendings import FRESH_S, Sendings, sendings
from shunter.model.ids import Epoch, NodeId, OperationId
from shunter.model.operation import Sending
from shunter.report.operation import sending_line
from shunter.wire import agent_pb2 as pb
from test_app_engine import Stage, stage

__all__ = ["stage"]
ONE, OTHER = OperationId("one"), OperationId("other")


class Written:
    """An engine's side, with a clock that can be set."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.shown = list[Sending]()
        self.sendings = Sendings(folder, Epoch(3), lambda: self.now, self.shown.append)

    def hear(self, operation: str = ONE, count: int = 5, **more: float) -> None:
        self.sendings.heard(pb.Progress(operation=operation, step="freeze", bytes=count, **more))  # type: ignore[arg-type]

    def read(self, epoch: int = 3, later: float = 0.0) -> tuple[Sending, ...]:
        return sendings(self.folder, Epoch(epoch), self.now + later)


def test_what_an_agent_says_is_read_while_it_is_fresh_and_the_engines_own(tmp_path: Path) -> None:
    written = Written(tmp_path)
    assert written.read() == ()
    written.hear(total=10, rate=2.5, left_s=2.0)
    found = Sending(operation=ONE, bytes=5, at=1000.0, total=10, rate=2.5, left=2.0)
    assert written.read() == written.read(later=FRESH_S - 1) == (found,)
    assert written.shown == [found]
    assert written.read(later=FRESH_S) == written.read(epoch=4) == ()


def test_it_is_written_once_a_second_whatever_is_heard(tmp_path: Path) -> None:
    written = Written(tmp_path)
    for count, later, seen in ((1, 0.0, 1), (2, 0.4, 1), (3, 0.5, 1), (4, 0.2, 4)):
        written.now += later
        written.hear(count=count)
        assert [one.bytes for one in written.read()] == [seen]
    written.now -= 500  # a clock that is set back keeps nothing from being said
    written.hear(count=5)
    assert [one.bytes for one in written.read()] == [5]


def test_what_is_over_is_forgotten_at_once(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.hear()
    written.now += 2
    written.hear(OTHER)
    assert [one.operation for one in written.read()] == [ONE, OTHER]
    written.hear(count=0)
    assert [one.operation for one in written.read()] == [OTHER]
    written.sendings.ended(OTHER)
    assert written.read() == ()


def test_a_disk_that_takes_nothing_is_no_harm(tmp_path: Path) -> None:
    written = Written(tmp_path / "gone")
    written.hear()
    assert written.read() == ()


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "sent 5MB"),
        ({"total": 4_000_000}, "sent 5MB of about 5MB"),
        ({"total": 20_000_000, "rate": 1e6}, "sent 5MB of about 20MB, 1MB a second"),
        ({"total": 20_000_000, "rate": 1e6, "left": 2.0}, "sent 5MB of about 20MB, 1MB a second, about 0.00 s left"),
        ({"total": 20_000_000, "rate": 1e6, "left": 15.0}, "sent 5MB of about 20MB, 1MB a second, about 12s left"),
    ],
)
def test_what_people_read_of_it(more: dict[str, float], line: str) -> None:
    assert sending_line(Sending(operation=ONE, bytes=5_000_000, at=1000.0, **more), 1003.0) == line  # type: ignore[arg-type]


async def test_an_engine_hears_it_while_it_watches(stage: Callable[[int], Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    s = stage(0)

    class Telling:
        async def watch(self, _epoch: object) -> AsyncIterator[pb.Event]:
            yield pb.Event(progress=pb.Progress(operation=ONE, step="freeze", bytes=5, total=10))
            raise ValueError("over")  # what the engine isn't prepared for ends the watch

    monkeypatch.setattr(s.leading, "agents", {"node-a": Telling()})
    with pytest.raises(ValueError, match="over"):
        await s.leading._watch(NodeId("node-a"))
    (found,) = sendings(s.leading.duty.settings.state, s.leading.epoch, s.leading.duty.clock())
    assert (found.operation, found.bytes, found.total) == (ONE, 5, 10)
