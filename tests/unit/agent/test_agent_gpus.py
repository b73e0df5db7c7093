"""A node's GPUs: dealt to slots, told to the engine, compared at a destination, and not dumped through once they are gone."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest
from agent_fakes import PROCESS, Bench
from shunter.model.errors import Problem
from shunter.wire import agent_pb2 as pb
from shunter_agent import agent, gpus, inventory
from shunter_agent.journal import WorkerRow
from shunter_agent.notices.port import Notice
from shunter_agent.preflight import preflight
from shunter_agent.recovery import start_missing
from shunter_agent.refusals import Undone
from shunter_agent.runtime.port import Gpu, Gpus
from shunter_agent.settings import SlotSettings, WorkerSettings

B200 = tuple(
    Gpu(uuid=f"GPU-{n}", model="NVIDIA B200", pci=f"0000:{n}0:00", memory=192 << 30, free=190 << 30, used={PROCESS.pid: 1 << 30})
    for n in range(4)
)
HERE = Gpus(driver="580.95.05", cuda="13.0", gpus=B200)
NEEDS = {"driver": "580.95.05", "cuda": "13.0", "gpu": "NVIDIA B200", "gpus": "2", "gpus_all": "4", "gpu_memory": str(1 << 30)}


@pytest.mark.parametrize(
    ("slots", "dealt"),
    [
        ([{}], ["0123"]),
        ([{"gpus": 2}], ["01"]),
        ([{"gpus": 1}, {"gpus": 2}], ["0", "12"]),
        ([{}, {}], ["", ""]),
        ([{"pci": ("00000000:30:00.0", "00000000:10:00.0")}, {"gpus": 2}], ["31", "02"]),
        ([{"uuids": ("GPU-2", "GPU-0")}, {"gpus": 1}], ["20", "1"]),
        ([{"pci": ("00000000:70:00.0",)}], [""]),
    ],
)
def test_slots_have_the_gpus_that_the_settings_give_them(slots: list[dict], dealt: list[str]) -> None:
    found = gpus.deal({f"n/{i}": SlotSettings(index=i, **slot) for i, slot in enumerate(slots)}, B200)
    assert ["".join(gpu.uuid[-1] for gpu in found[f"n/{i}"]) for i in range(len(slots))] == dealt


def test_slots_keep_their_gpus_when_one_has_fallen_off_the_bus_before_the_agent_starts_again(tmp_path: Path) -> None:
    """Else each slot behind it has its neighbour's, and an error of one GPU condemns the worker on another."""
    slots = {f"n/{i}": SlotSettings(index=i, gpus=1) for i in range(4)}
    path = tmp_path / "gpus.json"

    def dealt(boot: str, here: tuple[Gpu, ...]) -> list[str]:
        found = gpus.deal(slots, gpus.known(path, boot, here))
        return ["".join(gpu.uuid[-1] for gpu in found[name]) for name in slots]

    assert dealt("first", B200) == ["0", "1", "2", "3"]
    assert dealt("first", (B200[0], *B200[2:])) == ["0", "1", "2", "3"]
    assert dealt("first", ()) == ["0", "1", "2", "3"], "a library that hangs shows none"
    assert dealt("second", (B200[0], *B200[2:])) == ["0", "2", "3", ""], "after a start of the machine there is nobody to be mixed up"
    path.write_text("{")
    assert dealt("second", B200) == ["0", "1", "2", "3"]
    assert dealt("second", B200[1:]) == ["0", "1", "2", "3"]


async def test_an_agent_that_starts_again_remembers_the_gpus_of_its_slots(empty: Bench) -> None:
    settings = msgspec.structs.replace(empty.settings, slots=tuple(SlotSettings(index=i, gpus=1) for i in range(4)))
    for here in (B200, B200[1:]):
        empty.runtime.has_gpus = msgspec.structs.replace(HERE, gpus=here)
        async with contextlib.AsyncExitStack() as stack:
            node = agent._node(settings, empty.runtime, empty.node.log, empty.clock, stack)  # type: ignore[arg-type]
            assert [[gpu.uuid for gpu in node.slot_gpus[name]] for name in settings.slot_ids()] == [[gpu.uuid] for gpu in B200]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    with_gpus(made)
    made.runtime.needed = NEEDS
    return made


@pytest.fixture
def empty(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, worker=False)
    with_gpus(made)
    return made


def with_gpus(bench: Bench) -> None:
    bench.runtime.has_gpus = HERE
    bench.runtime.gpu_facts = {"driver": "580.95.05", "cuda": "13.0", "gpu": "NVIDIA B200"}
    bench.node.facts = bench.runtime.facts()
    bench.node.slot_gpus = {"n/0": B200[:2], "n/1": B200[2:3], "n/2": ()}


async def refused(bench: Bench, needs: dict[str, str], slot: str = "n/0") -> list[tuple[str, str]]:
    order = pb.PreflightOrder(order=bench.order(), destination=True, slot=slot, facts=needs, bytes=100)
    reply = await preflight(bench.node, order)
    return [(refusal.code, refusal.what) for refusal in reply.refusals]


async def test_equal_gpus_with_room_will_do(empty: Bench) -> None:
    assert await refused(empty, NEEDS) == []


@pytest.mark.parametrize(
    ("needs", "here", "code", "said"),
    [
        ({"driver": "590.1"}, {}, "SH655", ("590.1", "580.95.05")),
        ({"gpus": "4"}, {}, "SH747", ("needs 4 GPUs", "n/0 has 2")),
        ({"gpu": "NVIDIA H200"}, {}, "SH747", ("NVIDIA H200", "NVIDIA B200")),
        ({"gpus_all": "8"}, {}, "SH747", ("8 GPUs", "this node 4")),
        ({"gpu_memory": str(191 << 30)}, {}, "SH747", (str(191 << 30), str(190 << 30))),
        ({}, {"gpus": B200[1:], "lost": ("GPU 0 doesn't answer: GPU is lost",)}, "SH747", ("needs 2 GPUs", "has 1: GPU 0 doesn't answer")),
        ({}, {"trouble": Problem(code="SH743", what="too old", remedy="r")}, "SH743", ("too old",)),
    ],
)
async def test_a_destination_that_differs_is_refused_with_both_values(
    empty: Bench, needs: dict[str, str], here: dict[str, object], code: str, said: tuple[str, ...]
) -> None:
    empty.runtime.has_gpus = msgspec.structs.replace(HERE, **here)
    found = await refused(empty, {**NEEDS, **needs})
    assert code in {each for each, _what in found}
    assert all(any(part in what for _code, what in found) for part in said), found


async def test_a_node_without_gpus_is_refused_a_worker_with_gpus_and_takes_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    assert {code for code, _what in await refused(bench, NEEDS)} == {"SH655", "SH747"}
    assert await refused(bench, {"kernel": "6.1"}) == []


async def test_partitioned_gpus_are_refused(empty: Bench) -> None:
    empty.runtime.has_gpus = msgspec.structs.replace(HERE, gpus=tuple(msgspec.structs.replace(gpu, mig=True) for gpu in B200))
    assert "MIG" in (await refused(empty, NEEDS))[0][1]


async def test_only_a_worker_with_gpus_asks_for_them_elsewhere(bench: Bench) -> None:
    reply = await preflight(bench.node, pb.PreflightOrder(order=bench.order()))
    assert dict(reply.facts) == {"runtime": "fake", "kernel": "6.1", "cpu": "c", **NEEDS}
    await bench.source.freeze(bench.freeze(to=False))
    assert bench.depot.whole["image-op"].facts == dict(reply.facts)


async def test_a_worker_without_gpus_needs_nothing_of_them_elsewhere(bench: Bench) -> None:
    bench.runtime.needed = {}
    reply = await preflight(bench.node, pb.PreflightOrder(order=bench.order()))
    assert dict(reply.facts) == {"runtime": "fake", "kernel": "6.1", "cpu": "c"}


def lost(slot: str, *, dumpable: bool = False) -> dict[str, Notice]:
    return {"x": Notice(id="x", kind="gpu-failing", seen_at=1.0, source="gpu", detail="XID 79 on 0000:00:00", slot=slot, dumpable=dumpable)}


@pytest.mark.parametrize("slot", ["n/0", ""])
async def test_nothing_is_dumped_through_a_gpu_that_is_gone(bench: Bench, slot: str) -> None:
    bench.node.notices = lost(slot)
    reply = await preflight(bench.node, pb.PreflightOrder(order=bench.order()))
    assert [(r.code, "XID 79" in r.what) for r in reply.refusals] == [("SH748", True)]
    with pytest.raises(Undone, match="SH748"):
        await bench.source.freeze(bench.freeze())
    with pytest.raises(Undone, match="SH748"):
        await bench.source.checkpoint(pb.CheckpointOrder(order=bench.order("op2"), image="image-op2"))
    assert bench.faults.done["freeze"] == 0
    assert bench.state() == "running"
    assert bench.depot.whole == {}


@pytest.mark.parametrize("notices", [lost("n/1"), lost("n/0", dumpable=True)])
async def test_a_worker_on_other_gpus_or_on_one_that_only_ails_is_dumped(bench: Bench, notices: dict[str, Notice]) -> None:
    bench.node.notices = notices
    await bench.source.freeze(bench.freeze())
    assert bench.state() == "frozen"


async def test_a_worker_without_gpus_is_dumped_whatever_becomes_of_them(bench: Bench) -> None:
    bench.node.notices, bench.runtime.needed = lost("n/0"), {}
    await bench.source.freeze(bench.freeze())
    assert bench.state() == "frozen"


async def test_the_report_shows_what_the_driver_shows_unless_the_settings_say_otherwise(bench: Bench) -> None:
    slots = (SlotSettings(index=0), SlotSettings(index=1, gpu_model="H100", gpus=7), SlotSettings(index=2))
    bench.node.settings = msgspec.structs.replace(bench.settings, slots=slots)
    found = (await inventory.report(bench.node)).slots
    assert [(slot.gpu_model, slot.gpus) for slot in found] == [("NVIDIA B200", 2), ("H100", 7), ("", 0)]
    assert [(gpu.uuid, gpu.model, gpu.pci, gpu.memory) for gpu in found[0].gpu] == [(g.uuid, g.model, g.pci, g.memory) for g in B200[:2]]


async def test_an_error_of_a_gpu_is_about_the_slot_that_was_dealt_it(empty: Bench, tmp_path: Path) -> None:
    """Though the settings name no addresses: else it would be taken for the whole node's.
    A canary, which may come first, is none.
    """
    log = tmp_path / "kmsg"
    log.write_text("3,1,1,-;NVRM: Xid (PCI:0000:20:00): 79, GPU has fallen off the bus.\n")
    empty.node.settings = msgspec.structs.replace(empty.settings, kernel_log=log)
    heard = asyncio.Event()
    told, publish = empty.node.notices_changed, heard.set
    empty.node.notices_changed = lambda found: (told(found), publish() if empty.node.notices else None)  # type: ignore[method-assign]
    async with contextlib.AsyncExitStack() as stack:
        agent.watch_notices(empty.node, stack)
        await asyncio.wait_for(heard.wait(), 10)
    (notice,) = empty.node.notices.values()
    assert (notice.slot, notice.dumpable) == ("n/1", False)


async def test_a_worker_names_the_gpus_of_the_slot_that_it_is_in(empty: Bench) -> None:
    empty.give_image()
    await empty.destination.prepare(empty.prepare())
    await empty.destination.restore(empty.restore())
    await empty.destination.resume(empty.step())
    row = empty.journal.worker("w")
    assert row is not None
    assert row.spec.gpus == tuple(gpu.pci for gpu in B200[:2])


async def test_a_worker_that_is_started_here_names_its_gpus_too(empty: Bench) -> None:
    worker = WorkerSettings(worker="v", role="prefill", graph="g", engine="e", address="10.0.0.9:1", slot=1, command=("true",))
    empty.node.settings = msgspec.structs.replace(empty.settings, workers=(worker,))
    await start_missing(empty.node)
    row = empty.journal.worker("v")
    assert isinstance(row, WorkerRow)
    assert row.spec.gpus == (B200[2].pci,)
