"""`shunter notices`: where each node looks for notices, what is open, and what is done about it now."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from shunter.app.alone import alone_in
from shunter.app.assumed import assumed
from shunter.app.preview import preview
from shunter.app.settings import load
from shunter.model.canon import plain
from shunter.report.notices import notices_document, notices_text


def notices(
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
    notice: Annotated[
        list[str] | None,
        typer.Option(
            "--notice", metavar="NODE=KIND:LEAD", help="Ask what would be if this notice came, as in node-a=preemption:120s. Repeatable."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Show where each node looks for notices, when that was last tried out, which source is blind, what is open, what is done about it, and
    what its node would do by itself while no engine can be reached.

    Asks the agents and decides once, as `shunter plan` does; carries nothing out.
    """
    settings = load(config)
    asked = [assumed(text) for text in notice or ()]
    with tempfile.TemporaryDirectory(prefix="shunter-notices-") as folder:
        seen = asyncio.run(preview(settings, Path(folder) / "policies.git", asked))
    for problem in seen.unreachable:
        typer.echo(f"warning: {problem}", err=True)
    alone = alone_in(seen)
    if as_json:
        document = plain(notices_document(seen.evaluation, seen.snapshot, alone))
        typer.echo(msgspec.json.encode(document, order="sorted"))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
        notices_text(seen.evaluation, seen.snapshot, console, alone)
