"""What Dynamo's resources say, read without a server: values, refusals with their place, drift, and which pod goes."""

import copy
from typing import Any

import msgspec
import pytest
from shunter.cluster.dynamo.drift import by_git, differences, immutable, unsettled
from shunter.cluster.dynamo.following import View
from shunter.cluster.dynamo.parse import adapter, deployed, golden, graph, pod, registered
from shunter.cluster.dynamo.pools import lines, merged, samples, troubles
from shunter.cluster.dynamo.reading import Unreadable
from shunter.cluster.dynamo.record import Mark, body, component_of, marks, place
from shunter.cluster.dynamo.values import Golden, Registered
from shunter.cluster.dynamo.victim import certain, newest, rank
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import PoolId
from shunter.model.sample import Known, Missing


def meta(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "7", "generation": 4, **more}


def owned(manager: str, fields: Any) -> dict[str, Any]:
    return {"manager": manager, "operation": "Apply", "fieldsV1": {"f:spec": fields}}


@pytest.fixture
def beta() -> dict[str, Any]:
    """As v1beta1 has it."""
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": meta("llama", managedFields=[owned("kubectl", {"f:components": {'k:{"name":"decode"}': {"f:replicas": {}}}})]),
        "spec": {
            "backendFramework": "vllm",
            "components": [
                {"name": "Frontend", "type": "frontend", "replicas": 1},
                {"name": "prefill", "type": "prefill", "replicas": 2, "scalingAdapter": {}},
                {"name": "decode", "type": "decode", "replicas": 3},
                {"name": "Planner", "type": "planner"},
            ],
        },
        "status": {
            "state": "successful",
            "observedGeneration": 4,
            "components": {n: {"componentKind": "Deployment", "replicas": 2, "readyReplicas": 2} for n in ("prefill", "decode")},
        },
    }


@pytest.fixture
def alpha() -> dict[str, Any]:
    """The same graph as v1alpha1 has it."""
    services = {
        "Frontend": {"componentType": "frontend", "replicas": 1},
        "prefill": {"componentType": "worker", "subComponentType": "prefill", "replicas": 2, "scalingAdapter": {"enabled": True}},
        "decode": {"componentType": "worker", "subComponentType": "decode", "replicas": 3, "scalingAdapter": {"enabled": False}},
        "Planner": {"componentType": "planner"},
    }
    status = {"services": {n: {"componentKind": "Deployment", "replicas": 2, "readyReplicas": 2} for n in ("prefill", "decode")}}
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": meta("llama", managedFields=[owned("kubectl", {"f:services": {"f:decode": {"f:replicas": {}}}})]),
        "spec": {"services": services},
        "status": {"state": "successful", "observedGeneration": 4, **status},
    }


def an_adapter(component: str, replicas: Any, graph_name: str = "llama") -> dict[str, Any]:
    return {
        "apiVersion": "nvidia.com/v1beta1",
        "metadata": meta(f"{graph_name}-{component}", managedFields=[owned("planner", {"f:replicas": {}})]),
        "spec": {"dgdRef": {"name": graph_name, "serviceName": component}, "replicas": replicas},
    }


def test_both_versions_say_the_same(alpha: Any, beta: Any) -> None:
    old, new = graph(alpha), graph(beta)
    assert new.version == "v1beta1"
    for one in (old, new):
        assert [(c.name, c.role, c.replicas, c.adapter) for c in sorted(one.components, key=lambda c: c.name)] == [
            ("Frontend", None, 1, False),
            ("Planner", None, 1, False),
            ("decode", "decode", 3, False),
            ("prefill", "prefill", 2, True),
        ]
        assert one.plans
        assert unsettled(one) == ""
        decode = one.component("decode")
        assert decode is not None
        assert decode.managers == ("kubectl",)
        assert immutable(decode, one) == ""


@pytest.mark.parametrize("early", [{"disable": False}, {"disable": True}])
def test_the_adapter_of_an_early_release_is_not_taken_for_one_that_is_enabled(alpha: Any, early: Any) -> None:
    """There it was a matter of the adapter being there; asked for by `enabled` it is from 1.0 on."""
    alpha["spec"]["services"]["prefill"]["scalingAdapter"] = early
    assert not graph(alpha).having("prefill")[0].adapter


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda g: g["spec"]["components"][2].update(replicas="three"), "spec.components[2].replicas"),
        (lambda g: g["spec"]["components"][2].update(replicas=-1), "spec.components[2].replicas"),
        (lambda g: g["spec"]["components"][2].update(replicas=True), "spec.components[2].replicas"),
        (lambda g: g["spec"]["components"][1].pop("name"), "spec.components[1].name"),
        (lambda g: g["spec"]["components"].append({"name": "decode"}), "spec.components[2]"),
        (lambda g: g["spec"].update(components={"a": 1}), "spec.components"),
        (lambda g: g["status"].update(components=[1]), "status.components"),
        (lambda g: g["status"]["components"].update(decode=1), "status.components.decode"),
        (lambda g: g["status"].update(state=3), "status.state"),
        (lambda g: g["spec"]["components"].insert(0, "decode"), "spec.components[0]"),
        (lambda g: g["metadata"].update(name=""), "metadata.name"),
    ],
)
def test_what_cant_be_read_is_said_with_its_place(beta: Any, spoil: Any, where: str) -> None:
    spoil(beta)
    with pytest.raises(Unreadable) as raised:
        graph(beta)
    assert raised.value.problem.code == "SH270"
    assert f"`{where}`" in raised.value.problem.what
    assert raised.value.problem.subject.startswith("DynamoGraphDeployment ns/")


def test_unknown_fields_and_a_graph_that_nobody_has_looked_at_are_no_errors(beta: Any) -> None:
    del beta["status"], beta["metadata"]["managedFields"]
    beta["spec"]["tomorrow"] = {"x": [1]}
    found = graph(beta)
    assert "not yet seen by its operator" in unsettled(found)
    assert "status doesn't say" in immutable(found.having("decode")[0], found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rollingUpdate": {"phase": "InProgress"}}, "rolling update"),
        ({"rollingUpdate": {"phase": "Failed"}}, "rolling update"),
        ({"rollingUpdate": {"phase": "Completed"}}, ""),
        ({"restart": {"phase": "Restarting"}}, "restarted"),
        ({"state": "failed"}, "failed"),
        ({"state": "pending"}, "pending"),
        ({"observedGeneration": 3}, "generation 3 of 4"),
    ],
)
def test_a_graph_on_its_way_is_not_settled(beta: Any, change: Any, said: str) -> None:
    beta["status"].update(change)
    found = unsettled(graph(beta))
    assert (said in found) if said else found == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda g: g["status"]["components"]["decode"].update(componentKind="PodClique"), "PodClique"),
        (lambda g: g["spec"]["components"][2].update(multinode={"nodeCount": 2}), "2 nodes"),
        (
            lambda g: g["spec"].update(experimental={"componentGroups": [{"name": "pair", "components": [{"name": "decode"}]}]}),
            "component group pair",
        ),
    ],
)
def test_replicas_that_cant_be_changed_one_by_one(beta: Any, change: Any, said: str) -> None:
    change(beta)
    found = graph(beta)
    assert said in immutable(found.having("decode")[0], found)


def test_who_wrote_it_by_the_other_version_is_known_too(beta: Any) -> None:
    fields = {"f:services": {"f:decode": {"f:replicas": {}}}}
    beta["metadata"]["managedFields"].append({**owned("argocd-controller", fields), "apiVersion": "nvidia.com/v1alpha1"})
    assert graph(beta).having("decode")[0].managers == ("argocd-controller", "kubectl")


def test_git_is_who_puts_back_what_it_says() -> None:
    assert by_git(["kubectl", "argocd-controller"]) == "argocd-controller"
    assert by_git(["kubectl", "planner", "shunter-replicas", "manager"]) == ""


def test_other_resources() -> None:
    read = adapter(an_adapter("decode", 3))
    assert (read.graph, read.component, read.replicas, read.managers) == ("llama", "decode", 3, ("planner",))
    with pytest.raises(Unreadable, match=r"`spec\.replicas`"):
        adapter(an_adapter("decode", None))
    labels = {"nvidia.com/dynamo-graph-deployment-name": "llama"}
    below = deployed({"metadata": meta("llama-decode-abc", labels=labels), "spec": {"serviceName": "decode", "replicas": 2}})
    assert below is not None
    assert (below.graph, below.component, below.replicas) == ("llama", "decode", 2)
    assert deployed({"metadata": meta("alone"), "spec": {"serviceName": "decode"}}) is None


def test_registrations_say_who_serves_what() -> None:
    endpoint = {"namespace": "ns-llama", "component": "backend", "endpoint": "generate", "instance_id": 1}
    inner = {**endpoint, "endpoint": "worker_kv_query_source_1"}
    card = {"type": "Model", "card_json": {"display_name": "llama-70b", "worker_type": "decode"}}
    found = {
        "metadata": meta("llama-decode-1-main", ownerReferences=[{"kind": "Pod", "name": "llama-decode-1", "uid": "u"}]),
        "spec": {"data": {"endpoints": {"a": endpoint, "b": inner}, "model_cards": {"c": card}}},
    }
    read = registered(found)
    assert (read.pod, read.pod_uid, read.endpoints, read.models, read.role) == (
        "llama-decode-1",
        "u",
        ("ns-llama/backend/generate",),
        ("llama-70b",),
        "decode",
    )
    found["spec"]["data"]["endpoints"]["a"] = 5
    with pytest.raises(Unreadable, match=r"`spec\.data\.endpoints\.a`"):
        registered(found)


def test_a_snapshot_that_failed_or_isnt_ready_is_no_golden_image() -> None:
    found: Any = {
        "metadata": meta("gold", labels={"nvidia.com/dynamo-component": "prefill"}),
        "spec": {"source": {"podRef": {"name": "p", "containers": ["main"]}}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert golden(found).ready
    assert golden(found).component == "prefill"
    found["status"]["conditions"].append({"type": "Failed", "status": "True"})
    assert not golden(found).ready
    found["spec"]["source"]["podRef"]["containers"] = []
    with pytest.raises(Unreadable, match="containers"):
        golden(found)


def a_pod(name: str, **more: Any) -> dict[str, Any]:
    ready, phase, cost, node = more.get("ready", True), more.get("phase", "Running"), more.get("cost"), more.get("node", "n")
    annotations = {"controller.kubernetes.io/pod-deletion-cost": cost} if cost is not None else {}
    return {
        "metadata": meta(
            name, annotations=annotations, creationTimestamp=more.get("created", "2026-01-01T00:00:00Z"), **more.get("meta", {})
        ),
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]},
    }


def test_drift_is_told_with_both_values_and_nothing_of_a_graph_on_its_way(beta: Any) -> None:
    found = graph(beta)
    adapters = [adapter(an_adapter("prefill", 4))]
    below = [
        deployed(
            {
                "metadata": meta("llama-decode", labels={"nvidia.com/dynamo-graph-deployment-name": "llama"}),
                "spec": {"serviceName": "decode", "replicas": 1},
            }
        )
    ]
    pods = {"decode": [pod(a_pod("d0")), pod(a_pod("d1")), pod(a_pod("d2", meta={"deletionTimestamp": "x"}))]}
    told = differences(found, adapters, [one for one in below if one], pods)
    assert [one.what for one in told] == [
        "adapter llama-prefill asks for 4 of prefill, and the graph has 2",
        "the graph asks for 3 of decode, and llama-decode below it has 1",
        "the graph asks for 3 of decode, and there are 2 pods",
    ]
    assert {one.code for one in told} == {"SH271"}
    assert "none for prefill" in differences(found, [], [], {})[0].what
    beta["status"]["rollingUpdate"] = {"phase": "InProgress"}
    assert differences(graph(beta), adapters, [], pods) == ()


def test_who_goes_first_is_the_controllers_order() -> None:
    waiting = pod(a_pod("a", node="", phase="Pending", ready=False))
    pending = pod(a_pod("b", phase="Pending", ready=False))
    unready = pod(a_pod("c", ready=False, cost="100"))
    cheap = pod(a_pod("d", cost="-5"))
    plain = pod(a_pod("e", cost="no number"))
    assert sorted([plain, cheap, unready, pending, waiting], key=rank) == [waiting, pending, unready, cheap, plain]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([{"ready": False}], "isn't ready"),
        ([{"node": "", "phase": "Pending", "ready": False}], "isn't ready"),
        ([{"cost": str(-(2**31))}], "deletion cost is as low"),
    ],
)
def test_a_cost_outweighs_neither_readiness_nor_as_low_a_cost(others: Any, said: str) -> None:
    pods = [pod(a_pod("chosen")), *(pod(a_pod(f"o{n}", **one)) for n, one in enumerate(others))]
    with pytest.raises(Rejected, match=said):
        certain(pods, "uid-chosen", 2)
    assert certain([pods[0], pod(a_pod("fine", cost="7"))], "uid-chosen", 2).name == "chosen"


def test_the_chosen_one_must_be_there_and_as_many_as_are_asked_for() -> None:
    pods = [pod(a_pod("chosen")), pod(a_pod("o"))]
    for count, chosen in ((3, "uid-chosen"), (1, "uid-chosen"), (2, "uid-x")):
        with pytest.raises(Rejected) as raised:
            certain(pods, chosen, count)
        assert raised.value.problem.code == "SH274"


def test_what_came_last_can_be_done_without() -> None:
    pods = [pod(a_pod("old", created="2026-01-01T00:00:00Z", cost="-9")), pod(a_pod("new", created="2026-01-01T00:00:09Z"))]
    last = newest(pods)
    assert last is not None
    assert last.name == "new"
    assert newest([]) is None


def test_the_resource_of_record_is_the_adapter_where_there_is_one(beta: Any) -> None:
    other = an_adapter("prefill", "broken", "another")  # of another graph: it hurts only its own
    found = place(beta, [other, an_adapter("prefill", 5)], "prefill")
    assert (found.plural, found.name, found.replicas, found.managers) == (
        "dynamographdeploymentscalingadapters",
        "llama-prefill",
        5,
        ("planner",),
    )
    assert place(beta, [], "decode").plural == "dynamographdeployments"
    for adapters, component in (([], "prefill"), ([an_adapter("prefill", 1)] * 2, "prefill"), ([], "nobody")):
        with pytest.raises(Rejected) as raised:
            place(beta, adapters, component)
        assert raised.value.problem.code == "SH272"


@pytest.mark.parametrize("version", ["alpha", "beta"])
def test_what_is_ours_already_is_applied_again_or_it_would_be_removed(version: str, request: pytest.FixtureRequest) -> None:
    found = copy.deepcopy(request.getfixturevalue(version))
    below = (
        {"f:services": {"f:prefill": {"f:replicas": {}}}}
        if version == "alpha"
        else {"f:components": {'k:{"name":"prefill"}': {"f:replicas": {}}}}
    )
    found["metadata"]["managedFields"].append(owned("shunter-replicas", below))
    one = place(found, [], "decode")
    mark = Mark(operation="op", component="decode", before=3, after=2, pod="d", uid="u")
    written = body(one, [(one.component, 2, mark)])
    spec = written["spec"].get("services") or {c["name"]: c for c in written["spec"]["components"]}
    assert {name: part["replicas"] for name, part in spec.items()} == {"decode": 2, "prefill": 2}
    assert (written["metadata"]["resourceVersion"], written["metadata"]["uid"]) == ("7", "uid-llama")
    assert marks({"metadata": written["metadata"]}) == (mark,)


def test_marks_of_others_stay_and_what_isnt_a_mark_is_none(beta: Any) -> None:
    beta["metadata"]["annotations"] = {"shunter.dev/shifts": "[1]"}
    assert marks(beta) == ()
    one = place(beta, [], "decode")
    first = Mark(operation="a", component="decode", before=3, after=2)
    text = body(one, [(one.component, 2, first)])["metadata"]["annotations"]
    beta["metadata"]["annotations"] = text
    one = place(beta, [], "decode")
    assert one.mark("a") == first
    again = Mark(operation="a", component="decode", before=3, after=2, undone=True)
    second = Mark(operation="b", component="decode", before=3, after=2)
    beta["metadata"]["annotations"] = body(one, [(one.component, 2, again), (one.component, 2, second)])["metadata"]["annotations"]
    assert marks(beta) == (again, second)


def test_what_is_over_makes_room_before_what_may_be_under_way(beta: Any) -> None:
    def written(*new: Mark) -> tuple[Mark, ...]:
        one = place(beta, [], "decode")
        beta["metadata"]["annotations"] = body(one, [(one.component, None, mark) for mark in new])["metadata"]["annotations"]
        return marks(beta)

    def never(n: int) -> Mark:
        return Mark(operation=f"never-{n}", component="decode", before=3, after=3, undone=True)

    under_way = Mark(operation="a", component="decode", before=3, after=2)
    back = Mark(operation="b", component="decode", before=2, after=1, undone=True)
    written(back)
    written(under_way)
    for n in range(20):
        found = written(never(n))
        assert {under_way, back, never(n)} <= set(found), "what is new stays"
        assert len(found) <= 16
    made = [Mark(operation=f"made-{n}", component="decode", before=3, after=2) for n in range(20)]
    for n, mark in enumerate(made):
        found = written(mark)
        assert (under_way in found) == (n < 15), "the oldest goes only for want of anything that is over"
    assert found == tuple(made[-16:])
    assert written(never(0), never(1)) == (*made[-14:], never(0), never(1))


def a_view(found: Any, **more: Any) -> View:
    return View(namespace="ns", graphs=(graph(found),), **more)


def test_a_pool_has_its_number_and_why_it_isnt_changed(beta: Any) -> None:
    adapters = (adapter(an_adapter("prefill", 4)),)
    taken = samples(a_view(beta, adapters=adapters), 9.0)
    number = taken[PoolId("llama/decode")]["replicas"]
    assert isinstance(number, Known)
    assert (number.value, number.at, number.unit) == (3.0, 9.0, "workers")
    wanted = taken[PoolId("llama/prefill")]["desired"]
    assert isinstance(wanted, Known)
    assert wanted.value == 4.0, "what whoever scales has asked for counts, also before the operator has carried it over"
    beta["metadata"]["managedFields"][0]["manager"] = "argocd-controller"
    beta["status"]["rollingUpdate"] = {"phase": "InProgress"}
    fields = samples(a_view(beta, adapters=adapters), 9.0)[PoolId("llama/decode")]
    assert isinstance(fields["settled"], Missing)
    assert "rolling update" in fields["settled"].reason
    assert isinstance(fields["replicas"], Missing)
    assert "argocd-controller" in fields["replicas"].reason


def test_an_adapter_that_isnt_there_leaves_what_is_wanted_unknown(beta: Any) -> None:
    fields = samples(a_view(beta), 9.0)[PoolId("llama/prefill")]
    assert isinstance(fields["desired"], Missing)
    assert isinstance(fields["replicas"], Missing), "nothing isn't none"


def test_in_doubt_nothing_is_known(beta: Any) -> None:
    doubt = Problem(code="SH258", what="the API server has confirmed nothing of pods for 180 s", remedy="r")
    view = a_view(beta, doubt=doubt)
    assert all(isinstance(s, Missing) for fields in samples(view, 9.0).values() for s in fields.values())
    assert troubles(view) == (doubt,)


def test_what_a_planner_publishes_counts_before_what_stands_in_a_resource_unless_it_is_missing(beta: Any) -> None:
    view = a_view(beta)
    own = Known(value=7, unit="workers", at=9.0, query="gauge")
    pool = PoolId("llama/decode")
    assert merged({pool: {"desired": own}}, view, 9.0)[pool]["desired"] is own
    kept = merged({pool: {"desired": Missing(reason="no series")}, "other/decode": {"desired": own}}, view, 9.0)
    assert isinstance(kept[pool]["desired"], Known)
    assert kept[PoolId("other/decode")] == {"desired": own}


def test_before_graphs_were_listed_any_pool_may_be_one_of_theirs() -> None:
    why = Problem(code="SH258", what="the API server has confirmed nothing of pods yet: forbidden", remedy="r")
    own = Known(value=7, unit="workers", at=9.0, query="gauge")
    fields = merged({PoolId("llama/decode"): {"running": own}}, View(namespace="ns", doubt=why), 9.0)[PoolId("llama/decode")]
    assert fields["running"] is own
    assert {n: s.reason for n, s in fields.items() if isinstance(s, Missing)} == dict.fromkeys(("settled", "replicas", "desired"), why.what)
    published = merged({PoolId("llama/decode"): {"desired": own}}, View(namespace="ns", doubt=why), 9.0)[PoolId("llama/decode")]
    assert published["desired"] is own


def test_where_dynamo_is_not_installed_pools_are_what_they_were() -> None:
    absent = Problem(code="SH252", what="the API server has no DynamoGraphDeployment", remedy="Install Dynamo's operator")
    own = {PoolId("chat/decode"): {"running": Known(value=7, unit="workers", at=9.0, query="gauge")}}
    assert merged(own, View(namespace="ns", doubt=absent), 9.0) == own


def test_people_see_numbers_registrations_and_golden_images(beta: Any) -> None:
    pods = {("llama", "decode"): (pod(a_pod("d0")), pod(a_pod("d1")), pod(a_pod("d2", ready=False)))}
    known = Registered(namespace="ns", name="d0", pod="d0", pod_uid="uid-d0", endpoints=("ns/backend/generate",), models=("llama-70b",))
    gold = Golden(namespace="ns", name="gold", pod="gone", container="main", ready=True, graph="llama", component="prefill")
    unready = msgspec.structs.replace(gold, name="bad", ready=False)
    by_pod = msgspec.structs.replace(gold, name="of-a-pod", graph="", component="", pod="d1")
    view = a_view(beta, pods=pods, registered={"uid-d0": known}, golden=(gold, unready, by_pod))
    assert lines(view, 9.0) == (
        "llama/decode: 3 of record; wanted: 3 workers; 1 of 2 ready pods registered (llama-70b); golden image of-a-pod",
        "llama/prefill: not to be changed: a component has a scaling adapter that isn't there; "
        "wanted: missing (a component has a scaling adapter that isn't there); golden image gold; "
        "no golden image to start from: it has no pod of its controller's own that says what one has to be like",
    )


def test_which_component_serves_a_role_must_be_certain(beta: Any) -> None:
    assert component_of(graph(beta), "decode") == "decode"
    beta["spec"]["components"].append({"name": "decode-large", "type": "decode"})
    with pytest.raises(Rejected, match="several components for decode: decode, decode-large"):
        component_of(graph(beta), "decode")
    beta["spec"]["components"] = []
    with pytest.raises(Rejected, match="no component for prefill"):
        component_of(graph(beta), "prefill")
