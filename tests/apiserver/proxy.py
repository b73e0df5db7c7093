"""Stands between a client and a server on loopback, and does to connections what networks do."""

import asyncio
import contextlib


class Proxy:
    """Forwards to `port` until told otherwise. `connections` counts what was accepted."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.connections = 0
        self.refusing = False
        self.port = 0

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(5):
            await asyncio.sleep(0)  # what was just taken gets to `_serve`, which alone would end it
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """End all connections there are."""
        for writer in self._writers:
            writer.transport.abort()

    def hold(self) -> None:
        """The connections there are stay open, and nothing goes through them any more: half-open. New ones work."""
        self._flowing.clear()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        flowing = self._flowing
        try:
            if self.refusing:
                writer.transport.abort()
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers |= {writer, back}
            try:
                await asyncio.gather(_pump(reader, back, flowing), _pump(there, writer, flowing))
            finally:
                self._writers -= {writer, back}
                await _ended(back)
        except (OSError, asyncio.CancelledError):
            pass  # asyncio's own callback of such tasks can't do with a cancelled one
        finally:
            await _ended(writer)
            self._open.discard(task)


async def _ended(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            await flowing.wait()
            writer.write(data)
            await writer.drain()
        writer.write_eof() if writer.can_write_eof() else None
    writer.transport.abort()
