"""What `at_every_step` does to a fleet. Each fault gives back how it is mended; most mend themselves after a while, so that all can end."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fleet import wait_for
from machine import descendants, ip
from node import Node

AWAY_S: Final = 1.0
CUT_S: Final = 2.0
LONG_S: Final = 9.0
"""Longer than an order may take by the times of `LONG`: its answer stays out."""
LONG: Final = ("--quick", "3", "--bulk", "6")
FULL_S: Final = 4.0
HOLD_S: Final = 3.0
"""The hold of operations that are tried with an agent that is stopped for longer."""
PAUSED_S: Final = 6.0
STEP_S: Final = 200.0
"""Longer than any hold here, and short enough for the certificates, which are minutes old."""
Mend = Callable[[], object]


def killed(node: Node) -> Mend:
    """SIGKILL the agent alone; another one is started a moment later."""
    node.kill_agent()
    return _again(node)


def killed_with_all(node: Node) -> Mend:
    """SIGKILL the agent and all that could put things back for it, none of which sees the others die."""
    assert node.agent is not None
    node.agent.send_signal(signal.SIGSTOP)
    for pid in helpers(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.kill_agent()
    return _again(node)


def powered_off(node: Node, worker: str) -> Mend:
    """All at once: its link, its agent, what helps it, and each process of the worker there. Its disk is as it was."""
    assert node.agent is not None
    link = f"up-{node.name}"
    node.agent.send_signal(signal.SIGSTOP)
    ip("link", "set", link, "down")
    there = [pid for pid in descendants(node.agent.pid) if worker.encode() in words_of(pid)]
    for pid in (*helpers(node), *there):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.kill_agent()
    return _again(node, lambda: ip("link", "set", link, "up"))


def helpers(node: Node) -> list[int]:
    """CRIU, as often as it runs for this agent, and helpers for GPUs."""
    assert node.agent is not None
    found = descendants(node.agent.pid)
    return [pid for pid in found if b"swrk" in words_of(pid) or b"shunter_agent.runtime.cuda.helper" in words_of(pid)]


def words_of(pid: int) -> list[bytes]:
    """A process' command line; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _again(node: Node, first: Callable[[], object] = lambda: None) -> Mend:
    def start() -> None:
        first()
        node.start()

    again = threading.Timer(AWAY_S, start)
    again.start()

    def mend() -> None:
        again.join()
        wait_for(f"{node.name} to take orders again", node.takes_orders, 60)

    return mend


def paused(node: Node) -> Mend:
    """SIGSTOP the agent for longer than any hold: it wakes up with orders of long ago, and doesn't know how late it is."""
    assert node.agent is not None
    agent = node.agent
    agent.send_signal(signal.SIGSTOP)
    again = threading.Timer(PAUSED_S, lambda: agent.send_signal(signal.SIGCONT))
    again.start()
    return again.join


def cut(node: Node, seconds: float = CUT_S) -> Mend:
    """Nothing reaches it, and nothing leaves it."""
    ip("link", "set", f"up-{node.name}", "down")
    again = threading.Timer(seconds, lambda: ip("link", "set", f"up-{node.name}", "up"))
    again.start()
    return again.join


def slow(node: Node) -> Mend:
    """60 Mbit/s by a token bucket: this kernel has no netem."""
    device = f"up-{node.name}"
    subprocess.run(["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", "60mbit", "burst", "64kb", "latency", "200ms"], check=True)
    return lambda: subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], check=False)


def filled(node: Node) -> Mend:
    """Its disk takes not one byte more, journals included, for a while."""
    filler = node.folder / "state" / "filler"
    with filler.open("wb") as file, contextlib.suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(filler.parent).free)
    with filler.open("ab") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))
    again = threading.Timer(FULL_S, lambda: filler.unlink(missing_ok=True))
    again.start()
    return again.join


def corrupted(nodes: tuple[Node, ...], image: str) -> Mend:
    """Change one byte in the middle of the largest file of the image, on the first of the nodes that has it. Mended where it still is."""
    for node in nodes:
        files = [p for p in (node.folder / "state").rglob("*") if image in str(p) and p.is_file() and not p.is_symlink()]
        if files:
            break
    else:
        raise AssertionError(f"there is nothing of {image} to be changed")
    target = max(files, key=lambda p: p.stat().st_size)
    at = target.stat().st_size // 2
    before = _flip(target, at)

    def mend() -> None:
        with contextlib.suppress(FileNotFoundError):
            if _byte(target, at) != before:
                _flip(target, at)

    return mend


def _byte(target: Path, at: int) -> bytes:
    with target.open("rb") as file:
        return os.pread(file.fileno(), 1, at)


def _flip(target: Path, at: int) -> bytes:
    """What was there before."""
    with target.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 0xFF]), at)
        return byte


def stepped(source: Node, destination: Node) -> Mend:
    """Both agents' wall clocks are set, the one back and the other ahead, and after the operation right again."""
    ahead(source, -STEP_S)
    ahead(destination, STEP_S)
    return lambda: (ahead(source, 0.0), ahead(destination, 0.0))


def ahead(node: Node, seconds: float) -> None:
    """By how much its agent's clock is ahead of the machine's."""
    path = ahead_of(node)
    new = f"{seconds:<31}\n"  # one write of one length: it is read while it is written
    with path.open("r+" if path.exists() else "w") as file:
        file.write(new)


def ahead_of(node: Node) -> Path:
    """The file that says it."""
    return node.folder / "ahead"
