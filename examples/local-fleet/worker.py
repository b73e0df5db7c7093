"""A small serving worker of the local fleet: the standard library alone, so that what is checkpointed is only itself.

A decode worker streams a session's tokens (`GET /v1/stream?session=S&tokens=N`); its memory grows with every token, like a KV cache.
A prefill worker has a queue and takes a fixed time for each job (`POST /v1/prefill`). Both show metrics under the names of Dynamo and
vLLM, and have the engine controls `fence` and `unfence` and `GET /engine/status`, as a custom Dynamo worker does.

It stands in for an engine with a GPU: it has no GPU memory, no NIXL transfer from prefill to decode, and its tokens are hashes.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from discovery import Instance
from http1 import STREAM_HEAD, Request, read_request, response
from tokens import KV_BLOCK, Session, weights


class Worker:
    """One worker's state and HTTP interface."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        component = "prefill" if options.role == "prefill" else "backend"  # Dynamo's name for decode workers
        self.component = component
        self.instance = Instance(options.discovery, options.namespace, component, f"{options.host}:{options.port}")
        self.model = weights(options.weights_mb << 20)
        self.sessions: dict[str, Session] = {}
        self.running = 0
        self.waiting = 0
        self.served = 0
        self._turn = asyncio.Lock()
        self._routes: dict[tuple[str, str], Callable[[Request], tuple[str, bytes, str]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/engine/status"): self._status,
            ("POST", "/engine/control/fence"): self._fence,
            ("POST", "/engine/control/unfence"): self._unfence,
        }

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it leaves."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
            while request := await read_request(reader):
                if (request.method, request.path) == ("GET", "/v1/stream"):
                    await self._stream(request, writer)
                    break
                if (request.method, request.path) == ("POST", "/v1/prefill"):
                    writer.write(response("200 OK", await self._prefill()))
                elif handler := self._routes.get((request.method, request.path)):
                    status, body, kind = handler(request)
                    writer.write(response(status, body, kind))
                else:
                    writer.write(response("404 Not Found", b"{}"))
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _stream(self, request: Request, writer: asyncio.StreamWriter) -> None:
        session = self.sessions.setdefault(request.query["session"], Session(request.query["session"], self.model))
        self.running += 1
        try:
            writer.write(STREAM_HEAD)
            due = time.monotonic()
            for _ in range(int(request.query["tokens"])):
                number = len(session.kv)
                writer.write(f"{number} {session.step()}\n".encode())
                await writer.drain()
                due = max(due + 1 / self.options.tokens_per_s, time.monotonic())
                await asyncio.sleep(due - time.monotonic())
        finally:
            self.running -= 1
            self.served += 1

    async def _prefill(self) -> bytes:
        self.waiting += 1
        async with self._turn:
            self.waiting -= 1
            self.running += 1
            try:
                await asyncio.sleep(self.options.prefill_ms / 1000)
            finally:
                self.running -= 1
                self.served += 1
        return b'{"done": true}'

    def _health(self, _request: Request) -> tuple[str, bytes, str]:
        return "200 OK", json.dumps({"status": "healthy", "worker": self.options.id}).encode(), "application/json"

    def _status(self, _request: Request) -> tuple[str, bytes, str]:
        busy = self.running + self.waiting
        body = {
            "state": "running" if self.instance.registered else "drained" if not busy else "draining",
            "inflight_requests": busy,
            "safe_to_delete": busy == 0,
            "discovery_registered": self.instance.registered,
        }
        return "200 OK", json.dumps(body).encode(), "application/json"

    def _fence(self, _request: Request) -> tuple[str, bytes, str]:
        self.instance.unregister()
        return "200 OK", json.dumps({"instance_id": self.instance.instance_id}).encode(), "application/json"

    def _unfence(self, _request: Request) -> tuple[str, bytes, str]:
        self.instance.register()
        return "200 OK", json.dumps({"instance_id": self.instance.instance_id}).encode(), "application/json"

    def _metrics(self, _request: Request) -> tuple[str, bytes, str]:
        tokens = sum(len(session.kv) for session in self.sessions.values())
        usage = tokens * KV_BLOCK / (self.options.kv_mb << 20)
        vllm = '{model_name="tiny",engine="0"}'
        dynamo = f'{{dynamo_namespace="{self.options.namespace}",dynamo_component="{self.component}",dynamo_endpoint="generate"}}'
        rows = [
            ("vllm:num_requests_running", vllm, self.running, "gauge"),
            ("vllm:num_requests_waiting", vllm, self.waiting, "gauge"),
            ("vllm:kv_cache_usage_perc", vllm, min(1.0, usage), "gauge"),
            ("dynamo_component_inflight_requests", dynamo, self.running + self.waiting, "gauge"),
            ("dynamo_component_requests_total", dynamo, self.served, "counter"),
            ("shunter_worker_sessions", "", len(self.sessions), "gauge"),
            ("shunter_worker_kv_tokens", "", tokens, "gauge"),
        ]
        text = "".join(f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, labels, value, kind in rows)
        return "200 OK", text.encode(), "text/plain; version=0.0.4"

    async def keep_alive(self) -> None:
        """Renew the discovery entry until the end."""
        while True:
            self.instance.keep_alive()
            await asyncio.sleep(2)


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    worker = Worker(options)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(worker.connection, options.host, options.port, backlog=1024)
    worker.instance.register()
    keeper = asyncio.create_task(worker.keep_alive())
    await stop.wait()
    keeper.cancel()
    worker.instance.unregister()
    server.close()


def main() -> None:
    """Parse options and serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--id", required=True)
    parser.add_argument("--role", choices=("prefill", "decode"), required=True)
    parser.add_argument("--host", required=True, help="address to listen on; the worker takes it along when it moves")
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--discovery", type=Path, default=os.environ.get("DYN_FILE_KV"), help="root of the file discovery [DYN_FILE_KV]")
    parser.add_argument("--namespace", default="dynamo")
    parser.add_argument("--weights-mb", type=int, default=128)
    parser.add_argument("--kv-mb", type=int, default=512, help="size that kv_cache_usage_perc is measured against")
    parser.add_argument("--tokens-per-s", type=float, default=25.0)
    parser.add_argument("--prefill-ms", type=float, default=100.0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
