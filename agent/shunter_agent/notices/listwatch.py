"""Resources of the API server, kept up to date by list and watch, in a thread.

Nothing that the server or the way to it can do makes it stop or spin: each request ends by a bound of its own, failures wait longer each
time (by `Look.rest`), and a copy that wasn't listed for a while is listed anew, as a server that was set back to an older state would stay
silent.
"""

import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import httpx
import msgspec
from shunter.model.errors import Retry, ShunterError

from shunter_agent.notices.kubernetes import Meta, NodeObject
from shunter_agent.notices.metadata import ahead_of
from shunter_agent.notices.nodepods import PodObject
from shunter_agent.refusals import retry

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SOURCE: Final = "kubernetes"
LARGEST: Final = 16 * 2**20
"""Bytes of one answer or event."""
STEADY_S: Final = 2.0
"""By so many seconds the server's clock may seem to go while it doesn't."""
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
)
_RIGHTS: Final = "Let its service account get, list and watch nodes (docs/how-to/hear-of-notices.md)"
BETWEEN: Final = "Look at what lies between: it must let long requests through"


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. A watch lasts from `least` to `most`, at random, and `margin` longer if nobody is at its other end."""

    least: int = 20
    most: int = 30
    margin: float = 5.0
    request: float = 5.0
    steady: float = 1.0
    """A watch that ended before counts as a failure."""
    doubt: float = 120.0
    """After this it is listed anew, whatever watches say."""
    rest_first: float = 0.25
    rest_most: float = 10.0


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How the API server is reached. `server` is a URL without a path, empty: as a pod reaches it. None: the pod's own, or not used.

    `token` is read anew at each request, since it is replaced from time to time.
    """

    server: str = ""
    ca: Path | None = None
    token: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def client(self, times: Times) -> httpx.Client:
        """A client of its own for one thread. Raises Retry SH648 for what can't be read."""
        try:
            server, ca, token = self.server, self.ca, self.token
            if not server:
                host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
                server, ca, token = (
                    f"https://{f'[{host}]' if ':' in host else host}:{port}",
                    ca or ACCOUNT / "ca.crt",
                    token or ACCOUNT / "token",
                )
            context = ssl.create_default_context(cafile=ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except KeyError as error:
            raise failed(f"{error} isn't set: this is no pod", "Set `server`, `ca` and `token` in [kubernetes]") from error
        except OSError as error:  # an SSLError is one
            raise failed(f"TLS can't be set up: {error}", "Check `ca`, `cert` and `key` in [kubernetes]") from error
        transport = httpx.HTTPTransport(verify=context, socket_options=_KEEPALIVE)
        timeout = httpx.Timeout(times.request, read=times.most + times.margin)
        return httpx.Client(base_url=server, transport=transport, timeout=timeout, auth=_Bearer(token), trust_env=False)


class _Bearer(httpx.Auth):
    def __init__(self, token: Path | None) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        yield request


T = TypeVar("T", NodeObject, PodObject)


class _Page(msgspec.Struct, Generic[T]):
    metadata: "_ListMeta"
    items: list[T] | None = None


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Bare(msgspec.Struct):
    metadata: Meta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class Copy(Generic[T]):
    """Resources of one kind, kept up to date. From one thread."""

    def __init__(
        self,
        client: Callable[[], httpx.Client],
        path: str,
        selector: str,
        kind: type[T],
        times: Times,
        *,
        clock: Callable[[], float] = time.monotonic,
        rnd: Callable[[], float] = random.random,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives seconds that never go back, `rnd` numbers from 0 to 1, `wall` seconds since the epoch."""
        self.ahead = 0.0
        """For how many seconds the server's clock is ahead of this node's, by what it said last."""
        self._wall = wall
        self.objects: dict[str, T] = {}
        self.brief = 0
        """Watches that ended at once, one after the other: what lies between may let none through; lists alone mustn't be a hot loop."""
        self._make, self._path, self._selector, self._times = client, path, selector, times
        self._kind: type[T] = kind
        self._clock, self._rnd = clock, rnd
        self._client: httpx.Client | None = None
        self._version = ""
        self._steps: Iterator[None] | None = None

    def step(self) -> None:
        """Wait until something changed, or a watch ended. Raises Retry SH648; the next step then lists anew."""
        if self._steps is None:
            self._steps = self._follow()
        try:
            next(self._steps)
        except ShunterError:
            self._steps = None
            raise
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, RuntimeError) as error:
            self._steps = None
            why = str(error) or type(error).__name__
            raise failed(f"it gave no answer: {why}", "Check that it runs and can be reached from this node") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._steps = None
            raise failed(f"its answer can't be read: {error}", "Check that it is a Kubernetes API server that answers there") from error

    def close(self) -> None:
        """End its connection, from any thread."""
        if self._client is not None:
            self._client.close()

    def _follow(self) -> Iterator[None]:
        while True:
            listed = self._clock()
            self._list()
            yield
            while self._clock() - listed < self._times.doubt:
                began = self._clock()
                yield from self._watch()
                if self._clock() - began < self._times.steady:
                    self.brief += 1
                    raise failed("it ended a watch at once", BETWEEN)
                self.brief = 0
                yield

    def _list(self) -> None:
        if self._client is None:
            self._client = self._make()
        answer = self._client.get(self._path, params={"fieldSelector": self._selector}, timeout=self._times.request)
        if answer.status_code != httpx.codes.OK:
            raise _refused(answer.status_code, answer.text)
        self._compare(answer)
        page = msgspec.json.decode(answer.content, type=_Page[self._kind])  # type: ignore[name-defined]
        self._version = page.metadata.resource_version
        self.objects = {_key(found.metadata): found for found in page.items or ()}

    def _watch(self) -> Iterator[None]:
        assert self._client is not None, "it was listed"
        seconds = self._times.least + round((self._times.most - self._times.least) * self._rnd())
        query: Mapping[str, str | int] = {
            "fieldSelector": self._selector,
            "watch": "true",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        ends = self._clock() + seconds + self._times.margin
        with self._client.stream("GET", self._path, params=query) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
                raise _refused(answer.status_code, answer.text)
            self._compare(answer)
            for line in _lines(answer, lambda: self._clock() < ends):
                if self._take(line):
                    yield

    def _compare(self, answer: httpx.Response) -> None:
        """A `Date` has whole seconds: what differs by less isn't another skew, and changes no deadline."""
        ahead = ahead_of(answer.headers.get("Date"), self._wall())
        if abs(ahead - self.ahead) > STEADY_S:
            self.ahead = ahead

    def _take(self, line: bytes) -> bool:
        """Whether the event changed anything."""
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object)
            raise _refused(int(status.get("code") or 0), line.decode(errors="replace"))
        meta = msgspec.json.decode(event.object, type=_Bare).metadata
        self._version = meta.resource_version or self._version
        if event.type == "DELETED":
            return self.objects.pop(_key(meta), None) is not None
        if event.type in ("ADDED", "MODIFIED"):
            self.objects[_key(meta)] = msgspec.json.decode(event.object, type=self._kind)
            return True
        return False


def _key(meta: Meta) -> str:
    return meta.uid or meta.name


def _lines(answer: httpx.Response, going: Callable[[], bool]) -> Iterator[bytes]:
    """Whole lines, until the answer ends or `going` is no more. What stands after the last newline is an event that never came."""
    left = b""
    for chunk in answer.iter_bytes():
        *whole, left = (left + chunk).split(b"\n")
        yield from (line for line in whole if line)
        if len(left) > LARGEST:
            raise failed(f"an event has more than {LARGEST:,} bytes", "Check what answers there")
        if not going():
            return


def failed(why: str, remedy: str) -> Retry:
    """SH648: what it was last told stands, and nothing newer is known."""
    return retry("SH648", f"the API server can't be followed: {why}", remedy, SOURCE)


def _refused(status: int, text: str) -> Retry:
    remedy = (
        _RIGHTS if status in (401, 403) else "Nothing to do: it is listed anew" if status == 410 else "Look at its log; it is tried again"
    )
    return failed(f"it answers {status}: {text[:200]}", remedy)
