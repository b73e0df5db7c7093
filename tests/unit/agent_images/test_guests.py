"""Who gets a place at the image port, and who makes room for it."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from shunter.model.errors import Problem
from shunter_agent.images.guests import Guests


class Door:
    """Guests of a port with three places; what they hear at the other end; and a thread for who has to wait."""

    def __init__(self) -> None:
        self.told: list[Problem] = []
        self.guests = Guests(3, self.told.append)
        self.waiting = ThreadPoolExecutor(1)
        self._ends: list[socket.socket] = []

    def link(self) -> tuple[socket.socket, socket.socket]:
        here, there = socket.socketpair()
        there.settimeout(10)
        self._ends += [here, there]
        return here, there

    def close(self) -> None:
        self.waiting.shutdown()
        for end in self._ends:
            end.close()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.close()


def open_still(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return end.recv(1) != b""
    except BlockingIOError:
        return True


def test_a_crowded_host_makes_room_and_no_other_does(door: Door) -> None:
    (lone, lone_end), (first, first_end), (second, second_end) = (door.link() for _ in range(3))
    assert door.guests.enter(lone, "lone")
    assert door.guests.enter(first, "crowd")
    assert door.guests.enter(second, "crowd")
    late, late_end = door.link()
    entering = door.waiting.submit(door.guests.enter, late, "late")
    assert first_end.recv(1) == b""
    assert not entering.done(), "its place is free only once it has left"
    door.guests.leave(first)
    assert entering.result(10)
    assert [open_still(end) for end in (lone_end, second_end, late_end)] == [True, True, True]
    assert [(problem.code, problem.subject) for problem in door.told] == [("SH813", "crowd")]


def test_who_has_shown_a_certificate_stays(door: Door) -> None:
    known, known_end = door.link()
    assert door.guests.enter(known, "host")
    door.guests.greet(known)
    strangers = [door.link() for _ in range(2)]
    for stranger, _end in strangers:
        assert door.guests.enter(stranger, "host")
    entering = door.waiting.submit(door.guests.enter, door.link()[0], "host")
    assert strangers[0][1].recv(1) == b""
    door.guests.leave(strangers[0][0])
    assert entering.result(10)
    assert open_still(known_end)


def test_agents_alone_are_waited_for(door: Door) -> None:
    agents = [door.link() for _ in range(3)]
    for agent, _end in agents:
        assert door.guests.enter(agent, "host")
        door.guests.greet(agent)
    entering = door.waiting.submit(door.guests.enter, door.link()[0], "host")
    assert all(open_still(end) for _agent, end in agents)
    assert door.told == []
    door.guests.leave(agents[1][0])
    assert entering.result(10)


def test_closing_shows_all_out_and_lets_nobody_in(door: Door) -> None:
    inside = [door.link() for _ in range(3)]
    for guest, _end in inside:
        assert door.guests.enter(guest, "host")
        door.guests.greet(guest)
    entering = door.waiting.submit(door.guests.enter, door.link()[0], "host")
    closing = threading.Thread(target=door.guests.close)
    closing.start()
    for guest, end in inside:
        assert end.recv(1) == b""
        door.guests.leave(guest)
    closing.join(10)
    assert not closing.is_alive()
    assert entering.result(10) is False
