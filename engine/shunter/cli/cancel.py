"""`shunter cancel`: have one operation given up."""

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console

from shunter.act.store import Store
from shunter.app.news import news
from shunter.app.settings import load
from shunter.app.wishes import ANSWER_S, PAUSE_S, Became, Reply, Wish, ask
from shunter.cli.who import who
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord, Status
from shunter.model.snapshot import Fleet
from shunter.report.marks import Marks
from shunter.report.operation import operation_line

NOT_GIVEN_UP: Final = 3
_BACK: Final = frozenset({Status.ROLLED_BACK, Status.SUPERSEDED})


def cancel(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="The operation's id, as in `shunter status`.")],
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="Why; goes into the audit, with your name.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once the engine has heard it, and don't see it to its end.")] = False,
) -> int:
    """Have the engine that leads give an operation up, and with it all of its chain, as that is one decision.

    Before its commit it goes back to a safe point, and the worker runs on where it was. After it the operation is finished, as there is
    nothing to go back to, and this says so. What wasn't begun is dropped. Its policy may plan the same again: to keep it from that, change
    the policy's mode or conditions first. In a cluster, run this in the pod of the engine that leads, or delete the WorkerOperation.

    Exit status: 0 given up (with --no-wait: it will be), 3 it is finished all the same or failed, 1 refused, 2 it couldn't run, 130
    interrupted: the engine goes on with it.
    """
    if not because.strip():
        raise typer.BadParameter("say why", param_hint="--because")
    state = load(config).state
    wish = Wish(operation=OperationId(operation), by=who(), because=because.strip(), at=time.time())
    try:
        reply = ask(state, wish, clock=time.monotonic, pause=time.sleep)
    except OSError as error:
        what = f"the wish can't be handed to the engine: {error.strerror}"
        remedy = "Run this on the engine's host, as the user that the engine runs as; free the disk if it is full"
        raise Retry(Problem(code="SH934", what=what, remedy=remedy, subject=str(state))) from error
    if reply is None:
        _unanswered(state)
    _said(wish.operation, reply)
    if no_wait or reply.became is Became.DROPPED:
        return NOT_GIVEN_UP if reply.became is Became.COMMITTED else 0
    return 0 if _seen_through(state, wish.operation) in _BACK else NOT_GIVEN_UP


def _unanswered(state: Path) -> NoReturn:
    what = f"no engine has heard it within {ANSWER_S:g} s: it was taken back, and nothing has changed"
    remedy = "Start the engine, or run this with the state folder of the one that leads; `shunter status` says how things stand"
    raise Retry(Problem(code="SH935", what=what, remedy=remedy, subject=str(state)))


def _said(operation: OperationId, reply: Reply) -> None:
    """Say what the engine does about it. Raises Rejected SH932, SH933."""
    match reply.became:
        case Became.UNHEARD_OF:
            remedy = "`shunter status` lists what is under way"
            raise Rejected(Problem(code="SH932", what="there is no such operation", remedy=remedy, subject=operation))
        case Became.OVER:
            what = f"it has ended already: {reply.status.value if reply.status else 'nobody knows how'}"
            raise Rejected(
                Problem(code="SH933", what=what, remedy=f"`shunter audit show {operation}` says what became of it", subject=operation)
            )
        case Became.COMMITTED:
            typer.echo(f"{operation} is committed: it can't go back any more, and is finished")
        case Became.GOES_BACK:
            typer.echo(f"{operation} is given up: it goes back once the order under way is answered")
        case Became.DROPPED:
            typer.echo(f"{operation} is given up: nothing of it was begun")


def _seen_through(state: Path, operation: OperationId) -> Status:
    console, told = Console(width=None if sys.stdout.isatty() else 140), dict[OperationId, int]()
    with closing(Store(state / "engine.db", read_only=True)) as store:
        remembered = store.load_fleet()
        marks = Marks(remembered.fleet if remembered else Fleet())
        while True:
            record = _known(store, operation)
            for step in news([record], told):
                console.print(operation_line(step, pretend=marks.pretends(step.planned)), markup=False, highlight=False)
            if record.outcome is not None:
                return record.outcome.status
            time.sleep(PAUSE_S)


def _known(store: Store, operation: OperationId) -> OperationRecord:
    record = store.get(operation)
    assert record is not None, "the engine has given it up, or finishes it"
    return record
