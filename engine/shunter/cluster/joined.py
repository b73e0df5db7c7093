"""What agents report and what the API server says, as one fleet. Pure.

Of a worker's process its agent knows best, of its pod the API server. A worker that no agent reports is in the fleet all the same, so that
policies see all of a pool; nothing can be done with it, and why is said.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from shunter.cluster.estate import Estate
from shunter.cluster.nodes import ClusterNode
from shunter.cluster.pods import Being, WorkerPod
from shunter.model.ids import Incarnation, NodeId, WorkerId
from shunter.model.snapshot import Fleet, Node, Slot, Worker, WorkerState

_AWAY: Final = (WorkerState.PARKED, WorkerState.LOST)
_STANDING: Final = (WorkerState.RUNNING, WorkerState.FENCED)
_HERE: Final = (Being.RUNNING, Being.ENDING)
_TAKES: Final = (Being.COMING, Being.RUNNING, Being.ENDING)
_GOING: Final = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/shutdown",
    "aws-node-termination-handler/",
    "karpenter.sh/disrupt",
    "ToBeDeletedByClusterAutoscaler",
    "cloud.google.com/impending-node-termination",
)
"""How taints begin whose node is being emptied, or is about to go: its pods are deleted for that, and not for their controller's sake."""
_STARTS: Final = "its process has ended, and its pod starts it again where it was"
_DELETED: Final = (
    "its pod was deleted, by nothing that its node or an operation did: whether another takes its place is its controller's to say"
)
_UNSEEN: Final = (
    "its pod went while no engine looked, its node is well, and no operation has deleted it: whether another takes its place is its "
    "controller's to say"
)
_NOBODY: Final[Mapping[str, NodeId]] = {}


def reported(fleet: Fleet) -> Fleet:
    """The fleet without what `joined` added to it: what agents reported alone."""
    return msgspec.structs.replace(fleet, workers=tuple(w for w in fleet.workers if not _by_pod_alone(w)))


def joined(fleet: Fleet, estate: Estate, ours: Collection[str] = (), before: Mapping[str, NodeId] = _NOBODY) -> Fleet:
    """The fleet as agents report it (`reported`), with pods, taints and labels, and the workers that no agent reports.

    `ours` are the uids of pods that the engine has deleted. A worker that is lost with a pod that starts it again, or that Kubernetes was
    told to delete, is pinned: an image of it, brought back beside that, would be one too many, and its controller would end another. So is
    one whose pod has gone unseen from a node that is well: `before` are the pods that workers lived in when an engine last noted it, and
    their nodes.
    """
    pods, nodes = estate.pods, {node.id: node for node in fleet.nodes}
    known: dict[WorkerId, Worker] = {}
    lived_in: set[str] = set()
    for worker in fleet.workers:
        own = pods.get(worker.pod.uid) if worker.pod is not None and worker.state not in _AWAY else None
        if own is not None:
            lived_in.add(own.pod.uid)
        known[worker.id] = _with_pod(worker, own, estate) if worker.state is not WorkerState.LOST else _lost(worker, estate, ours, before)
    others: dict[NodeId, list[WorkerPod]] = defaultdict(list)
    left = [pod for uid, pod in pods.items() if uid not in lived_in and pod.node is not None and not pod.placeholder]
    for pod in sorted(left, key=lambda p: (p.pod.name, p.pod.uid)):
        if pod.node is None or pod.being not in _TAKES:
            continue
        others[pod.node].append(pod)
        if pod.being in _HERE and pod.resident.id not in known:
            known[pod.resident.id] = _by_pod(pod, pod.node, nodes.get(pod.node), estate.nodes.get(pod.node))
    return msgspec.structs.replace(
        fleet,
        nodes=tuple(_with_cluster(node, estate, others.get(node.id, ())) for node in fleet.nodes),
        workers=tuple(known[name] for name in sorted(known)),
    )


def left_to_cluster(worker: Worker) -> bool:
    """It is lost, and its pod has gone for its controller's sake: whatever takes its place is another worker."""
    return worker.state is WorkerState.LOST and worker.pinned in (_DELETED, _UNSEEN)


def forgotten(fleet: Fleet, estate: Estate) -> frozenset[NodeId]:
    """Nodes that the cluster no longer has, on which nothing is: no worker and no pod of one. Nobody will hear of them again."""
    if estate.doubt is not None:
        return frozenset()
    used = {w.node for w in fleet.workers if w.node is not None} | {pod.node for pod in estate.pods.values()}
    return frozenset(
        node.id
        for node in fleet.nodes
        if not node.reachable and node.id not in estate.nodes and node.id not in estate.agents and node.id not in used
    )


def _by_pod_alone(worker: Worker) -> bool:
    return worker.pod is not None and worker.slot is None and worker.state in _STANDING


def _with_pod(worker: Worker, own: WorkerPod | None, estate: Estate) -> Worker:
    if worker.state in _AWAY:
        return msgspec.structs.replace(worker, pod=None, pinned="") if worker.pod is not None or worker.pinned else worker
    if own is None:
        pinned = _missing(worker, estate)
        return worker if pinned == worker.pinned else msgspec.structs.replace(worker, pinned=pinned)
    held = own.why if own.being is not Being.RUNNING else own.held_by
    return msgspec.structs.replace(
        worker,
        pod=own.pod,
        pinned=held,
        labels={**own.labels, **worker.labels},
        tolerations=own.tolerations if worker.tolerations is None else worker.tolerations,
    )


def _lost(worker: Worker, estate: Estate, ours: Collection[str], before: Mapping[str, NodeId]) -> Worker:
    """Its pod is kept in mind, by which it is judged in the next round, too."""
    pinned = worker.pinned if worker.pod is not None and worker.pinned in (_STARTS, _DELETED, _UNSEEN) else ""
    if worker.pod is not None and estate.doubt is None:
        uid = worker.pod.uid
        last = estate.pods.get(uid) or estate.removed.get(uid)
        if uid in ours:
            pinned = ""
        elif last is not None:
            pinned = _kept_away(last, there=uid in estate.pods, estate=estate)
        elif uid in before:
            pinned = "" if _fails(before[uid], estate) else _UNSEEN
        elif pinned == _STARTS:
            pinned = ""
    return worker if pinned == worker.pinned else msgspec.structs.replace(worker, pinned=pinned)


def _kept_away(pod: WorkerPod, *, there: bool, estate: Estate) -> str:
    """Why the worker isn't to come back from an image, by the pod that it had; empty: its pod or its node failed it."""
    if _fails(pod.node, estate) or pod.retired or pod.being is Being.ENDED:
        return ""
    if not there or pod.being is Being.ENDING:
        return _DELETED
    return "" if pod.operation else _STARTS  # one that an operation has made never starts anything again


def _fails(name: NodeId | None, estate: Estate) -> bool:
    """A node is gone, doesn't work, or is being emptied."""
    node = estate.nodes.get(name) if name is not None else None
    return node is None or not node.ready or any(t.effect == "NoExecute" or t.key.startswith(_GOING) for t in node.taints)


def _missing(worker: Worker, estate: Estate) -> str:
    """Of a worker on a plain host nothing is missing."""
    if worker.pod is None or estate.doubt is not None:
        return worker.pinned
    if worker.pod.namespace != estate.namespace:
        return f"its pod is in the namespace {worker.pod.namespace}, and this engine looks after {estate.namespace}"
    return "its pod isn't in the API server"


def _by_pod(pod: WorkerPod, name: NodeId, node: Node | None, there: ClusterNode | None) -> Worker:
    who = pod.resident
    return Worker(
        id=who.id,
        role=who.role,
        graph=who.graph,
        engine=who.engine,
        state=WorkerState.RUNNING if pod.ready else WorkerState.FENCED,
        node=name,
        slot=None,
        incarnation=Incarnation(0),
        labels=pod.labels,
        address=pod.address,
        tolerations=pod.tolerations,
        pod=pod.pod,
        pinned=_unreported(pod, name, node, there),
    )


def _unreported(pod: WorkerPod, name: NodeId, node: Node | None, there: ClusterNode | None) -> str:
    if pod.being is Being.ENDING:
        return pod.why
    if there is not None and not there.ready and (node is None or not node.reachable):
        return f"{name} isn't ready: its kubelet says nothing, and its agent doesn't either"
    if node is None:
        return f"no agent runs on {name}"
    return f"the agent of {name} " + ("reports no process of its pod" if node.reachable else "doesn't answer")


def _with_cluster(node: Node, estate: Estate, others: Iterable[WorkerPod]) -> Node:
    """Its slots are taken by pods that its agent knows nothing of, too: which GPUs they have isn't known, how many is."""
    slots = _occupied(node.slots, list(others))
    there = estate.nodes.get(node.id)
    if there is None:
        return node if slots is node.slots else msgspec.structs.replace(node, slots=slots)
    taints = tuple(sorted({*node.taints, *there.taints}, key=str))  # an agent knows those of its settings, too
    return msgspec.structs.replace(node, slots=slots, labels={**there.labels, **node.labels}, taints=taints)


def _occupied(slots: tuple[Slot, ...], pods: list[WorkerPod]) -> tuple[Slot, ...]:
    """Each pod has the last free slot of its size."""
    found = list(slots)
    for pod in pods:
        free = [k for k, slot in enumerate(found) if slot.worker is None and slot.reserved_by is None and slot.gpus == pod.gpus > 0]
        if free:
            found[free[-1]] = msgspec.structs.replace(found[free[-1]], worker=pod.resident.id)
    return tuple(found) if found != list(slots) else slots
