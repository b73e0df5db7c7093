"""Ports that two fleets on one machine never share, and how processes are found."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import Fleet
from machine import LOOPBACK, Ports, SetUpError, descendants, with_argument
from plans import NODES


@pytest.fixture
def two() -> Iterator[tuple[Ports, Ports]]:
    one, other = Ports(), Ports()
    yield one, other
    one.give_back()
    other.give_back()


def test_two_fleets_have_no_port_in_common(two: tuple[Ports, Ports]) -> None:
    names = [f"port {number}" for number in range(Ports.SIZE - 1)]
    one, other = ({ports.of(name) for name in names} for ports in two)
    assert (len(one), len(other), one & other) == (Ports.SIZE - 1, Ports.SIZE - 1, set())


def test_a_name_keeps_its_port_until_the_block_is_used_up(two: tuple[Ports, Ports]) -> None:
    ports, _ = two
    first = ports.of("engine")
    for number in range(Ports.SIZE - 2):
        ports.of(f"port {number}")
    assert ports.of("engine") == first
    with pytest.raises(SetUpError, match="63 ports on loopback"):
        ports.of("one more")


def test_a_block_with_a_port_in_use_is_left_alone(two: tuple[Ports, Ports]) -> None:
    ports, other = two
    port = ports.of("engine")
    with socket.socket() as taken:
        taken.bind((LOOPBACK, port + 7))
        ports.give_back()
        assert abs(other.of("engine") - port) >= Ports.SIZE


def test_a_pretend_fleet_gives_every_listener_a_port_of_its_own(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, pretend=True, nodes=NODES)
    try:
        found = [node.port(kind) for node in fleet.nodes.values() for kind in (0, 1)]
        found += [fleet.worker_address(worker)[1] for worker in fleet.workers()]
        found += [fleet.prometheus_port, fleet.engine_port]
    finally:
        fleet.ports.give_back()
    assert len(set(found)) == len(found) == 2 * 3 + 5 + 2


def test_a_process_is_found_by_its_whole_argument_and_below_its_parents(tmp_path: Path) -> None:
    nested = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()', sys.argv[1]]); print(p.pid, flush=True); p.wait()"
    )
    mark = str(tmp_path / "mark")
    parent = subprocess.Popen([sys.executable, "-c", nested, mark], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            below = descendants(os.getpid())
            assert descendants(parent.pid) == [child]
            assert below.index(parent.pid) < below.index(child)
            assert parent.pid in with_argument(mark)
            assert list(with_argument(mark[:-1])) == []
        finally:
            parent.stdin.close()
