"""The `shunter` command. Verbs are imported when they are used, so that it starts fast."""

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from shunter.model.errors import Problem, Rejected, ShunterError, Stalled

VERBS: Final = {
    "validate": ("shunter.cli.validate:validate", "Check policy files: every problem with line, column and what to do."),
    "test": ("shunter.cli.test:run_tests", "Run the tests that stand beside policies."),
    "fmt": ("shunter.cli.fmt:fmt", "Bring policy files into one form; comments and meaning stay."),
    "explain": ("shunter.cli.explain:explain", "Describe a kind of policy, its keys and its variables."),
    "plan": ("shunter.cli.plan:plan", "Show what would be done now, and why, without doing it."),
    "diff": ("shunter.cli.diff:diff", "Show what a change of the policies changes in outcome."),
    "review": ("shunter.cli.review:review", "Check, test and compare a change of the policies, for its pull request."),
    "comment": ("shunter.cli.comment:comment", "Write a report into a pull request's one comment."),
    "backtest": ("shunter.cli.backtest:run_backtest", "Show what the policies would have done over a stretch of the past."),
    "apply": ("shunter.cli.apply:apply", "Carry out an exact plan, once, if the world is still the one it was made for."),
    "cancel": ("shunter.cli.cancel:cancel", "Have one operation given up: it goes back to a safe point, if it isn't committed."),
    "why": ("shunter.cli.why:why", "Say for one worker why each policy acts on it, or doesn't."),
    "notices": ("shunter.cli.notices:notices", "Show what was announced for each node, by whom, and what is done about it."),
    "snapshot": ("shunter.cli.snapshot:snapshot", "Record the fleet and its samples as they are now."),
    "engine": ("shunter.cli.engine:engine", "Follow the policies: decide, act, and keep the audit."),
    "status": ("shunter.cli.status:status", "Show the fleet, what is under way, and how old it all is."),
    "audit": ("shunter.cli.audit:app", "List, show and verify the audit's records."),
    "gone": ("shunter.cli.gone:gone", "Declare that a node is dead, though nothing announced it."),
    "certs": ("shunter.cli.certs:certs", "Make the certificates of a local engine and its agents."),
}
"""Name to where it is, and its line in `--help`: that one imports none of them."""

REFUSED: Final = 1
"""Exit status of a verb whose input was refused, or that needs a person."""
COULD_NOT_RUN: Final = 2
INTERRUPTED: Final = 130


class Verbs(TyperGroup):
    """A group that imports a verb when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401  (typer's context isn't public)
        """In the order in which people meet them."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401
        """The verb, imported; None for one that there isn't."""
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), name)
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command(cmd_name)(found)
            found = app
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """The table of verbs, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


app = typer.Typer(
    cls=Verbs, add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"shunter {version('shunter')}")
        raise typer.Exit


@app.callback()
def main(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Move LLM serving workers without losing the sessions they hold."""


def run() -> None:
    """The entry point: run the command line and exit with its status."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: list[str]) -> int:
    """Run one command line and return its exit status. What goes wrong is told on standard error, without a traceback.

    0 done, 1 refused or in need of a person, 2 it couldn't run (or the command line is wrong), 130 interrupted. Verbs may have finer ones;
    where 2 says that something differs, what couldn't run is 1.
    When nobody reads the output any more, typer ends the process with 1 and no word.
    """
    try:
        status = app(args=arguments, prog_name="shunter", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except ShunterError as error:
        complain(error.problem)
        status = REFUSED if isinstance(error, Rejected | Stalled) else COULD_NOT_RUN
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        status = _other(error, debug="--debug" in arguments)
    return REFUSED if status == COULD_NOT_RUN and _two_says(arguments) else status


def _two_says(arguments: Sequence[str]) -> bool:
    """2 says that something differs, or would be done: a pipeline that lets that pass must not let pass that it couldn't run."""
    verb = next((one for one in arguments if not one.startswith("-")), "")
    return verb in ("diff", "review") or (verb == "plan" and "--exit-code" in arguments)


def complain(problem: Problem) -> None:
    """Tell one problem on standard error: what happened, and what to do."""
    where = f"{problem.place or problem.subject}: " if problem.place or problem.subject else ""
    typer.echo(f"error: {problem.code} {where}{problem.what}\n  {problem.remedy}", err=True)


def _other(error: Exception, *, debug: bool) -> int:
    show = getattr(error, "show", None)
    if callable(show):  # a usage error of typer's: it knows how to say itself
        show()
        return int(getattr(error, "exit_code", COULD_NOT_RUN))
    if type(error).__name__ == "Abort":
        return INTERRUPTED
    if debug:
        raise error
    complain(
        Problem(
            code="SH999",
            what=f"something went wrong that Shunter didn't expect: {type(error).__name__}: {error}",
            remedy="Run it again as `shunter --debug ...` and report what it prints",
        )
    )
    return COULD_NOT_RUN
