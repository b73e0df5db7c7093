"""A pretended API server: a queue of answers, and every request that was made."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
from shunter.cluster.access import Access
from shunter.cluster.api import Api

Answer = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class Ended(Exception):
    """All answers were given: whoever asks further is stopped by this."""


class Server(httpx.AsyncBaseTransport):
    """Gives `answers` one after the other."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        if not self.answers:
            raise Ended
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def api(self, **more: Any) -> Api:
        return Api(Access(server="https://server", **more), transport=self)

    @property
    def asked(self) -> list[tuple[str, dict[str, str]]]:
        """Method and query of each request."""
        return [(request.method, dict(request.url.params)) for request in self.requests]


def thing(name: str, version: int, uid: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "n", "resourceVersion": str(version), "uid": uid or f"uid-{name}"}}


def listed(version: int, *items: dict[str, Any], more: str = "") -> httpx.Response:
    meta = {"resourceVersion": str(version), **({"continue": more} if more else {})}
    return httpx.Response(200, json={"metadata": meta, "items": list(items)})


def event(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def watched(*lines: bytes, chunk: int = 7) -> httpx.Response:
    """Lines, in pieces that don't end where lines do."""
    text = b"".join(lines)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(text), chunk):
            yield text[at : at + chunk]

    return httpx.Response(200, content=pieces())


def refused(status: int, message: str = "no") -> httpx.Response:
    return httpx.Response(status, json={"kind": "Status", "code": status, "message": message})
