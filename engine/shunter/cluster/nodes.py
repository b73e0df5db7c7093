"""What the API server says of a Node, and of the agent's pod on it. Pure."""

from typing import Final, cast, get_args

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.pods import truth
from shunter.model.ids import NodeId
from shunter.model.snapshot import Effect, Taint

PORT_NAME: Final = "agent"
"""Of the port in the agent's container that takes orders."""


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One Node. `ready` is what its kubelet says, or said last."""

    name: NodeId
    labels: dict[str, str]
    taints: tuple[Taint, ...]
    ready: bool


class AgentPod(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod of the agents' DaemonSet. `address` is host:port; empty before it has one."""

    node: NodeId
    address: str
    ending: bool
    made_at: str


def cluster_node(found: Object) -> ClusterNode:
    """The Node as the server gives it. Raises KeyError and the like for what isn't one. Taints of other effects are left out."""
    meta, spec = found["metadata"], found.get("spec") or {}
    taints = tuple(
        Taint(key=str(one.get("key") or ""), value=str(one.get("value") or ""), effect=cast(Effect, one["effect"]))
        for one in spec.get("taints") or ()
        if one.get("effect") in get_args(Effect)
    )
    return ClusterNode(
        name=NodeId(meta["name"]),
        labels=dict(meta.get("labels") or {}),
        taints=taints,
        ready=truth(found.get("status") or {}, "Ready") == "True",
    )


def agent_pod(found: Object, port: int) -> AgentPod | None:
    """The pod as the server gives it; `port` is where an agent listens whose pod names no port `agent`. None: it has no node yet, or has
    ended.
    """
    meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
        return None
    host = status.get("podIP") or (status.get("hostIP") if spec.get("hostNetwork") else None)
    named = (p["containerPort"] for c in spec.get("containers") or () for p in c.get("ports") or () if p.get("name") == PORT_NAME)
    shown = f"[{host}]" if host and ":" in host else host
    return AgentPod(
        node=NodeId(spec["nodeName"]),
        address=f"{shown}:{next(named, port)}" if host else "",
        ending=bool(meta.get("deletionTimestamp")),
        made_at=str(meta.get("creationTimestamp") or ""),
    )
