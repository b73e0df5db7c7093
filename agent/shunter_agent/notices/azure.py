"""Azure Scheduled Events: for Spot evictions up to 30 seconds ahead and often less than 10, for the rest minutes.

The list is of all machines of a placement group, so it is filtered by this machine's name. An event can be let go ahead early, by
acknowledging it; that lets it go ahead for *all* the machines that it names, so only an event about this machine alone is acknowledged, and
only once no worker is left on it, nor an image that may be all that is left of one.
"""

import json
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from shunter.model.errors import Problem, Retry
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.metadata import Metadata, Reply
from shunter_agent.notices.port import Notice
from shunter_agent.notices.times import instant
from shunter_agent.notices.watching import Look

URL: Final = "http://169.254.169.254"
EVERY_S: Final = 1.0
"""Seconds between looks, as Azure advises."""
FIRST_S: Final = 125.0
"""The first answer for a machine takes up to two minutes: the service is switched on by it."""
_EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
_NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_HEADERS: Final = {"Metadata": "true"}
_KINDS: Final = {
    "Preempt": NoticeKind.PREEMPTION,
    "Terminate": NoticeKind.DRAIN,
    "Reboot": NoticeKind.MAINTENANCE,
    "Redeploy": NoticeKind.MAINTENANCE,
}
"""`Freeze` isn't among them: the machine stands still for seconds and goes on with its memory."""


class _Event(msgspec.Struct, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str = "Scheduled"
    resources: list[str] = []
    not_before: str = ""
    description: str = ""


class _Events(msgspec.Struct, rename="pascal"):
    document_incarnation: int
    events: list[_Event] = []


def looks(service: Metadata, *, empty: Callable[[], bool], acknowledge: bool = False) -> tuple[Look, ...]:
    """What to ask Azure. `empty` says whether the node has nothing left to lose; only with `acknowledge` events are let go ahead then."""
    made = _Azure(service, empty, acknowledge)
    return (Look(name="azure", ask=made.ask, every=EVERY_S, patience=FIRST_S + 10.0, problems=made.problems),)


class _Azure:
    def __init__(self, service: Metadata, empty: Callable[[], bool], acknowledge: bool) -> None:
        self._service, self._empty, self._acknowledge = service, empty, acknowledge
        self._machine = ""
        self._answered = False
        self._deadlines: dict[str, float] = {}
        self._begun: set[str] = set()
        """Events of which this agent never heard a time."""
        self._acknowledged: set[str] = set()
        self._refused: Problem | None = None

    def ask(self) -> Mapping[str, Notice]:
        machine = self._machine or self._name()
        reply = self._service.get(_EVENTS, _HEADERS, timeout_s=None if self._answered else FIRST_S)
        if reply.status != 200:
            raise self._service.unreadable(_EVENTS, reply, "it should be 200")
        try:
            said = msgspec.json.decode(reply.text, type=_Events)
            own = [e for e in said.events if machine in e.resources and e.event_type in _KINDS]
            found = {e.event_id: self._notice(e, reply) for e in own}
        except ValueError as error:
            raise self._service.unreadable(_EVENTS, reply, str(error)) from error
        self._answered = True
        self._deadlines = {key: at for key, at in self._deadlines.items() if key in found}
        self._acknowledged &= found.keys()
        self._begun &= found.keys()
        if self._acknowledge and own and self._empty():
            self._try([e for e in own if e.resources == [machine] and e.event_status == "Scheduled"])
        return found

    def problems(self) -> tuple[Problem, ...]:
        """That the last acknowledgement wasn't taken: no notice is missed for that."""
        return () if self._refused is None else (self._refused,)

    def _try(self, events: list[_Event]) -> None:
        try:
            self._let_go(events)
        except Retry as error:
            self._refused = error.problem
        else:
            self._refused = None

    def _name(self) -> str:
        reply = self._service.get(_NAME, _HEADERS)
        if reply.status != 200 or not reply.text.strip():
            raise self._service.unreadable(_NAME, reply, "the machine's name is needed to know its events")
        self._machine = reply.text.strip()
        return self._machine

    def _notice(self, event: _Event, reply: Reply) -> Notice:
        """Once it has started, an event has no time any more: what was told before still counts, else it is now."""
        now = self._service.clock()
        at = instant(event.not_before) - reply.ahead if event.not_before else self._deadlines.get(event.event_id, now)
        if event.not_before:
            self._begun.discard(event.event_id)
        elif event.event_id not in self._deadlines:
            self._begun.add(event.event_id)
        self._deadlines[event.event_id], begun = at, event.event_id in self._begun
        detail = f"{event.event_type}, {event.event_status.lower()}{f': {event.description}' if event.description else ''}"
        kind = _KINDS[event.event_type].value
        return Notice(id=event.event_id, kind=kind, seen_at=now, deadline=at, source="azure", detail=detail, counted=begun)

    def _let_go(self, events: list[_Event]) -> None:
        keys = [e.event_id for e in events if e.event_id not in self._acknowledged]
        if not keys:
            return
        body = json.dumps({"StartRequests": [{"EventId": key} for key in keys]}).encode()
        reply = self._service.ask("POST", _EVENTS, {**_HEADERS, "Content-Type": "application/json"}, body=body)
        if reply.status != 200:
            raise self._service.unreadable(_EVENTS, reply, "the acknowledgement wasn't taken")
        self._acknowledged.update(keys)
