"""One engine process: what it holds open while it leads."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from shunter.act.lease import Leadership, Lease
from shunter.act.store import Store
from shunter.app.aside import Aside
from shunter.app.audits import audit_path, shipping, write
from shunter.app.degraded import Watch
from shunter.app.duty import Duty
from shunter.app.graphs import following
from shunter.app.health import serve
from shunter.app.keeping import Keeper, Keeping
from shunter.app.leading import Leading
from shunter.app.origins import Origins
from shunter.app.room import Room, suiting
from shunter.app.roster import named
from shunter.audit.inputs import inputs_path
from shunter.audit.trail import Trail
from shunter.model.errors import Problem, Stalled
from shunter.model.plan import PlannedOperation
from shunter.model.pretending import Pretending
from shunter.observe.prometheus import Prometheus

Backing: TypeAlias = Callable[[Path, int], AbstractContextManager[tuple[Store, Leadership]]]
"""Opens, for a state folder and so many pages of write-ahead log, where operations are kept and what allows to act on them."""


@contextlib.contextmanager
def local(state: Path, wal_pages: int) -> Iterator[tuple[Store, Leadership]]:
    """All on this machine: SQLite and a lock file. Raises Rejected SH507, Stalled SH501, SH502, SH508."""
    with contextlib.closing(Store(state / "engine.db", wal_pages=wal_pages)) as store, Lease(state / "engine.lock", store) as lease:
        yield store, lease


class Engine(Duty):
    """One engine process. `run` returns when `stop` is set."""

    _served = False

    async def run(self, stop: asyncio.Event, backing: Backing = local) -> None:
        """Lead until `stop` is set. Raises Rejected SH507 when another engine does; Stalled when state can't be written at the start, and
        SH911 when the health port is taken.
        """
        state = self.settings.state
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        sizes = suiting(state)
        audit = self.settings.audit
        own = () if audit.database else (audit_path(state),)
        room = Room(state, (state / "engine.db", *own), sizes)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(room.close)
            store, lease = stack.enter_context(backing(state, sizes.wal_pages))
            self.health.stands_by = False
            journal = stack.enter_context(write(state, audit, sizes.wal_pages))
            keeper = Keeper(inputs_path(audit_path(state)), audit, journal.redaction, self.feed.read, self.clock)
            stack.callback(keeper.close)
            shipper = shipping(state, audit)
            if shipper is not None:
                stack.callback(shipper.close)
                shipper.start()
            origins = Origins.of(journal)
            trail = Trail(journal, self.clock, origins.told, journal)
            room.hold()
            watch = Watch(store, trail, room, state, self.clock)
            stack.enter_context(self.serving())
            housed, graphs = await stack.enter_async_context(following(self.settings))
            agents = named(self.settings)
            aside, asked = Aside(), self.settings.prometheus
            prometheus = Prometheus(asked.url, deadline_s=float(asked.deadline), breathe=aside.breathe)
            keeping = Keeping(audit, journal, keeper, shipper)
            try:
                await Leading(self, store, lease, trail, watch, agents, prometheus, keeping, housed, origins, graphs, aside).run(stop)
            finally:
                await asyncio.gather(agents.close(), prometheus.aclose())

    def pretends(self, operation: PlannedOperation) -> bool:
        """A node that the operation is about doesn't really move anything."""
        return Pretending(self.scene.fleet).operation(operation)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve metrics and health, if the settings want that and it isn't done already: an engine that waits for the lead does, too.

        Raises Stalled SH911.
        """
        if not self.settings.listen or self._served:
            yield
            return
        stop, self._served = self._serve(), True
        try:
            yield
        finally:
            self._served = False
            stop()

    def _serve(self) -> Callable[[], None]:
        try:
            return serve(self.settings.listen, self.metrics, self.health)
        except (OSError, ValueError) as error:
            problem = Problem(
                code="SH911", what=f"can't listen: {error}", remedy="Change `listen` in the settings", subject=self.settings.listen
            )
            raise Stalled(problem) from error
