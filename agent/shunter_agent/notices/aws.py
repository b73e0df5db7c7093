"""AWS: the instance metadata service, version 2.

Spot interruptions (two minutes ahead, best effort; a hibernation begins at once), rebalance recommendations (a hint without a deadline),
scheduled maintenance, and the lifecycle state that an Auto Scaling group wants. AWS asks for a look every five seconds; a path is a 404
until there is something to say.
"""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.metadata import Metadata, Reply
from shunter_agent.notices.port import Notice
from shunter_agent.notices.times import instant
from shunter_agent.notices.watching import Look

URL: Final = "http://169.254.169.254"
EVERY_S: Final = 2.0
"""Seconds between looks: four small requests that never leave the host. AWS asks for one look in five seconds at least."""
_TOKEN: Final = "X-aws-ec2-metadata-token"  # noqa: S105  (a header's name)
_TTL_S: Final = 21_600
_SPOT: Final = "/latest/meta-data/spot/instance-action"
_REBALANCE: Final = "/latest/meta-data/events/recommendations/rebalance"
_MAINTENANCE: Final = "/latest/meta-data/events/maintenance/scheduled"
_LIFECYCLE: Final = "/latest/meta-data/autoscaling/target-lifecycle-state"


class _Action(msgspec.Struct):
    action: str
    time: str


class _Rebalance(msgspec.Struct):
    noticeTime: str


class _Event(msgspec.Struct, rename="pascal"):
    event_id: str = msgspec.field(name="EventId")
    code: str
    not_before: str
    state: str = "active"
    description: str = ""


def looks(service: Metadata) -> tuple[Look, ...]:
    """What to ask AWS."""
    aws = _Aws(service)
    paths: tuple[tuple[str, str, Callable[[Reply], list[Notice]]], ...] = (
        ("aws spot", _SPOT, aws.spot),
        ("aws rebalance", _REBALANCE, aws.rebalance),
        ("aws maintenance", _MAINTENANCE, aws.maintenance),
        ("aws lifecycle", _LIFECYCLE, aws.lifecycle),
    )
    return tuple(Look(name=name, ask=partial(aws.ask, path, read), every=EVERY_S) for name, path, read in paths)


class _Aws:
    """One service and its token. Each path is asked for by itself: one that is broken hides nothing of the others."""

    def __init__(self, service: Metadata) -> None:
        self._service = service
        self._turn = threading.Lock()
        self._token = ""
        self._renew_at = 0.0
        self._hibernates: dict[str, float] = {}
        """When each hibernation was first seen."""

    def ask(self, path: str, read: Callable[[Reply], list[Notice]]) -> Mapping[str, Notice]:
        """Ask for one path."""
        with self._turn:
            reply = self._get(path)
        if reply.status == 404:
            return {}
        if reply.status != 200:
            raise self._service.unreadable(path, reply, "it should be 200, or 404 while there is nothing to say")
        try:
            return {notice.id: notice for notice in read(reply)}
        except ValueError as error:  # msgspec's errors and those of times are ValueErrors
            raise self._service.unreadable(path, reply, str(error)) from error

    def _get(self, path: str) -> Reply:
        reply = self._service.get(path, {_TOKEN: self._current_token()})
        if reply.status == 401:  # it expired, or the service was restarted
            self._token = ""
            reply = self._service.get(path, {_TOKEN: self._current_token()})
        return reply

    def _current_token(self) -> str:
        now = self._service.clock()
        if not self._token or now >= self._renew_at:
            path = "/latest/api/token"
            reply = self._service.ask("PUT", path, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TTL_S)})
            if reply.status != 200 or not reply.text.strip():
                raise self._service.unreadable(
                    path, reply, "no token, as in a container where the hop limit of the instance's metadata is 1"
                )
            self._token, self._renew_at = reply.text.strip(), now + _TTL_S / 2
        return self._token

    def spot(self, reply: Reply) -> list[Notice]:
        said = msgspec.json.decode(reply.text, type=_Action)
        at = instant(said.time)
        ends = at - reply.ahead
        begun = said.action == "hibernate"  # it has begun when it is said, whatever time is given
        if begun:
            ends = min(ends, self._hibernates.setdefault(said.time, self._service.clock()))
        detail = f"spot: {said.action} at {said.time}"
        return [self._notice(f"aws-spot-{at:.0f}", NoticeKind.PREEMPTION, ends, detail, counted=begun)]

    def rebalance(self, reply: Reply) -> list[Notice]:
        at = instant(msgspec.json.decode(reply.text, type=_Rebalance).noticeTime)
        return [self._notice(f"aws-rebalance-{at:.0f}", NoticeKind.REBALANCE, None, "the chance of a spot interruption has risen")]

    def maintenance(self, reply: Reply) -> list[Notice]:
        events = msgspec.json.decode(reply.text, type=list[_Event])
        return [
            self._notice(e.event_id, NoticeKind.MAINTENANCE, instant(e.not_before) - reply.ahead, f"{e.code}: {e.description}".rstrip(": "))
            for e in events
            if e.state == "active"
        ]

    def lifecycle(self, reply: Reply) -> list[Notice]:
        if reply.text.strip() != "Terminated":
            return []
        return [self._notice("aws-asg-termination", NoticeKind.DRAIN, None, "the Auto Scaling group takes the instance out")]

    def _notice(self, key: str, kind: NoticeKind, deadline: float | None, detail: str, *, counted: bool = False) -> Notice:
        now, counted = self._service.clock(), counted or deadline is None
        return Notice(id=key, kind=kind.value, seen_at=now, deadline=deadline, source="aws", detail=detail, counted=counted)
