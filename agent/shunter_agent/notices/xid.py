"""What an XID, NVIDIA's number for a GPU's error in the kernel log, means for the worker on that GPU.

The numbers and NVIDIA's own advice (reset, restart the application, ignore) are from its catalog, as public health monitors mirror it. What
may still be dumped is our judgement, on the side of caution: a dump through a GPU that is gone hangs, or keeps what is corrupt.
"""

import enum
import re
from typing import Final

import msgspec

_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?$")
_RECOVERED: Final = re.compile(r"GPU recovery action changed from .* to 0x0 \(None\)")
_FUNCTION: Final = re.compile(r"\.\d+$")


class Effect(enum.StrEnum):
    """What to do about it."""

    GONE = "gone"
    """The GPU can't be used, and nothing may be dumped through it: the last image is what is left."""
    DRAIN = "drain"
    """It works for now and has to be reset: move what is on it."""
    RESTART = "restart"
    """The process that it hit is not to be trusted any more; the GPU is."""
    HAZARD = "hazard"
    """Nothing now; failures are likelier from here on."""
    RECOVERED = "recovered"
    """The driver says that no recovery is needed any more."""


_EFFECTS: Final[dict[Effect, tuple[int, ...]]] = {
    Effect.GONE: (62, 79, 95, 119, 120, 140, 143),
    Effect.DRAIN: (46, 48, 64, 74, 109, 136, *range(144, 150), 155, 156, 158),
    Effect.RESTART: (8, 13, 31, 94),
    Effect.HAZARD: (43, 45, 63, 92, 154, 157, 160, 161),
}
_OF: Final = {number: effect for effect, numbers in _EFFECTS.items() for number in numbers}


class Xid(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the kernel log. `gpu` is its PCI address without the function, in lower case: `0000:4f:00`."""

    gpu: str
    number: int
    text: str

    @property
    def effect(self) -> Effect:
        """What to do about it."""
        return effect_of(self.number, self.text)


def effect_of(number: int, text: str = "") -> Effect:
    """What to do about an XID, whoever tells of it: for a number that isn't in the table, a hazard, since most new ones are reports."""
    if number == 154 and _RECOVERED.search(text):
        return Effect.RECOVERED
    return _OF.get(number, Effect.HAZARD)


def read(line: str) -> Xid | None:
    """The XID in a line of the kernel log, or None when it has none. The process' name in it is left out: it is of no use here."""
    found = _XID.search(line.rstrip())
    if found is None:
        return None
    text = re.sub(r"(?:pid|name)=[^,]*(?:, |$)", "", found[3] or "").strip(" ,")
    return Xid(gpu=address(found[1]), number=int(found[2]), text=text)


def address(text: str) -> str:
    """A PCI address as Xid.gpu has it: lower case, four digits of domain, no function."""
    parts = _FUNCTION.sub("", text.strip().lower()).split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]])
