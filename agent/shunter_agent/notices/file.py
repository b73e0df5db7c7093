"""Notices from a folder: one JSON file each. What posts them is any script, or `shunter-agent notice post`.

{"id": "...", "kind": "preemption", "deadline": "2026-01-02T03:04:05Z" | 1767322800, "lead": "120s", "detail": "..."}

`deadline` (RFC 3339, or seconds since the epoch) or `lead` (counted from the file's modification time) or neither. A file that goes away
is a notice withdrawn. A file that can't be read is a problem in the log and in `health`, and no notice; one that could be read before still
says what it said then, and so does all of a folder that can't be read: that nothing can be seen is no word that the node stays.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem, Rejected
from shunter.model.snapshot import NoticeKind
from shunter.model.units import Duration
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from shunter_agent.notices.port import Notice

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
LARGEST: Final = 64 * 1024
"""Bytes of a notice file."""
RESCAN_S: Final = 5.0
"""Seconds between looks at the folder that no event asked for: file systems exist that tell nothing."""


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    kind: NoticeKind
    deadline: str | float | None = None
    lead: str | None = None
    detail: str = ""


def parse(data: bytes, modified_at: float, seen_at: float) -> Notice:
    """A notice from a file's content. Raises Rejected SH641, saying what is wrong."""
    try:
        written = msgspec.json.decode(data, type=_Written)
        if not _NAME.fullmatch(written.id):
            raise ValueError("id must be letters, digits, dots, dashes and underscores, at most 128")
        deadline = _deadline(written.deadline, written.lead, modified_at)
    except (ValueError, OverflowError) as error:  # msgspec's errors and UnitError are ValueErrors; a year may be none in UTC
        raise _unreadable(error) from error
    kind, counted = written.kind.value, deadline is None
    return Notice(id=written.id, kind=kind, seen_at=seen_at, deadline=deadline, source="file", detail=written.detail, counted=counted)


def deadline_of(deadline: str | float | None, lead: str | None, now: float) -> float | None:
    """Seconds since the epoch of a deadline as it is written, or of `lead` after `now`; None without either. Raises Rejected SH641."""
    try:
        return _deadline(deadline, lead, now)
    except (ValueError, OverflowError) as error:
        raise _unreadable(error) from error


def _deadline(deadline: str | float | None, lead: str | None, now: float) -> float | None:
    if deadline is not None and lead is not None:
        raise ValueError("give deadline or lead, not both")
    if lead is not None:
        return now + float(Duration.parse(lead))
    if isinstance(deadline, str):
        when = datetime.fromisoformat(deadline)
        if when.tzinfo is None:
            raise ValueError("deadline has no time zone: end it with Z or an offset")
        return when.astimezone(UTC).timestamp()
    return deadline


def _unreadable(error: Exception) -> Rejected:
    kinds = ", ".join(NoticeKind)
    return Rejected(
        Problem(
            code="SH641", what=f"the notice can't be read: {error}", remedy=f"Kinds are {kinds}; see `shunter-agent notice post --help`"
        )
    )


class FileNotices:
    """Implements `notices.port.NoticeSource` for one folder, which is made if it isn't there."""

    name = "file"

    def __init__(
        self, folder: Path, *, clock: Callable[[], float] = time.time, log: Callable[[Problem], None] = lambda _problem: None
    ) -> None:
        """`clock` gives seconds since the epoch; `log` gets each new problem once."""
        self._folder = folder
        self._clock = clock
        self._log = log
        self._changed: Callable[[Mapping[str, Notice]], None] = lambda _notices: None
        self._observer: object | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._open: dict[str, Notice] = {}
        self._said: dict[str, Notice] = {}
        """What each file said when it could be read last, by its name."""
        self._problems: dict[str, Problem] = {}

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        """See the port. Raises OSError when the folder can't be made or watched."""
        self._changed = changed
        self._folder.mkdir(parents=True, exist_ok=True)
        observer = Observer()
        observer.schedule(_Wake(self._wake), str(self._folder))
        observer.daemon = True
        observer.start()
        self._observer = observer
        self.scan(first=True)
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See the port."""
        self._stop.set()
        self._wake.set()
        observer = self._observer
        if observer is not None:
            observer.stop()  # type: ignore[attr-defined]
            observer.join(5)  # type: ignore[attr-defined]
            self._observer = None
        if self._thread is not None:
            self._thread.join(5)
            self._thread = None

    def health(self) -> tuple[Problem, ...]:
        """See the port."""
        return tuple(self._problems.values())

    def scan(self, *, first: bool = False) -> None:
        """Read the folder now; tell of changes."""
        with self._lock:
            problems: dict[str, Problem] = {}
            files = self._files(problems)
            if files is not None:
                said = ((path.name, self._read(path, problems)) for path in files)
                self._said = {name: notice for name, notice in said if notice is not None}
            found = {notice.id: notice for notice in self._said.values()}
            for name, problem in problems.items():
                if self._problems.get(name) != problem:
                    self._log(problem)
            self._problems = problems
            if first or found != self._open:
                self._open = found
                self._changed(dict(found))

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(RESCAN_S)
            self._wake.clear()
            if not self._stop.is_set():
                self._look()

    def _look(self) -> None:
        try:
            self.scan()
        except Exception as error:  # a fault of ours must make the source blind, not end its thread without a word
            what = f"the notices folder can't be read: {error!r}"
            problem = Problem(code="SH642", what=what, remedy="Report it; until then no notice is seen", subject=str(self._folder))
            if self._problems.get("") != problem:
                self._problems = {**self._problems, "": problem}
                self._log(problem)

    def _files(self, problems: dict[str, Problem]) -> list[Path] | None:
        """None: the folder can't be read."""
        try:
            return sorted(path for path in self._folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
        except OSError as error:
            what = f"the notices folder can't be read: {error}"
            problems[""] = Problem(
                code="SH642", what=what, remedy="Make it readable; until then no notice is seen", subject=str(self._folder)
            )
            return None

    def _read(self, path: Path, problems: dict[str, Problem]) -> Notice | None:
        """What the file says, or said last; None: nothing yet, or it is gone."""
        before = self._said.get(path.name)
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST + 1)
                modified_at = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError as error:
            problems[path.name] = Problem(
                code="SH642", what=f"the notice can't be read: {error}", remedy="Mend its permissions", subject=str(path)
            )
            return before
        if len(data) > LARGEST:
            problems[path.name] = Problem(
                code="SH641", what=f"the notice is larger than {LARGEST} bytes", remedy="Shorten it", subject=str(path)
            )
            return before
        try:
            notice = parse(data, modified_at, self._clock())
        except Rejected as error:
            problems[path.name] = msgspec.structs.replace(error.problem, subject=str(path))
            return before
        known = self._open.get(notice.id)
        return msgspec.structs.replace(notice, seen_at=known.seen_at) if known else notice


class _Wake(FileSystemEventHandler):
    """Any change to the folder asks for a look at it; which one doesn't matter, since the look is complete."""

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Ask for a look, but not for having looked."""
        if event.event_type not in ("opened", "closed_no_write"):
            self._wake.set()


def post(folder: Path, *, kind: str, notice_id: str, deadline: float | None, detail: str = "") -> Path:
    """Write a notice so that no reader ever sees half of it. `deadline` in seconds since the epoch. Raises Rejected SH641, or OSError."""
    body = {"id": notice_id, "kind": kind, "deadline": deadline, "detail": detail}
    data = json.dumps({key: value for key, value in body.items() if value not in (None, "")}).encode()
    parse(data, 0.0, 0.0)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{notice_id}.json"
    partial = folder / f".{notice_id}.{os.getpid()}"
    try:
        with partial.open("wb") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    return path


def withdraw(folder: Path, notice_id: str) -> bool:
    """Take a notice back. False when there is none with that id."""
    if not _NAME.fullmatch(notice_id):
        return False
    try:
        (folder / f"{notice_id}.json").unlink()
    except FileNotFoundError:
        return False
    return True


def read(folder: Path, clock: Callable[[], float] = time.time) -> tuple[tuple[Notice, ...], tuple[Problem, ...]]:
    """All notices in a folder now, and what is wrong with the others."""
    source = FileNotices(folder, clock=clock)
    found: dict[str, Notice] = {}
    source._changed = found.update
    source.scan(first=True)
    return tuple(found[key] for key in sorted(found)), source.health()
