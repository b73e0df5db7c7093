"""What an engine is asked to do, with what, and whom it tells."""

import asyncio
import time
from collections.abc import Callable

import msgspec

from shunter.app.health import Health, Metrics
from shunter.app.policies import PolicyFeed
from shunter.app.settings import Settings
from shunter.lang.bulk import BulkCelRules
from shunter.model.errors import Problem
from shunter.model.operation import OperationRecord
from shunter.model.plan import Evaluation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Notice, Snapshot


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What a tick has to show to people: see `Duty.on_tick`."""

    snapshot: Snapshot
    evaluation: Evaluation
    policies: PolicySet
    plan_changed: bool


class Scene:
    """The fleet and the open notices as they were last seen, with what ended since. The engine's only picture of the world."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.notices: tuple[Notice, ...] = ()


class Duty:
    """Settings, policies and callbacks of one engine process, and what it shows of itself.

    `on_tick`, `on_step` and `on_problem` are for people (the command line prints them); they must not raise.
    """

    def __init__(
        self,
        settings: Settings,
        feed: PolicyFeed,
        *,
        clock: Callable[[], float] = time.time,
        on_tick: Callable[[Told], None] = lambda _told: None,
        on_step: Callable[[OperationRecord], None] = lambda _record: None,
        on_problem: Callable[[Problem], None] = lambda _problem: None,
        decides: bool = True,
    ) -> None:
        """Without `decides` it carries out what was begun or is handed to it, and plans nothing of its own; but what is involuntary, while
        `hurries` is set.
        """
        self.decides, self.hurries = decides, False
        self.settings, self.feed, self.clock = settings, feed, clock
        self.on_tick, self.on_step, self.on_problem = on_tick, on_step, on_problem
        self.metrics = Metrics()
        self.metrics.certificates.watch({"ca": settings.tls.ca, "engine": settings.tls.cert})
        self.health = Health(self.metrics)
        self.rules = BulkCelRules()
        self.profile = settings.rates()
        self.scene = Scene()
        self.wake = asyncio.Event()
        """Set for the next tick to come at once."""

    @property
    def looks_ahead(self) -> bool:
        """Whether anything is decided at all."""
        return self.decides or self.hurries
