"""What `kubectl describe` shows below a Node, a worker's pod and an operation: Events of what began there and how it ended.

They are for people, beside everything else: one that can't be written is dropped, and nothing waits for it. A Node is the one of the name
that the agent has in the settings; an Event on another's is seen by nobody. What happens to the same worker there again counts up the Event
that tells of it.
"""

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Final

from shunter.cluster.api import Absent, Api, Conflict, Object
from shunter.cluster.operation import KIND, stamp
from shunter.model.errors import Problem, ShunterError
from shunter.model.ids import node_of
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.policy import API_VERSION

NODES: Final = "default"
"""The namespace of Events about what is in none."""
_WAITING: Final = 1000
_REMEMBERED: Final = 2000
_LONGEST: Final = 1000
_ENDED: Final = {
    Status.SUCCEEDED: ("Succeeded", "Normal"),
    Status.ROLLED_BACK: ("RolledBack", "Warning"),
    Status.FAILED: ("Failed", "Warning"),
    Status.SUPERSEDED: ("Superseded", "Normal"),
}
_ROUTINE: Final = (OperationKind.CHECKPOINT, OperationKind.DISCARD)


class Events:
    """Writes what is offered, one after the other, in the event loop in which `run` runs."""

    def __init__(self, api: Api, namespace: str) -> None:
        """`namespace`: of the operations."""
        self._api, self._namespace = api, namespace
        self._queue: deque[tuple[str, Object]] = deque(maxlen=_WAITING)
        self._said: OrderedDict[tuple[str, ...], tuple[str, int]] = OrderedDict()
        """By what an Event is about: its name, and how often it was said."""
        self._news = asyncio.Event()
        self.problem: Problem | None = None
        """Why the last one couldn't be written; None: it was."""

    def offer(self, record: OperationRecord, uid: str) -> None:
        """An operation, with its resource's uid, that has just begun or ended; any other is passed over."""
        self._queue.extend((record.planned.worker, one) for one in events(record, uid, self._namespace))
        self._news.set()

    async def run(self) -> None:
        """Until cancelled. Never raises by itself."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                try:
                    await self._say(*self._queue.popleft())
                except ShunterError as error:
                    self.problem = error.problem
                else:
                    self.problem = None

    async def _say(self, worker: str, one: Object) -> None:
        """Once; of the same worker in the same place again, as the same again."""
        meta, about = one["metadata"], one["involvedObject"]
        where = f"/api/v1/namespaces/{meta['namespace']}/events"
        key = (about["kind"], about.get("namespace", ""), about["name"], about["uid"], one["reason"], worker)
        name, count = self._said.get(key, ("", 0))
        if name and await self._again(f"{where}/{name}", one, count + 1):
            self._said[key] = name, count + 1
            return
        with contextlib.suppress(Conflict):  # it was said before, by the leader before this one
            await self._api.create(where, one)
        self._said[key] = meta["name"], 1
        while len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)

    async def _again(self, path: str, one: Object, count: int) -> bool:
        """False: it isn't there any more, or is about the very same, so that there is nothing to count."""
        if path.endswith("/" + one["metadata"]["name"]):
            return False
        try:
            await self._api.merge(path, {"count": count, "lastTimestamp": one["lastTimestamp"], "message": one["message"]})
        except Absent:
            return False
        return True


def events(record: OperationRecord, uid: str, namespace: str) -> Iterator[Object]:
    """On the operation itself, and on the Nodes and pods that it is about. Routine is told of there only when it goes wrong."""
    said = _said(record)
    if said is None:
        return
    what, kind, at = said
    reason = record.planned.kind.value.capitalize() + what
    planned = record.planned
    places = " ".join(f"{word} {slot}" for word, slot in (("from", planned.from_slot), ("to", planned.to_slot)) if slot)
    why = record.outcome.reason if record.outcome is not None and record.outcome.reason else planned.reason
    message = " ".join(filter(None, (f"{planned.kind.value} of {planned.worker}", places))) + f": {why}"
    itself = {"apiVersion": API_VERSION, "kind": KIND, "namespace": namespace, "name": record.id, "uid": uid}
    yield _event(f"{record.id}.{what.lower()}", namespace, itself, reason, kind, message, at)
    if planned.kind in _ROUTINE and kind == "Normal":
        return
    for node in dict.fromkeys(node_of(slot) for slot in (planned.from_slot or planned.expect.at, planned.to_slot) if slot):
        about = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
        yield _event(f"{record.id}.{what.lower()}.{node}", NODES, about, reason, kind, f"{message} ({record.id})", at)
    for pod in filter(None, (record.left, record.pod)):
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        yield _event(f"{record.id}.{what.lower()}.{pod.name}", pod.namespace, about, reason, kind, f"{message} ({record.id})", at)


def _said(record: OperationRecord) -> tuple[str, str, float] | None:
    """In a word what happened, how serious it is, and when."""
    if record.outcome is not None:
        found = _ENDED.get(record.outcome.status)
        return (*found, record.outcome.at) if found is not None else None
    if record.step is Step.INTENDED and not record.waits and (record.problem or record.cancelled or record.outstanding) is None:
        return "Begun", "Normal", record.created_at
    return None


def _event(name: str, namespace: str, about: Object, reason: str, kind: str, message: str, at: float) -> Object:
    when = stamp(at)[:19] + "Z"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name[:253], "namespace": namespace},
        "involvedObject": about,
        "reason": reason,
        "message": message[:_LONGEST],
        "type": kind,
        "source": {"component": "shunter-engine"},
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }
