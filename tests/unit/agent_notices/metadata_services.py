"""Metadata services that speak the clouds' protocols over real HTTP, and can be told to fail.

They leave out what a watcher never sees: signatures, other paths, and that a real one answers only from inside its instance.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, dict[str, str]]


class Service:
    """What a service says now; tests change it between requests. `asked` is every request: method and path."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.ahead = 0.0
        self.broken: Answer | None = None
        self.url = ""

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        raise NotImplementedError

    def count(self, method: str, path: str) -> int:
        return sum(m == method and p.startswith(path) for m, p in self.asked)


class Aws(Service):
    def __init__(self) -> None:
        super().__init__()
        self.says: dict[str, str] = {}
        self.tokens: list[str] = []

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if (method, path) == ("PUT", "/latest/api/token"):
            assert 1 <= int(headers["x-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
            self.tokens.append(f"token-{self.count(*self.asked[-1])}")
            return 200, self.tokens[-1], {}
        if headers.get("x-aws-ec2-metadata-token") not in self.tokens:
            return 401, "", {}
        text = self.says.get(path.removeprefix("/latest/meta-data/"))
        return (404, "Not Found", {}) if text is None else (200, text, {})

    def forget_tokens(self) -> None:
        self.tokens.clear()


class Gcp(Service):
    """Keeps a waiting request until what it says differs from `last_etag`."""

    def __init__(self) -> None:
        super().__init__()
        self.says = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.changed = threading.Condition()
        self.waiting = 0

    def say(self, path: str, text: str) -> None:
        with self.changed:
            self.says[path] = text
            self.changed.notify_all()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers.get("metadata-flavor") != "Google":
            return 403, "", {"Metadata-Flavor": "Google"}
        name, _, query = path.removeprefix("/computeMetadata/v1/instance/").partition("?")
        asked = dict(part.split("=") for part in query.split("&"))
        with self.changed:
            if name not in self.says:
                return 404, "", {"Metadata-Flavor": "Google"}
            if asked.get("wait_for_change") == "true":
                self.waiting += 1
                self.changed.wait_for(lambda: self._etag(name) != asked["last_etag"], timeout=float(asked["timeout_sec"]))
                self.waiting -= 1
            return 200, self.says[name], {"Metadata-Flavor": "Google", "ETag": self._etag(name)}

    def _etag(self, name: str) -> str:
        return f"{abs(hash(self.says[name])):x}"


class Azure(Service):
    def __init__(self, machine: str = "vm-0") -> None:
        super().__init__()
        self.machine = machine
        self.events: list[dict[str, Any]] = []
        self.incarnation = 1
        self.started: list[str] = []
        self.refuses = False

    def preempt(self) -> None:
        """An event of its own machine, long before its time."""
        event = {"EventId": "e1", "EventType": "Preempt", "EventStatus": "Scheduled", "NotBefore": "Wed, 02 Jan 2030 03:00:30 GMT"}
        self.events = [{**event, "Resources": [self.machine]}]

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if headers.get("metadata") != "true":
            return 400, "Bad Request", {}
        if path.startswith("/metadata/instance/compute/name"):
            return 200, self.machine, {}
        if method == "POST":
            return self._start([one["EventId"] for one in json.loads(body)["StartRequests"]])
        return 200, json.dumps({"DocumentIncarnation": self.incarnation, "Events": self.events}), {}

    def say(self, events: list[dict[str, Any]]) -> None:
        """Other events are another document."""
        self.events = events
        self.incarnation += 1

    def _start(self, keys: list[str]) -> Answer:
        if self.refuses or not {e["EventId"] for e in self.events} >= set(keys):
            return 400, "there is no such event", {}
        self.started += keys
        self.say([{**e, "EventStatus": "Started", "NotBefore": ""} if e["EventId"] in keys else e for e in self.events])
        return 200, "", {}


class Alibaba(Service):
    def __init__(self, *, hardened: bool = True) -> None:
        super().__init__()
        self.ends: str | None = None
        self.hardened = hardened
        self.secret = "secret-0"

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if method == "PUT":
            return (200, self.secret, {}) if self.hardened else (404, "", {})
        if self.hardened and headers.get("x-aliyun-ecs-metadata-token") != self.secret:
            return 403, "", {}
        return (404, "", {}) if self.ends is None else (200, self.ends, {})

    def forget_tokens(self) -> None:
        self.secret = f"secret-{self.count('PUT', '/')}"


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is its own matter: the words about it would come in the middle of another test."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(service: Service, clock: Callable[[], float] = time.time, host: str = "127.0.0.1") -> Iterator[Service]:
    """Answer requests on a port of `host` until the end; `service.url` says where. `clock` gives the time of its `Date` headers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            service.asked.append((self.command, self.path))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, text, more = service.broken or service.answer(self.command, self.path, headers, body)
            data = text.encode()
            self.send_response_only(status)
            self.send_header("Date", formatdate(clock() + service.ahead, usegmt=True))
            self.send_header("Content-Length", str(len(data)))
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = _answer

        def log_message(self, *_args: object) -> None:
            pass

    server = _Server((host, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    service.url = f"http://{host}:{server.server_address[1]}"
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
