"""Which GPUs belong to which slot, what a worker needs of them elsewhere, and when nothing may go through them any more."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from shunter.model.errors import Problem

from shunter_agent.notices.port import Notice
from shunter_agent.notices.xid import address
from shunter_agent.runtime.cuda import problems
from shunter_agent.runtime.port import GPU_FACTS, Gpu, Gpus
from shunter_agent.settings import Settings, SlotSettings


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs that the driver has shown since the machine was started; `boot` is the kernel's id of that start."""

    boot: str
    gpus: tuple[Gpu, ...]


def boot() -> str:
    """The kernel's id of this start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def known(path: Path, since: str, here: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs that are `here`, and those that were `since` this start of the machine (remembered in `path`), by their addresses.

    One that has fallen off the bus is still its slot's. Were it left out when an agent starts again, the slots behind it would each be
    dealt the next one's, and what is heard of a GPU would be held against the wrong worker. A start of the machine forgets: it ends all
    workers.
    """
    with contextlib.suppress(OSError, msgspec.DecodeError):  # nothing is remembered, or nothing that can be read
        before = msgspec.json.decode(path.read_bytes(), type=Shown)
        if before.boot == since:
            here = list(({gpu.pci: gpu for gpu in before.gpus} | {gpu.pci: gpu for gpu in here}).values())
    found = tuple(msgspec.structs.replace(gpu, used={}) for gpu in sorted(here, key=lambda gpu: gpu.pci))
    if found:
        partial = path.with_suffix(".partial")
        with contextlib.suppress(OSError):  # on a full disk, say: then this agent is right, and the next one may not be
            partial.write_bytes(msgspec.json.encode(Shown(boot=since, gpus=found)))
            partial.replace(path)
    return found


def deal(slots: Mapping[str, SlotSettings], gpus: Sequence[Gpu]) -> dict[str, tuple[Gpu, ...]]:
    """The GPUs of each slot. Those that the settings name by address or UUID are theirs; the others go, in the order of their addresses, to
    the slots that name none, as many as each is set to have. A node's only slot has all of them, unless it is set to have fewer.
    """
    by = {gpu.pci: gpu for gpu in gpus} | {gpu.uuid: gpu for gpu in gpus}
    named = {
        name: tuple(by[at] for at in ([address(pci) for pci in slot.pci] or slot.uuids) if at in by)
        for name, slot in slots.items()
        if slot.pci or slot.uuids
    }
    taken = {gpu.pci for own in named.values() for gpu in own}
    left = [gpu for gpu in gpus if gpu.pci not in taken]
    dealt = dict(named)
    for name, slot in sorted(slots.items(), key=lambda pair: pair[1].index):
        if name not in named:
            count = slot.gpus or (len(left) if len(slots) == 1 else 0)
            dealt[name], left = tuple(left[:count]), left[count:]
    return dealt


def named(settings: Settings, dealt: Mapping[str, Sequence[Gpu]]) -> Settings:
    """The settings with each slot naming the GPUs that it was dealt, by address and UUID, for who hears of a GPU and looks for its slot.
    What the settings themselves name stays named."""
    slots = tuple(
        msgspec.structs.replace(
            slot,
            pci=(*slot.pci, *(gpu.pci for gpu in dealt.get(name, ()))),
            uuids=tuple(dict.fromkeys((*slot.uuids, *(gpu.uuid for gpu in dealt.get(name, ()))))),
        )
        for name, slot in settings.slot_ids().items()
    )
    return msgspec.structs.replace(settings, slots=slots)


def domains(node: str, named: str, own: Sequence[Gpu]) -> tuple[str, ...]:
    """The NVLink domains of a slot's GPUs, sorted. Empty: not known of all of them. `named` is what the settings say, empty where they
    don't. One within the node has the node's name in its own.
    """
    if named:
        return (named,)
    if not all(gpu.domain for gpu in own):
        return ()
    return tuple(sorted({f"{node}/{gpu.domain}" if gpu.domain.count(":") > 1 else gpu.domain for gpu in own}))


def unlinked(linked: bool | None, slot: str, found: Sequence[str]) -> list[Problem]:
    """SH678 when the worker's GPUs have to be in one NVLink domain, and the slot's are known to be in several."""
    if not linked or len(found) <= 1:
        return []
    return [
        Problem(
            code="SH678",
            what=f"the worker's GPUs have to be in one NVLink domain, those of {slot} are in {len(found)}: {', '.join(found)}",
            remedy="Choose a slot whose GPUs NVLink connects",
            subject=slot,
        )
    ]


def facts_for(facts: Mapping[str, str], needs: Mapping[str, str]) -> dict[str, str]:
    """What a restore of a worker with these `needs` must find: the node's facts, of GPUs only those that the worker has to do with."""
    return {name: value for name, value in facts.items() if name not in GPU_FACTS} | dict(needs)


def apart(needed: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """What must be equal on the whole node, and what the slot's GPUs must be enough for (see `GPU_FACTS`)."""
    of_slot = GPU_FACTS - {"driver", "cuda"}
    return {k: v for k, v in needed.items() if k not in of_slot}, {k: v for k, v in needed.items() if k in of_slot}


def unfit(needs: Mapping[str, str], slot: str, own: Sequence[Gpu], now: Gpus) -> list[Problem]:
    """Why a worker with these needs (of `apart`'s second part) can't have its GPU memory in this slot: SH743, SH747. `own` are the slot's
    GPUs as they were dealt, `now` is what the driver shows."""
    if not needs:
        return []
    if now.trouble is not None:
        return [now.trouble]
    found = [gpu for gpu in now.gpus if gpu.pci in {dealt.pci for dealt in own}]
    return [problems.unfit(why, slot) for why in _differences(needs, slot, found, now)]


def _differences(needs: Mapping[str, str], slot: str, found: Sequence[Gpu], now: Gpus) -> Iterable[str]:
    if str(len(found)) != needs.get("gpus", str(len(found))):
        yield f"the worker needs {needs['gpus']} GPUs, {slot} has {len(found)}{': ' if now.lost else ''}{'; '.join(now.lost)}"
    model = ", ".join(sorted({gpu.model for gpu in found}))
    if model != needs.get("gpu", model):
        yield f"the worker needs GPU model {needs['gpu']!r}, {slot} has {model or 'none'!r}"
    if len(now.gpus) < int(needs.get("gpus_all", 0)):
        yield f"the worker's node has {needs['gpus_all']} GPUs, all of which the driver asks for at a restore, this node {len(now.gpus)}"
    memory = int(needs.get("gpu_memory", 0))
    for gpu in found:
        if gpu.free < memory:
            yield f"the worker needs {memory} bytes on a GPU, {gpu.pci} has {gpu.free} free"
        if gpu.mig:
            yield f"{gpu.pci} is partitioned (MIG), which the driver's checkpoints don't know"


def gone(notices: Iterable[Notice], slot: str) -> Problem | None:
    """SH748 when a notice says that nothing may be dumped through the GPUs of this slot, or of the whole node."""
    for notice in notices:
        if not notice.dumpable and notice.slot in ("", slot):
            return problems.lost(notice.detail or notice.id, slot)
    return None
