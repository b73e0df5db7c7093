"""`shunter plan`: what would be done now, at a past instant, or on what was recorded."""

import asyncio
import sys
import tempfile
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.console import Console

from shunter.app.assumed import Assumed, assumed
from shunter.app.exact import EXPIRES_S, ExactPlan, save
from shunter.app.preview import Preview, policies_of, preview, preview_again
from shunter.app.recording import load as load_recording
from shunter.app.settings import PoliciesSettings, Settings, load
from shunter.app.sources import read_directory
from shunter.cli.moments import moment, stretch
from shunter.report.comment import plan_markdown
from shunter.report.json import plan_json_parts
from shunter.report.text import plan_text
from shunter.report.words import count
from shunter.report.words import moment as said_moment

CHANGES: Final = 2


class Format(StrEnum):
    """Forms of the plan."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


def plan(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The engine's settings file (TOML); engine.toml without it.")
    ] = None,
    notice: Annotated[
        list[str] | None,
        typer.Option(
            "--notice",
            metavar="NODE=KIND:LEAD",
            help="Ask what would happen if this notice came, as in node-a=preemption:120s. Repeatable.",
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="text for people, json, or markdown for a pull request.")] = Format.TEXT,
    directory: Annotated[
        Path | None, typer.Option("--policies", help="Read policies from this directory instead of the configured source.")
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option("--snapshot", metavar="FILE", help="Decide on what `shunter snapshot` recorded; asks no agent and no Prometheus."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="WHEN", help="With the samples of a past instant: 10m ago as `10m`, or a time in UTC."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write the exact plan, for `shunter apply` (mode 0600).")
    ] = None,
    expires: Annotated[str | None, typer.Option("--expires", metavar="TIME", help="How long that plan is good for; 10m.")] = None,
    link: Annotated[str, typer.Option("--link", metavar="URL", help="Where the whole plan is, for --format markdown.")] = "",
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 2 when something would be done, 1 when that can't be said.")] = False,
) -> int:
    """Show what would be done now, and why, without doing it.

    Asks the agents and Prometheus as the engine does, and decides with the same function; how long a condition has held is read from
    Prometheus' history, and from what the engine on the state folder saw of the fleet. With --snapshot and --policies no settings are
    needed.
    """
    if snapshot is not None and at is not None:
        raise typer.BadParameter("a recorded snapshot has its own time", param_hint="--at")
    if expires is not None and out is None:
        raise typer.BadParameter("it goes with --out", param_hint="--expires")
    lasts = EXPIRES_S if expires is None else stretch("--expires", expires)
    notices = [assumed(text) for text in notice or ()]
    now = time.time()
    seen = _recorded(config, snapshot, directory, notices) if snapshot else _looked(config, directory, notices, now, moment("--at", at))
    exact = None
    if out is not None and seen.recording is not None:
        exact = ExactPlan.of(seen.evaluation.plan, seen.recording, now=now, lasts=lasts)
    _show(seen, output, link)
    if out is not None and exact is not None:
        save(exact, out)
        typer.echo(
            f"{out}: {count(len(exact.operations), 'operation')}, plan {exact.digest[7:19]}, good until {said_moment(exact.expires_at)}",
            err=True,
        )
    return CHANGES if exit_code and seen.evaluation.plan.operations else 0


def _looked(config: Path | None, directory: Path | None, notices: list[Assumed], now: float, at: float | None) -> Preview:
    settings = _settings(config, directory)
    with tempfile.TemporaryDirectory(prefix="shunter-plan-") as folder:
        return asyncio.run(preview(settings, Path(folder) / "policies.git", notices, now=now, at=at))


def _recorded(config: Path | None, snapshot: Path, directory: Path | None, notices: list[Assumed]) -> Preview:
    recording = load_recording(snapshot)
    if directory is not None and config is None:
        return preview_again(recording, read_directory(directory), notices)
    settings = _settings(config, directory)
    with tempfile.TemporaryDirectory(prefix="shunter-plan-") as folder:
        policies = asyncio.run(policies_of(settings, Path(folder) / "policies.git", recording.at))
    return preview_again(recording, policies, notices, settings.rates())


def _settings(config: Path | None, directory: Path | None) -> Settings:
    settings = load(config or Path("engine.toml"))
    if directory is None:
        return settings
    return msgspec.structs.replace(settings, policies=PoliciesSettings(directory=directory.resolve()))


def _show(seen: Preview, output: Format, link: str) -> None:
    problems = (*seen.policies.problems, *seen.unreachable)
    if output is Format.MARKDOWN:
        page = plan_markdown(seen.evaluation, seen.snapshot, problems=problems, remarks=seen.remarks, link=link, again=seen.again)
        typer.echo(page, nl=False)
        return
    if output is Format.JSON:
        for part in plan_json_parts(seen.evaluation, seen.snapshot, seen.again):
            typer.echo(part, nl=False)
    else:
        plan_text(seen.evaluation, seen.snapshot, Console(width=None if sys.stdout.isatty() else 140), seen.again)
    for problem in problems:
        typer.echo(f"warning: {problem}", err=True)
    for remark in seen.remarks:
        typer.echo(f"note: {remark}", err=True)
