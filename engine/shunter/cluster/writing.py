"""Statuses into the API server: only what differs from what stands there, by server-side apply under a manager's name of our own."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import msgspec

from shunter.cluster.api import Absent, Api, Conflict, Object
from shunter.cluster.backoff import Backoff
from shunter.cluster.kinds import collection
from shunter.cluster.reading import Reading, Resource
from shunter.cluster.reflector import Reflector
from shunter.cluster.telling import Said, statuses, weighty
from shunter.model.errors import Problem, ShunterError
from shunter.model.policy import API_VERSION, PolicySet

MANAGER: Final = "shunter-engine"
Wanted: TypeAlias = Mapping[str, tuple[Resource, Object]]
"""By path: a resource, and the status that it ought to have."""


class StatusWriter:
    """Writes in `run`, one after the other, what was offered last. Figures alone are written every `figures_s` seconds at most."""

    def __init__(
        self,
        api: Api,
        reflectors: Mapping[str, Reflector],
        *,
        figures_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._reflectors, self._figures_s, self._clock = api, reflectors, figures_s, clock
        self._offered: Wanted = {}
        self._news = asyncio.Event()
        self._written: dict[str, tuple[str, Object, float]] = {}
        """By path: the uid, the status that we wrote, and when."""
        self.problem: Problem | None = None
        """Why a status couldn't be written the last time; None: all could."""
        self.writes = 0
        """Since the start."""

    def offer(self, reading: Reading, policies: PolicySet, said: Mapping[str, Said], at: float, halted: str = "") -> None:
        """Have the statuses that these come to written, instead of what was offered before (`telling.statuses`). In the loop's thread."""
        found = statuses(reading, policies, said, self._standing, at, halted)
        self._offered = {path: (reading.resources[path], msgspec.to_builtins(status)) for path, status in found.items()}
        self._news.set()

    async def run(self) -> None:
        """Write until cancelled. Never raises by itself."""
        backoff = Backoff()
        while True:
            await self._news.wait()
            self._news.clear()
            if await self._write_all(self._offered):
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next())
                self._news.set()

    async def _write_all(self, wanted: Wanted) -> bool:
        """False: not all that is due could be written, so that it is to be tried again."""
        for path in self._written.keys() - wanted.keys():
            del self._written[path]
        all_written = True
        for path, (resource, status) in wanted.items():
            if not self._due(path, resource, status):
                continue
            try:
                await self._write(path, resource, status)
            except Absent:
                continue  # it is gone
            except Conflict:
                all_written = False  # it was changed just now: our copy will soon have it
            except ShunterError as error:
                self.problem = error.problem
                return False
        self.problem = None
        return all_written

    def _due(self, path: str, resource: Resource, status: Object) -> bool:
        if self._copy(resource) is None:
            return False  # it is gone, or another of its name is there: the next reading tells of that one
        standing = self._standing(path, resource)
        if status == standing:
            return False
        if weighty(status, standing):
            return True
        uid, _, at = self._written.get(path, ("", {}, -1e9))
        return uid != resource.uid or self._clock() - at >= self._figures_s

    async def _write(self, path: str, resource: Resource, status: Object) -> None:
        """By the version that our copy has, so that no other of the same name gets it: the server doesn't compare uids here."""
        copy = self._copy(resource)
        if copy is None:
            return
        where = f"{collection(resource.kind, resource.namespace)}/{resource.name}/status"
        meta = {"name": resource.name, "namespace": resource.namespace, "resourceVersion": copy["metadata"]["resourceVersion"]}
        body = {"apiVersion": API_VERSION, "kind": resource.kind, "metadata": meta, "status": status}
        await self._api.apply(where, body, MANAGER)
        self.writes += 1
        self._written[path] = (resource.uid, status, self._clock())

    def _copy(self, resource: Resource) -> Object | None:
        """The resource as our copy has it now; None when that is gone or another."""
        one = self._reflectors[resource.kind].objects.get((resource.namespace, resource.name))
        return one if one is not None and one["metadata"].get("uid") == resource.uid else None

    def _standing(self, path: str, resource: Resource) -> Object:
        """The status as it stands: what we wrote last, as our copy may not have it yet; after a start, what the copy has."""
        uid, status, _ = self._written.get(path, ("", {}, 0.0))
        if uid == resource.uid:
            return status
        copy = self._copy(resource)
        found: Object = copy.get("status") or {} if copy is not None else {}
        return found
