"""`shunter-agent`: run a node's agent, check the node, post notices."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="The node's side of Shunter.")
notice = typer.Typer(no_args_is_help=True, help="Post, withdraw and list notices in a folder that an agent watches.")
app.add_typer(notice, name="notice")

Config = Annotated[Path, typer.Option("--config", "-c", help="The agent's settings (TOML).")]
Folder = Annotated[Path, typer.Option("--dir", help="The folder of notices, as in the agent's settings.")]


@app.command("run")
def run_agent(config: Config) -> None:
    """Run the agent until SIGTERM. Its workers live on after it."""
    import asyncio

    from shunter_agent.agent import serve
    from shunter_agent.settings import load

    asyncio.run(serve(load(config)))


@app.command()
def check(config: Config) -> None:
    """Check this node: settings, tools, permissions, whether checkpoint and restore really work on its kernel, and whether its sources of
    notices answer and are understood. What only costs more than it has to is said, too, and is no failure.
    """
    from shunter_agent.check import problems, remarks
    from shunter_agent.settings import load

    settings = load(config)
    found = problems(settings)
    for problem in found:
        typer.echo(str(problem), err=True)
    if found:
        raise typer.Exit(1)
    for remark in remarks(settings):
        typer.echo(str(remark), err=True)
    typer.echo(f"{settings.node}: all is well; workers can be checkpointed and restored here ({settings.runtime})")


@notice.command("post")
def post_notice(
    folder: Folder,
    kind: Annotated[str, typer.Option(help="preemption, maintenance, rebalance, drain, gpu-failing or gone.")],
    lead: Annotated[str | None, typer.Option(help="How long until it happens, such as 120s.")] = None,
    deadline: Annotated[str | None, typer.Option(help="When it happens: RFC 3339, such as 2026-01-02T03:04:05Z.")] = None,
    notice_id: Annotated[str | None, typer.Option("--id", help="Its id; made up if not given.")] = None,
    detail: Annotated[str, typer.Option(help="Words for people.")] = "",
) -> None:
    """Post a notice for the node."""
    import time
    import uuid

    from shunter_agent.notices.file import deadline_of, post

    chosen = notice_id or f"{kind}-{uuid.uuid4().hex[:8]}"
    post(folder, kind=kind, notice_id=chosen, deadline=deadline_of(deadline, lead, time.time()), detail=detail)
    typer.echo(chosen)


@notice.command("withdraw")
def withdraw_notice(folder: Folder, notice_id: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Take a notice back."""
    from shunter_agent.notices.file import withdraw

    if not withdraw(folder, notice_id):
        typer.echo(f"There is no notice {notice_id} in {folder}.", err=True)
        raise typer.Exit(1)


@notice.command("list")
def list_notices(folder: Folder) -> None:
    """Show the notices in the folder, and what is wrong with any that can't be read."""
    from datetime import UTC, datetime

    from shunter_agent.notices.file import read

    notices, problems = read(folder)
    for each in notices:
        until = datetime.fromtimestamp(each.deadline, UTC).isoformat(timespec="seconds") if each.deadline is not None else "no deadline"
        typer.echo(f"{each.id}  {each.kind}  {until}  {each.detail}".rstrip())
    for problem in problems:
        typer.echo(str(problem), err=True)
    if problems:
        raise typer.Exit(1)


def run() -> None:
    """Entry point. Expected failures end with status 2 and one line that says what to do."""
    from shunter.model.errors import ShunterError

    try:
        app()
    except ShunterError as error:
        typer.echo(str(error), err=True)
        sys.exit(2)
