"""The policy source that the settings name, as `PolicyFeed` reads it."""

from collections.abc import Callable
from pathlib import Path

from shunter.app.policies import Source
from shunter.app.settings import PoliciesSettings
from shunter.lang.load import load
from shunter.model.policy import PolicySet
from shunter.model.source import Revision
from shunter.source.directory import DirectorySource
from shunter.source.git import GitSource
from shunter.source.trust import Trust


class _Directory:
    """A directory read as if it were a repository of one commit: its content's digest."""

    def __init__(self, source: DirectorySource) -> None:
        self._source = source
        self._last: Revision | None = None

    def fetch(self) -> str:
        """Read it all; what was read is kept for `read`, so that both see the same."""
        self._last = self._source.read()
        return self._last.commit

    def read(self, revision: str) -> Revision:
        """What the last `fetch` saw."""
        return self._last if self._last and self._last.commit == revision else self._source.read()

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """See `DirectorySource.watch`."""
        return self._source.watch(on_change)


def source_of(settings: PoliciesSettings, cache: Path) -> Source:
    """`cache` is a folder for the bare clone that belongs to the caller alone. Raises what `repository_of` does, and Stalled SH250."""
    if settings.directory is not None:
        return _Directory(DirectorySource(settings.directory))
    if settings.cluster is not None:
        from shunter.app.clustered import cluster_source

        return cluster_source(settings.cluster, cache.with_name("policies.cluster"))
    return repository_of(settings, cache, trust=settings.trust.trust())


def repository_of(settings: PoliciesSettings, cache: Path, *, folder: str | None = None, trust: Trust | None = None) -> GitSource:
    """The repository that the settings name, reached as they say. `folder`: another than theirs. Without `trust`, signatures aren't
    checked, which is for looking at what was proposed.

    Raises Rejected SH201, SH202, SH246.
    """
    assert settings.git is not None  # settings.load saw to it
    return GitSource(
        settings.git,
        settings.branch,
        settings.folder if folder is None else folder,
        cache,
        allow_rewind=settings.allow_rewind,
        access=settings.access(),
        trust=trust,
    )


def read_directory(folder: Path) -> PolicySet:
    """The policies of a directory, read once. Raises what `DirectorySource.read` does."""
    return load(DirectorySource(folder.resolve()).read(), None)
