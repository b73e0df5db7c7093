"""Fencing through a Dynamo worker's control API, verified in the file discovery where there is one.

Two APIs do it: engine controls of the worker's own (`/engine/control/fence` and `/unfence`, which call the endpoint's unregister and
register), and Dynamo's Worker Admin API (`/engine/drain`, `/engine/resume`), which releases after 1.6 have. With the former a worker keeps
its instance id.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from shunter_agent.refusals import rejected, retry
from shunter_agent.runtime.port import WorkerSpec

ANSWER_S: Final = 2.0
"""Seconds that a control call may take: measured ones take 10 to 50 ms."""
DISCOVERY_S: Final = 5.0
"""Seconds until discovery must show what was asked for."""
_INTERNAL: Final = "worker_kv_query_source"
"""Endpoints between workers and routers that carry no requests; they stay registered while a worker is fenced."""
_INFLIGHT: Final = "dynamo_component_inflight_requests"
_INFLIGHT_ROW: Final = re.compile(rf"^{_INFLIGHT}\{{([^}}\n]*)\}} (\S+)$", re.MULTILINE)


class DynamoServing:
    """Implements `serving.port.Serving`. `discovery` is the root of Dynamo's file discovery ($DYN_FILE_KV); None: fences are believed."""

    def __init__(
        self,
        discovery: Path | None = None,
        *,
        client: httpx.Client | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._instances = discovery / "v1" / "instances" if discovery else None
        self._client = client or httpx.Client(timeout=ANSWER_S, trust_env=False)
        self._monotonic = monotonic
        self._wait = wait

    def fence(self, spec: WorkerSpec) -> str:
        """See the port."""
        reply, api = self._control(spec, "/engine/control/fence", "/engine/drain")
        if self._instances is None:
            return f"fenced by {api}; no discovery to verify it in"
        if not self._until(lambda: not self._registered(spec, reply.get("instance_id"))):
            self._control(spec, "/engine/control/unfence", "/engine/resume")
            raise retry(
                "SH623",
                f"the worker said that it is fenced, but it is still in discovery after {DISCOVERY_S:g} s; it was put back",
                "Check that `discovery` is the folder that the worker registers in",
                spec.worker,
            )
        return f"fenced by {api}; gone from discovery"

    def unfence(self, spec: WorkerSpec) -> str:
        """See the port."""
        reply, api = self._control(spec, "/engine/control/unfence", "/engine/resume")
        if self._instances is None:
            return f"unfenced by {api}; no discovery to verify it in"
        if not self._until(lambda: self._registered(spec, reply.get("instance_id"))):
            raise retry(
                "SH624",
                f"the worker said that it is unfenced, but it isn't in discovery after {DISCOVERY_S:g} s",
                "Check that `discovery` is the folder that the worker registers in, and the worker's log",
                spec.worker,
            )
        return f"unfenced by {api}; back in discovery"

    def inflight(self, spec: WorkerSpec) -> int:
        """See the port."""
        if not spec.control:
            raise _no_control(spec)
        response = self._ask(spec, "GET", "/engine/status")
        if response.status_code == 404:  # releases up to 1.6 have no status, but a metric
            count: object = _inflight_metric(self._ask(spec, "GET", "/metrics"))
        else:
            count = _body(response).get("inflight_requests")
        if not isinstance(count, int) or isinstance(count, bool):
            raise rejected(
                "SH621",
                f"the worker doesn't say how many requests are in flight (GET /engine/status, or {_INFLIGHT} of GET /metrics)",
                "Give it one of the two; until then it can be moved or parked, but not drained",
                spec.worker,
            )
        return count

    def _control(self, spec: WorkerSpec, *paths: str) -> tuple[dict[str, Any], str]:
        if not spec.control:
            raise _no_control(spec)
        for path in paths:
            response = self._ask(spec, "POST", path)
            if response.is_success:
                return _body(response), path
            if response.status_code not in (404, 405, 501):
                raise retry(
                    "SH622",
                    f"the worker answered {response.status_code} to {path}",
                    "Look at the worker's log; it is left as it was",
                    spec.worker,
                )
        raise _no_control(spec)

    def _ask(self, spec: WorkerSpec, method: str, path: str) -> httpx.Response:
        try:
            return self._client.request(method, spec.control.rstrip("/") + path, timeout=ANSWER_S)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise retry(
                "SH622",
                f"the worker's control API at {spec.control} doesn't answer: {type(error).__name__}",
                "Check that the worker runs, and that this node reaches that address",
                spec.worker,
            ) from error

    def _until(self, condition: Callable[[], bool]) -> bool:
        end = self._monotonic() + DISCOVERY_S
        while not condition():
            if self._monotonic() >= end:
                return False
            self._wait(0.02)
        return True

    def _registered(self, spec: WorkerSpec, instance: object) -> bool:
        return any(
            (entry.get("instance_id") == instance) if isinstance(instance, int) else _address(entry) == spec.address
            for entry in self._entries()
        )

    def _entries(self) -> Iterator[dict[str, Any]]:
        assert self._instances is not None
        for path in sorted(self._instances.glob("*")) if self._instances.is_dir() else ():
            if path.name.startswith("."):
                continue
            try:
                entry = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue  # it went away while we looked, or is being written
            if isinstance(entry, dict) and not str(entry.get("endpoint", "")).startswith(_INTERNAL):
                yield entry


def _address(entry: dict[str, Any]) -> str:
    transport = entry.get("transport")
    text = transport.get("tcp", "") if isinstance(transport, dict) else ""
    return str(text).split("/", 1)[0]


def _body(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _inflight_metric(response: httpx.Response) -> int | None:
    """Requests in flight by a worker's metrics; None when they don't say, which isn't none in flight."""
    if not response.is_success:
        return None
    rows = [value for labels, value in _INFLIGHT_ROW.findall(response.text) if f'dynamo_endpoint="{_INTERNAL}' not in labels]
    try:
        return sum(int(float(value)) for value in rows) if rows else None
    except (ValueError, OverflowError):
        return None


def _no_control(spec: WorkerSpec) -> Exception:
    return rejected(
        "SH621",
        "the worker can't be fenced: it has neither the engine controls fence and unfence nor the Worker Admin API",
        "Add the controls (they call the endpoint's unregister and register), and name their base URL as the worker's `control`",
        spec.worker,
    )
