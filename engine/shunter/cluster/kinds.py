"""What the policy kinds are called in the API."""

from typing import Final

from shunter.model.policy import API_VERSION

GROUP, _, VERSION = API_VERSION.partition("/")

PLURALS: Final = {
    "PreemptionPolicy": "preemptionpolicies",
    "ReassignmentPolicy": "reassignmentpolicies",
    "CheckpointPolicy": "checkpointpolicies",
    "RebalancePolicy": "rebalancepolicies",
    "DisruptionBudget": "disruptionbudgets",
    "FleetProfile": "fleetprofiles",
}
"""By kind."""


def collection(kind: str, namespace: str) -> str:
    """The path of all resources of a kind in a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURALS[kind]}"
