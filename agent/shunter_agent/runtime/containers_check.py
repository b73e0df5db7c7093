"""What would make a dump of a worker in a container fail, or its restore, read before anything is stopped."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem
from shunter.model.units import Bytes

from shunter_agent.runtime import containers_files as files
from shunter_agent.runtime import containers_links as links
from shunter_agent.runtime import containers_volumes as volumes
from shunter_agent.runtime import preflight
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.containers_volumes import Volume
from shunter_agent.runtime.pods import inner_pids
from shunter_agent.runtime.port import Process

_PIPE: Final = re.compile(r"pipe:\[\d+\]")
_FLAGS: Final = re.compile(r"^flags:\s*(\d+)", re.MULTILINE)
_STANDARD: Final = (0, 1, 2)


def check(process: Process, uid: str, *, carry: int, keep_streams: bool) -> tuple[Problem, ...]:
    """All that is known against it. `carry`: bytes of files that may go along. `keep_streams`: connections with others must not end."""
    if not processes.find(process):
        return (processes.gone(process.pid),)
    try:
        found = volumes.of(process.pid, uid)
        opened = [file for pid in processes.tree(process.pid) for file in preflight.open_files(pid)]
        return (
            *_of_namespaces(process),
            *_of_standard(process, opened),
            *_of_volumes(found, opened),
            *_of_carried(process, found, carry),
            *_of_streams(process, keep_streams=keep_streams),
        )
    except OSError as error:
        return (
            _problem(
                "SH755",
                f"its container can't be looked into: {error}",
                "Run the agent with hostPID and the rights of deploy/kubernetes, and see whether the container has just ended",
                process,
            ),
        )


def _of_namespaces(process: Process) -> Iterator[Problem]:
    inside = inner_pids(process.pid)
    if len(inside) < 2 or inside[-1] != 1:
        yield _problem(
            "SH752",
            f"it is process {inside[-1] if inside else '?'} of its PID namespace, and must be process 1 of one",
            "Run its pod without hostPID and shareProcessNamespace, and its program without another around it",
            process,
        )
    theirs, ours = (os.readlink(f"/proc/{pid}/ns/user") for pid in (process.pid, "self"))
    if theirs != ours:
        yield _problem(
            "SH752",
            f"its user namespace is {theirs}, this agent's is {ours}",
            "Run its pod with hostUsers: true; workers in user namespaces of their own can't be moved yet",
            process,
        )


def standard(process: Process, opened: Sequence[preflight.File]) -> dict[str, int]:
    """The pipes of the tree that somebody outside has the other end of, by the descriptor of process 1 that has them, or -1."""
    modes: dict[str, set[int]] = {}
    for file in opened:
        if _PIPE.fullmatch(file.target):
            modes.setdefault(file.target, set()).add(_access(file))
    outside = {target for target, how in modes.items() if not (os.O_RDWR in how or {os.O_RDONLY, os.O_WRONLY} <= how)}
    known = {file.target: file.fd for file in reversed(opened) if file.pid == process.pid and file.fd in _STANDARD}
    return {target: known.get(target, -1) for target in sorted(outside)}


def _access(file: preflight.File) -> int:
    try:
        match = _FLAGS.search(Path(f"/proc/{file.pid}/fdinfo/{file.fd}").read_text())
    except OSError:  # closed meanwhile
        return os.O_RDWR
    return int(match[1], 8) & os.O_ACCMODE if match else os.O_RDWR


def _of_standard(process: Process, opened: Sequence[preflight.File]) -> Iterator[Problem]:
    for target, descriptor in standard(process, opened).items():
        if descriptor < 0:
            yield _problem(
                "SH753",
                f"{target} leads out of the container, and is none of its process 1's standard streams",
                "Have the worker close it before it is frozen",
                process,
            )
    has_master = any(file.target.endswith("/ptmx") for file in opened)
    for file in opened:
        if file.target.startswith(("/dev/pts/", "/dev/console")) and not has_master:
            yield _problem(
                "SH753",
                f"{file.target}, a terminal of the runtime's, is open",
                "Run its container without `tty: true`",
                process,
                file.where,
            )


def _of_volumes(found: Sequence[Volume], opened: Sequence[preflight.File]) -> Iterator[Problem]:
    by_id = {one.mount.id: one for one in found}
    for file in opened:
        at = by_id.get(file.mount or 0)
        if at is not None and at.kind == "host" and _access(file) != os.O_RDONLY and not file.target.startswith("/dev/nvidia"):
            yield Problem(
                code="SH756",
                what=f"{file.target} is open for writing in {at.mount.point}, a folder of this node's, which no other node has",
                remedy="Use an emptyDir, which goes along, or a volume that the destination mounts as well",
                subject=file.where,
            )


def _of_carried(process: Process, found: Sequence[Volume], carry: int) -> Iterator[Problem]:
    root = found[0].mount
    if root.writable and volumes.upper(found) is None:
        yield _problem(
            "SH755",
            f"what it has changed of its image can't be told: its root is {root.kind}, not an overlay that this node's runtime has mounted",
            "Use containerd's overlayfs snapshotter, or run the container with readOnlyRootFilesystem: true",
            process,
        )
        return
    with volumes.trees(found, process.pid) as trees:
        size = files.size(trees, volumes.points(found))
    if size > carry:
        yield too_much(size, carry, process)


def too_much(size: int, carry: int, process: Process) -> Problem:
    """SH754."""
    return _problem(
        "SH754",
        f"its container has {Bytes(size)} of files (changes of its image, /dev/shm, emptyDir), of which at most {Bytes(carry)} go along",
        "Put large files on a volume that the destination mounts as well, or raise `carry` under [containers] in the agent's settings",
        process,
    )


def _of_streams(process: Process, *, keep_streams: bool) -> Iterator[Problem]:
    if not keep_streams:
        return
    count = links.count_outside(processes.tree(process.pid))
    if count:
        yield _problem(
            "SH761",
            f"{count} of its connections are with others, and would end with the move: its pod's address stays behind",
            'Fence it and wait until its streams are over, or set streams = "reset" under [containers] in the agent\'s settings',
            process,
        )


def _problem(code: str, what: str, remedy: str, process: Process, subject: str = "") -> Problem:
    return Problem(code=code, what=what, remedy=remedy, subject=subject or f"pid {process.pid}")
