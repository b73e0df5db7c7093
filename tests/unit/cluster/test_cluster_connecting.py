"""A connection ends with the request that it was made for, or with the client, wherever its making stands."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from shunter.cluster.connecting import Closing


class Silent:
    """Takes the client's hello, and never answers."""

    def __init__(self) -> None:
        self.reached, self.ended = asyncio.Event(), asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        self.reached.set()
        while await reader.read(1000):
            pass
        self.ended.set()
        writer.close()


@asynccontextmanager
async def silent() -> AsyncIterator[Silent]:
    found = Silent()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    yield found
    async with asyncio.timeout(5):
        await found.ended.wait()
    server.close()
    await server.wait_closed()


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=Closing(verify=ssl.create_default_context()))


async def test_a_handshake_that_is_cancelled_ends_its_connection() -> None:
    async with client() as found, silent() as server:
        asking = asyncio.create_task(found.get(server.url))
        await server.reached.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_client_that_is_closed_ends_a_connection_that_is_being_made() -> None:
    found = client()
    async with silent() as server:
        asking = asyncio.create_task(found.get(server.url))
        await server.reached.wait()
        await found.aclose()
    (failure,) = await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(failure, httpx.HTTPError)


async def test_a_connection_that_comes_about_once_its_client_is_closed_is_not_kept() -> None:
    found = client()
    async with silent() as server:
        asking = asyncio.create_task(found.get(server.url))
        while found._transport._pool._connections == []:  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        assert not server.reached.is_set()
        await found.aclose()
    (failure,) = await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(failure, httpx.ConnectError)
