"""The world as it is: ask every agent and Prometheus at once, and make a snapshot of the answers.

Agents that don't answer in time are unreachable for this snapshot, and metrics that don't come are missing: neither holds the others up.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from shunter.app.aside import Aside
from shunter.model.errors import Problem, ShunterError
from shunter.model.ids import NodeId, WorkerId
from shunter.model.policy import MetricInput, PolicySet
from shunter.model.snapshot import Fleet, Notice, Samples
from shunter.model.view import NodeView
from shunter.observe.catalog import Catalog
from shunter.observe.inventory import Inventory, merge
from shunter.observe.prometheus import Client
from shunter.observe.sample import sample

HOLD_MARGIN_S = 5.0
"""What is added to the agents' hold before a silent node counts as dead."""
GONE_TICKS = 6.0
"""And in any case so many ticks: a node has to hear from us twice before it knows that we have heard from it."""
VIEW_TIMEOUT_S = 2.0
"""An agent that takes longer is unreachable for this snapshot."""
_AT_ONCE: Final = 50
"""So many are asked in one step of the loop."""
_REST_S: Final = 0.002
"""Between looks whether the next may be asked, while something can't wait."""


def gone_after(hold: float, tick: float) -> float:
    """For how many seconds a node whose preemption is due must be silent to be taken for dead."""
    return max(hold + HOLD_MARGIN_S, GONE_TICKS * tick)


class Viewed(Protocol):
    """What is asked of an agent here."""

    async def view(self) -> NodeView:
        """Its node as it is. Raises ShunterError."""
        ...


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered from the round before, and of the engine's own doing, so that a missing answer isn't a missing worker.

    `ended` are workers that operations ended on purpose; `busy` those with an operation under way.
    """

    fleet: Fleet | None = None
    notices: tuple[Notice, ...] = ()
    ended: frozenset[WorkerId] = frozenset()
    busy: frozenset[WorkerId] = frozenset()
    gone_after: float = 65.0
    """How long a preempted node must be silent after its deadline to be taken for dead, in seconds: longer than any hold, so that nothing
    of it can come to life again unseen."""
    silent: Mapping[NodeId, float] | None = None
    """For how many seconds nodes have been silent, as `app.silence` measures it; None: nobody has listened for long."""
    namesakes: Mapping[WorkerId, frozenset[NodeId]] = {}
    """As the round before has found them."""


class World:
    """Takes snapshots. Remembers nothing itself: memory goes in and out."""

    def __init__(
        self,
        agents: Mapping[NodeId, Viewed],
        metrics: Client,
        catalog: Catalog,
        aside: Aside | None = None,
        told: Callable[[Sequence[NodeView]], None] = lambda _views: None,
        join: Callable[[Fleet], Fleet] = lambda fleet: fleet,
        bare: Callable[[Fleet], Fleet] = lambda fleet: fleet,
        more: Callable[[Samples, float], Samples] = lambda samples, _at: samples,
    ) -> None:
        """What takes long is done `aside`, where `metrics` then belongs; None: where it is called. `told` gets all answers of a round.
        `join` adds to the fleet what others know of it, and `bare` takes that away again; `more` adds to the samples of a time.
        """
        self._told, self._join, self._bare, self._more = told, join, bare, more
        self._agents, self._metrics, self._catalog = agents, metrics, catalog
        self._aside = aside or Aside()
        self.unreachable: dict[NodeId, Problem] = {}
        """Why nodes didn't answer in the last round."""

    async def look(self, memory: Memory, now: float) -> Inventory:
        """Nodes, workers, images and notices at `now` (seconds since the epoch)."""
        nodes = tuple(self._agents)
        asked: list[asyncio.Task[NodeView | Problem]] = []
        try:
            for begin in range(0, len(nodes), _AT_ONCE):  # so that a notice needn't wait until all are asked
                asked += [asyncio.create_task(self._view(node)) for node in nodes[begin : begin + _AT_ONCE]]
                await asyncio.sleep(0)
                while not self._aside.goes_on:
                    await asyncio.sleep(_REST_S)
            answers = await asyncio.gather(*asked)
        finally:
            for task in asked:
                task.cancel()
        views = [answer for answer in answers if isinstance(answer, NodeView)]
        self.unreachable = {node: answer for node, answer in zip(nodes, answers, strict=True) if isinstance(answer, Problem)}
        self._told(views)

        def merged() -> Inventory:
            found = merge(
                views,
                self._bare(memory.fleet) if memory.fleet is not None else None,
                memory.notices,
                nodes,
                now,
                ended=memory.ended,
                busy=memory.busy,
                gone_after_s=memory.gone_after,
                silent_s=memory.silent,
                namesakes=memory.namesakes,
                breathe=self._aside.breathe,
            )
            return msgspec.structs.replace(found, fleet=self._join(found.fleet))

        return await self._aside.call(merged)

    async def _view(self, node: NodeId) -> NodeView | Problem:
        try:
            async with asyncio.timeout(VIEW_TIMEOUT_S):
                return await self._agents[node].view()
        except ShunterError as error:
            return error.problem
        except TimeoutError:
            return Problem(
                code="SH520", what="the agent didn't answer in time", remedy="Look whether it runs, and at its network", subject=node
            )

    async def measure(self, fleet: Fleet, policies: PolicySet, at: float, *, within_s: float) -> Samples:
        """Samples at `at` of all that the catalog and the policies name. Ends `within_s` seconds after it began at the latest."""
        asked = inputs_of(policies)
        aside, catalog = self._aside, self._catalog
        taken = await aside.do(lambda: sample(self._metrics, fleet, asked, at, catalog=catalog, within_s=within_s, breathe=aside.breathe))
        return self._more(taken, at)


def inputs_of(policies: PolicySet) -> dict[str, dict[str, MetricInput]]:
    """The metrics that policies declare, by policy name."""
    return {p.name: dict(p.metrics) for p in policies.policies if p.metrics and p.mode != "off"}
