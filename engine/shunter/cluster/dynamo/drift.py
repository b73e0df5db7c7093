"""What keeps a graph from being acted on, and where what is there isn't what its resource of record says. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from shunter.cluster.dynamo.values import Adapter, Component, Deployed, Graph, Pod
from shunter.model.errors import Problem, Severity

GIT: Final = (
    "argocd-controller",
    "argocd-application-controller",
    "kustomize-controller",
    "helm-controller",
)
"""Field managers that put back what Git says: Argo CD's and Flux's. Who edits by hand, or scales, doesn't."""
_MOVING: Final = ("Pending", "InProgress")
_STUCK: Final = ("Failed",)


def unsettled(graph: Graph) -> str:
    """Why nothing voluntary is begun with a graph at present; empty: nothing speaks against it."""
    if why := moving(graph):
        return why
    if graph.state != "successful":
        return f"{graph.name} is {graph.state or 'not yet seen by its operator'}, and only a successful graph is changed"
    if graph.observed and graph.observed < graph.generation:
        return f"{graph.name}'s operator hasn't looked at its newest spec yet (generation {graph.observed} of {graph.generation})"
    return ""


def moving(graph: Graph) -> str:
    """Why not even what has begun goes on: others decide which of its pods go, or it has failed. A pod that isn't ready is no reason, as
    that may be our own doing. Empty: nothing speaks against it.
    """
    if graph.deleting:
        return f"{graph.name} is being deleted"
    if graph.rolling in (*_MOVING, *_STUCK):
        return f"{graph.name} is in a rolling update ({graph.rolling}): which of its pods go is being decided elsewhere"
    if graph.restart in ("Pending", "Restarting"):
        return f"{graph.name} is being restarted ({graph.restart})"
    return f"{graph.name} has failed" if graph.state == "failed" else ""


def by_git(managers: Iterable[str]) -> str:
    """Who of these puts back what Git says; empty: nobody."""
    return next((name for name in sorted(managers) if name in GIT), "")


def immutable(component: Component, graph: Graph) -> str:
    """Why a component's replicas aren't changed by us, whatever the moment; empty: they may be."""
    kind = graph.status[component.name].kind if component.name in graph.status else ""
    if component.group:
        return f"{component.name} is scaled with its component group {component.group}, not by itself"
    if component.nodes > 1:
        return f"one replica of {component.name} takes {component.nodes} nodes, and only workers of one node are reassigned"
    if kind != "Deployment":
        made = f"by a {kind}" if kind else "in a way that its status doesn't say"
        return f"the pods of {component.name} are made {made}; only a Deployment's controller can be told which pod goes"
    return ""


def differences(
    graph: Graph, adapters: Sequence[Adapter], deployed: Sequence[Deployed], pods: Mapping[str, Sequence[Pod]]
) -> tuple[Problem, ...]:
    """Where somebody has changed something below the graph's resource of record, each with both values, sorted.

    `adapters` and `deployed` are those of the graph; `pods` those of its components that have a role, by component. A graph that isn't
    settled differs by nature.
    """
    if unsettled(graph):
        return ()
    found = []
    for component in graph.components:
        own = [one for one in adapters if one.component == component.name]
        found += _of_adapter(graph, component, own)
        found += _of_deployed(graph, component, [one for one in deployed if one.component == component.name])
        if component.name in pods and component.nodes == 1:
            found += _of_pods(graph, component, [one for one in pods[component.name] if not one.leaving])
    return tuple(found)


def _of_adapter(graph: Graph, component: Component, own: Sequence[Adapter]) -> list[Problem]:
    if component.adapter and not own:
        return [_drift(graph, f"`{component.place}` has a scaling adapter, and there is none for {component.name}")]
    return [
        _drift(graph, f"adapter {one.name} asks for {one.replicas} of {component.name}, and the graph has {component.replicas}")
        for one in own
        if component.adapter and one.replicas != component.replicas
    ]


def _of_deployed(graph: Graph, component: Component, own: Sequence[Deployed]) -> list[Problem]:
    there = sum(one.replicas for one in own)
    if not own or there == component.replicas:
        return []
    named = ", ".join(sorted(one.name for one in own))
    return [_drift(graph, f"the graph asks for {component.replicas} of {component.name}, and {named} below it has {there}")]


def _of_pods(graph: Graph, component: Component, there: Sequence[Pod]) -> list[Problem]:
    if len(there) == component.replicas:
        return []
    number = "there is 1 pod" if len(there) == 1 else f"there are {len(there)} pods"
    return [_drift(graph, f"the graph asks for {component.replicas} of {component.name}, and {number}")]


def _drift(graph: Graph, what: str) -> Problem:
    return Problem(
        code="SH271",
        what=what,
        remedy="Nothing to do if it was changed just now; else find out who writes below the graph, whose operator will put it back",
        subject=f"{graph.namespace}/{graph.name}",
        severity=Severity.WARNING,
    )
