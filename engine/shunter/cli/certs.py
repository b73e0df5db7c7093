"""`shunter certs`: a local certificate authority and what it signs."""

import datetime
import time
from pathlib import Path
from typing import Annotated

import typer

from shunter.app.certs import issue


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files are, or are to be made.")],
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="NODE", help="A node to make a certificate for; repeatable.")
    ] = None,
    reader: Annotated[
        bool, typer.Option("--reader", help="Make one for previews, too: agents let it look, and do nothing for it.")
    ] = False,
    days: Annotated[int, typer.Option("--days", help="How long new certificates are valid; the authority: ten years.")] = 365,
) -> None:
    """Make a local certificate authority, the engine's certificate, one for each agent, and with `--reader` one for previews.

    What is there already is kept, what is missing is added, nothing is overwritten. Keep ca.key away from the nodes: whoever has it can
    be the engine. Exit status: 0, or 1 when something is in the way.
    """
    for made in issue(folder, agent or [], time.time(), days, reader=reader):
        until = datetime.datetime.fromtimestamp(made.ends_at, datetime.UTC)
        typer.echo(f"{'kept' if made.kept else 'made'}  {made.cert}  {made.uri}, until {until:%Y-%m-%d}")
