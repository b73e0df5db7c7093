"""What rules out that a worker's GPU memory is taken into an image, as far as it can be seen before the driver is asked.

From the driver's own documentation, CRIU's CUDA plugin and public issues about both; none of it could be tried on a GPU here.
Managed memory and CUDA IPC between processes can't be seen from outside: the driver refuses those itself, and the worker runs on.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from shunter.model.errors import Problem

from shunter_agent.runtime.cuda import problems

OLDEST: Final = (570,)
"""The first driver with these calls. 580 is the first that can name other GPUs at a restore."""
MAPS_FROM: Final = (580,)
IPC_FROM: Final = (610,)
BAD: Final = {"610.57.04": "its lock can end the process that it is asked to lock"}
_JOB: Final = "CUDA_CHECKPOINT_JOB_FILE"
_NVLS: Final = "NCCL_NVLS_ENABLE"
_QUIET_NCCL: Final = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", _NVLS: "0", "NCCL_CUMEM_HOST_ENABLE": "0"}
_PLAIN: Final = re.compile(r"/dev/nvidia(\d+|ctl|-uvm|-uvm-tools|-modeset)")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the tree. `cuda`: the driver knows it as a CUDA process; `devices` are what it has open or maps of /dev/nvidia*;
    `gpus`: on how many it has memory."""

    pid: int
    cuda: bool
    devices: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    maps: frozenset[str] = frozenset()
    environment: dict[str, str] = {}
    gpus: int = 1


def version(driver: str) -> tuple[int, ...]:
    """As numbers, to compare."""
    return tuple(int(part) for part in driver.split(".") if part.isdigit())


def of_driver(driver: str, machine: str) -> Iterator[Problem]:
    """SH743 for a driver that can't, or that must not be asked to."""
    if version(driver) < OLDEST:
        yield problems.unusable(f"driver {driver} is older than {OLDEST[0]}")
    elif version(driver) < MAPS_FROM:
        yield problems.unusable(f"driver {driver} is older than {MAPS_FROM[0]}, and can restore on the very same GPUs alone")
    elif driver in BAD:
        yield problems.unusable(f"driver {driver} isn't to be used for it: {BAD[driver]}")
    if machine != "x86_64":
        yield problems.unusable(f"this machine is {machine}, and the driver's checkpoints are known to work on x86_64 alone")


def of_tree(seen: Sequence[Seen], driver: str) -> Iterator[Problem]:
    """SH745 for what the driver's checkpoints don't cover."""
    for one in seen:
        yield from _of_process(one)
    cuda = [one for one in seen if one.cuda]
    if len(cuda) > 1:
        yield from _of_group(cuda, driver)


def _of_process(one: Seen) -> Iterator[Problem]:
    if one.devices and not one.cuda:
        yield problems.excluded(
            f"process {one.pid} has {sorted(one.devices)[0]} open without being a CUDA process: forked from one, or using NVML alone",
            "Have it close that, or start helper processes before CUDA is used (multiprocessing's `spawn`)",
            one.pid,
        )
    for path in sorted(one.devices):
        if path.startswith("/dev/nvidia-caps-imex-channels/"):
            what, to_do = f"{path} is open: memory is shared over NVLink between nodes (IMEX)", "Start the worker without, or drain it"
            yield problems.excluded(what, to_do, one.pid)
        elif path.startswith("/dev/nvidia-caps/"):
            what, to_do = f"{path} is open: it uses a part of a GPU (MIG)", "Give it whole GPUs, or drain it"
            yield problems.excluded(what, to_do, one.pid)
        elif not _PLAIN.fullmatch(path):
            what, to_do = f"{path} is open, which the driver's checkpoints aren't known to close", "Have the worker close it, or drain it"
            yield problems.excluded(what, to_do, one.pid)
    if one.gpus > 1 and _nccl(one) and one.environment.get(_NVLS) != "0":
        yield problems.excluded(
            f"process {one.pid} uses NCCL on {one.gpus} GPUs, and was started without {_NVLS}=0: the driver hangs on what that shares",
            f"Start the worker with {_NVLS}=0, or drain it",
            one.pid,
        )
    if any("/nvidia-mps/" in path for path in one.files):
        what, to_do = "it shares its GPU with others through MPS", "Start it without the MPS daemon, or drain it"
        yield problems.excluded(what, to_do, one.pid)


def _of_group(cuda: Sequence[Seen], driver: str) -> Iterator[Problem]:
    """Processes that talk to each other GPU to GPU need the driver's job file from 610 on, and NCCL off such ways before."""
    if version(driver) >= IPC_FROM and all(_JOB in one.environment for one in cuda):
        return
    for one in cuda:
        if _nccl(one) and (missing := _missing(one.environment)):
            yield problems.excluded(
                f"{len(cuda)} CUDA processes use NCCL, and process {one.pid} was started without {', '.join(missing)}",
                f"Start the worker with these, or on driver {IPC_FROM[0]} or newer through `cuda-checkpoint --launch-job`; or drain it",
                one.pid,
            )


def _nccl(one: Seen) -> bool:
    return any("libnccl" in path for path in one.maps)


def _missing(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in _QUIET_NCCL.items() if environment.get(name) != value]
