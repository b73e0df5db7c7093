"""Dynamo's resources as the server gives them, to values. What can't be read is said with its place, and hurts its own graph only. Pure."""

import re
from typing import Any, Final

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.dynamo.reading import Node, root
from shunter.cluster.dynamo.values import Adapter, Component, Deployed, Golden, Graph, Pod, Registered, Replicas
from shunter.cluster.dynamo.words import (
    ADAPTERS,
    AUTOMATIC,
    CANDIDATE,
    COMPATIBILITY,
    COMPONENT_LABEL,
    COST,
    DEPLOYMENTS,
    GMS,
    GRAPH_LABEL,
    GRAPHS,
    HASH_LABEL,
    KINDS,
    OWNER,
    REGISTRATIONS,
    SNAPSHOTS,
)
from shunter.model.pod import MAIN, OPERATION
from shunter.model.snapshot import Role

_ROLES: Final[dict[str, Role]] = {"prefill": "prefill", "decode": "decode", "worker": "decode"}
"""By a component's type, as `model.pod` reads pods: one of type `worker` holds its sessions as a decode worker does."""
_CARDS: Final[dict[str, Role]] = {"prefill": "prefill", "decode": "decode"}
_INTERNAL: Final = "worker_kv_query_source"
"""Endpoints between workers and routers that carry no requests."""
_ENDED: Final = ("Succeeded", "Failed")
_PYTHON: Final = re.compile(r"python(3(\.\d+)?)?")
_PLAIN: Final = ("-u", "-B", "-E", "-I", "-O", "-OO", "-s", "-S")
"""Options of Python's that take no value."""
_STANDBY: Final = (["dynamo.vllm"], ["dynamo.sglang"], ["dynamo.trtllm"])


def graph(found: Object) -> Graph:
    """A DynamoGraphDeployment of either version. Raises Unreadable SH270."""
    top = root(found, KINDS[GRAPHS])
    meta, spec, status = top["metadata"], top["spec"], top["status"]
    components = _components(top)
    groups = {member: name for name, members in _groups(spec) for member in members}
    placed = tuple(msgspec.structs.replace(one, group=groups.get(one.name, "")) for one in components)
    told = status["components"] if status["components"].there else status["services"]
    return Graph(
        namespace=meta["namespace"].text(),
        name=meta["name"].text(),
        uid=meta["uid"].text(""),
        version=top["apiVersion"].text().rpartition("/")[2],
        generation=meta["generation"].number(0),
        observed=status["observedGeneration"].number(0),
        state=status["state"].text(""),
        rolling=status["rollingUpdate"]["phase"].text(""),
        restart=status["restart"]["phase"].text(""),
        deleting=meta["deletionTimestamp"].there,
        components=placed,
        status={name: _replicas(one) for name, one in told.entries()},
    )


def _components(top: Node) -> list[Component]:
    spec = top["spec"]
    listed = [(one["name"].text(), one) for one in spec["components"].items()]
    named = listed or spec["services"].entries()
    names = [name for name, _ in named]
    for name, one in named:
        if names.count(name) > 1:
            raise one.wrong(f"there are two components named {name!r}")
    return [_component(name, one, top) for name, one in named]


def _component(name: str, one: Node, top: Node) -> Component:
    old = "type" not in one.object()
    kind = one["componentType" if old else "type"].text("")
    sub = one["subComponentType"].text("")
    adapter = one["scalingAdapter"]
    return Component(
        name=name,
        type=kind,
        place=one.path,
        role=_ROLES.get(sub) or _ROLES.get(kind),
        replicas=one["replicas"].number(1),
        # v1beta1 has it by being there; v1alpha1 says `enabled`, and in an early release `disable`
        adapter=adapter.there and (adapter["enabled"].flag() or not adapter.object()),
        nodes=max(1, one["multinode"]["nodeCount"].number(1)),
        # whoever wrote it by the other version is known by that version's fields
        managers=tuple(sorted({*owners(top, ("f:components", f'k:{{"name":"{name}"}}')), *owners(top, ("f:services", f"f:{name}"))})),
    )


def _groups(spec: Node) -> list[tuple[str, list[str]]]:
    groups = spec["experimental"]["componentGroups"].items()
    return [(one["name"].text(), [member["name"].text() for member in one["components"].items()]) for one in groups]


def _replicas(one: Node) -> Replicas:
    def number(key: str) -> int | None:
        return one[key].number(0) if one[key].there else None

    return Replicas(
        kind=one["componentKind"].text(""), replicas=number("replicas"), updated=number("updatedReplicas"), ready=number("readyReplicas")
    )


def adapter(found: Object) -> Adapter:
    """A DynamoGraphDeploymentScalingAdapter. Raises Unreadable SH270."""
    top = root(found, KINDS[ADAPTERS])
    spec, meta = top["spec"], top["metadata"]
    ref = spec["dgdRef"]
    return Adapter(
        namespace=meta["namespace"].text(),
        name=meta["name"].text(),
        uid=meta["uid"].text(""),
        graph=ref["name"].text(),
        component=ref["serviceName"].text("") or ref["componentName"].text(""),
        replicas=spec["replicas"].number(),
        managers=owners(top, ()),
    )


def deployed(found: Object) -> Deployed | None:
    """A DynamoComponentDeployment; None for one that belongs to no graph. Raises Unreadable SH270."""
    top = root(found, KINDS[DEPLOYMENTS])
    spec, meta = top["spec"], top["metadata"]
    labels = meta["labels"]
    owner = next((one["name"].text() for one in meta["ownerReferences"].items() if one["kind"].text("") == KINDS[GRAPHS]), "")
    name = labels[GRAPH_LABEL].text("") or owner
    component = spec["name"].text("") or spec["serviceName"].text("") or labels[COMPONENT_LABEL].text("")
    if not name or not component:
        return None
    return Deployed(
        namespace=meta["namespace"].text(),
        name=meta["name"].text(),
        graph=name,
        component=component,
        replicas=spec["replicas"].number(1),
    )


def registered(found: Object) -> Registered:
    """A DynamoWorkerMetadata. Raises Unreadable SH270."""
    top = root(found, KINDS[REGISTRATIONS])
    meta, data = top["metadata"], top["spec"]["data"]
    name = meta["name"].text()
    pod = next((one for one in meta["ownerReferences"].items() if one["kind"].text("") == "Pod"), None)
    endpoints = {_endpoint(key, one) for key, one in data["endpoints"].entries()}
    cards = [_card(one) for _, one in data["model_cards"].entries()]
    roles: set[Role | None] = {role for _, role in cards}
    role: Role | None = next(iter(roles)) if len(roles) == 1 else None
    return Registered(
        namespace=meta["namespace"].text(),
        name=name,
        pod=pod["name"].text() if pod is not None else name,
        pod_uid=pod["uid"].text("") if pod is not None else "",
        endpoints=tuple(sorted(endpoints - {""})),
        models=tuple(sorted({model for model, _ in cards} - {""})),
        role=role,
    )


def _endpoint(key: str, one: Node) -> str:
    if not isinstance(one.value, dict):
        raise one.wrong("it is no object")
    parts = [one[word].text("") for word in ("namespace", "component", "endpoint")]
    path = "/".join(parts) if all(parts) else key
    return "" if path.rpartition("/")[2].startswith(_INTERNAL) else path


def _card(one: Node) -> tuple[str, Role | None]:
    card = one["card_json"] if one["card_json"].there else one
    kind = card["worker_type"].text("")
    model = card["display_name"].text("") or card["name"].text("") or card["slug"].text("")
    return model, _CARDS.get(kind)


def golden(found: Object) -> Golden:
    """A PodSnapshot. Raises Unreadable SH270."""
    top = root(found, KINDS[SNAPSHOTS])
    meta, ref = top["metadata"], top["spec"]["source"]["podRef"]
    conditions = {one["type"].text(): one["status"].text("") for one in top["status"]["conditions"].items()}
    containers = [one.text() for one in ref["containers"].items()]
    if len(containers) != 1:
        raise ref["containers"].wrong(f"{len(containers)} containers, and one is what can be restored")
    return Golden(
        namespace=meta["namespace"].text(),
        name=meta["name"].text(),
        pod=ref["name"].text(),
        container=containers[0],
        ready=conditions.get("Ready") == "True" and conditions.get("Failed") != "True" and not meta["deletionTimestamp"].there,
        graph=meta["labels"][GRAPH_LABEL].text(""),
        component=meta["labels"][COMPONENT_LABEL].text(""),
        worker_hash=meta["labels"][HASH_LABEL].text(""),
        gms=meta["annotations"][GMS].text(""),
        automatic=meta["annotations"][AUTOMATIC].text("") == "true",
        owner=meta["annotations"][OWNER].text(""),
        compatibility=meta["annotations"][COMPATIBILITY].text(""),
        created=meta["creationTimestamp"].text(""),
    )


def pod(found: Object) -> Pod:
    """A pod. Raises Unreadable SH270."""
    top = root(found, "Pod")
    meta, status = top["metadata"], top["status"]
    phase = status["phase"].text("Pending")
    conditions = {one["type"].text(): one["status"].text("") for one in status["conditions"].items()}
    cost = meta["annotations"][COST].text("")
    return Pod(
        namespace=meta["namespace"].text(),
        name=meta["name"].text(),
        uid=meta["uid"].text(),
        assigned=bool(top["spec"]["nodeName"].text("")),
        phase=phase,
        ready=conditions.get("Ready") == "True",
        cost=_cost(cost),
        created=meta["creationTimestamp"].text(""),
        leaving=meta["deletionTimestamp"].there or phase in _ENDED,
        worker_hash=meta["labels"][HASH_LABEL].text(""),
        restored=meta["annotations"][CANDIDATE].text("") == "true",
        moved=meta["labels"][OPERATION].there,
        standby=any(one["name"].text("") == MAIN and standby(one.object()) for one in top["spec"]["containers"].items()),
    )


def standby(container: Object) -> bool:
    """A container runs an engine of Dynamo's by itself, which then waits to be restored where its environment says so. What a shell or a
    wrapper of somebody's does can't be said: it could load the model beside the one that is restored.
    """
    words = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    python, *rest = words or [""]
    while rest and rest[0] in _PLAIN:
        rest = rest[1:]
    return bool(_PYTHON.fullmatch(python.rpartition("/")[2])) and rest[:1] == ["-m"] and rest[1:2] in _STANDBY


def controlled(found: Object) -> bool:
    """A controller counts the pod as one of its own."""
    return any(one.get("controller") is True for one in found["metadata"].get("ownerReferences") or ())


def _cost(text: str) -> int:
    """As the controller takes it: what is no number counts as 0."""
    try:
        return int(text)
    except ValueError:
        return 0


def owners(top: Node, below: tuple[str, ...]) -> tuple[str, ...]:
    """Those who have set the replicas, sorted; `below` is the way from the spec's fields to them."""
    found = set()
    for entry in top["metadata"]["managedFields"].items():
        fields: Any = entry["fieldsV1"].object().get("f:spec", {})
        for key in (*below, "f:replicas"):
            fields = fields.get(key) if isinstance(fields, dict) else None
        if fields is not None:
            found.add(entry["manager"].text("?"))
    return tuple(sorted(found))
