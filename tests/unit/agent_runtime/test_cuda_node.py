"""What is known of GPUs without one: maps of UUIDs, what rules a worker out, and a library that is looked at or hangs."""

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from shunter.model.errors import Rejected
from shunter_agent.runtime import hostmemory, process
from shunter_agent.runtime.cuda import exclusions, image, looking, seen
from shunter_agent.runtime.cuda.exclusions import Seen
from shunter_agent.runtime.cuda.node import CudaNode
from shunter_agent.runtime.cuda.session import Died, Failed
from shunter_agent.runtime.port import Gpu, MemoryLimit, Process, WorkerSpec

SPEC = WorkerSpec(worker="w", role="decode", graph="g", engine="e", address="10.0.0.1:1")
ME = Process(pid=2**22 + 5, started=1)


def here(*names: str, free: int = 100) -> list[Gpu]:
    return [Gpu(uuid=f"GPU-{name}", model="M", pci=f"0000:{n}0:00", memory=100, free=free) for n, name in enumerate(names)]


def was(own: str, others: str = "", used: int = 1) -> image.GpuImage:
    gpus = [*((name, True) for name in own), *((name, False) for name in others)]
    every = tuple(image.Was(uuid=f"GPU-{name}", model="M", used=used if mine else 0, own=mine) for name, mine in gpus)
    return image.GpuImage(driver="580.1", gpus=every, processes=1)


@pytest.mark.parametrize(
    ("of", "now", "pci", "pairs"),
    [
        (was("a"), "x", (), ["ax"]),
        (was("a"), "a", (), []),
        (was("ab"), "xy", (), ["ax", "by"]),
        (was("a", "bc"), "xyz", ("0000:10:00",), ["ay", "bx", "cz"]),
        (was("a", "b"), "ba", ("0000:00:00",), ["ab", "ba"]),
        (was("a", "bc"), "abc", ("0000:00:00",), []),
        (was("a", "bc"), "bacd", ("0000:30:00",), ["ad", "bb", "cc"]),
    ],
)
def test_each_gpu_that_the_driver_showed_is_paired_the_slots_with_the_slots(
    of: image.GpuImage, now: str, pci: tuple[str, ...], pairs: list[str]
) -> None:
    found = image.pairs(of, here(*now), pci)
    assert [f"{before[-1]}{after[-1]}" for before, after in found] == pairs
    assert len({after for _before, after in found}) == len(found), "no GPU stands in for two"


@pytest.mark.parametrize(
    ("of", "now", "pci", "said"),
    [
        (was("ab"), "x", (), "needs 2 GPUs, the slot has 1"),
        (was("a", "bcd"), "xy", ("0000:00:00",), "a node with 4 GPUs, all of which the driver asks for, and this node has 2"),
        (was("a", used=101), "x", (), "needs 101 bytes on a GPU, 0000:00:00 has 100 free"),
        (was("a", used=101), "a", (), "needs 101 bytes on a GPU, 0000:00:00 has 100 free"),
    ],
)
def test_gpus_that_dont_do_are_refused(of: image.GpuImage, now: str, pci: tuple[str, ...], said: str) -> None:
    with pytest.raises(image.Unfit, match=said):
        image.pairs(of, here(*now), pci)


def test_an_image_remembers_its_gpus(tmp_path: Path) -> None:
    assert image.read(tmp_path) is None
    image.write(tmp_path, was("a", "b", used=7))
    assert image.read(tmp_path) == was("a", "b", used=7)
    assert (tmp_path / image.GPUS).stat().st_mode & 0o077 == 0
    assert was("ab", "c", used=7).used == 14


@pytest.mark.parametrize(
    ("driver", "machine", "said"),
    [
        ("580.95.05", "x86_64", []),
        ("610.43.02", "x86_64", []),
        ("565.57.01", "x86_64", ["older than 570"]),
        ("570.124.06", "x86_64", ["older than 580"]),
        ("610.57.04", "x86_64", ["its lock can end the process"]),
        ("580.95.05", "aarch64", ["this machine is aarch64"]),
    ],
)
def test_drivers_that_cant_or_must_not(driver: str, machine: str, said: list[str]) -> None:
    found = list(exclusions.of_driver(driver, machine))
    assert [problem.code for problem in found] == ["SH743"] * len(said)
    assert all(part in problem.what for part, problem in zip(said, found, strict=True))


QUIET = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
NCCL = frozenset({"/usr/lib/libnccl.so.2"})
PLAIN = frozenset({"/dev/nvidia0", "/dev/nvidia12", "/dev/nvidiactl", "/dev/nvidia-uvm"})


def cuda(pid: int = 1, **fields: Any) -> Seen:
    return Seen(pid=pid, cuda=True, **{"devices": PLAIN, **fields})


@pytest.mark.parametrize(
    ("seen", "driver", "said"),
    [
        ([cuda()], "580.1", ""),
        ([cuda(maps=NCCL)], "580.1", ""),
        ([Seen(pid=1, cuda=False, devices=frozenset({"/dev/nvidiactl"}))], "580.1", "without being a CUDA process"),
        ([cuda(devices=frozenset({"/dev/nvidia-caps/nvidia-cap12"}))], "580.1", r"part of a GPU \(MIG\)"),
        ([cuda(devices=frozenset({"/dev/nvidia-caps-imex-channels/channel0"}))], "580.1", "IMEX"),
        ([cuda(devices=frozenset({"/dev/nvidia-fs0"}))], "580.1", "aren't known to close"),
        ([cuda(files=frozenset({"/tmp/nvidia-mps/control"}))], "580.1", "MPS"),
        ([cuda(maps=NCCL, gpus=2)], "580.1", "process 1 uses NCCL on 2 GPUs, and was started without NCCL_NVLS_ENABLE=0: the driver hangs"),
        ([cuda(maps=NCCL, gpus=2, environment={"NCCL_NVLS_ENABLE": "0"})], "580.1", ""),
        ([cuda(gpus=2)], "580.1", ""),
        ([cuda(1), cuda(2)], "580.1", ""),
        (
            [cuda(1, maps=NCCL), cuda(2, maps=NCCL, environment=QUIET)],
            "580.1",
            "process 1 was started without NCCL_P2P_DISABLE=1,",
        ),
        ([cuda(1, maps=NCCL, environment=QUIET), cuda(2, maps=NCCL, environment=QUIET)], "580.1", ""),
        ([cuda(n, maps=NCCL, environment={"CUDA_CHECKPOINT_JOB_FILE": "/x"}) for n in (1, 2)], "610.1", ""),
        ([cuda(n, maps=NCCL, environment={"CUDA_CHECKPOINT_JOB_FILE": "/x"}) for n in (1, 2)], "580.1", "without NCCL_P2P_DISABLE=1"),
    ],
)
def test_what_the_drivers_checkpoints_dont_cover_is_named(seen: list[Seen], driver: str, said: str) -> None:
    found = list(exclusions.of_tree(seen, driver))
    assert {problem.code for problem in found} <= {"SH745"}
    if said:
        assert re.search(said, found[0].what), found[0].what
    else:
        assert found == []


class FakeSession:
    """Answers each question with what is next: a value, or something to raise."""

    alive = True

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), 0

    def __call__(self, warm: bool) -> "FakeSession":
        return self

    def ask(self, do: str, **_arguments: object) -> Any:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        pass


def gpu(**fields: Any) -> dict[str, Any]:
    plain = {
        "uuid": "GPU-a",
        "model": "B200",
        "pci": "00000000:4F:00.0",
        "memory": 10,
        "free": 4,
        "mig": False,
        "used": {"7": 6},
        "domain": "",
    }
    return {**plain, **fields}


LOOKED = {"driver": "580.95.05", "cuda": 12090, "lacks": "", "gpus": [gpu(), gpu(uuid="GPU-b", used={"7": 1, "8": 2})], "lost": []}


def looker(clock: list[float], *answers: Any) -> tuple[looking.Looker, FakeSession]:
    session = FakeSession(*answers)
    return looking.Looker(session, lambda: clock[0]), session  # type: ignore[arg-type]


def test_what_the_library_shows() -> None:
    looked, session = looker([0.0], LOOKED)
    found = looked.gpus()
    assert (found.driver, found.cuda, found.trouble) == ("580.95.05", "12.9", None)
    assert [(g.uuid, g.pci, g.used) for g in found.gpus] == [("GPU-a", "0000:4f:00", {7: 6}), ("GPU-b", "0000:4f:00", {7: 1, 8: 2})]
    assert looked.used() == {7: 7, 8: 2}
    assert session.asked == 1, "an answer is good for a moment"


def test_what_processes_use_is_told_without_waiting_for_the_library() -> None:
    clock, gate = [0.0], threading.Event()
    looked, session = looker(clock, LOOKED, {**LOOKED, "gpus": [gpu(used={"9": 5})]})
    looked.gpus()
    plain = session.ask

    def slow(do: str, **arguments: object) -> Any:
        assert gate.wait(10)
        return plain(do, **arguments)

    session.ask = slow  # type: ignore[method-assign]
    clock[0] = 1.0
    assert looked.used() == {7: 7, 8: 2}, "as of the last look"
    gate.set()
    looked.gpus()
    assert looked.used() == {9: 5}


def test_a_worker_that_has_the_library_loaded_and_no_gpu_moves_on_a_node_whose_driver_cant(monkeypatch: pytest.MonkeyPatch) -> None:
    me = process.note(os.getpid())
    session = FakeSession(*[{**LOOKED, "lacks": "the driver has no checkpoints"}] * 9)
    node = CudaNode(there=True, session=session)  # type: ignore[arg-type]
    monkeypatch.setattr(seen, "cuda_processes", list)
    monkeypatch.setattr(seen, "devices", lambda _pid: frozenset())
    assert node.check(me, SPEC) == []
    assert node.take(me, SPEC, Path()) is None
    monkeypatch.setattr(seen, "devices", lambda _pid: PLAIN)
    assert [problem.code for problem in node.check(me, SPEC)] == ["SH743"]
    with pytest.raises(Rejected, match="SH743"):
        node.take(me, SPEC, Path())


@pytest.mark.parametrize(
    ("available", "left", "said"),
    [
        (1000, None, []),
        (8, 8, []),
        (7, 1000, ["a dump brings 7 bytes of GPU memory into host memory and a margin of 10 %, available are 7"]),
        (1000, 7, ["a dump brings 7 bytes of GPU memory into host memory and a margin of 10 %, /cg/w/memory.max leaves 7"]),
    ],
)
def test_gpu_memory_must_fit_on_the_host_and_into_the_workers_own_limit(
    monkeypatch: pytest.MonkeyPatch, available: int, left: int | None, said: list[str]
) -> None:
    """By the cgroups of its processes, or by those that are known of its container."""
    me = process.note(os.getpid())
    looked = {**LOOKED, "gpus": [gpu(used={str(me.pid): 6}), gpu(uuid="GPU-b", used={str(me.pid): 1, "8": 2})]}
    limits = [] if left is None else [MemoryLimit(path="/cg/w/memory.max", most=9999, left=left)]
    monkeypatch.setattr(seen, "devices", lambda pid: PLAIN if pid == me.pid else frozenset())
    monkeypatch.setattr(exclusions, "of_driver", lambda *_: ())
    monkeypatch.setattr(hostmemory, "available", lambda: available)
    monkeypatch.setattr(hostmemory, "limits_of", lambda pid: limits if pid == me.pid else [])
    for given in (None, limits):
        session = FakeSession(looked, {str(me.pid): "RUNNING"})
        node = CudaNode(there=True, session=session)  # type: ignore[arg-type]
        found = node.check(me, SPEC, given)
        assert [(problem.code, problem.what) for problem in found] == [("SH746", what) for what in said]


@pytest.mark.parametrize(("on", "refused"), [(1, False), (2, True)])
def test_how_many_gpus_a_process_is_on_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch, on: int, *, refused: bool) -> None:
    me = process.note(os.getpid())
    gpus = [gpu(uuid=f"GPU-{n}", used={str(me.pid): 1} if n < on else {"8": 1}) for n in range(3)]
    monkeypatch.setattr(seen, "devices", lambda pid: PLAIN if pid == me.pid else frozenset())
    monkeypatch.setattr(seen, "maps", lambda _pid: NCCL)
    monkeypatch.setattr(seen, "environment", lambda _pid: {})
    monkeypatch.setattr(exclusions, "of_driver", lambda *_: ())
    session = FakeSession({**LOOKED, "gpus": gpus}, {str(me.pid): "RUNNING"})
    found = CudaNode(there=True, session=session).check(me, SPEC)  # type: ignore[arg-type]
    assert [problem.code for problem in found] == ["SH745"] * refused
    assert all("uses NCCL on 2 GPUs" in problem.what for problem in found)


def test_a_library_that_hangs_is_left_alone_for_a_minute() -> None:
    clock = [0.0]
    looked, session = looker(clock, Died("it hangs"), LOOKED)
    assert looked.gpus().trouble is not None
    clock[0] = 59.0
    found = looked.gpus()
    assert found.trouble is not None
    assert "it hangs" in found.trouble.what
    assert "NVRM" in found.trouble.remedy, "it is there: nothing is to be installed"
    assert (session.asked, looked.used()) == (1, {})
    clock[0] = 61.0
    assert looked.gpus().trouble is None


def test_a_helper_that_somebody_ended_while_it_had_nothing_to_do_is_replaced_at_once() -> None:
    made: list[FakeSession] = []

    def make(_warm: bool) -> FakeSession:
        made.append(FakeSession(LOOKED))
        return made[-1]

    clock = [0.0]
    looked = looking.Looker(make, lambda: clock[0])  # type: ignore[arg-type]
    assert looked.gpus().trouble is None
    made[0].alive, clock[0] = False, 1.0
    assert looked.gpus().trouble is None
    assert [session.asked for session in made] == [1, 1]


def test_a_library_that_is_missing_is_looked_for_again() -> None:
    clock = [0.0]
    looked, _session = looker(clock, Failed("no library"), LOOKED)
    found = looked.gpus()
    assert (found.trouble.code if found.trouble else "", found.gpus) == ("SH743", ())
    assert found.trouble is not None
    assert "Install" in found.trouble.remedy
    clock[0] = 1.0
    assert len(looked.gpus().gpus) == 2


def test_a_node_without_a_driver_asks_nobody() -> None:
    session = FakeSession()
    node = CudaNode(there=False, session=session)  # type: ignore[arg-type]
    assert (node.facts(), node.gpus().trouble, node.memory(ME), node.processes(ME)) == ({}, None, 0, [])
    assert session.asked == 0


def test_a_driver_is_noticed_by_its_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    sign = tmp_path / "version"
    assert not looking.present((sign,))
    sign.touch()
    assert looking.present((sign,))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert not looking.present(())
    (tmp_path / "libcuda.so.1").touch()
    assert looking.present(())
