"""The custom resource definitions themselves: names, columns, the status subresource."""

from typing import Final

import yaml
from shunter.cluster.kinds import GROUP, PLURALS, VERSION
from shunter.cluster.status import PolicyStatus
from shunter.lang.schema import KINDS, Schema, definitions, policy_schema

from crds.operation import operation_definition
from crds.structural import structural

CATEGORY: Final = "shunter"
"""`kubectl get shunter` shows resources of all kinds."""


SHORT: Final = {
    "PreemptionPolicy": "preempt",
    "ReassignmentPolicy": "reassign",
    "CheckpointPolicy": "ckpt",
    "RebalancePolicy": "rebal",
    "DisruptionBudget": "dbudget",
    "FleetProfile": "fprofile",
}
"""What people type for a kind."""
_KEPT_BY_US: Final = "# Made by scripts/generate-crds from shunter.model: change it there.\n"


def _column(name: str, kind: str, path: str, description: str, priority: int = 0) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, "description": description, **({"priority": priority} if priority else {})}


def _condition(kind: str, field: str = "status") -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


COLUMNS: Final = (
    _column("Accepted", "string", _condition("Accepted"), "Whether it is in force as it stands here"),
    _column("Active", "string", _condition("Active"), "Whether what it decides is done"),
    _column("Degraded", "string", _condition("Degraded"), "Whether something is wrong with it"),
    _column("Says", "string", ".status.lastDecision.verdict", "The weightiest thing that it says now"),
    _column("Act", "integer", ".status.counts.act", "Subjects that it acts on", 1),
    _column("Hold", "integer", ".status.counts.hold", "Subjects that it would act on, but for a gate", 1),
    _column("Unknown", "integer", ".status.counts.inconclusive", "Subjects of which an input is missing", 1),
    _column("Commit", "string", ".status.commit", "The commit that the version in force came from", 1),
    _column("Age", "date", ".metadata.creationTimestamp", "Since when it is here"),
)


def _status() -> Schema:
    written = structural("PolicyStatus", definitions(PolicyStatus))
    conditions: Schema = written["properties"]["conditions"]
    conditions.update({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
    for found in (conditions["items"]["properties"]["lastTransitionTime"], written["properties"]["lastDecision"]["properties"]["at"]):
        found["format"] = "date-time"
    return written


def _root(kind: str) -> Schema:
    written = structural(kind, policy_schema()["$defs"])
    properties = written["properties"]
    # one policy is one statement: nobody owns a half of it
    properties["spec"]["x-kubernetes-map-type"] = "atomic"
    # of metadata a schema may say something about the name only
    name = properties["metadata"]["properties"]["name"]
    properties["metadata"] = {"type": "object", "properties": {"name": {key: name[key] for key in ("type", "pattern", "maxLength")}}}
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["status"] = _status()
    written["required"] = ["spec"]
    return written


def definition(kind: str) -> Schema:
    """The CustomResourceDefinition of a policy kind."""
    plural = PLURALS[kind]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "shunter", "app.kubernetes.io/part-of": "shunter"},
            # applied by a client, the whole of it would stand in an annotation as well, which has a limit
            "annotations": {"argocd.argoproj.io/sync-options": "ServerSideApply=true", "argocd.argoproj.io/sync-wave": "-10"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [SHORT[kind]],
                "categories": [CATEGORY],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": list(COLUMNS),
                    "schema": {"openAPIV3Schema": _root(kind)},
                }
            ],
        },
    }


class _Plain(yaml.SafeDumper):
    """No anchors: every place is written out."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(document: Schema) -> str:
    return _KEPT_BY_US + yaml.dump(document, Dumper=_Plain, sort_keys=False, width=140, allow_unicode=True)


def rendered() -> dict[str, str]:
    """File name to text, for all of them and the Kustomization that lists them."""
    made = [*(definition(kind) for kind in KINDS), operation_definition(CATEGORY)]
    files = {f"{one['metadata']['name']}.yaml": _text(one) for one in made}
    listed = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": sorted(files)}
    return {**files, "kustomization.yaml": _text(listed)}
