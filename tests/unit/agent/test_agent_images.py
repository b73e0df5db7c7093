"""How an agent keeps its images by its settings, and what its orders do for images that have to be opened."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from agent_fakes import PROCESS, SPEC, Bench, FakeClock, FakeRuntime, Gate, problem
from shunter.model.errors import Rejected, Retry, Stalled, Unknown
from shunter.wire import agent_pb2 as pb
from shunter_agent import inventory, keeping
from shunter_agent.depot import ARCHIVE, Archived
from shunter_agent.images.archive import GRACE_S, Archive, Ring
from shunter_agent.images.folder_objects import FolderObjects
from shunter_agent.images.listing import Listed
from shunter_agent.images.manifest import ImageInfo
from shunter_agent.images.pacing import Pacing, Urgency
from shunter_agent.images.store import ImageStore
from shunter_agent.notices.port import Notice
from shunter_agent.preflight import Room, preflight
from shunter_agent.refusals import Undone
from shunter_agent.runtime.port import Process
from shunter_agent.settings import ArchiveSettings, ImageSettings, Settings, SlotSettings, TlsSettings, load
from shunter_agent.stored import StoredDepot
from shunter_agent.tls import TlsFiles

INFO = ImageInfo(id="i1", spec=SPEC, incarnation=1, taken_at=100.0, runtime="criu")


def settings(folder: Path, **images: object) -> Settings:
    tls = TlsSettings(ca=folder / "ca", cert=folder / "cert", key=folder / "key")
    return Settings(
        node="n",
        listen="127.0.0.1:0",
        image_listen="127.0.0.1:0",
        state=folder / "state",
        tls=tls,
        slots=(SlotSettings(index=0),),
        images=ImageSettings(**images),  # type: ignore[arg-type]
    )


def opened(folder: Path, **images: object) -> ImageStore:
    return keeping.open_images(settings(folder, **images), FakeRuntime(FakeClock()), FakeClock())


def unsigned(root: Path) -> None:
    plain = ImageStore(root)
    (plain.begin("i1") / "core-1.img").write_bytes(b"core")
    plain.commit(INFO)


def key(path: Path) -> Path:
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


def test_unsigned_images_are_refused_unless_the_settings_accept_them(tmp_path: Path) -> None:
    unsigned(tmp_path / "state" / "images")
    with pytest.raises(Rejected, match="SH815"):
        opened(tmp_path).open_to_restore("i1")
    opened(tmp_path, unsigned="accept").open_to_restore("i1")


def test_an_agent_without_its_certificate_makes_no_image(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    (kept.begin("i1") / "core-1.img").write_bytes(b"core")
    with pytest.raises(Stalled, match="SH810"):
        kept.commit(INFO)


def test_images_are_encrypted_with_a_key_and_plain_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "IN_MEMORY", tmp_path / "shm")
    unsigned(tmp_path / "state" / "images")
    kept = opened(tmp_path, keys=(key(tmp_path / "key"),), unsigned="accept")
    assert kept.work.parent == tmp_path / "shm"
    kept.sync("i1")
    assert b"decode" not in b"".join(path.read_bytes() for path in kept.root.rglob("*") if path.is_file())
    assert kept.open_to_restore("i1").parent == kept.work
    assert opened(tmp_path, keys=(key(tmp_path / "key"),), work=tmp_path / "work").work == tmp_path / "work"


def test_two_agents_of_one_machine_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "IN_MEMORY", tmp_path / "shm")
    keys = (key(tmp_path / "key"),)
    assert opened(tmp_path / "a", keys=keys).work != opened(tmp_path / "b", keys=keys).work


def test_paths_in_the_settings_are_relative_to_their_file(tmp_path: Path) -> None:
    text = 'node = "n"\nlisten = "h:1"\nimage_listen = "h:2"\nstate = "s"\n[tls]\nca = "ca"\ncert = "c"\nkey = "k"\n[[slots]]\nindex = 0\n'
    (tmp_path / "agent.toml").write_text(
        text + '[images]\nunsigned = "accept"\nkeys = ["one.key", "/two.key"]\nwork = "plain"\nbandwidth = 5000\n'
    )
    found = load(tmp_path / "agent.toml").images
    assert found == ImageSettings(unsigned="accept", keys=(tmp_path / "one.key", Path("/two.key")), work=tmp_path / "plain", bandwidth=5000)
    assert load(tmp_path / "agent.toml").archive == ArchiveSettings()
    (tmp_path / "agent.toml").write_text(f'{text}[archive]\nurl = "shared"\nkeys = ["a.key"]\n')
    assert load(tmp_path / "agent.toml").archive == ArchiveSettings(url=str(tmp_path / "shared"), keys=(tmp_path / "a.key",))
    (tmp_path / "agent.toml").write_text(f'{text}[archive]\nurl = "s3://b/p"\n')
    assert load(tmp_path / "agent.toml").archive.url == "s3://b/p"
    for wrong in ('unsigned = "perhaps"', "bandwidth = 0", 'keys = ["k"]\n[archive]\nurl = "s3://b/p"'):
        (tmp_path / "agent.toml").write_text(f"{text}[images]\n{wrong}\n")
        with pytest.raises(Rejected, match="SH672"):
            load(tmp_path / "agent.toml")


@pytest.mark.parametrize(("deadlines", "first"), [([], None), ([None], None), ([1300.0, None, 1200.0], 1200.0)])
async def test_an_image_goes_by_the_earliest_deadline_of_its_node(
    tmp_path: Path, deadlines: list[float | None], first: float | None
) -> None:
    bench = Bench(tmp_path)
    bench.node.notices = {str(n): Notice(id=str(n), kind="preemption", seen_at=1.0, deadline=at) for n, at in enumerate(deadlines)}
    await bench.source.freeze(bench.freeze())
    assert bench.depot.deadlines == [first]


@pytest.mark.parametrize(("ordered", "of_slot", "first"), [(0.0, 1100.0, 1100.0), (0.0, None, 1200.0), (1300.0, 1100.0, 1300.0)])
async def test_an_orders_own_deadline_counts_more_and_another_slots_not_at_all(
    tmp_path: Path, ordered: float, of_slot: float | None, first: float
) -> None:
    bench = Bench(tmp_path)
    slot = bench.node.row(SPEC.worker).slot
    bench.node.notices = {
        "node": Notice(id="node", kind="preemption", seen_at=1.0, deadline=1200.0),
        "other": Notice(id="other", kind="gpu-failing", seen_at=1.0, deadline=1000.0, slot="another"),
        "own": Notice(id="own", kind="gpu-failing", seen_at=1.0, deadline=of_slot, slot=slot),
    }
    order = bench.freeze()
    order.order.deadline = ordered
    await bench.source.freeze(order)
    assert bench.depot.deadlines == [first]


@pytest.mark.parametrize(("ordered", "said"), [(1200.0, 1200.0), (0.0, None)])
async def test_a_copy_goes_by_its_orders_deadline(tmp_path: Path, ordered: float, said: float | None) -> None:
    bench = Bench(tmp_path)
    bench.give_image()
    order = bench.order()
    order.deadline = ordered
    await bench.transfers.send(pb.SendOrder(order=order, image="image", to=pb.Peer(node="m", address="m:1")))
    assert bench.depot.deadlines == [said]


def test_moves_are_sent_before_copies_and_by_their_deadlines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Urgency] = []
    sending = Pacing.sending
    monkeypatch.setattr(Pacing, "sending", lambda pacing, urgency, *stands: seen.append(urgency) or sending(pacing, urgency, *stands))
    kept = opened(tmp_path, unsigned="accept")
    depot = StoredDepot(kept, TlsFiles(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key"))
    unsigned(kept.root)
    for deadline in (None, 1200.0, 1300.0):
        with pytest.raises(Stalled, match="SH810"):
            depot.send("i1", "m", "127.0.0.1:1", lambda _bytes: None, deadline)
    for deadline in (None, 1200.0):
        with pytest.raises(Stalled, match="SH810"):
            depot.sending(tmp_path, "i2", "m", "127.0.0.1:1", lambda _bytes: None, deadline=deadline)
    depot.archive = Archive(FolderObjects(tmp_path / "archive"), Ring(), lambda: 0.0)
    depot.send("i1", "", ARCHIVE, lambda _bytes: None)
    depot.send("i1", "", ARCHIVE, lambda _bytes: None, 1250.0)
    for deadline in (None, 1150.0):
        assert depot.fetch("another", lambda _bytes: None, deadline) is None
    copy, soon, later, move, urgent, archived, urgently_archived, fetched, urgently_fetched = seen
    assert urgently_fetched < urgent < soon < urgently_archived < later < move <= fetched < copy < archived


@pytest.mark.parametrize(("ordered", "said"), [(1200.0, 1200.0), (0.0, None)])
async def test_what_is_restored_from_the_archive_comes_by_its_orders_deadline_and_shows_how_far_it_is(
    tmp_path: Path, ordered: float, said: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    bench.depot.archive = {"image": bench.depot.whole.pop("image")}
    told: list[tuple[str, str, int]] = []

    def progress(operation: str, step: str, total: int = 0) -> Callable[[int], None]:
        return lambda _count: told.append((operation, step, total))

    monkeypatch.setattr(bench.node, "progress", progress)
    await bench.destination.prepare(bench.prepare())
    order = bench.restore()
    order.order.deadline = ordered
    await bench.destination.restore(order)
    assert bench.depot.deadlines == [said]
    assert told == [(order.order.operation, "restore", bench.depot.archive["image"].bytes)]


async def test_what_was_opened_for_a_restore_is_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    bench.faults.at["restore"] = Rejected(problem("SH702"))
    with pytest.raises(Undone):
        await bench.destination.restore(bench.restore())
    await bench.node.finish_background()
    assert bench.depot.opened == {"image": 0}
    del bench.faults.at["restore"]
    await bench.destination.restore(bench.restore())
    await bench.node.finish_background()
    assert bench.depot.opened == {"image": 0}


async def test_of_two_tries_at_one_copy_the_second_is_noted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should agent and driver die then, the next agent has to end what it finds noted."""
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    tries = [Process(pid=PROCESS.pid + n, started=9) for n in (1, 2)]

    def twice(_spec: object, _network: object, _folder: Path, born: Callable[[Process], None]) -> None:
        for process in tries:
            born(process)
        raise Unknown(problem("SH707"))

    monkeypatch.setattr(bench.runtime, "restore", twice)
    with pytest.raises(Unknown):
        await bench.destination.restore(bench.restore())
    await asyncio.sleep(0)
    (kept,) = bench.journal.reservations().values()
    assert kept.process == tries[1]


@pytest.mark.parametrize("error", [Rejected(problem("SH816")), Retry(problem("SH814"))])
async def test_an_image_that_can_not_be_trusted_or_opened_is_not_restored(tmp_path: Path, error: Rejected | Retry) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    bench.faults.at["folder"] = error
    with pytest.raises((Undone, Retry), match=error.problem.code):
        await bench.destination.restore(bench.restore())
    assert bench.faults.done["restore"] == 0
    assert bench.node.held == {}


@pytest.mark.parametrize(("in_memory", "codes"), [(False, []), (True, ["SH657"])])
async def test_an_image_in_memory_needs_its_room_beside_the_worker(tmp_path: Path, *, in_memory: bool, codes: list[str]) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.depot.in_memory = in_memory
    order = pb.PreflightOrder(order=bench.order(), destination=True, slot="n/0", facts=bench.node.facts, bytes=1000)
    reply = await preflight(bench.node, order, lambda _root: Room(disk=10_000, memory=2000))
    assert [refusal.code for refusal in reply.refusals] == codes
    if codes:
        assert "the worker and its image" in reply.refusals[0].what


async def test_an_image_that_no_node_has_is_restored_from_the_archive(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    bench.depot.archive = {"image": bench.depot.whole.pop("image")}
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())
    assert "image" in bench.depot.whole
    assert bench.node.held


async def test_an_image_that_is_nowhere_is_told_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    await bench.destination.prepare(bench.prepare())
    with pytest.raises(Rejected, match="SH665"):
        await bench.destination.restore(bench.restore())


def test_images_go_to_the_archive_of_the_settings_and_come_back(tmp_path: Path) -> None:
    shared = ArchiveSettings(url=str(tmp_path / "shared"), keys=(key(tmp_path / "key"),))
    depots = []
    for name in ("a", "b"):
        asked = msgspec.structs.replace(settings(tmp_path / name, unsigned="accept"), archive=shared)
        store = keeping.open_images(asked, FakeRuntime(FakeClock()), FakeClock())
        archive = keeping.open_archive(asked, FakeClock())
        depots.append(StoredDepot(store, TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path), archive=archive))
    here, there = depots
    unsigned(here.root)
    told: list[int] = []
    assert there.fetch("i1", told.append) is None
    assert here.send("i1", "archive", ARCHIVE, lambda _bytes: None) == 4
    assert there.fetch("i1", told.append) == here.get("i1") == there.get("i1")
    assert told == [4]
    bare = StoredDepot(here.store, TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path))
    assert bare.fetch("i1", told.append) is None
    with pytest.raises(Rejected, match="SH825"):
        bare.send("i1", "archive", ARCHIVE, lambda _bytes: None)


def test_a_bucket_is_named_by_its_url(tmp_path: Path) -> None:
    asked = ArchiveSettings(url="s3://bucket/some/where", endpoint="http://127.0.0.1:1", region="r")
    archive = keeping.open_archive(msgspec.structs.replace(settings(tmp_path), archive=asked), FakeClock())
    assert archive is not None
    assert archive.name == "s3://bucket/some/where"
    assert keeping.open_archive(settings(tmp_path), FakeClock()) is None


async def test_what_is_plain_is_sealed_and_the_archive_swept_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SEAL_S", 0.01)
    monkeypatch.setattr(keeping, "SWEEP_S", 0.01)
    monkeypatch.setattr("shunter_agent.node.SYNC_S", 0.01)
    unsigned(tmp_path / "state" / "images")
    asked = settings(tmp_path, keys=(key(tmp_path / "key"),), work=tmp_path / "work")
    store = keeping.open_images(asked, FakeRuntime(FakeClock()), FakeClock())
    archive = Archive(FolderObjects(tmp_path / "archive"), Ring(), FakeClock())
    swept = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(archive, "sweep", lambda: loop.call_soon_threadsafe(swept.set))
    (tmp_path / "bench").mkdir()
    bench = Bench(tmp_path / "bench", worker=False)
    bench.node.depot = StoredDepot(store, TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path), archive=archive)
    task = asyncio.create_task(keeping.keep(bench.node))
    async with asyncio.timeout(10):
        await swept.wait()
        while store.unsealed() or bench.node.depot.archived() == Archived():
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await bench.node.finish_background()


async def test_progress_says_how_fast_it_goes_and_how_long_it_takes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    events, tell = bench.node.events.subscribe(), bench.node.progress("op", "freeze", 1000)
    told: list[pb.Progress] = []
    for seconds, count in ((0.1, 50), (1.0, 220), (1.0, 420), (0.05, 430), (1.95, 420 + 1180), (1.0, 1600)):
        bench.clock.now += seconds
        tell(count)
        await asyncio.sleep(0)
    bench.node.events.close()
    async for event in events:
        told.append(event.progress)
    assert [(one.bytes, one.total, one.rate, one.left_s) for one in told] == [
        (220, 1000, pytest.approx(200.0), pytest.approx(3.9)),
        (420, 1000, pytest.approx(200.0), pytest.approx(2.9)),
        (1600, 1000, pytest.approx((200 + 590) / 2), 0.0),  # more than there were to be, and how many nobody knows
        (1600, 1000, pytest.approx((200 + 590) / 4), 0.0),
    ]


async def test_who_sends_wakes_nobody_for_every_mib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, woken = Bench(tmp_path), list[object]()
    tell = bench.node.progress("op", "freeze", 1000)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", lambda *call: woken.append(call))
    for count in range(1000):
        bench.clock.now += 0.0001
        tell(count)
    assert not woken
    bench.clock.now += 0.2
    tell(1000)
    assert len(woken) == 1


async def test_progress_is_of_what_the_image_will_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, totals = Bench(tmp_path), []
    monkeypatch.setattr(bench.node, "progress", lambda _operation, _step, total: totals.append(total) or (lambda _count: None))
    await bench.source.freeze(bench.freeze())
    bench.give_image()
    order = pb.SendOrder(order=bench.order(), image="image", to=pb.Peer(node="m", address="10.0.0.2:7444"))
    await bench.transfers.send(order)
    assert totals == [bench.runtime.memory(PROCESS), 100]


async def test_reports_list_what_the_archive_has_where_that_is_wanted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    wanted = pb.InventoryRequest(archive=True)
    assert not (await inventory.report(bench.node, asked=wanted)).archive
    bench.give_image()
    bench.depot.archive = {"image": bench.depot.whole.pop("image")}
    first = await inventory.report(bench.node, asked=wanted)
    assert (first.archive, first.archive_looked, [i.id for i in first.archived]) == (True, 900.0, ["image"])
    assert first.archived[0].spec.worker == "w"
    short = await inventory.report(bench.node)
    assert (list(short.archived), short.archive_digest, short.archive_looked) == ([], first.archive_digest, 900.0)


async def test_one_image_is_looked_for_in_the_archive_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    bench.depot.archive = {"image": bench.depot.whole.pop("image")}
    one = await inventory.report(bench.node, asked=pb.InventoryRequest(archive=True, archived="image"))
    assert [i.id for i in one.archived] == ["image"]
    assert not (await inventory.report(bench.node, asked=pb.InventoryRequest(archived="gone"))).archived
    bench.depot.faults.at["in_archive"] = Retry(problem("SH822"))
    with pytest.raises(Retry, match="SH822"):
        await inventory.report(bench.node, asked=pb.InventoryRequest(archived="image"))


async def test_a_discard_in_the_archive_leaves_the_node_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    bench.depot.archive = dict(bench.depot.whole)
    order = pb.DiscardOrder(order=bench.order(), image="image", archived=True)
    await bench.transfers.discard(order)
    assert (bench.depot.archive, list(bench.depot.whole)) == ({}, ["image"])
    await bench.transfers.discard(pb.DiscardOrder(order=bench.order(), image="image"))
    assert not bench.depot.whole, "it is another step than that in the archive"
    bench.node.busy_images.begin("image", "o2")
    with pytest.raises(Retry, match="SH666"):
        await bench.transfers.discard(pb.DiscardOrder(order=bench.order("o3"), image="image", archived=True))


def test_what_an_agent_puts_there_or_deletes_its_next_report_tells(tmp_path: Path) -> None:
    shared = ArchiveSettings(url=str(tmp_path / "shared"), keys=(key(tmp_path / "key"),))
    depots = []
    for name in ("a", "b"):
        asked = msgspec.structs.replace(settings(tmp_path / name, unsigned="accept"), archive=shared)
        store = keeping.open_images(asked, FakeRuntime(FakeClock()), FakeClock())
        archive = keeping.open_archive(asked, FakeClock())
        depots.append(StoredDepot(store, TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path), archive=archive))
    here, there = depots
    assert here.listed is not None
    assert there.listed is not None
    assert here.archived() == Archived(), "it hasn't looked yet"
    here.listed.look()
    empty = here.archived()
    assert empty is not None
    assert (empty.looked_at, empty.images) == (1000.0, ())
    unsigned(here.root)
    here.send("i1", "archive", ARCHIVE, lambda _bytes: None)
    found = here.archived()
    assert found is not None
    assert [(i.id, i.bytes, i.spec.worker) for i in found.images] == [("i1", 4, "w")]
    assert found.digest != empty.digest
    there.listed.look()
    assert there.archived() == found, "equal lists have equal digests on all nodes"
    assert there.in_archive("i1") == here.get("i1")
    assert there.discard_archived("i1")
    assert not there.discard_archived("i1")
    assert (there.in_archive("i1"), there.archived()) == (None, msgspec.structs.replace(empty, looked_at=1000.0))
    bare = StoredDepot(here.store, TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path))
    assert (bare.archived(), bare.in_archive("i1")) == (None, None)
    with pytest.raises(Rejected, match="SH825"):
        bare.discard_archived("i1")


class Counted(FolderObjects):
    """A folder that says what was read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.read.append(key)
        return super().get(key)


def test_a_look_reads_little_and_of_each_image_once(tmp_path: Path) -> None:
    objects = Counted(tmp_path / "archive")
    archive = Archive(objects, Ring(), FakeClock())
    store = ImageStore(tmp_path / "images")
    for image in ("i1", "i2"):
        (store.begin(image) / "core-1.img").write_bytes(image.encode())
        secret = msgspec.structs.replace(SPEC, command=("serve", "--token=hush"), env={"TOKEN": "hush"})
        store.commit(msgspec.structs.replace(INFO, id=image, spec=secret))
        archive.put(store, image)
    objects.read.clear()
    listed = Listed(archive)
    listed.look()
    listed.look()
    assert listed.last is not None
    assert [m.id for m in listed.last.images] == ["i1", "i2"]
    assert sorted(objects.read) == ["about/i1", "about/i2"], "the manifests may be megabytes"
    kept = b"".join(objects.get(key) or b"" for key in ("about/i1", "about/i2"))
    assert b"decode" in kept
    assert b"hush" not in kept
    archive.discard("i1")
    assert [o.key for o in objects.all("about/")] == ["about/i2"]
    listed.look()
    assert [m.id for m in listed.last.images] == ["i2"]


def test_images_without_a_short_manifest_are_listed_by_their_own(tmp_path: Path) -> None:
    """An earlier release put them there."""
    objects = Counted(tmp_path / "archive")
    archive = Archive(objects, Ring(), FakeClock())
    store = ImageStore(tmp_path / "images")
    (store.begin("i1") / "core-1.img").write_bytes(b"core")
    store.commit(INFO)
    archive.put(store, "i1")
    objects.delete("about/i1")
    listed = Listed(archive)
    listed.look()
    assert listed.last is not None
    assert [(m.id, m.files) for m in listed.last.images] == [("i1", ())]


def test_a_short_manifest_without_an_image_goes_with_a_sweep(tmp_path: Path) -> None:
    """The agent died between the two; a day later nobody is about to write the other."""
    clock, objects = FakeClock(), FolderObjects(tmp_path / "archive")
    archive, store = Archive(objects, Ring(), clock), ImageStore(tmp_path / "images")
    for image in ("i1", "i2"):
        (store.begin(image) / "core-1.img").write_bytes(b"core")
        store.commit(msgspec.structs.replace(INFO, id=image))
        archive.put(store, image)
    objects.delete("images/i1")
    clock.now = time.time()
    archive.sweep()
    assert len(list(objects.all("about/"))) == 2
    clock.now += GRACE_S + 60
    archive.sweep()
    assert [o.key for o in objects.all("about/")] == ["about/i2"]
    assert archive.manifest("i2") is not None


def test_what_can_not_be_read_hides_nothing_else(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path / "archive")
    store = ImageStore(tmp_path / "images")
    for image, ring in (("i1", Ring([b"1" * 32])), ("i2", Ring([b"2" * 32]))):
        (store.begin(image) / "core-1.img").write_bytes(b"core")
        store.commit(msgspec.structs.replace(INFO, id=image))
        Archive(objects, ring, FakeClock()).put(store, image)
    listed = Listed(Archive(objects, Ring([b"2" * 32]), FakeClock()))
    listed.look()
    assert listed.last is not None
    assert [m.id for m in listed.last.images] == ["i2"]


def test_only_what_an_agent_of_the_fleet_made_is_said_to_be_restorable(tmp_path: Path) -> None:
    """Whoever has the bucket can put something there."""
    objects = FolderObjects(tmp_path / "archive")
    archive = Archive(objects, Ring(), FakeClock())
    plain = ImageStore(tmp_path / "plain")
    (plain.begin("i1") / "core-1.img").write_bytes(b"core")
    plain.commit(INFO)
    archive.put(plain, "i1")
    strict = StoredDepot(opened(tmp_path), TlsFiles(ca=tmp_path, cert=tmp_path, key=tmp_path), archive=archive)
    with pytest.raises(Rejected, match="SH815"):
        strict.in_archive("i1")


async def test_an_image_that_two_orders_use_is_in_use_until_both_have_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worker=False)
    bench.give_image()
    await bench.destination.prepare(bench.prepare())
    sent, read = Gate(), Gate()
    bench.faults.at.update(send=sent, restore=read)
    to = pb.Peer(node="m", address="10.0.0.2:7444")
    sending = asyncio.create_task(bench.transfers.send(pb.SendOrder(order=bench.order("o2"), image="image", to=to)))
    await asyncio.to_thread(sent.reached.wait, 10)
    restoring = asyncio.create_task(bench.destination.restore(bench.restore()))
    await asyncio.to_thread(read.reached.wait, 10)
    sent.open()
    await sending
    with pytest.raises(Retry, match="SH666 operation op needs the image"):
        await bench.transfers.discard(pb.DiscardOrder(order=bench.order("o3"), image="image"))
    read.open()
    await restoring
    assert not bench.node.busy_images
