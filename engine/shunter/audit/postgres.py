"""The audit in PostgreSQL, through SQLAlchemy Core and psycopg (`pip install 'shunter[postgres]'`).

One session of the writer holds an advisory lock for as long as it lives, and each commit replaces the head of the turn before and no other:
a writer that lost its session to another one can't add anything. What stands for the head file is a table of two rows, written in turn.
Commits are synchronous, whatever the server's own setting.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from shunter.audit import faults
from shunter.audit.head import SLOT, Head, Signed, Slots
from shunter.audit.key import Key
from shunter.audit.redact import Redaction
from shunter.audit.shelf import Asked, Found, Row
from shunter.audit.sqlite import signed_of, values_of
from shunter.model.errors import Problem, Rejected, Stalled

_LAYOUT: Final = 1
_LOCK: Final = 0x5348_554E_5445_5241
"""Of the advisory lock: one audit to a database."""
_PORTION: Final = 1000
_AGAIN_S: Final = 5.0
"""A server that couldn't be reached isn't tried again for so long: whoever waits for it is the engine."""
_CONNECTING: Final = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "shunter audit",
    "options": "-c synchronous_commit=on -c statement_timeout=20000 -c lock_timeout=5000",
}
_FULL: Final = {"53100"}
_TORN: Final = {"XX001", "XX002"}
_COLUMNS: Final = ("turn", "seq", "hash", "base_seq", "base_hash", "signature")


class PostgresShelf:
    """See `shelf.Shelf`. `url` as SQLAlchemy takes it (`postgresql+psycopg://...`) or as libpq does (`postgresql://...`).

    Raises Rejected SH978 for a URL that isn't one, or when what it takes isn't installed; Stalled SH902 when another engine writes there,
    SH905 when the server can't be reached. `clock` is a monotonic one.
    """

    def __init__(self, url: str, path: Path, *, read_only: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._sa, self._engine = _engine(url)
        self.path, self._read_only, self._clock = path, read_only, clock
        self.subject = self._engine.url.render_as_string(hide_password=True)
        self._tables = _Tables(self._sa)
        self._session: Any = None
        self._turn: int | None = None
        """Of the newest head in the slots; None: it isn't known."""
        self._until = float("-inf")
        self._made = True
        """There are tables."""
        with self.faults():
            if not read_only:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._connected()

    @property
    def writes(self) -> bool:
        """See Shelf; and for what follows."""
        return not self._read_only

    def fresh(self) -> bool:  # noqa: D102
        if not self._sa.inspect(self._connected()).has_table("shunter_audit_layout"):
            self._end()
            if self._read_only:
                raise self._unusable("there is no audit there")
            self._made = False
            return True
        found = self._one(self._sa.select(self._tables.layout.c.version))
        if found is None or found[0] != _LAYOUT:
            raise faults.version(self.subject, found[0] if found else 0, _LAYOUT)
        return False

    def begin(self, first: Signed) -> None:  # noqa: D102
        t = self._tables
        with self._transaction() as session:
            t.metadata.create_all(session)
            session.execute(t.layout.insert(), {"version": _LAYOUT})
            session.execute(t.head.insert(), {"id": 1, **_named(first)})
        self._made = True

    def newest(self) -> Head:  # noqa: D102
        r = self._tables.records
        row = self._one(self._sa.select(r.c.seq, r.c.hash).order_by(r.c.seq.desc()).limit(1))
        return Head(seq=row[0], hash=row[1]) if row else Head()

    def oldest(self) -> int | None:  # noqa: D102
        row = self._one(self._sa.select(self._sa.func.min(self._tables.records.c.seq)))
        return None if row is None else row[0]

    def committed(self) -> Signed | None:  # noqa: D102
        row = self._one(self._sa.select(*(self._tables.head.c[name] for name in _COLUMNS)))
        return None if row is None else signed_of(tuple(row))

    def slots(self) -> Slots:  # noqa: D102
        if not self._made:
            return Slots(whole=(), complete=False)
        s = self._tables.slots
        rows = self._all(self._sa.select(s.c.slot, *(s.c[name] for name in _COLUMNS)))
        found = (signed_of(tuple(row)[1:]) for row in rows if row[1] % 2 == row[0])
        whole = sorted((signed for signed in found if signed is not None), key=lambda signed: -signed.turn)
        return Slots(whole=tuple(whole), complete=len(whole) == 2 and whole[0].turn == whole[1].turn + 1)

    def add(self, rows: Sequence[Row], head: Signed) -> None:  # noqa: D102
        t = self._tables
        with self._transaction() as session:
            session.execute(t.records.insert(), [dict(zip(t.records.c.keys(), row, strict=True)) for row in rows])
            replaced = session.execute(t.head.update().where(t.head.c.turn == head.turn - 1).values(**_named(head)))
            if replaced.rowcount != 1:
                raise faults.cut(self.subject, "another engine has written to the audit since this one did")

    def note(self, head: Signed, key: Key) -> None:  # noqa: D102
        if self._turn is None:
            found = self.slots().newest
            self._turn = found.turn if found else 0
        turns = [turn for turn in (head.turn - 1, head.turn) if turn > self._turn]
        if not turns:
            return
        s = self._tables.slots
        with self._transaction() as session:
            for turn in turns:
                session.execute(s.delete().where(s.c.slot == turn % 2))
                signed = msgspec.structs.replace(head, turn=turn).sealed(key, SLOT)
                session.execute(s.insert(), {"slot": turn % 2, **_named(signed)})
        self._turn = head.turn

    def sweep(self, base: int) -> None:  # noqa: D102
        r = self._tables.records
        with self._transaction() as session:
            session.execute(r.delete().where(r.c.seq <= base))

    def since(self, at: float) -> int | None:  # noqa: D102
        r = self._tables.records
        row = self._one(self._sa.select(r.c.seq).where(r.c.at >= at).order_by(r.c.seq).limit(1))
        return None if row is None else int(row[0])

    def get(self, seq: int) -> Found | None:  # noqa: D102
        row = self._one(self._found().where(self._tables.records.c.seq == seq))
        return None if row is None else tuple(row)

    def found(self, asked: Sequence[Asked], *, after: int | None, newest_first: bool) -> Iterator[Found]:  # noqa: D102
        r = self._tables.records
        query = self._found().limit(_PORTION).order_by(r.c.seq.desc() if newest_first else r.c.seq)
        for column, how, value in asked:
            query = query.where(r.c[column].op(how)(value))
        while True:
            portion = query if after is None else query.where(r.c.seq < after if newest_first else r.c.seq > after)
            rows = self._all(portion)
            yield from (tuple(row) for row in rows)
            if len(rows) < _PORTION:
                return
            after = rows[-1][0]

    def rows(self, first: int = 0, last: int | None = None) -> Iterator[Row]:  # noqa: D102
        r = self._tables.records
        query = self._sa.select(r).where(r.c.seq >= first).order_by(r.c.seq)
        if last is not None:
            query = query.where(r.c.seq <= last)
        while True:
            rows = self._all(query.limit(_PORTION))
            yield from (tuple(row) for row in rows)
            if len(rows) < _PORTION:
                return
            query = query.where(r.c.seq > rows[-1][0])

    @contextmanager
    def still(self) -> Iterator[None]:  # noqa: D102
        self._end()
        self._connected().execute(self._sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
        self._stands = True
        try:
            yield
        finally:
            self._stands = False
            self._end()

    def close(self) -> None:  # noqa: D102
        self._let_go()
        self._engine.dispose()

    @contextmanager
    def faults(self) -> Iterator[None]:  # noqa: D102
        try:
            yield
        except self._sa.exc.SQLAlchemyError as error:
            self._let_go()  # whatever state it is in: the next call begins anew, with the lock
            raise self._told(error) from error
        except OSError as error:
            raise faults.of_system(error, self.path) from error

    # -- the session

    _stands = False
    """All is read in one transaction."""

    def _connected(self) -> Any:  # noqa: ANN401  (SQLAlchemy isn't always installed, so nothing of it can be named)
        if self._session is None:
            if self._clock() < self._until:
                raise self._unusable("its server couldn't be reached some seconds ago")
            self._until = self._clock() + _AGAIN_S
            self._session = self._engine.connect()
            if self.writes:
                self._lock(self._session)
            self._until = float("-inf")
        return self._session

    def _lock(self, session: Any) -> None:  # noqa: ANN401
        got = session.execute(self._sa.select(self._sa.func.pg_try_advisory_lock(_LOCK))).scalar()
        session.commit()
        if not got:
            self._until = float("-inf")
            self._let_go()
            raise faults.busy(self.subject)

    def _one(self, query: Any) -> Any:  # noqa: ANN401
        found = self._connected().execute(query).first()
        self._end()
        return found

    def _all(self, query: Any) -> Any:  # noqa: ANN401
        found = self._connected().execute(query).all()
        self._end()
        return found

    def _end(self) -> None:
        """No transaction is left open over a read: it would keep the server from cleaning up."""
        if self._session is not None and not self._stands:
            self._session.rollback()

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        self._end()
        session = self._connected()
        with session.begin():
            yield session

    def _let_go(self) -> None:
        self._turn = None
        if self._session is not None:
            with suppress(self._sa.exc.SQLAlchemyError):
                self._session.invalidate()  # the lock goes with the session: it mustn't come back from a pool
            with suppress(self._sa.exc.SQLAlchemyError):
                self._session.close()
            self._session = None

    def _found(self) -> Any:  # noqa: ANN401
        r = self._tables.records
        return self._sa.select(r.c.seq, r.c.previous, r.c.hash, r.c.body)

    def _told(self, error: Any) -> Stalled:  # noqa: ANN401
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        if state in _FULL:
            return faults.full(self.subject)
        why = str(Redaction().plain(" ".join(str(cause).split())))
        if state in _TORN:
            return faults.stalled(faults.CORRUPT, f"the audit is damaged: {why}", "Restore the database from a backup", self.subject)
        return self._unusable(why)

    def _unusable(self, why: str) -> Stalled:
        remedy = "Check the server, the URL, and that its user may make tables in the database, or read them"
        return faults.stalled(faults.CLOSED, f"the audit can't be used: {why}", remedy, self.subject)


class _Tables:
    def __init__(self, sa: Any) -> None:  # noqa: ANN401
        self.metadata = sa.MetaData()
        self.records = sa.Table(
            "shunter_audit_records",
            self.metadata,
            sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("at", sa.Double, nullable=False),
            sa.Column("kind", sa.Text, nullable=False),
            sa.Column("subject", sa.Text, nullable=False),
            sa.Column("operation", sa.Text),
            sa.Column("previous", sa.Text, nullable=False),
            sa.Column("hash", sa.Text, nullable=False),
            sa.Column("body", sa.LargeBinary, nullable=False),
            sa.Index("shunter_audit_by_kind", "kind", "seq"),
            sa.Index("shunter_audit_by_subject", "subject", "seq"),
            sa.Index("shunter_audit_by_operation", "operation", "seq"),
        )
        self.head = sa.Table("shunter_audit_head", self.metadata, _key(sa, "id"), *_head(sa))
        self.slots = sa.Table("shunter_audit_slots", self.metadata, _key(sa, "slot"), *_head(sa))
        self.layout = sa.Table("shunter_audit_layout", self.metadata, _key(sa, "version"))


def _key(sa: Any, name: str) -> Any:  # noqa: ANN401
    return sa.Column(name, sa.Integer, primary_key=True, autoincrement=False)


def _head(sa: Any) -> list[Any]:  # noqa: ANN401
    kinds = (sa.BigInteger, sa.BigInteger, sa.Text, sa.BigInteger, sa.Text, sa.Text)
    return [sa.Column(name, kind, nullable=False) for name, kind in zip(_COLUMNS, kinds, strict=True)]


def _named(head: Signed) -> dict[str, Any]:
    return dict(zip(_COLUMNS, values_of(head), strict=True))


def _engine(url: str) -> tuple[Any, Any]:
    try:
        sa = importlib.import_module("sqlalchemy")
        pool = importlib.import_module("sqlalchemy.pool")
        importlib.import_module("psycopg")
    except ImportError:
        raise _refused(
            "an audit in PostgreSQL takes SQLAlchemy and psycopg, which aren't installed", "Install them: `pip install 'shunter[postgres]'`"
        ) from None
    try:
        made = sa.engine.make_url(url)
    except sa.exc.ArgumentError:
        raise _refused("it isn't a database's URL", "Write one such as postgresql://shunter@db.example.com/audit") from None
    if made.get_backend_name() != "postgresql":
        raise _refused(f"{made.get_backend_name()} isn't PostgreSQL", "Write a URL such as postgresql://shunter@db.example.com/audit")
    made = made.set(drivername="postgresql+psycopg")
    return sa, sa.create_engine(made, poolclass=pool.NullPool, connect_args=dict(_CONNECTING))


def _refused(what: str, remedy: str) -> Rejected:
    return Rejected(Problem(code="SH978", what=what, remedy=remedy, subject="audit database"))
