"""Requests to the API server, as plain JSON: each with a deadline, and failures sorted by what they say about the effect."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import msgspec

from shunter.cluster.access import Access, tls
from shunter.cluster.connecting import Closing
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Unknown

Object: TypeAlias = dict[str, Any]
"""A resource, as the server gives it."""
Query: TypeAlias = Mapping[str, str | int]

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
_LINE_BYTES: Final = 16 * 2**20
"""An event of a watch: far more than the server stores, and a bound for what isn't one."""
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
)
"""A peer that is gone for good is found by the kernel in half a minute; one that hangs, only by the deadlines."""


class Absent(Retry):
    """SH252: the resource, or its whole kind, isn't there."""


class Conflict(Retry):
    """SH253: it was changed meanwhile, or is there already. Nothing was done."""


class Expired(Retry):
    """SH254: the version that was asked for is no longer known: list anew."""


class Api:
    """One server. Needs a running event loop; `aclose` at the end. `timeout_s` bounds each request as a whole, but watches."""

    def __init__(self, access: Access, *, timeout_s: float = 10.0, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Raises Stalled SH250 for certificates that can't be read. Connects when first used, by `transport` if one is given."""
        self.access = access
        self._timeout_s = timeout_s
        if transport is None:
            limits = httpx.Limits(keepalive_expiry=60.0)
            transport = Closing(verify=tls(access), socket_options=_KEEPALIVE, limits=limits)
        self._http = httpx.AsyncClient(
            base_url=access.server, transport=transport, timeout=_patience(timeout_s), auth=_Bearer(access.token)
        )

    async def aclose(self) -> None:
        """End all connections."""
        await self._http.aclose()

    async def get(self, path: str, query: Query | None = None, *, timeout_s: float | None = None) -> Object:
        """A resource, or a list. Raises Retry (SH251 no answer, SH255 refused), Absent, Expired."""
        return await self._ask("GET", path, query, None, "application/json", timeout_s)

    async def create(self, path: str, body: Object, query: Query | None = None, *, timeout_s: float | None = None) -> Object:
        """Make a resource in the collection at `path`. Raises as `apply` does, and Conflict when it is there."""
        return await self._ask("POST", path, query, body, "application/json", timeout_s)

    async def replace(self, path: str, body: Object, query: Query | None = None, *, timeout_s: float | None = None) -> Object:
        """Put a resource in the place of the version that its `resourceVersion` names. Raises as `apply` does, and Conflict."""
        return await self._ask("PUT", path, query, body, "application/json", timeout_s)

    async def apply(self, path: str, body: Object, manager: str, *, force: bool = True, dry_run: bool = False) -> Object:
        """Server-side apply. Raises Unknown SH251 when no answer came, Retry SH255 where we may not, Rejected SH256 for what is invalid,
        Absent, and Conflict (a field of another manager's without `force`, or another `uid` than stated).
        """
        query: dict[str, str | int] = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        return await self._ask("PATCH", path, {**query, **({"dryRun": "All"} if dry_run else {})}, body, APPLY, None)

    async def merge(self, path: str, body: Object, *, strategic: bool = False) -> Object:
        """Change the fields that `body` names; a `metadata.uid` in it must be the resource's. With `strategic` entries of lists are told
        apart as the built-in kinds have it. Raises as `apply` does, and Conflict for another uid.
        """
        return await self._ask("PATCH", path, None, body, STRATEGIC if strategic else MERGE, None)

    async def delete(self, path: str, options: Object | None = None) -> Object:
        """`options`: a DeleteOptions. Raises as `apply` does, and Conflict where its preconditions don't hold."""
        return await self._ask("DELETE", path, None, options, "application/json", None)

    async def watch(
        self, path: str, query: Query, each: Callable[[Object], None], *, within_s: float, opened: Callable[[], None] = lambda: None
    ) -> None:
        """Give events to `each` until the server ends the watch, as it does after the query's `timeoutSeconds`. `opened` is called when it
        has begun.

        `within_s` bounds it as a whole, so that a connection at whose other end nobody is can't hold us: then it raises Retry SH251. Raises
        Expired, Absent, Retry as `get` does.
        """
        try:
            async with asyncio.timeout(within_s), self._http.stream("GET", path, params={**query, "watch": "true"}) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    raise _failure(answer, path)
                opened()
                async with contextlib.aclosing(_lines(answer)) as lines:
                    async for line in lines:
                        each(_event(line, path))
        except (httpx.HTTPError, OSError) as error:
            raise Retry(_no_answer(error, path)) from error

    async def _ask(self, method: str, path: str, query: Query | None, body: Object | None, kind: str, timeout_s: float | None) -> Object:
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": kind} if body is not None else {}
        bound = timeout_s or self._timeout_s
        try:
            async with asyncio.timeout(bound):
                answer = await self._http.request(method, path, params=query, content=content, headers=headers, timeout=_patience(bound))
        except (httpx.HTTPError, OSError) as error:
            problem = _no_answer(error, path)
            raise (Retry(problem) if method == "GET" or isinstance(error, httpx.ConnectError) else Unknown(problem)) from error
        if answer.status_code >= httpx.codes.BAD_REQUEST:
            raise _failure(answer, path, read=method == "GET")
        return _decoded(answer.content, path)


def _patience(bound: float) -> httpx.Timeout:
    """A connection that doesn't come about is given up before the request is: cancelled while it is made, it would be left open.

    To connect and to agree on TLS are two steps, each with this bound.
    """
    return httpx.Timeout(None, connect=0.45 * bound)


class _Bearer(httpx.Auth):
    def __init__(self, token: Path | str | None) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Any:  # noqa: ANN401  (a generator of httpx's)
        if self._token is not None:
            text = self._token.read_text().strip() if isinstance(self._token, Path) else self._token
            request.headers["Authorization"] = f"Bearer {text}"
        yield request


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Whole lines. What stands after the last newline is the beginning of an event that never came."""
    left = b""
    async for chunk in answer.aiter_bytes():
        *whole, left = (left + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
        if len(left) > _LINE_BYTES:
            raise httpx.DecodingError(f"an event has more than {_LINE_BYTES:,} bytes")


def _event(line: bytes, path: str) -> Object:
    event = _decoded(line, path)
    found = event.get("object")
    if event.get("type") == "ERROR":
        status = found if isinstance(found, dict) else {}
        raise _error(int(status.get("code") or 0), str(status.get("message", "")), path, read=True)
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict) or not isinstance(event.get("type"), str):
        raise Retry(_nonsense("it isn't an event", path))
    return event


def _decoded(data: bytes, path: str) -> Object:
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Retry(_nonsense(str(error), path)) from error
    if not isinstance(found, dict):
        raise Retry(_nonsense("it isn't an object", path))
    return found


def _nonsense(why: str, path: str) -> Problem:
    remedy = "Check that it is a Kubernetes API server that answers there, with nothing between that changes what it says"
    return Problem(code="SH257", what=f"the API server's answer can't be read: {why}", remedy=remedy, subject=path)


def _no_answer(error: Exception, path: str) -> Problem:
    why = "it took too long" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    remedy = "Check that it runs and can be reached; what was read last stays in force, and it is tried again"
    return Problem(code="SH251", what=f"the API server gave no answer: {why}", remedy=remedy, subject=path)


def _failure(answer: httpx.Response, path: str, *, read: bool = True) -> ShunterError:
    try:
        message = str(msgspec.json.decode(answer.content).get("message", ""))
    except (msgspec.DecodeError, AttributeError):
        message = answer.content[:200].decode(errors="replace")
    return _error(answer.status_code, message, path, read=read)


def _error(status: int, message: str, path: str, *, read: bool) -> ShunterError:
    """By HTTP status: a refusal says that nothing was done; a server's own failure says nothing about it."""
    said = message or f"status {status}"

    def problem(code: str, what: str, remedy: str) -> Problem:
        return Problem(code=code, what=f"{what}: {said}", remedy=remedy, subject=path)

    match status:
        case 401 | 403:
            return Retry(problem("SH255", "the API server refuses this", "Check the role of our service account"))
        case 404:
            return Absent(
                problem("SH252", "the API server has no such resource", "Check that the custom resource definitions are installed")
            )
        case 409:
            return Conflict(problem("SH253", "the resource was changed meanwhile", "Nothing to do: it is read anew"))
        case 410:
            return Expired(problem("SH254", "that version is no longer known", "Nothing to do: it is listed anew"))
        case 400 | 405 | 406 | 413 | 415 | 422:
            return Rejected(problem("SH256", "the API server finds this invalid", "Please report this, with the version of the cluster"))
    failed = problem("SH251", "the API server failed", "Look at its log; it is tried again")
    return Retry(failed) if read or status == 429 else Unknown(failed)
