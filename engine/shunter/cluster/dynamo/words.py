"""What Dynamo's resources, labels and annotations are called."""

from typing import Final

GROUP: Final = "nvidia.com"
VERSIONS: Final = ("v1beta1", "v1alpha1")
"""Of graphs and what is made of them, the one that we would rather speak first."""
GRAPHS: Final = "dynamographdeployments"
ADAPTERS: Final = "dynamographdeploymentscalingadapters"
DEPLOYMENTS: Final = "dynamocomponentdeployments"
REGISTRATIONS: Final = "dynamoworkermetadatas"
SNAPSHOTS: Final = "podsnapshots"
KINDS: Final = {
    GRAPHS: "DynamoGraphDeployment",
    ADAPTERS: "DynamoGraphDeploymentScalingAdapter",
    DEPLOYMENTS: "DynamoComponentDeployment",
    REGISTRATIONS: "DynamoWorkerMetadata",
    SNAPSHOTS: "PodSnapshot",
}
"""By the plural."""

GRAPH_LABEL: Final = "nvidia.com/dynamo-graph-deployment-name"
COMPONENT_LABEL: Final = "nvidia.com/dynamo-component"
HASH_LABEL: Final = "nvidia.com/dynamo-worker-hash"
"""Of what a component's pods are like, on them and on the PodSnapshots that Dynamo has taken of such: where it differs they don't fit."""
COST: Final = "controller.kubernetes.io/pod-deletion-cost"
LOWEST: Final = -(2**31)
"""The least that a deletion cost can be: a pod with it goes first among those that are as ready as it is."""
COST_BEFORE: Final = "shunter.dev/pod-deletion-cost-before"
"""What the cost was before we changed it; empty: there was none."""
UNDONE: Final = "shunter.dev/shift-undone"
"""Annotation of a pod: the shift for which it goes no more, written where its cost hadn't been changed yet."""
SHIFTS: Final = "shunter.dev/shifts"
"""What we changed of the replicas in a resource of record, written together with them."""
RESTORE_FROM: Final = "nvidia.com/restore-from"
"""Annotation of a pod, at its creation: the PodSnapshot of its namespace that Dynamo Snapshot's agent restores in it."""
RESTORE_TARGET: Final = "nvidia.com/snapshot-is-restore-target"
"""Label of such a pod in releases that had no annotation for it."""
CANDIDATE: Final = "nvidia.com/dynamo-checkpoint-restore-candidate"
"""Annotation of a pod that Dynamo's operator itself has restored, where the component has checkpoints of its own."""
GMS: Final = "nvidia.com/dynamo-snapshot-gms-mode"
"""Annotation of a PodSnapshot: how GPU memory was served besides; anything but `disabled` needs more than one pod's specification."""
AUTOMATIC: Final = "nvidia.com/dynamo-auto-checkpoint"
"""Annotation of a PodSnapshot, `true`: Dynamo's operator has taken it for a graph, and it is that one's alone."""
OWNER: Final = "nvidia.com/dynamo-checkpoint-owner-uid"
"""Annotation of such a one: that graph's uid. Another graph of the same name isn't it."""
COMPATIBILITY: Final = "nvidia.com/dynamo-snapshot-compatibility-version"
"""Annotation of a PodSnapshot: the version of Dynamo's rules by which it was taken."""
SUPPORTED: Final = ("v2",)
"""Of these rules, those that the operator takes whose source we know (deploy/operator/internal/consts/consts.go); it refuses `v1`, which
came before."""
RESTORED: Final = "nvidia.com/Restored"
"""Condition of a pod: what became of its restore."""


def collection(version: str, plural: str, namespace: str) -> str:
    """The path of all resources of a kind in a namespace; of all namespaces where it is empty."""
    inside = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{version}{inside}/{plural}"


def pods(namespace: str) -> str:
    """The path of all pods of a namespace."""
    return f"/api/v1/namespaces/{namespace}/pods"
