"""`shunter gone`: declare that a node is dead."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from shunter.act.store import looked_at
from shunter.app.gone import declare, withdraw
from shunter.app.settings import Settings, load
from shunter.model.errors import Problem, Rejected


def gone(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node, as in `shunter status`.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
    detail: Annotated[str, typer.Option("--detail", help="How it is known; goes into the audit.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Take the declaration back.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Declare that a node is dead for good, though nothing announced it: its workers are then restored elsewhere from their newest images.

    Only for a node whose power or network is certainly cut: if its workers still run, there will be two of each.
    """
    settings = load(config)
    nodes = _known(settings)
    if node not in nodes:
        known = ", ".join(sorted(nodes))
        raise Rejected(Problem(code="SH917", what=f"there is no node {node}", remedy=f"Nodes are {known}", subject=str(config)))
    if undo:
        typer.echo(f"{node}: {'taken back' if withdraw(settings.state, node) else 'nothing was declared'}")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise Rejected(
                Problem(
                    code="SH916", what="this needs a yes", remedy="Give --yes if the node's power or network is certainly cut", subject=node
                )
            )
        typer.confirm(f"Is {node} certainly off, or cut from the network? If its workers still run, there will be two of each", abort=True)
    declare(settings.state, node, time.time(), detail)
    typer.echo(f"{node}: declared gone; the engine acts on it at its next tick")


def _known(settings: Settings) -> set[str]:
    """The nodes of the settings, and those that the engine found and remembers."""
    nodes = {agent.node for agent in settings.agents}
    if settings.cluster is None or settings.cluster.pods is None:
        return nodes
    with looked_at(settings.state / "engine.db") as store:
        last = None if store is None else store.load_fleet()
    return nodes | ({node.id for node in last.fleet.nodes} if last is not None else set())
