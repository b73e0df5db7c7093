"""Fencing a Dynamo worker: through its control API, or by its records in the file discovery; verified there, where there is one.

Two APIs do it: engine controls of the worker's own (`/engine/control/fence` and `/unfence`, which call the endpoint's unregister and
register), and Dynamo's Worker Admin API (`/engine/drain`, `/engine/resume`), which releases after 1.6 have. With the former a worker keeps
its instance id. Of a worker that has neither, the agent takes the records out of discovery itself, and puts them back; so it also puts back
what peers deleted of any worker, since it stood still for longer than its lease.
"""

import contextlib
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

from shunter_agent.refusals import rejected, retry
from shunter_agent.runtime.port import WorkerSpec
from shunter_agent.serving.records import INTERNAL, Records, address_of

ANSWER_S: Final = 2.0
"""Seconds that a control call may take: measured ones take 10 to 50 ms."""
DISCOVERY_S: Final = 5.0
"""Seconds until discovery must show what was asked for."""
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
        self._records = Records(discovery) if discovery else None
        self._client = client or httpx.Client(timeout=ANSWER_S, trust_env=False)
        self._monotonic = monotonic
        self._wait = wait

    def fence(self, spec: WorkerSpec) -> str:
        """See the port."""
        noted = self._noted(spec)
        asked = self._control(spec, "/engine/control/fence", "/engine/drain")
        if asked is None:
            return self._take_out(spec)
        reply, api = asked
        if self._records is None:
            return f"fenced by {api}; no discovery to verify it in"
        if not self._until(lambda: not self._registered(spec, reply.get("instance_id"))):
            self._control(spec, "/engine/control/unfence", "/engine/resume")
            raise retry(
                "SH623",
                f"the worker said that it is fenced, but it is still in discovery after {DISCOVERY_S:g} s; it was put back",
                "Check that `discovery` is the folder that the worker registers in",
                spec.worker,
            )
        return f"fenced by {api}; gone from discovery{noted}"

    def unfence(self, spec: WorkerSpec) -> str:
        """See the port."""
        asked = self._control(spec, "/engine/control/unfence", "/engine/resume")
        if self._records is None:
            if asked is None:
                return "the worker has no control API, and can't have been fenced"
            return f"unfenced by {asked[1]}; no discovery to verify it in"
        reply, by = asked if asked is not None else ({}, "its records")
        registered = partial(self._registered, spec, reply.get("instance_id"))
        # what a worker with controls registers by itself is left to it, for as long as that may take
        back = self._put_back(spec, endpoints=asked is None)
        if asked is None and not back and not registered():
            return "nothing of it was taken out of discovery, and it has no control API to register with"
        if not self._until(registered):
            back += self._put_back(spec, endpoints=True)
        if not registered():
            raise retry(
                "SH624",
                f"the worker said that it is unfenced, but it isn't in discovery after {DISCOVERY_S:g} s",
                "Check that `discovery` is the folder that the worker registers in, and the worker's log",
                spec.worker,
            )
        self._records.forget(spec.worker)
        return f"unfenced by {by}; back in discovery{f', {back} of its records put back' if back else ''}"

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

    def _take_out(self, spec: WorkerSpec) -> str:
        if self._records is None:
            raise _no_control(spec)
        try:
            taken = self._records.take_out(spec.worker, spec.address)
        except OSError as error:
            with contextlib.suppress(OSError):  # what is out comes back with the next unfence, too
                self._records.put_back(spec.worker, spec.address, endpoints=True)
            raise retry(
                "SH625",
                f"the worker's records can't be taken out of discovery: {error.strerror}",
                "Check that the agent may write in `discovery`, or give the worker controls of its own",
                spec.worker,
            ) from error
        if not taken:
            raise _no_control(spec)
        if self._registered(spec, None):
            self._put_back(spec, endpoints=True)
            raise retry(
                "SH627",
                "the worker's records were taken out of discovery, and are there again; all were put back",
                "Its Dynamo renews them otherwise than releases up to 1.6.1 do: give it controls of its own",
                spec.worker,
            )
        return "fenced by its records, which were taken out of discovery"

    def _put_back(self, spec: WorkerSpec, *, endpoints: bool) -> int:
        assert self._records is not None
        try:
            return self._records.put_back(spec.worker, spec.address, endpoints=endpoints)
        except OSError as error:
            raise retry(
                "SH626",
                f"the worker's records can't be put back into discovery: {error.strerror}",
                "Check that the agent may write in `discovery`; they lie beside it, in its folder `shunter`",
                spec.worker,
            ) from error

    def _noted(self, spec: WorkerSpec) -> str:
        """Keep copies of its records, should its lease end while it stands still. Why that failed, in words: controls do without."""
        try:
            if self._records is not None:
                self._records.note(spec.worker, spec.address)
        except OSError as error:
            return f" (its records could not be kept: {error.strerror})"
        return ""

    def _control(self, spec: WorkerSpec, *paths: str) -> tuple[dict[str, Any], str] | None:
        """What it answered, and on which path; None: it has none of them."""
        for path in paths if spec.control else ():
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
        return None

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
        assert self._records is not None
        return any(
            (record.get("instance_id") == instance) if isinstance(instance, int) else address_of(record) == spec.address
            for record in self._records.serving()
        )


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
    rows = [value for labels, value in _INFLIGHT_ROW.findall(response.text) if f'dynamo_endpoint="{INTERNAL}' not in labels]
    try:
        return sum(int(float(value)) for value in rows) if rows else None
    except (ValueError, OverflowError):
        return None


def _no_control(spec: WorkerSpec) -> Exception:
    return rejected(
        "SH621",
        "the worker can't be fenced: there is no engine control fence or unfence, no Worker Admin API, and no record in `discovery`",
        "Add the controls (they call the endpoint's unregister and register) and name their base URL as the worker's `control`, or set"
        " `discovery` to the folder of its file discovery",
        spec.worker,
    )
