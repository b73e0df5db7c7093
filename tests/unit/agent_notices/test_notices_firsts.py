"""What was first seen when, over the agent's own end, clocks that are set, and the machine's."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from metadata_services import Answer, Service, serving
from shunter.model.errors import Problem
from shunter_agent.notices import clouds
from shunter_agent.notices.firsts import AGAIN_S, GAP_S, Firsts, Sight
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.listwatch import Access, Times
from shunter_agent.notices.merged import Merged
from shunter_agent.notices.nodewatch import NodeSource
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import Watching

NOW = 1_767_322_800.0
LEFT = Sight(NOW, NOW + 30.0)


class Machine:
    """Its two clocks, its disk, and the agents that run on it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.wall, self.up, self.boot = NOW, 5_000.0, "one"
        self.path = folder / "first-seen.json"
        self.problems: list[Problem] = []

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.up += seconds

    def agent(self) -> Firsts:
        return Firsts(self.path, boot=self.boot, clock=lambda: self.wall, elapsed=lambda: self.up, log=self.problems.append)

    def sees(self, firsts: Firsts, key: str = "a", lead: float | None = 30.0) -> Sight:
        """What is told of something that says now how long is left."""
        found = firsts.seen("s", {key: Sight(self.wall, None if lead is None else self.wall + lead)})[key]
        firsts.save()
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_lead_goes_on_where_it_was_when_the_agent_is_started_anew(machine: Machine) -> None:
    assert machine.sees(machine.agent()) == LEFT
    machine.passes(12.0)
    assert machine.sees(machine.agent()) == LEFT
    machine.passes(12.0)
    assert machine.sees(machine.agent()) == LEFT, "nor does the second start move it"


def test_what_has_no_deadline_is_as_old_as_it_is(machine: Machine) -> None:
    machine.sees(machine.agent(), lead=None)
    machine.passes(12.0)
    assert machine.sees(machine.agent(), lead=None) == Sight(NOW)
    assert machine.sees(machine.agent(), lead=8.0) == Sight(NOW, NOW + 20.0), "and is given one once it has one"


def test_what_is_said_no_more_is_forgotten_and_begins_anew(machine: Machine) -> None:
    first = machine.agent()
    machine.sees(first)
    assert first.seen("s", {}) == {}
    first.save()
    machine.passes(12.0)
    assert machine.sees(first) == Sight(NOW + 12.0, NOW + 42.0)
    first.seen("s", {})
    first.save()
    assert machine.sees(machine.agent()) == Sight(NOW + 12.0, NOW + 42.0)


def test_an_agent_whose_source_hasnt_answered_yet_forgets_nothing(machine: Machine) -> None:
    machine.sees(machine.agent())
    second = machine.agent()
    second.seen("s", {})
    machine.sees(second, "another")
    machine.passes(5.0)
    assert machine.sees(second) == LEFT
    machine.passes(5.0)
    assert machine.sees(machine.agent()) == LEFT


def test_a_start_of_the_machine_forgets(machine: Machine) -> None:
    machine.sees(machine.agent())
    machine.passes(100.0)
    machine.boot, machine.up = "two", 20.0
    assert machine.sees(machine.agent()) == Sight(NOW + 100.0, NOW + 130.0)


def test_a_machine_that_doesnt_say_which_start_it_is_remembers_nothing(machine: Machine) -> None:
    machine.boot = ""
    machine.sees(machine.agent())
    machine.passes(5.0)
    assert machine.sees(machine.agent()).at == NOW + 5.0


@pytest.mark.parametrize("lead", [None, 30.0])
def test_what_was_over_before_a_long_absence_may_be_another_event(machine: Machine, lead: float | None) -> None:
    machine.sees(machine.agent(), lead=lead)
    machine.passes(GAP_S + 1.0)
    assert machine.sees(machine.agent(), lead=lead).at == machine.wall


def test_an_end_that_is_still_ahead_counts_however_long_nobody_looked(machine: Machine) -> None:
    machine.sees(machine.agent(), lead=4 * GAP_S)
    machine.passes(2 * GAP_S)
    assert machine.sees(machine.agent(), lead=4 * GAP_S) == Sight(NOW, NOW + 4 * GAP_S)


def test_that_it_is_still_said_is_written_down_now_and_then(machine: Machine) -> None:
    """So an absence is measured from when it was said last, not first."""
    first = machine.agent()
    machine.sees(first)
    for _ in range(40):
        machine.passes(AGAIN_S)
        machine.sees(first)
    machine.passes(GAP_S - 1.0)
    assert machine.sees(machine.agent()) == LEFT


@pytest.mark.parametrize("by", [-86_400.0, 3_600.0])
def test_a_clock_that_is_set_moves_no_end(machine: Machine, by: float) -> None:
    """In the middle, or while no agent runs: what is left stays what is left."""
    first = machine.agent()
    machine.sees(first)
    machine.passes(5.0)
    machine.wall += by
    assert machine.sees(first) == Sight(NOW + by, NOW + by + 30.0)
    machine.wall += by
    machine.passes(5.0)
    assert machine.sees(machine.agent()) == Sight(NOW + 2 * by, NOW + 2 * by + 30.0)


def test_clocks_that_are_read_one_after_the_other_change_nothing(machine: Machine) -> None:
    first = machine.agent()
    machine.sees(first)
    machine.wall += 0.7
    assert machine.sees(first) == LEFT


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot": "one", "kept": [{"group": 1}]}'])
def test_a_file_that_cant_be_read_is_told_and_counted_from_now(machine: Machine, content: bytes) -> None:
    machine.path.write_bytes(content)
    assert machine.sees(machine.agent()) == LEFT
    assert [problem.code for problem in machine.problems] == ["SH683"]
    machine.passes(5.0)
    assert machine.sees(machine.agent()) == LEFT, "and is written anew"


def test_a_disk_that_takes_no_writes_is_told_once_and_keeps_nothing_from_being_told(machine: Machine) -> None:
    machine.path = machine.path.parent / "missing" / "first-seen.json"
    first = machine.agent()
    for key in "abc":
        assert machine.sees(first, key) == LEFT
    assert [problem.code for problem in machine.problems] == ["SH683"]


def test_times_from_a_file_of_later_than_now_arent_believed(machine: Machine) -> None:
    machine.sees(machine.agent())
    machine.up -= 4_000.0
    assert machine.sees(machine.agent()) == LEFT
    assert json.loads(machine.path.read_bytes())["kept"][0]["told"] == machine.up


def test_a_flood_is_counted_from_when_it_is_seen_and_not_kept(machine: Machine) -> None:
    first = machine.agent()
    first.seen("s", {str(number): Sight(machine.wall) for number in range(1_000)})
    first.save()
    assert len(json.loads(machine.path.read_bytes())["kept"]) < 300


# -- through the sources


class Gcp(Service):
    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        said = {"preempted": "TRUE", "maintenance-event": "NONE"}.get(path.partition("?")[0].rpartition("/")[2])
        return (200 if said else 404), said or "", {"Metadata-Flavor": "Google", "ETag": "e"}


def heard(machine: Machine, source: Watching) -> Mapping[str, Notice]:
    """What an agent tells that begins now, and ends once it has told."""
    told: list[Mapping[str, Notice]] = []
    there = threading.Event()

    def changed(notices: Mapping[str, Notice]) -> None:
        if notices:
            told.append(notices)
            there.set()

    merged = Merged([source], clock=lambda: machine.wall, firsts=machine.agent())
    merged.start(changed)
    assert there.wait(10)
    merged.stop()
    return told[-1]


def test_the_end_of_a_spot_vm_isnt_put_off_by_an_agent_that_is_upgraded(machine: Machine) -> None:
    with serving(service := Gcp(), lambda: machine.wall):
        first = heard(machine, clouds.source("gcp", url=service.url, clock=lambda: machine.wall))
        machine.passes(12.0)
        assert heard(machine, clouds.source("gcp", url=service.url, clock=lambda: machine.wall)) == first
        assert [n.deadline for n in first.values()] == [NOW + 20.0]


class Says:
    """A source that says one thing, or is a canary of that name."""

    def __init__(self, notice: Notice) -> None:
        self.name, self.notice = notice.source, notice

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        changed({self.notice.id: self.notice})

    def stop(self) -> None:
        pass

    def health(self) -> tuple[Problem, ...]:
        return ()


def test_a_canary_of_the_same_name_makes_nothing_forgotten(machine: Machine) -> None:
    told: list[Mapping[str, Notice]] = []
    for _ in range(2):
        real = Notice(id="r", kind="preemption", seen_at=machine.wall, deadline=machine.wall + 30.0, source="gcp", counted=True)
        bird = Notice(id="canary-gcp", kind="preemption", seen_at=machine.wall, source="gcp", canary=True)
        merged = Merged([Says(real), Says(bird)], clock=lambda: machine.wall, firsts=machine.agent())
        merged.start(lambda found: told.append(found))
        for _look in range(3):
            merged.look()
        merged.stop()
        assert told[-1]["r"].deadline == NOW + 30.0
        machine.passes(12.0)


class Cluster(Service):
    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        labelled = {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"cloud.google.com/active-node-maintenance": "ONGOING"}}
        return 200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": [{"metadata": labelled}]}), {}


def test_a_label_isnt_young_again_for_an_agent_that_is(machine: Machine) -> None:
    """A label has no time of its own, and is believed for two hours from when it was first seen: not from each start."""
    with serving(service := Cluster(), lambda: machine.wall):

        def read(firsts: Firsts) -> NodeSource:
            found = NodeSource(
                Access(server=service.url), "n", "n", Gpus(), pods=False, times=Times(), clock=lambda: machine.wall, firsts=firsts
            )
            found.ask_node()
            found.close()
            firsts.save()
            return found

        read(machine.agent())
        for _ in range(15):
            machine.passes(500.0)
            last = read(machine.agent())
        assert [p.code for look in last.looks() for p in look.problems()] == ["SH650"]
