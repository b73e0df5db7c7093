"""What Dynamo's resources say, as values: only what is read of them here."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from shunter.model.snapshot import Role

State = Literal["initializing", "pending", "successful", "failed"]


class Replicas(msgspec.Struct, frozen=True, kw_only=True):
    """What a component's status says. None: it doesn't say."""

    kind: str = ""
    """What its pods are made by: `Deployment`, `PodClique`, `PodCliqueScalingGroup`, `LeaderWorkerSet`. Empty: it doesn't say."""
    replicas: int | None = None
    updated: int | None = None
    ready: int | None = None


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """One component of a graph. `role` is None for what serves neither: a frontend, a planner, an aggregated worker.

    `place` is where it stands in its graph, for messages; `group` the component group that it is scaled with, empty: by itself;
    `managers` are those whose fields its replicas are, as `metadata.managedFields` has it.
    """

    name: str
    type: str
    place: str
    role: Role | None = None
    replicas: int = 1
    adapter: bool = False
    """Its replicas belong to a scaling adapter: the operator's webhook refuses whoever else changes them."""
    group: str = ""
    nodes: int = 1
    """Nodes that one replica takes."""
    managers: tuple[str, ...] = ()


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A DynamoGraphDeployment. `version` is that of the API that it was read by; the two generations differ while its operator hasn't
    looked at its newest spec.
    """

    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    observed: int
    """0: its operator never said."""
    state: str
    """As its operator says; empty: it hasn't said anything yet."""
    rolling: str = ""
    """The phase of its rolling update; empty: there is none."""
    restart: str = ""
    """The phase of its restart; empty: there is none."""
    deleting: bool = False
    components: tuple[Component, ...] = ()
    status: Mapping[str, Replicas] = {}
    """By component."""

    def component(self, name: str) -> Component | None:
        """The one of that name."""
        return next((one for one in self.components if one.name == name), None)

    def having(self, role: Role) -> tuple[Component, ...]:
        """Those that serve a role."""
        return tuple(one for one in self.components if one.role == role)

    @property
    def plans(self) -> bool:
        """It has a planner of its own."""
        return any(one.type == "planner" for one in self.components)


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """A DynamoGraphDeploymentScalingAdapter: the replicas of one component of a graph, which its operator carries over into the graph."""

    namespace: str
    name: str
    uid: str
    graph: str
    component: str
    """Empty where it is one of a component group."""
    replicas: int
    managers: tuple[str, ...] = ()


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """A DynamoComponentDeployment: what the operator makes of a component. While a graph is updated there are two of one component."""

    namespace: str
    name: str
    graph: str
    component: str
    replicas: int


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's container says of itself to routers (DynamoWorkerMetadata). `pod_uid` is empty where no owner is named."""

    namespace: str
    name: str
    pod: str
    pod_uid: str = ""
    endpoints: tuple[str, ...] = ()
    """`namespace/component/endpoint`, sorted, without those that carry no requests."""
    models: tuple[str, ...] = ()
    role: Role | None = None
    """By its model cards; None: they don't say, or not all the same."""


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """A PodSnapshot. `graph`, `component` and `worker_hash` are those of its labels; empty: not known."""

    namespace: str
    name: str
    pod: str
    container: str
    ready: bool
    graph: str = ""
    component: str = ""
    worker_hash: str = ""
    gms: str = ""
    """How GPU memory was served besides; empty or `disabled`: not at all."""
    automatic: bool = False
    """Dynamo's operator has taken it, for one graph alone."""
    owner: str = ""
    """That graph's uid; empty: it isn't said."""
    compatibility: str = ""
    """The version of Dynamo's rules by which it was taken; empty: it isn't said."""
    created: str = ""
    """RFC 3339, in UTC."""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, as far as it matters which of a component's pods its controller removes."""

    namespace: str
    name: str
    uid: str
    assigned: bool
    """It has a node."""
    phase: str
    ready: bool
    cost: int
    created: str
    """RFC 3339, in UTC."""
    leaving: bool
    """It is being deleted, or has ended."""
    worker_hash: str = ""
    """What its component's pods were like when it was made, by its label; empty: it has none."""
    restored: bool = False
    """Dynamo's operator has it restored from a checkpoint of the component's own, as far as there is one."""
    moved: bool = False
    """An operation has made it for a worker to come to: its container isn't as its controller would have it."""
    standby: bool = False
    """Its worker waits to be restored instead of starting where its environment says so."""
