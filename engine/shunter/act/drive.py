"""The loop that every kind runs in: one handler a step, and one rule for each way in which an order can fail."""

from collections.abc import Awaitable, Callable, Mapping

from shunter.act.resolve import Action, resolve
from shunter.act.run import Run, Unresolved
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter.model.ids import SlotId
from shunter.model.operation import Step

Handler = Callable[[Run], Awaitable[None]]
_TRIES = 8
"""How often one step is asked for again after its outcome was found out, before the operation is left for later."""


class Machine:
    """The steps of one kind of operation.

    `steps` maps the step that is known to the handler that does what comes next and writes the next step, or the outcome. `committed` are
    the steps from which there is no simple way back: there, `refused` decides what a refusal means. Everywhere else a refusal rolls back.
    """

    def __init__(
        self,
        steps: Mapping[Step, Handler],
        *,
        committed: frozenset[Step],
        refused: Callable[[Run, Problem], Awaitable[None]],
        source: Callable[[Run], SlotId | None],
        destination: Callable[[Run], SlotId | None],
    ) -> None:
        self._steps = steps
        self._committed = committed
        self._refused = refused
        self._source = source
        self._destination = destination

    async def drive(self, run: Run) -> None:
        """Go on until there is an outcome. Raises Unresolved (left active, take it up again later) and Stalled."""
        tries: dict[Step, int] = {}
        while run.record.outcome is None:
            step = run.record.step
            try:
                await self._once(run)
            except Unresolved as left:
                run.note(left.problem)
                raise
            except Unknown as lost:
                run.note(lost.problem)
                tries[step] = tries.get(step, 0) + 1
                if tries[step] > _TRIES:
                    raise Unresolved(lost.problem) from lost
                await run.parts.sleep(run.times.pause * 2 ** (tries[step] - 1))
                await self.settle(run, lost.problem)

    async def _once(self, run: Run) -> None:
        try:
            if self.revocable(run.record.step) and run.record.step is not Step.ROLLING_BACK:
                run.may_go_on()
            await self._steps[run.record.step](run)
        except (Rejected, Retry) as no:
            await self._on_refusal(run, no.problem)

    def revocable(self, step: Step) -> bool:
        """From this step it still can go back to where it was."""
        return step not in self._committed

    async def settle(self, run: Run, why: Problem) -> None:
        """Find out from the journals what happened, and make it durable; nothing is ordered before. Raises Unresolved when that takes
        longer than `settle`: it stays UNKNOWN.
        """
        run.note(why)
        wait = run.waits()
        while True:
            found = resolve(run.record, await run.view(self._source(run)), await run.view(self._destination(run)))
            if found.action is Action.ROLL_BACK:
                run.step(Step.ROLLING_BACK, why)
                return
            if found.action is Action.GO_ON:
                if found.step is not None and found.step is not run.record.step:
                    run.step(found.step)
                else:
                    run.known()
                return
            await wait(why)

    async def _on_refusal(self, run: Run, why: Problem) -> None:
        if run.record.step is Step.ROLLING_BACK:
            raise Unresolved(why)
        if run.record.step in self._committed:
            await self._refused(run, why)
        else:
            run.step(Step.ROLLING_BACK, why)
