"""Connections that end with their client. httpcore closes one whose TLS handshake fails, forgets one whose handshake is cancelled, and
keeps one that comes about once the client is closed: its socket would stay open until it is found as rubbish.
"""

import ssl
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, cast

import httpcore
import httpx


class _Stream(httpcore.AsyncNetworkStream):
    """One connection, as it is but for that."""

    def __init__(self, of: httpcore.AsyncNetworkStream, backend: "_Backend") -> None:
        self._of, self._backend = of, backend
        backend.made.add(self)

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
            return _Stream(await self._of.start_tls(ssl_context, server_hostname, timeout), self._backend)
        except BaseException as error:
            await self._of.aclose()
            if self._backend.ended and isinstance(error, Exception):
                raise _closed() from error
            raise

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401  (httpcore's own signature)
        return self._of.get_extra_info(info)


def _closed() -> httpcore.ConnectError:
    return httpcore.ConnectError("the client was closed meanwhile")


class _Backend(httpcore.AsyncNetworkBackend):
    """Makes them, until it is ended, and then ends all that are left."""

    def __init__(self) -> None:
        self._of = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())
        self.ended = False
        self.made: weakref.WeakSet[_Stream] = weakref.WeakSet()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = _Stream(await self._of.connect_tcp(host, port, timeout, local_address, socket_options), self)
        if self.ended:
            await stream.aclose()
            raise _closed()
        return stream

    async def sleep(self, seconds: float) -> None:
        await self._of.sleep(seconds)

    async def end(self) -> None:
        self.ended = True
        for stream in list(self.made):
            await stream.aclose()


class Closing(httpx.AsyncHTTPTransport):
    """One whose connections are all closed by the time that `aclose` returns, or as soon as they come about, whoever still asks by them."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (httpx's own)
        """`options`: those of `httpx.AsyncHTTPTransport`. It has none for this."""
        super().__init__(**options)
        self._backend = self._pool._network_backend = _Backend()

    async def aclose(self) -> None:
        """End all of them."""
        await super().aclose()
        await self._backend.end()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await super().__aexit__(exc_type, exc_value, traceback)
        await self._backend.end()
