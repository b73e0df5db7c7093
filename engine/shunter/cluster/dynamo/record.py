"""The resource of record of a component's replicas, and what to write into it: the scaling adapter's where there is one, else the graph's.

Replicas and the mark that we changed them are one write: whoever repeats a change after a death finds either both or none. Pure.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.dynamo.drift import by_git, immutable
from shunter.cluster.dynamo.parse import adapter as read_adapter
from shunter.cluster.dynamo.parse import graph as read_graph
from shunter.cluster.dynamo.values import Adapter, Component, Graph
from shunter.cluster.dynamo.words import ADAPTERS, GRAPHS, GROUP, KINDS, SHIFTS, collection
from shunter.model.errors import Problem, Rejected

MANAGER: Final = "shunter-replicas"
"""The field manager of what is written here: `kubectl get --show-managed-fields` shows whose the replicas are."""
_KEPT: Final = 16
"""Marks that stay in a resource: more than there can be changes under way in one graph. Those that were taken back make room first."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One change that we made. `pod` and `uid` are of the pod that goes with it, empty where one comes; `undone`: it was taken back, and
    isn't made again.
    """

    operation: str
    component: str
    before: int
    after: int
    pod: str = ""
    uid: str = ""
    undone: bool = False

    @property
    def over(self) -> int:
        """How little it is needed still: 2 for what was never made and isn't to be, 1 for what was taken back, 0 for what is in force."""
        return 0 if not self.undone else 1 if self.before != self.after else 2


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the replicas of one component stand, as the server has it now."""

    plural: Literal["dynamographdeployments", "dynamographdeploymentscalingadapters"]
    version: str
    namespace: str
    name: str
    graph: Graph
    component: Component
    replicas: int
    managers: tuple[str, ...]
    marks: tuple[Mark, ...]
    found: Object

    @property
    def path(self) -> str:
        """Of the resource."""
        return f"{collection(self.version, self.plural, self.namespace)}/{self.name}"

    @property
    def called(self) -> str:
        """For messages."""
        return f"{KINDS[self.plural]} {self.namespace}/{self.name}"

    def mark(self, operation: str) -> Mark | None:
        """What this operation changed here; None: nothing."""
        return next((one for one in self.marks if (one.operation, one.component) == (operation, self.component.name)), None)


def place(found: Object, adapters: Sequence[Object], component: str) -> Place:
    """Where the replicas of a graph's component stand. `adapters`: those of its namespace.

    Raises Rejected SH272 where there is no such component or not the adapter that it is to have, SH270 for what can't be read.
    """
    graph = read_graph(found)
    one = graph.component(component)
    if one is None:
        raise _refused(f"the graph has no component {component!r}", "Nothing to do: what is planned next knows it", graph)
    if not one.adapter:
        return _place(found, graph, one, None)
    own = [(raw, read) for raw in adapters if _ref(raw) == (graph.name, component) for read in (read_adapter(raw),)]
    if len(own) != 1:
        there = "none" if not own else f"{len(own)}"
        raise _refused(f"`{one.place}` has a scaling adapter, and there is {there} for it", "Look at the log of Dynamo's operator", graph)
    return _place(own[0][0], graph, one, own[0][1])


def component_of(graph: Graph, role: str) -> str:
    """The component that serves a role. Raises Rejected SH272 where it can't be said which is meant."""
    own = [one.name for one in graph.components if one.role == role]
    if len(own) == 1:
        return own[0]
    told = f"several components for {role}: {', '.join(own)}" if own else f"no component for {role}"
    raise _refused(f"the graph has {told}", "Leave this graph out of the policy, or give it one component a role", graph)


def _ref(raw: Object) -> tuple[str, str]:
    """Without reading the rest: another graph's adapter may be broken."""
    spec = raw.get("spec")
    ref = spec.get("dgdRef") if isinstance(spec, dict) else None
    return (ref.get("name", ""), ref.get("serviceName") or ref.get("componentName", "")) if isinstance(ref, dict) else ("", "")


def _place(found: Object, graph: Graph, component: Component, adapter: Adapter | None) -> Place:
    return Place(
        plural=GRAPHS if adapter is None else ADAPTERS,
        version=str(found["apiVersion"]).rpartition("/")[2],
        namespace=graph.namespace,
        name=graph.name if adapter is None else adapter.name,
        graph=graph,
        component=component,
        replicas=component.replicas if adapter is None else adapter.replicas,
        managers=component.managers if adapter is None else adapter.managers,
        marks=marks(found),
        found=found,
    )


def marks(found: Object) -> tuple[Mark, ...]:
    """What was changed by us in a resource, oldest first. Nothing where somebody has put something else there."""
    text = (found["metadata"].get("annotations") or {}).get(SHIFTS, "")
    try:
        return tuple(msgspec.json.decode(text, type=list[Mark])) if text else ()
    except msgspec.MsgspecError:
        return ()


def changeable(one: Place) -> None:
    """Raises Rejected SH272 where its replicas are never changed by us, and as `git_has_not` does."""
    if why := immutable(one.component, one.graph):
        raise _refused(why, "Scale it by other means, or leave this graph out of the policy", one.graph)
    git_has_not(one)


def git_has_not(one: Place) -> None:
    """Raises Rejected SH273 where Git would put the replicas back."""
    if git := by_git(one.managers):
        raise Rejected(
            Problem(
                code="SH273",
                what=f"the replicas of {one.component.name} are set by Git ({git} has written them), which would put them back",
                remedy="Leave `replicas` out of what Git has of this component, or give it a scaling adapter",
                subject=one.called,
            )
        )


def body(one: Place, changes: Sequence[tuple[Component, int | None, Mark]]) -> Object:
    """What to apply, at the version that was read: the new replicas of these components (None: they stay whose they are), and the marks of
    that.

    What server-side apply finds no more in what a manager applies, it removes. So all that is ours already is in it again, as it is.
    """
    meta = one.found["metadata"]
    new = [mark for _, _, mark in changes]
    kept = [mark for mark in one.marks if not any((m.operation, m.component) == (mark.operation, mark.component) for m in new)]
    text = msgspec.json.encode([*_latest(kept, _KEPT - len(new)), *new]).decode()
    spec = _spec(one, {component.name: replicas for component, replicas, _ in changes if replicas is not None})
    return {
        "apiVersion": f"{GROUP}/{one.version}",
        "kind": KINDS[one.plural],
        "metadata": {
            "name": one.name,
            "namespace": one.namespace,
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "annotations": {SHIFTS: text},
        },
        **({"spec": spec} if spec else {}),
    }


def _latest(found: Sequence[Mark], room: int) -> list[Mark]:
    """So many of them, in their order: of those that go the ones that are needed least go first, and of these the oldest."""
    going = sorted(range(len(found)), key=lambda at: (-found[at].over, at))[: max(0, len(found) - room)]
    return [one for at, one in enumerate(found) if at not in going]


def _spec(one: Place, wanted: dict[str, int]) -> Object:
    if one.plural == ADAPTERS:
        number = wanted.get(one.component.name, one.replicas if MANAGER in one.managers else None)
        return {} if number is None else {"replicas": number}
    ours = {other.name: other.replicas for other in one.graph.components if MANAGER in other.managers}
    both: dict[str, Any] = {**ours, **wanted}
    if not both:
        return {}
    if isinstance(one.found["spec"].get("components"), list):
        return {"components": [{"name": name, "replicas": both[name]} for name in sorted(both)]}
    return {"services": {name: {"replicas": both[name]} for name in sorted(both)}}


def _refused(what: str, remedy: str, graph: Graph) -> Rejected:
    return Rejected(Problem(code="SH272", what=what, remedy=remedy, subject=f"{graph.namespace}/{graph.name}"))
