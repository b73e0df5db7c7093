"""A node without an engine: what it does by itself when a notice comes, and what it leaves alone."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from agent_fakes import SPEC, Bench, FakeClock, problem
from shunter.app.certs import issue
from shunter.app.settings import TlsSettings
from shunter.app.standing import Signer
from shunter.model.canon import decode
from shunter.model.errors import Rejected, Stalled, Unknown
from shunter.model.ids import Commit, Digest, Epoch, ImageId, Incarnation, NodeId, OperationId, PolicyName, SlotId, WorkerId
from shunter.model.snapshot import NoticeKind
from shunter.model.standing import NEVER, Holder, Stand, StandingOrder, Stood, image_of, operation_of, why
from shunter.wire import agent_pb2 as pb
from shunter_agent import standing
from shunter_agent.journal import Journal
from shunter_agent.notices.port import Notice
from shunter_agent.recovery import recover
from shunter_agent.settings import TlsSettings as AgentTls
from shunter_agent.standing import AGAIN_S, Standing

NOW = 1000.0
STAND = Stand(
    worker=WorkerId("w"),
    incarnation=Incarnation(0),
    slot=SlotId("n/0"),
    act="checkpoint",
    policy=PolicyName("save"),
    kinds=(NoticeKind.PREEMPTION,),
    holders=(Holder(node=NodeId("m"), address="10.0.0.2:7444"), Holder(node=NodeId("k"), address="10.0.0.3:7444")),
)
ORDER = StandingOrder(
    node=NodeId("n"),
    epoch=Epoch(1),
    issued_at=NOW,
    valid_until=NOW + 600.0,
    silence=10.0,
    commit=Commit("c" * 40),
    policy_set=Digest("sha256:p"),
    stands=(STAND,),
)
NOTICE = Notice(id="going", kind="preemption", seen_at=NOW, deadline=NOW + 120.0, source="file")


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    issue(folder, ["n"], NOW)
    return folder


def tls(certs: Path, who: str = "engine") -> TlsSettings:
    return TlsSettings(ca=certs / "ca.pem", cert=certs / f"{who}.pem", key=certs / f"{who}.key")


class Alone:
    """An agent whose engine is away, with a standing order and a notice."""

    def __init__(self, folder: Path, certs: Path) -> None:
        self.certs = certs
        self.bench = Bench(folder)
        self.bench.settings = msgspec.structs.replace(self.bench.settings, tls=AgentTls(ca=certs / "ca.pem", cert=certs, key=certs))
        self.bench.boot()
        self.bench.node.networks["w"] = self.bench.runtime.network(SPEC)
        self.bench.node.notices = {"going": NOTICE}
        self.boot()

    def boot(self) -> None:
        self.standing = Standing(self.bench.orders, self.bench.source, self.bench.transfers)

    @property
    def clock(self) -> FakeClock:
        return self.bench.clock

    def signed(self, order: StandingOrder = ORDER, epoch: int = 1, who: str = "engine") -> pb.StandOrder:
        return Signer(tls(self.certs, who), Epoch(epoch)).sign(order)

    async def silent(self, order: StandingOrder = ORDER) -> None:
        """The order was given, and then nothing was heard for as long as it takes."""
        await self.standing.keep(self.signed(order, order.epoch))
        self.standing.heard()
        self.clock.now += order.silence

    def stood(self) -> Stood:
        (only,) = self.bench.journal.stood().values()
        return only

    def done(self) -> dict[str, int]:
        """What was really done to the worker and its images."""
        found = {name: self.bench.faults.done[name] for name in ("fence", "freeze", "thaw", "send", "unfence", "end", "release")}
        return {name: count for name, count in found.items() if count}


@pytest.fixture
def alone(tmp_path: Path, certs: Path) -> Alone:
    return Alone(tmp_path, certs)


async def test_a_worker_is_hidden_and_its_image_is_on_the_other_node_and_it_runs_on(alone: Alone) -> None:
    await alone.silent()
    await alone.standing.look()
    assert alone.done() == {"fence": 1, "freeze": 1, "thaw": 1, "send": 1}
    stood = alone.stood()
    image = image_of(operation_of(STAND, Epoch(1), stood.notice), NoticeKind.PREEMPTION, NOW + 120)
    assert alone.bench.depot.peers == {"m": [image]}
    assert (stood.state, stood.image, stood.holder, stood.order, stood.commit) == ("done", image, "m", ORDER.id, "c" * 40)
    assert why(ImageId(image)) == (NoticeKind.PREEMPTION, NOW + 120)
    assert (alone.bench.state(), alone.bench.serving.registered) == ("fenced", False)
    assert alone.bench.runtime.running == alone.bench.runtime.alive
    assert [decode(report, Stood) for report in alone.standing.reports()] == [stood]
    await alone.standing.look()
    assert alone.done()["freeze"] == 1, "it is done once"


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.standing.heard(),
        lambda a: a.bench.node.notices.clear(),
        lambda a: a.bench.node.notices.update(going=msgspec.structs.replace(NOTICE, kind="rebalance")),
        lambda a: a.bench.node.notices.update(going=msgspec.structs.replace(NOTICE, deadline=None, dumpable=False)),
        lambda a: a.bench.node.notices.update(gpu=msgspec.structs.replace(NOTICE, id="gpu", dumpable=False)),
        lambda a: a.bench.node.notices.update(going=msgspec.structs.replace(NOTICE, deadline=NOW + 10)),
        lambda a: a.bench.node.notices.update(going=msgspec.structs.replace(NOTICE, canary=True)),
        lambda a: a.bench.node.notices.update(going=msgspec.structs.replace(NOTICE, slot="n/2")),
        lambda a: setattr(a.clock, "now", NOW + 601),
        lambda a: a.bench.journal.raise_epoch(2),
        lambda a: a.bench.node.change("w", incarnation=1),
        lambda a: a.bench.node.change("w", slot="n/2"),
    ],
    ids=[
        "heard",
        "no notice",
        "a hint",
        "no dump",
        "none beside it",
        "over",
        "canary",
        "another slot",
        "too late",
        "newer engine",
        "restored",
        "elsewhere",
    ],
)
async def test_nothing_is_done(alone: Alone, change: Callable[[Alone], Any]) -> None:
    await alone.silent()
    change(alone)
    await alone.standing.look()
    assert (alone.done(), alone.bench.journal.stood()) == ({}, {})


@pytest.mark.parametrize(
    ("kind", "left", "acts"),
    [
        (NoticeKind.MAINTENANCE, 3601.0, False),
        (NoticeKind.MAINTENANCE, 3600.0, True),
        (NoticeKind.REBALANCE, 60.0, False),
        (NoticeKind.DRAIN, 7200.0, True),
    ],
)
async def test_a_hint_waits_for_the_engine_though_the_policy_answers_to_it(alone: Alone, kind: NoticeKind, left: float, acts: bool) -> None:
    """Work that is planned for next week takes no worker out of sight because an engine is started anew."""
    stand = msgspec.structs.replace(STAND, kinds=(kind,))
    await alone.silent(msgspec.structs.replace(ORDER, stands=(stand,)))
    alone.bench.node.notices["going"] = msgspec.structs.replace(NOTICE, kind=kind.value, deadline=alone.clock() + left)
    await alone.standing.look()
    assert ("fence" in alone.done()) is acts


# -- notices without a deadline


def undated(alone: Alone, kind: NoticeKind = NoticeKind.PREEMPTION, act: Literal["checkpoint", "fence"] = "checkpoint") -> StandingOrder:
    """The notice has none; what the engine has ordered ahead."""
    alone.bench.node.notices["going"] = msgspec.structs.replace(NOTICE, kind=kind.value, deadline=None)
    holders = STAND.holders if act == "checkpoint" else ()
    return msgspec.structs.replace(ORDER, stands=(msgspec.structs.replace(STAND, kinds=(kind,), act=act, holders=holders),))


@pytest.mark.parametrize("kind", [NoticeKind.PREEMPTION, NoticeKind.DRAIN, NoticeKind.GPU_FAILING, NoticeKind.MAINTENANCE])
async def test_without_a_deadline_an_image_is_brought_to_safety_and_the_worker_serves_on(alone: Alone, kind: NoticeKind) -> None:
    await alone.silent(undated(alone, kind))
    await alone.standing.look()
    assert alone.done() == {"freeze": 1, "thaw": 1, "send": 1}
    assert (alone.bench.state(), alone.bench.serving.registered) == ("running", True)
    stood = alone.stood()
    assert (stood.state, stood.holder, stood.kind, why(ImageId(stood.image or ""))) == ("done", "m", kind, (kind, NEVER))
    alone.clock.now += 5.0
    await alone.standing.look()
    assert alone.done()["freeze"] == 1, "it is done once"


@pytest.mark.parametrize("then", ["nothing", "withdrawn", "restart"])
async def test_without_a_deadline_nobody_is_ever_ended_for_it(alone: Alone, then: str) -> None:
    """An engine takes no node for dead whose end has no time: nothing was promised."""
    await alone.silent(undated(alone))
    await alone.standing.look()
    match then:
        case "withdrawn":
            alone.bench.node.notices.clear()
        case "restart":
            alone.boot()
            alone.standing.recall()
        case _:
            pass
    for seconds in (60.0, 3600.0, 86_400.0, 400 * 86_400.0):
        alone.clock.now += seconds
        await alone.standing.look()
    assert (alone.bench.runtime.running, alone.bench.state(), alone.bench.serving.registered) == (
        alone.bench.runtime.alive,
        "running",
        True,
    )
    assert "unfence" not in alone.done(), "it was never hidden"


async def test_a_notice_that_is_given_a_deadline_has_all_of_it_done(alone: Alone) -> None:
    """Another source of the same event knows when: the notice keeps its name."""
    await alone.silent(undated(alone))
    await alone.standing.look()
    alone.bench.node.notices["going"] = NOTICE
    await alone.standing.look()
    assert alone.done() == {"fence": 1, "freeze": 2, "thaw": 2, "send": 2}
    assert alone.bench.state() == "fenced"
    alone.clock.now = NOW + 120.0
    await alone.standing.look()
    assert alone.bench.runtime.alive == set(), "as it has promised"


async def test_of_two_notices_the_one_with_a_deadline_counts(alone: Alone) -> None:
    order = undated(alone)
    alone.bench.node.notices["later"] = msgspec.structs.replace(NOTICE, id="later")
    await alone.silent(order)
    await alone.standing.look()
    assert (alone.stood().notice, alone.done()["fence"]) == ("later", 1)


@pytest.mark.parametrize("change", ["fence", "gone"])
async def test_without_a_deadline_nothing_is_done_that_isnt_an_image(alone: Alone, change: str) -> None:
    kind = NoticeKind.GONE if change == "gone" else NoticeKind.DRAIN
    await alone.silent(undated(alone, kind, "fence" if change == "fence" else "checkpoint"))
    await alone.standing.look()
    assert alone.done() == {}


# -- workers that aren't to be trusted


async def test_of_a_worker_that_isnt_to_be_trusted_no_image_is_sent_and_nothing_is_promised(alone: Alone) -> None:
    alone.bench.node.change("w", doubt="XID 31")
    await alone.silent()
    await alone.standing.look()
    assert (alone.done(), alone.stood().state, alone.stood().holder) == ({"fence": 1}, "done", None)
    alone.clock.now = NOW + 200.0
    await alone.standing.look()
    assert alone.bench.runtime.alive
    alone.bench.node.notices.clear()


async def test_without_a_deadline_either_nothing_is_done_for_it(alone: Alone) -> None:
    alone.bench.node.change("w", doubt="XID 31")
    await alone.silent(undated(alone))
    await alone.standing.look()
    assert (alone.done(), alone.bench.journal.stood()) == ({}, {})


async def test_nothing_is_done_before_the_silence_has_lasted(alone: Alone) -> None:
    await alone.silent()
    alone.clock.now -= 0.1
    await alone.standing.look()
    assert alone.done() == {}
    alone.clock.now += 0.1
    await alone.standing.look()
    assert alone.done()["send"] == 1


async def test_a_clock_that_is_set_back_gives_an_order_no_more_time(alone: Alone) -> None:
    await alone.silent()
    alone.bench.node.clock = lambda: NOW  # whatever it was before
    alone.clock.now = NOW + 601.0
    await alone.standing.look()
    assert alone.done() == {}
    alone.clock.now = NOW + 600.0
    await alone.standing.look()
    assert alone.done()["send"] == 1


@pytest.mark.parametrize("at", ["fence", "freeze", "send"])
@pytest.mark.parametrize("newer", [False, True], ids=["the same engine", "a newer engine"])
async def test_an_engine_that_comes_back_in_the_middle_has_the_worker(alone: Alone, at: str, newer: bool) -> None:
    bench = alone.bench

    loop = asyncio.get_running_loop()
    epoch = 2 if newer else 1

    def back() -> None:  # in the thread that does the step
        done = threading.Event()
        loop.call_soon_threadsafe(lambda: (bench.journal.raise_epoch(epoch), newer or alone.standing.heard(), done.set()))
        assert done.wait(10)

    await alone.silent()
    bench.faults.at[at] = back
    await alone.standing.look()
    del bench.faults.at[at]
    alone.clock.now += 1.0
    before = alone.done()
    await alone.standing.look()
    assert alone.done() == before, "it goes no further"
    await bench.source.fence(bench.step("move", epoch=epoch))
    await bench.source.freeze(pb.FreezeOrder(order=bench.order("move", epoch=epoch), image="image-move", hold_s=60.0))
    await bench.source.release(bench.step("move", epoch=epoch))
    assert bench.state() == "none"
    alone.clock.now = NOW + 500.0
    await alone.standing.look()
    assert not bench.runtime.alive
    assert alone.stood().state in ("stopped", "done")


async def test_an_agent_that_dies_in_the_middle_goes_on_after_it(alone: Alone) -> None:
    await alone.silent()
    bench = alone.bench
    bench.faults.at["send"] = ZeroDivisionError()
    await alone.standing.look()
    bench.boot()
    await recover(bench.node, bench.destination, wait=lambda _s: None)
    bench.node.notices = {"going": NOTICE}
    del bench.faults.at["send"]
    alone.boot()
    alone.standing.recall()
    await alone.standing.look()
    assert "send" not in alone.done(), "it has just started: an engine may be about to call"
    alone.clock.now += ORDER.silence
    await alone.standing.look()
    assert alone.stood().state == "done"
    assert alone.done() == {"fence": 1, "freeze": 1, "thaw": 1, "send": 1}, "and does nothing twice"


async def test_the_second_node_is_asked_when_the_first_takes_nothing(alone: Alone) -> None:
    await alone.silent()
    refusals = [Rejected(problem())]

    def first() -> None:
        if refusals:
            raise refusals.pop()

    alone.bench.faults.at["send"] = first
    await alone.standing.look()
    assert (alone.stood().state, alone.stood().holder) == ("done", "k")


async def test_what_failed_is_tried_again(alone: Alone) -> None:
    await alone.silent()
    alone.bench.faults.at["begin"] = Rejected(problem("SH802"))
    await alone.standing.look()
    assert (alone.stood().state, alone.stood().code, alone.bench.state()) == ("failed", "SH802", "fenced")
    del alone.bench.faults.at["begin"]
    await alone.standing.look()
    assert alone.stood().state == "failed", "not at once"
    alone.clock.now += AGAIN_S
    await alone.standing.look()
    assert alone.stood().state == "done"


async def test_a_worker_that_cant_be_hidden_is_saved_all_the_same(alone: Alone) -> None:
    await alone.silent()
    alone.bench.faults.at["fence"] = Rejected(problem("SH621"))
    await alone.standing.look()
    assert (alone.stood().state, alone.bench.state()) == ("done", "running")


async def test_what_the_engine_left_in_the_middle_is_saved_too(alone: Alone) -> None:
    bench = alone.bench
    await bench.source.fence(bench.step("move"))
    await alone.silent()
    await alone.standing.look()
    assert alone.stood().state == "done"
    await bench.source.freeze(bench.freeze("move"))  # the engine comes back and goes on
    assert bench.state() == "frozen"


async def test_a_copy_that_stands_still_is_left_to_its_hold(alone: Alone) -> None:
    bench = alone.bench
    await bench.source.fence(bench.step("move"))
    await bench.source.freeze(bench.freeze("move"))
    await alone.silent()
    await alone.standing.look()
    assert alone.stood().code == "SH605"
    assert bench.state() == "frozen"
    alone.clock.now += 60.0
    await bench.holds.expire()
    await alone.standing.look()
    assert (alone.stood().state, bench.runtime.running) == ("done", bench.runtime.alive)


async def test_a_notice_that_is_taken_back_shows_the_worker_again(alone: Alone) -> None:
    await alone.silent()
    await alone.standing.look()
    alone.bench.node.notices.clear()
    await alone.standing.look()
    assert (alone.stood().state, alone.bench.state(), alone.bench.serving.registered) == ("withdrawn", "running", True)


@pytest.mark.parametrize("withdrawn", [False, True])
@pytest.mark.parametrize("lost", [False, True], ids=["image sent", "answer lost"])
async def test_whoever_sent_its_image_away_has_ended_by_the_deadline(alone: Alone, withdrawn: bool, lost: bool) -> None:
    """An engine that hears nothing more may restore the image from then on."""
    await alone.silent()
    if lost:
        alone.bench.faults.at["send"] = Unknown(problem())
    await alone.standing.look()
    assert alone.stood().holder in ("m", "k")
    if withdrawn:
        alone.bench.node.notices.clear()
    alone.clock.now = NOW + 119.9
    await alone.standing.look()
    assert alone.bench.runtime.alive
    alone.clock.now = NOW + 120.0
    alone.standing.heard()  # a call whose answer may be lost proves nothing
    await alone.standing.look()
    assert (alone.bench.runtime.alive, alone.bench.state(), alone.stood().state) == (set(), "none", "ended")


@pytest.mark.parametrize("skew", [-3600.0, 0.0, 3600.0], ids=["behind", "alike", "ahead"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_whoever_an_engine_has_heard_of_lives_on_whatever_its_clock_says(alone: Alone, skew: float, restarts: bool) -> None:
    await alone.silent()
    await alone.standing.look()
    stood = alone.stood()
    issued_at = alone.clock.now + skew
    newer = msgspec.structs.replace(ORDER, epoch=Epoch(2), issued_at=issued_at, heard={stood.operation: stood.at})
    await alone.standing.keep(alone.signed(newer, 2))
    if restarts:
        alone.bench.journal.put_standing(b"")  # it knows what it was told, also if nobody can tell any more by whom
        alone.boot()
        alone.standing.recall()
    alone.clock.now = NOW + 200.0
    await alone.standing.look()
    assert alone.bench.runtime.alive


@pytest.mark.parametrize("heard", [{}, {"another": NOW}, {"it": NOW}], ids=["nothing", "of another", "before its image was sent"])
async def test_an_order_of_an_engine_that_hasnt_heard_of_it_frees_nobody_even_by_a_clock_that_is_ahead(
    alone: Alone, heard: dict[str, float]
) -> None:
    await alone.silent()
    await alone.standing.look()
    told = {alone.stood().operation if name == "it" else OperationId(name): at for name, at in heard.items()}
    await alone.standing.keep(alone.signed(msgspec.structs.replace(ORDER, issued_at=NOW + 60.0, heard=told)))
    alone.clock.now = NOW + 120.0
    await alone.standing.look()
    assert alone.stood().state == "ended"


async def test_an_agent_that_can_read_no_order_after_its_restart_ends_whom_it_sent_away(alone: Alone) -> None:
    await alone.silent()
    await alone.standing.look()
    alone.bench.journal.put_standing(b"")
    alone.boot()
    alone.standing.recall()
    alone.clock.now = NOW + 120.0
    await alone.standing.look()
    assert alone.stood().state == "ended"


async def test_a_worker_that_cant_be_shown_again_is_saved_all_the_same_when_the_next_notice_comes(alone: Alone) -> None:
    await alone.silent()
    await alone.standing.look()
    alone.bench.node.notices = {"next": msgspec.structs.replace(NOTICE, id="next")}
    alone.bench.faults.at["unfence"] = Rejected(problem("SH622"))
    await alone.standing.look()
    assert {s.notice: s.state for s in alone.bench.journal.stood().values()} == {"going": "done", "next": "done"}
    tries = alone.bench.said().count("order begun")
    await alone.standing.look()
    assert alone.bench.said().count("order begun") == tries, "not at once"


async def test_whose_image_reached_nobody_lives_on(alone: Alone) -> None:
    await alone.silent()
    alone.bench.faults.at["send"] = Rejected(problem())
    await alone.standing.look()
    alone.clock.now = NOW + 200.0
    await alone.standing.look()
    assert (alone.bench.runtime.alive == set(), alone.stood().holder) == (False, None)


async def test_whoever_may_have_sent_its_image_away_has_ended_by_the_deadline(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full at the very moment at which it was to be written that it had been sent, and takes the next write."""
    done = Journal.done

    def full(self: Journal, operation: str, step: str, *rest: Any) -> None:
        if step.startswith("send:"):
            raise Stalled(problem("SH610"))
        done(self, operation, step, *rest)

    monkeypatch.setattr(Journal, "done", full)
    await alone.silent(msgspec.structs.replace(ORDER, stands=(msgspec.structs.replace(STAND, holders=STAND.holders[:1]),)))
    await alone.standing.look()
    assert (alone.stood().holder, list(alone.bench.depot.peers)) == ("m", ["m"])
    alone.clock.now = NOW + 200.0
    await alone.standing.look()
    assert alone.bench.runtime.alive == set()


# -- whose word it is


def tampered(message: pb.StandOrder) -> None:
    message.order = message.order.replace(b'"n/0"', b'"n/1"')


def another_key(message: pb.StandOrder) -> None:
    message.key = bytes(32)


def without_chain(message: pb.StandOrder) -> None:
    del message.certificates[:]


def nonsense(message: pb.StandOrder) -> None:
    message.order = b"{}"


@pytest.mark.parametrize("change", [tampered, another_key, without_chain, nonsense])
async def test_an_order_that_isnt_what_the_engine_signed_is_refused(alone: Alone, change: Callable[[pb.StandOrder], None]) -> None:
    message = alone.signed()
    change(message)
    with pytest.raises(Rejected, match="SH612"):
        await alone.standing.keep(message)
    assert alone.bench.journal.standing() is None


async def test_an_order_by_anybody_else_is_refused(alone: Alone, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"SH612 .*doesn't vouch for its signer as the engine"):
        await alone.standing.keep(alone.signed(who="agent-n"))
    issue(tmp_path / "others", [], NOW)
    alone.certs = tmp_path / "others"
    with pytest.raises(Rejected, match=r"SH612 .*doesn't vouch for its signer as the engine"):
        await alone.standing.keep(alone.signed())


async def test_a_key_is_good_for_its_own_epoch_alone(alone: Alone) -> None:
    with pytest.raises(Rejected, match=r"SH612 .*doesn't vouch for its key at epoch 2"):
        await alone.standing.keep(alone.signed(msgspec.structs.replace(ORDER, epoch=Epoch(2)), epoch=1))


async def test_an_order_for_another_node_or_of_an_old_leader_is_refused(alone: Alone) -> None:
    with pytest.raises(Rejected, match=r"SH612 .*it is for m, and this is n"):
        await alone.standing.keep(alone.signed(msgspec.structs.replace(ORDER, node=NodeId("m"))))
    alone.bench.journal.raise_epoch(2)
    with pytest.raises(Rejected, match="SH601"):
        await alone.standing.keep(alone.signed())


async def test_an_order_that_was_changed_on_the_disk_isnt_carried_out(alone: Alone) -> None:
    await alone.silent()
    message = alone.signed()
    tampered(message)
    alone.bench.journal.put_standing(message.SerializeToString())
    alone.boot()
    alone.standing.recall()
    alone.clock.now += ORDER.silence
    await alone.standing.look()
    assert alone.done() == {}
    assert "SH612" in alone.bench.said()


async def test_what_goes_on_breaking_is_said_once_and_tried_again(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, looked = iter([True, True, True, False, True, False]), asyncio.Event()

    async def look() -> None:
        broken = next(breaks, None)
        if broken is None:
            looked.set()
        elif broken:
            raise OSError("Too many open files")

    monkeypatch.setattr(standing, "LOOK_S", 0.0)
    monkeypatch.setattr(alone.standing, "look", look)
    running = asyncio.create_task(alone.standing.run())
    await asyncio.wait_for(looked.wait(), 10)
    running.cancel()
    assert alone.bench.said().count("OSError: Too many open files") == 2, "once each time that it begins"
