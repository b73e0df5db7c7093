"""Policies in a directory: read as a whole, and watched for changes."""

import contextlib
import errno
import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from watchdog.events import (
    EVENT_TYPE_CLOSED_NO_WRITE,
    EVENT_TYPE_OPENED,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

from shunter.model.canon import digest
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import Commit
from shunter.model.source import Revision, SourceFile
from shunter.source.limits import Limits, is_policy, not_regular, refuse_path, too_large, too_many

_LOG: Final = logging.getLogger(__name__)
_READS: Final = 5
_NO_CHANGE: Final = (EVENT_TYPE_OPENED, EVENT_TYPE_CLOSED_NO_WRITE)


class _Moving(Exception):
    """A file changed while it was read."""


class DirectorySource:
    """Policy files below `path`, at any depth; `.git` is left out. Links below it are refused, `path` itself may be one.

    So a folder whose links are swapped as a whole (as Kubernetes does for a ConfigMap) is read by naming the link: `.../..data`.
    """

    def __init__(self, path: Path, *, limits: Limits | None = None) -> None:
        """Touches nothing yet."""
        self._path = path
        self._limits = limits or Limits()

    def read(self) -> Revision:
        """All files as they are now; `commit` is `directory:<sha256 over paths and contents, and over what was refused>`.

        Raises Retry SH220 when the directory can't be read, SH221 when it doesn't stand still long enough to be read as one, and Rejected
        SH213 when it holds more than it may.
        """
        for _ in range(_READS):
            with contextlib.suppress(_Moving):
                return self._read()
        raise Retry(
            Problem(
                code="SH221",
                what="files keep changing while they are read",
                remedy="Write policies elsewhere and move them into place",
                subject=str(self._path),
            )
        )

    def _read(self) -> Revision:
        try:
            root = self._path.resolve(strict=True)
            files: list[SourceFile] = []
            problems: list[Problem] = []
            left = self._limits.total_bytes
            for found in self._walk(root):
                if isinstance(found, Problem):
                    problems.append(found)
                    continue
                got = _load(root, found, self._limits.file_bytes)
                if isinstance(got, Problem):
                    problems.append(got)
                    continue
                files.append(got)
                left -= len(got.data)
                if left < 0:
                    raise Rejected(too_many("bytes of policy files", self._limits.total_bytes))
                if len(files) > self._limits.files:
                    raise Rejected(too_many("policy files", self._limits.files))
        except OSError as error:
            raise Retry(
                Problem(
                    code="SH220",
                    what=f"the policy directory can't be read: {error.strerror or error}",
                    remedy="Check that it exists and may be read; the last good policies stay in force",
                    subject=str(self._path),
                )
            ) from error
        files.sort(key=lambda f: f.path)
        problems.sort(key=lambda p: p.subject)
        # what is refused belongs to what is there: a link that was added is a change, and must be told
        named = [*((f.path, f.blob) for f in files), *((p.subject, p.code, p.what) for p in problems)]
        name = digest(named).removeprefix("sha256:")
        return Revision(
            commit=Commit(f"directory:{name}"),
            committed_at=None,
            files=tuple(files),
            problems=tuple(problems),
        )

    def _walk(self, root: Path) -> Iterator[str | Problem]:
        """Relative paths of what looks like a policy file, and problems of links."""
        seen = 0
        folders = [""]
        while folders:
            folder = folders.pop()
            with _scan(root, folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > self._limits.entries:
                        raise Rejected(too_many("entries", self._limits.entries))
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != ".git":
                            folders.append(path)
                    elif entry.is_symlink():
                        yield not_regular(path, "a symbolic link")
                    elif is_policy(path):
                        yield refuse_path(path) or path

    def watch(
        self, on_change: Callable[[], None], *, quiet_s: float = 0.2, at_most_s: float = 2.0, clock: Callable[[], float] = time.monotonic
    ) -> Callable[[], None]:
        """Call `on_change`, in a thread of its own, once it was quiet for `quiet_s` after a change, or `at_most_s` after the first one.

        Returns what ends it; after that returns, no call is under way or comes, unless it is `on_change` itself that ends it. Raises Retry
        SH220 when the directory isn't there. A directory that is replaced as a whole isn't noticed: read it from time to time as well.
        """
        root = self._path.resolve()
        debounce = _Debounce(on_change, quiet_s, at_most_s, clock)
        observer = Observer()
        try:
            observer.schedule(debounce, str(root), recursive=True)
            observer.start()
        except OSError as error:
            debounce.close()
            what = f"the policy directory can't be watched: {error.strerror or error}"
            remedy = "Check that it exists, and the limit fs.inotify.max_user_watches"
            raise Retry(Problem(code="SH220", what=what, remedy=remedy, subject=str(self._path))) from error

        def close() -> None:
            observer.stop()
            observer.join()
            debounce.close()

        return close


def _scan(root: Path, folder: str) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
    try:
        return os.scandir(root / folder)
    except FileNotFoundError as error:
        if folder:
            raise _Moving from error
        raise


def _load(root: Path, path: str, limit: int) -> SourceFile | Problem:
    """One file's content, as of one moment. Raises _Moving when it changes meanwhile or is gone again."""
    try:
        # Without blocking, since a named pipe may have taken the file's place.
        handle = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise _Moving from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            return not_regular(path, "a symbolic link")
        raise
    with open(handle, "rb") as file:
        before = os.fstat(handle)
        if not stat.S_ISREG(before.st_mode):
            return not_regular(path, "not a regular file")
        if before.st_size > limit:
            return too_large(path, before.st_size, limit)
        data = file.read(limit + 1)
        after = os.fstat(handle)
    if (before.st_size, before.st_mtime_ns, before.st_ctime_ns) != (after.st_size, after.st_mtime_ns, after.st_ctime_ns) or len(
        data
    ) != after.st_size:
        raise _Moving
    return SourceFile(path=path, blob=hashlib.sha256(data).hexdigest(), data=data)


class _Debounce(FileSystemEventHandler):
    """Many events, one call."""

    def __init__(self, on_change: Callable[[], None], quiet_s: float, at_most_s: float, clock: Callable[[], float]) -> None:
        self._on_change = on_change
        self._quiet_s = quiet_s
        self._at_most_s = at_most_s
        self._clock = clock
        self._changed = threading.Condition()
        self._first: float | None = None
        self._last = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="policy-directory", daemon=True)
        self._thread.start()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Note that something changed; opening and reading aren't changes."""
        if event.event_type in _NO_CHANGE:
            return
        with self._changed:
            self._last = self._clock()
            if self._first is None:
                self._first = self._last
            self._changed.notify()

    def close(self) -> None:
        """No call comes after this."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self._on_change()
            except Exception:
                _LOG.exception("what was told of a change in the policy directory failed; the watch goes on")

    def _wait(self) -> bool:
        """Until a call is due; False when closed."""
        with self._changed:
            while not self._closed:
                if self._first is None:
                    self._changed.wait()
                    continue
                due = min(self._last + self._quiet_s, self._first + self._at_most_s) - self._clock()
                if due <= 0:
                    self._first = None
                    return True
                self._changed.wait(due)
        return False
