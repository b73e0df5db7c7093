"""What a node says of the room that it has, of its taints and its GPUs' links; and what its preflight refuses by them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from agent_fakes import PROCESS, SPEC, Bench
from shunter.model.errors import Rejected
from shunter.model.snapshot import Taint, Toleration
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert as wire
from shunter_agent import convert, gpus, inventory
from shunter_agent.capacity import Looks, least
from shunter_agent.images.room import KEEP
from shunter_agent.journal import WorkerRow
from shunter_agent.notices.watching import Watching
from shunter_agent.preflight import Room, preflight, room
from shunter_agent.promises import UNPREPARED_S
from shunter_agent.runtime.cuda.links import domains
from shunter_agent.runtime.port import Gpu, Gpus
from shunter_agent.settings import SlotSettings, TaintSettings, load

GB = 10**9
TEAM = Taint(key="team", value="a", effect="NoExecute")
SLOW = Taint(key="slow", effect="PreferNoSchedule")
ROOMY = Room(disk=1000 * GB, memory=1000 * GB)


def bench(folder: Path, **settings: Any) -> Bench:
    made = Bench(folder, worker=False)
    made.settings = msgspec.structs.replace(made.settings, **settings)
    made.boot()
    return made


async def refusals(made: Bench, *, free: Room = ROOMY, size: int = 0, operation: str = "op", worker: str = "w", **spec: Any) -> list[str]:
    """Codes and words of what the destination's preflight has against a worker."""
    message = convert.spec_message(msgspec.structs.replace(SPEC, worker=worker, **spec))
    order = pb.PreflightOrder(order=made.order(operation, worker=worker), destination=True, slot="n/0", bytes=size, spec=message)
    reply = await preflight(made.node, order, lambda _root: free)
    return [f"{r.code} {r.what}" for r in reply.refusals]


class TestTaints:
    async def test_a_worker_that_does_not_tolerate_the_nodes_taint_is_refused(self, tmp_path: Path) -> None:
        hard, soft = TaintSettings(key="team", value="a", effect="NoExecute"), TaintSettings(key="slow", effect="PreferNoSchedule")
        made = bench(tmp_path, taints=(hard, soft))
        (told,) = await refusals(made, tolerations=(Toleration(key="other", operator="Exists"),))
        assert told == "SH677 the node is tainted with team=a:NoExecute, and the worker tolerates other"
        assert "tolerates no taint" in (await refusals(made, tolerations=()))[0]
        assert await refusals(made, tolerations=(Toleration(key="team", operator="Exists"),)) == []
        assert await refusals(made) == [], "nobody said: the engine has judged by where it was"

    async def test_taints_of_its_node_object_count_as_those_of_its_settings(self, tmp_path: Path) -> None:
        made = bench(tmp_path, taints=(TaintSettings(key="slow", effect="PreferNoSchedule"),))
        made.node.sources = (Watching("kubernetes", (), taints=lambda: (TEAM, SLOW)),)
        report = await inventory.report(made.node)
        assert wire.node(report).taints == (SLOW, TEAM), "each once"
        assert "SH677" in (await refusals(made, tolerations=()))[0]

    def test_settings_say_what_a_worker_tolerates(self, tmp_path: Path) -> None:
        base = (
            'node = "n"\nlisten = "127.0.0.1:1"\nimage_listen = "127.0.0.1:2"\nstate = "s"\nruntime = "pretend"\n'
            'taints = [{key = "team", value = "a"}]\n[tls]\nca = "a"\ncert = "b"\nkey = "c"\n[[slots]]\nindex = 0\n'
            '[[workers]]\nworker = "w"\nrole = "decode"\ngraph = "g"\nengine = "e"\naddress = "a:1"\nslot = 0\ncommand = []\n'
        )
        path = tmp_path / "agent.toml"
        path.write_text(base + 'tolerations = [{key = "team", operator = "Exists"}]\n')
        settings = load(path)
        assert [one.taint for one in settings.taints] == [Taint(key="team", value="a")]
        assert settings.workers[0].spec.tolerations == (Toleration(key="team", operator="Exists"),)
        path.write_text(base)
        assert load(path).workers[0].spec.tolerations is None, "nobody says"
        for wrong in ('tolerations = [{value = "a"}]\n', 'tolerations = [{key = "a", operator = "Gt"}]\n'):
            path.write_text(base + wrong)
            with pytest.raises(Rejected, match="SH672"):
                load(path)


class TestRoom:
    async def test_memory_is_promised_to_who_comes_until_it_is_there(self, tmp_path: Path) -> None:
        """Two that fit alone don't fit together, though neither has touched anything yet."""
        made, free = bench(tmp_path), Room(disk=None, memory=30 * GB)
        assert await refusals(made, free=free, size=15 * GB, operation="one", worker="v") == []
        (told,) = await refusals(made, free=free, size=15 * GB, operation="two")
        assert told.startswith("SH657 the worker needs about 15GB of memory and a margin of 10 %, available are 30GB, of which workers")
        assert told.endswith("on their way here need 15GB")
        assert await refusals(made, free=free, size=12 * GB, operation="two") == []

    async def test_a_promise_is_kept_while_the_slot_is_and_no_longer(self, tmp_path: Path) -> None:
        made, free = bench(tmp_path), Room(disk=None, memory=30 * GB)
        assert await refusals(made, free=free, size=15 * GB, operation="op") == []
        assert made.node.promises.others("two") == 15 * GB
        assert made.node.promises.others("op") == 0, "not against itself"
        await made.destination.prepare(made.prepare())
        made.clock.now += 10 * UNPREPARED_S
        assert made.node.promises.others("two") == 15 * GB, "its slot is reserved"
        await made.destination.abort(made.step())
        assert made.node.promises.others("two") == 0, "it won't come"

    @pytest.mark.parametrize("prepared", [True, False])
    async def test_who_was_given_up_keeps_nobody_away(self, tmp_path: Path, prepared: bool) -> None:
        """Least of all for the half minute after it, in which whoever must leave looks for room."""
        made = bench(tmp_path)
        assert await refusals(made, size=15 * GB, operation="op") == []
        if prepared:
            await made.destination.prepare(made.prepare())
        await made.destination.abort(made.step())
        assert made.node.promises.others("two") == 0

    async def test_who_is_restored_is_seen_in_what_is_free(self, tmp_path: Path) -> None:
        made = bench(tmp_path)
        assert await refusals(made, size=15 * GB, operation="op") == []
        await made.destination.prepare(made.prepare())
        reservation = made.journal.reservation("op")
        assert reservation is not None
        made.journal.put_reservation(msgspec.structs.replace(reservation, process=PROCESS))
        assert made.node.promises.others("two") == 0

    async def test_who_never_prepares_keeps_nobody_away_for_long(self, tmp_path: Path) -> None:
        made = bench(tmp_path)
        assert await refusals(made, size=15 * GB, operation="op") == []
        made.clock.now += UNPREPARED_S - 1
        assert made.node.promises.others("two") == 15 * GB
        made.clock.now += 2
        assert made.node.promises.others("two") == 0

    async def test_nothing_is_promised_to_who_is_refused(self, tmp_path: Path) -> None:
        made = bench(tmp_path)
        assert await refusals(made, free=Room(disk=GB, memory=None), size=15 * GB, operation="op")
        assert made.node.promises.others("two") == 0

    async def test_the_report_says_what_the_preflight_looks_at(self, tmp_path: Path) -> None:
        made = bench(tmp_path)
        made.node.depot.root.mkdir(exist_ok=True)
        report = wire.node(await inventory.report(made.node))
        seen = room(made.node.depot.root)
        assert seen.memory is not None
        assert seen.disk is not None
        assert report.memory == pytest.approx(seen.memory, rel=0.2)
        assert report.disk == pytest.approx(seen.disk - KEEP, rel=0.2)
        assert report.images_in_memory == made.node.depot.in_memory

    async def test_a_full_disk_is_not_one_of_which_nothing_is_known(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        made = bench(tmp_path)
        for free, known in ((KEEP // 2, 1), (0, 1), (None, None)):
            monkeypatch.setattr(inventory, "room_of", lambda _node, free=free: Room(disk=free, memory=None))
            assert wire.node(await inventory.report(made.node)).disk == known


CARDS = tuple(
    Gpu(uuid=f"GPU-{n}", model="B200", pci=f"0000:{n}0:00", memory=192, free=190 - n, domain=f"0000:{n // 2}0:00") for n in range(4)
)


class TestGpus:
    def test_a_slots_domains_name_the_node_or_the_fabric(self) -> None:
        assert gpus.domains("n", "", CARDS[:2]) == ("n/0000:00:00",)
        assert gpus.domains("n", "", CARDS) == ("n/0000:00:00", "n/0000:10:00")
        assert gpus.domains("n", "rack-7", CARDS) == ("rack-7",)
        assert gpus.domains("n", "", (msgspec.structs.replace(CARDS[0], domain="4f1c.3"),)) == ("4f1c.3",), (
            "of several nodes: not ours to name"
        )
        assert gpus.domains("n", "", (CARDS[0], msgspec.structs.replace(CARDS[1], domain=""))) == (), "half known is not known"
        assert gpus.domains("n", "", ()) == ()

    async def test_a_worker_whose_gpus_nvlink_connects_comes_into_no_slot_without_it(self, tmp_path: Path) -> None:
        made = bench(tmp_path)
        made.node.slot_gpus = {"n/0": CARDS}
        (told,) = await refusals(made, linked=True)
        assert told == "SH678 the worker's GPUs have to be in one NVLink domain, those of n/0 are in 2: n/0000:00:00, n/0000:10:00"
        assert await refusals(made, linked=False) == await refusals(made) == []
        made.node.slot_gpus = {"n/0": CARDS[:2]}
        assert await refusals(made, linked=True) == []

    def test_a_worker_remembers_whether_its_gpus_were_connected(self, tmp_path: Path) -> None:
        made = bench(tmp_path)
        made.node.slot_gpus = {"n/0": CARDS[:2], "n/1": CARDS, "n/2": CARDS[:1]}
        assert [made.node.placed(SPEC, slot).linked for slot in ("n/0", "n/1", "n/2")] == [True, False, None]
        made.node.slot_gpus = {"n/0": tuple(msgspec.structs.replace(gpu, domain="") for gpu in CARDS[:2])}
        assert made.node.placed(msgspec.structs.replace(SPEC, linked=True), "n/0").linked is True, "nothing new is known here"

    async def test_free_memory_counts_in_a_free_slot_and_all_of_it_in_another(self, tmp_path: Path) -> None:
        made = bench(tmp_path, slots=(SlotSettings(index=0), SlotSettings(index=1)))
        made.node.slot_gpus = {"n/0": CARDS[:2], "n/1": CARDS[2:]}
        made.journal.put_worker(WorkerRow(spec=SPEC, process=PROCESS, slot="n/0", incarnation=0))
        made.runtime.has_gpus, made.runtime.needed = Gpus(gpus=CARDS), {"gpu_memory": "77"}
        looks = Looks(made.node)
        assert (await inventory.report(made.node, None, looks)).slots[0].gpu_memory == 0, "a report waits for no GPU"
        while looks._looking is not None:
            await asyncio.sleep(0)
        report = await inventory.report(made.node, None, looks)
        assert [slot.gpu_memory for slot in wire.node(report).slots] == [192, 187]
        assert wire.worker(report.workers[0], "n").gpu_memory == 77
        assert [least(CARDS[2:], Gpus(gpus=CARDS[:3]), free=True), least((), Gpus(), free=True)] == [0, 0]

    def test_what_travels_comes_back(self) -> None:
        for tolerations in (None, (), (Toleration(key="a", value="b", effect="NoExecute", seconds=0.0), Toleration(operator="Exists"))):
            for linked in (None, False, True):
                spec = msgspec.structs.replace(SPEC, tolerations=tolerations, linked=linked)
                back = convert.spec(pb.WorkerSpec.FromString(convert.spec_message(spec).SerializeToString()))
                assert (back.tolerations, back.linked) == (tolerations, linked)
        assert wire.taint(pb.Taint(key="a", effect="NoFuture")) is None


class FakeNvml(SimpleNamespace):
    """NVML of GPUs by their handles: those in a fabric, and pairs that NVLink connects."""

    class NvmlError(Exception):
        pass

    GpuP2PCapsIndex = SimpleNamespace(P2P_CAPS_INDEX_NVLINK=2)

    def __init__(self, fabric: dict[int, tuple[bytes, int, int]], pairs: set[tuple[int, int]] | None) -> None:
        super().__init__(fabric=fabric, pairs=pairs)

    def device_get_gpu_fabric_info_v(self, handle: int) -> SimpleNamespace:
        if handle not in self.fabric:
            raise self.NvmlError
        cluster, clique, state = self.fabric[handle]
        return SimpleNamespace(cluster_uuid=list(cluster), clique_id=clique, state=state)

    def device_get_p2p_status(self, one: int, other: int, index: int) -> int:
        if self.pairs is None:
            raise self.NvmlError
        assert index == 2
        return 0 if (one, other) in self.pairs or (other, one) in self.pairs else 4


FOUR = [(f"p{n}", n) for n in range(4)]


class TestLinks:
    def test_what_nvlink_connects_is_one_domain_also_by_way_of_others(self) -> None:
        nvml = FakeNvml({}, {(0, 2), (2, 3)})
        assert domains(nvml, FOUR) == {"p0": "p0", "p1": "p1", "p2": "p0", "p3": "p0"}

    def test_a_fabric_of_several_nodes_has_its_own_name(self) -> None:
        rack = (bytes(range(16)), 7, 3)
        nvml = FakeNvml({0: rack, 1: rack, 2: (bytes(16), 0, 3), 3: (bytes(range(16)), 7, 2)}, {(2, 3)})
        name = "00010203-0405-0607-0809-0a0b0c0d0e0f.7"
        assert domains(nvml, FOUR) == {"p0": name, "p1": name, "p2": "p2", "p3": "p2"}, "no cluster, or not joined yet: within the node"

    def test_what_the_driver_does_not_tell_is_not_known(self) -> None:
        assert domains(FakeNvml({}, None), FOUR) == {}
        assert domains(FakeNvml({}, None), FOUR[:1]) == {"p0": "p0"}
