"""The way of every order: guard, journal `begun`, effect, journal `done`. One effect at a time per worker; none is done twice."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

import msgspec
from google.protobuf.message import Message
from shunter.model.errors import Rejected, ShunterError, Stalled, Unknown

from shunter_agent import guard
from shunter_agent.guard import Asked
from shunter_agent.node import Node
from shunter_agent.refusals import retry, unknown

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Outcome(Generic[M]):
    """A step's answer, and what becomes durable together with it."""

    reply: M
    write: Callable[[], None] = lambda: None
    detail: str = ""


Effect = Callable[[], Awaitable[Outcome[M]]]
OWED_S: Final = 1.0
"""Seconds between tries to write an answer that the journal didn't take, and that somebody waits for."""
KEEP_S: Final = 30 * 86400.0
"""How long the journal remembers operations that have ended: far longer than an engine could come back with one."""


class Orders:
    """Carries orders out on a node. An order whose caller goes away is carried out all the same."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._doing: dict[str, str] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[Message]] = {}
        self._queued: set[asyncio.Task[Message]] = set()
        """Those that wait for their turn."""
        self._closed = False

    def lock(self, subject: str) -> asyncio.Lock:
        """Held while something is being done to the subject: a worker, or an image."""
        return self._locks.setdefault(subject, asyncio.Lock())

    async def carry_out(self, step: str, asked: Asked, kind: type[M], effect: Effect[M], image: str = "") -> M:
        """Do a step, or answer what it was answered before. Raises what the guard and the effect raise.

        A step that is about a whole image alone names it: it leaves the worker free, whose hold may have to be ended meanwhile.
        """
        node, subject = self.node, f"image {image}" if image else asked.worker
        key = (asked.operation, step)
        while True:
            self._still_takes_orders()
            guard.check_head(asked, node.seen(asked))
            node.journal.raise_epoch(asked.epoch)
            joined = self._tasks.get(key)
            task = joined or self._begin(step, asked, kind, effect, subject)
            try:
                reply = await asyncio.shield(task)
            except Rejected as error:
                if joined is None or error.problem.code != guard.OLD_LEADER:
                    raise
                continue  # what this was joined to was an older leader's, and came to nothing when its turn came
            assert isinstance(reply, kind)
            return reply

    def _begin(self, step: str, asked: Asked, kind: type[M], effect: Effect[M], subject: str) -> "asyncio.Task[Message]":
        other = self._doing.get(subject, asked.operation)
        if other != asked.operation:
            about = subject.removeprefix("image ")
            raise retry("SH605", f"operation {other} is at work on it", "Wait until that operation has ended", about)
        key = (asked.operation, step)
        task = self._tasks[key] = asyncio.create_task(self._locked(step, asked, kind, effect, subject))
        task.add_done_callback(lambda done: self._over(key, done))
        return task

    async def close(self) -> None:
        """Take no more orders, and wait for those that are being carried out. One that waits for its turn gives up: what the node keeps on
        trying (see `recovery`) may have the worker for ever, and goes on having it, so that nobody takes its copy for one that was left.
        """
        self._closed = True
        for task in tuple(self._queued):
            task.cancel()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    def _still_takes_orders(self) -> None:
        if self._closed:
            raise retry("SH607", "the agent is about to end", "Order it again once the agent is back")

    def _over(self, key: tuple[str, str], done: asyncio.Task[Message]) -> None:
        self._tasks.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen, also when every caller has gone away

    async def _its_turn(self, lock: asyncio.Lock) -> None:
        """Wait for the lock. Raises Retry SH607 when the agent is about to end meanwhile."""
        self._still_takes_orders()
        task: asyncio.Task[Message] | None = asyncio.current_task()
        assert task is not None
        self._queued.add(task)
        try:
            await lock.acquire()
        except asyncio.CancelledError:
            self._still_takes_orders()
            raise
        finally:
            self._queued.discard(task)

    async def _locked(self, step: str, asked: Asked, kind: type[M], effect: Effect[M], subject: str) -> Message:
        lock = self.lock(subject)
        await self._its_turn(lock)
        try:
            node, seen = self.node, self.node.seen(asked)
            reply = guard.answered(step, seen)
            if reply is not None:
                node.log.info("order repeated", operation=asked.operation, step=step, worker=asked.worker)
                return kind.FromString(reply)
            guard.check_head(asked, seen)  # again: it may have waited for its turn for longer than its leader led
            guard.check_step(step.partition(":")[0], asked, seen)
            self._doing[subject] = asked.operation
            try:
                return await self._do(step, asked, effect)
            finally:
                self._doing.pop(subject, None)
                node.spoken[asked.worker] = node.elapsed()
        finally:
            lock.release()

    async def _do(self, step: str, asked: Asked, effect: Effect[M]) -> Message:
        node, journal = self.node, self.node.journal
        with journal.batch():
            journal.begin(asked.operation, step, asked.worker, node.clock())
            if step in guard.AT_SOURCE or step == "unfence":
                node.change(asked.worker, operation=asked.operation, epoch=asked.epoch, begun=True)
        node.log.info("order begun", operation=asked.operation, step=step, worker=asked.worker, epoch=asked.epoch)
        outcome: Outcome[M] | None = None
        try:
            outcome = await effect()
            self._write(step, asked, outcome)
        except (Unknown, Stalled) as error:  # stalled on the way: a refusal would say that nothing was done
            node.log.problem(error.problem, operation=asked.operation, step=step, worker=asked.worker)
            self._broken(step, asked)
            if outcome is not None and step == "resume":
                node.keep(asyncio.create_task(self._write_late(step, asked, outcome), name=f"answer of {step} {asked.operation}"))
            raise Unknown(error.problem) from error
        except ShunterError as error:
            self._failed(step, asked, error)
            raise
        except Exception as error:
            self._broken(step, asked)
            node.log.error(
                "order broke", operation=asked.operation, step=step, worker=asked.worker, error=f"{type(error).__name__}: {error}"
            )
            raise unknown(
                "SH699",
                f"{step} ended with an error that the agent doesn't know: {type(error).__name__}",
                "Ask the agent's journal what there is of the worker, and report this with the agent's log",
                asked.worker,
            ) from error
        self._told(step, asked, outcome)
        return outcome.reply

    def _write(self, step: str, asked: Asked, outcome: Outcome[M]) -> None:
        node, journal = self.node, self.node.journal
        with journal.batch():
            outcome.write()
            journal.done(asked.operation, step, asked.worker, node.clock(), outcome.reply.SerializeToString(), outcome.detail)
            node.settle(asked.operation, asked.worker)
            self._part(step, asked)

    def _told(self, step: str, asked: Asked, outcome: Outcome[M]) -> None:
        self.node.log.info("order done", operation=asked.operation, step=step, worker=asked.worker, detail=outcome.detail)
        self.node.step_event(asked.operation, step)

    async def _write_late(self, step: str, asked: Asked, outcome: Outcome[M]) -> None:
        """A copy that runs and has been probed, and of which the journal says that its resume was begun: an engine waits for the answer,
        and nobody but us can give it. Unless something else became of the worker meanwhile.
        """
        journal = self.node.journal
        while True:
            await asyncio.sleep(OWED_S)
            async with self.lock(asked.worker):
                try:
                    entry, row = journal.entry(asked.operation, step), journal.worker(asked.worker)
                    if entry is None or entry.state != "begun" or row is None or row.operation != asked.operation:
                        return
                    self._write(step, asked, outcome)
                except Stalled:
                    continue
                self._told(step, asked, outcome)
                return

    def _part(self, step: str, asked: Asked) -> None:
        """Let go of a worker for whose operation this may have been the last order."""
        if step in guard.LAST:
            self.node.part(asked.operation, asked.worker)

    def _broken(self, step: str, asked: Asked) -> None:
        try:
            self._part(step, asked)
        except Stalled as error:  # a newer leader takes the worker over, or a restart does
            self.node.log.problem(error.problem, operation=asked.operation, step=step, worker=asked.worker)

    def _failed(self, step: str, asked: Asked, refused: ShunterError) -> None:
        journal, problem = self.node.journal, refused.problem
        try:
            with journal.batch():
                journal.failed(asked.operation, step, asked.worker, self.node.clock(), problem)
                self.node.settle(asked.operation, asked.worker)
                self._part(step, asked)
        except Stalled as error:  # the refusal is true all the same; the step just stays open
            self.node.log.problem(error.problem, operation=asked.operation, step=step, worker=asked.worker)
        self.node.log.problem(
            msgspec.structs.replace(problem, subject=problem.subject or asked.worker), operation=asked.operation, step=step
        )
