"""Nodes with pretended GPUs, for tests: see tests/cuda_stub/README.md."""

import contextlib
import os
import shutil
import stat
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

STUB = Path(__file__).parent / "cuda_stub"
WORKER = STUB / "gpu_worker.py"
FUSE = os.makedev(10, 229)


def build(into: Path) -> Path:
    """The folder with both libraries, for LD_LIBRARY_PATH. Skips the test when there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of the CUDA driver: CI=true scripts/system installs gcc")
    library = into / "libcuda.so.1"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(STUB / "stub.c"), "-lpthread"], check=True)
    (into / "libnvidia-ml.so.1").symlink_to(library.name)
    return into


@contextlib.contextmanager
def private_dev(at: Path) -> Iterator[Path]:
    """A /dev of this mount namespace alone, with a /dev/nvidia0 that CRIU can't dump while it is open, as it is with a real one. It has
    no disks: whoever comes after has the machine's own again."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(at)], check=True)
    for name, number in (("null", (1, 3)), ("zero", (1, 5)), ("full", (1, 7)), ("random", (1, 8)), ("urandom", (1, 9)), ("tty", (5, 0))):
        os.mknod(at / name, 0o666 | stat.S_IFCHR, os.makedev(*number))
    os.mknod(at / "nvidia0", 0o666 | stat.S_IFCHR, FUSE)
    for name in ("pts", "shm"):
        (at / name).mkdir()
        subprocess.run(["mount", "--bind", f"/dev/{name}", str(at / name)], check=True)
    (at / "ptmx").symlink_to("pts/ptmx")
    subprocess.run(["mount", "--rbind", str(at), "/dev"], check=True)
    try:
        yield Path("/dev/nvidia0")
    finally:
        for mounted in ("/dev", str(at)):
            subprocess.run(["umount", "--lazy", mounted], check=True)


class StubNode:
    """What the stub shows of one node: a folder with its GPUs, their memory, the calls that were made, and faults."""

    def __init__(self, folder: Path, name: str, gpus: int = 1, model: str = "NVIDIA B200", memory: int = 1 << 30) -> None:
        self.folder = folder / f"gpus-{name}"
        (self.folder / "memory").mkdir(parents=True)
        self.uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{name}-{index}')}" for index in range(gpus)]
        self.pci = [f"0000:{0x10 + index:02x}:00" for index in range(gpus)]
        self.show(model, memory)

    def show(self, model: str = "NVIDIA B200", memory: int = 1 << 30, mig: int = 0) -> None:
        rows = (f"{gpu}|{model}|0000{pci.upper()}.0|{memory}|{mig}" for gpu, pci in zip(self.uuids, self.pci, strict=True))
        (self.folder / "gpus").write_text("".join(f"{row}\n" for row in rows))

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def fail(self, call: str, what: str, spare: int = 0, times: int = 1) -> None:
        """The next `times` of `call` after `spare` ones: a CUresult, or hang, crash, busy; or wait, and see `within`."""
        self.write(f"fault.{call}", f"{what} {spare} {times}")

    def within(self, call: str) -> Path:
        """What is there while a call that was to wait does so. It goes on when that is unlinked."""
        return self.folder / f"in.{call}"

    def calls(self) -> list[str]:
        """Those that were made here, each as `name result`."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [f"{call} {result}" for call, _pid, result in (line.split() for line in lines)]

    def taken(self) -> int:
        """Bytes of GPU memory in use."""
        return sum(file.stat().st_size for file in (self.folder / "memory").iterdir())

    def environment(self, library: Path, device: Path | None = None) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(library), "CUDA_STUB_DIR": str(self.folder), "CUDA_STUB_DEVICE": str(device or "")}
