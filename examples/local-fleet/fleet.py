"""Build a local fleet: nodes as network namespaces on one bridge, an agent in each, workers, a Git repository, Prometheus, an engine.

Runs inside `scripts/lab`, so that everything in it dies with it. With `pretend=True` it needs no root and no lab: nodes are then only
agents on loopback ports.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from machine import BRIDGE, GATEWAY, LOOPBACK, Ports, SetUpError, ip, wait_for, with_argument
from node import BIN, Node
from plans import ANY, DECODE, NODES, NodePlan, WorkerPlan

__all__ = ["ANY", "DECODE", "GATEWAY", "HERE", "NODES", "Fleet", "NodePlan", "SetUpError", "WorkerPlan", "wait_for"]

HERE = Path(__file__).resolve().parent


class Fleet:
    """The whole local fleet under one folder. Use as a context manager: leaving it ends every process that it started."""

    PATIENCE_S: ClassVar[float] = 5.0
    """How long each program has to end when it is told to."""

    def __init__(
        self, folder: Path, *, pretend: bool = False, criu: Path | None = None, weights_mb: int = 128, nodes: tuple[NodePlan, ...] = NODES
    ) -> None:
        self.folder, self.pretend, self.criu = folder, pretend, criu or Path("/opt/shunter/criu/bin/criu")
        self.weights_mb = weights_mb
        self.ports = Ports()
        self.discovery = folder / "discovery"
        self.repository = folder / "policies.git"
        self.worker_env: dict[str, dict[str, str]] = {}
        self.worker_script: dict[str, Path] = {}
        self.nodes = {plan.name: Node(self, plan) for plan in nodes}
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def prometheus_port(self) -> int:
        """Where Prometheus listens on loopback."""
        return self.ports.of("prometheus") if self.pretend else 9090

    @property
    def engine_port(self) -> int:
        """Where the engine shows its metrics and health on loopback."""
        return self.ports.of("engine") if self.pretend else 9464

    # -- workers

    def worker_address(self, worker: WorkerPlan) -> tuple[str, int]:
        """Host and port that a worker serves on, wherever it is."""
        return (LOOPBACK, self.ports.of(worker.name)) if self.pretend else (f"10.77.0.{worker.host}", 9000)

    def worker_lines(self, worker: WorkerPlan) -> list[str]:
        """The settings of one worker for its agent."""
        host, port = self.worker_address(worker)
        script = self.worker_script.get(worker.name, HERE / "worker.py")
        command = [sys.executable, str(script), "--id", worker.name, "--role", worker.role, "--host", host, "--port", str(port)]
        command += ["--discovery", str(self.discovery), "--weights-mb", str(self.weights_mb)]
        mac = "" if self.pretend else f"02:53:48:4e:54:{worker.host:02x}"
        env = {"PYTHONDONTWRITEBYTECODE": "1", **self.worker_env.get(worker.name, {})}
        return [
            f'worker = "{worker.name}"',
            f'role = "{worker.role}"',
            'graph = "tiny"',
            'engine = "vllm"',
            f'address = "{host}:{port}"',
            f'mac = "{mac}"',
            f'control = "http://{host}:{port}"',
            f"slot = {worker.slot}",
            f"command = {json.dumps(command)}",
            "env = {" + ", ".join(f'{key} = "{value}"' for key, value in env.items()) + "}",
        ]

    def workers(self) -> Iterator[WorkerPlan]:
        """All workers that the fleet starts with."""
        for node in self.nodes.values():
            yield from node.plan.workers

    # -- building

    def __enter__(self) -> "Fleet":
        """Build the network and write all settings; nothing runs yet but the namespaces."""
        self.discovery.mkdir(parents=True, exist_ok=True)
        if not self.pretend:
            ip("link", "add", BRIDGE, "address", "02:53:48:00:0a:01", "type", "bridge")  # else it changes with every move by hand
            ip("addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
            ip("link", "set", BRIDGE, "up")
        certs = [str(BIN / "shunter"), "certs", str(self.folder / "certs")]
        for name in self.nodes:
            certs += ["--agent", name]
        subprocess.run(certs, check=True, capture_output=True)
        for node in self.nodes.values():
            node.connect()
            node.write_config()
        self._write_engine()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End everything, youngest first."""
        for process in reversed(self._processes):  # one after the other: nothing is to complain of what went before it
            process.terminate()
            try:
                process.wait(self.PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in self.nodes.values():
            node.power_off()
        self._end_workers()
        if self.pretend:
            self.ports.give_back()
        else:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", BRIDGE)

    def _end_workers(self) -> None:
        """A worker that went on elsewhere, or outlived its agent, is nobody's child any more: it is known by this fleet's folder."""
        for pid in with_argument(str(self.discovery)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_nodes(self) -> None:
        """Start every agent, and wait until all of them take orders and all workers are in discovery."""
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            wait_for(f"{node.name} to take orders", node.takes_orders)
        wanted = len(list(self.workers()))
        instances = self.discovery / "v1" / "instances"
        wait_for("workers in discovery", lambda: instances.is_dir() and len([p for p in instances.iterdir() if p.name[0] != "."]) == wanted)

    def run(self, *command: str, log: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a process that ends with the fleet; its output goes to `<folder>/<log>`, or to ours for an empty name."""
        out = (self.folder / log).open("ab") if log else None
        process = subprocess.Popen(
            list(command),
            stdout=out,
            stderr=subprocess.STDOUT if out else None,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
        if out:
            out.close()
        self._processes.append(process)
        return process

    def start_prometheus(self, every: str = "1s") -> subprocess.Popen[bytes]:
        """Start a real Prometheus that scrapes the workers, and wait until it has seen them all."""
        binary = shutil.which("prometheus")
        if not binary:
            raise SetUpError("no prometheus on PATH: apt-get install prometheus")
        targets = [
            {"targets": [":".join(map(str, self.worker_address(w)))], "labels": {"worker": w.name, "role": w.role, "graph": "tiny"}}
            for w in self.workers()
        ]
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every},
            "scrape_configs": [{"job_name": "workers", "static_configs": targets}],
        }
        (self.folder / "prometheus.json").write_text(json.dumps(config))  # JSON is YAML
        process = self.run(
            binary,
            f"--config.file={self.folder / 'prometheus.json'}",
            f"--storage.tsdb.path={self.folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.prometheus_port}",
            "--log.level=warn",
            log="prometheus.log",
        )
        wait_for("Prometheus to see all workers", lambda: self.query("count(up == 1)") == len(targets))
        return process

    def query(self, promql: str) -> float | None:
        """One value from Prometheus, None when there is none (yet)."""
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/query?query={quote(promql)}"
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                result = json.load(reply)["data"]["result"]
        except (OSError, ValueError):
            return None
        return float(result[0]["value"][1]) if result else None

    # -- policies

    def make_repository(self, source: Path | None = None) -> str:
        """Make a real Git repository of the example policies; return its first commit."""
        work = self.folder / "policies-work"
        shutil.copytree(source or HERE.parent / "policy-repo", work)
        self.git("init", "--quiet", "--initial-branch=main", str(work), at=self.folder)
        self.git("init", "--quiet", "--bare", "--initial-branch=main", str(self.repository), at=self.folder)
        self.git("remote", "add", "origin", str(self.repository))
        return self.commit("Add policies")

    def git(self, *arguments: str, at: Path | None = None) -> str:
        """Run git in the working copy, apart from the user's own settings."""
        env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        who = ("-c", "user.name=Policy Author", "-c", "user.email=author@example.com")
        done = subprocess.run(
            ["git", *who, *arguments], cwd=at or self.folder / "policies-work", env=env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        """Commit and push everything in the working copy; return the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        self.git("push", "--quiet", "origin", "main")
        return self.git("rev-parse", "HEAD")

    # -- engine

    @property
    def engine_config(self) -> Path:
        """The engine's settings file."""
        return self.folder / "engine.toml"

    @property
    def state(self) -> Path:
        """The engine's state folder: store and audit."""
        return self.folder / "engine"

    def _write_engine(self) -> None:
        certs = self.folder / "certs"
        lines = [
            f'state = "{self.state}"',
            'tick = "1s"',
            'hold = "20s"',
            f'listen = "127.0.0.1:{self.engine_port}"',
            "[policies]",
            f'git = "file://{self.repository}"',
            'folder = "policies"',
            'poll = "2s"',
            "[prometheus]",
            f'url = "http://127.0.0.1:{self.prometheus_port}"',
            "[tls]",
            f'ca = "{certs / "ca.pem"}"',
            f'cert = "{certs / "engine.pem"}"',
            f'key = "{certs / "engine.key"}"',
        ]
        for node in self.nodes.values():
            lines += ["[[agents]]", f'node = "{node.name}"', f'address = "{node.address}:{node.port(0)}"']
        self.engine_config.write_text("\n".join(lines) + "\n")

    def shunter(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a `shunter` command and return what it printed. Raises SetUpError when it fails, unless `check` is False."""
        done = subprocess.run([str(BIN / "shunter"), *arguments], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if check and done.returncode:
            raise SetUpError(f"`shunter {' '.join(arguments)}` ended with status {done.returncode}: {done.stderr.strip()}")
        return done

    def start_engine(self, log: str = "engine.log") -> subprocess.Popen[bytes]:
        """Start the engine."""
        return self.run(str(BIN / "shunter"), "engine", "--config", str(self.engine_config), log=log)
