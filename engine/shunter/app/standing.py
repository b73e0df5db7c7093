"""Standing orders: what each node is to do if it gets a notice while this engine can't be reached, given to it ahead, and signed.

The key is made anew for each epoch and kept in memory alone; the engine's certificate vouches for it, so that agents need nothing but the
authority that they trust anyway. What nodes did is recorded when they can tell: as operations that have ended, and in the audit.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from shunter.act.store import Store
from shunter.app.aside import Breathing
from shunter.app.duty import Duty
from shunter.app.settings import TlsSettings
from shunter.app.world import gone_after
from shunter.audit.key import Key
from shunter.decide.standing import Fallback, fallbacks
from shunter.lang.bulk import BulkCelRules
from shunter.model.canon import encode, plain
from shunter.model.errors import Problem, ShunterError
from shunter.model.ids import Epoch, NodeId, NoticeId, OperationId
from shunter.model.operation import EngineState, Measured, OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Notice, Snapshot
from shunter.model.standing import NEVER, Holder, Stand, StandingOrder, Stood, taken_by, why
from shunter.model.view import NodeView
from shunter.observe.inventory import SKEW_S
from shunter.wire import agent_pb2 as pb

RENEW: Final = 0.3
"""An order is given anew when this part of its time is over."""
THINK_S: Final = 10.0
"""At most so often it is worked out what each node is to do."""
SILENT_TICKS: Final = 5.0
"""A node must have heard nothing for so many ticks at least before it acts for itself."""
KEPT_S: Final = 30.0
"""Where a next engine may go on from elsewhere, what is remembered here is remembered there after so many seconds."""
_AT_ONCE: Final = 32
_ANSWER_S: Final = 5.0
_TRIED_S: Final = 60.0
"""After so many seconds what failed without a deadline has failed for good: an engine is here, and it isn't tried again."""
_SOURCE: Final = "standing"
ENDORSED: Final = b"shunter standing key\n"
SIGNED: Final = b"shunter standing order\n"


Found: TypeAlias = Mapping[NodeId, Sequence[Fallback]]


class Standable(Protocol):
    """What is asked of an agent here."""

    async def stand(self, order: pb.StandOrder, timeout: float) -> pb.Done:
        """Keep a standing order. Raises ShunterError."""
        ...

    def took(self, taken: float, kept: float, presumed: float) -> None:
        """Have it know what was taken in of its reports: see schemas/agent.proto."""
        ...


class Signer:
    """Signs for one epoch."""

    def __init__(self, tls: TlsSettings, epoch: Epoch) -> None:
        """Raises OSError or ValueError when the engine's certificate or key can't be used."""
        self._key = Key.make()
        self._certificates = tuple(c.public_bytes(Encoding.DER) for c in x509.load_pem_x509_certificates(tls.cert.read_bytes()))
        private = load_pem_private_key(tls.key.read_bytes(), None)
        self._endorsement = _endorse(private, ENDORSED + f"{epoch}\n".encode() + self._key.public.raw)

    def sign(self, order: StandingOrder) -> pb.StandOrder:
        """As an agent takes it."""
        body = encode(order)
        return pb.StandOrder(
            order=body,
            signature=self._key.sign(SIGNED + body),
            key=self._key.public.raw,
            endorsement=self._endorsement,
            certificates=self._certificates,
        )


def _endorse(key: object, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH), hashes.SHA256())
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(data)
    raise ValueError("the engine's key is neither ECDSA, nor RSA, nor Ed25519")


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What a node was given, and when."""

    what: tuple[object, ...]
    at: float


class Standing:
    """One for each leading engine. Nothing of it keeps a tick waiting."""

    def __init__(
        self,
        duty: Duty,
        agents: Mapping[NodeId, Standable],
        epoch: Epoch,
        store: Store,
        *,
        call: Callable[[Callable[[], Found]], Awaitable[Found]],
        tell: Callable[[str, Problem | None], None],
        add: Callable[[Sequence[Record]], object],
        breathe: Callable[[], None] = lambda: None,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        """`call` does something aside, where `breathe` is asked whether it may go on; `tell` is told, by key, what is wrong (SH541), and
        None once it isn't; `add` takes records. `elapsed`: seconds from any beginning, never set.
        """
        self._duty, self._agents, self._epoch, self._store = duty, agents, epoch, store
        self._call, self._tell, self._add = call, tell, add
        self._rules, self._breathe = Breathing(BulkCelRules(), breathe), breathe
        self._signer: Signer | None = None
        self._given: dict[NodeId, Given] = {}
        self._addresses: dict[NodeId, str] = {}
        self._stood: dict[NodeId, dict[OperationId, Stood]] = {}
        self._recorded: dict[str, str] = {}
        self._elapsed = elapsed
        self._views: dict[NodeId, float] = {}
        """The `at` of each report of the last round."""
        self._taken: dict[NodeId, deque[tuple[float, float]]] = {}
        """Those of the last `KEPT_S` seconds, and the newest before that, with when they were taken in."""
        self._thought_at = float("-inf")
        self._giving: asyncio.Task[None] | None = None

    # -- what is given

    def look(self, policies: PolicySet, snapshot: Snapshot, state: EngineState, now: float) -> None:
        """Begin to give what has changed, or is to be renewed, unless that is under way."""
        if self._giving is not None or now - self._thought_at < THINK_S:
            return
        self._thought_at = now
        if self._signer is None:
            try:
                self._signer = Signer(self._duty.settings.tls, self._epoch)
            except (OSError, ValueError) as error:
                self._tell("standing orders", _unsigned(str(error)))
                return
        self._giving = asyncio.get_running_loop().create_task(self._give(self._signer, policies, snapshot, state, now), name="standing")
        self._giving.add_done_callback(self._over)

    async def stop(self) -> None:
        """Give no more: what was given holds until its end."""
        if self._giving is not None:
            self._giving.cancel()
            await asyncio.gather(self._giving, return_exceptions=True)

    async def idle(self) -> None:
        """Return once nothing is being given."""
        while self._giving is not None:
            await asyncio.wait((self._giving,))
            await asyncio.sleep(0)

    def _over(self, done: "asyncio.Task[None]") -> None:
        self._giving = None
        if not done.cancelled() and (error := done.exception()) is not None:
            self._tell("standing orders", _unsigned(f"{type(error).__name__}: {error}"))

    async def _give(self, signer: Signer, policies: PolicySet, snapshot: Snapshot, state: EngineState, now: float) -> None:
        profile, rules, breathe = self._duty.profile, self._rules, self._breathe
        found = await self._call(lambda: fallbacks(policies, snapshot, state, now, rules, profile, breathe))
        turns = asyncio.Semaphore(_AT_ONCE)
        answering = {node.id for node in snapshot.fleet.nodes if node.reachable}
        missing: dict[NodeId, Problem] = {}

        async def one(node: NodeId) -> None:
            order = self._order(node, found.get(node, ()), policies, now)
            given = Given(what=(policies.commit, order.stands, order.heard), at=now)
            before = self._given.get(node)
            if before is not None and before.what == given.what and now - before.at < RENEW * float(self._duty.settings.standing.valid):
                return
            async with turns:
                try:
                    await self._agents[node].stand(signer.sign(order), _ANSWER_S)
                except ShunterError as error:
                    missing[node] = error.problem
                else:
                    self._given[node] = given

        await asyncio.gather(*(one(node) for node in self._agents if node in answering))
        self._tell("standing orders", _not_given(missing) if missing else None)

    def _order(self, node: NodeId, own: Sequence[Fallback], policies: PolicySet, now: float) -> StandingOrder:
        return StandingOrder(
            node=node,
            epoch=self._epoch,
            issued_at=now,
            valid_until=now + float(self._duty.settings.standing.valid),
            silence=max(float(self._duty.settings.standing.silence), SILENT_TICKS * float(self._duty.settings.tick)),
            commit=policies.commit,
            policy_set=policies.digest,
            stands=tuple(self._stand(fallback) for fallback in own),
            heard={s.operation: s.at for s in self._stood.get(node, {}).values() if s.holder is not None and not s.heard},
        )

    def _stand(self, fallback: Fallback) -> Stand:
        holders = tuple(Holder(node=h, address=self._addresses[h]) for h in fallback.holders if self._addresses.get(h))
        return Stand(
            worker=fallback.worker,
            incarnation=fallback.incarnation,
            slot=fallback.slot,
            act="checkpoint" if holders else "fence",
            policy=fallback.policy,
            kinds=fallback.kinds,
            holders=holders,
        )

    # -- what was done

    def learn(self, views: Iterable[NodeView]) -> None:
        """Take in what nodes say: where they take images, and what they did by themselves."""
        now, views = self._duty.clock(), tuple(views)
        self._acknowledge()
        self._views = {view.node.id: view.at for view in views}
        for view in views:
            self._addresses[view.node.id] = view.image_address
            told = {stood.operation: stood for stood in view.stood}
            if self._stood.get(view.node.id, {}) != told:
                self._stood[view.node.id] = told
                self._given.pop(view.node.id, None)  # a new order tells it that the engine knows
                self._thought_at = float("-inf")
            for stood in view.stood:
                if stood.state in _FINAL or (stood.state == "failed" and now >= _over(stood)):
                    self._record_once(stood)

    def _acknowledge(self) -> None:
        """Of the round before: all of it is in what is remembered by now."""
        if self._store.unwritten or self._store.problem is not None:
            return
        now, settings = self._elapsed(), self._duty.settings
        before = now - (KEPT_S if self._store.elsewhere else 0.0)
        presumed = gone_after(float(settings.hold), float(settings.tick))
        for node, at in self._views.items():
            taken = self._taken.setdefault(node, deque())
            taken.append((now, at))
            while len(taken) > 1 and taken[1][0] <= before:
                taken.popleft()
            if (agent := self._agents.get(node)) is not None:
                agent.took(at, taken[0][1] if taken[0][0] <= before else 0.0, presumed)

    def knows(self, operation: OperationId) -> bool:
        """Whether the node itself has told that it sent the image, this engine or one before. Raises Stalled when the store can't say."""
        if any((stood := told.get(operation)) is not None and stood.holder is not None for told in self._stood.values()):
            return True
        record = self._store.get(operation)
        return record is not None and record.status is Status.SUCCEEDED

    def _record_once(self, stood: Stood) -> None:
        if self._recorded.get(stood.operation) == stood.state:
            return
        try:
            self._record(stood)
        except ShunterError as error:  # the disk takes no writes: the node will say it again
            self._tell("standing orders", error.problem)
        else:
            self._recorded[stood.operation] = stood.state

    def _record(self, stood: Stood) -> None:
        known = self._store.get(stood.operation)
        record = record_of(stood)
        if known is None:
            self._store.insert([msgspec.structs.replace(record, outcome=None)])
        if (known is None or known.outcome is None) and record.outcome is not None:
            self._store.finish(record.id, record.outcome)
        elif known is not None and stood.state not in ("withdrawn", "ended"):
            return  # by the engine before, or before this one was told the rest
        self._add([_told(record, stood)])


def _over(stood: Stood) -> float:
    """From when on what a node tried in vain is tried no more, now that an engine is here."""
    return stood.at + _TRIED_S if stood.deadline == NEVER else stood.deadline


def record_of(stood: Stood) -> OperationRecord:
    """The operation that a node's own doing is, as the engine keeps it: a checkpoint, ordered by the standing order."""
    stand = stood.stand
    done = stood.state in ("done", "withdrawn", "ended")
    unfinished = Problem(
        code="SH542",
        what=f"{stood.node} has not done all that it was ordered ahead, as it {_WORDS.get(stood.state, 'still tries')}: {stood.detail}",
        remedy="Nothing to do if the worker runs, or is restored from an older image",
        subject=stood.stand.worker,
    )
    planned = PlannedOperation(
        id=stood.operation,
        kind=OperationKind.CHECKPOINT,
        worker=stand.worker,
        lane="involuntary",
        policy=stand.policy,
        reason=f"{stood.kind.value} of {stood.node}, and no engine could be reached: standing order {stood.order}",
        expect=Preconditions(incarnation=stand.incarnation, at=stand.slot),
        from_slot=stand.slot,
        image=stood.image,
        copies=(stood.holder,) if stood.holder else (),
        notice=stood.notice,
        cause=f"standing:{stood.notice}",
        deadline=None if stood.deadline == NEVER else stood.deadline,
    )
    outcome = Outcome(
        status=Status.SUCCEEDED if done else Status.FAILED,
        at=stood.at,
        code="" if done else stood.code or unfinished.code,
        reason="" if done else unfinished.what,
        measured=Measured(),
        image=stood.image,
    )
    return OperationRecord(
        planned=planned,
        plan=stood.order,
        epoch=stood.epoch,
        created_at=stood.began_at,
        step=Step.COPIED if done else Step.INTENDED,
        history=((Step.INTENDED, stood.began_at),),
        outcome=outcome,
    )


_FINAL: Final = ("done", "stopped", "withdrawn", "ended")
_WORDS: Final = {"failed": "couldn't", "stopped": "left it to an engine that was back"}


def _told(record: OperationRecord, stood: Stood) -> Record:
    assert record.outcome is not None
    hidden = f"it was taken out of the router's sight ({stood.detail})"
    where = f"its image {stood.image} is on {stood.holder}" if stood.holder else hidden
    said = {
        "done": f"{stood.node} did by itself what it was ordered ahead: {where}",
        "ended": f"{stood.node} has ended it at the deadline, as it had said when it sent its image to {stood.holder}",
        "withdrawn": f"{stood.node} has shown it to the router again: the notice was withdrawn",
    }
    planned = record.planned
    return Record(
        at=stood.at,
        kind=RecordKind.OUTCOME,
        subject=planned.worker,
        what=f"standing order: {said.get(stood.state, record.outcome.reason)}",
        epoch=stood.epoch,
        commit=stood.commit,
        operation=record.id,
        body={
            "kind": planned.kind.value,
            "lane": planned.lane,
            "policy": planned.policy,
            "reason": planned.reason,
            "notice": planned.notice,
            "outcome": msgspec.to_builtins(record.outcome),
            "standing": plain(stood),
        },
    )


def relayed(fleet: Fleet, knows: Callable[[OperationId], bool] = lambda _operation: False) -> tuple[Notice, ...]:
    """Notices of nodes that don't answer, as images tell of them that they sent away under a standing order since they answered last: it
    may be all that is heard of them. A node that let its word out so has ended the worker by the deadline, unless an engine has said that
    it knows of it: `knows` tells which those are.
    """
    silent = {node.id: node.seen_at for node in fleet.nodes if not node.reachable}
    if not silent:
        return ()
    homes = {(w.id, w.incarnation): w.node for w in fleet.workers if w.node in silent}
    found: dict[NodeId, Notice] = {}
    for image in fleet.images:
        noticed, node = why(image.id), homes.get((image.worker, image.incarnation))
        if noticed is None or node is None or image.taken_at < silent[node] + SKEW_S:
            continue
        if not set(image.nodes) - {node}:  # it never left, and nothing was promised
            continue
        if (operation := taken_by(image.id)) is not None and knows(operation):
            continue
        kind, deadline = noticed
        before = found.get(node)
        if before is not None and (before.deadline or NEVER) <= deadline:
            continue  # of several the one that says when
        found[node] = Notice(
            id=NoticeId(f"standing-{image.id}"),
            kind=kind,
            node=node,
            seen_at=image.taken_at,
            deadline=None if deadline == NEVER else deadline,
            source=_SOURCE,
        )
    return tuple(found[node] for node in sorted(found))


def _unsigned(what: str) -> Problem:
    return Problem(
        code="SH541",
        what=f"no standing orders can be given: {what}",
        remedy="Check the engine's certificate and key; until then nodes do nothing by themselves while no engine can be reached",
        subject="standing orders",
    )


def _not_given(missing: Mapping[NodeId, Problem]) -> Problem:
    node = min(missing)
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    what = f"{node}{more} took no standing order: {missing[node].code} {missing[node].what}"
    return Problem(
        code="SH541", what=what, remedy="It is tried again. Update agents that don't know standing orders", subject="standing orders"
    )
