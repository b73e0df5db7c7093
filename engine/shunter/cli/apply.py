"""`shunter apply`: carry out an exact plan, once."""

import asyncio
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from shunter.app.apply import Applied
from shunter.app.apply import apply as carry_out
from shunter.app.exact import ExactPlan, load
from shunter.app.settings import Settings
from shunter.app.settings import load as load_settings
from shunter.cli.main import INTERRUPTED, REFUSED, complain
from shunter.cli.who import who
from shunter.model.errors import Problem
from shunter.model.operation import UNDER_WAY, OperationRecord, Status
from shunter.report.operation import operation_line
from shunter.report.words import count, short

NOT_ALL_DONE: Final = 3


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `shunter plan --out` wrote.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
) -> int:
    """Carry out that very plan, if the world is still the one that it was made for.

    Refused, with what moved and both values, when the file was changed, has expired or was applied before, when other policies are in
    force, or when a precondition of any of its operations doesn't hold on a fresh look at the agents: then nothing is done. The engine that
    leads on the state folder carries it out; where none does, this command leads until it is done.

    Exit status: 0 all done, 3 not all of it, 1 refused, 2 it couldn't run, 130 interrupted: what was begun goes on with the engine, or
    waits for the next one.
    """
    exact, settings = load(file), load_settings(config)
    if not exact.operations:
        typer.echo(f"plan {exact.digest[7:19]} has nothing to carry out")
        return 0
    typer.echo(f"plan {exact.digest[7:19]}, policies at {short(exact.plan.commit)}: {count(len(exact.operations), 'operation')}")
    applied, interrupted = asyncio.run(_run(settings, exact))
    return _result(applied, interrupted=interrupted)


async def _run(settings: Settings, exact: ExactPlan) -> tuple[Applied, bool]:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    console = Console(width=None if sys.stdout.isatty() else 140)

    def on_step(record: OperationRecord, pretend: bool) -> None:
        console.print(operation_line(record, pretend=pretend), markup=False, highlight=False)

    def on_problem(problem: Problem) -> None:
        typer.echo(f"warning: {problem}", err=True)

    applied = await carry_out(settings, exact, who(), clock=time.time, stop=stop, on_step=on_step, on_problem=on_problem)
    return applied, stop.is_set()


def _result(applied: Applied, *, interrupted: bool) -> int:
    if applied.answer is None:
        typer.echo("taken back: nothing was done", err=True)
        return INTERRUPTED
    for problem in applied.answer.problems:
        complain(problem)
    if applied.answer.problems:
        typer.echo("nothing was done", err=True)
        return REFUSED
    ended = Counter(record.status for record in applied.records)
    if interrupted and (under_way := sum(ended[status] for status in UNDER_WAY)):
        typer.echo(f"{count(under_way, 'operation')} under way: they go on with the engine, or wait for the next one", err=True)
        return INTERRUPTED
    typer.echo(", ".join(f"{number:,} {status.value}" for status, number in sorted(ended.items())))
    return 0 if set(ended) == {Status.SUCCEEDED} else NOT_ALL_DONE
