"""Canaries: notices that are known to be none, said to each source's own code in its service's own protocol, and followed to the engine.

What was to be noticed and wasn't is found out on the day otherwise: a detector that is blind looks just like a quiet day. So a second
source of each kind that the settings name is pointed at a stand-in (`stage`), through the same threads, parsers and merging. What it finds
is marked, and leaves the agent in a field of its own that no notice is ever read from: no policy, plan or standing order can see it.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from shunter.model.errors import Problem

from shunter_agent.notices.file import FileNotices, post
from shunter_agent.notices.gpu import GpuNotices
from shunter_agent.notices.port import Notice, NoticeSource
from shunter_agent.notices.sources import asked, cloud, cluster, exporter, gpus_of
from shunter_agent.notices.stage import MACHINE, XID_LINE, Stage
from shunter_agent.notices.watching import Watching
from shunter_agent.settings import CloudSettings, HttpSettings, KubernetesSettings, Settings

WITHIN_S: Final = 30.0
"""A canary that wasn't heard after so long is missed. The real thing would have been seen as late."""

_SPARE_S: Final = 60.0
"""For so long a canary that neither came to an end nor began is put down to a busy machine."""
_REMEDY: Final = "Don't rely on this source; report it, with the agent's version"

Stand: TypeAlias = Callable[[Stage, Path], NoticeSource]
"""Makes a source that hears of the node's end from the stage, or from files in the folder."""


def stands(settings: Settings, clock: Callable[[], float]) -> dict[str, Stand]:
    """By the name of each source in the settings, how its canary is made."""
    found: dict[str, Stand] = {}
    for one in settings.clouds:
        found[one.name] = lambda stage, _folder, one=one: cloud(  # type: ignore[misc]
            CloudSettings(name=one.name, url=stage.url), empty=lambda: False, clock=clock, log=_quiet
        )
    if settings.notices is not None:
        found["file"] = lambda _stage, folder: _file(folder, clock)
    if settings.kernel_log is not None:
        found["gpu"] = lambda _stage, folder: _kernel_log(folder, clock)
    if settings.dcgm is not None:
        found["dcgm"] = lambda stage, _folder: exporter(stage.url, gpus_of(settings), clock=clock, log=_quiet)
    if settings.kubernetes is not None:
        stood, pods = settings.node, settings.kubernetes.pods
        found["kubernetes"] = lambda stage, _folder: cluster(
            KubernetesSettings(node=MACHINE, server=stage.url, pods=pods), stood, gpus_of(settings), clock=clock, log=_quiet
        )
    for http in settings.http:
        found[http.name] = lambda stage, _folder, name=http.name: asked(  # type: ignore[misc]
            HttpSettings(name=name, url=f"{stage.url}/notices"), clock=clock, log=_quiet
        )
    return found


def _file(folder: Path, clock: Callable[[], float]) -> NoticeSource:
    post(folder, kind="preemption", notice_id=MACHINE, deadline=clock() + 120.0)
    return FileNotices(folder, clock=clock)


def _kernel_log(folder: Path, clock: Callable[[], float]) -> NoticeSource:
    log = folder / "kmsg"
    log.write_text(f"4,1,1,-;{XID_LINE}\n")
    return GpuNotices({}, log, clock=clock)


def _quiet(_problem: Problem) -> None:
    """What is wrong with a stand-in is told once, as a canary that was missed."""


class Canary:
    """Implements `port.NoticeSource` over one source's stand-in: every `every` seconds it is set up, heard of by each of the ways in which
    the source looks, and taken down.

    The notice that was heard last stays, marked as a canary, so that its `seen_at` says when detection last worked.
    """

    def __init__(
        self,
        name: str,
        stand: Stand,
        *,
        every: float,
        within: float = WITHIN_S,
        clock: Callable[[], float] = time.time,
        log: Callable[[Problem], None] = lambda _problem: None,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds since the epoch; `log` gets SH654 when one is missed; `elapsed` gives seconds that nobody sets."""
        self.name = name
        self._stand, self._every, self._within, self._clock, self._log = stand, every, within, clock, log
        self._elapsed = elapsed
        self._changed: Callable[[Mapping[str, Notice]], None] = lambda _notices: None
        self._stop = threading.Event()
        self._heard = threading.Event()
        self._thread: threading.Thread | None = None
        self._source: NoticeSource | None = None
        self._problem: Problem | None = None
        self._due: float | None = None
        """When the next one is to have been heard or missed, with time to spare; None before the first begins."""

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        """See the port."""
        self._changed = changed
        self._due = self._elapsed() + self._patience(0.0)
        self._thread = threading.Thread(target=self._run, name=f"canary {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See the port."""
        self._stop.set()
        self._heard.set()
        if self._thread is not None:
            self._thread.join(2.0)
            self._thread = None

    def health(self) -> tuple[Problem, ...]:
        """See the port: SH654 while the last canary was missed, or none has come to an end for too long."""
        if self._problem is None and self._due is not None and self._elapsed() > self._due:
            what = f"no canary of {self.name} has come to an end for longer than it takes"
            return (Problem(code="SH654", what=what, remedy=_REMEDY, subject=self.name),)
        return (self._problem,) if self._problem is not None else ()

    def rehearse(self) -> None:
        """Once: set it up, wait to hear of it, take it down, and tell."""
        self._heard.clear()
        self._source = None
        why = "nothing was heard of it"
        try:
            with Stage() as stage, tempfile.TemporaryDirectory(prefix="shunter-canary-") as folder:
                source = self._source = self._stand(stage, Path(folder))
                try:
                    source.start(self._listen)
                    if not self._heard.wait(self._within) and (deaf := self._deaf()):
                        why = f"nothing was heard of it by {', '.join(deaf)}"
                finally:
                    source.stop()  # also one that started half: it would look at the stage's ruins for ever
        except Exception as error:  # whatever it is, detection doesn't work as it should
            why = f"{error!r}"
        if self._stop.is_set():
            return
        if self._heard.is_set():
            self._problem = None
            return
        self._missed(why)

    def _deaf(self) -> tuple[str, ...]:
        """What of the source has heard nothing yet, where it looks in several ways."""
        return self._source.unsaid() if isinstance(self._source, Watching) else ()

    def _listen(self, found: Mapping[str, Notice]) -> None:
        if not found or self._heard.is_set() or self._deaf():
            return
        first = next(iter(found.values()))
        notice = msgspec.structs.replace(first, id=f"canary-{self.name}", source=self.name, seen_at=self._clock(), canary=True)
        self._heard.set()
        self._changed({notice.id: notice})

    def _missed(self, why: str) -> None:
        what = f"the canary of {self.name} was missed: a notice was said to its code as the real thing would be, and {why}"
        self._problem = Problem(code="SH654", what=what, remedy=_REMEDY, subject=self.name)
        self._log(self._problem)
        self._changed({})

    def _run(self) -> None:
        while not self._stop.is_set():
            self.rehearse()
            self._due = self._elapsed() + self._patience(self._every)
            self._stop.wait(self._every)

    def _patience(self, every: float) -> float:
        return every + 2.0 * self._within + _SPARE_S


def canaries(settings: Settings, *, clock: Callable[[], float], log: Callable[[Problem], None]) -> list[NoticeSource]:
    """One for each source in the settings; none where they are turned off."""
    if settings.canaries <= 0:
        return []
    return [Canary(name, stand, every=settings.canaries, clock=clock, log=log) for name, stand in stands(settings, clock).items()]
