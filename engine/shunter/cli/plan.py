"""`shunter plan`: what would be done now."""

import asyncio
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from shunter.app.preview import assumed, preview
from shunter.app.settings import Settings, load
from shunter.report.json import plan_json
from shunter.report.text import plan_text


class Format(StrEnum):
    """Forms of the plan."""

    TEXT = "text"
    JSON = "json"


def plan(
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
    notice: Annotated[
        list[str] | None,
        typer.Option(
            "--notice",
            metavar="NODE=KIND:LEAD",
            help="Ask what would happen if this notice came, as in node-a=preemption:120s. Repeatable.",
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="Text for people, or JSON.")] = Format.TEXT,
    directory: Annotated[
        Path | None, typer.Option("--policies", help="Read policies from this directory instead of the configured source.")
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 3 when something would be done.")] = False,
) -> int:
    """Show what would be done now, and why, without doing it.

    Asks the agents and Prometheus as the engine does, and decides with the same function; how long a condition has held is read from
    Prometheus' history.
    """
    settings = load(config)
    if directory:
        settings = _with_directory(settings, directory)
    notices = [assumed(text) for text in notice or ()]
    with tempfile.TemporaryDirectory(prefix="shunter-plan-") as folder:
        seen = asyncio.run(preview(settings, Path(folder) / "policies.git", notices))
    if output is Format.JSON:
        typer.echo(plan_json(seen.evaluation, seen.snapshot), nl=False)
    else:
        console = Console(width=None if sys.stdout.isatty() else 140)
        plan_text(seen.evaluation, seen.snapshot, console)
        for problem in (*seen.policies.problems, *seen.unreachable):
            typer.echo(f"warning: {problem}", err=True)
    return 3 if exit_code and seen.evaluation.plan.operations else 0


def _with_directory(settings: Settings, folder: Path) -> Settings:
    policies = msgspec.structs.replace(settings.policies, git=None, directory=folder.resolve())
    return msgspec.structs.replace(settings, policies=policies)
