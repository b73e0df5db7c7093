"""The little of HTTP/1.1 that the local fleet's servers and clients speak, on asyncio streams, with nothing to install in a worker."""

import asyncio
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

LIMIT = 64 * 1024


@dataclass
class Request:
    """A request's head, and its body (empty without Content-Length)."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request on a connection, or None at its end. Raises ValueError for what isn't HTTP."""
    line = (await reader.readline()).decode("latin-1").strip()
    if not line:
        return None
    method, target, _version = line.split(" ", 2)
    headers: dict[str, str] = {}
    while header := (await reader.readline()).decode("latin-1").strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    if length > LIMIT:
        raise ValueError("body too large")
    parts = urlsplit(target)
    return Request(method, parts.path, dict(parse_qsl(parts.query)), headers, await reader.readexactly(length) if length else b"")


def response(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    """A whole response on a connection that stays open."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
