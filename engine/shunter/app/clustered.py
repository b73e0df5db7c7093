"""Policies as custom resources, as `PolicyFeed` reads them: what was in force outlives the process, though a cluster knows no past."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shunter.app.settings import ClusterSettings
from shunter.cluster.access import Access, from_kubeconfig, in_cluster
from shunter.cluster.api import Api
from shunter.cluster.policies import ClusterSource
from shunter.model.errors import Rejected
from shunter.model.finding import Finding
from shunter.model.ids import Commit
from shunter.model.policy import PolicySet
from shunter.model.source import Revision
from shunter.source.memory import Memory, Remembered

REPORT_S: Final = 5.0
"""Between two looks at what a status ought to be, unless the policies changed."""


class Clustered:
    """`folder` is where what was in force is kept; it belongs to this source alone."""

    def __init__(self, source: ClusterSource, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Touches nothing yet."""
        self._source, self._folder, self._clock = source, folder, clock
        self._memory = Memory(folder / "cluster.json")
        self._kept: dict[Commit, Revision] | None = None
        self._reported: tuple[Commit, float] | None = None

    def fetch(self) -> str:
        """See `ClusterSource.fetch`."""
        return self._source.fetch()

    def read(self, revision: str) -> Revision:
        """See `ClusterSource.read`; what was in force before the start can be read too."""
        try:
            return self._source.read(revision)
        except Rejected:
            kept = self._revisions().get(Commit(revision))
            if kept is None:
                raise
            return kept

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """See `ClusterSource.watch`."""
        return self._source.watch(on_change)

    def remembered(self) -> Remembered | None:
        """What the last process had in force; None when it isn't known."""
        return self._memory.load()

    def remember(self, remembered: Remembered) -> None:
        """Keep it, with the files that it came from. Best effort, as everywhere."""
        wanted = {remembered.commit, *remembered.files.values()}
        if wanted != self._revisions().keys():
            found: dict[Commit, Revision] = {}
            for commit in wanted:
                with contextlib.suppress(Rejected):
                    found[commit] = self.read(commit)
            self._kept = found
            fresh = self._folder / "revisions.json.new"
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                fresh.write_bytes(msgspec.json.encode(found))
                os.replace(fresh, self._folder / "revisions.json")
        self._memory.save(remembered)

    def report(self, policies: PolicySet, findings: Sequence[Finding], at: float, halted: str = "") -> None:
        """See `ClusterSource.report`; called every tick, it looks every REPORT_S."""
        now = self._clock()
        if self._reported is None or self._reported[0] != policies.commit or now - self._reported[1] >= REPORT_S:
            self._reported = (policies.commit, now)
            self._source.report(policies, findings, at, halted)

    def close(self) -> None:
        """See `ClusterSource.close`."""
        self._source.close()

    def _revisions(self) -> dict[Commit, Revision]:
        if self._kept is None:
            self._kept = {}
            with contextlib.suppress(OSError, msgspec.DecodeError):
                self._kept = msgspec.json.decode((self._folder / "revisions.json").read_bytes(), type=dict[Commit, Revision])
        return self._kept


def reached(kubeconfig: Path | None, context: str | None) -> Access:
    """The way to the API server: as a kubeconfig says, None: as a pod is given. Raises Stalled SH250."""
    return in_cluster() if kubeconfig is None else from_kubeconfig(kubeconfig, context)


def cluster_source(settings: ClusterSettings, folder: Path) -> Clustered:
    """The policies of the settings' namespace. Raises Stalled SH250."""
    access = reached(settings.kubeconfig, settings.context)
    source = ClusterSource(lambda: Api(access), settings.namespace or access.namespace, settle_s=float(settings.settle))
    return Clustered(source, folder)
