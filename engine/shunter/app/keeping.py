"""What decisions were made on, put aside beside the ticks by a thread of its own: to encode a large snapshot takes longer than to decide.

It is no part of acting: if it can't keep up, or its disk is full, decisions go on, and `shunter audit replay` says that their inputs aren't
kept.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from shunter.app.settings import AuditSettings
from shunter.app.shipping import Shipper
from shunter.app.untold import untold
from shunter.audit.inputs import Decided, Inputs
from shunter.audit.journal import Journal
from shunter.audit.redact import Redaction
from shunter.decide.profile import Profile
from shunter.model.canon import encode
from shunter.model.errors import Problem, Retry, ShunterError, Stalled
from shunter.model.ids import Commit
from shunter.model.operation import EngineState, OperationRecord
from shunter.model.plan import Evaluation
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Snapshot
from shunter.model.source import Revision

_WAITING: Final = 8
"""Decisions that wait to be kept, at most: each holds its snapshots in memory."""
_SWEEP_S: Final = 600.0
_FAREWELL_S: Final = 10.0
_SHARE: Final = 8
"""At most such a part of the disk is used, whatever the settings allow; and nothing is kept while less than half of that is free: the room
is for the store and the audit.
"""
_AT_ONCE: Final = 5000
"""Records that a tick drops at most: it waits for that."""
_DROP_S: Final = 3600.0
_RETRY_S: Final = 600.0


class Keeper:
    """Keeps decisions' inputs in the store at `path`. `read` gives the policy files at a commit, and may block and raise ShunterErrors.

    `problem` is why the last decision wasn't kept; None when it was. `missed` counts those that weren't.
    """

    def __init__(
        self, path: Path, settings: AuditSettings, redaction: Redaction, read: Callable[[Commit], Revision], clock: Callable[[], float]
    ) -> None:
        self._path, self._settings, self._redaction, self._read, self._clock = path, settings, redaction, read, clock
        self._queue: queue.Queue[Callable[[Inputs], None] | None] = queue.Queue(_WAITING)
        self._files: dict[tuple[str, str], bytes] = {}
        self._swept = float("-inf")
        self._thread = threading.Thread(target=self._run, name="inputs", daemon=True)
        self.problem: Problem | None = None
        self.missed = 0
        if settings.inputs > 0:
            self._thread.start()

    def offer(
        self,
        records: Sequence[Record],
        evaluation: Evaluation,
        policies: PolicySet,
        snapshots: Sequence[Snapshot],
        state: EngineState,
        profile: Profile,
        unknown: tuple[float, ...] = (),
        unpictured: tuple[float, ...] = (),
    ) -> bool:
        """Take what was decided on, if a record says that a plan changed or that something is to be done. Doesn't block; True if it was
        taken. `unknown` and `unpictured` as in `Decided`.
        """
        if self._settings.inputs <= 0 or not any(map(_acts, records)):
            return False
        plan, seen, rates = evaluation.plan, tuple(snapshots), encode(profile)

        def keep(store: Inputs) -> None:
            files = self._sources(policies)
            store.keep(
                Decided(
                    plan=plan,
                    policies=policies,
                    files=files,
                    snapshots=seen,
                    state=state,
                    profile=rates,
                    version=version("shunter"),
                    unknown=unknown,
                    unpictured=unpictured,
                )
            )

        try:
            self._queue.put_nowait(keep)
        except queue.Full:
            self.missed += 1
            return False
        return True

    def learn(self, policies: PolicySet) -> None:
        """Read the files of policies that have come into force, while their source has them: what is refused later falls back to them."""
        if self._settings.inputs > 0:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(lambda _store: void(self._sources(policies)))

    def close(self) -> None:
        """Keep what waits, for at most some seconds, and end."""
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=_FAREWELL_S)
            self._thread.join(_FAREWELL_S)

    def _run(self) -> None:
        """Opens the store anew for each: it is rarely needed, and whatever is wrong with it can be mended meanwhile."""
        while (keep := self._queue.get()) is not None:
            try:
                most = self._most()
                with Inputs(self._path, redaction=self._redaction) as store:
                    keep(store)
                    self._sweep(store, most)
            except ShunterError as error:
                self.problem = error.problem
                self.missed += 1
            except (OSError, ValueError) as error:  # what has no canonical form can't be kept; a decision was made on it all the same
                self.problem = self._not_kept(str(error))
                self.missed += 1
            else:
                self.problem = None

    def _most(self) -> int:
        """Bytes that inputs may take on this disk. Raises Retry SH980 when it has too little room for any."""
        disk = os.statvfs(self._path.parent)
        share = disk.f_blocks * disk.f_frsize // _SHARE
        if disk.f_bavail * disk.f_frsize < share // 2:
            raise Retry(self._not_kept("its disk has little room left"))
        return min(int(self._settings.inputs_size), share)

    def _not_kept(self, why: str) -> Problem:
        return Problem(
            code="SH980",
            what=f"what decisions are made on isn't kept: {why}",
            remedy="Free some space, or give less to `inputs_size` under [audit]; decisions go on, and can't be replayed",
            subject=str(self._path),
        )

    def _sweep(self, store: Inputs, most: int) -> None:
        now = self._clock()
        if now - self._swept >= _SWEEP_S or store.size() > most:
            self._swept = now
            store.drop(now - float(self._settings.inputs), most)

    def _sources(self, policies: PolicySet) -> dict[tuple[str, str], bytes]:
        """The bytes of the files in force, each read once from the commit that it is of; without those that can't be had any more."""
        wanted = {(p.place.file, p.blob): p.commit for p in policies.policies}
        for commit in {commit for key, commit in wanted.items() if key not in self._files}:
            with contextlib.suppress(ShunterError, OSError):
                self._files |= {(f.path, f.blob): f.data for f in self._read(commit).files if (f.path, f.blob) in wanted}
        self._files = {key: data for key, data in self._files.items() if key in wanted}
        return dict(self._files)


class Keeping:
    """What the engine does for its audit beside writing it: what decisions were made on, and retention."""

    def __init__(self, settings: AuditSettings, journal: Journal, keeper: Keeper, shipper: Shipper | None = None) -> None:
        self._settings, self._journal, self._shipper, self.keeper = settings, journal, shipper, keeper
        self._due = float("-inf")

    @property
    def unsent(self) -> Problem | None:
        """Why records don't reach the collector; None when they do, or there is none."""
        return self._shipper.problem if self._shipper else None

    def untold(self, ended_since: Callable[[float], Sequence[OperationRecord]]) -> list[OperationRecord]:
        """See `app.untold`."""
        return untold(self._journal, ended_since)

    def house(self, now: float) -> Problem | None:
        """Drop some records that are older than they are to be kept, if there are any; what is wrong, or None. Called at each tick."""
        try:
            self._drop(now)
        except Stalled as error:
            self._due = now + _RETRY_S
            return error.problem
        return self.keeper.problem

    def _drop(self, now: float) -> None:
        keep = self._settings.keep
        if keep is None or now < self._due:
            return
        if self._journal.drop(now - float(keep), now, self._settings.archive, _AT_ONCE) is None:
            self._due = now + _DROP_S


def void(_value: object) -> None:
    """Drop a result."""


def _acts(record: Record) -> bool:
    return record.kind is RecordKind.PLAN or (record.kind is RecordKind.FINDING and record.body.get("verdict") == "act")
