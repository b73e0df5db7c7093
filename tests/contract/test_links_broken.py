"""Transfers whose links break, over real TLS on loopback: they go on where they were, and nothing stays of one that doesn't."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shunter.model.errors import Rejected, Retry
from shunter_agent.images import frames, talk
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.frames import Broken, Link
from shunter_agent.images.growth import Growth
from shunter_agent.images.manifest import ImageManifest
from shunter_agent.images.pacing import Pacing, Urgency
from shunter_agent.images.server import Allowance
from shunter_agent.images.transfer import Limits, send_growing, send_whole
from shunter_agent.stored import StoredDepot
from test_chunks_sent import memory, put
from test_transfer import Pair, info, until

ALONE = Limits(connect_s=2, idle_s=2, total_s=30, resume_s=5, lanes=0)
SEVERAL = msgspec.structs.replace(ALONE, lanes=3)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, Allowance(idle_s=20, handshake_s=2, resume_s=5))
    with contextlib.closing(made.server):
        yield made


class Breaks:
    """Ends the link under whoever sends a header of these kinds, each time that `when` says so of how many there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *kinds: type, when: Callable[[int], bool], half: bool = False) -> None:
        self.count = self.broken = 0
        self.data = 0
        send, lock = Link.send, threading.Lock()

        def sometimes(link: Link, header: frames.FromSender | frames.FromReceiver, body: memoryview | bytes = b"") -> None:
            with lock:
                self.data += isinstance(header, frames.Data)
                hit = isinstance(header, kinds) and when(self.count)
                self.count += isinstance(header, kinds)
                self.broken += hit
            if not hit:
                send(link, header, body)
                return
            if half and body:
                text = msgspec.json.encode(header)
                link.socket.sendall(len(text).to_bytes(4, "big") + text)
                link.socket.sendall(body[: len(body) // 2])
            link.hang_up()
            raise Broken("cut")

        monkeypatch.setattr(Link, "send", sometimes)


def arrived(pair: Pair, image: str = "i1") -> None:
    assert pair.there.verify(image) == ()
    assert pair.there.get(image) == pair.here.get(image)
    assert pair.received[-1] == (image, "n1")


@pytest.mark.parametrize("half", [False, True], ids=["before", "in the middle"])
@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_it_goes_on_where_it_was(pair: Pair, monkeypatch: pytest.MonkeyPatch, at: int, *, half: bool) -> None:
    pair.image(size=9 * CHUNK + 5)
    breaks = Breaks(monkeypatch, frames.Data, when=lambda n: n == at, half=half)
    sent = send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    assert breaks.broken == 1
    assert breaks.data <= 12 + 1 + at, "at most what wasn't confirmed is said again"
    assert sent.bytes == sent.manifest.bytes
    arrived(pair)


def test_it_goes_on_however_often_it_breaks(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter_agent.images.session.CONFIRM", CHUNK)
    pair.image(size=12 * CHUNK)
    breaks = Breaks(monkeypatch, frames.Data, when=lambda n: n % 3 == 2)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    assert breaks.broken >= 5
    arrived(pair)


@pytest.mark.parametrize("kind", [frames.Offer, frames.Answer, frames.Whole, frames.Ack, frames.Patch])
def test_it_goes_on_whatever_was_on_its_way(pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Answers, too, are given again, and none twice."""
    monkeypatch.setattr("shunter_agent.images.session.CONFIRM", CHUNK)
    pages = memory(1200)
    put(pair, "i1", pages)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    put(pair, "i2", pages | memory(700, first=5000))
    breaks = Breaks(monkeypatch, kind, when=lambda n: n in (0, 1))
    send_whole(pair.here, "i2", pair.peer, pair.tls, limits=ALONE)
    assert breaks.broken >= (kind is not frames.Patch)
    arrived(pair, "i2")


def test_an_image_that_is_whole_there_is_known_to_be_when_the_last_word_is_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody could tell whether it is (SH811)."""
    pair.image()
    breaks = Breaks(monkeypatch, frames.Stored, when=lambda n: n == 0)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    assert breaks.broken == 1
    arrived(pair)
    assert pair.received == [("i1", "n1")], "and it was taken once"


def test_it_goes_on_when_the_receiver_has_not_noticed_that_the_link_is_gone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.image(size=5 * CHUNK)
    send, cut = Link.send, []

    def lost(link: Link, header: frames.FromSender, body: memoryview | bytes = b"") -> None:
        if isinstance(header, frames.Data) and header.offset == 2 * CHUNK and not cut:
            cut.append(os.dup(link.socket.fileno()))  # still open, and kept so: no word of its end reaches the other side
            raise Broken("the network in between has forgotten the connection")
        send(link, header, body)

    monkeypatch.setattr(Link, "send", lost)
    began = time.monotonic()
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=msgspec.structs.replace(ALONE, idle_s=20))
    assert time.monotonic() - began < 8
    os.close(cut[0])
    arrived(pair)


def test_a_growing_image_goes_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, growth = pair.here.begin("i1"), Growth()
    (folder / "pages-1.img").write_bytes(os.urandom(6 * CHUNK + 9))
    breaks = Breaks(monkeypatch, frames.Data, when=lambda n: n in (2, 4))
    timer = threading.Timer(0.3, growth.finish)
    timer.start()
    sent = send_growing(folder, "i1", info, growth, pair.peer, pair.tls, limits=ALONE)
    pair.here.commit(info(), sent.files)
    assert breaks.broken == 2
    arrived(pair)


# -- several links


def test_chunks_go_over_several_links(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.image(size=16 * CHUNK)
    used: dict[int, int] = {}
    send = Link.send

    def noted(link: Link, header: frames.FromSender, body: memoryview | bytes = b"") -> None:
        if isinstance(header, frames.Data):
            used[id(link)] = used.get(id(link), 0) + 1
        send(link, header, body)

    monkeypatch.setattr(Link, "send", noted)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=SEVERAL)
    assert len(used) == 3
    assert sum(used.values()) == 18
    arrived(pair)


@pytest.mark.parametrize("when", [lambda n: n == 7, lambda n: n in (3, 9, 10), lambda n: n > 5 and n % 2], ids=["one", "all", "often"])
def test_what_a_link_did_not_bring_over_others_do(pair: Pair, monkeypatch: pytest.MonkeyPatch, when: Callable[[int], bool]) -> None:
    pair.image(size=14 * CHUNK)
    lanes, send = [], Link.send

    def cut(link: Link, header: frames.FromSender, body: memoryview | bytes = b"") -> None:
        lanes.extend([link] if isinstance(header, frames.Lane) else [])
        if link in lanes and isinstance(header, frames.Data) and when(next(counts)):
            link.hang_up()
            raise Broken("cut")
        send(link, header, body)

    counts = itertools.count()
    monkeypatch.setattr(Link, "send", cut)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=SEVERAL)
    assert len(lanes) == 3
    arrived(pair)


def test_a_receiver_that_takes_no_further_links_gets_it_over_the_first(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.image(size=10 * CHUNK)
    join = pair.server._join

    def no_lanes(link: Link, hello: frames.Resume | frames.Lane, node: str) -> None:
        if isinstance(hello, frames.Lane):
            raise OSError("no more")
        join(link, hello, node)

    monkeypatch.setattr(pair.server, "_join", no_lanes)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=SEVERAL)
    arrived(pair)


# -- no other link


def test_nothing_stays_of_a_transfer_that_nobody_goes_on_with(tmp_path: Path) -> None:
    made = Pair(tmp_path, Allowance(idle_s=2, handshake_s=2, resume_s=0.3))
    with contextlib.closing(made.server):
        with made.raw() as link:
            link.send(frames.Hello(image="i1", chunks=True, session="s"))
            link.from_receiver()
            link.send(frames.Data(name="pages-1.img", offset=0, size=4), b"abcd")
            until(lambda: (made.there.root / "i1.partial" / "pages-1.img").exists(), "it is being received")
        assert (made.there.root / "i1.partial").exists(), "for a while it can be gone on with"
        made.nothing_there()
        with made.raw() as link:
            link.send(frames.Resume(image="i1", session="s", heard=0))
            refused = link.from_receiver()
        assert isinstance(refused, frames.Refused)
        assert refused.code == "SH821"


def test_an_agent_that_died_on_the_way_can_begin_anew_at_once(pair: Pair) -> None:
    pair.image()
    with pair.raw() as link:
        link.send(frames.Hello(image="i1", chunks=True, session="s"))
        link.from_receiver()
        link.send(frames.Data(name="pages-1.img", offset=0, size=4), b"abcd")
        until(lambda: (pair.there.root / "i1.partial" / "pages-1.img").exists(), "it is being received")
    began = time.monotonic()
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    assert time.monotonic() - began < 3
    arrived(pair)


def test_another_agent_takes_no_transfers_place(pair: Pair) -> None:
    pair.image()
    with pair.raw() as link:
        link.send(frames.Hello(image="i1", chunks=True, session="s"))
        link.from_receiver()
        with pytest.raises(Rejected, match="SH803"):
            send_whole(pair.here, "i1", pair.peer, pair.authority.agent("n3"), limits=ALONE)
        link.send(frames.Data(name="pages-1.img", offset=0, size=4), b"abcd")
        until(lambda: (pair.there.root / "i1.partial" / "pages-1.img").exists(), "it goes on")


def test_a_sender_that_gives_it_up_is_not_waited_for(pair: Pair) -> None:
    folder, growth = pair.here.begin("i1"), Growth()
    (folder / "pages-1.img").write_bytes(b"x" * CHUNK)
    began = time.monotonic()
    with pytest.raises(Rejected, match="SH805"):
        send_growing(folder, "i1", info, growth, pair.peer, pair.tls, limits=ALONE, progress=lambda _count: growth.fail())
    pair.nothing_there()
    assert time.monotonic() - began < 2


def test_a_sender_looks_for_another_link_only_so_long(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.image(size=3 * CHUNK)
    Breaks(monkeypatch, frames.Data, frames.Resume, when=lambda _n: True)
    began = time.monotonic()
    with pytest.raises(Retry, match=r"SH806 .*cut"):
        send_whole(pair.here, "i1", pair.peer, pair.tls, limits=msgspec.structs.replace(ALONE, resume_s=0.4))
    assert 0.3 < time.monotonic() - began < 3


@pytest.mark.parametrize("hello", [frames.Resume(image="i1", session="s", heard=0), frames.Lane(image="i1", session="s")])
def test_a_transfer_is_its_senders_alone(pair: Pair, hello: frames.Resume | frames.Lane) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image="i1", chunks=True, session="s"))
        link.from_receiver()
        for tls, said in (
            (pair.authority.agent("n3"), hello),
            (pair.tls, msgspec.structs.replace(hello, image="i2")),
            (pair.tls, msgspec.structs.replace(hello, session="t")),
        ):
            pair.tls, mine = tls, pair.tls
            with pair.raw() as other:
                other.send(said)
                refused = other.from_receiver()
            pair.tls = mine
            assert isinstance(refused, frames.Refused)
            assert refused.code == "SH821"


def test_chunks_that_come_when_all_is_complete_are_nobodys(pair: Pair) -> None:
    manifest: ImageManifest = pair.image(size=5)
    with pair.raw() as link, pair.raw() as lane:
        link.send(frames.Hello(image="i1", chunks=True, session="s"))
        link.from_receiver()
        lane.send(frames.Lane(image="i1", session="s"))
        assert lane.from_receiver() == frames.Ready(chunks=True)
        for name in ("core-1.img", "empty.img", "pages-1.img"):
            data = (pair.here.folder("i1") / name).read_bytes()
            lane.send(frames.Data(name=name, offset=0, size=len(data)), data)
        lane.send(frames.Wait())
        assert lane.from_receiver() == frames.Ack(done=3)
        link.send(frames.Whole(manifest=manifest))
        assert link.from_receiver() == frames.Stored(bytes=manifest.bytes)
        lane.send(frames.Data(name="pages-1.img", offset=0, size=5), b"later")
        with pytest.raises(frames.Broken):
            lane.from_receiver()
    assert pair.there.verify("i1") == ()


def test_a_receiver_that_does_not_keep_up_holds_its_sender_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "WINDOW", 2 * CHUNK)
    monkeypatch.setattr("shunter_agent.images.session.CONFIRM", CHUNK)
    pair.image(size=12 * CHUNK)
    most, say = [0], talk.Talk._say

    def watched(one: talk.Talk, header: talk.Said, body: memoryview | bytes = b"") -> None:
        most[0] = max(most[0], one._unconfirmed)
        say(one, header, body)

    monkeypatch.setattr(talk.Talk, "_say", watched)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    assert CHUNK < most[0] <= 2 * CHUNK
    arrived(pair)


# -- how fast, and who first


def test_no_more_is_sent_in_a_second_than_is_allowed(pair: Pair) -> None:
    pair.image(size=8 * CHUNK)
    pacing = Pacing(rate=20 * CHUNK)
    began = time.monotonic()
    with pacing.sending(Urgency()) as pace:
        send_whole(pair.here, "i1", pair.peer, pair.tls, limits=SEVERAL, pace=pace)
    assert time.monotonic() - began >= 7 / 20
    arrived(pair)


def test_an_urgent_image_goes_first(pair: Pair) -> None:
    """A copy that nobody waits for is under way, at a rate that both share, when a worker has to leave."""
    pair.image("copy", size=20 * CHUNK)
    pair.image("move", size=8 * CHUNK)
    pacing, sent = Pacing(rate=40 * CHUNK), {"copy": 0, "move": 0}
    ended: list[str] = []

    def send(image: str, urgency: Urgency) -> None:
        with pacing.sending(urgency) as pace:
            send_whole(
                pair.here, image, pair.peer, pair.tls, limits=ALONE, pace=pace, progress=lambda count: sent.__setitem__(image, count)
            )
        ended.append(image)

    copying = threading.Thread(target=send, args=("copy", Urgency()))
    copying.start()
    until(lambda: sent["copy"] >= 3 * CHUNK, "the copy is under way")
    moving = threading.Thread(target=send, args=("move", Urgency(deadline=1000.0, copy=False)))
    moving.start()
    until(lambda: sent["move"] >= CHUNK, "the move has begun")
    before = sent["copy"]
    until(lambda: "move" in ended, "the move is over", 20)
    between = sent["copy"] - before
    copying.join(20)
    assert between <= 2 * CHUNK, "meanwhile, at most what was under way of the copy"
    assert ended == ["move", "copy"]
    assert pair.there.verify("copy") == pair.there.verify("move") == ()


def test_what_has_to_be_gone_sooner_is_sent_first_whoever_ordered_it(pair: Pair) -> None:
    """Two operations' images, each for its own worker: what begins later has less time."""
    for image in ("later", "sooner"):
        pair.image(image, size=12 * CHUNK)
    depot, sent, ended = StoredDepot(pair.here, pair.tls, Pacing(rate=40 * CHUNK)), {"later": 0, "sooner": 0}, []

    def send(image: str, deadline: float) -> None:
        address = f"{pair.peer.host}:{pair.peer.port}"
        depot.send(image, pair.peer.node, address, lambda count: sent.__setitem__(image, count), deadline)
        ended.append(image)

    threads = [threading.Thread(target=send, args=("later", 2000.0)), threading.Thread(target=send, args=("sooner", 1000.0))]
    threads[0].start()
    until(lambda: sent["later"] >= 3 * CHUNK, "the first is under way")
    threads[1].start()
    until(lambda: "sooner" in ended, "the second is over", 20)
    assert ended == ["sooner"], "the first was made to wait"
    for thread in threads:
        thread.join(20)
    assert ended == ["sooner", "later"]
    assert pair.there.verify("later") == pair.there.verify("sooner") == ()


def test_who_waits_for_another_keeps_its_own_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter_agent.images.pacing._REASSURE_S", 0.1)
    monkeypatch.setattr("shunter_agent.images.pacing._IDLE_S", 0.05)
    made = Pair(tmp_path, Allowance(idle_s=0.5, handshake_s=2, resume_s=0))
    with contextlib.closing(made.server):
        made.image(size=CHUNK)
        with Pacing(rate=CHUNK).sending(Urgency()) as pace:
            pace(CHUNK, lambda: None)
            send_whole(made.here, "i1", made.peer, made.tls, limits=ALONE, pace=pace)
        arrived(made)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Urgency(deadline=5.0, copy=False), Urgency(deadline=6.0, copy=False)),
        (Urgency(deadline=6.0, copy=True), Urgency(copy=False)),
        (Urgency(copy=False), Urgency(copy=True)),
        (Urgency(copy=True), Urgency(copy=True, archived=True)),
    ],
)
def test_deadlines_come_first_and_copies_last(first: Urgency, second: Urgency) -> None:
    assert first < second
    clock = [100.0]
    pacing = Pacing(clock=lambda: clock[0])
    with pacing.sending(second) as later, pacing.sending(first) as sooner:
        sooner(10, lambda: None)
        thread = threading.Thread(target=later, args=(10, lambda: None), daemon=True)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive(), "it waits for the more urgent one"
        clock[0] += 10  # which has said nothing since: it waits for a dump, say
        thread.join(5)
        assert not thread.is_alive()
        sooner(10, lambda: None)


@pytest.mark.parametrize(("urgency", "stands", "ends"), [
    (Urgency(copy=False), True, True), (Urgency(copy=False), False, False), (Urgency(deadline=9.0, copy=False), True, False),
])  # fmt: skip
def test_whoever_stands_still_and_may_as_well_go_later_stands_still_for_others_only_shortly(
    urgency: Urgency, stands: bool, ends: bool
) -> None:
    """It stood still for as long as its hold, while all that was sent was others'."""
    clock = [100.0]
    pacing, over = Pacing(clock=lambda: clock[0]), []
    with pacing.sending(urgency, lambda: stands) as later, pacing.sending(Urgency(deadline=5.0, copy=False)) as sooner:

        def send() -> None:
            try:
                later(10, lambda: None)
            except Retry as error:
                over.append(error.problem.code)
            else:
                over.append("sent")

        sooner(10, lambda: None)
        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        for _ in range(100):
            thread.join(0.005)
            clock[0] += 0.2
            sooner(10, lambda: None)
        if ends:
            thread.join(5)
        assert over == (["SH826"] if ends else [])
        clock[0] += 10
    thread.join(5)
    assert over == (["SH826"] if ends else ["sent"])


def test_a_link_beside_the_first_that_hears_nothing_holds_up_no_cancelled_sending(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, over = threading.Event(), threading.Event()

    def silent(_link: Link, hello: frames.Resume | frames.Lane, _node: str) -> None:
        stuck.set()
        over.wait(20)

    monkeypatch.setattr(pair.server, "_join", silent)
    pair.image(size=4 * CHUNK)
    began = time.monotonic()
    outcome: list[BaseException] = []
    growth = Growth()
    folder = pair.here.folder("i1").rename(pair.here.root / "i1.partial")

    def send() -> None:
        try:
            send_growing(folder, "i1", info, growth, pair.peer, pair.tls, limits=msgspec.structs.replace(SEVERAL, idle_s=20))
        except Rejected as error:
            outcome.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    assert stuck.wait(10)
    growth.fail()
    sending.join(10)
    assert not sending.is_alive()
    assert time.monotonic() - began < 8
    assert len(outcome) == 1
    over.set()
    pair.nothing_there()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_wherever_links_break_the_image_arrives(broken_pair: Pair, data: st.DataObject) -> None:
    """Images that share chunks, differ in pages, and are new, over links of which any header in either direction may be the last."""
    number = next(numbers)
    seeds = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3), label="windows")
    pages = {window * 1000 + n: bytes([window]) * 2048 + n.to_bytes(2048, "big") for window in seeds for n in range(300)}
    pages |= {window * 1000 + 7: number.to_bytes(4096, "big") for window in seeds}
    put(broken_pair, f"i{number}", pages)
    gaps = data.draw(st.lists(st.integers(1, 6), max_size=6), label="headers between breaks")
    at = set(itertools.accumulate(gaps))
    lanes = data.draw(st.integers(0, 2), label="lanes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shunter_agent.images.session.CONFIRM", CHUNK)
        kinds = (frames.Data, frames.Offer, frames.Patch, frames.Whole, frames.Answer, frames.Ack, frames.Stored, frames.Again)
        Breaks(patch, *kinds, when=at.__contains__, half=data.draw(st.booleans(), label="half"))
        send_whole(broken_pair.here, f"i{number}", broken_pair.peer, broken_pair.tls, limits=msgspec.structs.replace(ALONE, lanes=lanes))
    arrived(broken_pair, f"i{number}")
    assert [image for image, _node in broken_pair.received].count(f"i{number}") == 1


numbers = itertools.count()


@pytest.fixture
def broken_pair(pair: Pair) -> Pair:
    return pair
