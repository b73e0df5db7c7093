"""A copy of the server's resources of one kind, kept up to date by list and watch, that knows how old it is.

Nothing that a server or the way to it can do makes it stop, spin, or pass an old copy off as a new one: each request ends by a deadline of
its own, a watch that didn't last counts as a failure, and failures wait longer each time. A copy that can't be brought up to date stays
readable; its age says so.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from shunter.cluster.api import Api, Expired, Object, Query
from shunter.cluster.backoff import Backoff
from shunter.model.errors import Problem, Rejected, Retry, ShunterError

Key: TypeAlias = tuple[str, str]
"""Namespace (empty for what has none) and name."""
Change: TypeAlias = Literal["added", "changed", "removed"]
Listener: TypeAlias = Callable[[Change, Object], None]

PAGE: Final = 500
"""Resources that a list brings at once: what a server holds in memory for us."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. A watch lasts from `watch_least` to `watch_most`, at random: so long a half-open connection stays unnoticed, at most."""

    watch_least: int = 30
    watch_most: int = 60
    margin: float = 5.0
    """The server ends a watch by itself; one that is still there this long afterwards has nobody at its other end."""
    request: float = 15.0
    steady: float = 5.0
    """A watch that lasted this long was a good one: after it waits are short again."""
    doubt: float = 90.0
    """A copy that wasn't confirmed for longer than this is listed anew, whatever watches say."""
    wait_first: float = 0.25
    wait_most: float = 30.0


def key_of(found: Object) -> Key:
    """Where a resource stands in a copy."""
    meta = found["metadata"]
    return meta.get("namespace", ""), meta["name"]


class Reflector:
    """Resources at `path` (a collection), that `query` selects. Only `run` changes it, in the event loop.

    `listener` is called in the loop after each change, and must not raise; after a list with what differs from before.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        query: Query | None = None,
        listener: Listener = lambda _change, _found: None,
        page: int = PAGE,
        keep: Callable[[Object], Object] = lambda found: found,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rnd: Callable[[], float] = random.random,
    ) -> None:
        """`keep` gives what is kept of a resource, with name, namespace, uid and resourceVersion in its `metadata`, and must not raise.
        `clock` gives seconds that never go back; `rnd` numbers from 0 to 1.
        """
        self.path = path
        self.synced = asyncio.Event()
        """Set once everything was listed, and for good."""
        self.problem: Problem | None = None
        """Why it can't be kept up to date at present; None: it is."""
        self._api, self._query, self._listener = api, dict(query or {}), listener
        self._page, self._keep = page, keep
        self._times, self._clock, self._sleep, self._rnd = times or Times(), clock, sleep, rnd
        self._objects: dict[Key, Object] = {}
        self._version: str | None = None
        self._alive_at: float | None = None

    @property
    def objects(self) -> Mapping[Key, Object]:
        """The copy: a view that follows it. Neither it nor what is in it may be changed."""
        return MappingProxyType(self._objects)

    def age(self) -> float | None:
        """Seconds since the server last confirmed the copy, by a list, an event or a bookmark; None: never.

        A server sends bookmarks when it knows that versions went on elsewhere; where it doesn't, the list that follows `doubt` confirms, so
        that this stays below `doubt` and the time of one watch.
        """
        return None if self._alive_at is None else max(0.0, self._clock() - self._alive_at)

    async def run(self) -> None:
        """List, then watch, and so on until cancelled. Never raises by itself."""
        backoff = Backoff(self._times.wait_first, self._times.wait_most, self._rnd)
        while True:
            began, failed = self._clock(), False
            try:
                if self._doubtful():
                    await self._list()
                    began = self._clock()
                await self._watch()
            except Expired:
                self._version = None
            except ShunterError as error:
                self.problem, failed = error.problem, True
                if isinstance(error, Rejected) or error.problem.code == "SH257":
                    self._version = None  # what can't be read or asked for is never asked for again as it is
            if self._clock() - began >= self._times.steady:
                backoff.reset()
                if not failed:
                    continue
            await self._sleep(backoff.next())

    def _doubtful(self) -> bool:
        """Only a list can tell. A server that was set back to an older state takes our version for one of the future, and says nothing."""
        age = self.age()
        return self._version is None or age is None or age > self._times.doubt

    async def _list(self) -> None:
        found: dict[Key, Object] = {}
        query: dict[str, str | int] = {**self._query, "limit": self._page}
        while True:
            page = await self._api.get(self.path, query, timeout_s=self._times.request)
            version = _listed(page, self.path, found, self._keep)
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        before, self._objects = self._objects, found
        self._version = version
        self._confirmed()
        for key, old in before.items():
            if key not in found or _other(old, found[key]):
                self._listener("removed", old)
        for key, new in found.items():
            old_one = before.get(key)
            if old_one is None or _other(old_one, new):
                self._listener("added", new)
            elif old_one["metadata"].get("resourceVersion") != new["metadata"].get("resourceVersion"):
                self._listener("changed", new)
        self.synced.set()

    async def _watch(self) -> None:
        assert self._version is not None
        least, most = self._times.watch_least, self._times.watch_most
        seconds = least + round((most - least) * self._rnd())
        query = {**self._query, "resourceVersion": self._version, "allowWatchBookmarks": "true", "timeoutSeconds": seconds}
        await self._api.watch(self.path, query, self._take, within_s=seconds + self._times.margin, opened=self._opened)

    def _opened(self) -> None:
        self.problem = None  # it is followed again; whether what we have is right, only what comes will confirm

    def _take(self, event: Object) -> None:
        found: Object = event["object"]
        kind = event["type"]
        if kind != "BOOKMARK":
            if kind not in ("ADDED", "MODIFIED", "DELETED") or "name" not in found["metadata"]:
                self._version = None  # whatever it was, a list will tell
                raise Retry(_strange(f"{kind!r} is no event that we know", self.path))
            self._apply(kind, self._keep(found))
        self._version = found["metadata"].get("resourceVersion") or None
        self._confirmed()
        if self._version is None:
            raise Retry(_strange("an event has no resourceVersion", self.path))

    def _apply(self, kind: str, found: Object) -> None:
        key = key_of(found)
        if kind == "DELETED":
            if self._objects.pop(key, None) is not None:
                self._listener("removed", found)
            return
        old = self._objects.get(key)
        self._objects[key] = found
        if old is not None and _other(old, found):
            self._listener("removed", old)
            old = None
        self._listener("added" if old is None else "changed", found)

    def _confirmed(self) -> None:
        self._alive_at = self._clock()
        self.problem = None


def _other(old: Object, new: Object) -> bool:
    """Of the same name, but not the same: it was deleted and made anew."""
    return bool(old["metadata"].get("uid") != new["metadata"].get("uid"))


def _listed(page: Object, path: str, found: dict[Key, Object], keep: Callable[[Object], Object]) -> str:
    """Put a page's resources into `found`, and return the list's version. Raises Retry SH257 for what isn't a list."""
    meta, items = page.get("metadata"), page.get("items")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    if not version or not isinstance(items, list | None):
        raise Retry(_strange("it isn't a list", path))
    for item in items or ():
        try:
            found[key_of(item)] = keep(item)
        except (KeyError, TypeError, AttributeError) as error:
            raise Retry(_strange("a resource in it has no name", path)) from error
    return str(version)


def _strange(why: str, path: str) -> Problem:
    remedy = "Check that it is a Kubernetes API server that answers there, with nothing between that changes what it says"
    return Problem(code="SH257", what=f"the API server's answer can't be read: {why}", remedy=remedy, subject=path)
