"""What conditions of a Node mean that monitors of clouds and GPUs write there. Pure.

- AKS forwards Azure's scheduled events as `VMEventScheduled` and `PreemptionScheduled`, with what it is and its time in the message only.
- NVSentinel writes a condition for each check; its reason ends in `IsNotHealthy`, and the message names error, GPU and advice.
- GKE's `XidCriticalError` and AKS' `XIDErrors`, `GPUMissing` and `NVLinkStatusInactive` stay until the machine is started anew, and on the
  Node for a while longer.
- A kubelet that has been told to shut down says so in `Ready`. Nothing else that `Ready` says counts.

All of these but NVSentinel's are written on the node itself, by its clock, and again and again: one that wasn't since the machine was
started is about its life before.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from shunter.model.errors import Problem
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.gpus import DISTRUSTED_S, UNKNOWN, Gpus, distrusted, notice
from shunter_agent.notices.signals import Signal
from shunter_agent.notices.times import maybe
from shunter_agent.notices.xid import Effect, address, effect_of

_HALF_HOUR: Final = 1800.0
_DAY: Final = 86_400.0
_SHUTDOWN_S: Final = 600.0
"""A kubelet's shutdown takes two minutes at most; one that has lasted for ten is no shutdown."""
_AZURE: Final = re.compile(r"\s*(\w+) (Scheduled|Started|Advisory)(?::\s*(\w{3}, \d{1,2} \w{3} \d{4} \d\d:\d\d:\d\d GMT))?")
_AZURE_KINDS: Final = {
    "Preempt": NoticeKind.PREEMPTION,
    "Terminate": NoticeKind.DRAIN,
    "Reboot": NoticeKind.MAINTENANCE,
    "Redeploy": NoticeKind.MAINTENANCE,
}
_LASTS: Final = {Effect.HAZARD: _DAY, Effect.RESTART: DISTRUSTED_S}
"""A bad GPU stays bad until somebody says otherwise, or the machine is started anew."""
_CODE: Final = re.compile(r"ErrorCode:(\S+)")
_PCI: Final = re.compile(r"\bPCI:([0-9a-fA-F:.]+)")
_UUID: Final = re.compile(r"\bGPU-[0-9a-fA-F-]{8,}")
_INDEX: Final = re.compile(r"\bGPU:(\d+)", re.IGNORECASE)
_ACTION: Final = re.compile(r"Recommended Action=(\w+)")
_XID: Final = re.compile(r"\bxid\b[^0-9]{0,30}?\b(\d{1,3})\b", re.IGNORECASE)
_UNMENDED_S: Final = _DAY
"""After so long a person is told that a GPU is still bad: its notice stays, as whatever came there would be lost."""
_MONITORED: Final = ("XidCriticalError", "XIDErrors", "GPUMissing", "NVLinkStatusInactive")


class Condition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As in `status.conditions`."""

    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None
    last_heartbeat_time: str | None = None

    def before(self, booted: float | None) -> bool:
        """Whether nobody has said it since the machine was started (seconds since the epoch; None: nobody knows when)."""
        said = [at for at in (self.since, maybe(self.last_heartbeat_time)) if at is not None]
        return booted is not None and bool(said) and max(said) < booted

    @property
    def since(self) -> float | None:
        """Seconds since the epoch of its last change; None when it doesn't say."""
        return maybe(self.last_transition_time)


def signals(condition: Condition, gpus: Gpus, *, ahead: float = 0.0, booted: float | None = None) -> Iterator[Signal]:
    """What the condition says of the node or one of its GPUs. `ahead`: for how many seconds the clocks of those who give events their times
    are ahead of this node's; `booted`: when the machine was started, None: nobody knows.
    """
    message = condition.message or ""
    sentinel = (condition.reason or "").endswith("IsNotHealthy")  # its faults outlive a start, until it says that they are mended
    if not sentinel and condition.before(booted):
        return
    if condition.type == "Ready":
        if condition.status == "False" and "node is shutting down" in message:
            yield _node(condition, NoticeKind.PREEMPTION, _SHUTDOWN_S, "the kubelet shuts down, since the machine does")
        return
    if condition.status != "True":
        return
    if condition.type in ("PreemptionScheduled", "VMEventScheduled"):
        yield from _azure(condition, message, ahead)
    elif sentinel:
        yield from _sentinel(condition, message, gpus)
    elif condition.type in _MONITORED:
        found = _XID.search(message)
        effect = effect_of(int(found[1])) if found else Effect.DRAIN
        yield from _gpu(condition, effect, int(found[1]) if found else 0, message, gpus)


def _node(condition: Condition, kind: NoticeKind, lasts: float, says: str, deadline: float | None = None) -> Signal:
    key = f"condition {condition.type}"
    return Signal(key=key, kind=kind, lasts=lasts, detail=f"{key}: {says}", since=condition.since, deadline=deadline)


def _azure(condition: Condition, message: str, ahead: float) -> Iterator[Signal]:
    """An event that is only advised, or that isn't known, is a hint: neither the condition nor its reason says that the machine goes."""
    found = _AZURE.match(message)
    event, status, at = found.groups() if found else ("", "", None)
    if event == "Freeze":  # it stands still for seconds and goes on with its memory
        return
    kind = _AZURE_KINDS.get(event)
    if kind is None or status == "Advisory":
        yield _node(condition, NoticeKind.REBALANCE, _DAY, message[:200] or "no message")
        return
    planned = maybe(at) if status == "Scheduled" else None
    deadline = planned - ahead if planned is not None else condition.since if status == "Started" else None
    lasts = _HALF_HOUR if kind is NoticeKind.PREEMPTION else _DAY
    yield _node(condition, kind, lasts, f"{event}, {status.lower()}", deadline)


def _sentinel(condition: Condition, message: str, gpus: Gpus) -> Iterator[Signal]:
    """Its message holds an entry for each fault, each ended by what it advises."""
    if condition.type.startswith("CSP"):
        yield _node(condition, NoticeKind.MAINTENANCE, _DAY, message[:200] or "the cloud's maintenance")
        return
    for entry in (part for part in message.split(";") if part.strip()):
        code, action = _CODE.search(entry), (found[1] if (found := _ACTION.search(entry)) else "")
        number = int(code[1]) if code and code[1].isdigit() and "xid" in condition.type.lower() else 0
        if "FallenOff" in condition.type:
            effect = Effect.GONE
        elif number:
            effect = effect_of(number)
        else:
            effect = Effect.HAZARD if action == "NONE" else Effect.DRAIN
        yield from _gpu(condition, effect, number, entry.strip(), gpus, nobody_acts=action == "NONE")


def _gpu(condition: Condition, effect: Effect, number: int, text: str, gpus: Gpus, *, nobody_acts: bool = False) -> Iterator[Signal]:
    pci, uuid = (found[1] if (found := _PCI.search(text)) else ""), (found[0] if (found := _UUID.search(text)) else "")
    name = address(pci) if pci else uuid or (f"{found[1]}" if (found := _INDEX.search(text)) else UNKNOWN)
    slot = gpus.slot(pci, uuid)
    key = f"condition {condition.type} {name}"
    detail = f"{key}: {text[:200]}"
    made = notice(effect, name, slot=slot, at=0.0, source="", detail="")
    problem = _unanswered(key, slot or condition.type) if nobody_acts else None
    suspect = ""
    if effect in (Effect.RESTART, Effect.GONE):
        told = distrusted(number, name, slot, condition.type)
        suspect, problem = told.what, told if effect is Effect.RESTART else problem
    yield Signal(
        key=f"{key} {effect.value}",
        kind=NoticeKind(made.kind) if made else None,
        lasts=_LASTS.get(effect),
        told_s=_UNMENDED_S,
        detail=detail,
        since=condition.since,
        slot=slot,
        dumpable=made.dumpable if made else True,
        problem=problem,
        suspect=suspect,
    )


def _unanswered(key: str, subject: str) -> Problem:
    what = f"{key} is a fault for which its monitor advises nothing: the node stays cordoned for good, and nobody mends it"
    return Problem(code="SH650", what=what, remedy="Look at the GPU, and reset it or uncordon the node", subject=subject)
