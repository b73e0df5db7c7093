"""What `at_every_step` tries: each fault at each step of each operation, before the order that follows it, and some in the middle of it."""

import itertools
import random
from typing import Final

import msgspec

MOVE: Final = ("intended", "prepared", "fenced", "frozen", "held", "committing", "released", "resumed", "unfenced")
URGENT: Final = tuple(step for step in MOVE if step != "prepared")
"""A move that can't wait: its slot is reserved and its worker fenced at once, and it is finished also where nothing can be written."""
PARK: Final = ("intended", "prepared", "fenced", "frozen", "copied", "committing", "released")
RESTORE: Final = ("intended", "prepared", "held", "committing", "resumed", "unfenced")
CHECKPOINT: Final = ("intended", "dumped", "copied")
DRAIN: Final = ("intended", "fenced")
"""Its stream never ends, so it never drains: when its time is over it goes back to the router."""


class Point(msgspec.Struct, frozen=True):
    """What is done, and when: before the order that follows `step`, or so many seconds into it."""

    kind: str
    step: str
    fault: str
    late: float = 0.0

    def __str__(self) -> str:
        """For people."""
        return f"{self.kind} at {self.step}: {self.fault}" + (f", {self.late * 1000:.0f} ms later" if self.late else "")


FAULTS: Final = {
    "engine": "the engine is killed, and the next one takes over",
    "two": "the engine stands still; the next one, which has what it had written, takes over; then it wakes up and still believes to lead",
    "give-up": "somebody wants the operation to be given up",
    "clock": "the wall clocks of engine and agents are set by minutes, ahead and back",
    "source": "the source's agent is killed, and started again a second later",
    "destination": "so is the destination's",
    "source-all": "the source's agent and CRIU are killed together",
    "destination-all": "so are the destination's",
    "power": "the destination loses its link and all its processes at once, and comes back",
    "pause-source": "the source's agent stands still for longer than a hold, and wakes up",
    "pause-destination": "so does the destination's",
    "cut": "the destination's link is cut for two seconds",
    "cut-source": "so is the source's",
    "cut-long": "the destination's link is cut for longer than an order may take",
    "cut-long-source": "so is the source's",
    "slow": "the destination's link is slow",
    "full": "the destination's disk takes nothing for some seconds",
    "full-source": "neither does the source's",
    "corrupt": "a byte of the image changes, at the destination where it is there",
}
LATE: Final = ("engine", "two", "give-up", "source", "destination", "source-all", "destination-all", "power")
"""Faults that are also done while an order is carried out: those whose moment matters."""
AT_SOURCE: Final = ("source", "source-all", "pause-source", "cut-source", "cut-long-source", "full-source")
STEPS: Final = {"move": MOVE, "urgent": URGENT, "park": PARK, "restore": RESTORE, "checkpoint": CHECKPOINT, "drain": DRAIN}
IMAGE_FROM: Final = {"move": "frozen", "urgent": "frozen", "park": "frozen", "restore": "intended", "checkpoint": "dumped"}
"""The first step at which there is an image."""


def applies(kind: str, step: str, fault: str) -> bool:
    """Whether there is anything to be done so."""
    at = STEPS[kind].index(step)
    if kind == "restore" and fault in AT_SOURCE:
        return False  # there is none
    if kind == "drain":  # nor is there a destination
        return fault in ("engine", "two", "give-up", "clock", *AT_SOURCE)
    if fault == "corrupt":
        return at >= STEPS[kind].index(IMAGE_FROM[kind])
    if fault == "power":  # once it runs there, its end is no news
        return "resumed" not in STEPS[kind][: at + 1] and not (kind == "restore" and step == "committing")
    return True


def points(seed: int) -> list[Point]:
    """All of them. How late the late ones are is drawn anew for each seed."""
    chance = random.Random(seed)
    found: list[Point] = []
    for kind, steps in STEPS.items():
        for step, fault in itertools.product(steps, FAULTS):
            if not applies(kind, step, fault):
                continue
            found.append(Point(kind, step, fault))
            late = round(chance.uniform(0.005, 0.25), 3)
            if fault in LATE and not (fault == "power" and step == "released"):  # it may run there by then
                found.append(Point(kind, step, fault, late))
    return found


def chosen(only: str, every: int, seed: int) -> list[Point]:
    """Points with all of these words in them; of these, one of `every`."""
    words = [word for word in only.split(",") if word]
    found = [p for p in points(seed) if all(word in (p.kind, p.step, p.fault, "late" if p.late else "sharp") for word in words)]
    return found[seed % every :: every]
