"""deploy/argocd: health checks in a real Lua on what the engine writes, the check before a sync, and what applications may do."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lua_health import judge
from shunter.app.settings import load as load_settings
from shunter.cli.main import execute
from shunter.cluster.kinds import PLURALS
from shunter.cluster.operation import Batch, resource, status
from shunter.cluster.reading import file_of, read
from shunter.cluster.telling import gather, statuses
from shunter.lang.load import load
from shunter.model.errors import Problem
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import Digest, Epoch, OperationId, PolicyName, WorkerId
from shunter.model.operation import OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "argocd"
EXAMPLE = ROOT / "examples" / "policy-repo"
KUBECTL = shutil.which("kubectl", path=f"{ROOT / '.assets' / 'kubernetes'}:{os.environ.get('PATH', '')}")
OLD = "a" * 40
SPECS: dict[str, dict[str, Any]] = {
    "PreemptionPolicy": {"workers": {"all": True}, "notices": ["preemption"]},
    "ReassignmentPolicy": {
        "workers": {"graph": "g"}, "from": "decode", "to": "prefill", "when": "pools.prefill.waiting > 30", "for": "1m",
    },
    "CheckpointPolicy": {"workers": {"all": True}, "every": "5m"},
    "RebalancePolicy": {"workers": {"all": True}, "when": 'node.labels["a"] == "b"', "to": {"where": 'node.labels["a"] == "c"'}},
    "DisruptionBudget": {"workers": {"all": True}, "maxConcurrent": 1},
    "FleetProfile": {"gpuModel": "B200", "dump": "5GB/s"},
}  # fmt: skip
WRONG = {kind: {**spec, "evry": "5m"} for kind, spec in SPECS.items()}


@pytest.fixture
def health(tmp_path: Path) -> Callable[[dict[str, Any]], tuple[str, str]]:
    return lambda one: judge(one, tmp_path)


def policy(kind: str, spec: dict[str, Any], generation: int = 3) -> dict[str, Any]:
    meta = {"name": "one", "namespace": "shunter-policies", "uid": "u", "generation": generation, "resourceVersion": "9"}
    return {"apiVersion": "shunter.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


def told(one: dict[str, Any], findings: tuple[Finding, ...] = (), older: dict[str, Any] | None = None) -> dict[str, Any]:
    """The resource with the status that the engine writes. `older`: what was in force before."""
    before = load(read([(one["kind"], older)]).revision, None) if older else None
    reading = read([(one["kind"], one)])
    found = statuses(reading, load(reading.revision, before), gather(findings), lambda _path, _resource: {}, 1_800_000_000.0)
    return {**one, "status": msgspec.to_builtins(found[file_of(one["kind"], "one")])}


@pytest.mark.parametrize("kind", PLURALS)
def test_a_policy_of_each_kind(kind: str, health: Callable[[dict[str, Any]], tuple[str, str]]) -> None:
    good = policy(kind, SPECS[kind])
    assert health(good) == ("Progressing", "the engine hasn't looked at it yet")
    assert health({**good, "status": {}}) == ("Progressing", "the engine hasn't looked at it yet")
    assert health(told(good)) == ("Healthy", "what it decides is done")
    newer = {**told(good), "metadata": {**good["metadata"], "generation": 4}}
    assert health(newer)[0] == "Progressing"
    status, message = health(told(policy(kind, WRONG[kind])))
    assert (status, "SH111" in message) == ("Degraded", True)


def blind(verdict: Verdict) -> tuple[Finding, ...]:
    return (Finding(policy=PolicyName("one"), subject="d0", verdict=verdict, lane="voluntary", reason="metrics.x is missing"),)


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (told(policy("CheckpointPolicy", {**SPECS["CheckpointPolicy"], "mode": "preview"})), ("Healthy", "nothing is done")),
        (told(policy("CheckpointPolicy", {**SPECS["CheckpointPolicy"], "mode": "off"})), ("Suspended", "its mode is off")),
        (told(policy("CheckpointPolicy", SPECS["CheckpointPolicy"]), blind(Verdict.INCONCLUSIVE)), ("Degraded", "metrics.x is missing")),
        (told(policy("CheckpointPolicy", SPECS["CheckpointPolicy"]), blind(Verdict.HOLD)), ("Healthy", "what it decides is done")),
        (
            told(policy("CheckpointPolicy", WRONG["CheckpointPolicy"]), older=policy("CheckpointPolicy", SPECS["CheckpointPolicy"])),
            ("Degraded", "is in force instead"),
        ),
    ],
    ids=["preview", "off", "blind", "held", "older"],
)
def test_what_a_policy_says_of_itself(
    one: dict[str, Any], wanted: tuple[str, str], health: Callable[[dict[str, Any]], tuple[str, str]]
) -> None:
    status, message = health(one)
    assert status == wanted[0]
    assert wanted[1] in message


def test_a_condition_of_an_older_generation_or_one_that_is_not_there(health: Callable[[dict[str, Any]], tuple[str, str]]) -> None:
    one = told(policy("CheckpointPolicy", SPECS["CheckpointPolicy"]))
    conditions = one["status"]["conditions"]
    old = {**one["status"], "conditions": [{**conditions[0], "observedGeneration": 2}, *conditions[1:]]}
    assert health({**one, "status": old}) == ("Progressing", "what is said of it is about an older generation")
    for missing in range(3):
        some = {**one["status"], "conditions": [c for n, c in enumerate(conditions) if n != missing]}
        assert health({**one, "status": some})[0] == "Progressing"


def operation(outcome: Status | None, reason: str = "") -> dict[str, Any]:
    planned = PlannedOperation(
        id=OperationId("op-1"), kind=OperationKind.MOVE, worker=WorkerId("d0"), lane="voluntary", policy=PolicyName("p"), reason="so",
        expect=Preconditions(incarnation=0),
    )  # type: ignore[arg-type]  # fmt: skip
    ended = Outcome(status=outcome, at=20.0, reason=reason) if outcome else None
    record = OperationRecord(
        planned=planned, plan=Digest("sha256:0"), epoch=Epoch(1), created_at=10.0, step=Step.FROZEN, outcome=ended,
        problem=Problem(code="SH701", what="the dump failed", remedy="Look") if outcome is Status.FAILED else None,
    )  # fmt: skip
    return {**resource(record, Batch(first="op-1", size=1), "shunter"), "status": status(record)}


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        ({**operation(None), "status": None}, ("Progressing", "it is decided, and not begun")),
        (operation(None), ("Progressing", "move: frozen")),
        (operation(Status.SUCCEEDED), ("Healthy", "move: frozen")),
        (operation(Status.SUPERSEDED, "another came first"), ("Healthy", "another came first")),
        (operation(Status.ROLLED_BACK, "no slot"), ("Degraded", "RolledBack: no slot")),
        (operation(Status.FAILED, "it died"), ("Degraded", "Failed: it died")),
    ],
    ids=["no status", "under way", "succeeded", "superseded", "rolled back", "failed"],
)
def test_an_operation(one: dict[str, Any], wanted: tuple[str, str], health: Callable[[dict[str, Any]], tuple[str, str]]) -> None:
    assert health(one) == wanted


def test_an_application_within_an_application(health: Callable[[dict[str, Any]], tuple[str, str]]) -> None:
    one = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"generation": 1}}
    assert health(one)[0] == "Progressing"
    assert health({**one, "status": {"health": {"status": "Degraded", "message": "so"}}}) == ("Degraded", "so")


def test_each_kind_that_there_is_has_a_check_and_the_file_is_as_generated() -> None:
    crds = [yaml.safe_load(f.read_text()) for f in sorted((ROOT / "schemas" / "crds").glob("*.shunter.dev.yaml"))]
    kinds = {crd["spec"]["names"]["kind"] for crd in crds}
    checks = yaml.safe_load((HERE / "argocd-cm.yaml").read_text())["data"]
    prefix = "resource.customizations.health.shunter.dev_"
    assert {key.removeprefix(prefix) for key in checks if key.startswith(prefix)} == kinds
    path = str(ROOT / "scripts" / "generate-argocd")
    spec = importlib.util.spec_from_loader("generate_argocd", importlib.machinery.SourceFileLoader("generate_argocd", path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (HERE / "argocd-cm.yaml").read_text() == module.made(), "run scripts/generate-argocd"


# -- the check before a sync


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy repository as the how-to has it: the example's policies with the two files above them."""
    return repository(tmp_path_factory.mktemp("candidate"))


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    """Another, to be changed."""
    return repository(tmp_path)


def repository(folder: Path) -> Path:
    made = folder / "repository"
    shutil.copytree(EXAMPLE, made)
    for file in (HERE / "policies").iterdir():
        shutil.copy(file, made)
    return made


def rendered(folder: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(render(folder, tuple(sorted((f, f.stat().st_mtime_ns) for f in folder.rglob("*.yaml"))))))


@cache
def render(folder: Path, _state: object) -> bytes:
    if KUBECTL is None:
        assert os.environ.get("CI") != "true", "kubectl isn't there: run scripts/install-apiserver"
        pytest.skip("no kubectl: run scripts/install-apiserver")
    return subprocess.run([KUBECTL, "kustomize", str(folder)], check=True, capture_output=True, timeout=30).stdout


def mounted(found: list[dict[str, Any]], folder: Path) -> Path:
    """The ConfigMap as a kubelet mounts it: links to a hidden folder."""
    (config,) = [one for one in found if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", "shunter-candidate")]
    (folder / "..2026").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026")
    for name, text in config["data"].items():
        (folder / "..2026" / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def job(found: list[dict[str, Any]], policies: Path) -> Iterator[tuple[str, int]]:
    """Its containers in turn, until one fails."""
    (one,) = [one for one in found if one["kind"] == "Job"]
    pod = one["spec"]["template"]["spec"]
    for container in [*pod["initContainers"], *pod["containers"]]:
        mount = container["volumeMounts"][0]["mountPath"]
        words = [str(policies) if word == mount else word for word in container["args"]]
        assert words[0] == "shunter"
        ended = execute_status(words[1:])
        yield container["name"], ended
        if ended:
            return


def execute_status(words: list[str]) -> int:
    try:
        return execute(words)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_before_a_sync_policies_are_checked_and_tested(whole: Path, tmp_path: Path) -> None:
    found = rendered(whole)
    assert sorted(one["metadata"]["name"] for one in found if one["kind"] in PLURALS) == [
        "recent-images",
        "relieve-prefill",
        "save-sessions",
    ]
    assert list(job(found, mounted(found, tmp_path / "mounted"))) == [("validate", 0), ("test", 0)]


def test_a_policy_that_is_wrong_stops_the_sync(candidate: Path, tmp_path: Path) -> None:
    file = candidate / "policies" / "checkpoints.yaml"
    file.write_text(file.read_text().replace("every: 30s", "evry: 30s"))
    found = rendered(candidate)
    assert list(job(found, mounted(found, tmp_path / "mounted"))) == [("validate", 1)]


def test_a_test_that_fails_stops_the_sync(candidate: Path, tmp_path: Path) -> None:
    file = candidate / "policies" / "checkpoints.yaml"
    file.write_text(file.read_text().replace("every: 30s", "every: 50s"))
    found = rendered(candidate)
    assert list(job(found, mounted(found, tmp_path / "mounted"))) == [("validate", 0), ("test", 1)]


def test_the_candidate_is_there_before_the_job_and_all_of_it(whole: Path) -> None:
    found = rendered(whole)
    (config,) = [one for one in found if one["kind"] == "ConfigMap"]
    (one,) = [one for one in found if one["kind"] == "Job"]
    hook = "argocd.argoproj.io/hook"
    wave = "argocd.argoproj.io/sync-wave"
    assert config["metadata"]["annotations"][hook] == one["metadata"]["annotations"][hook] == "PreSync"
    assert int(config["metadata"]["annotations"][wave]) < int(one["metadata"]["annotations"].get(wave, 0))
    assert one["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert set(config["data"]) == {file.name for file in (whole / "policies").iterdir()}
    assert execute_status(["validate", str(whole / "policies")]) == 0


def test_the_job_may_do_nothing_else(whole: Path) -> None:
    (one,) = [one for one in rendered(whole) if one["kind"] == "Job"]
    pod = one["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["image"] == "registry.example.com/shunter:0.1.0"
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


# -- applications


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((HERE / name).read_text()))


def applications() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Metadata and specs."""
    for name in ("applications.yaml", "applicationset.yaml"):
        for one in documents(name):
            found = one["spec"]["template"] if one["kind"] == "ApplicationSet" else one
            yield found["metadata"], found["spec"]


def project(name: str) -> dict[str, Any]:
    (found,) = [one["spec"] for one in documents("project.yaml") if one["metadata"]["name"] == name]
    return dict(found)


def kinds(found: list[dict[str, Any]], *, namespaced: bool) -> set[tuple[str, str]]:
    return {(one["apiVersion"].rpartition("/")[0], one["kind"]) for one in found if ("namespace" in one["metadata"]) is namespaced}


def listed(allowed: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(entry["group"], entry["kind"]) for entry in allowed}


def test_policies_are_synced_after_the_engine() -> None:
    waves = {
        one["metadata"]["name"]: int(one["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"])
        for one in documents("applications.yaml")
    }
    assert waves["shunter"] < waves["shunter-policies"]


def test_applications_stay_within_their_projects() -> None:
    for meta, spec in applications():
        allowed = project(spec["project"])
        assert spec["source"]["repoURL"] in allowed["sourceRepos"]
        places = {(d["server"], d["namespace"]) for d in allowed["destinations"]}
        server = spec["destination"]["server"]
        assert {(server, spec["destination"]["namespace"]), ("*", spec["destination"]["namespace"])} & places, "{{ .server }} is any"
        assert "ServerSideApply=true" in spec["syncPolicy"]["syncOptions"]
        assert meta["annotations"]["argocd.argoproj.io/compare-options"] == "ServerSideDiff=true"
    assert {spec["project"] for _, spec in applications()} == {"shunter", "shunter-policies"}
    assert "*" not in yaml.safe_dump(project("shunter"))


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The base with all components."""
    folder, kubernetes = tmp_path_factory.mktemp("overlay"), ROOT / "deploy" / "kubernetes"
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(kubernetes / "base", folder)],
        "components": [os.path.relpath(component, folder) for component in sorted((kubernetes / "components").iterdir())],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return rendered(folder)


def test_the_engines_project_allows_all_that_the_manifests_need(everything: list[dict[str, Any]]) -> None:
    allowed = project("shunter")
    assert kinds(everything, namespaced=False) == listed(allowed["clusterResourceWhitelist"])
    assert {one["metadata"]["namespace"] for one in everything if "namespace" in one["metadata"]} <= {
        d["namespace"] for d in allowed["destinations"]
    }
    assert {d["server"] for d in allowed["destinations"]} == {"https://kubernetes.default.svc"}


def test_whoever_merges_policies_can_sync_policies_and_their_check_and_nothing_that_gives_rights(candidate: Path) -> None:
    shutil.copytree(HERE / "preview", candidate / "preview")
    with (candidate / "kustomization.yaml").open("a") as file:
        file.write("components: [preview]\n")
    allowed = project("shunter-policies")
    assert allowed["clusterResourceWhitelist"] == []
    besides = listed(allowed["namespaceResourceWhitelist"]) - {("shunter.dev", kind) for kind in PLURALS}
    needed = kinds(rendered(candidate), namespaced=True)
    assert kinds(rendered(candidate), namespaced=False) == set()
    assert besides == {one for one in needed if one[0] != "shunter.dev"}
    assert {kind for group, kind in listed(allowed["namespaceResourceWhitelist"]) if group == "shunter.dev"} == set(PLURALS)
    assert {kind for group, kind in besides} == {"ConfigMap", "Job"}
    assert all(line.split(", ")[1].startswith("proj:shunter-policies:") for role in allowed["roles"] for line in role["policies"])


def test_whoever_merges_policies_has_no_destination_in_which_the_engine_is(everything: list[dict[str, Any]]) -> None:
    """A job mounts Secrets and uses accounts of its own namespace and no other: what is in that of policies is all that can be had."""
    (destination,) = project("shunter-policies")["destinations"]
    assert destination == {"server": "*", "namespace": "shunter-policies"}
    there = [one for one in everything if one["metadata"].get("namespace") == destination["namespace"]]
    accounts = {one["metadata"]["name"] for one in there if one["kind"] == "ServiceAccount"}
    assert accounts == {"shunter-preview"}
    pods = [(one["metadata"]["namespace"], one["spec"]["template"]["spec"]) for one in everything if "template" in one.get("spec", {})]
    assert {namespace for namespace, _ in pods} == {"shunter", "shunter-agents"}
    assert [pod for namespace, pod in pods if namespace == destination["namespace"]] == []
    assert {one["kind"] for one in there} == {"Role", "RoleBinding", "ServiceAccount", "NetworkPolicy"}, "no Secret, nor settings"
    bound = [
        one["metadata"]["name"] for one in everything
        if any((s.get("namespace"), s["name"]) == (destination["namespace"], "shunter-preview") for s in one.get("subjects", ()))
    ]  # fmt: skip
    roles = [one for one in everything if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] in bound]
    assert len(roles) == len(bound) == 4
    assert {verb for role in roles for rule in role["rules"] for verb in rule["verbs"]} == {"list", "watch"}


def test_the_namespace_of_policies_takes_restricted_pods_and_lets_nothing_in_or_out(everything: list[dict[str, Any]]) -> None:
    (space,) = [one for one in everything if one["kind"] == "Namespace" and one["metadata"]["name"] == "shunter-policies"]
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    held = [
        one["spec"] for one in everything
        if one["kind"] == "NetworkPolicy" and one["metadata"]["namespace"] == "shunter-policies" and not one["spec"]["podSelector"]
    ]  # fmt: skip
    assert held == [{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]


@pytest.mark.parametrize("file", sorted((ROOT / "deploy").rglob("engine.toml")), ids=lambda file: file.parent.name)
def test_engines_read_policies_where_they_are_synced_to(file: Path, candidate: Path) -> None:
    cluster = load_settings(file).policies.cluster
    assert cluster is not None
    synced = {one["metadata"]["namespace"] for one in rendered(candidate)}
    assert (
        {cluster.namespace} == synced == {spec["destination"]["namespace"] for _, spec in applications() if "policies" in spec["project"]}
    )


def test_a_set_syncs_by_its_steps_alone_and_covers_every_cluster_that_it_finds() -> None:
    (one,) = documents("applicationset.yaml")
    assert "automated" not in one["spec"]["template"]["spec"]["syncPolicy"]
    stages = set(one["spec"]["generators"][0]["clusters"]["selector"]["matchExpressions"][0]["values"])
    steps = one["spec"]["strategy"]["rollingSync"]["steps"]
    assert {value for step in steps for rule in step["matchExpressions"] for value in rule["values"]} == stages
    keys = {rule["key"] for step in steps for rule in step["matchExpressions"]}
    assert keys <= set(one["spec"]["template"]["metadata"]["labels"])
