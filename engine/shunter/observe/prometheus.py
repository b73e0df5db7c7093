"""A small Prometheus client for a controller: one request, one deadline for all of it, and nothing that is unknown passed off as a number.

Prometheus' own HTTP API, `/api/v1/query` and `/api/v1/query_range`; Thanos, Mimir and VictoriaMetrics speak it too.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from pathlib import Path
from typing import Final, Literal, Protocol, Self
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec

from shunter.model.errors import Problem, Rejected, Retry
from shunter.observe.answer import Answer, LabelSets, Point, Series, scalar, series_of

__all__ = ["Answer", "Client", "Point", "Prometheus", "Series"]

_READABLE: Final = (200, 400, 422, 500, 503)
"""Statuses that may come with Prometheus' own JSON."""


class Client(Protocol):
    """What samples are taken with: Prometheus, or something that stands in for it."""

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        """See `Prometheus.query`."""
        ...


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Reply(msgspec.Struct, rename="camel"):
    status: Literal["success", "error"]
    data: _Data | None = None
    error_type: str = ""
    error: str = ""
    warnings: list[str] = []
    infos: list[str] = []


_REPLY: Final = msgspec.json.Decoder(_Reply)


class Prometheus:
    """One server. Use it within one event loop, and close it (`async with`, or `aclose`).

    `deadline_s` bounds a query from connecting to the last byte. `max_bytes` bounds a reply. `headers` are sent with each query (a bearer
    token, a tenant); `ca` is a file of certificates to trust instead of the system's; `cert` a client certificate and its key. Proxies and
    `.netrc` of the environment aren't used.
    """

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float = 2.0,
        max_bytes: int = 128 * 2**20,
        headers: Mapping[str, str] | None = None,
        ca: Path | None = None,
        cert: tuple[Path, Path] | None = None,
        breathe: Callable[[], None] = lambda: None,
    ) -> None:
        """`url` is the server's base, with any path prefix. `breathe` is called where reading an answer can stand still for a moment.
        Raises Rejected SH306 for a URL or certificates that can't be used.
        """
        self._breathe = breathe
        self.where = _shown(url)
        """The server for messages: its URL without credentials."""
        self._api = url.rstrip("/") + "/api/v1"
        self._deadline_s = deadline_s
        self._max_bytes = max_bytes
        self._labels = LabelSets()
        try:
            verify = _tls(ca, cert) if ca or cert else True
        except OSError as error:
            raise Rejected(
                Problem(code="SH306", what=f"the certificates can't be used: {error}", remedy="Check the files", subject=self.where)
            ) from error
        self._http = httpx.AsyncClient(
            headers={**(headers or {}), "Accept": "application/json", "Accept-Encoding": "identity"},
            verify=verify,
            timeout=None,  # noqa: S113  (the deadline is for the query as a whole)
            follow_redirects=False,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        """Evaluate `promql` at `at` (seconds since the epoch; None: the server's now). Never asks twice.

        `lookback_s` shortens how far back an instant selector may reach for a value, where the server honours it (others ignore it).
        Raises Retry: SH300 the server can't be reached, SH301 no whole reply within the deadline, SH302 an HTTP status or a redirect, SH303
        the query was refused or failed (with the server's own words), SH304 a reply that isn't Prometheus', SH305 one that is too large.
        """
        return await self._ask("query", promql, {} if at is None else {"time": f"{at:.3f}"}, lookback_s)

    async def query_range(self, promql: str, begin: float, end: float, step_s: float, *, lookback_s: float | None = None) -> Answer:
        """Evaluate `promql` at `begin` and every `step_s` seconds up to `end`, both included; points have the times of evaluation.

        Otherwise as `query`, and raises what it does.
        """
        return await self._ask("query_range", promql, {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step_s:.3f}"}, lookback_s)

    async def _ask(self, what: str, promql: str, times: Mapping[str, str], lookback_s: float | None) -> Answer:
        form = {"query": promql, "timeout": f"{max(1, ceil(self._deadline_s * 1000))}ms", **times}
        if lookback_s is not None:
            form["lookback_delta"] = f"{lookback_s:g}s"
        try:
            async with asyncio.timeout(self._deadline_s):
                status, body = await self._post(what, form)
        except TimeoutError as error:
            raise self._retry("SH301", f"no whole reply within {self._deadline_s:g} s") from error
        except httpx.RemoteProtocolError as error:
            raise self._retry("SH304", f"the reply broke off or isn't HTTP: {error}") from error
        except httpx.DecodingError as error:
            raise self._retry("SH304", f"the reply can't be decoded: {error}") from error
        except (httpx.HTTPError, OSError) as error:
            raise self._retry("SH300", f"Prometheus can't be reached: {str(error) or type(error).__name__}") from error
        return self._read(status, body, promql)

    async def _post(self, what: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        async with self._http.stream("POST", f"{self._api}/{what}", data=form) as response:
            if response.is_redirect:
                raise self._retry("SH302", f"the server redirects (HTTP {response.status_code}), which isn't followed")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise self._retry("SH304", "the reply is compressed although that wasn't asked for")
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > self._max_bytes:
                    raise self._retry("SH305", f"the reply is larger than {self._max_bytes:,} bytes", "Aggregate the query, or split it")
            return response.status_code, bytes(body)

    def _read(self, status: int, body: bytes, promql: str) -> Answer:
        try:
            reply = _REPLY.decode(body) if status in _READABLE else None
            if reply is not None and reply.status == "success" and reply.data is not None and status == 200:
                return self._answer(reply, reply.data, promql)
        except (msgspec.DecodeError, ValueError) as error:
            if status != 200:
                raise self._retry("SH302", f"HTTP {status}") from error
            raise self._retry(
                "SH304", f"the reply isn't Prometheus' JSON ({error})", "Check that the URL is a Prometheus server's"
            ) from error
        if reply is None or reply.status != "error":
            raise self._retry("SH302", f"HTTP {status}")
        said = f"{reply.error_type}: {reply.error}".strip(": ") or "an error without words"
        raise self._retry("SH303", f"the query failed: {said}; query: {promql}", "Mend the query, or look at the Prometheus server")

    def _answer(self, reply: _Reply, data: _Data, promql: str) -> Answer:
        warnings, infos = tuple(reply.warnings), tuple(reply.infos)
        match data.result_type:
            case "vector" | "matrix" as kind:
                series = series_of(data.result, partial(self._labels.read, promql), self._breathe)
                return Answer(kind=kind, series=series, warnings=warnings, infos=infos)
            case "scalar":
                return Answer(kind="scalar", series=(scalar(data.result),), warnings=warnings, infos=infos)
        raise self._retry("SH303", f"the query gives a {data.result_type}, which holds no numbers; query: {promql}", "Mend the query")

    def _retry(self, code: str, what: str, remedy: str = "Check the Prometheus server; until it answers, its metrics are missing") -> Retry:
        return Retry(Problem(code=code, what=what, remedy=remedy, subject=self.where))


def _tls(ca: Path | None, cert: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    if cert:
        context.load_cert_chain(*map(str, cert))
    return context


def _shown(url: str) -> str:
    def refuse(why: str) -> Rejected:
        return Rejected(
            Problem(
                code="SH306", what=f"the Prometheus URL {why}", remedy="Give an http:// or https:// URL, such as http://prometheus:9090"
            )
        )

    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError as error:
        raise refuse("can't be read") from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise refuse("isn't the base of a server")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
