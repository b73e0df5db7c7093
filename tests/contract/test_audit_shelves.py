"""The audit keeps its promises on SQLite and on a real PostgreSQL alike: durable, chained, signed, one writer, and found again."""

import asyncio
import contextlib
import importlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shunter.app.audits import read, write
from shunter.app.certs import issue
from shunter.app.degraded import condition
from shunter.app.engine import Engine
from shunter.app.policies import PolicyFeed
from shunter.app.settings import AgentSettings, AuditSettings, PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sources import source_of
from shunter.audit.check import Break
from shunter.audit.filter import Filter
from shunter.audit.head import GENESIS, chained
from shunter.audit.journal import Journal
from shunter.audit.postgres import PostgresShelf
from shunter.audit.trail import Trail
from shunter.cli.main import execute
from shunter.model.canon import encode
from shunter.model.errors import Rejected, Stalled
from shunter.model.ids import Commit, Epoch
from shunter.model.record import Record, RecordKind
from shunter.model.units import Duration

BINARIES = [Path(found).resolve().parent for found in (shutil.which("postgres"),) if found] + sorted(
    Path("/usr/lib/postgresql").glob("*/bin")
)
LACKING = [name for name in ("sqlalchemy", "psycopg") if importlib.util.find_spec(name) is None]
POLICY = """apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {all: true}, notices: [preemption]}
"""


def record(number: int, **more: Any) -> Record:
    fields: dict[str, Any] = {"kind": RecordKind.STEP, "subject": f"w-{number % 3}", "operation": f"move-{number % 2}", **more}
    return Record(at=1000.0 + number, what=f"step {number}", epoch=Epoch(1), commit=Commit("c" * 40), body={"n": number}, **fields)


class Server:
    """A PostgreSQL of its own, on a socket in a folder of its own, run by its own user."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.binaries = folder, BINARIES[0]
        self.user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "shunter", "--no-sync", "-E", "UTF8", "--locale=C")
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def _as_owner(self, *command: str) -> list[str]:
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", "--", *command] if os.geteuid() == 0 else list(command)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(self._as_owner(str(self.binaries / program), *arguments), check=True, capture_output=True, cwd=self.folder)

    def start(self) -> None:
        settings = [
            f"unix_socket_directories={self.folder}",
            "listen_addresses=",
            "max_connections=20",
            "shared_buffers=16MB",
            "log_min_messages=fatal",
        ]
        options = [part for setting in settings for part in ("-c", setting)]
        command = self._as_owner(str(self.binaries / "postgres"), "-D", str(self.folder / "data"), *options)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder)
        ready = [str(self.binaries / "pg_isready"), "-q", "-h", str(self.folder), "-U", "shunter"]
        end = time.monotonic() + 30
        while subprocess.run(ready, check=False).returncode != 0:
            assert time.monotonic() < end, "PostgreSQL didn't start"
            assert self.process.poll() is None, "PostgreSQL ended"

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT: it ends at once, in order; SIGQUIT: it crashes."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)

    def url(self, database: str) -> str:
        return f"postgresql://shunter@/{database}?host={self.folder}"

    def do(self, database: str, *statements: str) -> None:
        with importlib.import_module("psycopg").connect(f"host={self.folder} user=shunter dbname={database}", autocommit=True) as session:
            for statement in statements:
                session.execute(statement)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not BINARIES:
        pytest.skip("there is no PostgreSQL: apt-get install postgresql")
    if LACKING:
        pytest.skip(f"{' and '.join(LACKING)} isn't installed: pip install 'shunter[postgres]'")
    folder = Path(tempfile.mkdtemp(prefix="shunter-postgres-"))
    made = None
    try:
        made = Server(folder)
        yield made
    finally:
        if made is not None and made.process is not None and made.process.poll() is None:
            made.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Place:
    """Somewhere for one audit. `do` changes its tables behind its back; `records`, `head` are their names."""

    def __init__(self, state: Path, server: Server | None, database: str) -> None:
        self.state, self.server, self.database = state, server, database
        self.records, self.head = ("records", "head") if server is None else ("shunter_audit_records", "shunter_audit_head")
        self.times = [0.0]

    def open(self, *, read_only: bool = False) -> Journal:
        path = self.state / "audit.db"
        if self.server is None:
            return Journal(path, read_only=read_only)
        shelf = PostgresShelf(self.server.url(self.database), path, read_only=read_only, clock=lambda: self.times[0])
        return Journal(path, shelf=shelf)

    def do(self, *statements: str) -> None:
        if self.server is not None:
            self.server.do(self.database, *statements)
            return
        import sqlite3

        with contextlib.closing(sqlite3.connect(self.state / "audit.db")) as db, db:
            for statement in statements:
                db.execute(statement)

    def verify(self):
        with self.open(read_only=True) as journal:
            return journal.verify()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        yield Place(tmp_path, None, "")
        return
    server = request.getfixturevalue("server")
    name = f"audit_{abs(hash(tmp_path)) % 10**9}"
    server.do("postgres", f"CREATE DATABASE {name}")
    yield Place(tmp_path, server, name)
    server.do("postgres", f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres(server: Server, tmp_path: Path) -> Iterator[Place]:
    name = f"audit_{abs(hash(tmp_path)) % 10**9}"
    server.do("postgres", f"CREATE DATABASE {name}")
    yield Place(tmp_path, server, name)
    server.do("postgres", f"DROP DATABASE {name} WITH (FORCE)")


def test_records_come_back_chained_in_order_and_found(place: Place) -> None:
    given = [record(n) for n in range(1, 8)]
    with place.open() as journal:
        sealed = (*journal.append(given[:5]), *journal.append(given[5:]))
        assert journal.append([]) == ()
    with place.open(read_only=True) as reader:
        assert reader.list(limit=None) == sealed == tuple(reader.stream())
        assert [s.record for s in sealed] == given
        assert sealed[0].previous == GENESIS
        assert all(b.previous == a.hash and b.hash == chained(b.previous, encode(b.record)) for a, b in pairwise(sealed))
        assert reader.get(3) == sealed[2]
        assert [s.seq for s in reader.list(subject="w-0")] == [3, 6]
        assert [s.seq for s in reader.list(operation="move-1", limit=2)] == [5, 7]
        assert [s.seq for s in reader.list(since=1003.0, until=1005.0)] == [3, 4]
        assert [s.seq for s in reader.stream(Filter(worker="w-1"), after=2)] == [4, 7]
        assert (reader.newest(), reader.verify().ok, reader.verify().count) == (7, True, 7)
        with pytest.raises(Rejected, match=r"SH906 .*1 to 7"):
            reader.get(9)
        with pytest.raises(ValueError, match="read-only"):
            reader.append(given)


def test_the_chain_goes_on_after_reopening_and_more_than_a_portion_comes_back(place: Place) -> None:
    with place.open() as journal:
        journal.append([record(n) for n in range(1, 1501)])
    with place.open() as journal:
        (last,) = journal.append([record(1501)])
        assert last.seq == 1501
    with place.open(read_only=True) as journal:
        assert [s.seq for s in journal.stream()] == list(range(1, 1502))
        assert [s.seq for s in journal.list(limit=1200)] == list(range(302, 1502))
        assert journal.verify().count == 1501


def test_texts_of_any_kind(place: Place) -> None:
    odd = ["", "ä€😀", "a\0b", "'; DROP TABLE records; --", "%s %(x)s :x", "\u2028"]
    with place.open() as journal:
        journal.append([record(n, subject=text, operation=text) for n, text in enumerate(odd)])
        assert [s.record.subject for s in journal.list()] == [text.replace("\0", "\ufffd") for text in odd]
        assert len(journal.list(subject=odd[3])) == 1
        assert journal.verify().ok


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("UPDATE {records} SET subject = 'nobody' WHERE seq = 3", Break.COLUMNS),
        ("UPDATE {records} SET at = 5 WHERE seq = 3", Break.COLUMNS),
        ("UPDATE {records} SET hash = previous WHERE seq = 3", Break.HASH),
        ("DELETE FROM {records} WHERE seq = 3", Break.GAP),
        ("DELETE FROM {records} WHERE seq = 1", Break.GAP),
        ("DELETE FROM {records} WHERE seq > 5", Break.TRUNCATED),
        ("DELETE FROM {records}", Break.TRUNCATED),
        ("DELETE FROM {head}", Break.SIGNATURE),
        ("UPDATE {head} SET seq = 6", Break.SIGNATURE),
        ("INSERT INTO {records} SELECT 8, at, kind, subject, operation, previous, hash, body FROM {records} WHERE seq = 7", Break.ORDER),
    ],
)
def test_what_was_tampered_with_is_found_and_not_gone_on_with(place: Place, statement: str, how: Break) -> None:
    with place.open() as journal:
        journal.append([record(n) for n in range(1, 5)])
        journal.append([record(n) for n in range(5, 8)])
    place.do(statement.format(records=place.records, head=place.head))
    assert place.verify().how is how
    if how in (Break.TRUNCATED, Break.SIGNATURE, Break.ORDER):
        with pytest.raises(Stalled, match=r"SH904|SH970"):
            place.open()


def test_there_is_one_writer_and_readers_are_welcome(place: Place) -> None:
    with place.open() as writer:
        with pytest.raises(Stalled, match=r"SH902 .*another process"):
            place.open()
        writer.append([record(1)])
        assert place.verify().count == 1
    with place.open() as again:
        again.append([record(2)])


def test_a_reader_of_none_says_so(place: Place) -> None:
    with pytest.raises(Stalled, match=r"SH905 .*no audit there"):
        place.open(read_only=True)


def test_old_records_are_dropped_and_the_rest_verifies(place: Place, tmp_path: Path) -> None:
    with place.open() as journal:
        for n in range(1, 11):
            journal.append([record(n)])
        assert journal.drop(1006.0, 2000.0, tmp_path / "archive") is not None
        assert journal.drop(1006.0, 2000.0) is None
        journal.append([record(12)])
    with place.open(read_only=True) as journal:
        assert (journal.verify().first, journal.verify().ok) == (6, True)
        assert journal.verify(archives=tmp_path / "archive").count == 12


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_of_which_nobody_knows_whether_it_happened_is_found_out(
    place: Place, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """The answer to a commit is lost. What waits in the trail comes again, marked as late, and is there once."""
    with place.open() as journal:
        trail = Trail(journal, lambda: 5.0)
        trail.add([record(1)])
        real: Callable[..., None] = journal.shelf.add

        def lost(*arguments: Any) -> None:
            if landed:
                real(*arguments)
            raise OSError(5, "the connection is gone")

        with monkeypatch.context() as patch:
            patch.setattr(journal.shelf, "add", lost)
            assert not trail.add([record(2), record(3)])
        assert not trail.add([record(4)])
        assert trail.retry()
        assert [s.record.body["n"] for s in journal.list()] == [1, 2, 3, 4]
        assert journal.verify().ok


# -- what only a server can do


def test_a_server_that_crashes_loses_nothing_that_was_acknowledged_and_is_found_again(postgres: Place) -> None:
    assert postgres.server is not None
    with postgres.open() as journal:
        trail = Trail(journal, lambda: 5.0)
        for n in range(1, 21):
            assert trail.add([record(n)])
        postgres.server.stop(signal.SIGQUIT)
        assert not trail.add([record(21)])
        assert trail.problem is not None
        assert trail.problem.code == "SH905"
        before = time.monotonic()
        assert not trail.retry(), "still away"
        assert time.monotonic() - before < 2
        postgres.server.start()
        assert not trail.retry(), "not asked again at once"
        postgres.times[0] = 60.0
        assert trail.retry()
        assert [s.record.body["n"] for s in journal.list(limit=None)] == list(range(1, 22))
    assert postgres.verify().count == 21


def test_a_writer_whose_session_was_taken_from_it_can_add_nothing_once_another_has_written(postgres: Place) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shunter audit'"
    with postgres.open() as old:
        old.append([record(1)])
        postgres.do(end)
        with postgres.open() as new:
            new.append([record(2)])
            with pytest.raises(Stalled):
                old.append([record(3)])
            postgres.times[0] = 60.0
            with pytest.raises(Stalled, match="SH902"):
                old.append([record(3)])
        postgres.times[0] = 120.0
        with pytest.raises(Stalled, match=r"SH904 .*another engine"):
            old.append([record(3)])
    with postgres.open(read_only=True) as journal:
        assert [s.record.body["n"] for s in journal.list()] == [1, 2]
        assert journal.verify().ok


def test_commits_are_synchronous_whatever_the_server_says(postgres: Place) -> None:
    postgres.do(f"ALTER DATABASE {postgres.database} SET synchronous_commit = off")
    with postgres.open() as journal:
        shelf = journal.shelf
        assert isinstance(shelf, PostgresShelf)
        assert shelf._one(shelf._sa.text("SHOW synchronous_commit"))[0] == "on"


def test_no_transaction_is_left_open(postgres: Place) -> None:
    with postgres.open() as writer, postgres.open(read_only=True) as reader:
        writer.append([record(1)])
        reader.list()
        list(reader.stream())
        reader.verify()
        with pytest.raises(Rejected):
            reader.get(99)
        shelf = writer.shelf
        assert isinstance(shelf, PostgresShelf)
        idle = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shunter audit' AND state LIKE 'idle in transaction%'"
        assert shelf._one(shelf._sa.text(idle))[0] == 0


def test_the_engine_and_the_commands_find_it_by_its_url(postgres: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert postgres.server is not None
    url = postgres.server.url(postgres.database)
    with write(postgres.state, AuditSettings(database=url, labels=("tier",)), 1000) as journal:
        journal.append([record(1), record(2, subject="glpat-0123456789abcdefghij")])
    where = ("--state", str(postgres.state), "--database", url)
    assert execute(["audit", "verify", *where]) == 0
    assert capsys.readouterr().out.startswith("whole: 2 records")
    assert execute(["audit", "export", *where]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["record"]["subject"] for line in lines] == ["w-1", "[masked]"]
    assert execute(["audit", "list", *where, "--worker", "w-1"]) == 0
    assert "step 1" in capsys.readouterr().out
    assert not (postgres.state / "audit.db").exists()


async def test_an_engine_goes_on_while_its_server_is_away_and_writes_all_of_it_when_that_is_back(postgres: Place) -> None:
    assert postgres.server is not None
    state, said = postgres.state / "engine", []
    (postgres.state / "policies").mkdir()
    issue(postgres.state / "certs", ["node-a"], time.time())
    certs = {
        name: postgres.state / "certs" / f"{file}.{end}"
        for name, file, end in (("ca", "ca", "pem"), ("cert", "engine", "pem"), ("key", "engine", "key"))
    }
    url = postgres.server.url(postgres.database)
    settings = Settings(
        state=state,
        tick=Duration(0.05),
        policies=PoliciesSettings(directory=postgres.state / "policies", poll=Duration(0.05)),
        prometheus=PrometheusSettings(url="http://127.0.0.1:9"),
        tls=TlsSettings(**certs),
        agents=(AgentSettings(node="node-a", address="127.0.0.1:9"),),
        listen="",
        audit=AuditSettings(database=url),
    )
    engine = Engine(settings, PolicyFeed(source_of(settings.policies, state / "git"), time.time), on_problem=lambda p: said.append(p.code))
    stop = asyncio.Event()
    running = asyncio.create_task(engine.run(stop))

    async def until(reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(40):
            while not reached():
                assert not running.done(), running.exception()
                await asyncio.sleep(0.02)

    try:
        await until(lambda: engine.feed.current is not None and "SH520" in said)
        await asyncio.to_thread(postgres.server.stop, signal.SIGQUIT)
        (postgres.state / "policies" / "p.yaml").write_text(POLICY)  # something to be recorded
        await until(lambda: "SH532" in said)
        await asyncio.to_thread(postgres.server.start)
        await until(lambda: condition(state, time.time()) is None)
    finally:
        stop.set()
        await asyncio.wait_for(running, 40)
    with read(state, url) as journal:
        assert journal.verify().ok
        told = [(s.record.kind.value, "spooled" in s.record.body) for s in journal.list(limit=None)]
    assert told[0] == ("engine", False)
    assert ("policies", True) in told
    assert not (state / "audit.db").exists()


def test_a_password_is_never_told(postgres: Place, tmp_path: Path) -> None:
    with pytest.raises(Stalled) as told:
        PostgresShelf("postgresql://shunter:hush-hush@127.0.0.1:9/audit", tmp_path / "x" / "audit.db", read_only=True)
    assert "hush-hush" not in str(told.value)
    assert told.value.problem.code == "SH905"


@pytest.mark.parametrize("url", ["sqlite:///x", "rubbish", "mysql://x/y"])
def test_a_url_that_is_none(postgres: Place, tmp_path: Path, url: str) -> None:
    with pytest.raises(Rejected, match="SH978"):
        PostgresShelf(url, tmp_path / "audit.db", read_only=True)


def test_without_its_packages_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it weren't there
    with pytest.raises(Rejected, match=r"SH978 .*shunter\[postgres\]"):
        PostgresShelf("postgresql://x/y", tmp_path / "audit.db", read_only=True)
