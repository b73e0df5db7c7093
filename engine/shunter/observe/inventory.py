"""Agents' reports and what was known before, merged into one fleet.

An agent that doesn't answer proves nothing about its workers: they stay as they were last known, so that nothing else is started in their
name. Only the end of its node, announced and due, makes them lost.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from shunter.model.errors import Problem, Severity
from shunter.model.ids import ImageId, NodeId, WorkerId
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Worker, WorkerState
from shunter.model.units import Duration
from shunter.model.view import NodeView

SKEW_S = 5.0
"""How far an agent's clock may be from ours, in seconds, before that is told. A look takes up to 2 s of it by itself."""
_AWAY = (WorkerState.PARKED, WorkerState.LOST)
_STANDING = (WorkerState.RUNNING, WorkerState.FENCED)
_TAKING = (NoticeKind.PREEMPTION,)
"""Notices after whose deadline a node that is silent is gone. A maintenance may be put off, and its machine comes back."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet and the open notices, sorted, and what is wrong with what was reported (SH310, SH311)."""

    fleet: Fleet
    notices: tuple[Notice, ...]
    problems: tuple[Problem, ...] = ()
    gone: frozenset[NodeId] = frozenset()
    """Nodes that are dead for good: noticed, and silent since."""
    clocks: dict[NodeId, Problem] = {}
    """Nodes whose clock isn't ours (SH312)."""
    namesakes: dict[WorkerId, frozenset[NodeId]] = {}
    """Names that workers in pods of different namespaces have, and the nodes that report them, or did before they fell silent. Each stays
    until it answers without such a worker, or is gone; and the name, until only one is left and answers.
    """


_NONE: Final[Mapping[WorkerId, frozenset[NodeId]]] = {}
_AT_ONCE: Final = 1000
"""Images between which nothing can stand still: some milliseconds."""


def merge(
    views: Sequence[NodeView],
    previous: Fleet | None,
    notices_previous: Sequence[Notice],
    expected: Collection[NodeId],
    now: float,
    *,
    ended: frozenset[WorkerId] = frozenset(),
    busy: frozenset[WorkerId] = frozenset(),
    gone_after_s: float = 5.0,
    silent_s: Mapping[NodeId, float] | None = None,
    namesakes: Mapping[WorkerId, frozenset[NodeId]] = _NONE,
    breathe: Callable[[], None] = lambda: None,
) -> Inventory:
    """The fleet at `now` (seconds since the epoch), from this round's views and the round before.

    - A node without a view keeps its last slots, workers, images and notices, with `reachable=False`. Once it is gone (a `gone` notice, or
      a preemption whose deadline is more than `gone_after_s` seconds ago, and the node has been silent for longer than that) it has no
      slots and holds no images (the archive still may), and its workers are LOST. Notices of a node that answers are exactly those that
      it reports.
    - `silent_s` says for how many seconds nodes have been silent, by a clock that nobody sets: `app.silence` measures it where the engine
      runs. One that isn't in it has only just missed an answer. None, for who looks once: it goes by `seen_at`, and the round before must
      have been without an answer too. Whatever an agent's clock says doesn't count: `seen_at` is `now` in the round that has its answer.
    - `expected` are the nodes of the settings; one that never answered is in the fleet without slots.
    - A worker that no node reports, and whose node answers, has ended: PARKED if it is in `ended` and an image is left, out of the fleet if
      it is in `ended` and none is, LOST otherwise. `ended` are the workers whose newest operation ended them on purpose.
    - `busy` are those with an operation under way, which may be between two nodes: FROZEN where they were, until it is over.
    - A worker known from its images alone (after a restart of the engine) is taken up, PARKED or LOST, once every node has answered or is
      gone.
    - A worker that two nodes report alive is FROZEN, so that nothing is decided on it, and SH310. So it stays where these are pods of
      different namespaces (`namesakes`, of the round before) and one of those nodes is silent: what the others say isn't of its worker, and
      that none of them has it any more is no loss of it.

    `previous` is None in the first round. `breathe` is called where this can stand still for a moment.
    """
    before = previous or Fleet()
    newest = {v.node.id: v for v in sorted(views, key=lambda v: v.at)}
    notices = _notices(newest, notices_previous)
    silent_s = _silences(before.nodes, now) if silent_s is None else silent_s
    gone = _gone(newest, notices, {node for node, seconds in silent_s.items() if seconds > gone_after_s}, now - gone_after_s)
    nodes = _nodes(newest, before.nodes, expected, gone, now)
    breathe()
    looked, archived = _archived(newest, before, now, known=any(n.archive for n in nodes))
    images, problems = _images(newest, before.images, gone, archived, breathe)
    breathe()
    silent = frozenset(n.id for n in nodes if not n.reachable) - gone
    copies = _copies(newest)
    shared = _namesakes(copies, namesakes, silent)
    named = {name: away for name, nodes in shared.items() if (away := nodes & silent)}
    round_ = _Round(
        nodes_silent=silent,
        named=frozenset(named),
        images=_newest_image(images),
        ended=ended,
        busy=busy,
    )
    breathe()
    reported, twice = _reported(copies, before, named, breathe)
    breathe()
    known = {**_reported_away(newest), **{w.id: w for w in before.workers}}
    workers = {**round_.remembered(known.values(), reported, gone), **reported}
    breathe()
    workers.update(round_.imaged(workers))
    breathe()
    return Inventory(
        fleet=Fleet(nodes=nodes, workers=tuple(workers[w] for w in sorted(workers)), images=images, archive_looked=looked),
        notices=notices,
        problems=(*problems, *twice),
        gone=gone,
        namesakes=shared,
        clocks={name: told for name in sorted(newest) if (told := _clock(name, newest[name].at, now)) is not None},
    )


def _clock(node: NodeId, theirs: float, ours: float) -> Problem | None:
    if abs(theirs - ours) <= SKEW_S:
        return None
    apart = f"{Duration(round(abs(theirs - ours)))} {'behind' if theirs < ours else 'ahead of'} the engine's"
    return Problem(
        code="SH312",
        what=f"the node's clock is {apart}: {theirs:.0f} there and {ours:.0f} here, in seconds since the epoch",
        remedy="Set both clocks by NTP; until then the node's deadlines may be off by as much",
        subject=node,
    )


def _silences(previous: Iterable[Node], now: float) -> dict[NodeId, float]:
    """Of nodes that didn't answer in the round before either."""
    return {node.id: now - node.seen_at for node in previous if not node.reachable}


def _notices(newest: Mapping[NodeId, NodeView], previous: Sequence[Notice]) -> tuple[Notice, ...]:
    kept = [n for n in previous if n.node not in newest]
    told = [n for view in newest.values() for n in view.notices]
    return tuple(sorted({(n.node, n.id): n for n in (*kept, *told)}.values(), key=lambda n: (n.node, n.id)))


def _gone(newest: Mapping[NodeId, NodeView], notices: Iterable[Notice], silent: Collection[NodeId], before: float) -> frozenset[NodeId]:
    """Nodes that were to go, whose deadline is earlier than `before`, and that are silent for long: one answer missed is no death."""

    def ends(notice: Notice) -> bool:
        if notice.kind is NoticeKind.GONE:
            return True
        due = notice.kind in _TAKING and notice.deadline is not None and notice.deadline < before
        return due and notice.node in silent

    return frozenset(n.node for n in notices if n.node not in newest and ends(n))


def _nodes(
    newest: Mapping[NodeId, NodeView], previous: Iterable[Node], expected: Collection[NodeId], gone: frozenset[NodeId], now: float
) -> tuple[Node, ...]:
    known = {n.id: n for n in previous}
    nodes = {}
    for name in {*known, *newest, *expected}:
        if name in newest:
            nodes[name] = msgspec.structs.replace(newest[name].node, reachable=True, seen_at=now)
        else:
            last = known.get(name) or Node(id=name, slots=())
            nodes[name] = msgspec.structs.replace(last, reachable=False, slots=() if name in gone else last.slots)
    return tuple(nodes[name] for name in sorted(nodes))


def _archived(newest: Mapping[NodeId, NodeView], before: Fleet, now: float, *, known: bool) -> tuple[float, Mapping[ImageId, Image]]:
    """What the archive has, and when somebody looked: as who looked last saw it. What was seen before is forgotten for nothing older, nor
    while nobody that answers has looked; but once no node that is known has an archive (`known`).
    """
    seen = min(before.archive_looked, now)  # our clock may have been set back
    last = max(newest.values(), key=lambda v: v.archive_looked, default=None)
    if last is not None and last.archive_looked >= seen:
        return min(last.archive_looked, now), {i.id: i for i in last.archived}
    return (seen, {i.id: i for i in before.images if i.archived}) if known else (0.0, {})


def _images(
    newest: Mapping[NodeId, NodeView],
    previous: Iterable[Image],
    gone: frozenset[NodeId],
    archived: Mapping[ImageId, Image],
    breathe: Callable[[], None],
) -> tuple[tuple[Image, ...], list[Problem]]:
    """Images by id over their holders. Copies that claim to be the same image and aren't are left out: none of them can be trusted.

    What is known against an image stays known, whoever of its holders is left to say so.
    """
    previous = tuple(previous)
    doubts = {i.id: i.doubt for i in (*previous, *(i for view in newest.values() for i in view.images)) if i.doubt}
    held: dict[ImageId, list[tuple[NodeId, Image]]] = defaultdict(list)
    for name in sorted(newest):
        for image in newest[name].images:
            held[image.id].append((name, image))
    breathe()
    for image in previous:
        for holder in image.nodes:
            if holder not in newest and holder not in gone:
                held[image.id].append((holder, image))
    breathe()
    images, problems = [], []
    for place, image_id in enumerate(sorted({*held, *archived})):
        if place % _AT_ONCE == 0:
            breathe()
        copies, kept = held.get(image_id, []), archived.get(image_id)
        first = copies[0][1] if copies else archived[image_id]
        if len({(i.worker, i.incarnation, i.bytes) for i in (*(i for _, i in copies), *((kept,) if kept else ()))}) > 1:
            holders = ", ".join([*sorted({node for node, _ in copies}), *(["the archive"] if kept else [])])
            problems.append(
                Problem(
                    code="SH311",
                    what=f"{holders} hold different images under one id, which is left out",
                    remedy="Delete the image in all of them, and find out who made it twice",
                    subject=image_id,
                )
            )
        else:
            doubt = doubts.get(image_id, first.doubt)
            images.append(_over(first, tuple(sorted({node for node, _ in copies})), archived=kept is not None, doubt=doubt))
    return tuple(images), problems


def _over(image: Image, nodes: tuple[NodeId, ...], *, archived: bool, doubt: str) -> Image:
    """The very same where it says that already: what is made of images isn't made anew then."""
    if (image.nodes, image.archived, image.doubt) == (nodes, archived, doubt):
        return image
    return msgspec.structs.replace(image, nodes=nodes, archived=archived, doubt=doubt)


def _newest_image(images: Iterable[Image]) -> dict[WorkerId, Image]:
    return {i.worker: i for i in sorted(images, key=lambda i: (i.incarnation, i.taken_at, i.id))}


def _copies(newest: Mapping[NodeId, NodeView]) -> dict[WorkerId, list[Worker]]:
    """All that are alive by this round's views, by name."""
    copies: dict[WorkerId, list[Worker]] = defaultdict(list)
    for name in sorted(newest):
        for worker in newest[name].workers:
            if worker.state not in _AWAY:
                copies[worker.id].append(msgspec.structs.replace(worker, node=name))
    return copies


def _reported(
    copies: Mapping[WorkerId, list[Worker]],
    before: Fleet,
    named: Mapping[WorkerId, frozenset[NodeId]],
    breathe: Callable[[], None],
) -> tuple[dict[WorkerId, Worker], list[Problem]]:
    """Workers that are alive somewhere by this round's views. `named` have a namesake on a node that is silent now."""
    was = {w.id: w.node for w in before.workers}
    found, problems = {}, []
    for place, (worker_id, own) in enumerate(sorted(copies.items())):
        if place % (5 * _AT_ONCE) == 0:
            breathe()
        if len(own) == 1:
            found[worker_id] = own[0]
            if worker_id in named:
                found[worker_id] = msgspec.structs.replace(own[0], state=WorkerState.FROZEN)
                problems.append(_namesake(worker_id, own[0], named[worker_id]))
            continue
        # The source stands still and the destination is held in the middle of every move: only a copy that serves is wrong then.
        likely = max(own, key=lambda w: (w.incarnation, w.node == was.get(w.id)))
        found[worker_id] = msgspec.structs.replace(likely, state=WorkerState.FROZEN)
        serving = [w for w in own if w.state in _STANDING]
        if serving:
            problems.append(_twice(worker_id, own, certain=len(serving) > 1))
    return found, problems


def _reported_away(newest: Mapping[NodeId, NodeView]) -> dict[WorkerId, Worker]:
    """Workers of which an agent says itself that they have ended: as good as known from the round before."""
    return {w.id: msgspec.structs.replace(w, node=name) for name in sorted(newest) for w in newest[name].workers if w.state in _AWAY}


def _namesakes(
    copies: Mapping[WorkerId, list[Worker]], before: Mapping[WorkerId, frozenset[NodeId]], silent: frozenset[NodeId]
) -> dict[WorkerId, frozenset[NodeId]]:
    """Those of this round, and those of before of which it isn't certain yet that they are over: a node that is silent may have one."""
    found = {}
    for worker in {*before, *(name for name, own in copies.items() if len(own) > 1 and _strangers(own))}:
        here = {w.node for w in copies.get(worker, ()) if w.node is not None}
        away = before.get(worker, frozenset()) & silent
        if away or len(here) > 1:
            found[worker] = away | here
    return found


def _strangers(copies: Sequence[Worker]) -> bool:
    """They live in pods of different namespaces, and so aren't copies of one worker."""
    return len({w.pod.namespace for w in copies if w.pod is not None}) > 1


def _twice(worker: WorkerId, copies: Sequence[Worker], *, certain: bool) -> Problem:
    said = ", ".join(f"{w.node} ({w.state}, incarnation {w.incarnation})" for w in copies)
    pods = [w.pod for w in copies if w.pod is not None]
    if len(pods) == len(copies) and len({pod.namespace for pod in pods}) > 1:
        homes = ", ".join(f"{pod} on {w.node}" for w, pod in zip(copies, pods, strict=True))
        remedy = "Name in each agent's `[containers] namespaces` the namespace of this engine's workers alone, or give the pods other names"
        what = f"these are pods of different namespaces, whose workers have one name: {homes}; nothing is decided on it"
        return Problem(code="SH310", what=what, remedy=remedy, subject=worker)
    return Problem(
        code="SH310",
        what=f"more than one node reports the worker alive: {said}; nothing is decided on it until one does",
        remedy="If it lasts, end all copies but one by hand, on the nodes themselves",
        subject=worker,
        severity=Severity.ERROR if certain else Severity.WARNING,
    )


def _namesake(worker: WorkerId, copy: Worker, silent: Collection[NodeId]) -> Problem:
    away, here = ", ".join(sorted(silent)), f"{copy.pod} on {copy.node}" if copy.pod is not None else str(copy.node)
    return Problem(
        code="SH310",
        what=f"{away} doesn't answer, where a pod of another namespace had a worker of its name, which is that of {here}; "
        "nothing is decided on it until it does, or is gone",
        remedy="Name in each agent's `[containers] namespaces` the namespace of this engine's workers alone, or give the pods other names",
        subject=worker,
        severity=Severity.WARNING,
    )


class _Round(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of workers that nobody reports."""

    nodes_silent: frozenset[NodeId]
    """Without an answer, and not gone."""
    named: frozenset[WorkerId]
    """Of workers of different namespaces, one of whose nodes is among those."""
    images: dict[WorkerId, Image]
    ended: frozenset[WorkerId]
    busy: frozenset[WorkerId]

    def remembered(self, previous: Iterable[Worker], reported: Collection[WorkerId], gone: frozenset[NodeId]) -> dict[WorkerId, Worker]:
        """Those of the round before."""
        kept = {}
        for worker in previous:
            if worker.id in reported:
                continue
            now = self._now(worker, gone)
            if now is not None:
                kept[worker.id] = now
        return kept

    def _now(self, worker: Worker, gone: frozenset[NodeId]) -> Worker | None:
        if worker.id in self.busy and worker.node not in gone:
            return worker if worker.state in _AWAY else msgspec.structs.replace(worker, state=WorkerState.FROZEN)
        if worker.id in self.ended or worker.state is WorkerState.PARKED:
            return self._put_away(worker)
        if worker.node in self.nodes_silent:
            return worker
        if worker.id in self.named and worker.state not in _AWAY:
            return msgspec.structs.replace(worker, state=WorkerState.FROZEN)
        return msgspec.structs.replace(worker, state=WorkerState.LOST, node=None, slot=None)

    def _put_away(self, worker: Worker) -> Worker | None:
        """Ended on purpose. Without an image there is nothing that could come back, and so nothing to know; but one that was parked, and
        whose images are gone, is a loss.
        """
        if worker.id in self.images:
            return msgspec.structs.replace(worker, state=WorkerState.PARKED, node=None, slot=None)
        return msgspec.structs.replace(worker, state=WorkerState.LOST, node=None, slot=None) if worker.state in _AWAY else None

    def imaged(self, known: Collection[WorkerId]) -> dict[WorkerId, Worker]:
        """Workers of which only images are known. While a node is silent one of them may be alive there."""
        if self.nodes_silent:
            return {}
        return {
            name: Worker(
                id=name,
                role=image.role,
                graph=image.graph,
                engine=image.engine,
                state=WorkerState.PARKED if name in self.ended else WorkerState.LOST,
                node=None,
                slot=None,
                incarnation=image.incarnation,
            )
            for name, image in self.images.items()
            if name not in known and name not in self.busy
        }
