"""The GPUs of this node as slots name them, and what an error of one becomes: one bad GPU condemns the worker on its slot, not the node."""

from collections.abc import Mapping
from typing import Final

import msgspec
from shunter.model.errors import Problem
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.port import Notice
from shunter_agent.notices.xid import Effect, address

UNKNOWN: Final = "unknown"
"""The name of a GPU that a source didn't give any."""


DISTRUSTED_S: Final = 3600.0
"""For so long a process is told to be suspect: by then it was restarted, or somebody has decided that it needn't be."""


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """`pci` is PCI address (see `xid.address`) to slot, `uuids` is UUID to slot. A GPU that is in neither is taken for the node."""

    pci: Mapping[str, str] = {}
    uuids: Mapping[str, str] = {}

    def slot(self, pci: str = "", uuid: str = "") -> str:
        """The slot that has the GPU; empty: none of them names it."""
        return (self.pci.get(address(pci), "") if pci else "") or self.uuids.get(uuid, "")


def notice(effect: Effect, gpu: str, *, slot: str, at: float, source: str, detail: str) -> Notice | None:
    """What an error of `gpu` that came at `at` (seconds since the epoch) becomes; None where the GPU is sound."""
    if effect in (Effect.RESTART, Effect.RECOVERED):
        return None
    return Notice(
        id=f"{prefix(gpu)}{effect.value}",
        kind=(NoticeKind.REBALANCE if effect is Effect.HAZARD else NoticeKind.GPU_FAILING).value,
        seen_at=at,
        source=source,
        detail=detail,
        slot=slot,
        dumpable=effect is not Effect.GONE,
    )


def prefix(gpu: str) -> str:
    """What the ids of all notices about a GPU begin with."""
    return f"gpu-{gpu.replace(':', '.')}-"


def distrusted(number: int, gpu: str, slot: str, text: str) -> Problem:
    """SH647: the GPU is sound, and what the process on it computed isn't to be trusted. A person decides: no policy is asked, as most such
    processes end by themselves, and what is restored is as old as its image.
    """
    what = f"XID {number} on {gpu}: what the process on it computed is not to be trusted ({text or 'no text'})"
    return Problem(code="SH647", what=what, remedy="Restart the worker from an image that is older than that", subject=slot or gpu)
