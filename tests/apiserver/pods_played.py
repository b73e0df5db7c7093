"""What there isn't without nodes, for deploy/: kubelets that start the engine's, the agents' and a job's processes, and their controllers.

A pod's process runs in a mount namespace of its own, with its settings, its Secret and its account's token where its manifest mounts
them; it is Running and Ready once it answers. That leaves out images, users, capabilities, networks, resources. The second engine is only
said to run. The controllers make pods once, and say what `kubectl rollout status` looks for. Agents get their settings as the ConfigMap has
them, but that there is no container runtime to ask: they pretend, start their node's worker themselves, and are told its pod
(agent_in_pods.py).
"""

import json
import os
import subprocess
import sys
import threading
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from control_plane import ControlPlane
from fleet import BIN, Fleet

MERGE = "application/merge-patch+json"
_ENTER = """\
set -eu
mount --bind "$1/etc" /etc
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
mkdir -p /var/lib/shunter /run/shunter/notices /run/secrets/kubernetes.io
[ ! -d "$1/account" ] || cp -r "$1/account" /run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"
"""
"""A process with its pod's files at their places, of the folder that is the first argument. /var/run is /run."""


class Played:
    """See the module. In a thread, until it is closed. `addresses` by node. A node's own files are in `<folder>/hosts/<node>`. No pod of an
    agent is said to be ready before `measured`: what its workers hold is known then.
    """

    def __init__(self, plane: ControlPlane, fleet: Fleet, folder: Path, addresses: Mapping[str, str], measured: Callable[[], bool]) -> None:
        self.plane, self._fleet, self.folder, self._addresses, self._measured = plane, fleet, folder, addresses, measured
        self._env = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(plane.port),
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._done: set[str] = set()
        self.failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.1):
                self._engine()
                self._agents()
                for name, process in self._processes.items():
                    assert process.poll() is None, (self._fleet.folder / f"{name}.log").read_text()
        except BaseException as error:
            self.failed = error

    def _start(self, name: str, command: list[str]) -> None:
        folder = self.folder / name
        process = self._fleet.run("unshare", "--mount", "sh", "-c", _ENTER, "sh", str(folder), *command, log=f"{name}.log", env=self._env)
        (folder / "pid").write_text(str(process.pid))
        self._processes[name] = process

    def _etc(self, name: str) -> Path:
        """The machine's own /etc, as a copy, with Prometheus' name in its hosts."""
        etc = self.folder / name / "etc"
        etc.parent.mkdir()
        subprocess.run(["cp", "-a", "/etc", str(etc)], check=True)
        with (etc / "hosts").open("a") as hosts:
            hosts.write("127.0.0.1 prometheus-operated.monitoring\n")
        return etc

    def _mounted(self, pod: Any, kind: str) -> dict[str, str | None]:
        """The files of the pod's only volume of this kind; empty while it isn't there."""
        namespace = pod["metadata"]["namespace"]
        (found,) = [v[kind] for v in pod["spec"]["volumes"] if kind in v]
        plural = {"configMap": "configmaps", "secret": "secrets"}[kind]
        status, source = self.plane.ask("GET", f"/api/v1/namespaces/{namespace}/{plural}/{found.get('name') or found['secretName']}")
        return source["data"] if status == 200 else {}

    def _pod(self, owner: Any, name: str, node: str, address: str) -> Any:
        """One of the owner's template, that has a node and is said to be Pending."""
        namespace = owner["metadata"]["namespace"]
        pod = {"metadata": {**owner["spec"]["template"]["metadata"], "name": name}, "spec": dict(owner["spec"]["template"]["spec"])}
        pod["spec"]["nodeName"] = node
        path = f"/api/v1/namespaces/{namespace}/pods"
        self.plane.must("POST", path, pod)
        self._say(f"{path}/{name}", phase="Pending", podIP=address)
        return self.plane.must("GET", f"{path}/{name}")

    def _say(self, path: str, **status: Any) -> None:
        self.plane.must("PATCH", f"{path}/status", {"status": status}, MERGE)

    def _runs(self, pod: Any) -> None:
        meta = pod["metadata"]
        ready = [{"type": "Ready", "status": "True"}]
        self._say(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", phase="Running", conditions=ready)

    # -- the engine

    def _engine(self) -> None:
        path = "/apis/apps/v1/namespaces/shunter/statefulsets/shunter-engine"
        status, owner = self.plane.ask("GET", path)
        if status != 200 or "engine" in self._done:
            return
        name = "shunter-engine-0"
        if name not in self._done:
            self._pod(owner, name, "node-b", "127.0.0.1")
            self._done.add(name)
        pod = self.plane.must("GET", f"/api/v1/namespaces/shunter/pods/{name}")
        settings, identity = self._mounted(pod, "configMap"), self._mounted(pod, "secret")
        if not (self.folder / name).exists():
            if not settings or not identity:
                return  # a kubelet waits for what is to be mounted
            etc = self._etc(name)
            _files(etc / "shunter", settings)
            _files(etc / "shunter-tls", {key: b64decode(value or "").decode() for key, value in identity.items()})
            self._account(name, pod)
            self._start(name, pod["spec"]["containers"][0]["args"])
        if self._answers("/readyz"):
            self._runs(pod)
            revision = {"currentRevision": "1", "updateRevision": "1", "observedGeneration": owner["metadata"]["generation"]}
            self._say(path, **{f"{what}eplicas": 2 for what in ("r", "readyR", "currentR", "updatedR", "availableR")}, **revision)
            self._done.add("engine")

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:9464{path}", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _account(self, name: str, pod: Any) -> None:
        namespace, account = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600, "audiences": []}}
        token = self.plane.must("POST", path, request)["status"]["token"]
        files = {"token": token, "namespace": namespace, "ca.crt": self.plane.ca.read_text()}
        _files(self.folder / name / "account", files)

    # -- a job

    def job(self, job: Any) -> tuple[int, str]:
        """What the one container of a job's pod ends with, and its log. What it mounts outside of /etc is below /etc here."""
        name, namespace, spec = job["metadata"]["name"], job["metadata"]["namespace"], job["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        (script,) = container["args"]
        etc = self._etc(name)
        for mount in container["volumeMounts"]:
            (volume,) = [one for one in spec["volumes"] if one["name"] == mount["name"]]
            pod, path = {"metadata": {"namespace": namespace}, "spec": {"volumes": [volume]}}, mount["mountPath"]
            where = etc / path.removeprefix("/etc").lstrip("/")
            if "configMap" in volume:
                _files(where, self._mounted(pod, "configMap"))
            if "secret" in volume:
                _files(where, {key: b64decode(data or "").decode() for key, data in self._mounted(pod, "secret").items()})
            if not path.startswith("/etc/"):
                script = script.replace(f" {path} ", f" /etc{path} ")
        self._account(name, {"metadata": {"namespace": namespace}, "spec": spec})
        enter = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(self.folder / name), *container["command"], script]
        ended = subprocess.run(enter, env={**os.environ, **self._env}, capture_output=True, text=True, timeout=150)
        return ended.returncode, ended.stdout + ended.stderr

    # -- agents

    def _agents(self) -> None:
        path = "/apis/apps/v1/namespaces/shunter-agents/daemonsets/shunter-agent"
        status, owner = self.plane.ask("GET", path)
        if status != 200 or "agents" in self._done:
            return
        wanted = owner["spec"]["template"]["spec"]["nodeSelector"].items()
        nodes = [n["metadata"] for n in self.plane.must("GET", "/api/v1/nodes")["items"]]
        names = sorted(n["name"] for n in nodes if wanted <= n.get("labels", {}).items())
        for name in names:
            self._agent(owner, name)
        if names and all(self._takes_orders(name) for name in names):
            self._done.add("agents")

    def _agent(self, owner: Any, node: str) -> None:
        identity = self.folder / "hosts" / node / "etc" / "shunter" / "tls"
        if node in self._done or not identity.exists():  # its hostPath has `type: Directory`
            return
        pod = self._pod(owner, f"shunter-agent-{node}", node, self._addresses[node])
        etc = self._etc(node)
        _files(
            etc / "shunter" / "agents", {key: self._pretends(key, value or "") for key, value in self._mounted(pod, "configMap").items()}
        )
        subprocess.run(["cp", "-r", str(identity), str(etc / "shunter" / "tls")], check=True)
        for one in self._fleet.nodes[node].plan.workers:
            meta = next(p["metadata"] for p in self.plane.must("GET", "/api/v1/pods")["items"] if p["metadata"]["name"] == one.name)
            home = {key: meta[key] for key in ("namespace", "name", "uid")}
            (etc / "shunter" / "agents" / "pod.json").write_text(json.dumps(home))
        program = [sys.executable, str(Path(__file__).with_name("agent_in_pods.py"))]
        args = [argument.replace("$(NODE)", node) for argument in pod["spec"]["containers"][0]["args"]]
        self._start(node, [*program, *args[1:]])
        self._done.add(node)

    def _pretends(self, file: str, settings: str) -> str:
        """Its settings, but that there is no container runtime to ask: it pretends, and starts its node's worker itself."""
        before, _, after = settings.partition("[containers]")
        assert "[tls]" in after
        plan = self._fleet.nodes[file.removesuffix(".toml")].plan
        workers = [line for one in plan.workers for line in ("[[workers]]", *self._fleet.worker_lines(one))]
        pretend = before.replace('runtime = "criu"', f'runtime = "pretend"\ndiscovery = "{self._fleet.discovery}"')
        return pretend + "[tls]" + after.partition("[tls]")[2] + "\n" + "\n".join(workers) + "\n"

    def _takes_orders(self, node: str) -> bool:
        log = self._fleet.folder / f"{node}.log"
        if not log.exists() or "taking orders" not in log.read_text() or not self._measured():
            return False
        self._runs(self.plane.must("GET", f"/api/v1/namespaces/shunter-agents/pods/shunter-agent-{node}"))
        return True


def _files(folder: Path, files: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
