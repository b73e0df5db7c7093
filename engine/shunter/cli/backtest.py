"""`shunter backtest`: what the policies would have done over a stretch of the past."""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from shunter.app.backtest import Past, Span, backtest, contrasted, enforced, noticed
from shunter.app.looking import look_at_fleet
from shunter.app.preview import policies_of
from shunter.app.private import write_private
from shunter.app.recording import load as load_recording
from shunter.app.revisions import Revisions
from shunter.app.settings import Settings, load
from shunter.cli.moments import moment, stretch
from shunter.model.backtest import Backtest, Contrast
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet
from shunter.observe.prometheus import Prometheus
from shunter.report.backtest import backtest_json, backtest_markdown, backtest_text
from shunter.report.drawing import Drawing, svg
from shunter.report.picture import available, png
from shunter.report.timeline import timeline

_DEADLINE_S: Final = 60.0
"""How long Prometheus may take for half an hour of one metric."""


class Format(StrEnum):
    """Forms of the result."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def run_backtest(
    since: Annotated[str, typer.Option("--since", metavar="WHEN", help="Begin: 7d ago as `7d`, or a time in UTC.")] = "7d",
    until: Annotated[str | None, typer.Option("--until", metavar="WHEN", help="End, written like --since; now without it.")] = None,
    step: Annotated[str, typer.Option("--step", metavar="TIME", help="Time between two decisions.")] = "30s",
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="BASE HEAD", help="Two directories or Git revisions of the policies, over the same samples."),
    ] = None,
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", metavar="FILE", help="Begin with the fleet of this recording, and ask no agent.")
    ] = None,
    repository: Annotated[
        Path | None, typer.Option("--repository", metavar="PATH", help="The repository of the revisions; else the settings'.")
    ] = None,
    folder: Annotated[str | None, typer.Option("--folder", help="Where policies are in it; as the settings say, or its root.")] = None,
    enforce: Annotated[bool, typer.Option("--enforce", help="Carry out what policies in `mode: preview` decide too.")] = False,
    output: Annotated[Format, typer.Option("--format", "-f", help="text for people, json, or markdown for a pull request.")] = Format.TEXT,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            "--svg",
            metavar="FILE",
            help="Also draw pools, policies and operations over time, as .svg or .png. --svg is its old name.",
        ),
    ] = None,
    link: Annotated[str, typer.Option("--link", metavar="URL", help="Where all of it is, for --format markdown.")] = "",
) -> None:
    """Decide at each step of the past on what Prometheus knew then, as if what was decided had happened.

    Says when each policy would have acted, what it would have undone again, which budgets it would have used, which sessions it would have
    kept, and what that saves against four other ways; and what can't be known. With --compare --timeline, the picture is that of HEAD.
    """
    drawn = _drawer(picture) if picture is not None else None
    settings, now = load(config), time.time()
    span = span_of(since, until, step, now)
    sets = _sets(settings, compare, repository, folder, now)
    if enforce:
        sets = tuple(enforced(policies) for policies in sets)
    for problem in dict.fromkeys(problem for policies in sets for problem in policies.problems):
        typer.echo(f"warning: {problem}", err=True)
    found, contrast = stepped(settings, sets, span, snapshot, now)
    if picture is not None and drawn is not None:  # first: whoever reads the rest may stop at its beginning
        _draw(drawn(timeline(found[-1])), picture)
    match output:
        case Format.JSON:
            typer.echo(backtest_json(found, contrast), nl=False)
        case Format.MARKDOWN:
            typer.echo(backtest_markdown(found, contrast, link=link), nl=False)
        case Format.TEXT:
            backtest_text(found, Console(highlight=False, width=None if sys.stdout.isatty() else 160), contrast)


def stepped(
    settings: Settings, sets: Sequence[PolicySet], span: Span, snapshot: Path | None, now: float
) -> tuple[tuple[Backtest, ...], Contrast | None]:
    """Step through the time, with the fleet of a recording (None: the live one). With two sets, also what differs between them. Raises what
    asking for them does.
    """
    fleet, remarks = _fleet(settings, snapshot, now)
    notices, said = noticed(settings.state, span)
    past = Past(fleet, notices, span, settings.prometheus.catalog(), settings.rates(), (*remarks, said))
    return asyncio.run(_run(settings, sets, past, _Progress()))


def span_of(since: str, until: str | None, step: str, now: float) -> Span:
    """The time between the two, in words as options have them. Raises Rejected SH961 for one that isn't over, or has no step in it."""
    begin, end, every = moment("--since", since, now), moment("--until", until, now), stretch("--step", step)
    last = now if end is None else end
    if begin is None or begin + every > last or last > now:
        raise Rejected(
            Problem(
                code="SH961",
                what="the time to look at is shorter than a step, or isn't over yet",
                remedy="Give --since and --until that lie in the past, --since first",
                subject="--since",
            )
        )
    return Span(begin=begin, end=last, step=every)


def _sets(
    settings: Settings, compare: tuple[str, str] | None, repository: Path | None, folder: str | None, now: float
) -> tuple[PolicySet, ...]:
    with tempfile.TemporaryDirectory(prefix="shunter-backtest-") as scratch:
        if compare is None:
            return (asyncio.run(policies_of(settings, Path(scratch) / "policies.git", now)),)
        revisions = Revisions(settings, repository, folder, Path(scratch))
        return tuple(revisions.read(name) for name in compare)


def _fleet(settings: Settings, snapshot: Path | None, now: float) -> tuple[Fleet, tuple[str, ...]]:
    if snapshot is not None:
        return load_recording(snapshot).fleet, (f"The fleet is that of {snapshot.name}",)
    fleet, unreachable = asyncio.run(look_at_fleet(settings, now))
    if not fleet.workers:
        raise Retry(
            Problem(code="SH962", what="the fleet has no workers", remedy="Look at the agents, or give a --snapshot", subject="fleet")
        )
    return fleet, tuple(f"{p.subject} doesn't answer and is as it was last known" for p in unreachable)


async def _run(
    settings: Settings, sets: Sequence[PolicySet], past: Past, progress: Callable[[float], None]
) -> tuple[tuple[Backtest, ...], Contrast | None]:
    async with Prometheus(settings.prometheus.url, deadline_s=_DEADLINE_S) as server:
        if len(sets) == 1:
            return await backtest(server, sets, past, progress=progress), None
        base, head = sets
        one, other, contrast = await contrasted(server, base, head, past, progress=progress)
        return (one, other), contrast


def _drawer(path: Path) -> Callable[[Drawing], bytes]:
    """What makes the file's bytes. It is looked at first whether that can be done: a backtest takes its time."""
    match path.suffix.lower():
        case ".svg":
            return lambda drawing: svg(drawing).encode()
        case ".png":
            if available():
                return png
            raise Rejected(
                Problem(
                    code="SH968",
                    what="a PNG is drawn by Pillow, which isn't installed",
                    remedy="Install it with `pip install 'shunter[pictures]'`, or ask for an .svg",
                    subject=f"--timeline {path}",
                )
            )
    raise Rejected(
        Problem(code="SH967", what="a picture is drawn as .svg or .png", remedy="Give the file such a name", subject=f"--timeline {path}")
    )


def _draw(data: bytes, path: Path) -> None:
    try:
        write_private(path, data)
    except OSError as error:
        what = f"the picture can't be written: {error.strerror}"
        raise Retry(Problem(code="SH963", what=what, remedy="Check the folder and the disk", subject=str(path))) from error


class _Progress:
    """The share that is done, on a terminal alone."""

    def __init__(self) -> None:
        self._shown = -1
        self._terminal = sys.stderr.isatty()

    def __call__(self, share: float) -> None:
        percent = int(share * 100)
        if self._terminal and percent != self._shown:
            self._shown = percent
            typer.echo(f"\r{percent:3} %", err=True, nl=percent == 100)
