"""How things stand: the fleet as the engine last saw it, what is under way, what ended, and how old all of that is."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from shunter.model.errors import Problem
from shunter.model.ids import NodeId, OperationId, WorkerId
from shunter.model.operation import OperationRecord, Sending
from shunter.model.plan import PlannedOperation
from shunter.model.snapshot import Fleet, Image, Node, Notice, Slot, Worker, WorkerState
from shunter.report.marks import Marks, mark
from shunter.report.operation import operation_line, sending_line
from shunter.report.plan import headline
from shunter.report.words import Page, count, moment, short, size, span


def status_text(
    fleet: Fleet,
    operations: Iterable[OperationRecord],
    ages: Mapping[str, float | None],
    console: Console,
    *,
    now: float,
    epoch: int = 0,
    commit: str | None = None,
    notices: Sequence[Notice] = (),
    degraded: Problem | None = None,
    waiting: Sequence[PlannedOperation] = (),
    waiting_more: int = 0,
    sending: Sequence[Sending] = (),
    graphs: Sequence[str] = (),
    troubles: Sequence[Problem] = (),
    troubles_more: int = 0,
) -> None:
    """Write it. `operations` are active and ended ones; `ages` says how many seconds ago each source was heard of, None: never.

    `commit` is that of the policies in force (None: unknown), `degraded` what is wrong with the engine's disk (None: nothing),
    `waiting` what is planned and waits for its turn, `waiting_more` how many further ones do; `sending` how far
    images are that are on their way. `graphs` has a line for each pool that somebody keeps at a number, `troubles` what is wrong with that,
    `troubles_more` how much more is. Lines on nodes that only pretend are marked.
    """
    page, marks = Page(console), Marks(fleet)
    page.title(f"At {moment(now)}: epoch {epoch}, policies at {short(commit)}")
    if degraded is not None:
        page.line(f"degraded: {degraded.code} {degraded.what}. {degraded.remedy}", indent=2, hang=4, style="red")
    for source, age in ages.items():
        page.line(f"{source}: {'never' if age is None else f'{span(age)} ago'}", indent=2)
    page.blank()
    page.title(
        f"{count(len(fleet.nodes), 'node')}, {count(len(fleet.workers), 'worker')}, {count(len(fleet.images), 'image')}{_kept(ages)}"
    )
    workers = {w.id: w for w in fleet.workers}
    for node in fleet.nodes:
        _node(page, marks, node, [n for n in notices if n.node == node.id], workers, fleet.images, now)
    _elsewhere(page, fleet, now)
    _graphs(page, graphs, troubles, troubles_more)
    _operations(page, marks, list(operations), {one.operation: one for one in sending}, now)
    _waiting(page, marks, waiting, waiting_more)


def _kept(ages: Mapping[str, float | None]) -> str:
    """The engine looks each tick, and writes down what it saw far more seldom: that is no silence of the nodes."""
    age = ages.get("fleet")
    return "" if age is None else f", as written down {span(age)} ago (at changes, and now and then)"


def _node(
    page: Page, marks: Marks, node: Node, notices: list[Notice], workers: Mapping[WorkerId, Worker], images: Sequence[Image], now: float
) -> None:
    tag = "[pretend] " if node.id in marks.nodes else ""
    answered = "answered" if node.reachable else f"doesn't answer, heard of {span(now - node.seen_at)} ago"
    page.line(f"{tag}{node.id}: {answered}{_held(images, node.id)}", indent=2, hang=4)
    for notice in notices:
        left = "no deadline" if notice.deadline is None else f"{span(notice.deadline - now)} left"
        page.line(f"{tag}{notice.kind.value} notice, {left}", indent=4, style="yellow")
    for problem in (*node.problems, *node.troubles):
        page.line(f"{tag}{problem}", indent=4, hang=6, style="red")
    if node.reachable and not node.sources:
        page.line(f"{tag}watches no source of notices: it won't be heard of before it is gone", indent=4, style="yellow")
    for slot in node.slots:
        page.line(f"{tag}{_slot(slot, workers, images, now)}", indent=4, hang=4)


def _held(images: Sequence[Image], node: NodeId) -> str:
    held = [i for i in images if node in i.nodes]
    return f", holds {count(len(held), 'image')} ({size(sum(i.bytes for i in held))})" if held else ""


def _slot(slot: Slot, workers: Mapping[WorkerId, Worker], images: Sequence[Image], now: float) -> str:
    if slot.worker is None:
        return f"{slot.id}: reserved by {slot.reserved_by}" if slot.reserved_by else f"{slot.id}: free"
    worker = workers.get(slot.worker)
    if worker is None:
        return f"{slot.id}: {slot.worker}"
    memory = f", {size(worker.memory)}" if worker.memory is not None else ""
    doubt = ", not to be trusted" if worker.doubt else ""
    return f"{slot.id}: {worker.id}, {worker.role}, {worker.state.value}{memory}{_image(worker.id, images, now)}{doubt}"


def _image(worker: WorkerId, images: Sequence[Image], now: float) -> str:
    newest = max((i for i in images if i.worker == worker and not i.doubt), key=lambda i: i.taken_at, default=None)
    return ", no image" if newest is None else f", image {span(now - newest.taken_at)} old on {newest.holders}"


def _elsewhere(page: Page, fleet: Fleet, now: float) -> None:
    for worker in fleet.workers:
        if worker.slot is None:
            style = "red" if worker.state is WorkerState.LOST else ""
            page.line(f"{worker.id}, {worker.role}: {worker.state.value}{_image(worker.id, fleet.images, now)}", indent=2, style=style)


def _graphs(page: Page, pools: Sequence[str], troubles: Sequence[Problem], more: int) -> None:
    if not pools and not troubles:
        return
    page.blank()
    page.title("Graphs, by their resources")
    for line in pools:
        page.line(line, indent=2, hang=4)
    for problem in troubles:
        page.line(str(problem), indent=2, hang=4, style="yellow")
    if more:
        page.line(f"and {more} more", indent=2)


def _waiting(page: Page, marks: Marks, operations: Sequence[PlannedOperation], more: int) -> None:
    if not operations:
        return
    page.blank()
    page.title("Planned, and waiting for their turn")
    for operation in operations:
        page.line(f"{mark(preview=False, pretend=marks.pretends(operation))}{headline(operation)}", indent=2, hang=4)
    if more:
        page.line(f"and {more} more", indent=2)


def _operations(page: Page, marks: Marks, records: list[OperationRecord], sending: Mapping[OperationId, Sending], now: float) -> None:
    active, ended = [r for r in records if r.outcome is None], [r for r in records if r.outcome is not None]
    for title, some in (("Under way", active), ("Ended lately", ended)):
        if some:
            page.blank()
            page.title(title)
        for record in some:
            page.line(operation_line(record, pretend=marks.pretends(record.planned)), indent=2, hang=4)
            if record.outcome is None and record.id in sending:
                page.line(sending_line(sending[record.id], now), indent=4, hang=6)
    if not active:
        page.blank()
        page.line("Nothing is under way.")
