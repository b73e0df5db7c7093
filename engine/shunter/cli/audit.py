"""`shunter audit`: read and check the records of what was decided and done."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import typer
from rich.console import Console

from shunter.app.audits import read
from shunter.audit.check import Verification
from shunter.audit.export import FORMATS
from shunter.audit.filter import Filter, notice_of, operations_of
from shunter.audit.follow import following
from shunter.audit.head import load_exports
from shunter.audit.journal import Journal
from shunter.audit.key import load_public
from shunter.cli.moments import moment
from shunter.model.canon import plain
from shunter.model.errors import Problem, Rejected, Retry, ShunterError
from shunter.model.record import RecordKind, Sealed
from shunter.report.account import Because, account_text
from shunter.report.replay import replay_text
from shunter.report.text import audit_text, record_text
from shunter.report.words import count

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, verify, export, follow and replay the audit's records.",
)

State = Annotated[Path, typer.Option("--state", metavar="DIR", help="The engine's state folder.")]
Database = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", envvar="SHUNTER_AUDIT_DATABASE", help="The PostgreSQL that has the records, if one has."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
Kind = Annotated[RecordKind | None, typer.Option("--kind", help="Only records of this kind.")]
Subject = Annotated[str | None, typer.Option("--subject", help="Only records about this worker, node, graph or policy.")]
Operation = Annotated[str | None, typer.Option("--operation", help="Only records of this operation.")]
Worker = Annotated[str | None, typer.Option("--worker", help="Only what is about this worker, plans that have it among others included.")]
OfNode = Annotated[str | None, typer.Option("--node", help="Only what is about this node, operations from or to it included.")]
OfPolicy = Annotated[str | None, typer.Option("--policy", help="Only what this policy said or did.")]
AtCommit = Annotated[str | None, typer.Option("--commit", help="Only records made at this commit of the policies, or one that begins so.")]
Since = Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Not before: 10m ago as `10m`, or a date in UTC.")]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Only before, written like --since.")]
_HERE: Final = Path(".shunter")
_LOOK_S: Final = 0.3
"""Between two looks at whether there are new records."""


class Format(StrEnum):
    """Of an export."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


@app.command("list")
def list_(
    state: State = _HERE,
    database: Database = None,
    kind: Kind = None,
    subject: Subject = None,
    operation: Operation = None,
    worker: Worker = None,
    node: OfNode = None,
    policy: OfPolicy = None,
    commit: AtCommit = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The newest so many; 0: all.")] = 100,
    as_json: Json = False,
) -> None:
    """List records, oldest first. Exit status: 0, or 1 when the audit can't be read."""
    wanted = Filter(
        kind=kind, subject=subject, operation=operation, worker=worker, node=node, policy=policy, commit=commit,
        since=moment("--since", since), until=moment("--until", until),
    )  # fmt: skip
    with read(state, database) as journal:
        records = journal.select(wanted, limit or None)
    if as_json:
        _lines(records)
    else:
        audit_text(records, _console())


@app.command()
def show(
    what: Annotated[str, typer.Argument(metavar="SEQ|OPERATION", help="A record's number, or an operation's id for all of its records.")],
    state: State = _HERE,
    database: Database = None,
    kind: Kind = None,
    worker: Worker = None,
    node: OfNode = None,
    policy: OfPolicy = None,
    commit: AtCommit = None,
    since: Since = None,
    until: Until = None,
    as_json: Json = False,
) -> None:
    """Show a record in full; of an operation, tell what became of it and why, then all of its records, or those that options choose.

    Exit status: 0, or 1 when there is none.
    """
    wanted = Filter(
        kind=kind, operation=what, worker=worker, node=node, policy=policy, commit=commit,
        since=moment("--since", since), until=moment("--until", until),
    )  # fmt: skip
    with read(state, database) as journal:
        number = what.isascii() and what.isdigit()
        records = (journal.get(int(what)),) if number else journal.select(wanted)
        because = _because(journal, records[0]) if records and not number else None
    if not records:
        raise Rejected(
            Problem(
                code="SH908",
                what="the audit has no record of this operation",
                remedy="`shunter audit list` shows the operations that it has records of",
                subject=what,
            )
        )
    if as_json:
        _lines(records)
        return
    console = _console()
    if because is not None:
        account_text(what, records, because, console)
        console.print()
    for place, sealed in enumerate(records):
        if place:
            console.print()
        record_text(sealed, console)


@app.command()
def verify(
    state: State = _HERE,
    database: Database = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The engine's public key as you keep it; else audit.pub in the folder.")
    ] = None,
    head: Annotated[
        list[Path] | None, typer.Option("--head", metavar="FILE", help="Signed heads kept elsewhere, copies of audit.heads; repeatable.")
    ] = None,
    archives: Annotated[
        Path | None, typer.Option("--archives", metavar="DIR", help="Also follow the chain through what retention put there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the whole chain and its signatures. Exit status: 0 whole, 1 broken, 2 when it can't be checked.

    Whoever can write the state folder can put a key of his own there, or the whole folder as it was once: --key and --head, kept elsewhere,
    show that.
    """
    from shunter.cli.main import complain

    try:
        with read(state, database) as journal:
            heads = [export for path in head or () for export in load_exports(path)]
            result = journal.verify(load_public(key) if key else None, heads, archives)
    except ShunterError as error:
        complain(error.problem)
        raise typer.Exit(1 if error.problem.code == "SH903" else 2) from None
    if as_json:
        typer.echo(msgspec.json.encode(result, order="sorted"))
    else:
        _tell(result, known=key is not None)
    raise typer.Exit(0 if result.ok else 1)


@app.command()
def export(
    state: State = _HERE,
    database: Database = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to (made 0600); - for standard output.")] = Path("-"),
    form: Annotated[Format, typer.Option("--format", help="JSON Lines lose nothing; Parquet needs pyarrow.")] = Format.JSONL,
    kind: Kind = None,
    subject: Subject = None,
    operation: Operation = None,
    worker: Worker = None,
    node: OfNode = None,
    policy: OfPolicy = None,
    commit: AtCommit = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """Write records for other programs, oldest first. Exit status: 0, 1 when they can't be read, 2 when they can't be written."""
    wanted = Filter(
        kind=kind, subject=subject, operation=operation, worker=worker, node=node, policy=policy, commit=commit,
        since=moment("--since", since), until=moment("--until", until),
    )  # fmt: skip
    with read(state, database) as journal:
        first, rest = _begun(journal.stream(wanted))
        with _written(out) as file:
            written = FORMATS[form](chain(first, rest), file)
    if str(out) != "-":
        typer.echo(f"{out}: {count(written, 'record')}")


@app.command()
def follow(
    state: State = _HERE,
    database: Database = None,
    last: Annotated[int, typer.Option("--last", min=0, help="Show the newest so many first.")] = 10,
    kind: Kind = None,
    subject: Subject = None,
    operation: Operation = None,
    worker: Worker = None,
    node: OfNode = None,
    policy: OfPolicy = None,
    commit: AtCommit = None,
    as_json: Json = False,
) -> None:
    """Show records as they come, until Ctrl-C. Exit status: 0, or 1 when the audit can't be read."""
    wanted = Filter(kind=kind, subject=subject, operation=operation, worker=worker, node=node, policy=policy, commit=commit)
    console = _console()
    with read(state, database) as journal, contextlib.suppress(KeyboardInterrupt):
        after = journal.newest()
        before = [sealed for sealed in journal.select(wanted, last) if sealed.seq <= after] if last else []
        for sealed in chain(before, following(journal, wanted, after, lambda: time.sleep(_LOOK_S))):
            if as_json:
                _lines((sealed,))
            else:
                audit_text((sealed,), console)
            sys.stdout.flush()


@app.command()
def replay(
    what: Annotated[str, typer.Argument(metavar="SEQ|OPERATION", help="The number of a record of a decision, or an operation's id.")],
    state: State = _HERE,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Make a recorded decision again from what it was made on. Exit status: 0 the same, 1 not the same, or an input is gone.

    It needs nothing but the state folder: the policies, the snapshots and what the engine had done are kept in it for as long as the
    settings say.
    """
    from shunter.app.replay import replay as again

    with read(state, database) as journal:
        found = again(journal, what)
    if as_json:
        typer.echo(msgspec.json.encode({**msgspec.to_builtins(found), "same": found.same}, order="sorted"))
    else:
        replay_text(
            _console(),
            record=found.record,
            at=found.at,
            commit=found.commit,
            plan=found.plan,
            again=found.again,
            snapshot=found.snapshot,
            made_on=(found.snapshots, found.findings, found.operations),
            differs=found.differs,
            remarks=found.remarks,
        )
    raise typer.Exit(0 if found.same else 1)


def _because(journal: Journal, first: Sealed) -> Because:
    """What the audit says of why an operation was begun."""
    body, worker = first.record.body, first.record.subject
    of_policy = Filter(kind=RecordKind.FINDING, subject=worker, policy=str(body.get("policy")))
    acts = [s for s in reversed(journal.select(of_policy)) if s.record.body.get("verdict") == "act"]
    behind = [s for s in acts if s.record.plan == first.record.plan]  # after the order, where a notice asked for it
    acting = iter(behind or [s for s in acts if s.seq <= first.seq])
    plans = journal.select(Filter(kind=RecordKind.PLAN, worker=worker, until=first.record.at + 1.0))
    having = (s for s in reversed(plans) if s.seq <= first.seq and first.record.operation in operations_of(s.record))
    notices = journal.select(Filter(kind=RecordKind.NOTICE, until=first.record.at + 1.0)) if body.get("notice") else ()
    heard = (s for s in reversed(notices) if notice_of(s.record) == body.get("notice"))
    finding, notice = next(acting, None), next(heard, None)
    return Because(notice=notice.record if notice else None, finding=finding.record if finding else None, plan=next(having, None))


def _tell(result: Verification, *, known: bool) -> None:
    if not result.ok:
        typer.echo(f"broken at record {result.broken}: {result.why} ({count(result.count, 'record')} before it whole)")
        return
    since = f" from record {result.first} on" if result.first > 1 else ""
    typer.echo(f"whole{since}: {count(result.count, 'record')}, the last one's hash is {result.head}")
    typer.echo(
        f"signed by {result.key}" + ("" if known else ", the key in the folder: compare it with the one that you keep, or give --key")
    )
    if result.kept or result.unkept:
        older = f"; {result.unkept} of records that were dropped since" if result.unkept else ""
        typer.echo(f"{count(result.kept, 'exported head')} found in it{older}")


def _begun(records: Iterator[Sealed]) -> tuple[tuple[Sealed, ...], Iterator[Sealed]]:
    """The first one, if there is one, and the others: so that what can't be read leaves no file."""
    first = next(records, None)
    return (() if first is None else (first,)), records


@contextlib.contextmanager
def _written(out: Path) -> Iterator[BinaryIO]:
    """A file that is there whole or not at all. Raises Retry SH974."""
    if str(out) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = out.with_name(f".{out.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            yield file
        os.replace(part, out)
    except OSError as error:
        raise Retry(
            Problem(
                code="SH974",
                what=f"the export can't be written: {error.strerror}",
                remedy="Check the folder, its permissions and the disk",
                subject=str(out),
            )
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _lines(records: tuple[Sealed, ...]) -> None:
    for sealed in records:
        typer.echo(msgspec.json.encode(plain(sealed), order="sorted"))


def _console() -> Console:
    """Standard output; 160 columns where it isn't a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
