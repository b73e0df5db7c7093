"""The fleet as the leader last saw it, in a ConfigMap: what agents that died meanwhile can't tell a next leader.

Also the highest epoch that there was, so that a Lease that somebody deleted makes nobody older.
"""

import asyncio
import base64
import time
import zlib
from collections.abc import Callable
from typing import Final

from shunter.cluster.api import Absent, Api, Conflict, Object
from shunter.model.errors import Problem, ShunterError
from shunter.model.ids import Epoch

NAME: Final = "shunter-memory"
EPOCH: Final = "shunter.dev/epoch"
MOST: Final = 900_000
"""Bytes, compressed and encoded. The server takes a mebibyte in all."""
_EVERY_S: Final = 2.0


class Memory:
    """Of one namespace. `offer` may be called from any loop's thread; the rest belongs into the one in which `run` runs."""

    def __init__(self, api: Api, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Touches nothing yet."""
        self._api, self._namespace, self._clock = api, namespace, clock
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._version: str | None = None
        self._offered: tuple[Epoch, Callable[[], bytes]] | None = None
        self._news = asyncio.Event()
        self.problem: Problem | None = None
        """Why the last one couldn't be kept; None: it was."""

    async def load(self) -> tuple[Epoch, bytes]:
        """The highest epoch that kept anything, and what it kept; 0 and nothing before the first. Raises Retry as `Api.get` does."""
        try:
            found = await self._api.get(f"{self._path}/{NAME}")
        except Absent:
            self._version = None
            return Epoch(0), b""
        self._version = found["metadata"]["resourceVersion"]
        return _epoch(found), _unpacked(found)

    def offer(self, epoch: Epoch, make: Callable[[], bytes]) -> None:
        """Have what `make` gives kept instead of what was offered before. In the loop's thread."""
        self._offered = epoch, make
        self._news.set()

    async def run(self) -> None:
        """Until cancelled. Never raises by itself."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._offered is not None:
                epoch, make = self._offered
                try:
                    await self._keep(epoch, await asyncio.to_thread(_packed, make))
                    self.problem = None
                except Conflict:
                    await self._reload(epoch)
                except ShunterError as error:
                    self.problem = error.problem
                    self._news.set()
            await asyncio.sleep(_EVERY_S)

    async def _keep(self, epoch: Epoch, packed: str) -> None:
        if len(packed) > MOST:
            self.problem = _too_large(len(packed))
            return
        meta: Object = {"name": NAME, "namespace": self._namespace, "annotations": {EPOCH: str(epoch)}}
        body: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": {"fleet": packed}}
        if self._version is None:
            found = await self._api.create(self._path, body)
        else:
            body["metadata"]["resourceVersion"] = self._version
            try:
                found = await self._api.replace(f"{self._path}/{NAME}", body)
            except Absent:
                self._version = None
                self._news.set()
                return
        self._version = found["metadata"]["resourceVersion"]

    async def _reload(self, epoch: Epoch) -> None:
        """Somebody else wrote it: a person, whom we overrule, or a newer leader, who overrules us."""
        try:
            theirs, _ = await self.load()
        except ShunterError as error:
            self.problem = error.problem
        else:
            if theirs > epoch:
                return
        self._news.set()


def _packed(make: Callable[[], bytes]) -> str:
    return base64.b64encode(zlib.compress(make(), 6)).decode()


def _unpacked(found: Object) -> bytes:
    """Empty for what isn't what we wrote."""
    try:
        return zlib.decompress(base64.b64decode((found.get("binaryData") or {}).get("fleet", ""), validate=True))
    except (ValueError, zlib.error):
        return b""


def _epoch(found: Object) -> Epoch:
    text = (found["metadata"].get("annotations") or {}).get(EPOCH, "")
    return Epoch(int(text) if text.isdecimal() else 0)


def _too_large(size: int) -> Problem:
    return Problem(
        code="SH553",
        what=f"the fleet as it was last seen takes {size:,} bytes, more than a ConfigMap holds, so that a next leader won't know it",
        remedy="Run an engine for each part of the fleet; what agents report is known all the same",
        subject=NAME,
    )
