"""Sheets: the scopes of many subjects by variable, so that an expression can be asked about all of them at once."""

from collections.abc import Hashable, Mapping, Sequence

from shunter.decide.scope import Scopes
from shunter.model.expression import Scope, Value
from shunter.model.policy import Policy
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import Node, Worker


class Workers:
    """A sheet of workers, as `Scopes.worker` sees each. `policy` is None where no `metrics` are read."""

    def __init__(self, scopes: Scopes, workers: Sequence[Worker], policy: Policy | None) -> None:
        self._scopes, self.workers, self._policy = scopes, workers, policy

    @property
    def size(self) -> int:
        """How many workers."""
        return len(self.workers)

    def values(self, name: str) -> Sequence[Value | None]:
        """The variable's value for each worker, or one for all."""
        scopes, workers = self._scopes, self.workers
        match name.partition(".")[0]:
            case "worker":
                return scopes.of_workers(workers, name)
            case "node":
                nodes = [scopes.node_of(w) for w in workers]
                return [scopes.of_node(n).get(name) if n else None for n in nodes]
            case "pool":
                return [scopes.of_pool(w).get(name) for w in workers]
            case "pools":
                graphs = [w.graph for w in workers]
                return [scopes.of_graph(g).get(name) for g in (graphs if len(set(graphs)) > 1 else graphs[:1])]
            case "metrics" if self._policy is not None:
                return scopes.metrics_of(self._policy, workers, name)
            case "now":
                return [scopes.now]
        return [None]


class Destinations:
    """A sheet of candidate destinations, as `Scopes.at` sees each from one scope."""

    def __init__(self, scopes: Scopes, scope: Scope, nodes: Sequence[Node]) -> None:
        self._scopes, self._scope, self.nodes = scopes, scope, nodes

    @property
    def size(self) -> int:
        """How many nodes."""
        return len(self.nodes)

    def values(self, name: str) -> Sequence[Value | None]:
        """The variable's value at each node, or one for all."""
        if name.startswith("node."):
            return self._scopes.of_nodes(self.nodes, name)
        return [self._scope.get(name)]


def alike(value: Value | None) -> Hashable:
    """What is the same for two values between which no answer of an expression can tell; reasons for having none don't count."""
    if value is None or isinstance(value, Missing | Stale):
        return None
    # not the values themselves: 1, 1.0 and True are equal, and so are 0.0 and -0.0
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else repr(value.value if isinstance(value, Known) else value)
