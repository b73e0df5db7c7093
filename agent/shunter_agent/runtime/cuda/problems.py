"""What can be wrong with GPUs, as problems: SH740 to SH748."""

from typing import Final

from shunter.model.errors import Problem

from shunter_agent.runtime.cuda.session import Died, Failed

_REMEDIES: Final = {
    2: "The GPU or the host lacks memory: see what else is on it, and choose a node with room",
    100: "The driver shows no GPU here: look for NVRM in the kernel log",
    304: "The kernel refused the driver something: look for NVRM in the kernel log, and at free host memory",
    401: "Somebody else locked or checkpointed it, or an earlier restore failed: end the worker and restore its newest image",
    600: "Its GPU work didn't end in time: try again in a calmer moment, or have the engine pause itself first",
    801: "The driver can't checkpoint what it does with its GPU (managed memory, CUDA IPC, MPS, MIG, ...): start it without, or drain it",
}
_OTHERWISE: Final = "Look for NVRM and Xid in the kernel log of that node; the worker can still be drained"


def remedy(failed: Failed | Died) -> str:
    """What to do about it, by the driver's code."""
    if isinstance(failed, Died):
        return "Look for NVRM and Xid in the kernel log of that node: a driver that hangs usually has a GPU that is failing"
    return _REMEDIES.get(failed.code if failed.code is not None else -1, _OTHERWISE)


def refused(failed: Failed | Died, pid: int) -> Problem:
    """SH740."""
    what = f"the GPU part of the dump failed, and the worker runs on: {failed}"
    return Problem(code="SH740", what=what, remedy=remedy(failed), subject=f"pid {pid}")


def not_restored(failed: Failed | Died, worker: str) -> Problem:
    """SH741."""
    what = f"its GPU memory couldn't be restored, and no copy is left: {failed}"
    return Problem(code="SH741", what=what, remedy=f"The image is as it was. {remedy(failed)}", subject=worker)


def stuck(why: str, pid: int, *, ended: bool) -> Problem:
    """SH742."""
    fate = "it was ended, and its image is whole" if ended else "it stands still, its GPU memory in host memory"
    what = f"the worker's GPU memory couldn't be put back: {fate} ({why})"
    to_do = (
        "Restore it from the image just taken" if ended else "End it, and restore its newest image; look for NVRM and Xid in the kernel log"
    )
    return Problem(code="SH742", what=what, remedy=to_do, subject=f"pid {pid}")


def unusable(why: str | Failed | Died, subject: str = "") -> Problem:
    """SH743. Where the driver is there, and failed or hangs, no other needs to be installed."""
    to_do = "Install NVIDIA's driver 580 or newer and Shunter's `agent` extra with cuda-bindings 13.4.1 or newer"
    if isinstance(why, Died) or (isinstance(why, Failed) and why.code is not None):
        to_do = remedy(why)
    return Problem(code="SH743", what=f"GPU memory can't be taken into images here: {why}", remedy=to_do, subject=subject)


def wrong_state(pid: int, state: str) -> Problem:
    """SH744."""
    return Problem(
        code="SH744",
        what=f"the CUDA driver says that process {pid} is {state}, and only a running one can be dumped",
        remedy="If another tool has locked or checkpointed it, undo that there; one that failed can only be ended, and its image restored",
        subject=f"pid {pid}",
    )


def excluded(what: str, to_do: str, pid: int) -> Problem:
    """SH745."""
    return Problem(code="SH745", what=what, remedy=to_do, subject=f"pid {pid}")


def no_host_memory(needs: int, free: int, pid: int, limit: str = "") -> Problem:
    """SH746. `limit`: the file of the limit that leaves no more than `free` bytes; empty: the node has no more."""
    has = f"{limit} leaves {free}" if limit else f"available are {free}"
    what = f"a dump brings {needs} bytes of GPU memory into host memory and a margin of 10 %, {has}"
    to_do = "Raise the limit of the worker's memory, or drain it" if limit else "Free host memory, or drain the worker"
    return Problem(code="SH746", what=what, remedy=to_do, subject=f"pid {pid}")


def unfit(why: str, subject: str) -> Problem:
    """SH747."""
    return Problem(code="SH747", what=why, remedy="Choose a slot with equal GPUs that are free", subject=subject)


def lost(what: str, subject: str = "") -> Problem:
    """SH748."""
    return Problem(
        code="SH748",
        what=f"a GPU is gone, and nothing can be dumped through it: {what}",
        remedy="Restore the worker's newest image elsewhere (shunter gone, or a policy for gpu-failing); end what is left of it here",
        subject=subject,
    )
