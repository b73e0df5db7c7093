"""Google Cloud: the metadata server, with its waiting requests.

`preempted` turns TRUE when a Spot VM is going, 30 seconds before the end, of which 2 to 10 are lost before anybody can see it; some VMs
have 120. `maintenance-event` tells that the host goes down, a minute ahead. `upcoming-maintenance` is planned work with GPUs attached.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.metadata import Metadata, Reply
from shunter_agent.notices.port import Notice
from shunter_agent.notices.times import instant
from shunter_agent.notices.watching import Look

URL: Final = "http://169.254.169.254"
LEAD_S: Final = 20.0
"""Seconds from seeing `preempted` to the end: 30 promised, less what is lost before it can be seen."""
HOST_LEAD_S: Final = 60.0
"""Seconds from a change of `maintenance-event` to the event. VMs with GPUs are said to have an hour: whoever has seen that can set it."""
WAIT_S: Final = 10.0
"""Seconds that the server keeps a waiting request. A change is answered at once, whatever this is."""
_LATE_S: Final = 5.0
"""How much longer its answer may take than it was asked to wait."""
_BASE: Final = "/computeMetadata/v1/instance/"
_UPCOMING: Final = "upcoming-maintenance?alt=json"
_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_PAUSE_S: Final = 0.2
"""Between two waiting requests; it is what keeps a server that answers at once, out of order, from being asked in a hot loop."""
_UNHURRIED_S: Final = 5.0
"""The same for planned work: where there is none the server doesn't wait, and days of warning need no hurry."""


class _Upcoming(msgspec.Struct):
    """Both spellings of the server are read."""

    window_start_time: str = ""
    windowStartTime: str = ""
    type: str = ""
    maintenance_status: str = ""
    maintenanceStatus: str = ""


def looks(service: Callable[[], Metadata], *, lead_s: float = LEAD_S, host_lead_s: float = HOST_LEAD_S) -> tuple[Look, ...]:
    """What to ask Google. `service` makes a client for each look, since they wait at the same time; `lead_s` (from `preempted`) and
    `host_lead_s` (from `maintenance-event`) as the VM has them.
    """
    paths: tuple[tuple[str, float, Callable[[_Gcp, Reply], list[Notice]]], ...] = (
        ("preempted", _PAUSE_S, _Gcp.preempted),
        ("maintenance-event", _PAUSE_S, _Gcp.host),
        (_UPCOMING, _UNHURRIED_S, _Gcp.upcoming),
    )
    return tuple(
        Look(name=f"gcp {path.partition('?')[0]}", ask=_Gcp(service(), path, read, lead_s, host_lead_s).ask, every=pause)
        for path, pause, read in paths
    )


class _Gcp:
    """One waiting path. What it says first is answered at once, since no `last_etag` is known yet."""

    def __init__(
        self, service: Metadata, path: str, read: "Callable[[_Gcp, Reply], list[Notice]]", lead_s: float, host_lead_s: float
    ) -> None:
        self._service, self._path, self._read, self._lead_s, self._host_lead_s = service, path, read, lead_s, host_lead_s
        self._etag = ""
        self._open: dict[str, Notice] = {}

    def ask(self) -> Mapping[str, Notice]:
        join = "&" if "?" in self._path else "?"
        wait = f"{join}wait_for_change=true&timeout_sec={WAIT_S:.0f}" + (f"&last_etag={self._etag}" if self._etag else "&last_etag=0")
        path = _BASE + self._path
        reply = self._service.get(path + wait, _FLAVOR, timeout_s=WAIT_S + _LATE_S)
        if reply.headers.get("Metadata-Flavor") != "Google":
            raise self._service.unreadable(path, reply, "it isn't from a Google metadata server")
        if reply.status == 404 and self._path == _UPCOMING:  # no planned work; the server waits for none, so the pause must be ours
            self._open = {}
        elif reply.status != 200:
            raise self._service.unreadable(path, reply, "it should be 200")
        else:
            self._note(path, reply)
        self._etag = reply.headers.get("ETag", "")
        return self._open

    def _note(self, path: str, reply: Reply) -> None:
        try:
            found = self._read(self, reply)
        except ValueError as error:
            raise self._service.unreadable(path, reply, str(error)) from error
        # a deadline counted from when it was seen must not move with each answer
        self._open = {n.id: self._open.get(n.id, n) for n in found}

    def preempted(self, reply: Reply) -> list[Notice]:
        match reply.text.strip():
            case "TRUE":
                now = self._service.clock()
                return [self._notice("gcp-preempted", NoticeKind.PREEMPTION, now + self._lead_s, "the Spot VM is preempted", counted=True)]
            case "FALSE":
                return []
        raise ValueError("neither TRUE nor FALSE")

    def host(self, reply: Reply) -> list[Notice]:
        match reply.text.strip():
            case "NONE":
                return []
            case "TERMINATE_ON_HOST_MAINTENANCE":
                now = self._service.clock()
                says = "the VM stops for host maintenance"
                return [self._notice("gcp-host-maintenance", NoticeKind.MAINTENANCE, now + self._host_lead_s, says, counted=True)]
            case text if text.startswith("MIGRATE"):  # the VM lives on elsewhere, with its memory: nothing to save
                return []
        raise ValueError("an event that isn't known")

    def upcoming(self, reply: Reply) -> list[Notice]:
        said = msgspec.json.decode(reply.text or "{}", type=_Upcoming)
        begins = said.window_start_time or said.windowStartTime
        if not begins:
            return []
        at = instant(begins)
        detail = f"planned {said.type.lower() or 'maintenance'}, {(said.maintenance_status or said.maintenanceStatus).lower()}".rstrip(", ")
        return [self._notice(f"gcp-upcoming-{at:.0f}", NoticeKind.MAINTENANCE, at - reply.ahead, detail)]

    def _notice(self, key: str, kind: NoticeKind, deadline: float, detail: str, *, counted: bool = False) -> Notice:
        now = self._service.clock()
        return Notice(id=key, kind=kind.value, seen_at=now, deadline=deadline, source="gcp", detail=detail, counted=counted)
