"""From a notice to the orders that it asks for: `notice`. An engine with 10,000 workers on 1,250 nodes, as a process of its own with its
own store, audit and Prometheus; one real agent (`pretend` runtime) as another process, over gRPC with mutual TLS; the other nodes are made
up where the engine asks their agents. The engine ticks all the time, and the notices come at any moment of a tick.

What is counted begins where the agent sees a notice, and ends where an order reaches it: the first one (its preflight) and the freeze,
which comes after preflight on both nodes, the reservation of the slot, and a fence.

The freeze is then refused, so that the workers go back and can leave again. As programs, `agent` and `engine`, the two processes.

Wherever there are 10,000 workers an agent and its workers have a machine of their own, with hundreds of cores, and Prometheus another. Here
all share two: the agent and the workers' control APIs go before the engine (nice -20, for root), and Prometheus after it. With BENCH_FIRST
the engine goes before all that isn't of the bench, too, where other work keeps the processors busy.
"""

import asyncio
import contextlib
import http.server
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any, NoReturn

import large
import msgspec
import past
import way
from shunter.act.agents import AgentClient, TlsFiles
from shunter.act.port import CopyView
from shunter.app import roster
from shunter.app.certs import issue
from shunter.app.engine import Engine
from shunter.app.policies import PolicyFeed
from shunter.app.settings import AgentSettings, AuditSettings, LimitsSettings, PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sources import source_of
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import Epoch, NodeId, OperationId
from shunter.model.operation import OperationRecord
from shunter.model.snapshot import Node
from shunter.model.units import Duration
from shunter.model.view import NodeView
from shunter.wire import agent_pb2 as pb
from shunter_agent.agent import serve
from shunter_agent.journal import WorkerRow
from shunter_agent.node import Node as AgentNode
from shunter_agent.notices.port import Notice
from shunter_agent.orders.source import Source
from shunter_agent.runtime.pretend import PretendRuntime
from shunter_agent.server import AgentService
from shunter_agent.settings import Settings as AgentProcessSettings
from shunter_agent.settings import SlotSettings, WorkerSettings
from shunter_agent.settings import TlsSettings as AgentTls

NODE = "node-0000"
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "shunter_worker_sessions")
SCRAPE_S, LASTS_S = 15, 900
LEAD_S = 120.0


def measure(notices: int = 200) -> dict[str, Any]:
    """Milliseconds from each notice to the first order and to the freeze, each sorted; how many ticks there were meanwhile, and how long
    this disk takes to write a page for good (median).
    """
    os.environ["BENCH_OFFSET"] = str(large.NOW - time.time())
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        _metrics(folder / "made.om")
        past.fill(folder)
        issue(folder / "certs", [NODE], time.time())
        ports = [_port() for _ in range(2)]
        told: Queue[dict[str, Any]] = Queue()
        if os.environ.get("BENCH_FIRST"):
            _goes_first()
        url = stack.enter_context(past.started(folder, last=True))
        control = stack.enter_context(_controls())
        with _process(told, "agent", folder, *ports, control) as agent:
            _await(told, "listening")
            with _process(told, "engine", folder, ports[0], url) as engine:
                _await(told, "tick", times=3)
                found = _notices(told, agent, notices)
                engine.terminate()
            agent.terminate()
        return found | {"fsync": _fsync(folder)}


def _goes_first() -> None:
    """This thread, and those that it starts, before whatever else wants the processors; as ever for who isn't root."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)


def _fsync(folder: Path) -> float:
    taken = []
    with (folder / "page").open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(1000 * (time.perf_counter() - began))
    return sorted(taken)[50]


def at(values: list[float], share: float) -> float:
    """The value that this share of them doesn't exceed."""
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


def _notices(told: "Queue[dict[str, Any]]", agent: "subprocess.Popen[str]", number: int) -> dict[str, Any]:
    moments, first, freeze, ticks = random.Random(7), [], [], 0
    ways: list[list[way.Span]] = []
    began: list[float] = []
    assert agent.stdin is not None
    for n in range(number):
        time.sleep(moments.uniform(0.1, 1.5))
        while not told.empty():
            ticks += told.get()["what"] == "tick"
        print(f"n-{n}", file=agent.stdin, flush=True)
        seen = _await(told, "seen")["at"]
        first.append(1000 * (_await(told, "order")["at"] - seen))
        ways.append(_await(told, "way")["spans"])
        freeze.append(1000 * (_await(told, "freeze")["at"] - seen))
        began.append(seen)
        print("", file=agent.stdin, flush=True)
        ticks += _quiet(told)
    lines = way.table(ways, began) + way.slowest(ways, began, freeze)
    return {"first": sorted(first), "freeze": sorted(freeze), "ticks": ticks, "way": lines}


def _quiet(told: "Queue[dict[str, Any]]") -> int:
    """Wait until an operation has ended, and a whole tick has passed since the last one that has; how many ticks that took."""
    _await(told, "outcome")
    ticks = since = 0
    while since < 2:
        what = told.get(timeout=60)["what"]
        since = since + (what == "tick") if what != "outcome" else 0
        ticks += what == "tick"
    return ticks


def _await(told: "Queue[dict[str, Any]]", what: str, times: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while times:
        try:
            found = told.get(timeout=60)
        except Empty as silence:
            raise TimeoutError(f"nothing was told, and {what} is waited for") from silence
        times -= found["what"] == what
    return found


@contextlib.contextmanager
def _process(told: "Queue[dict[str, Any]]", *arguments: object) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, __file__, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        threading.Thread(target=_listen, args=(process.stdout, told), daemon=True).start()
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _listen(lines: IO[str], told: "Queue[dict[str, Any]]") -> None:
    for line in lines:
        if line.startswith('{"what"'):
            told.put(json.loads(line))


def _say(what: str, **more: object) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _metrics(path: Path) -> None:
    with path.open("w") as file:
        for k, gauge in enumerate((*GAUGES, "shunter_worker_kv_tokens")):
            file.write(f"# TYPE {gauge} gauge\n")
            for n in range(large.WORKERS):
                for at in range(-2 * SCRAPE_S, LASTS_S, SCRAPE_S):
                    value = (n * 7 + k + (at if n % 50 == 0 else 0)) % 90 / 100  # most of them do what they did
                    file.write(f'{gauge}{{worker="worker-{n:05d}",job="workers"}} {value} {large.NOW + at - n % 10:.3f}\n')
        file.write("# EOF\n")


@contextlib.contextmanager
def _controls() -> Iterator[str]:
    """The control API of all workers: they do what they are asked."""

    class Obeys(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # As workers' own servers do (uvicorn, axum): else a body waits for the acknowledgement of its head, 40 ms of the bench's own.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = b'{"status": "ok"}'
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Obeys) as server:
        server.daemon_threads = True

        def serve_first() -> None:
            _goes_first()
            server.serve_forever()

        threading.Thread(target=serve_first, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _bench_time() -> float:
    """The clock of both processes: the machine's, moved so that the metrics are as old as they should be."""
    return time.time() + float(os.environ["BENCH_OFFSET"])


# -- the agent's process


async def _agent(folder: Path, port: int, image_port: int, control: str) -> None:
    certs = folder / "certs"
    made = large.snapshot()
    workers = tuple(
        WorkerSettings(
            worker=w.id,
            role=w.role,
            graph=w.graph,
            engine=w.engine,
            address="127.0.0.1:9",
            slot=n,
            command=("sleep", "3600"),
            control=control,
            labels=w.labels,
        )
        for n, w in enumerate(made.fleet.workers[: large.PER_NODE])
    )
    settings = AgentProcessSettings(
        node=NODE,
        listen=f"127.0.0.1:{port}",
        image_listen=f"127.0.0.1:{image_port}",
        state=folder / "agent",
        tls=AgentTls(ca=certs / "ca.pem", cert=certs / f"agent-{NODE}.pem", key=certs / f"agent-{NODE}.key"),
        slots=tuple(SlotSettings(index=n, gpu_model="B200", gpus=1) for n in range(large.SLOTS)),
        workers=workers,
        runtime="pretend",
        labels={"zone": "a"},
    )
    loop = asyncio.get_running_loop()
    nodes: list[AgentNode] = []
    _spy(nodes)

    def obey() -> None:
        for line in sys.stdin:
            name = line.strip()
            notice = Notice(id=name, kind="preemption", seen_at=_bench_time(), deadline=_bench_time() + LEAD_S, source="bench")
            loop.call_soon_threadsafe(nodes[0].notices_changed, {name: notice} if name else {})

    rows: list[WorkerRow] = []

    def started() -> None:
        rows.extend(nodes[0].journal.workers().values())
        _say("listening")

    threading.Thread(target=obey, daemon=True).start()
    try:
        await serve(settings, clock=_bench_time, started=started)
    finally:
        for row in rows:
            nodes[0].runtime.end(row.process)


def _spy(nodes: list[AgentNode]) -> None:
    """Tell when a notice is seen, and which order comes first after it; refuse each freeze."""
    begin, changed, whole = AgentNode.__post_init__, AgentNode.notices_changed, AgentService.Preflight
    waiting = False

    def made(self: AgentNode) -> None:
        begin(self)
        nodes.append(self)

    def notices_changed(self: AgentNode, found: dict[str, Notice]) -> None:
        nonlocal waiting
        if found:
            _say("seen")
            waiting = True
        changed(self, found)

    async def preflight(self: AgentService, request: pb.PreflightOrder, context: Any) -> pb.PreflightReply:
        nonlocal waiting
        if waiting:
            _say("order")
            waiting = False
        reply: pb.PreflightReply = await whole(self, request, context)
        return reply

    async def freeze(_self: Source, _message: pb.FreezeOrder, _within_s: float | None = None) -> NoReturn:
        _say("freeze")
        raise Rejected(Problem(code="SH653", what="the bench has seen what it wants to see", remedy="Nothing to do"))

    AgentNode.__post_init__ = made  # type: ignore[method-assign]
    AgentNode.notices_changed = notices_changed  # type: ignore[method-assign]
    AgentService.Preflight = preflight  # type: ignore[method-assign]
    Source.freeze = freeze  # type: ignore[method-assign,assignment]


# -- the engine's process


class Made:
    """The agent of a node that is made up: it has what `large` says, and does what it is told, as there is nothing to do."""

    def __init__(self, view: NodeView) -> None:
        self._view = view

    @property
    def node(self) -> NodeId:
        return self._view.node.id

    async def view(self) -> NodeView:
        return msgspec.structs.replace(self._view, at=_bench_time())

    async def watch(self, epoch: Epoch) -> AsyncIterator[pb.Event]:
        yield pb.Event(hello=pb.Hello(node=self.node, epoch=epoch))
        await asyncio.Event().wait()

    async def report(self, timeout: float) -> pb.NodeReport:
        return pb.NodeReport(node=self.node, image_address="127.0.0.1:9")

    async def journal(self, operation: OperationId, timeout: float) -> CopyView:
        return CopyView()

    async def preflight(self, order: pb.Order, **_: object) -> pb.PreflightReply:
        return pb.PreflightReply(image_address="127.0.0.1:9")

    async def prepare(self, *_: object) -> pb.Done:
        return pb.Done()

    def took(self, *_: object) -> None:
        """Nothing to it."""

    async def stand(self, *_: object) -> pb.Done:
        return pb.Done()

    async def abort(self, *_: object) -> pb.Done:
        return pb.Done()

    async def close(self) -> None:
        """Nothing."""


async def _engine(folder: Path, port: int, url: str) -> None:
    (folder / "policies").mkdir()
    for n in range(large.GRAPHS):
        (folder / "policies" / f"graph-{n}.yaml").write_text(large.four(f"graph-{n}", 600 + n))
    made = _views()

    def client(node: NodeId, address: str, tls: TlsFiles, **_: object) -> AgentClient | Made:
        return AgentClient(node, address, tls) if address != "made up" else Made(made[node])

    roster.__dict__["AgentClient"] = client
    certs = folder / "certs"
    settings = Settings(
        state=folder / "engine",
        policies=PoliciesSettings(directory=folder / "policies", poll=Duration(3600)),
        prometheus=PrometheusSettings(url=url, deadline=Duration(10)),
        tls=TlsSettings(ca=certs / "ca.pem", cert=certs / "engine.pem", key=certs / "engine.key"),
        agents=(
            AgentSettings(node=NODE, address=f"127.0.0.1:{port}"),
            *(AgentSettings(node=node, address="made up") for node in made),
        ),
        tick=Duration(1),
        listen="",
        limits=LimitsSettings(voluntary=0),  # what it would do besides is planned, and waits
        audit=AuditSettings(inputs=Duration(0)),
    )

    def step(record: OperationRecord) -> None:
        if record.outcome is not None:
            _say("outcome", operation=record.id, code=record.outcome.code, reason=record.outcome.reason)

    way.Way(lambda spans: _say("way", spans=spans)).install()
    feed = PolicyFeed(source_of(settings.policies, settings.state), _bench_time)
    engine = Engine(settings, feed, clock=_bench_time, on_tick=lambda _told: _say("tick"), on_step=step, on_problem=_tell)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await engine.run(stop)


def _tell(problem: Problem) -> None:
    print(problem, file=sys.stderr)


def _views() -> Mapping[NodeId, NodeView]:
    """Of all nodes but the real one, with its facts and runtime, so that its workers fit there."""
    fleet, facts = large.snapshot().fleet, PretendRuntime("bench").facts()
    workers: dict[NodeId, list[Any]] = {}
    for worker in fleet.workers:
        workers.setdefault(worker.node or NodeId(""), []).append(worker)
    images: dict[NodeId, list[Any]] = {}
    for image in fleet.images:
        for holder in image.nodes:
            images.setdefault(holder, []).append(msgspec.structs.replace(image, nodes=(holder,)))

    def view(node: Node) -> NodeView:
        real = msgspec.structs.replace(node, facts=facts, runtime="pretend")
        own = tuple(workers.get(node.id, ()))
        return NodeView(node=real, workers=own, images=tuple(images.get(node.id, ())), notices=(), epoch=Epoch(0), at=0.0)

    return {node.id: view(node) for node in fleet.nodes if node.id != NODE}


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        _goes_first()
        asyncio.run(_agent(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
    elif sys.argv[1] == "engine":
        asyncio.run(_engine(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
    else:
        found = measure(int(sys.argv[2]))
        for name in ("first", "freeze"):
            print(name, *(f"p{p} {at(found[name], p / 100):.1f}" for p in (50, 90, 99, 100)))
        print(*found["way"], sep="\n")
        print(found["ticks"], "ticks; a page is written in", round(found["fsync"], 2), "ms")
