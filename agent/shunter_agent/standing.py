"""What this node does by itself when it gets a notice while no engine can be reached: its standing order.

Each worker that the order names is taken out of the router's sight, and an image of it goes to another node; it runs on. Where the notice
has no deadline it isn't taken out of sight, as nobody knows for how long that would be: an image of it is all there is. All of it goes the
way of every order (`orders.carry`), under the epoch of the engine that gave the standing order: guarded, journaled, never done twice, and
refused from the moment when a newer engine was heard of. It starts no copy.

An image that leaves the node so says by its name what for. An engine that hears no more of a preempted node takes it for dead some time
after the deadline, and may restore the image. So sending it is a promise: the worker is ended at the deadline, whatever became of the
notice, unless an engine has said since, in a new standing order, that it knows of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import msgspec
from shunter.model.canon import encode
from shunter.model.errors import Problem, Rejected, ShunterError
from shunter.model.ids import NodeId, NoticeId
from shunter.model.snapshot import NoticeKind
from shunter.model.standing import NEVER, Stand, StandingOrder, Stood, image_of, let_be, operation_of
from shunter.wire import agent_pb2 as pb

from shunter_agent import guard, mandate
from shunter_agent.gpus import boot, gone
from shunter_agent.journal import WorkerRow
from shunter_agent.notices.port import Notice
from shunter_agent.orders.carry import Orders
from shunter_agent.orders.source import Source
from shunter_agent.orders.transfers import Transfers
from shunter_agent.refusals import unknown
from shunter_agent.word import Words

LOOK_S: Final = 0.25
"""Seconds between looks at whether it is time."""
AGAIN_S: Final = 5.0
"""Seconds after which what failed is tried again."""
SKEW_S: Final = 60.0
"""How far the engine's clock may be ahead of this node's."""
_OLD_LEADER: Final = "SH601"
_UNFENCED: Final = "SH621"
"""The refusal to fence a worker that has no control API."""


class EngineBack(Exception):
    """It was heard of."""


class Standing:
    """One per agent. `heard` is called for whatever an engine asks."""

    def __init__(self, orders: Orders, source: Source, transfers: Transfers) -> None:
        self._orders, self._source, self._transfers = orders, source, transfers
        self._node = orders.node
        self._heard_at = self._node.elapsed()
        self._order: StandingOrder | None = None
        self._kept_at = self._heard_at
        self._refused: dict[str, Problem] = {}
        self._again: dict[str, float] = {}
        self._put_off: dict[str, float] = {}
        node = self._node
        self.words = Words(node.journal, node.clock, node.elapsed, node.log.problem, boot())
        """What was told of this node's end."""
        self.words.tell(node.notices)
        node.telling = self.words.tell

    def heard(self) -> None:
        """An engine has called: it can be reached, and decides."""
        self._heard_at = self._node.elapsed()

    async def keep(self, message: pb.StandOrder) -> pb.Done:
        """Take an order in the place of the one before. Raises Rejected SH601 (from an old leader), SH612; Stalled SH610."""
        node = self._node
        order = mandate.check(message, node.settings.tls.ca, node.settings.node, node.clock())
        guard.check_epoch(order.epoch, node.journal.epoch)
        with node.journal.batch():
            node.journal.raise_epoch(order.epoch)
            node.journal.put_standing(message.SerializeToString())
            for stood in node.journal.stood().values():
                if order.heard.get(stood.operation) == stood.at and not stood.heard:
                    node.journal.put_stood(msgspec.structs.replace(stood, heard=True))
        self._order, self._kept_at = order, node.elapsed()
        return pb.Done(at=node.clock(), detail=f"{len(order.stands)} workers")

    def recall(self) -> None:
        """At the agent's start: take up the order that the journal has, if it is still what was signed."""
        kept = self._node.journal.standing()
        if kept is None:
            return
        node = self._node
        try:
            self._order = mandate.check(pb.StandOrder.FromString(kept), node.settings.tls.ca, node.settings.node, node.clock())
        except ShunterError as error:
            node.log.problem(error.problem)

    def reports(self) -> list[bytes]:
        """What was done, for the engine."""
        return [encode(stood) for stood in self._node.journal.stood().values()]

    async def run(self) -> None:
        """Look again and again, until cancelled. What goes wrong is logged, once for as long as it is the same, and tried again."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except ShunterError as error:
                self._log_once("", error.problem)
            except Exception as error:  # a fault of ours must not be the last that was done without an engine
                what = f"what is done without an engine ended with an error that the agent doesn't know: {type(error).__name__}: {error}"
                self._log_once("", unknown("SH699", what, "Report this with the agent's log; it is tried again").problem)
            else:
                self._refused.pop("", None)

    async def look(self) -> None:
        """Do now what is to be done now, all of it."""
        await self._each(self._keep_word, LOOK_S)
        await self._end_what_is_taken_for_dead()
        order = self._order
        if order is None or not self._away(order):
            return
        await self._each(partial(self._take_back, order), AGAIN_S)
        due = list(self._due(order))
        try:
            for stand, notice in due:
                if notice.deadline is not None:
                    await self._carry(order, stand, notice, self._hide)
            for stand, notice in due:
                if stand.act == "checkpoint":
                    await self._carry(order, stand, notice, self._save)
        except EngineBack:
            self._node.log.info("standing order left to the engine, which is back", order=order.id)

    # -- whether it is time

    def _away(self, order: StandingOrder) -> bool:
        """No engine was heard of for long enough, and the order is in force: by time, and by nobody's newer word."""
        node = self._node
        now = node.clock()
        in_time = order.issued_at - SKEW_S <= now <= order.valid_until
        in_time = in_time and node.elapsed() - self._kept_at <= order.valid_until - order.issued_at  # a clock that is set back adds nothing
        return in_time and order.epoch >= node.journal.epoch and node.elapsed() - self._heard_at >= order.silence

    def _due(self, order: StandingOrder) -> Iterator[tuple[Stand, Notice]]:
        """Workers that are still what and where the order says, and the notice that concerns them."""
        for stand in order.stands:
            row = self._node.journal.worker(stand.worker)
            if row is None or (row.incarnation, row.slot) != (stand.incarnation, stand.slot):
                continue
            found = [n for n in self._node.notices.values() if self._concerns(n, stand)]
            if not found or gone(self._node.notices.values(), stand.slot) is not None:
                continue
            first = min(found, key=lambda n: (n.deadline is None, n.deadline or 0.0, n.id))
            if first.deadline is not None or not self._node.doubted(row).doubt:
                yield stand, first

    def _concerns(self, notice: Notice, stand: Stand) -> bool:
        kind = NoticeKind(notice.kind)
        if kind not in stand.kinds or notice.slot not in ("", stand.slot) or notice.canary:
            return False
        return not let_be(kind, notice.deadline, dumpable=notice.dumpable, act=stand.act, now=self._node.clock())

    # -- doing it

    async def _carry(
        self, order: StandingOrder, stand: Stand, notice: Notice, work: Callable[[pb.Order, Stand, Stood], Awaitable[Stood]]
    ) -> None:
        """One part of it, for one worker; what comes of it is durable. Raises EngineBack."""
        node = self._node
        operation = operation_of(stand, order.epoch, NoticeId(notice.id), notice.deadline)
        stood = node.journal.stood().get(operation) or self._begun(order, stand, notice)
        if stood.state in ("done", "stopped", "withdrawn", "ended") or node.elapsed() < self._again.get(operation, float("-inf")):
            return
        node.journal.put_stood(stood)
        row = node.row(stand.worker)
        if row.operation and not self._orders.lock(stand.worker).locked():
            node.part(row.operation, stand.worker)  # nobody is left who would go on with it, unless an engine comes back
        head = pb.Order(operation=operation, epoch=order.epoch, plan=order.id, worker=stand.worker, incarnation=stand.incarnation)
        head.deadline = 0.0 if stood.deadline == NEVER else stood.deadline
        try:
            stood = await work(head, stand, stood)
        except EngineBack:
            self._end(stood, "stopped", detail="an engine was heard of")
            raise
        except ShunterError as error:
            if error.problem.code == _OLD_LEADER:
                self._end(stood, "stopped", error.problem.code, error.problem.what)
                raise EngineBack from error
            self._again[operation] = node.elapsed() + AGAIN_S
            self._end(stood, "failed", error.problem.code, error.problem.what)
            return
        finally:
            node.part(operation, stand.worker)
        node.journal.put_stood(stood)

    def _begun(self, order: StandingOrder, stand: Stand, notice: Notice) -> Stood:
        now = self._node.clock()
        self._node.log.error("no engine can be reached: the standing order is carried out", worker=stand.worker, notice=notice.id)
        return Stood(
            operation=operation_of(stand, order.epoch, NoticeId(notice.id), notice.deadline),
            node=NodeId(self._node.settings.node),
            stand=stand,
            order=order.id,
            epoch=order.epoch,
            commit=order.commit,
            notice=NoticeId(notice.id),
            kind=NoticeKind(notice.kind),
            deadline=NEVER if notice.deadline is None else notice.deadline,
            state="begun",
            began_at=now,
            at=now,
        )

    def _end(self, stood: Stood, state: str, code: str = "", detail: str = "") -> None:
        node = self._node
        stood = node.journal.stood().get(stood.operation, stood)  # with what is known by now of where its image may be
        node.journal.put_stood(msgspec.structs.replace(stood, state=state, at=node.clock(), code=code, detail=detail))
        node.log.error("standing order not done", worker=stood.stand.worker, state=state, code=code, why=detail)

    def _still_away(self) -> None:
        if self._order is None or not self._away(self._order):
            raise EngineBack

    async def _hide(self, head: pb.Order, stand: Stand, stood: Stood) -> Stood:
        """Out of the router's sight: what comes to it from now on would be lost. A worker that can't be hidden is saved all the same."""
        self._still_away()
        try:
            await self._source.fence(pb.StepOrder(order=head))
        except Rejected as error:
            if error.problem.code != _UNFENCED or stand.act == "fence":
                raise
            return msgspec.structs.replace(stood, detail=error.problem.what)
        if stand.act == "fence":
            return msgspec.structs.replace(stood, state="done", at=self._node.clock(), detail="out of the router's sight")
        return stood

    async def _save(self, head: pb.Order, stand: Stand, stood: Stood) -> Stood:
        """An image of it, on the first node that takes it. That it may be there is written down before anything is sent.

        None is made that nobody would be restored from.
        """
        row = self._node.doubted(self._node.row(stand.worker))
        if row.doubt:
            detail = f"no image, as none would be trusted: {row.doubt}"
            return msgspec.structs.replace(stood, state="done", at=self._node.clock(), detail=detail)
        node, image = self._node, image_of(stood.operation, stood.kind, stood.deadline)
        self._still_away()
        await self._source.checkpoint(pb.CheckpointOrder(order=head, image=image))
        doubt, last = stood.holder, None
        for holder in stand.holders:
            self._still_away()
            stood = msgspec.structs.replace(stood, image=image, holder=holder.node, at=node.clock(), heard=False)
            node.journal.put_stood(stood)
            try:
                reply = await self._transfers.send(
                    pb.SendOrder(order=head, image=image, to=pb.Peer(node=holder.node, address=holder.address))
                )
            except ShunterError as error:
                if error.problem.code == _OLD_LEADER:
                    raise
                doubt, last = (doubt if isinstance(error, Rejected) else holder.node), error
                stood = msgspec.structs.replace(stood, holder=doubt)  # there is nothing of it, unless nobody can tell
                node.journal.put_stood(stood)
                continue
            return msgspec.structs.replace(
                stood, state="done", at=node.clock(), detail=f"{reply.bytes_sent} bytes in {reply.send_s:.2f} s", code=""
            )
        if last is not None:
            raise last
        return msgspec.structs.replace(stood, state="done", at=node.clock(), image=image, detail="no other node was named to hold it")

    async def _each(self, work: Callable[[Stood], Awaitable[None]], again_s: float) -> None:
        """With all that was done. What goes wrong with one keeps nothing else from being done; it is tried again in `again_s` seconds."""
        node = self._node
        for operation, stood in tuple(node.journal.stood().items()):
            if node.elapsed() < self._put_off.get(operation, float("-inf")):
                continue
            try:
                await work(stood)
            except ShunterError as error:
                self._put_off[operation] = node.elapsed() + again_s
                self._log_once(operation, error.problem)
            else:
                self._refused.pop(operation, None)

    async def _keep_word(self, stood: Stood) -> None:
        """End a worker whose image was sent away under a deadline that is over."""
        node = self._node
        row = node.journal.worker(stood.stand.worker)
        free = stood.kind is not NoticeKind.PREEMPTION or stood.holder is None or stood.heard or stood.state == "ended"
        if free or row is None or row.incarnation != stood.stand.incarnation or node.clock() < stood.deadline:
            return
        head = pb.Order(
            operation=stood.operation, epoch=node.journal.epoch, plan=stood.order, worker=row.spec.worker, incarnation=row.incarnation
        )
        if row.operation and not self._orders.lock(row.spec.worker).locked():
            node.part(row.operation, row.spec.worker)
        await self._source.retire(pb.StepOrder(order=head))
        node.journal.put_stood(msgspec.structs.replace(stood, state="ended", at=node.clock()))
        node.log.error("worker ended at the deadline", worker=row.spec.worker, image=stood.image or "", holder=stood.holder or "")

    async def _end_what_is_taken_for_dead(self) -> None:
        """Workers that an engine may soon restore elsewhere, as it was told that this node ends and can't know better: see `word`."""
        node, word = self._node, self.words.due()
        for row in node.journal.workers().values() if word is not None else ():
            worker, process = row.spec.worker, row.process
            # its process, too: brought back from an older image, or started anew in its pod, it may have the same incarnation again
            about = f"word-{worker}-{row.incarnation}-{process.pid}-{process.started}"
            if not (row.incarnation or node.journal.may_be_elsewhere(worker)) or node.elapsed() < self._put_off.get(about, float("-inf")):
                continue
            if row.operation and not self._orders.lock(worker).locked():
                node.part(row.operation, worker)
            head = pb.Order(operation=about, epoch=node.journal.epoch, worker=worker, incarnation=row.incarnation)
            try:
                await self._source.retire(pb.StepOrder(order=head))
            except ShunterError as error:  # what stands still goes back first
                self._put_off[about] = node.elapsed() + LOOK_S
                self._log_once(about, error.problem)
                continue
            current = next((one for one in self.words.open if word is not None and one.notice == word.notice), None)
            if current is not None:
                self.words.ended(current, worker)
            node.log.error("worker ended: an engine may take this node for dead", worker=worker, notice=word.notice if word else "")

    async def _take_back(self, order: StandingOrder, stood: Stood) -> None:
        """Show a worker again whose notice was taken back before its deadline, as long as nobody else can."""
        node = self._node
        row = node.journal.worker(stood.stand.worker)
        over = stood.state in ("withdrawn", "ended") or stood.epoch != order.epoch or node.clock() >= stood.deadline
        over = over or stood.deadline == NEVER  # nobody was hidden for it
        if over or stood.notice in node.notices or row is None or not _hidden(row, stood):
            return
        head = pb.Order(operation=stood.operation, epoch=order.epoch, plan=order.id, worker=row.spec.worker, incarnation=row.incarnation)
        await self._source.unfence(pb.StepOrder(order=head))
        node.journal.put_stood(msgspec.structs.replace(stood, state="withdrawn"))

    def _log_once(self, about: str, problem: Problem) -> None:
        if self._refused.get(about) != problem:
            self._refused[about] = problem
            self._node.log.problem(problem)


def _hidden(row: WorkerRow, stood: Stood) -> bool:
    """The worker is out of the router's sight, and only because of this."""
    return row.state == "fenced" and row.incarnation == stood.stand.incarnation and row.operation in ("", stood.operation)
