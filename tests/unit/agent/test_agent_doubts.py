"""Images of a process that a GPU's error has made suspect: which are doubted, by whom, and for how long."""

from pathlib import Path

import msgspec
import pytest
from agent_fakes import PROCESS, SPEC, Bench
from shunter.model.errors import Problem, Stalled
from shunter.wire import agent_pb2 as pb
from shunter_agent.inventory import report
from shunter_agent.journal import WorkerRow
from shunter_agent.letting_go import newest
from shunter_agent.notices.doubts import TICKS, Doubt
from shunter_agent.runtime.port import Gpu

WHY = "XID 31: not to be trusted"
ERROR = Doubt(slot="n/0", at=1000.0, what=WHY)
GPU = Gpu(uuid="GPU-a", model="B200", pci="0000:4f:00", memory=1, free=1)


class Source:
    """Tells of GPU errors, and of no notice."""

    name = "gpu"

    def __init__(self) -> None:
        self.known: tuple[Doubt, ...] = ()

    def start(self, changed: object) -> None:
        pass

    def stop(self) -> None:
        pass

    def health(self) -> tuple[Problem, ...]:
        return ()

    def doubts(self) -> tuple[Doubt, ...]:
        return self.known


class Case:
    def __init__(self, folder: Path) -> None:
        self.bench, self.source = Bench(folder), Source()
        self.bench.node.sources = (self.source,)
        self.taken = 0

    async def image(self) -> str:
        """What is said against an image that is taken now."""
        self.taken += 1
        name = f"i{self.taken}"
        order = pb.CheckpointOrder(order=self.bench.order(name), image=name)
        reply = await self.bench.source.checkpoint(order)
        assert reply.image.doubt == self.bench.depot.whole[name].doubt
        return reply.image.doubt

    async def reported(self) -> tuple[str, dict[str, str]]:
        """What is said against the worker, and against each image."""
        said = await report(self.bench.node)
        return said.workers[0].doubt, {image.id: image.doubt for image in said.images}

    def later(self, seconds: float) -> None:
        self.bench.clock.now += seconds


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


async def test_images_from_before_the_error_stay_good_and_later_ones_dont(case: Case) -> None:
    case.later(-10.0)
    assert await case.image() == ""
    case.later(10.0)
    case.source.known = (ERROR,)
    assert await case.image() == WHY
    case.later(3600.0)
    assert await case.image() == WHY
    assert await case.reported() == (WHY, {"i1": "", "i2": WHY, "i3": WHY})
    assert [image.id for image in newest(case.bench.depot.whole.values())] == ["i1"]


async def test_an_image_that_was_whole_before_the_error_was_told_is_doubted_too(case: Case) -> None:
    """An exporter is asked now and then: what it says may be older than the image."""
    case.later(20.0)
    assert await case.image() == ""
    case.source.known = (ERROR,)
    assert await case.reported() == (WHY, {"i1": WHY})


@pytest.mark.parametrize("by", ["source forgets", "agent restarts", "another error"])
async def test_it_stays_as_it_was_first_known(case: Case, by: str) -> None:
    case.source.known = (ERROR,)
    await case.reported()
    case.later(100.0)
    match by:
        case "source forgets":
            case.source.known = ()
        case "agent restarts":
            case.bench.boot()
            case.bench.node.networks["w"] = case.bench.runtime.network(SPEC)
        case _:
            case.source.known = (Doubt(slot="n/0", at=1090.0, what="another"),)
    assert await case.image() == WHY


async def test_a_worker_that_is_started_anew_is_trusted_again(case: Case) -> None:
    case.source.known = (ERROR,)
    await case.reported()
    process = msgspec.structs.replace(PROCESS, started=int(1001 * TICKS))
    case.bench.journal.put_worker(WorkerRow(spec=SPEC, process=process, slot="n/0", incarnation=1))
    assert (await case.reported())[0] == ""


@pytest.mark.parametrize(
    ("slot", "known", "doubted"), [("n/0", True, True), ("n/2", True, False), ("", True, False), ("", False, True), ("n/2", False, False)]
)
async def test_an_error_is_held_against_the_slot_that_has_the_gpu(case: Case, slot: str, known: bool, doubted: bool) -> None:
    """Of a GPU that no slot is known to have, it is held against those of whose GPUs nothing is known."""
    case.bench.node.slot_gpus = {"n/0": (GPU,)} if known else {}
    case.source.known = (Doubt(slot=slot, at=1000.0, what=WHY),)
    assert bool(await case.image()) is doubted


async def test_who_is_restored_from_a_doubted_image_is_doubted_and_who_isnt_isnt(tmp_path: Path) -> None:
    for doubt in (WHY, ""):
        folder = tmp_path / ("bad" if doubt else "good")
        folder.mkdir()
        bench = Bench(folder, worker=False)
        bench.runtime.alive.clear()
        bench.runtime.running.clear()
        bench.give_image()
        bench.depot.whole["image"] = msgspec.structs.replace(bench.depot.whole["image"], doubt=doubt)
        await bench.destination.prepare(bench.prepare())
        await bench.destination.restore(bench.restore())
        await bench.destination.resume(bench.step())
        row = bench.journal.worker("w")
        assert row is not None
        assert row.doubt == doubt
        bench.boot()
        assert (await report(bench.node)).workers[0].doubt == doubt


async def test_a_disk_that_takes_no_writes_keeps_it_from_nobody(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_row: WorkerRow) -> None:
        raise Stalled(Problem(code="SH610", what="full", remedy=""))

    monkeypatch.setattr(case.bench.journal, "put_worker", full)
    case.source.known = (ERROR,)
    assert (await case.reported())[0] == WHY
    assert "SH610" in case.bench.said()


async def test_a_row_of_an_agent_before_this_says_nothing_against_its_worker(case: Case) -> None:
    old = {key: value for key, value in msgspec.to_builtins(case.bench.node.row("w")).items() if not key.startswith("doubt")}
    assert msgspec.convert(old, WorkerRow).doubt == ""
