"""Who applies an exact plan: hand it to the engine that leads, or lead oneself until it is carried out, and follow its operations.

There is one way in either case: the plan goes into the inbox, whoever leads looks at it once, and what becomes of it is read in the store.
Who leads is there for the nodes that go, too: what is involuntary is decided meanwhile. An engine that starts is made way for.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from shunter.act.store import Store, looked_at
from shunter.app.engine import Engine
from shunter.app.exact import ExactPlan
from shunter.app.handover import OTHER_LEADS, applying, wanted
from shunter.app.inbox import Answer, Request, Ticket
from shunter.app.news import news
from shunter.app.policies import PolicyFeed
from shunter.app.settings import Settings
from shunter.app.sources import source_of
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord
from shunter.model.snapshot import Fleet
from shunter.report.marks import Marks

PAUSE_S: Final = 0.1
"""Between two looks for news."""
ANSWER_S: Final = 120.0
"""How long an engine that leads may take to look at a plan: it does each tick, and makes its decision again before."""
_AGAIN_S: Final = 2.0
"""Between two tries to lead, while somebody else does."""
_PASSED_S: Final = 10.0
"""How long an engine for which we made way may take to lead, before we do again."""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it: `answer` None: it was taken back before an engine looked at it. `records` as far as they are known."""

    answer: Answer | None
    records: tuple[OperationRecord, ...] = ()


async def apply(
    settings: Settings,
    exact: ExactPlan,
    by: str,
    *,
    clock: Callable[[], float],
    stop: asyncio.Event,
    on_step: Callable[[OperationRecord, bool], None] = lambda _record, _pretend: None,
    on_problem: Callable[[Problem], None] = lambda _problem: None,
) -> Applied:
    """Carry the plan out, once, and return when its operations are over, or `stop` is set: what was begun then goes on with the engine.

    `by` says who ordered it, for the audit. `on_step` is told each step of each operation, and whether it only pretends. Raises Retry SH959
    when the plan can't be handed over and SH964 when an engine leads but doesn't look at it; what an engine raises that can't start.
    """
    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    ticket = Ticket.submit(settings.state, Request(by=by, at=clock(), exact=exact))
    leading = _Leading(settings, clock, on_problem)
    try:
        answer = await _answered(ticket, leading, stop)
        if answer is None or answer.problems:
            await _seen_through(settings.state, leading, stop)
            return Applied(answer=answer)
        leading.hurry()
        return Applied(answer=answer, records=await _followed(settings.state, exact, leading, stop, on_step))
    finally:
        await leading.end()
        ticket.withdraw()  # whatever stopped us: nobody is to carry it out later, unseen, if it wasn't looked at yet
        ticket.forget()


async def _answered(ticket: Ticket, leading: "_Leading", stop: asyncio.Event) -> Answer | None:
    deadline: float | None = None
    loop = asyncio.get_running_loop()
    while (answer := ticket.answer()) is None:
        leading.keep()
        if leading.leads:
            deadline = None
        elif deadline is None:
            deadline = loop.time() + ANSWER_S
        late = deadline is not None and loop.time() > deadline
        if (stop.is_set() or late) and ticket.withdraw():
            if stop.is_set():
                return None
            raise Retry(_unanswered(ticket, elected=leading.elected))
        await asyncio.sleep(PAUSE_S)
    return answer


def _unanswered(ticket: Ticket, *, elected: bool) -> Problem:
    remedy = "See whether it hangs: `shunter status`"
    if elected:
        remedy = f"Run this with the state folder of the engine that holds the Lease (SH554 says which). {remedy}"
    return Problem(
        code="SH964",
        what=f"the engine that leads hasn't looked at the plan within {ANSWER_S:g} s; nothing was done",
        remedy=remedy,
        subject=ticket.name,
    )


async def _followed(
    state: Path, exact: ExactPlan, leading: "_Leading", stop: asyncio.Event, on_step: Callable[[OperationRecord, bool], None]
) -> tuple[OperationRecord, ...]:
    told: dict[OperationId, int] = {}
    ids = [operation.id for operation in exact.operations]
    with contextlib.closing(Store(state / "engine.db", read_only=True)) as store:
        remembered = store.load_fleet()
        marks = Marks(remembered.fleet if remembered else Fleet())
        while True:
            records = [record for one in ids if (record := store.get(one)) is not None]
            for step in news(records, told):
                on_step(step, marks.pretends(step.planned))
            over = all(record.outcome is not None for record in records)
            if stop.is_set() or (over and not _is_needed(leading, store)):
                return tuple(records)
            leading.keep()
            await asyncio.sleep(PAUSE_S)


def _is_needed(leading: "_Leading", store: Store) -> bool:
    """One that leads goes on until nothing is under way: it has taken up what an earlier engine left, too, and what others have ordered."""
    return leading.leads and any(record.problem is None and record.outstanding is None for record in store.active())


async def _seen_through(state: Path, leading: "_Leading", stop: asyncio.Event) -> None:
    """What was begun isn't left half-way by one that leads and is refused: of two that order the same plan, that may be the one."""
    with looked_at(state / "engine.db") as store:
        while store is not None and _is_needed(leading, store) and not stop.is_set():
            leading.keep()
            await asyncio.sleep(PAUSE_S)


class _Leading:
    """An engine of our own, as long as no other leads. It decides nothing but, once it is told to hurry, what is involuntary."""

    def __init__(self, settings: Settings, clock: Callable[[], float], on_problem: Callable[[Problem], None]) -> None:
        self._settings = msgspec.structs.replace(settings, listen="")
        self.elected = settings.cluster is not None
        self._clock, self._on_problem = clock, on_problem
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next = 0.0
        self._refused = False
        self._engine: Engine | None = None
        self._hurries = False
        self._said = contextlib.ExitStack()

    def hurry(self) -> None:
        """The plan was accepted: from now on decide what is involuntary. Before, an `apply` that is refused does nothing at all."""
        self._hurries = True
        if self._engine is not None:
            self._engine.hurries = True

    @property
    def leads(self) -> bool:
        """Ours does, or is about to find out."""
        return self._task is not None and not self._task.done() and not self._refused

    def keep(self) -> None:
        """Try to lead if nobody seems to, and make way for an engine that waits. Raises what keeps an engine from starting, but for another
        that leads. Where a Lease says who leads, it isn't for us to say: the plan is only handed over.
        """
        if self.elected:
            return
        if self._task is not None and self._task.done():
            self._ended(self._task)
        if self._task is not None and not self._stop.is_set() and wanted(self._settings.state):
            self._stop.set()
        if self._task is None and asyncio.get_running_loop().time() >= self._next:
            self._said.enter_context(applying(self._settings.state))
            feed = PolicyFeed(source_of(self._settings.policies, self._settings.state / "policies.git"), self._clock)
            engine = Engine(self._settings, feed, clock=self._clock, on_problem=self._on_problem, decides=False)
            engine.hurries, self._engine = self._hurries, engine
            self._task = asyncio.create_task(engine.run(self._stop), name="engine")

    async def end(self) -> None:
        """Let another lead. What stopped ours is raised where it was looked for, not here."""
        self._stop.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._said.close()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """It made way, or another leads: look again later."""
        self._task = self._engine = None
        self._said.close()
        passed = self._stop.is_set()
        self._refused = self._other_leads(task) or passed
        self._next = asyncio.get_running_loop().time() + (_PASSED_S if passed else _AGAIN_S)
        if passed:
            self._stop = asyncio.Event()
            self._on_problem(
                Problem(
                    code="SH965",
                    what="an engine has started and goes on with the plan",
                    remedy="Nothing to do: this command follows it",
                    subject=str(self._settings.state),
                )
            )

    @staticmethod
    def _other_leads(task: "asyncio.Task[None]") -> bool:
        error = task.exception()
        if isinstance(error, Rejected) and error.problem.code == OTHER_LEADS:
            return True
        if error is not None:
            raise error
        return False
