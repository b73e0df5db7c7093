"""`shunter engine`: follow the policies until told to stop."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from shunter.app.duty import Told
from shunter.app.engine import Engine
from shunter.app.handover import lead
from shunter.app.policies import PolicyFeed
from shunter.app.settings import load
from shunter.app.sources import source_of
from shunter.model.errors import Problem
from shunter.model.operation import OperationRecord
from shunter.report.plan import headline
from shunter.report.text import operation_line


def engine(
    config: Annotated[Path, typer.Option("--config", "-c", help="Settings file (TOML).")] = Path("engine.toml"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print problems only, no plans and steps.")] = False,
) -> None:
    """Follow the policies: decide, act, and keep the audit.

    Prints each new plan and each step of each operation. Where `shunter apply` leads, it waits for that to make way. Ends on SIGTERM or
    Ctrl-C: what is under way is taken up by the next engine. With `[cluster]` in the settings it waits for the lead, and ends when it has
    lost it, to be started anew.
    """
    settings = load(config)
    console = Console(width=None if sys.stdout.isatty() else 140)

    def on_tick(told: Told) -> None:
        halted = (running.health.degraded or "").partition(";")[0]  # without the figures behind it, which change
        feed.report(told.policies, told.evaluation.findings, told.snapshot.at, halted)
        if told.plan_changed and told.evaluation.plan.operations and not quiet:
            console.print(f"[bold]plan[/] {told.evaluation.plan.digest[7:19]}, policies at {told.policies.commit[:12]}", highlight=False)
            for operation in told.evaluation.plan.operations:
                mark = "pretend: " if running.pretends(operation) else "preview: " if operation.preview else ""
                console.print(f"      {mark}{headline(operation)}: {operation.reason}", markup=False, highlight=False)

    def on_step(record: OperationRecord) -> None:
        if not quiet:
            console.print(operation_line(record, pretend=running.pretends(record.planned)), markup=False, highlight=False)

    def on_problem(problem: Problem) -> None:
        console.print(f"[yellow]problem[/] {problem.code} ", end="")
        console.print(f"{problem.place or problem.subject}: {problem.what}. {problem.remedy}", markup=False, highlight=False)

    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    feed = PolicyFeed(source_of(settings.policies, settings.state / "policies.git"), time.time)
    running = Engine(settings, feed, on_tick=on_tick, on_step=on_step, on_problem=on_problem)
    running.health.limit(settings.health)
    running.health.explain("policies", lambda: feed.problem)
    asyncio.run(_until_stopped(running, on_problem))


async def _until_stopped(running: Engine, tell: Callable[[Problem], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if running.settings.cluster is None:
        await lead(running.settings.state, running.run, stop, tell)
        return
    from shunter.app.electing import Electing

    candidate = Electing(running.settings, running.settings.cluster, tell)
    running.health.stands_by, running.health.lease = True, candidate.age
    running.health.explain("lease", lambda: candidate.problem)
    with running.serving():
        await candidate.lead(running.run, stop)
