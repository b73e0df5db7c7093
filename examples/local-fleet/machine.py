"""What a local fleet asks of the machine that it is on: links, processes, ports, and time for them to come about."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BRIDGE = "shunt0"
GATEWAY = "10.77.0.1"
LOOPBACK = "127.0.0.1"


class SetUpError(RuntimeError):
    """The fleet couldn't be built; the message says what and why."""


def wait_for(what: str, condition: Callable[[], object], timeout: float = 30.0, every: float = 0.05) -> None:
    """Wait until `condition` is true. Raises SetUpError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise SetUpError(f"{what}: not within {timeout:g} s")
        time.sleep(every)


def ip(*arguments: str, within: int | None = None) -> None:
    """Run an `ip` command, in the network namespace of process `within` if given."""
    enter = ["nsenter", f"--net=/proc/{within}/ns/net", "--"] if within else []
    subprocess.run([*enter, "ip", *arguments], check=True, capture_output=True, text=True)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, children before grandchildren, also in other PID namespaces.

    By each process's own parent: the kernel's lists of children miss some while threads come and go.
    """
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        children = parents.get(queue[0], [])
        queue = queue[1:] + children
        found += children
    return found


def with_argument(argument: str) -> Iterator[int]:
    """The processes of this machine that were started with this very argument."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if argument.encode() in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)


class Ports:
    """Loopback ports of one fleet, by name: a block that no other fleet of this machine takes as long as this one has it.

    The block's first port is kept bound as the sign of that. It lies below the ports that the kernel gives to outgoing connections.
    """

    SIZE = 64
    BLOCKS = range(20000, 32000, SIZE)

    def __init__(self) -> None:
        self._sign: socket.socket | None = None
        self._given: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The port of that name, always the same. Raises SetUpError when no block is free, or this one is used up."""
        if self._sign is None:
            self._sign = self._take()
        port = self._given.setdefault(name, self._first + 1 + len(self._given))
        if port >= self._first + self.SIZE:
            raise SetUpError(f"a fleet has {self.SIZE - 1} ports on loopback, and {name} would need one more")
        return port

    def give_back(self) -> None:
        """Others may have the block."""
        if self._sign is not None:
            self._sign.close()
        self._sign = None
        self._given.clear()

    @property
    def _first(self) -> int:
        assert self._sign is not None
        return int(self._sign.getsockname()[1])

    def _take(self) -> socket.socket:
        for first in self.BLOCKS:
            sign = _bound(first)
            if sign is None:
                continue
            if all(_free(port) for port in range(first + 1, first + self.SIZE)):
                return sign
            sign.close()
        raise SetUpError(f"no {self.SIZE} free ports in a row on {LOOPBACK} between {self.BLOCKS.start} and {self.BLOCKS.stop}")


def _bound(port: int) -> socket.socket | None:
    found = socket.socket()
    try:
        found.bind((LOOPBACK, port))
    except OSError:
        found.close()
        return None
    return found


def _free(port: int) -> bool:
    found = _bound(port)
    if found is not None:
        found.close()
    return found is not None
