"""Engine, agent and link come and go in any order around a standing order: never two alive, never none that can come back."""

import asyncio
import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import msgspec
from agent_fakes import SPEC, Bench, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.app.certs import issue
from shunter.app.settings import TlsSettings
from shunter.app.standing import Signer
from shunter.model.errors import Rejected, ShunterError, Unknown
from shunter.model.ids import Commit, Digest, Epoch, ImageId, Incarnation, NodeId, PolicyName, SlotId, WorkerId
from shunter.model.snapshot import NoticeKind
from shunter.model.standing import Holder, Stand, StandingOrder, taken_by, why
from shunter.wire import agent_pb2 as pb
from shunter_agent.notices.port import Notice
from shunter_agent.recovery import recover
from shunter_agent.settings import TlsSettings as AgentTls
from shunter_agent.standing import LOOK_S, Standing

NOW, SILENCE, HOLD = 1000.0, 10.0, 20.0
STEPS = 50


@cache
def authority() -> Path:
    """One for all stories."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    issue(folder, [], NOW)
    return folder


class Node:
    """One agent with one worker, and an engine that reaches it, or not."""

    def __init__(self, folder: Path, dice: Random) -> None:
        self.folder, self.dice = folder, dice
        certs = authority()
        self.tls = TlsSettings(ca=certs / "ca.pem", cert=certs / "engine.pem", key=certs / "engine.key")
        self.bench = Bench(folder)
        self.bench.settings = msgspec.structs.replace(self.bench.settings, tls=AgentTls(ca=self.tls.ca, cert=folder, key=folder))
        self.bench.boot()
        self.bench.node.networks["w"] = self.bench.runtime.network(SPEC)
        self.epoch, self.number, self.answered_at = 1, 0, NOW
        self.skew = dice.choice([0.0, 0.0, 15.0, -15.0, 40.0, -40.0])
        """How far the engine's clock is ahead."""
        self.known: set[str] = set()
        """Operations of which the engine knows by the node that their image was sent."""
        self.notice: Notice | None = None
        self.loop = asyncio.get_running_loop()
        self.standing = Standing(self.bench.orders, self.bench.source, self.bench.transfers)

    @property
    def now(self) -> float:
        return self.bench.clock.now

    # -- what happens

    async def pass_time(self) -> None:
        """Agents look at their holds and their standing order all the time, so also right before anything else."""
        self.bench.clock.now += self.dice.choice([LOOK_S, 1.0, 4.0, SILENCE, 30.0])
        await self.bench.holds.expire()
        await self.look()

    async def look(self) -> None:
        with contextlib.suppress(ShunterError):
            await self.standing.look()

    async def notice_comes_or_goes(self) -> None:
        gone = self.notice is not None and self.dice.random() < 0.5
        self.number += 1
        deadline = self.dice.choice([None, self.now + 15.0, self.now + 60.0])
        if not gone and self.notice is not None and self.notice.deadline is None:  # another source of the same event knows when
            self.notice = msgspec.structs.replace(self.notice, deadline=deadline)
        else:
            self.notice = None if gone else Notice(id=f"n{self.number}", kind="preemption", seen_at=self.now, deadline=deadline)
        self.bench.node.notices = {} if self.notice is None else {self.notice.id: self.notice}

    async def engine_gives_an_order_ahead(self) -> None:
        """It has heard of the node in the same tick."""
        row = self.bench.journal.worker("w")
        stands = () if row is None else (self.stand(row.incarnation),)
        told = [stood for stood in self.bench.journal.stood().values() if stood.holder is not None]
        at = self.now + self.skew
        order = StandingOrder(
            node=NodeId("n"), epoch=Epoch(self.epoch), issued_at=at, valid_until=at + 600, silence=SILENCE,
            commit=Commit("c"), policy_set=Digest("p"), stands=stands, heard={s.operation: s.at for s in told if not s.heard},
        )  # fmt: skip
        self.answered_at = at
        self.known |= {s.operation for s in told}
        self.standing.heard()
        await self.standing.keep(Signer(self.tls, Epoch(self.epoch)).sign(order))

    @staticmethod
    def stand(incarnation: int) -> Stand:
        holders = (Holder(node=NodeId("m"), address="m:1"), Holder(node=NodeId("k"), address="k:1"))
        return Stand(
            worker=WorkerId("w"), incarnation=Incarnation(incarnation), slot=SlotId("n/0"), act="checkpoint",
            policy=PolicyName("p"), kinds=(NoticeKind.PREEMPTION,), holders=holders,
        )  # fmt: skip

    async def engine_asks_and_its_answer_is_lost(self) -> None:
        self.standing.heard()

    async def engine_moves_it(self) -> None:
        """Some way into a move under its epoch, answers included or not; rarely to the end."""
        self.number += 1
        name, bench = f"move-{self.number}", self.bench
        order = bench.order(name, epoch=self.epoch)
        freeze = pb.FreezeOrder(order=order, image=f"image-{name}", to=pb.Peer(node="d", address="d:1"), hold_s=HOLD)
        step = pb.StepOrder(order=order)
        steps = [
            lambda: bench.source.fence(step),
            lambda: bench.source.freeze(freeze),
            lambda: bench.source.thaw(step) if self.dice.random() < 0.6 else bench.source.release(step),
            lambda: bench.source.unfence(step),
        ]
        for one in steps[: self.dice.randint(1, len(steps))]:
            self.standing.heard()
            try:
                await one()
            except ShunterError:
                return

    async def another_engine_leads(self) -> None:
        self.epoch += 1
        if self.dice.random() < 0.5:
            self.standing.heard()
            self.bench.journal.raise_epoch(self.epoch)

    async def agent_dies(self) -> None:
        for copy in self.bench.node.frozen.values():  # whoever stands still runs on
            self.bench.runtime.running.add(self.bench.node.row("w").process)
            del copy
        self.bench.boot()
        await recover(self.bench.node, self.bench.destination, wait=lambda _s: None)
        self.bench.node.notices = {} if self.notice is None else {self.notice.id: self.notice}
        self.standing = Standing(self.bench.orders, self.bench.source, self.bench.transfers)
        self.standing.recall()

    async def something_breaks_or_is_mended(self) -> None:
        self.bench.faults.at.clear()
        if self.dice.random() < 0.7:
            at = self.dice.choice(["fence", "begin", "freeze", "commit", "send", "unfence"])
            broken: list[Exception | Callable[[], None]] = [Rejected(problem())]
            if at in ("send", "unfence"):
                broken.append(Unknown(problem()))
            if at in ("fence", "freeze", "send"):
                broken += [self.engine_is_back] * 2
            self.bench.faults.at[at] = self.dice.choice(broken)

    def engine_is_back(self) -> None:
        """In the middle of a step, which is done in a thread."""
        self.loop.call_soon_threadsafe(self.bench.journal.raise_epoch, self.epoch)
        self.loop.call_soon_threadsafe(self.standing.heard)

    # -- what holds

    def check(self) -> None:
        """An engine takes a node for dead 5 s and a hold after its deadline: nothing that stands still can come to life again then."""
        bench = self.bench
        alive = bool(bench.runtime.alive)
        for image in self.sent():
            noticed = why(image)  # type: ignore[arg-type]
            facts = bench.depot.whole.get(image)
            taken_at = facts.taken_at if facts else 0.0
            believed = noticed is not None and taken_at >= self.answered_at + 5.0 and taken_by(ImageId(image)) not in self.known
            may_be_restored = believed and noticed is not None and self.now > noticed[1] + HOLD + 5.0
            assert not (alive and may_be_restored), f"alive at {self.now}, and the engine may restore {image}"
        images = {i for sent in bench.depot.peers.values() for i in sent} | set(bench.depot.whole)
        assert alive or images, "nothing could bring it back"

    def sent(self) -> set[str]:
        """Whole on another node, or perhaps so."""
        sent = {i for node, images in self.bench.depot.peers.items() if node != "d" for i in images}
        return sent | {str(s.image) for s in self.bench.journal.stood().values() if s.holder is not None}


async def story(seed: int, folder: Path) -> set[str]:
    dice = Random(seed)
    node = Node(folder, dice)
    await node.engine_gives_an_order_ahead()
    happens = [
        *[node.pass_time] * 5,
        *[node.notice_comes_or_goes] * 2,
        *[node.something_breaks_or_is_mended] * 2,
        node.engine_gives_an_order_ahead,
        node.engine_asks_and_its_answer_is_lost,
        node.engine_moves_it,
        node.another_engine_leads,
        node.agent_dies,
    ]
    for _ in range(STEPS):
        with contextlib.suppress(ShunterError):
            await dice.choice(happens)()
        await node.bench.holds.expire()
        await node.look()
        node.check()
    await node.bench.node.finish_background()
    states = {stood.state for stood in node.bench.journal.stood().values()}
    node.bench.journal.close()
    return states


SEEN: set[str] = set()


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_never_two_alive_and_never_none_that_can_come_back(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        SEEN.update(asyncio.run(story(seed, Path(folder))))


def test_the_stories_come_to_every_end() -> None:
    for seed in range(40):
        with tempfile.TemporaryDirectory() as folder:
            SEEN.update(asyncio.run(story(seed, Path(folder))))
        if {"done", "failed", "stopped", "withdrawn", "ended"} <= SEEN:
            return
    raise AssertionError(f"only {SEEN}")
