"""What an image remembers of GPUs, in a file of its own beside CRIU's, and which of a node's GPUs take their places at a restore."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from shunter_agent.runtime.port import Gpu

GPUS: Final = "gpus.json"


class Was(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of the node that an image was made on. `used`: bytes that the worker had on it; `own`: it belonged to the worker's slot."""

    uuid: str
    model: str
    used: int = 0
    own: bool = False


class GpuImage(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of that node in the order of their PCI addresses (the driver wants to hear of each at a restore), and the worker's part."""

    driver: str
    gpus: tuple[Was, ...]
    processes: int
    """How many CUDA processes the worker had."""
    stopped: tuple[int, ...] = ()
    """Processes that a signal had stopped before, by their pids in the worker's own PID namespace: they stay so."""

    @property
    def used(self) -> int:
        """Bytes on all GPUs."""
        return sum(gpu.used for gpu in self.gpus)


def write(folder: Path, image: GpuImage) -> None:
    """Beside the dump. Raises OSError."""
    path = folder / GPUS
    path.touch(0o600)
    path.write_bytes(msgspec.json.encode(image))


def read(folder: Path) -> GpuImage | None:
    """None: the worker had no GPU. Raises OSError, and msgspec.DecodeError for what isn't one."""
    try:
        return msgspec.json.decode((folder / GPUS).read_bytes(), type=GpuImage)
    except FileNotFoundError:
        return None


def own(gpus: Sequence[Gpu], pci: Sequence[str]) -> list[Gpu]:
    """The GPUs at these PCI addresses, in this order; all of them when none are named. One that isn't there is left out."""
    if not pci:
        return list(gpus)
    by = {gpu.pci: gpu for gpu in gpus}
    return [by[address] for address in pci if address in by]


class Unfit(Exception):
    """The GPUs here can't take the image; the text has both values."""


def pairs(image: GpuImage, here: Sequence[Gpu], pci: Sequence[str]) -> list[tuple[str, str]]:
    """UUIDs before and now: the slot's GPUs for the slot's, in order, and any others for the rest. Empty: they are the very same.

    Raises Unfit.
    """
    slot = own(here, pci)
    was = [gpu for gpu in image.gpus if gpu.own]
    if len(slot) != len(was):
        raise Unfit(f"the image needs {len(was)} GPUs, the slot has {len(slot)}")
    if [gpu.uuid for gpu in slot] == [gpu.uuid for gpu in was] and {gpu.uuid for gpu in image.gpus} <= {gpu.uuid for gpu in here}:
        _check(zip(was, slot, strict=True))
        return []
    rest = [gpu for gpu in here if gpu not in slot]
    others = [gpu for gpu in image.gpus if not gpu.own]
    if len(others) > len(rest):
        raise Unfit(
            f"the image was made on a node with {len(image.gpus)} GPUs, all of which the driver asks for, and this node has {len(here)}"
        )
    same = {gpu.uuid: gpu for gpu in rest}
    kept = [(gpu, same.pop(gpu.uuid)) for gpu in others if gpu.uuid in same]
    moved = [gpu for gpu in others if gpu.uuid not in {before.uuid for before, _ in kept}]
    matched = [*zip(was, slot, strict=True), *kept, *zip(moved, same.values(), strict=False)]
    _check(matched)
    return [(before.uuid, now.uuid) for before, now in matched]


def _check(matched: "Sequence[tuple[Was, Gpu]] | zip[tuple[Was, Gpu]]") -> None:
    for before, now in matched:
        if before.model != now.model:
            raise Unfit(f"the image needs a GPU of model {before.model!r}, {now.pci} is {now.model!r}")
        if before.used > now.free:
            raise Unfit(f"the image needs {before.used} bytes on a GPU, {now.pci} has {now.free} free")
        if before.used and now.mig:
            raise Unfit(f"{now.pci} is partitioned (MIG), which the driver's checkpoints don't know")
