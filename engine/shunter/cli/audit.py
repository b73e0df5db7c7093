"""`shunter audit`: read and check the records of what was decided and done."""

import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from shunter.audit.journal import Journal
from shunter.cli.moments import moment
from shunter.model.canon import plain
from shunter.model.errors import Problem, Rejected, ShunterError
from shunter.model.record import RecordKind, Sealed
from shunter.report.text import audit_text, record_text
from shunter.report.words import count

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="List, show and verify the audit's records.")

State = Annotated[Path, typer.Option("--state", metavar="DIR", help="The engine's state folder.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for programs.")]
_HERE: Final = Path(".shunter")


@app.command("list")
def list_(
    state: State = _HERE,
    kind: Annotated[RecordKind | None, typer.Option("--kind", help="Only records of this kind.")] = None,
    subject: Annotated[str | None, typer.Option("--subject", help="Only records about this worker, node, graph or policy.")] = None,
    operation: Annotated[str | None, typer.Option("--operation", help="Only records of this operation.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="WHEN", help="Not before: 10m ago as `10m`, or a date in UTC.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Only before, written like --since.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The newest so many; 0: all.")] = 100,
    as_json: Json = False,
) -> None:
    """List records, oldest first. Exit status: 0, or 1 when the audit can't be read."""
    begin, end = moment("--since", since), moment("--until", until)
    with _open(state) as journal:
        records = journal.list(kind=kind, subject=subject, operation=operation, since=begin, until=end, limit=limit or None)
    if as_json:
        _lines(records)
    else:
        audit_text(records, _console())


@app.command()
def show(
    what: Annotated[str, typer.Argument(metavar="SEQ|OPERATION", help="A record's number, or an operation's id for all of its records.")],
    state: State = _HERE,
    as_json: Json = False,
) -> None:
    """Show records in full. Exit status: 0, or 1 when there is none."""
    with _open(state) as journal:
        records = (journal.get(int(what)),) if what.isascii() and what.isdigit() else journal.list(operation=what, limit=None)
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
    for number, sealed in enumerate(records):
        if number:
            console.print()
        record_text(sealed, console)


@app.command()
def verify(state: State = _HERE, as_json: Json = False) -> None:
    """Check the whole chain. Exit status: 0 whole, 1 broken, 2 when it can't be checked."""
    from shunter.cli.main import complain

    try:
        with _open(state) as journal:
            result = journal.verify()
    except ShunterError as error:
        complain(error.problem)
        raise typer.Exit(1 if error.problem.code == "SH903" else 2) from None
    if as_json:
        typer.echo(msgspec.json.encode(result, order="sorted"))
    elif result.ok:
        typer.echo(f"whole: {count(result.count, 'record')}, the last one's hash is {result.head}")
    else:
        typer.echo(f"broken at record {result.broken}: {result.why} ({count(result.count, 'record')} before it whole)")
    raise typer.Exit(0 if result.ok else 1)


def _open(state: Path) -> Journal:
    return Journal(state / "audit.db", read_only=True)


def _lines(records: tuple[Sealed, ...]) -> None:
    for sealed in records:
        typer.echo(msgspec.json.encode(plain(sealed), order="sorted"))


def _console() -> Console:
    """Standard output; 160 columns where it isn't a terminal."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
