"""A stand-in on loopback for all that a node's sources ask, which says that the node goes, by each path that any of them looks at: what a
canary is heard from.

It answers in each service's own protocol, from the same paths, as it would on the day; what it doesn't show is that the real service can be
reached, which the source's silence tells.
"""

import json
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from shunter_agent.notices.dcgm import XID
from shunter_agent.notices.nodepods import SLOT

MACHINE: Final = "canary"
"""The name of the node and the machine that it speaks of."""
XID_LINE: Final = "NVRM: Xid (PCI:0000:ff:1f): 48, pid=1, canary"
"""As in the kernel's log: a GPU that no machine has."""
_AHEAD: Final = timedelta(minutes=2)


class _Answer(NamedTuple):
    status: int
    text: str
    headers: Mapping[str, str] = {}


class Stage:
    """Use as a context: `url` is where it is, until the end."""

    url = ""

    def __enter__(self) -> "Stage":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="notices canary stage", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


def answer(method: str, target: str, now: datetime) -> _Answer:
    """What is said at `now` to a request: that the node goes in two minutes, by the protocol of whoever has such a path; else a 404."""
    path, ends = urlsplit(target).path, now + _AHEAD
    if method == "PUT" and path == "/latest/api/token":
        return _Answer(200, "canary")
    google = {"Metadata-Flavor": "Google", "ETag": "canary"}
    if path.startswith("/computeMetadata/v1/instance/"):
        upcoming = json.dumps({"type": "SCHEDULED", "maintenanceStatus": "PENDING", "windowStartTime": _rfc3339(ends)})
        told = {"preempted": "TRUE", "maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE", "upcoming-maintenance": upcoming}
        said = told.get(path.rpartition("/")[2])
        return _Answer(200, said, google) if said else _Answer(404, "", google)
    texts: dict[str, Any] = {
        "/latest/meta-data/spot/instance-action": {"action": "terminate", "time": _rfc3339(ends)},
        "/latest/meta-data/events/recommendations/rebalance": {"noticeTime": _rfc3339(now)},
        "/latest/meta-data/events/maintenance/scheduled": [_maintained(ends)],
        "/latest/meta-data/autoscaling/target-lifecycle-state": "Terminated",
        "/latest/meta-data/instance/spot/termination-time": _rfc3339(ends),
        "/metadata/instance/compute/name": MACHINE,
        "/metadata/scheduledevents": {"DocumentIncarnation": 1, "Events": [_preempted(ends)]},
        "/metrics": f'{XID}{{gpu="0",UUID="GPU-canary",pci_bus_id="00000000:FF:1F.0"}} 48\n',
        "/api/v1/nodes": {"metadata": {"resourceVersion": "1"}, "items": [_node(now)]},
        "/api/v1/pods": {"metadata": {"resourceVersion": "1"}, "items": [_pod(now, ends)]},
        "/notices": [{"id": MACHINE, "kind": "preemption", "lead": "120s"}],
    }
    said = texts.get(path)
    return _Answer(404, "") if said is None else _Answer(200, said if isinstance(said, str) else json.dumps(said))


def _rfc3339(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _preempted(ends: datetime) -> dict[str, Any]:
    return {
        "EventId": MACHINE,
        "EventType": "Preempt",
        "EventStatus": "Scheduled",
        "Resources": [MACHINE],
        "NotBefore": ends.strftime("%a, %d %b %Y %H:%M:%S GMT"),
    }


def _maintained(ends: datetime) -> dict[str, Any]:
    return {"EventId": MACHINE, "Code": "system-reboot", "State": "active", "NotBefore": ends.strftime("%d %b %Y %H:%M:%S GMT")}


def _pod(now: datetime, ends: datetime) -> dict[str, Any]:
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "lastTransitionTime": _rfc3339(now)}
    meta = {"name": MACHINE, "uid": MACHINE, "labels": {SLOT: "0"}, "deletionTimestamp": _rfc3339(ends)}
    return {"metadata": meta, "status": {"conditions": [evicted]}}


def _node(now: datetime) -> dict[str, Any]:
    spot = {"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule", "timeAdded": _rfc3339(now)}
    return {"metadata": {"name": MACHINE, "resourceVersion": "1"}, "spec": {"taints": [spot]}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer on a kept connection waits for the acknowledgement of its head: 40 ms

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        given = answer(self.command, self.path, datetime.now(UTC))
        data = given.text.encode()
        self.send_response_only(given.status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in given.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing of it is worth a line."""
