"""deploy/argocd/preview: a sync's log says what its policies would do, asked of real agents, and the sync goes on whatever it says."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleet import ANY, BIN, Fleet, NodePlan, WorkerPlan
from shunter.app.settings import load
from test_argocd import HERE, ROOT, mounted, rendered, repository

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
COMPONENT = ROOT / "deploy" / "kubernetes" / "components" / "preview"
HOOK = "argocd.argoproj.io/hook"
WAVE = "argocd.argoproj.io/sync-wave"


@pytest.fixture
def candidate(tmp_path: Path) -> Path:
    """A policy repository with both jobs."""
    made = repository(tmp_path)
    shutil.copytree(HERE / "preview", made / "preview")
    with (made / "kustomization.yaml").open("a") as file:
        file.write("components: [preview]\n")
    return made


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        made.start_nodes()
        yield made


def jobs(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in found if one["kind"] == "Job"}


def previewed(found: list[dict[str, Any]], policies: Path, settings: Path) -> tuple[int, str]:
    """What the job's container ends with, and its log."""
    (container,) = jobs(found)["shunter-preview"]["spec"]["template"]["spec"]["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    (script,) = container["args"]
    assert (script.count(mounts["candidate"]), script.count(mounts["settings"])) == (1, 1)
    script = script.replace(mounts["candidate"], str(policies)).replace(mounts["settings"], str(settings))
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    ended = subprocess.run([*container["command"], script], env=env, capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout + ended.stderr


def test_the_log_says_what_the_policies_would_do_now(candidate: Path, fleet: Fleet, tmp_path: Path) -> None:
    policy = candidate / "policies" / "preemption.yaml"
    document = yaml.safe_load(policy.read_text())
    document["spec"]["workers"] = {"all": True}
    policy.write_text(yaml.safe_dump(document))
    fleet.nodes["node-a"].post_notice("preemption", "300s", "n1")
    found = rendered(candidate)
    subprocess.run([BIN / "shunter", "certs", fleet.folder / "certs", "--reader"], check=True, capture_output=True)
    lines = fleet.engine_config.read_text().replace(str(fleet.state), str(tmp_path / "there-is-none"))
    assert lines.count("/engine.pem") == lines.count("/engine.key") == 1
    lines = lines.replace("/engine.pem", "/reader.pem").replace("/engine.key", "/reader.key")
    (tmp_path / "settings").mkdir()
    (tmp_path / "settings" / "engine.toml").write_text(lines)
    status, said = previewed(found, mounted(found, tmp_path / "mounted"), tmp_path / "settings")
    assert status == 0
    assert "move decode-0 from node-a/0 to node-b/0" in said
    assert "no preview" not in said
    assert not (tmp_path / "there-is-none").exists(), "it writes nothing, as its file system takes nothing"


def test_where_there_is_no_preview_the_sync_goes_on_and_the_log_says_why(candidate: Path, tmp_path: Path) -> None:
    found = rendered(candidate)
    status, said = previewed(found, mounted(found, tmp_path / "mounted"), tmp_path / "nothing-is-mounted")
    assert status == 0
    assert "no preview, for the reason above" in said
    assert "error" in said
    job = jobs(found)["shunter-preview"]["spec"]
    ((limit, seconds, *_),) = [one["args"][0].split() for one in job["template"]["spec"]["containers"]]
    assert (limit, int(seconds) < job["activeDeadlineSeconds"]) == ("timeout", True), "nor is a job late that asks in vain"


def test_it_comes_after_the_check_with_what_whoever_looks_has_and_nothing_of_the_engines(candidate: Path) -> None:
    found = rendered(candidate)
    both = jobs(found)
    check, preview = both["shunter-validate"], both["shunter-preview"]
    assert [one["metadata"]["annotations"][HOOK] for one in (check, preview)] == ["PreSync", "PreSync"]
    assert int(check["metadata"]["annotations"].get(WAVE, 0)) < int(preview["metadata"]["annotations"][WAVE])
    pod = preview["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == check["spec"]["template"]["spec"]["containers"][0]["image"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert [one for one in pod["volumes"] if one["name"] == "candidate"] == check["spec"]["template"]["spec"]["volumes"]
    made = {(one["kind"], one["metadata"]["name"]): one for one in found}
    for volume in pod["volumes"]:
        if "configMap" in volume:
            config = made["ConfigMap", volume["configMap"]["name"]]["metadata"]["annotations"]
            assert (config[HOOK], int(config[WAVE]) < int(preview["metadata"]["annotations"][WAVE])) == ("PreSync", True)
    engine = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "base" / "engine.yaml").read_text()))
    (its,) = [one["spec"]["template"]["spec"] for one in engine if one and one["kind"] == "StatefulSet"]
    (account,) = yaml.safe_load_all((COMPONENT / "account.yaml").read_text())
    assert (pod["serviceAccountName"], preview["metadata"]["namespace"]) == (account["metadata"]["name"], account["metadata"]["namespace"])
    assert pod["serviceAccountName"] != its["serviceAccountName"]
    assert [v["secret"] for v in pod["volumes"] if "secret" in v] == [
        {"secretName": "shunter-preview-tls", "defaultMode": 0o440, "optional": True}
    ]
    assert not {one["kind"] for one in found} & {"ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Secret"}, (
        "those aren't its to make"
    )
    labels = preview["spec"]["template"]["metadata"]["labels"]
    assert labels != its_labels(engine), "no Service of the engine's leads to it"


def its_labels(engine: list[Any]) -> dict[str, str]:
    (found,) = [one["spec"]["selector"] for one in engine if one and one["kind"] == "Service"]
    return dict(found)


def test_it_may_go_where_the_engine_may_go_to_look(candidate: Path) -> None:
    """The namespace of policies lets nothing out by default."""
    found = rendered(candidate)
    (policy,) = yaml.safe_load_all((COMPONENT / "network.yaml").read_text())
    assert policy["metadata"]["namespace"] == jobs(found)["shunter-preview"]["metadata"]["namespace"]
    assert policy["spec"]["podSelector"]["matchLabels"] == jobs(found)["shunter-preview"]["spec"]["template"]["metadata"]["labels"]
    base = yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "base" / "network.yaml").read_text())
    (engine,) = [one for one in base if one["metadata"]["name"] == "shunter-engine"]
    own, its = (_ports(one) for one in (policy, engine))
    settings = load(HERE / "preview" / "engine.toml")
    needed = {int(one.address.rpartition(":")[2]) for one in settings.agents} | {int(settings.prometheus.url.rpartition(":")[2]), 443, 53}
    assert {(port, "TCP") for port in needed} | {(53, "UDP")} <= own <= its


def _ports(policy: dict[str, Any]) -> set[tuple[int, str]]:
    return {(port["port"], port["protocol"]) for rule in policy["spec"]["egress"] for port in rule["ports"]}


def test_the_example_finds_what_the_engines_own_does() -> None:
    own, its = load(HERE / "preview" / "engine.toml"), load(ROOT / "deploy" / "kubernetes" / "example" / "engine.toml")
    assert (own.agents, own.prometheus, own.cluster) == (its.agents, its.prometheus, its.cluster)
    assert [path.name for path in (own.tls.ca, own.tls.cert, own.tls.key)] == ["ca.pem", "reader.pem", "reader.key"]
