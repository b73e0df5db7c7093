"""`shunter engine` itself, on custom resources of a real server: what is applied is in force, and its status says so."""

import subprocess
import sys
from pathlib import Path

import yaml
from conftest import APPLY
from control_plane import ControlPlane, free_port, until
from corpus import WHOLE
from shunter.app.certs import issue
from shunter.cluster.kinds import collection

NAMESPACE = "engine-itself"


def kubeconfig(plane: ControlPlane, folder: Path) -> Path:
    path = folder / "kubeconfig"
    user = {"client-certificate": str(plane.folder / "admin.crt"), "client-key": str(plane.folder / "admin.key")}
    text = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        "clusters": [{"name": "c", "cluster": {"server": plane.url, "certificate-authority": str(plane.ca)}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(text))
    return path


def settings(plane: ControlPlane, folder: Path) -> Path:
    """An engine with one node whose agent is away: it decides about nothing, and still must say what became of its policies."""
    issue(folder / "certs", ["node-a"], 1_800_000_000.0)
    kubeconfig(plane, folder)
    path = folder / "engine.toml"
    path.write_text(f"""
state = "state"
listen = ""
tick = "200ms"
[policies]
poll = "1s"
[policies.cluster]
kubeconfig = "kubeconfig"
[prometheus]
url = "http://127.0.0.1:{free_port()}"
[tls]
ca = "certs/ca.pem"
cert = "certs/engine.pem"
key = "certs/engine.key"
[[agents]]
node = "node-a"
address = "127.0.0.1:{free_port()}"
""")
    return path


def test_what_is_applied_is_in_force_and_its_status_says_so(plane: ControlPlane, tmp_path: Path) -> None:
    plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    where = f"{collection('CheckpointPolicy', NAMESPACE)}/images"
    commit = "c" * 40
    document = {**WHOLE["images"], "metadata": {"name": "images", "annotations": {"shunter.dev/commit": commit}}}
    plane.must("PATCH", f"{where}?fieldManager=argocd-controller", document, APPLY)
    command = [str(Path(sys.executable).with_name("shunter")), "engine", "--config", str(settings(plane, tmp_path))]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as engine:
        try:

            def status() -> dict[str, str]:
                assert engine.poll() is None, (tmp_path / "log").read_text()
                found = plane.must("GET", where).get("status", {})
                return {c["type"]: c["status"] for c in found.get("conditions", ())}

            until(lambda: status().get("Accepted") == "True", 20.0, "in force")
            assert plane.must("GET", where)["status"]["commit"] == commit
            document["spec"] = {**document["spec"], "when": "worker.kvusage < 1"}
            plane.must("PATCH", f"{where}?fieldManager=argocd-controller&force=true", document, APPLY)
            until(lambda: status() == {"Accepted": "False", "Active": "False", "Degraded": "True"}, 10.0, "refused")
            found = plane.must("GET", where)["status"]
            assert found["observedGeneration"] == 2
            assert "kvusage" in next(c["message"] for c in found["conditions"] if c["type"] == "Accepted")
        finally:
            engine.terminate()
        assert engine.wait(20) == 0
