"""What decisions were made on, kept beside the audit so that they can be made again: `audit-inputs.db`.

A snapshot is kept in parts, each under the digest of its bytes and compressed: a part that is the same as at another time is there once.
Nothing is kept for a decision that changed nothing. It isn't needed to go on after a crash, so it isn't synced as the audit is, and what is
kept is checked by what the audit itself has: the digest of the plan that must come out.
"""

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from shunter.audit import faults
from shunter.audit.clean import Cleaner
from shunter.audit.redact import Redaction
from shunter.audit.transaction import transaction
from shunter.model.canon import decode, encode, plain
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import Commit, Digest
from shunter.model.operation import EngineState
from shunter.model.plan import Plan
from shunter.model.policy import PolicySet
from shunter.model.sample import Sample
from shunter.model.snapshot import Fleet, Image, Node, Notice, Samples, Snapshot, Worker

NOT_KEPT, GONE = "SH975", "SH976"
_LAYOUT: Final = 1
_SCHEMA: Final = """
CREATE TABLE decisions (plan TEXT PRIMARY KEY, at REAL NOT NULL, body BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (id TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE uses (plan TEXT NOT NULL, snapshot TEXT NOT NULL, PRIMARY KEY (plan, snapshot)) STRICT, WITHOUT ROWID;
CREATE TABLE refs (owner TEXT NOT NULL, blob TEXT NOT NULL, PRIMARY KEY (owner, blob)) STRICT, WITHOUT ROWID;
CREATE TABLE blobs (digest TEXT PRIMARY KEY, size INTEGER NOT NULL, data BLOB NOT NULL) STRICT;
CREATE INDEX decisions_by_at ON decisions (at);
CREATE INDEX uses_by_snapshot ON uses (snapshot);
CREATE INDEX refs_by_blob ON refs (blob)
"""
_PARTS: Final[dict[str, Any]] = {
    "nodes": tuple[Node, ...],
    "workers": tuple[Worker, ...],
    "images": tuple[Image, ...],
    "notices": tuple[Notice, ...],
    "samples.workers": dict[str, dict[str, Sample]],
    "samples.policies": dict[str, dict[str, dict[str, Sample]]],
    "samples.pools": dict[str, dict[str, Sample]],
}
_SWEEP: Final = (
    "DELETE FROM uses WHERE plan NOT IN (SELECT plan FROM decisions)",
    "DELETE FROM snapshots WHERE id NOT IN (SELECT snapshot FROM uses)",
    "DELETE FROM refs WHERE owner NOT IN (SELECT plan FROM decisions) AND owner NOT IN (SELECT id FROM snapshots)",
    "DELETE FROM blobs WHERE digest NOT IN (SELECT blob FROM refs)",
)


class KeptFile(msgspec.Struct, frozen=True, kw_only=True):
    """A policy file in force: the names of its policies, the commit and blob id that they are of, the digest of its bytes (None: they
    couldn't be had).
    """

    path: str
    blob: str
    commit: Commit
    names: tuple[str, ...]
    data: Digest | None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One decision: the plan, without its operations, and what it was made on. `snapshots` are ids, oldest first; `version` is Shunter's;
    `left_out` names what was taken out of the snapshots, or of the state, before they were kept. `unknown` and `unpictured` are as in
    `Decided`.
    """

    plan: Plan
    files: tuple[KeptFile, ...]
    snapshots: tuple[Digest, ...]
    state: Digest
    profile: Digest
    version: str
    left_out: tuple[str, ...] = ()
    unknown: tuple[float, ...] = ()
    unpictured: tuple[float, ...] = ()


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """A decision to keep. `profile` is its canonical bytes, `files` those of policy files by path and blob, as far as they are known.
    `unknown` and `unpictured` are the times at which nobody saw the fleet, or its images: one that was made elsewhere can have some.
    """

    plan: Plan
    policies: PolicySet
    files: Mapping[tuple[str, str], bytes]
    snapshots: tuple[Snapshot, ...]
    state: EngineState
    profile: bytes
    version: str
    unknown: tuple[float, ...] = ()
    unpictured: tuple[float, ...] = ()


class Inputs:
    """The store at `path`. Raises Stalled: SH905 when it can't be opened, SH903 when it is damaged, SH907 for one of another version."""

    def __init__(self, path: Path, *, read_only: bool = False, redaction: Redaction | None = None) -> None:
        self.path = path
        self._redaction = redaction or Redaction()
        with self._faults():
            if not read_only:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            mode = "ro" if read_only else "rw"
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False)
        try:
            with self._faults():
                self._prepare(read_only=read_only)
        except BaseException:
            self._db.close()
            raise

    def keep(self, decided: Decided) -> None:
        """Keep a decision, once. Raises Stalled SH901, SH902, SH903 or SH905."""
        with self._faults(), transaction(self._db):
            plan = decided.plan
            if self._db.execute("SELECT 1 FROM decisions WHERE plan = ?", [plan.digest]).fetchone():
                return
            for snapshot in decided.snapshots:
                self._snapshot(snapshot, plan.digest)
            state = self._redaction.plain(plain(decided.state))
            changed = ("operations",) if state != plain(decided.state) else ()
            kept = Kept(
                plan=msgspec.structs.replace(plan, operations=()),
                files=tuple(self._files(decided)),
                snapshots=tuple(s.id for s in decided.snapshots),
                state=self._blob(plan.digest, encode(state)),
                profile=self._blob(plan.digest, decided.profile),
                version=decided.version,
                left_out=tuple(sorted({*self._left_out(decided.snapshots), *changed})),
                unknown=decided.unknown,
                unpictured=decided.unpictured,
            )
            self._db.execute("INSERT INTO decisions VALUES (?, ?, ?)", [plan.digest, plan.at, encode(kept)])

    def find(self, plan: Digest) -> Kept | None:
        """The decision that this plan came from; None when it isn't kept. Raises Stalled SH903 or SH905."""
        with self._faults():
            row = self._db.execute("SELECT body FROM decisions WHERE plan = ?", [plan]).fetchone()
            return None if row is None else self._decoded(row[0], Kept, "the decision")

    def snapshot(self, which: Digest) -> Snapshot:
        """Raises Rejected SH976 with what of it is gone."""
        with self._faults():
            row = self._db.execute("SELECT body FROM snapshots WHERE id = ?", [which]).fetchone()
            if row is None:
                raise gone(f"the snapshot {which}")
            at, parts, _ = self._decoded(row[0], tuple[float, dict[str, Digest], tuple[str, ...]], f"the snapshot {which}")
            found = {
                name: self._decoded(self._data(parts[name], f"{name} of the snapshot {which}"), kind, name) for name, kind in _PARTS.items()
            }
        fleet = Fleet(nodes=found["nodes"], workers=found["workers"], images=found["images"])
        samples = Samples(workers=found["samples.workers"], policies=found["samples.policies"], pools=found["samples.pools"])
        return Snapshot(at=at, fleet=fleet, samples=samples, notices=found["notices"])

    def state(self, kept: Kept) -> EngineState:
        """Raises Rejected SH976."""
        with self._faults():
            found: EngineState = self._decoded(self._data(kept.state, "what the engine had done"), EngineState, "what the engine had done")
            return found

    def profile(self, kept: Kept) -> bytes:
        """Its canonical bytes. Raises Rejected SH976."""
        with self._faults():
            return self._data(kept.profile, "the planning profile")

    def file(self, file: KeptFile) -> bytes:
        """Raises Rejected SH976."""
        what = f"the policy file {file.path} (blob {file.blob}, commit {file.commit})"
        if file.data is None:
            raise gone(what)
        with self._faults():
            return self._data(file.data, what)

    def size(self) -> int:
        """Bytes that the parts take, compressed."""
        with self._faults():
            return int(self._db.execute("SELECT total(size) FROM blobs").fetchone()[0])

    def drop(self, before: float, most: int) -> int:
        """Drop decisions from before `before` (seconds since the epoch), then the oldest until at most `most` bytes are left; how many."""
        with self._faults(), transaction(self._db):
            dropped = self._db.execute("DELETE FROM decisions WHERE at < ?", [before]).rowcount
            while True:
                if dropped:
                    for statement in _SWEEP:
                        self._db.execute(statement)
                count, size = self._db.execute("SELECT (SELECT count(*) FROM decisions), (SELECT total(size) FROM blobs)").fetchone()
                if size <= most or count == 0:
                    return dropped
                oldest = "DELETE FROM decisions WHERE plan IN (SELECT plan FROM decisions ORDER BY at LIMIT ?)"
                dropped += self._db.execute(oldest, [max(1, count // 10)]).rowcount

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- writing

    def _snapshot(self, snapshot: Snapshot, plan: Digest) -> None:
        self._db.execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", [plan, snapshot.id])
        if self._db.execute("SELECT 1 FROM snapshots WHERE id = ?", [snapshot.id]).fetchone():
            return
        cleaner = Cleaner(self._redaction)
        clean = cleaner.snapshot(snapshot)
        fleet, samples = clean.fleet, clean.samples
        values = (fleet.nodes, fleet.workers, fleet.images, clean.notices, samples.workers, samples.policies, samples.pools)
        parts = {name: self._blob(snapshot.id, encode(value)) for name, value in zip(_PARTS, values, strict=True)}
        self._db.execute("INSERT INTO snapshots VALUES (?, ?)", [snapshot.id, encode((clean.at, parts, cleaner.left_out))])

    def _left_out(self, snapshots: Sequence[Snapshot]) -> Iterator[str]:
        for snapshot in snapshots:
            (body,) = self._db.execute("SELECT body FROM snapshots WHERE id = ?", [snapshot.id]).fetchone()
            yield from decode(body, tuple[float, dict[str, Digest], tuple[str, ...]])[2]

    def _files(self, decided: Decided) -> Iterator[KeptFile]:
        names: dict[tuple[str, str, Commit], list[str]] = {}
        for policy in decided.policies.policies:
            names.setdefault((policy.place.file, policy.blob, policy.commit), []).append(policy.name)
        for (path, blob, commit), own in sorted(names.items()):
            data = decided.files.get((path, blob))
            kept = self._blob(decided.plan.digest, data) if data is not None else None
            yield KeptFile(path=path, blob=blob, commit=commit, names=tuple(own), data=kept)

    def _blob(self, owner: str, data: bytes) -> Digest:
        digest = Digest("sha256:" + hashlib.sha256(data).hexdigest())
        self._db.execute("INSERT OR IGNORE INTO refs VALUES (?, ?)", [owner, digest])
        if self._db.execute("SELECT 1 FROM blobs WHERE digest = ?", [digest]).fetchone() is None:
            packed = zlib.compress(data, 1)
            self._db.execute("INSERT INTO blobs VALUES (?, ?, ?)", [digest, len(packed), packed])
        return digest

    # -- reading

    def _data(self, digest: Digest, what: str) -> bytes:
        row = self._db.execute("SELECT data FROM blobs WHERE digest = ?", [digest]).fetchone()
        if row is None:
            raise gone(what)
        try:
            data = zlib.decompress(row[0])
        except zlib.error:
            raise gone(what, "is damaged") from None
        if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            raise gone(what, "was changed")
        return data

    def _decoded(self, data: bytes, kind: Any, what: str) -> Any:  # noqa: ANN401  (of the kind)
        try:
            return decode(data, kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise gone(what, "can't be read") from None

    def _prepare(self, *, read_only: bool) -> None:
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found != _LAYOUT and (found or read_only):
            raise faults.version(self.path, found, _LAYOUT)
        if read_only:
            return
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        if not found:
            with transaction(self._db):
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {_LAYOUT}")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise faults.of_sqlite(error, self.path) from error
        except OSError as error:
            raise faults.of_system(error, self.path) from error


def inputs_path(audit: Path) -> Path:
    """Where the inputs of the decisions in the audit at `audit` are."""
    return audit.with_name(f"{audit.stem}-inputs.db")


def gone(what: str, how: str = "isn't kept any more") -> Rejected:
    """An input that a replay needs."""
    return Rejected(
        Problem(
            code=GONE,
            what=f"the decision can't be made again: {what} {how}",
            remedy="Inputs are kept for as long as `inputs` and `inputs_size` under [audit] say; the record itself has what was read",
        )
    )
