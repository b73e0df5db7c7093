"""`shunter diff`: what a change of the policies changes in outcome."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from shunter.app.assumed import Assumed, assumed
from shunter.app.backtest import Span
from shunter.app.differing import compare
from shunter.app.looking import look, look_again
from shunter.app.recording import load as load_recording
from shunter.app.revisions import Revisions
from shunter.app.settings import Settings, load
from shunter.cli.backtest import span_of, stepped
from shunter.cli.main import complain
from shunter.model.backtest import Contrast
from shunter.model.difference import Compared
from shunter.model.errors import Problem, Rejected, ShunterError
from shunter.model.policy import PolicySet
from shunter.model.units import Duration
from shunter.report.contrast import contrast_json, contrast_markdown, contrast_text
from shunter.report.diff import diff_json, diff_markdown, diff_text
from shunter.report.words import moment

CHANGES: Final = 2
FAILED: Final = 1


class Format(StrEnum):
    """Forms of the difference."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def diff(
    base: Annotated[str, typer.Argument(metavar="BASE", help="What is now: a directory of policies, or a Git revision.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="What is to be: a directory of policies, or a Git revision.")],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The engine's settings file (TOML); engine.toml without it.")
    ] = None,
    snapshot: Annotated[
        list[Path] | None,
        typer.Option("--snapshot", metavar="FILE", help="Compare on what `shunter snapshot` recorded, not on the live fleet. Repeatable."),
    ] = None,
    notice: Annotated[
        list[str] | None, typer.Option("--notice", metavar="NODE=KIND:LEAD", help="Compare as if this notice came. Repeatable.")
    ] = None,
    repository: Annotated[
        Path | None,
        typer.Option(
            "--repository", metavar="PATH", help="The repository of the revisions; else the settings', or the one around this folder."
        ),
    ] = None,
    folder: Annotated[str | None, typer.Option("--folder", help="Where policies are in it; as the settings say, or its root.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="WHEN", help="Compare over a stretch of the past, from then on: 7d ago as `7d`, or a time in UTC."),
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="With --since, its end; now without it.")] = None,
    step: Annotated[str, typer.Option("--step", metavar="TIME", help="With --since, the time between two decisions.")] = "30s",
    output: Annotated[Format, typer.Option("--format", "-f", help="text for people, json, or markdown for a pull request.")] = Format.TEXT,
    link: Annotated[str, typer.Option("--link", metavar="URL", help="Where all of it is, for --format markdown.")] = "",
) -> int:
    """Show what differs in outcome between two revisions of the policies, decided on the same snapshot.

    Operations that would come, go or change, and findings that flip, with the expression and the values that do it. With --since, over a
    stretch of Prometheus' history, as `shunter backtest --compare` steps through it. Exit status: 0 nothing differs, 2 something does, 1 it
    couldn't be compared.
    """
    try:
        if since is not None:
            _refuse_assumptions(snapshot or [], notice or [])
            over = partial(span_of, since, until, step)
            return _tell(*_contrasted(base, head, config, over, next(iter(snapshot or []), None), repository, folder), output, link)
        compared = _compared(base, head, config, snapshot or [], [assumed(text) for text in notice or ()], repository, folder)
    except ShunterError as error:
        complain(error.problem)
        return FAILED
    match output:
        case Format.JSON:
            typer.echo(diff_json(compared), nl=False)
        case Format.MARKDOWN:
            typer.echo(diff_markdown(compared, link=link), nl=False)
        case Format.TEXT:
            diff_text(compared, Console(highlight=False, width=None if sys.stdout.isatty() else 140))
    return CHANGES if any(one.difference for one in compared) else 0


def _refuse_assumptions(snapshots: list[Path], notices: list[str]) -> None:
    if notices or len(snapshots) > 1:
        what = "a stretch of the past has its own notices, and begins with one fleet"
        raise Rejected(
            Problem(code="SH969", what=what, remedy="Leave out --notice and all but one --snapshot, or --since", subject="--since")
        )


def _contrasted(
    base: str,
    head: str,
    config: Path | None,
    over: Callable[[float], Span],
    snapshot: Path | None,
    repository: Path | None,
    folder: str | None,
) -> tuple[Contrast, Span]:
    settings, now = load(config or Path("engine.toml")), time.time()
    span = over(now)
    with tempfile.TemporaryDirectory(prefix="shunter-diff-") as scratch:
        revisions = Revisions(settings, repository, folder, Path(scratch))
        sets = (revisions.read(base), revisions.read(head))
    _, contrast = stepped(settings, sets, span, snapshot, now)
    assert contrast is not None, "there are two"
    return contrast, span


def _tell(contrast: Contrast, span: Span, output: Format, link: str) -> int:
    match output:
        case Format.JSON:
            typer.echo(contrast_json(contrast), nl=False)
        case Format.MARKDOWN:
            title = f"{moment(span.begin)} to {moment(span.end)}, every {Duration(span.step)}"
            typer.echo(contrast_markdown(contrast, title, link=link), nl=False)
        case Format.TEXT:
            contrast_text(contrast, Console(highlight=False, width=None if sys.stdout.isatty() else 140))
    return CHANGES if contrast else 0


def _compared(
    base: str,
    head: str,
    config: Path | None,
    snapshots: list[Path],
    notices: list[Assumed],
    repository: Path | None,
    folder: str | None,
) -> list[Compared]:
    settings = _settings(config, needed=not snapshots)
    with tempfile.TemporaryDirectory(prefix="shunter-diff-") as scratch:
        revisions = Revisions(settings, repository, folder, Path(scratch))
        sets = (revisions.read(base), revisions.read(head))
    if snapshots:
        return list(_on_recordings(sets, snapshots, notices, settings))
    assert settings is not None, "needed where nothing was recorded"
    seen = asyncio.run(look(settings, sets, notices, now=time.time()))
    for problem in seen[0].unreachable:
        typer.echo(f"warning: {problem}", err=True)
    return [compare(*sets, seen)]


def _on_recordings(
    sets: tuple[PolicySet, PolicySet], snapshots: list[Path], notices: list[Assumed], settings: Settings | None
) -> Iterator[Compared]:
    for path in snapshots:
        seen = look_again(load_recording(path), sets, notices)
        yield compare(*sets, seen, settings.rates() if settings else None)


def _settings(config: Path | None, *, needed: bool) -> Settings | None:
    """Without --config, engine.toml if it is there; it must be where the live fleet is looked at."""
    if config is None and not needed and not Path("engine.toml").exists():
        return None
    return load(config or Path("engine.toml"))
