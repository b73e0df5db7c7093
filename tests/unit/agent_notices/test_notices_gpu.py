import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from shunter.model.errors import Problem
from shunter_agent.notices.gpu import GpuNotices
from shunter_agent.notices.port import Notice
from shunter_agent.notices.xid import Effect, Xid, address, effect_of, read

FELL_OFF = "NVRM: Xid (PCI:0000:4f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
ECC = "NVRM: Xid (PCI:0000:4F:00): 48, pid=1234, name=python3, DBE (double bit error) occurred"
REMAP = "NVRM: Xid (PCI:0000:50:00.0): 63, pid=99, Row Remapper: New row marked for remapping, reset gpu to activate."
ENGINE = "NVRM: Xid (PCI:0000:4f:00): 31, pid=7, name=secret-app, Ch 00000010, intr 00000000. MMU Fault"
BACK = "NVRM: Xid (PCI:0000:4f:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
NEEDS_RESET = "NVRM: Xid (PCI:0000:4f:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
NOW = 1_767_322_800.0


@pytest.mark.parametrize(
    ("line", "number", "effect", "text"),
    [
        (FELL_OFF, 79, Effect.GONE, "GPU has fallen off the bus."),
        (ECC, 48, Effect.DRAIN, "DBE (double bit error) occurred"),
        (REMAP, 63, Effect.HAZARD, "Row Remapper: New row marked for remapping, reset gpu to activate."),
        (ENGINE, 31, Effect.RESTART, "Ch 00000010, intr 00000000. MMU Fault"),
        (BACK, 154, Effect.RECOVERED, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        (NEEDS_RESET, 154, Effect.HAZARD, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        ("NVRM: Xid (PCI:0000:4f:00): 999, something new", 999, Effect.HAZARD, "something new"),
        ("NVRM: Xid (PCI:0000:4f:00): 79", 79, Effect.GONE, ""),
    ],
)
def test_errors_and_what_they_mean(line: str, number: int, effect: Effect, text: str) -> None:
    found = read(line + "\n")
    assert found is not None
    assert (found.number, found.effect, found.text) == (number, effect, text)
    assert found.gpu in ("0000:4f:00", "0000:50:00")


TABLE = {
    Effect.GONE: {62, 79, 95, 119, 120, 140, 143},
    Effect.DRAIN: {46, 48, 64, 74, 109, 136, 144, 145, 146, 147, 148, 149, 155, 156, 158},
    Effect.RESTART: {8, 13, 31, 94},
    Effect.HAZARD: {43, 45, 63, 92, 154, 157, 160, 161},
}
"""By NVIDIA's catalog as gpud mirrors it; which leave a GPU that can be dumped through is our judgement."""


def test_every_number_means_what_the_table_says_and_any_other_is_a_hazard() -> None:
    named = {number: effect for effect, numbers in TABLE.items() for number in numbers}
    assert {number: effect_of(number) for number in range(1000)} == {number: named.get(number, Effect.HAZARD) for number in range(1000)}


def test_the_how_to_has_the_same_table() -> None:
    rows = [line.split("|") for line in HOW_TO.read_text().partition("| XID | becomes |")[2].splitlines()[2:6]]
    told: dict[Effect, set[int]] = {}
    for _, numbers, becomes, _ in rows:
        numbers = re.sub(r"(\d+) to (\d+)", lambda m: ", ".join(map(str, range(int(m[1]), int(m[2]) + 1))), numbers)
        effect = next(effect for text, effect in WORDS.items() if text in becomes)
        told[effect] = {int(number) for number in re.findall(r"\d+", numbers)}
    assert told == TABLE


HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "hear-of-notices.md"
WORDS = {"nothing is dumped": Effect.GONE, "moves": Effect.DRAIN, "no notice": Effect.RESTART, "a hint": Effect.HAZARD}


@pytest.mark.parametrize("line", ["", "usb 1-1: new device", "NVRM: Xid (PCI:0000:4f:00): x", "NVRM: loading NVIDIA UNIX driver"])
def test_other_lines_are_none(line: str) -> None:
    assert read(line) is None


@pytest.mark.parametrize(
    ("text", "normal"),
    [("00000000:4F:00.0", "0000:4f:00"), ("4f:00.0", "0000:4f:00"), ("0000:4f:00", "0000:4f:00"), ("0009:01:00", "0009:01:00")],
)
def test_addresses_are_one_however_they_are_written(text: str, normal: str) -> None:
    assert address(text) == normal


class Heard:
    def __init__(self) -> None:
        self.notices: dict[str, Notice] = {}
        self.problems: list[Problem] = []
        self.news = threading.Event()

    def __call__(self, found: Mapping[str, Notice]) -> None:
        self.notices = dict(found)
        self.news.set()


def source(heard: Heard, log: Path = Path("/nowhere")) -> GpuNotices:
    made = GpuNotices({"0000:4f:00": "n/1"}, log, clock=lambda: NOW, log=heard.problems.append)
    made._changed = heard
    return made


def test_one_bad_gpu_is_about_its_slot_and_a_stranger_about_the_node() -> None:
    heard = Heard()
    gpus = source(heard)
    for line in (FELL_OFF, REMAP, ECC):
        error = read(line)
        assert error is not None
        gpus.heard(error, NOW - 5)
    assert [(n.id, n.kind, n.slot, n.dumpable, n.seen_at - NOW) for n in heard.notices.values()] == [
        ("gpu-0000.4f.00-gone", "gpu-failing", "n/1", False, -5),
        ("gpu-0000.50.00-hazard", "rebalance", "", True, -5),
        ("gpu-0000.4f.00-drain", "gpu-failing", "n/1", True, -5),
    ]
    back = read(BACK)
    assert back is not None
    gpus.heard(back, NOW)
    assert list(heard.notices) == ["gpu-0000.50.00-hazard"]


@pytest.mark.parametrize(
    ("number", "doubts"), [(8, True), (13, True), (31, True), (94, True), (79, True), (95, True), (48, False), (63, False)]
)
def test_errors_that_leave_nothing_to_be_trusted_of_what_was_computed_before(number: int, doubts: bool) -> None:
    """Also those of a GPU that is gone: a dump that was under way is no better than what it went through."""
    made = GpuNotices({"0000:4f:00": "n/1"}, clock=lambda: NOW, elapsed=lambda: 5_000.0)
    made.heard(Xid(gpu="0000:4f:00", number=number, text="t"), NOW - 7)
    assert [(d.slot, d.at, f"XID {number} on" in d.what) for d in made.doubts()] == ([("n/1", 4_993.0, True)] if doubts else [])


def test_an_error_of_the_process_alone_is_told_and_moves_nothing() -> None:
    heard = Heard()
    error = read(ENGINE)
    assert error is not None
    gpus = source(heard)
    gpus.heard(error, NOW - 3600)
    assert gpus.health() == (), "long over, as an agent finds it that has just started"
    gpus.heard(error, NOW - 3599)
    assert (heard.notices, list(gpus.health())) == ({}, heard.problems[-1:])
    problem = heard.problems[-1]
    assert (problem.code, problem.subject) == ("SH647", "n/1")
    assert "secret-app" not in problem.what


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """Stands in for /dev/kmsg, which only a kernel with such a GPU fills: a record a read. It leaves out EPIPE for what was overwritten."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, descriptor
    os.close(descriptor)


def test_the_log_is_followed_with_the_age_of_each_record(fifo: tuple[Path, int]) -> None:
    path, descriptor = fifo
    made = int((time.monotonic() - 60.0) * 1e6)
    os.write(descriptor, f"4,77,{made},-;{FELL_OFF}\n SUBSYSTEM=pci\n".encode())
    heard = Heard()
    gpus = GpuNotices({"0000:4f:00": "n/1"}, path, clock=lambda: NOW)
    gpus.start(heard)
    heard.news.clear()
    while not heard.notices:
        assert heard.news.wait(10)
    gpus.stop()
    (notice,) = heard.notices.values()
    assert notice.seen_at == pytest.approx(NOW - 60.0, abs=5.0)
    assert gpus.health() == ()


def test_what_was_recovered_before_the_agent_started_is_no_news(fifo: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that starts reads all that the kernel still has; what is told for a moment only is acted on all the same."""
    path, descriptor = fifo
    kept = [f"4,{n},{n},-;{line}".encode() for n, line in enumerate((ECC, FELL_OFF, REMAP, BACK))]
    monkeypatch.setattr("shunter_agent.notices.gpu._record", lambda _fd: kept.pop(0) if kept else b"")
    os.write(descriptor, b"there is something to read")
    told: list[list[str]] = []
    gpus = GpuNotices({"0000:4f:00": "n/1"}, path, clock=lambda: NOW)
    news = threading.Event()

    def changed(found: Mapping[str, Notice]) -> None:
        told.append(sorted(found))
        if found:
            news.set()

    gpus.start(changed)
    assert news.wait(10)
    gpus.stop()
    assert told == [[], ["gpu-0000.50.00-hazard"]]


def test_a_log_that_cant_be_read_is_a_blind_source(tmp_path: Path) -> None:
    heard = Heard()
    gpus = source(heard, tmp_path / "none")
    gpus.start(heard)
    gpus.stop()
    (problem,) = gpus.health()
    assert problem.code == "SH646"
    assert heard.problems == [problem]


def test_a_fault_of_ours_makes_the_log_blind_and_ends_no_thread(fifo: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter_agent.notices.gpu._AGAIN_S", 0.02)
    path, descriptor = fifo
    heard, blind = Heard(), threading.Event()
    gpus = GpuNotices({"0000:4f:00": "n/1"}, path, log=lambda _problem: blind.set())
    with monkeypatch.context() as broken:
        broken.setattr("shunter_agent.notices.gpu.read", lambda _text: [][0])
        gpus.start(heard)
        heard.news.clear()
        os.write(descriptor, f"4,77,1,-;{FELL_OFF}\n".encode())
        assert blind.wait(10)
        assert [p.code for p in gpus.health()] == ["SH646"]
    while not heard.notices:
        os.write(descriptor, f"4,77,1,-;{FELL_OFF}\n".encode())
        heard.news.wait(0.1)
    gpus.stop()
    assert gpus.health() == ()


def test_a_log_that_comes_back_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter_agent.notices.gpu._AGAIN_S", 0.02)
    heard, log = Heard(), tmp_path / "kmsg"
    gpus = source(heard, log)
    gpus.start(heard)
    while not heard.problems:
        assert heard.news.wait(10)
    log.write_text(f"4,77,1,-;{FELL_OFF}\n")
    end = time.monotonic() + 10
    while not heard.notices or gpus.health():
        assert time.monotonic() < end
        time.sleep(0.01)
    gpus.stop()
    assert len(heard.problems) == 1
