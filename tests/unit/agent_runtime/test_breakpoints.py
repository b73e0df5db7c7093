"""Breakpoints in what a worker runs, of a real process with a real uprobe in it."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter_agent.runtime import breakpoints, preflight, process
from sleepers import sleeper

EVENTS = breakpoints.EVENTS[0]


@pytest.mark.parametrize(
    ("memory", "file", "at"),
    [
        (b"abcd", b"abcd", None),
        (b"ab\xccd", b"abcd", 2),
        (b"\xccbcd", b"abcd", 0),
        (b"abc\xcc", b"abcd", 3),
        (b"ab\xcc\xcc", b"ab\xcc\xcc", None),
        (b"abXd", b"abcd", None),
        (b"a\xcc\x01d", b"abcd", None),
        (b"aX\xccd", b"abcd", None),
        (b"aX\xccd\xcc", b"abcde", 4),
        (b"ab\xccd", b"ab", None),
    ],
)
def test_a_breakpoint_is_one_byte_that_the_file_has_otherwise(memory: bytes, file: bytes, at: int | None) -> None:
    assert breakpoints.broken(memory, file) == at


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One that nobody else runs."""
    return Path(shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "sleep"))


def test_files_that_the_kernel_lists_are_found_by_what_they_are(program: Path, tmp_path: Path) -> None:
    other, listed = tmp_path / "other", tmp_path / "events"
    other.hardlink_to(program)  # as a container calls it otherwise than its node
    with sleeper(program=str(program)) as pid:
        for path, said in ((program, True), (other, True), (tmp_path / "none", False), (Path(shutil.which("sh") or ""), False)):
            listed.write_text(f"p:probes/first {path}:0x0000000000002040 arg1=%di\nr:probes/second {path}:0x0000000000002060\n")
            found = list(breakpoints.check([pid, 2**22 + 1], (tmp_path / "missing", listed)))
            assert [(one.code, one.what, one.subject) for one in found] == [
                (
                    "SH762",
                    f"{program} has a breakpoint in it, which would go into the image and end the worker where it is restored: "
                    "the uprobe probes/first at 0x0000000000002040",
                    f"pid {pid}",
                )
            ] * said, path


@contextlib.contextmanager
def probe(program: Path, offset: int) -> Iterator[Path]:
    """A real uprobe, defined and not yet on; what switches it."""
    group = f"shunter_test_{os.getpid()}"
    if not EVENTS.exists():
        subprocess.run(["mount", "-t", "tracefs", "none", str(EVENTS.parent)], check=False, capture_output=True)
    try:
        events = os.open(EVENTS, os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        pytest.skip(f"no uprobes can be defined here: {error}")
    switch = EVENTS.parent / "events" / group / "x" / "enable"
    try:
        os.write(events, f"p:{group}/x {program}:{offset:#x}\n".encode())
        try:
            yield switch
        finally:
            switch.write_text("0")
            os.write(events, f"-:{group}/x\n".encode())
    finally:
        os.close(events)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="looks for x86's breakpoints")
def test_a_real_probe_shows_in_the_list_and_in_memory(program: Path) -> None:
    with sleeper(program=str(program)) as pid:
        worker = process.note(pid)
        assert "SH762" not in [one.code for one in preflight.check(worker, ghost_limit=0)]
        (text,) = [one for one in breakpoints._programs(pid) if one.path == str(program)]
        offset = text.offset + 0x40
        with probe(program, offset) as switch:
            (found,) = [one for one in preflight.check(worker, ghost_limit=0) if one.code == "SH762"]
            assert found.what.startswith(f"{program} has a breakpoint in it")
            assert f"{offset:#018x}" in found.what
            assert list(breakpoints.check([pid], ())) == [], "it isn't on"
            switch.write_text("1")
            (found,) = breakpoints.check([pid], ())
            assert found.what.endswith(f": at {offset:#x} of the file")
        assert list(breakpoints.check([pid])) == []
