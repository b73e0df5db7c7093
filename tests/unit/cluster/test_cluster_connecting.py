"""A request that is given up in the middle of a TLS handshake leaves no socket open."""

import asyncio
import ssl

import httpx
from shunter.cluster.connecting import closing


async def test_a_handshake_that_is_cancelled_ends_its_connection() -> None:
    ended, reached = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes the client's hello, and never answers."""
        await reader.read(1)
        reached.set()
        while await reader.read(1000):
            pass
        ended.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(transport=closing(httpx.AsyncHTTPTransport(verify=ssl.create_default_context()))) as client:
        asking = asyncio.create_task(client.get(f"https://127.0.0.1:{port}/"))
        await reached.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(5):
            await ended.wait()
    server.close()
    await server.wait_closed()
