import os
import re
import socket
import sys
from pathlib import Path

import pytest
from shunter_agent.runtime import preflight
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.preflight import File, _of_file, _of_unix_peers, open_files
from shunter_agent.runtime.starting import Starting
from shunter_agent.runtime.unixpeers import stream_peers

CHARACTER = 0o020666
REGULAR = 0o100600


def code_of(target: str, mode: int = 0, size: int = 0, links: int = 1, protocol: str = "") -> list[str]:
    file = File(pid=7, fd=3, target=target, mode=mode, size=size, links=links, protocol=protocol)
    problems = list(_of_file(file, ghost_limit=1000))
    assert all(problem.subject == "pid 7 fd 3" and problem.remedy for problem in problems)
    return [problem.code for problem in problems]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ({"target": "anon_inode:[io_uring]"}, "SH720"),
        ({"target": "anon_inode:[userfaultfd]"}, "SH721"),
        ({"target": "anon_inode:[perf_event]"}, "SH721"),
        ({"target": "anon_inode:bpf-map"}, "SH721"),
        ({"target": "socket:[1]", "protocol": "AF_VSOCK"}, "SH722"),
        ({"target": "/dev/fuse", "mode": CHARACTER}, "SH723"),
        ({"target": "/dev/infiniband/uverbs0", "mode": CHARACTER}, "SH725"),
        ({"target": "/tmp/x (deleted)", "mode": REGULAR, "size": 1001, "links": 0}, "SH726"),
        ({"target": "/tmp/x (deleted)", "mode": REGULAR, "size": 1, "links": 2}, "SH737"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["target"],
)
def test_what_can_not_be_dumped_is_named(file: dict, code: str) -> None:
    assert code_of(**file) == [code]


@pytest.mark.parametrize(
    "file",
    [
        {"target": "anon_inode:[eventpoll]"},
        {"target": "anon_inode:[pidfd]"},
        {"target": "anon_inode:inotify"},
        {"target": "socket:[1]", "protocol": "TCPv6"},
        {"target": "socket:[1]", "protocol": "UNIX-STREAM"},
        {"target": "/dev/null", "mode": CHARACTER},
        {"target": "/dev/urandom", "mode": CHARACTER},
        {"target": "/dev/pts/0", "mode": CHARACTER},
        {"target": "/tmp/x (deleted)", "mode": REGULAR, "size": 1000, "links": 0},
        {"target": "/tmp/x", "mode": REGULAR, "size": 10**12},
        {"target": "/memfd:kv (deleted)", "mode": REGULAR, "size": 10**12, "links": 0},
        {"target": "/tmp/folder (deleted)", "mode": 0o040700, "links": 1},
        {"target": "pipe:[5]"},
    ],
    ids=lambda value: value["target"],
)
def test_what_can_be_dumped_is_left_alone(file: dict) -> None:
    assert code_of(**file) == []


def test_open_files_are_read_from_proc_as_they_are(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("wb") as file, socket.create_server(("127.0.0.1", 0)) as listener:
        file.write(b"x" * 10)
        file.flush()
        (tmp_path / "gone").unlink()
        seen = {one.fd: one for one in open_files(os.getpid())}
        gone, tcp = seen[file.fileno()], seen[listener.fileno()]
    assert (gone.size, gone.links, gone.target.endswith("(deleted)")) == (10, 0, True)
    assert gone.mount is not None
    assert tcp.protocol == "TCP"


def test_a_unix_stream_to_somebody_outside_is_found_and_one_inside_is_fine() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peers = stream_peers(None)
        assert peers[os.fstat(ours.fileno()).st_ino] == os.fstat(theirs.fileno()).st_ino
        mine = [file for file in open_files(os.getpid()) if file.fd in (ours.fileno(), theirs.fileno())]
        both = list(_of_unix_peers(os.getpid(), mine))
        one = list(_of_unix_peers(os.getpid(), [file for file in mine if file.fd == ours.fileno()]))
        subject = f"pid {os.getpid()} fd {ours.fileno()}"
    assert both == []
    assert [(problem.code, problem.subject) for problem in one] == [("SH728", subject)]


def test_shared_memory_of_another_ipc_namespace_is_found_in_a_running_process() -> None:
    program = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
identity = libc.shmget(0, 4096, 0o1600)
libc.shmat(identity, None, 0)
libc.shmctl(identity, 0, None)
while True: time.sleep(0.01)
"""
    worker = Starting((sys.executable, "-Sc", program), {}, None, own_pids=False).resume()
    try:
        while "/SYSV" not in Path(f"/proc/{worker.pid}/maps").read_text():
            assert processes.find(worker)
        found = {problem.code: problem for problem in preflight.check(worker, ghost_limit=1 << 20)}
    finally:
        processes.end(worker)
    assert found["SH729"].subject == f"pid {worker.pid} map"
    assert not preflight.traced(worker.pid)


def found_in(program: str, ready: Path, ghost_limit: int = 1 << 20) -> dict[str, tuple[str, str]]:
    """What preflight says of a worker that has come to the end of `program`: by code who and what."""
    after = "\nimport time\nopen(sys.argv[1], 'w').close()\nwhile True: time.sleep(0.01)"
    worker = Starting((sys.executable, "-Sc", f"import ctypes, mmap, os, sys\n{program}{after}", str(ready)), {}, None).resume()
    try:
        while not ready.exists():
            assert processes.find(worker)
        return {problem.code: (problem.subject, problem.what) for problem in preflight.check(worker, ghost_limit=ghost_limit)}
    finally:
        processes.end(worker)


MAPPED = """
lib = ctypes.CDLL(None)
lib.mmap.restype, lib.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_long] * 5]
file = os.open(f"{sys.argv[1]}.mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 2 << 20)
assert lib.mmap(None, 2 << 20, 3, 1, file, 0)
os.close(file)
"""


@pytest.mark.lab
def test_what_is_mapped_and_has_no_name_is_found_without_a_descriptor(tmp_path: Path) -> None:
    gone = f"{MAPPED}os.unlink(f'{{sys.argv[1]}}.mapped')"
    subject, what = found_in(gone, tmp_path / "one")["SH726"]
    assert (subject.endswith(" map"), "is unlinked but mapped, with 2097152 bytes: more than the 1048576" in what) == (True, True)
    assert "SH726" not in found_in(gone, tmp_path / "two", ghost_limit=2 << 20)


@pytest.mark.lab
def test_what_is_mapped_under_a_name_that_is_gone_while_another_stays_is_found(tmp_path: Path) -> None:
    """As a named semaphore has it: glibc makes the file under another name first."""
    program = f"{MAPPED}os.link(f'{{sys.argv[1]}}.mapped', f'{{sys.argv[1]}}.other')\nos.unlink(f'{{sys.argv[1]}}.mapped')"
    subject, what = found_in(program, tmp_path / "one")["SH737"]
    assert subject.endswith(" map")
    assert f"{tmp_path}/one.mapped is mapped and was deleted, but still has 1 other names" in what


@pytest.mark.lab
@pytest.mark.parametrize(
    ("kind", "flag"),
    [("net", 0x40000000), ("mnt", 0x20000), ("uts", 0x4000000), ("ipc", 0x8000000), ("user", 0x10000000), ("cgroup", 0x2000000)],
)
def test_a_process_in_a_namespace_of_its_own_is_found(tmp_path: Path, kind: str, flag: int) -> None:
    child = f"    assert ctypes.CDLL(None).unshare({flag}) == 0\n    os.write(told, b'.')\n    signal.pause()"
    program = f"import signal\nup, told = os.pipe()\nif os.fork() == 0:\n{child}\nos.read(up, 1)"
    _subject, what = found_in(program, tmp_path / "ready")["SH736"]
    assert re.search(rf": {kind}:\[\d+\] instead of {kind}:\[\d+\]$", what)
