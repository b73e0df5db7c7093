"""Connections whose making can be given up at any moment. httpcore closes one whose TLS handshake fails, and forgets one whose handshake is
cancelled: its socket would stay open until it is found as rubbish.
"""

import ssl
from collections.abc import Iterable
from typing import Any, cast

import httpcore
import httpx


class _Stream(httpcore.AsyncNetworkStream):
    """One connection, as it is but for that."""

    def __init__(self, of: httpcore.AsyncNetworkStream) -> None:
        self._of = of

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._of.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._of.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._of.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            return _Stream(await self._of.start_tls(ssl_context, server_hostname, timeout))
        except BaseException:
            await self._of.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  (httpcore's own signature)
        return self._of.get_extra_info(info)


class _Backend(httpcore.AsyncNetworkBackend):
    """Makes them."""

    def __init__(self) -> None:
        self._of = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Stream(await self._of.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._of.sleep(seconds)


def closing(transport: httpx.AsyncHTTPTransport) -> httpx.AsyncHTTPTransport:
    """The transport, with such connections. httpx has no parameter for that."""
    transport._pool._network_backend = _Backend()
    return transport
