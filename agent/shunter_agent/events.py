"""What engines that watch this agent are told, as it happens.

A reader that doesn't keep up is dropped: it asks Inventory and watches anew.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from shunter.wire import agent_pb2 as pb

ROOM: Final = 256
"""Events that a reader may be behind."""


class Events:
    """A broadcast to any number of readers. To be used in the event loop's thread alone; `publish` never waits."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._readers: set[asyncio.Queue[pb.Event | None]] = set()
        self._closed = False

    def publish(self, event: pb.Event) -> None:
        """Give an event to every reader; drop those that are full."""
        for queue in tuple(self._readers):
            if queue.qsize() >= self._room:
                self._end(queue)
            else:
                queue.put_nowait(event)

    def subscribe(self) -> "Subscription":
        """Be told of all events from now on."""
        queue: asyncio.Queue[pb.Event | None] = asyncio.Queue()
        if self._closed:
            queue.put_nowait(None)
        else:
            self._readers.add(queue)
        return Subscription(self, queue)

    def close(self) -> None:
        """End every reader's stream once it has read what it has."""
        self._closed = True
        for queue in tuple(self._readers):
            self._end(queue)

    @property
    def readers(self) -> int:
        """How many there are."""
        return len(self._readers)

    def leave(self, queue: asyncio.Queue[pb.Event | None]) -> None:
        """The reader has gone away."""
        self._readers.discard(queue)

    def _end(self, queue: asyncio.Queue[pb.Event | None]) -> None:
        self._readers.discard(queue)
        queue.put_nowait(None)


class Subscription:
    """One reader's stream; iterate over it, and close it."""

    def __init__(self, events: Events, queue: asyncio.Queue[pb.Event | None]) -> None:
        self._events = events
        self._queue = queue

    async def __aiter__(self) -> AsyncIterator[pb.Event]:
        """Events until the reader is dropped or the agent ends."""
        while (event := await self._queue.get()) is not None:
            yield event

    def close(self) -> None:
        """Stop being told."""
        self._events.leave(self._queue)
