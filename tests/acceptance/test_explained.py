"""Complaints that nobody could be told why nothing happened, or why not there; and who else writes what is written here.

Each test is named after the row of the list of public bug reports that it answers.
"""

from typing import Any, NamedTuple

import msgspec
import pytest
from shunter.cluster.dynamo.following import View
from shunter.cluster.dynamo.parse import adapter, deployed, graph
from shunter.cluster.dynamo.pools import merged, troubles
from shunter.cluster.dynamo.record import changeable, place
from shunter.decide.evaluate import evaluate
from shunter.decide.explain import Explanation, explain, explain_node
from shunter.decide.profile import Profile
from shunter.lang.bulk import BulkCelRules
from shunter.model.errors import Rejected
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState
from shunter.model.policy import PolicySet
from shunter.model.sample import Known, Missing, Sample
from shunter.model.snapshot import Fleet, Notice, NoticeKind, Samples, Snapshot
from test_deciding import BUDGET, EMPTY, FLEET, NOW, SHIFT, crowd, decide, kinds, node, of, read, worker

NOT_NOW = BUDGET.replace("ZONE ", "zone: UTC, ").replace("maxConcurrent: 50%", "maxConcurrent: 1")
LATER = SHIFT.replace("for: 0s", "for: 2m").replace("WHEN", "pools.decode.kvUsage > 0.5")
FEW = SHIFT.replace("WHEN", "pools.decode.workers > 0") + "  limits: {from: {min: 2}}\n"
SEEN_TO = (
    "apiVersion: shunter.dev/v1alpha1\nkind: CheckpointPolicy\nmetadata: {name: often}\n"
    "spec: {workers: {role: decode}, every: 5m, when: 'worker.kvUsage < 0.5 && worker.running < 8.0'}\n"
)
SAVE = (
    "apiVersion: shunter.dev/v1alpha1\nkind: PreemptionPolicy\nmetadata: {name: save}\n"
    "spec: {workers: {all: true}, notices: [preemption]}\n"
)
FIRST = (
    "apiVersion: shunter.dev/v1alpha1\nkind: RebalancePolicy\nmetadata: {name: first}\n"
    "spec: {priority: 900, workers: {all: true}, when: 'has(node.labels.empty)', for: 0s, step: 9}\n"
)
TAKES = "apiVersion: shunter.dev/v1alpha1\nkind: DisruptionBudget\nmetadata: {name: all}\nspec: {workers: {all: true}, maxConcurrent: 9}\n"


def usage(value: float | None, running: float = 1.0) -> Samples:
    found: Sample = Missing(reason="query returned 0 series; expected 1") if value is None else known(value)
    return Samples(workers={w: {"kvUsage": found, "running": known(running)} for w in ("decode-0", "decode-1")})


def known(value: float) -> Known:
    return Known(value=value, unit="1", at=NOW, query="q")


class Asked(NamedTuple):
    """What there is, and what is said of `decode-0` by the policy: which gate, what of its value, of what it would take, and since when."""

    policies: tuple[str, ...]
    policy: str
    gate: str
    value: str
    needs: str
    samples: Samples = Samples()
    fleet: Fleet = FLEET
    verdict: Verdict = Verdict.HOLD
    since: float | None = None
    notices: tuple[Notice, ...] = ()
    behind: int = 0
    """Snapshots before, 30 s apart."""


GOING = (Notice(id="n", kind=NoticeKind.PREEMPTION, node="a", seen_at=NOW - 7, deadline=NOW + 3),)
CASES = {
    "a threshold": Asked(
        (SEEN_TO,), "often", "when", "worker.kvUsage = 0.9, worker.running = 1", "worker.kvUsage is 0.9, and would have to be < 0.5",
        usage(0.9), verdict=Verdict.PASS,
    ),
    "two thresholds": Asked(
        (SEEN_TO,), "often", "when", "worker.running = 20", "would have to be < 0.5, and worker.running is 20, and would have to be < 8",
        usage(0.9, 20.0), verdict=Verdict.PASS,
    ),
    "an unknown": Asked(
        (SEEN_TO,), "often", "when", "query returned 0 series", "have to be a value for worker.kvUsage (query returned 0 series",
        usage(None), verdict=Verdict.INCONCLUSIVE,
    ),
    "a selector": Asked(
        (EMPTY.replace("{all: true}", "{role: prefill}"),), "empty", "workers.role", "", "selector would have to cover its role",
        verdict=Verdict.PASS,
    ),
    "a time": Asked((LATER,), "shift", "for", "120 s wanted", "nothing but time", usage(0.9), since=NOW - 60, behind=2),
    "a floor": Asked((FEW,), "shift", "limits.from.min", "2 decode workers, one fewer after it, at least 2", "or `limits.from.min` to"),
    "a window": Asked(
        (EMPTY, NOT_NOW), "empty", "budget", "opens at thu 2026-05-28 22:00 UTC", "its window to open", fleet=crowd(2)
    ),
    "no notice": Asked((SAVE,), "save", "notices", "none of preemption is open for a", "a notice of one", verdict=Verdict.PASS),
    "no time": Asked(
        (SAVE,), "save", "otherwise", "", "", fleet=crowd(1),
        notices=(Notice(id="n", kind=NoticeKind.PREEMPTION, node="a0", seen_at=NOW - 7, deadline=NOW + 3),),
        verdict=Verdict.ACT, since=NOW - 7,
    ),
    "another policy": Asked((FIRST, EMPTY, TAKES), "empty", "worker", "outranked by first", "would have to be over", fleet=crowd(1)),
}  # fmt: skip


def told(asked: Asked) -> tuple[Snapshot, Any, PolicySet]:
    policies = PolicySet(commit="c", digest="sha256:p", policies=tuple(sorted(read(*asked.policies), key=lambda p: p.name)))
    current = Snapshot(at=NOW, fleet=asked.fleet, samples=asked.samples, notices=asked.notices)
    series = [msgspec.structs.replace(current, at=NOW - 30 * n) for n in range(asked.behind, -1, -1)]
    return current, evaluate(policies, series, EngineState(), NOW, BulkCelRules(), Profile(gpu_restore_floor_s=0)), policies


def said(asked: Asked) -> Explanation:
    current, evaluation, policies = told(asked)
    (found,) = [one for one in explain(evaluation, policies, current, "decode-0") if one.policy == asked.policy]
    return found


@pytest.mark.parametrize("case", CASES)
def test_ac57_each_policy_says_its_first_gate_its_value_its_threshold_and_since_when(case: str) -> None:
    """karpenter#3745, #2238: `cannot disrupt node` told neither which condition nor its value."""
    asked = CASES[case]
    found = said(asked)
    assert (found.verdict, found.gate) == (asked.verdict, asked.gate), found
    assert asked.value in found.value, found.value
    assert asked.needs in found.needed, found.needed
    assert asked.since is None or found.since == asked.since
    assert found.reason


def test_ac57_the_gate_is_the_first_that_stands_in_the_way_and_changes_when_that_is_over() -> None:
    """Of several that are shut at once, the one that is asked first; once it is open, the next."""
    shut = (FEW.replace("pools.decode.workers > 0", "pools.decode.kvUsage > 0.5").replace("for: 0s", "for: 2m"),)
    gates = []
    for samples, behind, texts in (
        (usage(0.1), 0, shut),
        (usage(0.9), 0, shut),
        (usage(0.9), 4, shut),
        (usage(0.9), 4, (shut[0].replace("min: 2", "min: 1"),)),
    ):
        gates.append(said(Asked(texts, "shift", "", "", "", samples, behind=behind)).gate)
    assert gates == ["when", "for", "limits.from.min", "pick.prefer"]


def test_ac57_of_each_node_it_is_said_why_not_there() -> None:
    """The reason of every node that a worker can't go to: by name, or by number where there are many alike."""
    nodes = (
        node("a", "decode-0", labels={"empty": "yes"}),
        node("b", "decode-1"),
        node("c", None, reachable=False),
        node("d", None, facts={"kernel": "6.5"}),
        node("e", None, runtime="pretend"),
        *(node(f"f{n}", None, labels={"zone": "far"}) for n in range(9)),
    )
    nodes = (msgspec.structs.replace(nodes[0], facts={"kernel": "6.8"}), *nodes[1:])
    fleet = Fleet(nodes=nodes, workers=(worker("decode-0", "a/0"), worker("decode-1", "b/0")))
    near = EMPTY.replace("step: 9}", "step: 9, to: {where: '!has(node.labels.zone)'}}")
    result = decide(read(near), fleet)
    reason = of(result, "empty", "decode-0").reason
    for part in (
        "b: no free slot",
        "c: it doesn't answer",
        "d: its kernel is 6.5, not 6.8",
        "1 more: its runtime is pretend, not criu",
        "9 more:",
    ):
        assert part in reason, reason
    going = Notice(id="n", kind=NoticeKind.MAINTENANCE, node="b", seen_at=NOW, deadline=NOW + 9)
    current, evaluation, policies = told(Asked((near,), "empty", "", "", "", fleet=fleet, notices=(going,)))
    against = {name: explain_node(evaluation, policies, current, name).against for name in ("b", "c", "d")}
    assert against == {"b": "maintenance: a notice is open for it", "c": "it doesn't answer", "d": ""}


def a_graph(managers: tuple[str, ...] = (), *, scaled: bool = False, decode: int = 2) -> dict[str, Any]:
    """As the API server has it; `managers` have written the replicas of `decode`."""
    fields = {"f:spec": {"f:components": {'k:{"name":"decode"}': {"f:replicas": {}}}}}
    written = [{"manager": m, "operation": "Apply", "fieldsV1": fields} for m in managers]
    extra: dict[str, Any] = {"scalingAdapter": {}} if scaled else {}
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "chat", "namespace": "ns", "uid": "u", "resourceVersion": "7", "generation": 4, "managedFields": written},
        "spec": {
            "backendFramework": "vllm",
            "components": [
                {"name": "prefill", "type": "prefill", "replicas": 1},
                {"name": "decode", "type": "decode", "replicas": decode, **extra},
            ],
        },
        "status": {
            "state": "successful",
            "observedGeneration": 4,
            "components": {n: {"componentKind": "Deployment", "replicas": 2, "readyReplicas": 2} for n in ("prefill", "decode")},
        },
    }


def an_adapter(replicas: int, *managers: str) -> dict[str, Any]:
    fields = {"f:spec": {"f:replicas": {}}}
    written = [{"manager": m, "operation": "Update", "fieldsV1": fields, "subresource": "scale"} for m in managers]
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeploymentScalingAdapter",
        "metadata": {
            "name": "chat-decode",
            "namespace": "ns",
            "uid": "v",
            "resourceVersion": "8",
            "generation": 1,
            "managedFields": written,
        },
        "spec": {"replicas": replicas, "dgdRef": {"name": "chat", "componentName": "decode"}},
    }


ALWAYS = read(SHIFT.replace("WHEN", "pools.decode.workers > 0"))


def shifted(view: View) -> Any:
    return decide(ALWAYS, samples=Samples(pools=merged({}, view, NOW)))


@pytest.mark.parametrize("manager", ["argocd-controller", "argocd-application-controller", "kustomize-controller", "helm-controller"])
def test_ac16_a_field_that_somebody_else_keeps_is_left_to_him_and_it_is_said(manager: str) -> None:
    """keda#5288: two controllers rewrote one field, each undoing the other's, for ever."""
    mine = View(namespace="ns", graphs=(graph(a_graph()),))
    assert kinds(shifted(mine)) != []
    both = View(namespace="ns", graphs=(graph(a_graph((manager, "shunter-replicas"))),))
    result = shifted(both)
    found = of(result, "shift", "chat")
    assert (kinds(result), found.verdict) == ([], Verdict.HOLD)
    assert found.reason == f"the replicas of decode are set by Git ({manager} has written them), which would put them back"
    with pytest.raises(Rejected) as refused:  # and once more by whoever is about to write
        changeable(place(a_graph((manager,)), [], "decode"))
    assert refused.value.problem.code == "SH273"
    changeable(place(a_graph(("kubectl",)), [], "decode"))
    scaled = [an_adapter(2, "planner", manager)]
    with pytest.raises(Rejected):
        changeable(place(a_graph(scaled=True), scaled, "decode"))


def test_ac17_the_resource_of_record_counts_and_what_was_edited_below_it_is_said() -> None:
    """dynamo#4420: replicas were edited below the object that owns them, and nobody was told that it would be put back."""
    below = deployed(
        {
            "metadata": {
                "name": "chat-decode-x",
                "namespace": "ns",
                "uid": "w",
                "labels": {"nvidia.com/dynamo-graph-deployment-name": "chat"},
            },
            "spec": {"serviceName": "decode", "replicas": 5},
        }
    )
    assert below is not None
    drifted = View(namespace="ns", graphs=(graph(a_graph()),), deployed=(below,))
    (problem,) = [p for p in troubles(drifted) if "below it" in p.what]
    assert (problem.code, problem.subject) == ("SH271", "ns/chat")
    assert problem.what == "the graph asks for 2 of decode, and chat-decode-x below it has 5"
    replicas = merged({}, drifted, NOW)["chat/decode"]["replicas"]
    assert isinstance(replicas, Known)
    assert replicas.value == 2, "what the graph says counts, not what is below it"
    one = place(a_graph(), [], "decode")
    assert (one.plural, one.replicas) == ("dynamographdeployments", 2)
    scaled = a_graph(scaled=True)
    one = place(scaled, [an_adapter(3)], "decode")
    assert (one.plural, one.replicas) == ("dynamographdeploymentscalingadapters", 3), "with an adapter that is the one of record"
    told_ = troubles(View(namespace="ns", graphs=(graph(scaled),), adapters=(adapter(an_adapter(3)),)))
    assert "adapter chat-decode asks for 3 of decode, and the graph has 2" in [p.what for p in told_]
