"""A local fleet of real Dynamo workers: Dynamo's frontend, a prefill worker and a decode worker beside the nodes, another on one of them.

Like the local fleet, it is built in `scripts/lab`. The site (frontend, prefill worker, clients) is the lab's own network; the decode
worker that moves is started by node-a's agent, with an address that moves with it. All find each other by Dynamo's file discovery.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from fleet import ANY, GATEWAY, Fleet, NodePlan, SetUpError, WorkerPlan, wait_for
from token_chain import read, whole

HERE: Final = Path(__file__).resolve().parent
DYNAMO: Final = HERE.parents[1] / ".assets" / "dynamo"
"""Where scripts/install-dynamo puts it."""
DECODE: Final = "dynamo-decode-0"
NODES: Final = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan(DECODE, "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
RPC_PORT: Final = 9000
SYSTEM_PORT: Final = 9090
FRONTEND: Final = f"http://{GATEWAY}:8000"
OTHER_SYSTEM_PORT: Final = 9092
"""Of the second decode worker, which stays where it is."""


@dataclass
class Stream:
    """What one client got. `text` is all content; `pause_s` the longest time between two tokens, None before the second."""

    wanted: int
    text: str = ""
    chunks: int = 0
    last: float | None = None
    pause_s: float | None = None
    error: str = ""
    ended: bool = False

    def verdict(self) -> str:
        """Empty when every token came once, in order, and from one session's memory; else what is wrong."""
        if self.error:
            return self.error
        try:
            return whole(read(self.text), self.wanted)
        except ValueError as error:
            return str(error)

    def take(self, content: str, now: float) -> None:
        """Note a piece of text that came at `now`, in seconds of a steady clock."""
        if self.last is not None:
            self.pause_s = max(self.pause_s or 0.0, now - self.last)
        self.text, self.last, self.chunks = self.text + content, now, self.chunks + 1


async def stream(client: httpx.AsyncClient, model: str, prompt: str, into: Stream) -> None:
    """Ask Dynamo's frontend for a completion, and read it to its end. Whatever goes wrong is in `into.error`."""
    body = {
        "model": model,
        "stream": True,
        "max_tokens": into.wanted,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": prompt}],
    }
    try:
        async with client.stream("POST", f"{FRONTEND}/v1/chat/completions", json=body) as reply:
            if not reply.is_success:
                into.error = f"HTTP {reply.status_code}: {(await reply.aread()).decode(errors='replace')[:200]}"
            async for line in reply.aiter_lines():
                _note(line, into)
    except httpx.HTTPError as error:
        into.error = into.error or f"{type(error).__name__}: {error}"
    finally:
        into.ended = True


def _note(line: str, into: Stream) -> None:
    if line.startswith("event: error"):
        into.error = line
    if not line.startswith("data: {"):
        return
    for choice in json.loads(line.removeprefix("data: ")).get("choices", []):
        if content := choice["delta"].get("content"):
            into.take(content, time.monotonic())


class Newcomers:
    """New requests, one after the other, for as long as `more` says: what a user sees who comes while a worker moves."""

    def __init__(self, model: str, tokens: int, every_s: float) -> None:
        self.streams: list[Stream] = []
        self.begun: list[float] = []
        """When each began, seconds since the epoch."""
        self._model, self._tokens, self._every_s = model, tokens, every_s

    async def run(self, more: Callable[[], bool], timeout_s: float) -> None:
        """Begin one every `every_s` seconds, and return when all have ended. Raises TimeoutError after `timeout_s` seconds."""
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client,
            asyncio.TaskGroup() as group,
        ):
            while more():
                self.streams.append(Stream(self._tokens))
                self.begun.append(time.time())
                group.create_task(stream(client, self._model, f"and who am I, number {len(self.streams)}?", self.streams[-1]))
                await asyncio.sleep(self._every_s)


class Clients:
    """Some clients that stream at once through the frontend."""

    def __init__(self, model: str, count: int, tokens: int) -> None:
        self.streams = [Stream(tokens) for _ in range(count)]
        self._model = model

    async def run(self, timeout_s: float) -> None:
        """Stream until all have ended. Raises TimeoutError after `timeout_s` seconds."""
        async with asyncio.timeout(timeout_s), httpx.AsyncClient(timeout=timeout_s, trust_env=False) as client:
            prompts = ["the quick brown fox " * (10 + number) for number in range(len(self.streams))]
            await asyncio.gather(*(stream(client, self._model, prompt, one) for prompt, one in zip(prompts, self.streams, strict=True)))


class DynamoFleet(Fleet):
    """The fleet with Dynamo in it. `start_nodes` starts all of Dynamo too, and returns when its frontend serves the model."""

    PATIENCE_S = 0.5
    """Dynamo's frontends and workers wait longer than anybody here for requests that nobody sends any more."""

    def __init__(self, folder: Path, *, criu: Path | None = None, dynamo: Path = DYNAMO, token_s: float = 0.01) -> None:
        """`dynamo` is what scripts/install-dynamo made; `token_s` seconds that a token takes. Raises SetUpError when it isn't there."""
        if not (dynamo / "ready").exists():
            raise SetUpError(f"no Dynamo in {dynamo}: run scripts/install-dynamo")
        super().__init__(folder, criu=criu, weights_mb=0, nodes=NODES)
        self._python = str(dynamo / "venv" / "bin" / "python")
        self.model = str(dynamo / "model")
        self._token_s = token_s
        self._other: int | None = None
        """The second decode worker's instance id, once it serves."""

    def _env(self, host: str, system_port: int) -> dict[str, str]:
        """What tells a Dynamo process to keep to its own address and to the file discovery."""
        hosts = ("DYN_TCP_RPC_HOST", "DYN_SYSTEM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")
        return {
            **dict.fromkeys(hosts, host),
            "DYN_SYSTEM_PORT": str(system_port),
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self.discovery),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_NAMESPACE": "dynamo",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _worker_command(self, role: str) -> list[str]:
        command = [self._python, str(HERE / "without_io_uring.py"), self._python, str(HERE / "dynamo_worker.py")]
        command += ["--model-name", self.model, "--discovery-backend", "file", "--event-plane", "zmq", "--delay", str(self._token_s)]
        return [*command, "--component", "backend" if role == "decode" else role, "--disaggregation-mode", role]

    def worker_lines(self, worker: WorkerPlan) -> list[str]:
        """See `Fleet.worker_lines`."""
        host, port = self.worker_address(worker)
        env = {**self._env(host, SYSTEM_PORT), "DYN_TCP_RPC_PORT": str(port)}
        return [
            f'worker = "{worker.name}"',
            f'role = "{worker.role}"',
            'graph = "tiny"',
            'engine = "dynamo-sample"',
            f'address = "{host}:{port}"',
            f'mac = "02:53:48:4e:54:{worker.host:02x}"',
            f'control = "http://{host}:{SYSTEM_PORT}"',
            f"slot = {worker.slot}",
            f"command = {json.dumps(self._worker_command(worker.role))}",
            "env = {" + ", ".join(f"{key} = {json.dumps(value)}" for key, value in env.items()) + "}",
        ]

    def start_nodes(self) -> None:
        """Start Dynamo's frontend and prefill worker, the agents and with them the decode worker; wait until the model is served. A second
        decode worker is started beside them, and fenced until `open_other`.
        """
        for role, port in (("frontend", 9091), ("prefill", SYSTEM_PORT), ("decode", OTHER_SYSTEM_PORT)):
            command = [self._python, "-m", "dynamo.frontend", "--http-host", GATEWAY, "--http-port", "8000", "--router-mode", "kv"]
            # Dynamo's own migration is allowed, so that not needing it means something
            command = [*command, "--migration-limit", "3"] if role == "frontend" else self._worker_command(role)
            self.run(*command, log=f"{role}.log", env=self._env(GATEWAY, port))
        wait_for("the second decode worker", lambda: len(self._instances()) == 1, 60)
        (self._other,) = self._instances()
        self._control("fence")
        wait_for("the second decode worker to be fenced", lambda: not self._instances(), 20)
        for node in self.nodes.values():
            node.start()
        wait_for("Dynamo's frontend to serve the model", self.serves, 60)

    def open_other(self) -> None:
        """Let new requests go to the second decode worker; waits until the router sees it."""
        self._control("unfence")
        wait_for("the second decode worker to be seen", lambda: self._other in self._instances(), 20)

    def _control(self, control: str) -> None:
        url = f"http://{GATEWAY}:{OTHER_SYSTEM_PORT}/engine/control/{control}"
        httpx.post(url, json={}, timeout=10, trust_env=False).raise_for_status()

    def serves(self) -> bool:
        """The frontend offers the model and knows the decode worker."""
        return self.lists_model() and self.instance() is not None

    def instance(self) -> int | None:
        """The instance id of the decode worker that can move, as the frontend knows it; None when it knows none."""
        found = self._instances() - {self._other}
        return found.pop() if len(found) == 1 else None

    def _instances(self) -> set[int]:
        """All decode workers that the frontend knows."""
        try:
            reply = httpx.get(f"{FRONTEND}/health", timeout=2, trust_env=False).json()
        except (httpx.HTTPError, ValueError):
            return set()
        generate = [e for e in reply.get("instances", []) if (e["component"], e["endpoint"]) == ("backend", "generate")]
        return {int(e["instance_id"]) for e in generate}

    def lists_model(self) -> bool:
        """The frontend offers the model, which it does once it has a prefill and a decode worker for it."""
        try:
            reply = httpx.get(f"{FRONTEND}/v1/models", timeout=2, trust_env=False).json()
        except (httpx.HTTPError, ValueError):
            return False
        return any(model["id"] == self.model for model in reply.get("data", []))

    def migrations(self, kind: str = "ongoing_request") -> float:
        """Requests that Dynamo itself sent on to another worker since it was started, from the frontend's metrics. Of kind `new_request`
        are those that had not begun: the worker which the router had just chosen for them was gone from discovery an instant later.
        """
        text = httpx.get(f"{FRONTEND}/metrics", timeout=5, trust_env=False).text
        lines = [line for line in text.splitlines() if line.startswith("dynamo_frontend_model_migration_total")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if f'migration_type="{kind}"' in line)

    def decode_pids(self) -> list[int]:
        """Processes of the decode worker that can move, on this machine, by what they were started with. The other is a child of ours."""
        mark, others = b"--disaggregation-mode\0decode\0", {process.pid for process in self._processes}
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "cmdline").read_bytes() and int(entry.name) not in others:
                    found.append(int(entry.name))
            except OSError:
                continue  # it has just ended
        return found

    def netns(self, pid: int) -> str:
        """The network namespace of a process, by its name in /proc."""
        return os.readlink(f"/proc/{pid}/ns/net")
