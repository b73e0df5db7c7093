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
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from shunter.model.errors import Rejected
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.pretend import shared_shelf
from shunter_agent.runtime.shelf import Shelf

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
BRIDGE = "shunt0"
GATEWAY = "10.77.0.1"


@dataclass(frozen=True)
class WorkerPlan:
    """A worker to start: its slot's index, and the last byte of its address."""

    name: str
    role: str
    slot: int
    host: int


@dataclass(frozen=True)
class NodePlan:
    """A node to make: the last byte of its address, what its slots accept, and the workers that it starts with."""

    name: str
    host: int
    slots: tuple[tuple[str, ...], ...]
    workers: tuple[WorkerPlan, ...]
    labels: dict[str, str] = field(default_factory=dict)


ANY = ("prefill", "decode")
DECODE = ("decode",)
"""A slot without the rail that prefill workers need to hand their KV cache over."""

NODES = (
    NodePlan(
        "node-a",
        11,
        (ANY, ANY),
        (WorkerPlan("prefill-0", "prefill", 0, 121), WorkerPlan("decode-0", "decode", 1, 111)),
        {"capacity": "spot"},
    ),
    NodePlan(
        "node-b",
        12,
        (ANY, ANY, DECODE),
        (WorkerPlan("prefill-1", "prefill", 0, 122), WorkerPlan("decode-1", "decode", 1, 112)),
        {"capacity": "spot"},
    ),
    NodePlan("node-c", 13, (ANY, DECODE), (WorkerPlan("decode-2", "decode", 0, 113),), {"capacity": "reserved"}),
)


class SetUpError(RuntimeError):
    """The fleet couldn't be built; the message says what and why."""


def wait_for(what: str, condition: Callable[[], object], timeout: float = 30.0, every: float = 0.05) -> None:
    """Wait until `condition` is true. Raises SetUpError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise SetUpError(f"{what}: not within {timeout:g} s")
        time.sleep(every)


def ip(*arguments: str, within: int | None = None) -> None:
    """Run an `ip` command, in the network namespace of process `within` if given."""
    enter = ["nsenter", f"--net=/proc/{within}/ns/net", "--"] if within else []
    subprocess.run([*enter, "ip", *arguments], check=True, capture_output=True, text=True)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, children before grandchildren, also in other PID namespaces.

    By each process's own parent: the kernel's lists of children miss some while threads come and go.
    """
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        children = parents.get(queue[0], [])
        queue = queue[1:] + children
        found += children
    return found


class Node:
    """One node: a network namespace held open by a sleeping process, and an agent in it."""

    def __init__(self, fleet: "Fleet", plan: NodePlan) -> None:
        self.fleet, self.plan = fleet, plan
        self.name = plan.name
        self.folder = fleet.folder / plan.name
        self.notices = self.folder / "notices"
        self.notices.mkdir(parents=True)
        self.config = self.folder / "agent.toml"
        self.log = self.folder / "agent.log"
        self._holder: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The agent's host."""
        return "127.0.0.1" if self.fleet.pretend else f"10.77.0.{self.plan.host}"

    def port(self, kind: int) -> int:
        """Port 0: orders; port 1: images. In a lab every node has the same; on loopback they differ."""
        return (7443 + kind) if not self.fleet.pretend else self.fleet.base_port + self.plan.host * 10 + kind

    def connect(self) -> None:
        """Make the namespace, its bridge `br0`, and the link to the others."""
        if self.fleet.pretend:
            return
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        mine = os.readlink("/proc/self/ns/net")
        holder = self._holder.pid
        wait_for(f"{self.name}'s network namespace", lambda: os.readlink(f"/proc/{holder}/ns/net") != mine)
        outer, inner = f"up-{self.name}", "uplink"
        ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(holder))
        ip("link", "set", outer, "master", BRIDGE, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("link", "add", "br0", "type", "bridge"),
            ("link", "set", inner, "master", "br0", "up"),
            ("addr", "add", f"{self.address}/24", "dev", "br0"),
            ("link", "set", "br0", "up"),
        ):
            ip(*command, within=holder)

    def write_config(self) -> None:
        """Write the agent's settings file."""
        fleet, certs = self.fleet, self.fleet.folder / "certs"
        lines = [
            f'node = "{self.name}"',
            f'listen = "{self.address}:{self.port(0)}"',
            f'image_listen = "{self.address}:{self.port(1)}"',
            f'state = "{self.folder / "state"}"',
            f'runtime = "{"pretend" if fleet.pretend else "criu"}"',
            f'criu = "{fleet.criu}"',
            'bridge = "br0"',
            "prefix = 24",
            f'notices = "{self.notices}"',
            f'discovery = "{fleet.discovery}"',
            "[tls]",
            f'ca = "{certs / "ca.pem"}"',
            f'cert = "{certs / f"agent-{self.name}.pem"}"',
            f'key = "{certs / f"agent-{self.name}.key"}"',
            "[labels]",
            *(f'{key} = "{value}"' for key, value in self.plan.labels.items()),
        ]
        for index, roles in enumerate(self.plan.slots):
            lines += ["[[slots]]", f"index = {index}", f"roles = {json.dumps(list(roles))}", 'gpu_model = ""', "gpus = 0"]
        for worker in self.plan.workers:
            lines += ["[[workers]]", *fleet.worker_lines(worker)]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start the agent, which starts the node's workers unless its journal knows them already."""
        enter = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"] if self._holder else []
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                [*enter, str(BIN / "shunter-agent"), "run", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(self.fleet.folder)},  # whatever an agent leaves there goes with the fleet
            )

    def kill_agent(self) -> None:
        """SIGKILL the agent alone: its workers live on."""
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def power_off(self) -> None:
        """What the end of a preempted machine is: agent, workers and links gone at once."""
        pids = descendants(self.agent.pid) if self.agent else []
        spared = {pid for left in pids if self._went_on(left) for pid in (left, *descendants(left))}
        self.fleet.strays += spared
        pids = [*(pid for pid in pids if pid not in spared), *([self.agent.pid] if self.agent else [])]
        if self._holder:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", f"up-{self.name}")
            pids.append(self._holder.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (self.agent, self._holder):
            if process:
                process.wait()
        self.agent = self._holder = None

    def _went_on(self, pid: int) -> bool:
        """A pretend move leaves the process where it is, as its first agent's child: it isn't this node's any more all the same."""
        if not self.fleet.pretend:
            return False
        with contextlib.suppress(Rejected):
            standing = Shelf(self.fleet.folder / shared_shelf().name).get(processes.note(pid))  # beside the agents' own temporary files
            return standing is not None and standing.owner != self.name
        return False

    def post_notice(self, kind: str, lead: str, notice: str) -> None:
        """Post a notice to this node's agent through its local source."""
        subprocess.run(
            [BIN / "shunter-agent", "notice", "post", "--dir", self.notices, "--id", notice, "--kind", kind, "--lead", lead],
            check=True,
            capture_output=True,
        )


class Fleet:
    """The whole local fleet under one folder. Use as a context manager: leaving it ends every process that it started."""

    def __init__(
        self, folder: Path, *, pretend: bool = False, criu: Path | None = None, weights_mb: int = 128, nodes: tuple[NodePlan, ...] = NODES
    ) -> None:
        self.folder, self.pretend, self.criu = folder, pretend, criu or Path("/opt/shunter/criu/bin/criu")
        self.weights_mb = weights_mb
        self.base_port = 20000 + os.getpid() % 500 * 60
        self.discovery = folder / "discovery"
        self.repository = folder / "policies.git"
        self.prometheus_port = 9090 if not pretend else self.base_port + 1
        self.engine_port = 9464 if not pretend else self.base_port + 2
        self.worker_env: dict[str, dict[str, str]] = {}
        self.worker_script: dict[str, Path] = {}
        self.nodes = {plan.name: Node(self, plan) for plan in nodes}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.strays: list[int] = []

    # -- workers

    def worker_address(self, worker: WorkerPlan) -> tuple[str, int]:
        """Host and port that a worker serves on, wherever it is."""
        return ("127.0.0.1", self.base_port + 900 + worker.host) if self.pretend else (f"10.77.0.{worker.host}", 9000)

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
            ip("link", "add", BRIDGE, "type", "bridge")
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
        for process in reversed(self._processes):
            if process.poll() is None:
                process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for node in self.nodes.values():
            node.power_off()
        for pid in self.strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not self.pretend:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", BRIDGE)

    def _end_strays(self) -> None:
        """Without a lab nothing ends by itself: workers whose agent was gone before them are found by this fleet's own folder."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ProcessLookupError):
                if str(self.discovery).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)

    def start_nodes(self) -> None:
        """Start every agent and wait until all workers are in discovery."""
        for node in self.nodes.values():
            node.start()
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
        """Run a `shunter` command and return what it printed."""
        return subprocess.run([str(BIN / "shunter"), *arguments], check=check, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def start_engine(self, log: str = "engine.log") -> subprocess.Popen[bytes]:
        """Start the engine."""
        return self.run(str(BIN / "shunter"), "engine", "--config", str(self.engine_config), log=log)
