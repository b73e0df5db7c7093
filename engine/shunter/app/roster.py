"""The agents that there are: those that the settings name, and those that are found while the engine runs."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from shunter.act.agents import AgentClient, TlsFiles
from shunter.app.settings import Settings
from shunter.app.world import gone_after
from shunter.model.ids import NodeId

Make = Callable[[NodeId, str], AgentClient]


class Roster(Mapping[NodeId, AgentClient]):
    """Each node's agent. It follows what is found; whoever goes through it meanwhile goes through what there was.

    A node whose agent isn't found any more stays: its workers may run on, and only silence says that it doesn't answer.
    """

    def __init__(self, make: Make, fixed: Mapping[NodeId, str]) -> None:
        """`fixed` are addresses (host:port) of the settings, which count before any that are found."""
        self._make: Final = make
        self._fixed: Final = frozenset(fixed)
        self._addresses = dict(fixed)
        self._agents = {node: make(node, address) for node, address in fixed.items()}
        self._old: list[AgentClient] = []

    def __getitem__(self, node: NodeId) -> AgentClient:
        return self._agents[node]

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def follow(self, found: Mapping[NodeId, str]) -> None:
        """Addresses by node; an empty one isn't known yet, and the last one counts. What is under way at an old one is seen through."""
        wanted = {node: address for node, address in found.items() if node not in self._fixed and address}
        changed = {node: address for node, address in wanted.items() if self._addresses.get(node) != address}
        if not changed:
            return
        agents = dict(self._agents)
        for node, address in sorted(changed.items()):
            if node in agents:
                self._old.append(agents[node])
            agents[node] = self._make(node, address)
        self._agents, self._addresses = dict(sorted(agents.items())), {**self._addresses, **changed}

    def forget(self, nodes: Collection[NodeId]) -> None:
        """Nodes that there aren't any more."""
        gone = {node for node in nodes if node in self._agents} - self._fixed
        if gone:
            self._old += [self._agents[node] for node in sorted(gone)]
            self._agents = {node: agent for node, agent in self._agents.items() if node not in gone}
            self._addresses = {node: address for node, address in self._addresses.items() if node not in gone}

    async def close(self) -> None:
        """End all connections."""
        for agent in (*self._old, *self._agents.values()):
            await agent.close()


def named(settings: Settings, *, looks_on: bool = False) -> Roster:
    """The agents that the settings name. Needs a running event loop. Raises Stalled SH509. `looks_on`: see `AgentClient`."""
    tls = TlsFiles(ca=settings.tls.ca, cert=settings.tls.cert, key=settings.tls.key)
    presumed = gone_after(float(settings.hold), float(settings.tick))
    fixed = {NodeId(agent.node): agent.address for agent in settings.agents}
    return Roster(lambda node, address: AgentClient(node, address, tls, looks_on=looks_on, presumed=presumed), fixed)
