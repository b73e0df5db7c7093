"""One operation under way: its durable record, its orders, and the rules that all kinds share.

A step is durable in the store and in the audit trail before the next effect is asked for. If either can't be written, Stalled is raised
and nothing more is asked: the operation is taken up again, to be brought to its end or back to where it was (see `act.store`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from shunter.act.beyond import Deposed
from shunter.act.lease import Leadership
from shunter.act.places import Places
from shunter.act.port import Agent, CopyView
from shunter.act.replicas import Replicas
from shunter.act.resolve import image_of
from shunter.act.router import Router
from shunter.act.starts import Starts
from shunter.act.store import Store
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.model.ids import ImageId, NodeId, OperationId, SlotId, WorkerId, node_of
from shunter.model.operation import Measured, OperationRecord, Outcome, Outstanding, Status, Step
from shunter.model.plan import PlannedOperation
from shunter.model.pod import Pod
from shunter.model.pretending import pretending
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet
from shunter.wire import agent_pb2 as pb

T = TypeVar("T")
OLD_LEADER = "SH601"
"""The agents' refusal of an epoch that another engine has overtaken."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take; seconds.

    `quick` bounds orders that move no bytes, `bulk` is the least given to those that do (six times the estimate if that is more). `hold` is
    how long a copy stands still without an order, `margin` what is added when waiting for a hold to end. `settle` is how long an unknown
    outcome is looked into before the operation is left for later, `pause` the first wait between two tries, doubled up to 5 s. `serve` is
    how long a worker that starts from a golden image may take until it serves, `look` the time between two looks at it.
    """

    quick: float = 15.0
    bulk: float = 120.0
    hold: float = 60.0
    margin: float = 5.0
    settle: float = 60.0
    pause: float = 0.2
    drain: float = 300.0
    serve: float = 300.0
    look: float = 1.0


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What operations are carried out with.

    `audit` returns once the record is durable, or raises Stalled; `audits` does the same with several, None: one after the other. `gone`
    says that a node is known to be dead for good (a notice of kind `gone`), so that its copies needn't be asked for. `astray` says, when an
    operation is to begin, why where it would go won't last; empty: nothing speaks against it. `progress` is told each step, for people.
    `lead` is asked before each order whether we still lead; None: that can't be lost while it runs. `places` makes the pods that workers
    come to; None: they live in none.
    `replicas` changes how many workers pools are kept at; None: nobody keeps them at a number. `router` sees whether routers find a worker
    by its pod; None: they don't. `starts` starts workers from golden images; None: they start natively.
    """

    store: Store
    agents: Mapping[NodeId, Agent]
    fleet: Callable[[], Fleet]
    audit: Callable[[Record], None]
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]
    gone: Callable[[NodeId], bool] = lambda _node: False
    astray: Callable[[PlannedOperation], str] = lambda _planned: ""
    progress: Callable[[OperationRecord], None] = lambda _record: None
    lead: Leadership | None = None
    audits: Callable[[Sequence[Record]], None] | None = None
    places: Places | None = None
    replicas: Replicas | None = None
    router: Router | None = None
    starts: Starts | None = None
    times: Times = Times()

    def write(self, records: Sequence[Record]) -> None:
        """Audit them, in their order. Raises Stalled."""
        if self.audits is not None:
            self.audits(records)
            return
        for record in records:
            self.audit(record)

    def still_leads(self) -> None:
        """Before each order. Raises Deposed once we lead no more: what a next engine orders mustn't be crossed."""
        if self.lead is not None and not self.lead.held():
            raise Deposed(self.lead.lost)


class Unresolved(Unknown):
    """The outcome couldn't be found out yet. The operation stays active, its worker and slots blocked; take it up again later."""


def problem(code: str, what: str, remedy: str, subject: str = "") -> Problem:
    """A problem without a place."""
    return Problem(code=code, what=what, remedy=remedy, subject=subject)


def told(parts: Parts, record: OperationRecord, kind: RecordKind, what: str) -> Record:
    """The audit record of an operation as it now is: the same keys whatever became of it, `problem`, `outstanding` and `outcome`
    when there is one.
    """
    planned = record.planned
    body: dict[str, object] = {
        "step": record.step.value,
        "kind": planned.kind.value,
        "reason": planned.reason,
        "policy": planned.policy,
        "lane": planned.lane,
        "from": planned.from_slot,
        "to": planned.to_slot,
        "notice": planned.notice,
        "copies": list(planned.copies),
        "after": list(planned.after),
    }
    if planned.archive:
        body["archive"] = True
    if record.step is Step.STARTING and record.pod is not None:
        body["pod"] = msgspec.to_builtins(record.pod)
    if record.problem:
        body["problem"] = msgspec.to_builtins(record.problem)
    if record.outstanding:
        body["outstanding"] = msgspec.to_builtins(record.outstanding)
    if record.outcome:
        body["outcome"] = msgspec.to_builtins(record.outcome)
    return Record(
        at=parts.clock(),
        kind=kind,
        subject=planned.worker,
        what=what,
        epoch=record.epoch,
        plan=record.plan,
        operation=record.id,
        pretend=pretending(parts.fleet()).operation(planned),
        body=body,
    )


class Run:
    """See the module. `record` is always what the store holds."""

    def __init__(self, parts: Parts, record: OperationRecord) -> None:
        self.parts = parts
        self.record = record
        self.planned = record.planned
        self.times = parts.times
        self.untouched = False
        """Nothing but questions was asked of any agent: known of an operation that this run has begun, and never of one that it took up."""
        self.taken_up = False
        """Of what can't wait more may have been asked than its record says, by somebody who could write nothing down."""
        self.place: pb.Peer | None = None
        """Where the destination receives images, if it was asked a moment ago."""

    # -- what is durable

    def had(self, step: Step) -> bool:
        """The operation has come to `step` at some time."""
        return any(s is step for s, _ in self.record.history)

    def step(
        self,
        step: Step,
        why: Problem | None = None,
        *,
        measured: Measured | None = None,
        frozen_at: float | None = None,
        pod: Pod | None = None,
        left: Pod | None = None,
        by: Step | None = None,
    ) -> None:
        """Make `step` durable. `why` becomes the record's problem; None clears it unless the operation is being rolled back. Where
        it stands is known by that: nothing is outstanding any more.

        `by` is a step that it came by at the same time. The others replace what the record knows, unless None.
        """
        kept = self.record.problem if step is Step.ROLLING_BACK else None
        self.record = self.parts.store.advance(
            self.record.id,
            step,
            self.parts.clock(),
            problem=why or kept,
            measured=measured or self.record.measured,
            frozen_at=self.record.frozen_at if frozen_at is None else frozen_at,
            pod=pod or self.record.pod,
            left=left or self.record.left,
            by=by,
            outstanding=None,
        )
        passed = [self.record] if by is None else [msgspec.structs.replace(self.record, step=by), self.record]
        kind = self.planned.kind.value
        self.parts.write([told(self.parts, one, RecordKind.STEP, f"{kind}: {one.step.value}") for one in passed])
        for one in passed:
            self.parts.progress(one)

    def note(self, why: Problem) -> None:
        """Make durable that an answer is outstanding: UNKNOWN, until `step`, `known` or `finish`."""
        before = self.record.outstanding
        if before is None or before.problem != why:
            now = self.parts.clock()
            outstanding = Outstanding(since=now if before is None else before.since, problem=why)
            self.record = self.parts.store.advance(self.record.id, self.record.step, now, outstanding=outstanding)
            self.tell(RecordKind.STEP, f"{self.planned.kind.value}: {Status.UNKNOWN.value} after {self.record.step.value}")

    def known(self) -> None:
        """Make durable that it stands where it stood when an answer was outstanding, by what the agents' journals say. What is audited next
        says so.
        """
        if self.record.outstanding is not None:
            self.record = self.parts.store.advance(self.record.id, self.record.step, self.parts.clock(), outstanding=None)
            self.parts.progress(self.record)

    def measure(self, **values: float | int | None) -> Measured:
        """What is known, with these measurements added."""
        return msgspec.structs.replace(self.record.measured, **values)

    def finish(self, status: Status, why: Problem | None = None, image: ImageId | None = None) -> None:
        """Make the outcome durable."""
        outcome = Outcome(
            status=status,
            at=self.parts.clock(),
            code=why.code if why else "",
            reason=why.what if why else "",
            measured=self.record.measured,
            image=image,
        )
        self.record = self.parts.store.finish(self.record.id, outcome)
        self.tell(RecordKind.OUTCOME, f"{self.planned.kind.value}: {status.value}")

    def tell(self, kind: RecordKind, what: str) -> None:
        """Write to the audit trail, then tell people. Raises Stalled."""
        self.parts.audit(told(self.parts, self.record, kind, what))
        self.parts.progress(self.record)

    # -- whom to ask

    @property
    def order(self) -> pb.Order:
        """The head of every order of this operation. Raises Deposed."""
        self.parts.still_leads()
        return pb.Order(
            operation=self.record.id,
            epoch=self.record.epoch,
            plan=self.record.plan,
            worker=self.planned.worker,
            incarnation=self.planned.expect.incarnation,
            deadline=(self.planned.deadline or 0.0) if self.planned.lane == "involuntary" else 0.0,
        )

    @property
    def image(self) -> ImageId:
        """The image that it takes, or uses."""
        return image_of(self.record)

    @property
    def bulk(self) -> float:
        """Seconds that an order which moves bytes may take."""
        return max(self.times.bulk, 6.0 * (self.planned.estimate.total or 0.0))

    @property
    def ahead(self) -> float | None:
        """Seconds for which memory may be copied ahead, as planned, but for at most half of what is left by now beyond standing still.
        None: as the agent thinks fit.
        """
        planned, deadline, stopped = self.planned.ahead, self.planned.deadline, self.planned.estimate.stopped
        if planned is None or deadline is None or stopped is None:
            return planned
        return max(0.0, min(planned, (deadline - self.parts.clock() - stopped) / 2))

    @property
    def late(self) -> bool:
        """A voluntary operation's time is over: it goes back. What is done for a dying node goes on, as there is nothing to go back to."""
        deadline = self.planned.deadline
        return self.planned.lane == "voluntary" and deadline is not None and self.parts.clock() >= deadline

    @property
    def given_up(self) -> Problem | None:
        """Why an operation that isn't committed is to go back: it is late, was cancelled, or is voluntary and the store takes no writes.

        None while it may go on.
        """
        if self.late:
            return late_problem(self.record.id)
        if self.planned.lane == "voluntary" and self.parts.store.problem is not None:
            return self.parts.store.problem
        stored = self.parts.store.get(self.record.id)  # cancelled by somebody else than this run
        return stored.cancelled if stored else None

    def may_go_on(self) -> None:
        """Before an order that costs much, in the middle of a step that isn't committed. Raises Rejected when it is to go back."""
        if (why := self.given_up) is not None:
            raise Rejected(why)

    def agent(self, node: NodeId) -> Agent:
        """The agent of `node`. Raises Rejected SH511."""
        found = self.parts.agents.get(node)
        if found is None:
            raise Rejected(problem("SH511", f"no agent is known for {node}", "Add it to the engine's settings", node))
        return found

    def at(self, slot: SlotId | None) -> Agent:
        """The agent of a slot's node. Raises Rejected SH511."""
        return self.agent(node_of(slot) if slot else NodeId(""))

    async def view(self, slot: SlotId | None) -> CopyView | None:
        """What the slot's node knows of this operation; None while it can't be asked. A node that is gone for good has no copy."""
        if slot is None:
            return CopyView()
        if self.parts.gone(node_of(slot)):
            return CopyView()
        try:
            found = await self.at(slot).journal(self.record.id, self.times.quick)
            return found if found.steps else seen(await self.at(slot).report(self.times.quick), self.planned.worker)
        except ShunterError:
            return None

    async def peer(self, node: NodeId) -> pb.Peer:
        """Where a node's images are received."""
        if self.place is not None and self.place.node == node:
            return self.place
        return pb.Peer(node=node, address=(await self.agent(node).report(self.times.quick)).image_address)

    # -- how to ask

    async def ask(self, call: Awaitable[T]) -> T:
        """Await an order's answer. Raises Stalled SH522 when the agent obeys a newer leader: then nothing is left to be done here."""
        try:
            return await call
        except Rejected as refused:
            if refused.problem.code != OLD_LEADER:
                raise
            raise Stalled(
                problem("SH522", "another engine leads: " + refused.problem.what, "Stop this engine, or start it anew", self.record.id)
            ) from refused

    async def insist(self, call: Callable[[], Awaitable[object]]) -> Problem | None:
        """Ask for something harmless to repeat until it is done or refused for good. The refusal, or None when it is done.

        Raises Unresolved when that can't be said within `settle`.
        """
        wait = self.waits()
        while True:
            try:
                await self.ask(call())
            except Rejected as refused:
                return refused.problem
            except (Retry, Unknown) as missing:
                await wait(missing.problem)
            else:
                return None

    def waits(self) -> Callable[[Problem], Awaitable[None]]:
        """A function that notes what is outstanding and waits longer each time, and raises Unresolved once `settle` has passed."""
        until = self.parts.clock() + self.times.settle
        pause = self.times.pause

        async def wait(why: Problem) -> None:
            nonlocal pause
            self.note(why)
            if self.parts.clock() >= until:
                raise Unresolved(why)
            await self.parts.sleep(pause)
            pause = min(2 * pause, 5.0)

        return wait

    async def preflight(
        self,
        slot: SlotId,
        *,
        destination: bool,
        facts: Mapping[str, str],
        size: int,
        spec: pb.WorkerSpec | None = None,
        uses: pb.Uses | None = None,
        privileges: pb.Privileges | None = None,
    ) -> pb.PreflightReply:
        """Raises Rejected with the first refusal, the others named behind it."""
        there, timeout = self.at(slot), self.times.quick
        reply = await self.ask(
            there.preflight(
                self.order,
                destination=destination,
                slot=slot,
                facts=facts,
                size=size,
                timeout=timeout,
                spec=spec,
                uses=uses,
                privileges=privileges,
            )
        )
        if reply.refusals:
            first = reply.refusals[0]
            what = "; ".join(r.what for r in reply.refusals)
            raise Rejected(problem(first.code, what, first.remedy, first.subject))
        return reply


def seen(report: pb.NodeReport, worker: WorkerId) -> CopyView:
    """What a node's report says of the worker: for an agent that never heard of the operation, and so can't tell whose copy is meant."""
    states = [w.state for w in report.workers if w.spec.worker == worker and w.state not in ("lost", "parked")]
    images = frozenset(ImageId(i.id) for i in report.images if i.spec.worker == worker)
    if not states:
        return CopyView(images=images)
    return CopyView(copy="frozen" if "frozen" in states else "running", images=images)


def row_of(report: pb.NodeReport, run: Run) -> pb.WorkerReport | None:
    """What the node says of the worker; None: it isn't there."""
    return next((row for row in report.workers if row.spec.worker == run.planned.worker), None)


def spec_of(report: pb.NodeReport, run: Run) -> pb.WorkerSpec:
    """The worker's specification, from the node where it lives or that holds its image. Raises Rejected SH512."""
    if (row := row_of(report, run)) is not None:
        return row.spec
    for image in report.images:
        if image.id == run.image:
            return image.spec
    raise Rejected(problem("SH512", f"{report.node} has neither the worker nor its image", "Plan again", run.planned.worker))


def late_problem(operation: OperationId) -> Problem:
    """The operation's deadline passed."""
    return problem(
        "SH513", "its time was over before it was committed", "Nothing to do: it is planned again if there is still a need", operation
    )
