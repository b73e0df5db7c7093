"""Images between agents in chunks, over real TLS on loopback: what the receiver has isn't sent, and what is damaged there is."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from shunter.model.errors import Rejected, Retry
from shunter_agent.depot import ImageFacts
from shunter_agent.images import frames, offering, server, spread
from shunter_agent.images.assembly import Assembly
from shunter_agent.images.cutting import CHUNK, pages_name
from shunter_agent.images.growth import Growth
from shunter_agent.images.manifest import Chunk, ImageFile, ImageManifest, manifest_of
from shunter_agent.images.pagemap import PAGE, Pagemap, Run, dump
from shunter_agent.images.store import ImageStore
from shunter_agent.images.transfer import send_growing, send_whole
from shunter_agent.stored import GrowingImage, StoredDepot
from test_transfer import QUICK, SPEC, Pair, info, until

PER_CHUNK = CHUNK // PAGE
BASE = 0x7000_0000_0000
Memory = dict[int, bytes]


def memory(pages: int, first: int = 0) -> Memory:
    data = os.urandom(pages * PAGE)
    return {first + n: data[n * PAGE : (n + 1) * PAGE] for n in range(pages)}


def runs_of(pages: Memory) -> tuple[Run, ...]:
    runs: list[Run] = []
    for n in sorted(pages):
        if runs and runs[-1].end == BASE + n * PAGE:
            runs[-1] = Run(runs[-1].vaddr, runs[-1].pages + 1)
        else:
            runs.append(Run(BASE + n * PAGE, 1))
    return tuple(runs)


def write(folder: Path, pages: Memory) -> None:
    """What CRIU would have dumped of it."""
    pagemap = Pagemap(pages_id=1, runs=runs_of(pages))
    (folder / pages_name(pagemap)).write_bytes(b"".join(pages[n] for n in sorted(pages)))
    (folder / "pagemap-1.img").write_bytes(dump(pagemap))
    (folder / "core-1.img").write_bytes(b"core")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    with contextlib.closing(made.server):
        yield made


def put(pair: Pair, image: str, pages: Memory) -> ImageManifest:
    write(pair.here.begin(image), pages)
    return pair.here.commit(info(image))


def send(pair: Pair, image: str) -> int:
    """Bytes that went over."""
    sent = send_whole(pair.here, image, pair.peer, pair.tls, limits=QUICK)
    assert pair.there.verify(image) == pair.here.verify(image) == ()
    assert pair.there.get(image) == pair.here.get(image)
    return sent.bytes


def both(pair: Pair, pages: Memory) -> None:
    put(pair, "i1", pages)
    assert send(pair, "i1") > len(pages) * PAGE


def damage(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (old,) = file.read(1)
        file.seek(at)
        file.write(bytes([old ^ 1]))


def test_a_region_that_grows_in_front_of_others_changes_none_of_their_chunks(pair: Pair) -> None:
    heap, weights = memory(300), memory(4 * PER_CHUNK, first=10 * PER_CHUNK)
    both(pair, heap | weights)
    grown = memory(7, first=300)
    put(pair, "i2", heap | grown | weights)
    assert send(pair, "i2") < (300 - PER_CHUNK + 7) * PAGE + 4096, "the stretch that grew, the pagemap and the core"


def test_what_is_in_any_image_is_not_sent_for_another_worker(pair: Pair) -> None:
    weights = memory(4 * PER_CHUNK)
    both(pair, weights)
    put(pair, "i2", {n + 77 * PER_CHUNK: page for n, page in weights.items()})
    assert send(pair, "i2") < 4096


def test_a_chunk_that_is_damaged_there_is_sent(pair: Pair) -> None:
    weights = memory(4 * PER_CHUNK)
    both(pair, weights)
    damage(pair.there.folder("i1") / "pages-1.img", 2 * CHUNK + 5)
    put(pair, "i2", weights)
    assert CHUNK < send(pair, "i2") < CHUNK + 4096
    assert [problem.code for problem in pair.there.verify("i1")] == ["SH804"]


def test_answers_that_come_while_more_is_offered_are_kept_for_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = memory(40 * PER_CHUNK // 4)
    scattered = {n + n // 64 * PER_CHUNK: page for n, page in weights.items()}
    both(pair, scattered)
    monkeypatch.setattr(offering, "_BATCH", 1)
    monkeypatch.setattr(offering, "_AHEAD", 20)
    put(pair, "i2", scattered | memory(30, first=77 * PER_CHUNK))
    assert send(pair, "i2") < 40 * PAGE


def test_an_image_that_was_discarded_is_no_help_any_more(pair: Pair) -> None:
    weights = memory(2 * PER_CHUNK)
    both(pair, weights)
    pair.there.discard("i1")
    put(pair, "i2", weights)
    assert send(pair, "i2") > 2 * CHUNK


def test_what_images_hold_is_known_again_after_a_restart(pair: Pair) -> None:
    weights = memory(2 * PER_CHUNK)
    both(pair, weights)
    known = len(pair.there.index)
    assert known == len(ImageStore(pair.there.root).index) >= 2


# -- a worker's next image


def facts(image: str) -> ImageFacts:
    return ImageFacts(id=image, spec=SPEC, incarnation=1, taken_at=100.0, runtime="criu")


class Moves:
    """What the source's agent does with its depot."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.depot = StoredDepot(pair.here, pair.tls)

    def begin(self, image: str) -> tuple[Path, GrowingImage]:
        folder = self.depot.begin(image)
        peer = self.pair.peer
        return folder, self.depot.sending(folder, image, peer.node, f"{peer.host}:{peer.port}", lambda _bytes: None, worker=SPEC.worker)

    def finish(self, image: str, sending: GrowingImage) -> int:
        sent = sending.finish(facts(image))
        self.depot.commit(facts(image), durable=False)
        return sent


@pytest.fixture
def moves(pair: Pair) -> Moves:
    return Moves(pair)


def test_only_pages_that_changed_are_sent_of_a_worker_whose_last_image_both_have(moves: Moves) -> None:
    pair, pages = moves.pair, memory(6 * PER_CHUNK)
    both(pair, pages)
    folder, sending = moves.begin("i2")
    write(folder, pages | memory(2, first=700) | memory(1, first=PER_CHUNK - 1) | memory(3, first=6 * PER_CHUNK))
    sent = moves.finish("i2", sending)
    assert 6 * PAGE < sent < 7 * PAGE
    assert pair.there.verify("i2") == pair.here.verify("i2") == ()
    assert pair.there.get("i2") == pair.here.get("i2")


def test_a_difference_to_what_is_damaged_there_is_sent_as_a_whole(moves: Moves) -> None:
    pair, pages = moves.pair, memory(3 * PER_CHUNK)
    both(pair, pages)
    damage(pair.there.folder("i1") / "pages-1.img", CHUNK + 50 * PAGE)
    folder, sending = moves.begin("i2")
    write(folder, pages | memory(1, first=PER_CHUNK + 10))
    assert CHUNK < moves.finish("i2", sending) < CHUNK + 4 * PAGE
    assert pair.there.verify("i2") == ()


# -- copied ahead


class FakeLive:
    """The memory of a process, which may change between looks at it."""

    def __init__(self, pages: Memory, pid: int = 1) -> None:
        self.pid, self.pages = pid, pages
        self.before_read: Callable[[int], None] = lambda _page: None

    def runs(self) -> Sequence[tuple[int, int]]:
        return [(run.vaddr, run.pages) for run in runs_of(self.pages)]

    def read(self, address: int, into: memoryview) -> bool:
        for at in range(0, len(into), PAGE):
            number = (address + at - BASE) // PAGE
            self.before_read(number)
            if number not in self.pages:
                return False
            into[at : at + PAGE] = self.pages[number]
        return True

    def close(self) -> None:
        pass


def test_what_was_copied_ahead_is_not_sent_again_and_not_copied_while_the_worker_stands_still(moves: Moves) -> None:
    pair, pages = moves.pair, memory(5 * PER_CHUNK + 9)
    folder, sending = moves.begin("i1")
    assert sending.copy([FakeLive(pages)], 30) == ""
    ahead = pair.there.root / "i1.partial" / "parent"
    until(lambda: sum(path.stat().st_size for path in ahead.iterdir()) > len(pages) * PAGE, "it is copied while the worker runs")
    write(folder, memory(4, first=-20) | pages | memory(2, first=800))
    sent = moves.finish("i1", sending)
    assert len(pages) * PAGE + 6 * PAGE < sent < len(pages) * PAGE + 8 * PAGE
    there = pair.there.folder("i1")
    assert spread.is_spread(there)
    assert sum(path.stat().st_size for path in there.glob("pages-*")) == 6 * PAGE
    assert {path.stat().st_mode & 0o777 for path in there.rglob("*") if path.is_file()} == {0o600}
    parts: list[int] = []
    pair.there.sync("i1", lambda: parts.append(sum(path.stat().st_size for path in there.glob("*.log"))))
    joined = [size for size in parts if size]
    assert joined[:3] == [4 * PAGE, 4 * PAGE + CHUNK, 4 * PAGE + 2 * CHUNK], "whoever has to may hold it up after each MiB"
    assert not spread.is_spread(there)
    assert pair.there.verify("i1") == pair.here.verify("i1") == ()
    assert sorted(path.name for path in there.iterdir()) == ["core-1.img", "manifest.json", "pagemap-1.img", "pages-1.img"]
    assert pair.there.get("i1") == pair.here.get("i1")


def test_an_image_on_top_of_a_copy_is_joined_before_it_is_sent_on(moves: Moves) -> None:
    pair, pages = moves.pair, memory(PER_CHUNK)
    folder, sending = moves.begin("i1")
    sending.copy([FakeLive(pages)], 30)
    write(folder, pages | memory(1, first=3))
    moves.finish("i1", sending)
    pair.here.discard("i1")
    back = server.ImageServer(pair.here, pair.authority.agent("n3"), "127.0.0.1", 0)
    back.start()
    with contextlib.closing(back):
        send_whole(pair.there, "i1", msgspec.structs.replace(pair.peer, node="n3", port=back.address[1]), pair.tls, limits=QUICK)
    assert pair.here.verify("i1") == ()


def test_memory_that_goes_away_while_it_is_copied_is_left_out(moves: Moves) -> None:
    pages = memory(3 * PER_CHUNK)
    live = FakeLive(pages)
    live.before_read = lambda number: [pages.pop(n, None) for n in range(PER_CHUNK, 2 * PER_CHUNK)] and None if number == 5 else None
    folder, sending = moves.begin("i1")
    assert sending.copy([live], 30) == ""
    write(folder, pages | memory(1, first=5))
    assert 2 * CHUNK + PAGE < moves.finish("i1", sending) < 2 * CHUNK + 3 * PAGE
    assert moves.pair.there.verify("i1") == ()


def test_a_worker_that_dies_while_it_is_copied_holds_nothing_up(moves: Moves) -> None:
    def gone(_page: int) -> None:
        raise ProcessLookupError("gone")

    live = FakeLive(memory(10))
    live.before_read = gone
    folder, sending = moves.begin("i1")
    assert "gone" in sending.copy([live], 30)
    write(folder, memory(PER_CHUNK))
    moves.finish("i1", sending)
    assert moves.pair.there.verify("i1") == ()
    assert not (moves.pair.there.folder("i1") / "parent").exists()


def test_no_more_is_copied_once_its_time_is_over(moves: Moves) -> None:
    pages = memory(2 * PER_CHUNK)
    folder, sending = moves.begin("i1")
    assert sending.copy([FakeLive(pages)], 0) == ""
    write(folder, pages)
    assert moves.finish("i1", sending) > 2 * CHUNK
    assert moves.pair.there.verify("i1") == ()


def test_a_copy_is_gone_with_the_image_that_it_was_for(moves: Moves) -> None:
    _folder, sending = moves.begin("i1")
    sending.copy([FakeLive(memory(10))], 30)
    until(lambda: (moves.pair.there.root / "i1.partial" / "parent").exists(), "it is being copied")
    sending.cancel()
    moves.pair.nothing_there()


def test_nothing_is_copied_over_a_link_that_has_ended(moves: Moves) -> None:
    _folder, sending = moves.begin("i1")
    moves.pair.server.close()
    with pytest.raises(Retry, match="SH806"):
        sending.copy([FakeLive(memory(32 * PER_CHUNK))], 30)


# -- releases that know no chunks


def test_an_older_receiver_gets_whole_files(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = frames.Link.from_sender

    def older(link: frames.Link) -> frames.FromSender:
        header = decode(link)
        return msgspec.structs.replace(header, chunks=False) if isinstance(header, frames.Hello) else header

    monkeypatch.setattr(frames.Link, "from_sender", older)
    pages = memory(3 * PER_CHUNK)
    put(pair, "i1", pages)
    assert send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK).bytes > 3 * CHUNK
    assert not any(file.chunks for file in pair.there.get("i1").files)
    folder, growth = pair.here.begin("i2"), Growth()
    write(folder, pages)
    growth.finish()
    send_growing(folder, "i2", lambda: info("i2"), growth, pair.peer, pair.tls, limits=QUICK)
    assert pair.there.verify("i1") == pair.there.verify("i2") == ()


def test_an_older_image_is_sent_as_it_is(pair: Pair) -> None:
    write(pair.here.begin("i1"), memory(3 * PER_CHUNK))
    folder = pair.here.root / "i1.partial"
    whole = {
        path.name: ImageFile(name=path.name, size=path.stat().st_size, blake3=blake3(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }
    old = pair.here.commit(info("i1"), whole)
    assert not old.in_chunks
    assert send(pair, "i1") > 3 * CHUNK
    assert pair.there.get("i1") == old
    assert send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK).bytes == 0


# -- senders that misbehave


def core(**changes: object) -> ImageManifest:
    return manifest_of(info("i9"), (ImageFile.of("core-1.img", [Chunk(blake3(b"core").hexdigest(), 4)]),))


def said(link: frames.Link, *headers: tuple[frames.FromSender, bytes]) -> frames.FromReceiver:
    link.send(frames.Hello(image="i9", chunks=True))
    assert isinstance(link.from_receiver(), frames.Ready)
    for header, body in headers:
        link.send(header, body)
    return link.from_receiver()


CORE = (frames.Data(name="core-1.img", offset=0, size=4), b"core")
LONGER = (frames.Data(name="core-1.img", offset=0, size=8), b"coreevil")


@pytest.mark.parametrize(
    "headers",
    [
        [(frames.Whole(manifest=core()), b"")],
        [(frames.Data(name="core-1.img", offset=0, size=4), b"cord"), (frames.Whole(manifest=core()), b"")],
        [(frames.Data(name="core-1.img", offset=4, size=4), b"core"), (frames.Whole(manifest=core()), b"")],
        [CORE, (frames.Data(name="more.img", offset=0, size=1), b"x"), (frames.Whole(manifest=core()), b"")],
        [CORE, (frames.Whole(manifest=core(), spread=True), b"")],
        [(frames.Listed(name="core-1.img", chunks=core().files[0].parts), b""), (frames.Whole(manifest=core()), b"")],
        [
            CORE,
            (frames.Data(area="whole", name="pagemap-1.img", offset=0, size=1), b"x"),
            (frames.Whole(manifest=core(), spread=True), b""),
        ],
        [CORE, (frames.Data(area="whole", name="pagemap-1.img", offset=0, size=1), b"x"), (frames.Whole(manifest=core()), b"")],
        [LONGER, CORE, (frames.Whole(manifest=core()), b"")],
        [CORE, LONGER, (frames.Whole(manifest=core()), b"")],
        [CORE, (frames.Data(name="core-1.img", offset=4, size=0), b""), (frames.Whole(manifest=core()), b"")],
    ],
    ids=[
        "nothing",
        "other bytes",
        "a gap",
        "one more",
        "not spread",
        "only listed",
        "no pagemap",
        "spread unsaid",
        "longer before",
        "longer again",
        "an empty chunk more",
    ],
)
def test_what_is_not_what_its_manifest_says_is_refused(pair: Pair, headers: list[tuple[frames.FromSender, bytes]]) -> None:
    with pair.raw() as link:
        answer = said(link, *headers)
    assert isinstance(answer, frames.Refused)
    assert answer.code == "SH804"
    pair.nothing_there()


@pytest.mark.parametrize(
    "header",
    [
        frames.Data(area="../..", name="core-1.img", offset=0, size=0),
        frames.Data(name="core-1.img", offset=-1, size=0),
        frames.Data(name="core-1.img", offset=0, size=CHUNK + 1),
        frames.Offer(name="a.img", offset=0, chunks=(frames.Wanted("no digest", 4096),)),
        frames.Offer(name="a.img", offset=0, chunks=(frames.Wanted("00", CHUNK + 1),)),
        frames.Offer(name="a.img", offset=0, chunks=(frames.Wanted("00", 1),) * 5000),
        frames.Patch(name="a.img", offset=0, size=CHUNK + 1, blake3="00", base="00", pieces=()),
        frames.Patch(name="a.img", offset=0, size=1, blake3="00", base="00", pieces=((-1, -5),)),
        frames.Patch(name="a.img", offset=0, size=1, blake3="00", base="00", pieces=((0, CHUNK),) * 2000),
    ],
    ids=["area", "before", "huge", "no digest", "huge offer", "many", "huge patch", "negative", "more than it is"],
)
def test_nonsense_ends_the_connection(pair: Pair, header: frames.FromSender) -> None:
    with pair.raw() as link, pytest.raises(frames.Broken):
        said(link, (header, b""))
    pair.nothing_there()


def test_a_file_outside_can_not_be_named(pair: Pair) -> None:
    with pair.raw() as link:
        answer = said(link, (frames.Offer(area="parent", name="../evil", offset=0, chunks=(frames.Wanted("00", 1),)), b""), CORE)
        assert answer == frames.Answer(chunks="n"), "nothing was written, so no name was looked at"
        link.send(frames.Data(area="parent", name="../evil", offset=0, size=0))
        refused = link.from_receiver()
    assert isinstance(refused, frames.Refused)
    assert refused.code == "SH801"
    pair.nothing_there()


def test_a_chunk_may_come_twice_if_it_is_the_same(pair: Pair) -> None:
    with pair.raw() as link:
        answer = said(link, CORE, CORE, (frames.Whole(manifest=core()), b""))
    assert isinstance(answer, frames.Stored)
    assert (pair.there.folder("i9") / "core-1.img").read_bytes() == b"core"


def test_another_chunk_over_another_link_in_place_of_one_is_not_written(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)

    class Said:
        """A link of a sender that says this, and ends."""

        def __init__(self, *said: tuple[frames.FromSender, bytes]) -> None:
            self.left, self.body = list(said), b""

        def from_sender(self) -> frames.FromSender:
            if not self.left:
                raise frames.Broken("it ended")
            header, self.body = self.left.pop(0)
            return header

        def read(self, into: memoryview) -> None:
            into[:] = self.body

        def send(self, _answer: object) -> None:
            pass

    with store.room.share("i9") as share, Assembly(store, "i9", share, bytes=100, files=9) as assembly:
        with pytest.raises(frames.Broken):
            assembly.take_lane(Said(CORE))  # type: ignore[arg-type]
        for other in (b"coreevil", b"evil", b"c"):
            with pytest.raises(Rejected, match="SH804"):
                assembly.take_lane(Said((frames.Data(name="core-1.img", offset=0, size=len(other)), other)))  # type: ignore[arg-type]
        manifest = assembly.take(Said((frames.Whole(manifest=core()), b"")))  # type: ignore[arg-type]
        store.commit_received(manifest, fsync=False)
    assert (store.folder("i9") / "core-1.img").read_bytes() == b"core"


def test_a_sender_whose_bytes_stay_wrong_is_refused_in_the_end(pair: Pair) -> None:
    wrong = frames.Patch(name="core-1.img", offset=0, size=4, blake3=blake3(b"core").hexdigest(), base="00", pieces=((-1, 4),))
    whole = frames.Whole(manifest=core())
    with pair.raw() as link:
        answer = said(link, (wrong, b"cord"), (whole, b""))
        for _ in range(3):
            assert answer == frames.Again(missing=(frames.Missing("", "core-1.img", 0, 4),))
            link.send(wrong, b"cord")
            link.send(whole)
            answer = link.from_receiver()
    assert isinstance(answer, frames.Refused)
    assert answer.code == "SH804"
    pair.nothing_there()


def test_bytes_that_are_wrong_here_are_not_sent_as_right(pair: Pair) -> None:
    put(pair, "i1", memory(PER_CHUNK))
    damage(pair.here.folder("i1") / "pages-1.img", 9)
    with pytest.raises(Rejected, match="SH804"):
        send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
    pair.nothing_there()


def test_many_at_once_find_each_others_chunks_or_not_but_are_whole(pair: Pair) -> None:
    weights = memory(2 * PER_CHUNK)
    for n in range(4):
        put(pair, f"i{n}", weights)
    threads = [threading.Thread(target=send, args=(pair, f"i{n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {image.id for image in pair.there.list()} == {"i0", "i1", "i2", "i3"}
