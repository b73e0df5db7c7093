"""docs/how-to/run-in-kubernetes.md, from nothing to a first plan: its commands as they stand there, in a shell, with a real kubectl.

The API server, the engine (with the token, rights, settings and Secret that the cluster gives it), the agents and what these tell
each other are real; so is Prometheus. Nodes are played (nodes_simulated.py and pods_played.py say what that leaves out), `kubectl exec` by
entering the mount namespace of the pod's process, ssh and scp by a folder for each node.
"""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import needed, running
from control_plane import ROOT
from dynamo_operator import install
from fleet import ANY, BIN, Fleet, NodePlan, WorkerPlan
from machine import ip
from nodes_simulated import Nodes, node, worker
from pods_played import Played
from test_engine import kubeconfig

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
PAGE = ROOT / "docs" / "how-to" / "run-in-kubernetes.md"
SYNC = ROOT / "docs" / "how-to" / "sync-with-argocd.md"
WORKERS = "dynamo"
ADDRESSES = {"node-a": "10.0.0.11", "node-b": "10.0.0.12"}
"""As the example's settings have them."""
PLANS = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
GRAPH = {
    "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": "tiny"},
    "spec": {"components": [
        {"name": "planner", "type": "planner", "replicas": 1}, {"name": "decode", "type": "decode", "replicas": 1},
        {"name": "prefill", "type": "prefill", "replicas": 0},
    ]},
    "status": {"observedGeneration": 1, "state": "successful", "components": {
        one: {"componentKind": "Deployment", "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1} for one in ("decode", "prefill")
    }},
}  # fmt: skip
"""Of the fleet's worker. Nobody plays its operator, which says that it is as it should be."""
PLANNER = """\
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: planned}
spec:
  mode: preview
  workers: {all: true}
  from: decode
  to: prefill
  when: pools.decode.desired > pools.prefill.desired
  for: 0s
  sessions: drain
  limits: {from: {min: 0}, to: {max: 4}}
"""
COMMANDS = {
    "kubectl": """\
case "$*" in
  *"exec shunter-engine-0 -- "*) while [ "$1" != -- ]; do shift; done; shift
    export KUBERNETES_SERVICE_HOST=127.0.0.1 KUBERNETES_SERVICE_PORT={port}
    exec nsenter --mount=/proc/$(cat {folder}/shunter-engine-0/pid)/ns/mnt -- "$@";;
  *) exec {kubectl} --kubeconfig {kubeconfig} "$@";;
esac
""",
    "ssh": 'to=${{1#root@}}; shift\n[ "$1 $2" = "mkdir -p" ] && mkdir -p "{folder}/hosts/$to$3"\n',
    "scp": 'for last; do :; done; to=${{last#root@}}\nwhile [ $# -gt 1 ]; do cp "$1" "{folder}/hosts/${{to%%:*}}${{to#*:}}"; shift; done\n',
}
"""What a shell finds under these names, but for its first lines. `exec` goes to the first engine, whatever namespace is said."""


def section() -> tuple[str, str]:
    """Its commands, and the plan that it shows."""
    text = PAGE.read_text().partition("## From nothing to a first plan\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh", "sh", "sh", "sh", ""]
    return "".join(body for _, body in blocks[:-1]), blocks[-1][1]


def start_prometheus(fleet: Fleet) -> None:
    """Where the example has it, with the labels that a PodMonitor gives."""
    found = [
        {"targets": [":".join(map(str, fleet.worker_address(w)))], "labels": {"pod": w.name, "role": w.role, "graph": "tiny"}}
        for w in fleet.workers()
    ]
    often = {"scrape_interval": "500ms", "scrape_timeout": "500ms"}
    config = {"global": often, "scrape_configs": [{"job_name": "workers", "static_configs": found}]}
    path = fleet.folder / "prometheus.json"
    path.write_text(json.dumps(config))
    where = ("--web.listen-address=127.0.0.1:9090", f"--storage.tsdb.path={fleet.folder / 'tsdb'}", f"--config.file={path}")
    fleet.run(shutil.which("prometheus") or "prometheus", *where, log="prometheus.log")


def measured() -> bool:
    """Prometheus has a value of each worker."""
    try:
        with urllib.request.urlopen("http://127.0.0.1:9090/api/v1/query?query=count(up==1)", timeout=2) as answer:
            return [one["value"][1] for one in json.load(answer)["data"]["result"]] == ["1"]
    except OSError:
        return False


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    """A checkout in `tmp_path`, and a cluster with one worker."""
    for name in ("deploy", "policies", "schemas"):
        shutil.copytree(ROOT / name, tmp_path / name)
    with ExitStack() as stack:
        for address in ADDRESSES.values():
            ip("addr", "add", f"{address}/32", "dev", "lo")
            stack.callback(ip, "addr", "del", f"{address}/32", "dev", "lo")
        (tmp_path / "plane").mkdir()
        plane = stack.enter_context(contextmanager(running)(tmp_path / "plane"))
        plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": WORKERS}})
        for name in ADDRESSES:
            plane.must("POST", "/api/v1/nodes", node(name))
        nodes = Nodes(plane, WORKERS, {"node-a": 1, "node-b": 1})
        stack.callback(nodes.close)
        plane.must("POST", nodes.path, worker("decode-0", WORKERS, "node-a"))
        fleet = stack.enter_context(Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=PLANS))
        start_prometheus(fleet)
        played = Played(plane, fleet, tmp_path / "pods", ADDRESSES, measured)
        stack.callback(played.close)
        (tmp_path / "bin").mkdir()
        values = {"folder": played.folder, "port": plane.port, "kubectl": needed("kubectl"), "kubeconfig": kubeconfig(plane, tmp_path)}
        for name, text in COMMANDS.items():
            (tmp_path / "bin" / name).write_text("#!/bin/sh\nset -eu\n" + text.format(**values))
            (tmp_path / "bin" / name).chmod(0o755)
        yield played


@pytest.fixture
def reader(played: Played, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell in `tmp_path`."""
    return {**os.environ, "PATH": f"{tmp_path / 'bin'}:{BIN}:{os.environ['PATH']}"}


def test_the_page_leads_from_nothing_to_a_plan(reader: dict[str, str], tmp_path: Path) -> None:
    commands, shown = section()
    said = text(run(commands, tmp_path, reader))
    plan = said[said.index("Plan at ") :].partition("\n note: ")[0]  # of the time before there was an engine
    assert like(plan) == like(shown)


def test_a_preview_before_a_sync_looks_with_what_may_only_look(played: Played, reader: dict[str, str], tmp_path: Path) -> None:
    """The job of deploy/argocd/preview beside an engine that the page set up, with an account, a token and a certificate of its own."""
    status, said = preview(played, reader, tmp_path, "starter-preview.yaml", components=("preview", "preview-pods"))
    assert (status, "no preview" in said) == (0, False), said
    assert "checkpoint decode-0 at node-a/0" in said


SEEN = "pools.decode.desired = 1 workers, pools.prefill.desired = 0 workers; decode-0 holds 0 sessions"
REFUSED = 'User "system:serviceaccount:shunter-policies:shunter-preview" cannot list resource "dynamographdeployments"'


@pytest.mark.parametrize(("more", "says"), [(("preview-dynamo",), SEEN), ((), REFUSED)], ids=["with its component", "without"])
def test_a_preview_follows_dynamos_graphs_where_it_may(
    more: tuple[str, ...], says: str, played: Played, reader: dict[str, str], tmp_path: Path
) -> None:
    """Its settings have `[cluster.dynamo]`. Nothing but the graph says what is wanted, and nobody but Dynamo starts a worker natively."""
    install(played.plane)
    graphs = f"/apis/nvidia.com/v1beta1/namespaces/{WORKERS}/dynamographdeployments"
    made = played.plane.must("POST", graphs, GRAPH)
    played.plane.must("PUT", f"{graphs}/tiny/status", {**made, "status": GRAPH["status"]})
    (tmp_path / "policies" / "planner.yaml").write_text(PLANNER)
    status, said = preview(played, reader, tmp_path, "planner.yaml", components=("preview", "preview-pods", *more), dynamo=True)
    assert (status, "no preview" in said) == (0, False), said
    assert says in " ".join(said.split())
    assert ("drain decode-0 from node-a/0" in said) == bool(more)


def preview(
    played: Played, reader: dict[str, str], folder: Path, candidate: str, *, components: Iterable[str], dynamo: bool = False
) -> tuple[int, str]:
    """What the job ends with and says of the policy file `candidate`, once the pages were followed. `dynamo`: its settings
    follow Dynamo's graphs.
    """
    commands, _ = section()
    (certificate,) = re.findall(r"^```\n(shunter certs .*?)^```$", SYNC.read_text(), re.MULTILINE | re.DOTALL)
    text(run(f"{commands}\n{certificate}\n", folder, reader))
    overlay = folder / "deploy" / "kubernetes" / "mine" / "kustomization.yaml"
    found = yaml.safe_load(overlay.read_text())
    found["components"] += [f"../components/{one}" for one in components]
    overlay.write_text(yaml.safe_dump(found))
    shutil.copytree(folder / "deploy" / "argocd" / "preview", folder / "repo" / "preview")
    shutil.copy(folder / "policies" / candidate, folder / "repo")
    settings = re.sub(r"engine\.(pem|key)", r"reader.\1", (overlay.parent / "engine.toml").read_text())
    (folder / "repo" / "preview" / "engine.toml").write_text(settings + ("\n[cluster.dynamo]\n" if dynamo else ""))
    maps = {"name": "shunter-candidate", "files": [candidate], "options": {"disableNameSuffixHash": True}}
    wanted = {"namespace": "shunter-policies", "components": ["preview"], "configMapGenerator": [maps]}
    (folder / "repo" / "kustomization.yaml").write_text(yaml.safe_dump({**wanted, "kind": "Kustomization"}))
    rendered = text(run("kubectl apply --server-side -k deploy/kubernetes/mine >&2; kubectl kustomize repo", folder, reader))
    (job,), others = parted(yaml.safe_load_all(rendered))
    (folder / "maps.yaml").write_text(yaml.safe_dump_all(others))
    text(run("kubectl apply --server-side -f maps.yaml", folder, reader))
    return played.job(job)


def parted(found: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Jobs, and the ConfigMaps that there have to be before."""
    whole = list(found)
    others = [one for one in whole if one["kind"] != "Job"]
    assert {one["kind"] for one in others} == {"ConfigMap"}
    return [one for one in whole if one["kind"] == "Job"], others


def text(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(commands: str, folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-euc", commands], cwd=folder, env=env, capture_output=True, text=True, timeout=100)


def like(plan: str) -> list[str]:
    """Its lines, but for figures and digests, and for what marks a fleet that pretends."""
    lines = [line.replace("[pretend] ", "") for line in plan.strip().splitlines() if "  pretend: " not in line]
    return [re.sub(r"\d[\d.:-]*", "#", re.sub(r"cluster:\w+", "cluster:#", line)).rstrip() for line in lines]
