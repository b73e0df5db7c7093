from pathlib import Path

from shunter.app.drifting import Drifting, Shown, shown, write
from shunter.model.errors import Problem
from shunter.model.ids import Epoch


def drift(what: str = "the graph asks for 3 of decode, and there are 2 pods") -> Problem:
    return Problem(code="SH271", what=what, remedy="r", subject="ns/llama")


def test_it_is_told_once_it_lasts_and_when_it_is_over() -> None:
    told: list[tuple[str, bool]] = []
    drifting = Drifting(lambda key, problem: told.append((key, problem is not None)), looks=3)
    for wrong in ([drift()], [drift()], [], [drift()], [drift()]):
        drifting.tell(wrong)
    assert told == [], "what comes and goes is told by nobody"
    for _ in range(4):
        drifting.tell([drift()])
    drifting.tell([drift("another")])
    [(key, there), (over, still)] = told
    assert (there, still, key) == (True, False, over)


def test_as_much_is_kept_as_people_read_and_what_is_of_another_epoch_is_nothing(tmp_path: Path) -> None:
    new = Shown.of(Epoch(2), [f"p{n}" for n in range(60)], [drift(str(n)) for n in range(51)])
    assert (len(new.pools), len(new.troubles), new.more) == (50, 50, 11)
    assert write(tmp_path, new, None) is new
    assert shown(tmp_path, Epoch(2)) == new
    assert shown(tmp_path, Epoch(3)) == Shown(epoch=Epoch(3))
    assert oct((tmp_path / "graphs").stat().st_mode & 0o777) == "0o600"
    (tmp_path / "graphs").unlink()
    assert write(tmp_path, new, new) is new
    assert not (tmp_path / "graphs").exists(), "the same isn't written again"


def test_a_disk_that_takes_nothing_keeps_what_was_there(tmp_path: Path) -> None:
    old = Shown(epoch=Epoch(1))
    assert write(tmp_path / "nowhere", Shown(epoch=Epoch(2)), old) is old
