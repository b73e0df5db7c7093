"""More links for one transfer: chunks go over beside each other, so that no link's encryption or round trips hold up the others."""

import contextlib
import queue
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

import msgspec
from shunter.model.errors import ShunterError

from shunter_agent.images.frames import Ack, Broken, Data, Lane, Link, Ready, Wait
from shunter_agent.images.sealed import new_key

_AHEAD: Final = 4
"""Chunks that wait for a lane: a link that is slower holds up its sender by that."""
_LOOK_S: Final = 0.05
_Load = tuple[Data, bytes | memoryview]


class _Lane:
    """One link and its thread. What it couldn't bring over is `left` once it has ended."""

    def __init__(self, connect: Callable[[], AbstractContextManager[Link]], hello: Lane) -> None:
        self._connect = connect
        self._hello = hello
        self.waiting: queue.Queue[_Load | threading.Event] = queue.Queue(_AHEAD)
        self.left: deque[_Load] = deque()
        self.ended = threading.Event()
        self._closing = threading.Event()
        self._link: Link | None = None
        self._done = 0
        self._thread = threading.Thread(target=self._run, name="image-lane", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with contextlib.suppress(Broken, ShunterError, OSError), self._connect() as link:
                self._link, key = link, new_key()
                if self._closing.is_set():  # else nobody would hang it up
                    return
                link.send(msgspec.structs.replace(self._hello, key=key))
                answer = link.from_receiver()
                if isinstance(answer, Ready):
                    if answer.sealed:
                        link.seal(key)
                    self._serve(link)
        finally:
            self.ended.set()

    def _serve(self, link: Link) -> None:
        while not self._closing.is_set():
            try:
                load = self.waiting.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            if isinstance(load, threading.Event):
                link.send(Wait())
                while self.left:
                    self._confirmed(link)
                load.set()
                continue
            self.left.append(load)
            link.send(*load)
            while select.select([link.socket], [], [], 0)[0]:
                self._confirmed(link)

    def _confirmed(self, link: Link) -> None:
        answer = link.from_receiver()
        if not isinstance(answer, Ack):
            raise Broken("the other side answered out of turn")
        while self._done < answer.done and self.left:
            self.left.popleft()
            self._done += 1

    def put(self, load: _Load | threading.Event) -> bool:
        """Wait until there is place for it. False when the lane has ended."""
        while not self.ended.is_set():
            with contextlib.suppress(queue.Full):
                self.waiting.put(load, timeout=_LOOK_S)
                return True
        return False

    def unsent(self) -> list[_Load]:
        """What an ended lane leaves to others."""
        found = list(self.left)
        while not self.waiting.empty():
            load = self.waiting.get()
            if not isinstance(load, threading.Event):
                found.append(load)
        self.left.clear()
        return found

    def close(self) -> None:
        self._closing.set()
        if self._link is not None:
            self._link.hang_up()  # whatever it waits for: another side that is gone never answers
        self._thread.join()


class Lanes:
    """Some lanes, and the first link for whatever they leave."""

    def __init__(
        self,
        count: int,
        connect: Callable[[], AbstractContextManager[Link]],
        hello: Lane,
        otherwise: Callable[[Data, bytes | memoryview], None],
    ) -> None:
        """`otherwise` sends what no lane does."""
        self._lanes = [_Lane(connect, hello) for _ in range(count)]
        self._otherwise = otherwise

    def ship(self, header: Data, body: bytes | memoryview) -> None:
        """Send a chunk by whichever lane is free first. Raises what `otherwise` does."""
        while running := [lane for lane in self._lanes if not lane.ended.is_set()]:
            if min(running, key=lambda lane: lane.waiting.qsize()).put((header, body)):
                return
        self._otherwise(header, body)

    def settle(self) -> None:
        """Return when all that was shipped has been made use of. Raises what `otherwise` does."""
        over = [(lane, threading.Event()) for lane in self._lanes]
        for lane, event in over:
            lane.put(event)
        for lane, event in over:
            while not event.wait(_LOOK_S) and not lane.ended.is_set():
                pass
            if lane.ended.is_set():
                for load in lane.unsent():
                    self._otherwise(*load)

    def close(self) -> None:
        """End all links. Idempotent."""
        for lane in self._lanes:
            lane.close()
