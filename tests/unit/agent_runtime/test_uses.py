"""What a worker uses of its node, by real processes, and what a node lacks of it."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shunter_agent.runtime import process as processes
from shunter_agent.runtime import uses
from shunter_agent.runtime.buildid import build_id
from shunter_agent.runtime.port import FileUse, Process, Uses

Start = Callable[..., Process]
READ, WRITTEN = "read", "written"
PROGRAM = """
import mmap, os, sys
held = [open(sys.argv[1]), open(sys.argv[2], "a")]
os.mkfifo(sys.argv[2] + ".fifo")
held.append(os.open(sys.argv[2] + ".fifo", os.O_RDWR))
held.append(os.memfd_create("weights"))
gone = open(sys.argv[2] + ".gone", "w")
os.unlink(gone.name)
os.chdir(os.path.dirname(sys.argv[1]))
held.append(open("/proc/self/status"))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, program: str = PROGRAM, **more: object) -> Process:
        child = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **more,  # type: ignore[call-overload]
        )
        made.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return processes.note(child.pid)

    yield begin
    for child in made:
        child.kill()
        child.communicate()


def own(tmp_path: Path) -> tuple[Path, Path]:
    read, written = tmp_path / READ, tmp_path / WRITTEN
    read.write_text("weights")
    written.write_text("log")
    return read, written


def test_what_it_maps_has_open_and_stands_in_is_used_by_its_path(start: Start, tmp_path: Path) -> None:
    read, written = own(tmp_path)
    used = uses.of_tree(start(str(read), str(written)), own_network=False)
    files = {use.path: use for use in used.files}
    here = {path: use for path, use in files.items() if path.startswith(str(tmp_path))}

    def used_as(path: Path | str, size: int | None = None) -> FileUse:
        return FileUse(path=str(path), mode=os.stat(path).st_mode, bytes=size)

    fifo = f"{written}.fifo"
    assert here == {
        str(tmp_path): used_as(tmp_path),
        str(read): used_as(read, 7),
        str(written): used_as(written),
        fifo: used_as(fifo),
    }, "what is written to has no size that lasts, and what has no name goes along"
    libc = next(path for path in files if Path(path).name.startswith("libc.so"))
    about = os.stat(libc)
    assert files[libc] == FileUse(path=libc, mode=about.st_mode, bytes=about.st_size, build=build_id(libc))
    assert len(files[libc].build) >= 16
    assert not [path for path in files if path.startswith(("/proc", "/memfd", "/dev/null"))]
    assert uses.lacking(used, "n") == [], "its own node lacks nothing"


def test_a_file_that_is_mapped_and_written_to_has_no_size_that_lasts(start: Start, tmp_path: Path) -> None:
    own(tmp_path)
    program = """
import ctypes, mmap, sys
log = open(sys.argv[1], "r+b")
read = mmap.mmap(log.fileno(), 0, prot=mmap.PROT_READ)
with open(sys.argv[2], "r+b") as shared:  # Python's own mmap would keep it open
    place = ctypes.CDLL(None).mmap
    place.restype, place.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    place(None, 7, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, shared.fileno(), 0)
print("ready", flush=True)
sys.stdin.read()
"""
    used = uses.of_tree(start(str(tmp_path / WRITTEN), str(tmp_path / READ), program=program), own_network=False)
    sizes = {Path(use.path).name: use.bytes for use in used.files}
    assert (sizes[WRITTEN], sizes[READ]) == (None, 7), "a segment of shared memory keeps its size"


def test_children_use_it_too(start: Start, tmp_path: Path) -> None:
    read, written = own(tmp_path)
    parent = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', sys.argv[3], *sys.argv[1:3]]).wait()"
    used = uses.of_tree(start(str(read), str(written), PROGRAM, program=parent), own_network=False)
    assert str(read) in {use.path for use in used.files}


def test_files_that_are_missing_or_other_ones_are_named_with_both_values(tmp_path: Path) -> None:
    read, _written = own(tmp_path)
    short, there = FileUse(path=str(read), bytes=9), FileUse(path=str(read), bytes=7)
    (lacks,) = uses.lacking(Uses(files=(short, there, FileUse(path="/nowhere"))), "node-b")
    assert (lacks.code, lacks.subject) == ("SH767", "node-b")
    size, missing = lacks.what.split("; ")
    assert size == f"the worker uses {read} with 9 bytes, here it has 7"
    assert missing == "the worker uses /nowhere, which this node can't open: No such file or directory"
    read.chmod(0o640)
    (rights,) = uses.lacking(Uses(files=(FileUse(path=str(read), mode=0o100600, bytes=7),)), "n")
    assert rights.what == f"the worker uses {read} as -rw-------, here it is -rw-r-----"
    tmp_path.chmod(0o700)
    (folder,) = uses.lacking(Uses(files=(FileUse(path=str(tmp_path), mode=0o100600),)), "n")
    assert folder.what == f"the worker uses {tmp_path} as -rw-------, here it is drwx------"
    (many,) = uses.lacking(Uses(files=tuple(FileUse(path=f"/nowhere/{n}") for n in range(9))), "n")
    assert many.what.count("/nowhere") == uses.NAMED
    assert many.what.endswith("; and 6 more files")


def test_another_build_of_the_same_size_is_another_file(tmp_path: Path) -> None:
    """Which an upgrade of the engine can well be."""
    other = tmp_path / "program"
    shutil.copy(sys.executable, other)
    was = build_id(str(other))
    use = FileUse(path=str(other), bytes=other.stat().st_size, build=was)
    assert uses.lacking(Uses(files=(use,)), "n") == []
    content = other.read_bytes()
    other.write_bytes(content.replace(bytes.fromhex(was), bytes(len(was) // 2)))
    (lacks,) = uses.lacking(Uses(files=(use,)), "n")
    assert lacks.what == f"the worker uses {other} of build {was}, here it is of build {'0' * len(was)}"


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100), b"\x7fELF\x02\x01" + bytes(10)])
def test_what_is_no_program_has_no_build(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert build_id(str(tmp_path / "x")) == ""


def test_a_build_id_is_what_the_linker_says() -> None:
    told = subprocess.run(["readelf", "-n", sys.executable], capture_output=True, text=True, check=True).stdout
    assert f"Build ID: {build_id(sys.executable)}" in told


CONNECTED = """
import socket, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_address_that_only_its_node_has(start: Start) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as looks:
        looks.connect(("192.0.2.1", 9))  # nothing is sent: it only says which address would be used
        mine = looks.getsockname()[0]
    with socket.create_server((mine, 0)) as server, socket.create_server(("127.0.0.1", 0)) as local:
        process = start(mine, str(server.getsockname()[1]), program=CONNECTED)
        used = uses.of_tree(process, own_network=False)
        closing = uses.of_tree(process, own_network=False, closes=True)
        within = uses.of_tree(start("127.0.0.1", str(local.getsockname()[1]), program=CONNECTED), own_network=False)
    assert (used.addresses, within.addresses) == ((mine,), ()), "of loopback each node has its own"
    listens = start(
        mine, program="import socket, sys\nheld = socket.create_server((sys.argv[1], 0))\nprint('ready', flush=True)\nsys.stdin.read()"
    )
    assert uses.of_tree(listens, own_network=False).addresses == (mine,)
    assert uses.of_tree(listens, own_network=True).addresses == ()
    everywhere = start("", program="import socket, sys\nheld = socket.create_server(('', 0))\nprint('ready', flush=True)\nsys.stdin.read()")
    assert uses.of_tree(everywhere, own_network=False).addresses == ()
    assert closing.addresses == (), "its connections stay behind"
    assert uses.of_tree(listens, own_network=False, closes=True).addresses == (mine,)
    assert uses.lacking(Uses(addresses=used.addresses), "n") == []
    (lacks,) = uses.lacking(Uses(addresses=("192.0.2.7", mine, "2001:db8::7")), "node-b")
    assert (lacks.code, lacks.subject) == ("SH768", "node-b")
    assert lacks.what == "the worker has sockets bound to 192.0.2.7, 2001:db8::7, which isn't an address of this node"
