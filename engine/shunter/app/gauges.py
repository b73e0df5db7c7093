"""What the engine sees, as metrics: agents, sources of notices, workers, notices, operations under way, and its certificates' ends."""

import math
from collections import Counter as Count
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Gauge

from shunter.model.finding import Lane
from shunter.model.ids import NodeId
from shunter.model.operation import OperationRecord
from shunter.model.snapshot import Fleet, Notice, NoticeKind, Role, WorkerState

_ROLES: Final = get_args(Role)
_LANES: Final = get_args(Lane)
_LEFT: Final = "left"
"""Lost, and for Kubernetes to bring back or not: nothing that anybody here could do is missing."""

FOR_PEOPLE: Final = frozenset({"SH647", "SH650", "SH658"})
"""What sources of notices find besides notices, and hear all the same: a process that is suspect, a cordon or taint that stays, a pod that
won't be drained."""


class FleetGauges:
    """The fleet as it was last looked at. Nothing of it is there before the first look."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._up = Gauge("shunter_agent_up", "1: the node's agent answered at the last look", ["node"], registry=registry)
        self._blind = Gauge(
            "shunter_notice_source_blind",
            "1: the node's agent can't hear of some notices, so that one may be missed",
            ["node"],
            registry=registry,
        )
        self._wants = Gauge(
            "shunter_node_wants_person",
            "1: what the node's agent has heard is for a person: a cordon, a pod or a process that nothing looks after",
            ["node"],
            registry=registry,
        )
        self._workers = Gauge("shunter_workers", "Workers of the fleet", ["role", "state"], registry=registry)
        self._unimaged = Gauge(
            "shunter_workers_without_image",
            "Workers that run and have no image anywhere: lost if their node is",
            ["role"],
            registry=registry,
        )
        self._notices = Gauge("shunter_notices_open", "Notices that are open", ["kind"], registry=registry)
        self._active = Gauge("shunter_operations_active", "Operations begun and not ended", ["lane"], registry=registry)
        self._oldest = Gauge(
            "shunter_operation_oldest_seconds",
            "Time since the oldest operation under way was begun; 0: there is none",
            ["lane"],
            registry=registry,
        )
        self._unknown = Gauge(
            "shunter_operations_unknown",
            "Operations of which an agent's answer is outstanding, so that nothing more is ordered for them",
            ["lane"],
            registry=registry,
        )
        self._unknown_oldest = Gauge(
            "shunter_operation_unknown_oldest_seconds",
            "Time for which the oldest of those has been outstanding; 0: there is none",
            ["lane"],
            registry=registry,
        )
        self._said: dict[tuple[str, NodeId], bool] = {}

    def show(
        self,
        fleet: Fleet,
        notices: Iterable[Notice],
        active: Iterable[OperationRecord],
        nodes: Iterable[NodeId],
        unreachable: Collection[NodeId],
        now: float,
    ) -> None:
        """Set all of them. `nodes` are those with an agent, `unreachable` those of which it didn't answer."""
        self._each("up", self._up, {node: node not in unreachable for node in nodes})
        self._each("blind", self._blind, {n.id: any(p.code not in FOR_PEOPLE for p in n.problems) for n in fleet.nodes})
        self._each("wants", self._wants, {n.id: any(p.code in FOR_PEOPLE for p in n.problems) for n in fleet.nodes})
        self._count_workers(fleet)
        kinds = Count(notice.kind for notice in notices)
        for kind in NoticeKind:
            self._notices.labels(kind.value).set(kinds[kind])
        self._count_operations(active, now)

    def _each(self, what: str, gauge: Gauge, now: Mapping[NodeId, bool]) -> None:
        """Set what changed, and take away nodes that are gone."""
        for node, value in now.items():
            if self._said.get((what, node)) is not value:
                gauge.labels(node).set(value)
                self._said[what, node] = value
        for one in [one for one in self._said if one[0] == what and one[1] not in now]:
            gauge.remove(one[1])
            del self._said[one]

    def _count_workers(self, fleet: Fleet) -> None:
        counted = Count((w.role, _LEFT if w.pinned and w.state is WorkerState.LOST else w.state) for w in fleet.workers)
        imaged = {image.worker for image in fleet.images if not image.doubt}
        bare = Count(w.role for w in fleet.workers if w.state is WorkerState.RUNNING and w.id not in imaged)
        for role in _ROLES:
            self._unimaged.labels(role).set(bare[role])
            for state in (*WorkerState, _LEFT):
                self._workers.labels(role, str(state)).set(counted[role, state])

    def _count_operations(self, active: Iterable[OperationRecord], now: float) -> None:
        begun: dict[str, list[float]] = {lane: [] for lane in _LANES}
        unknown: dict[str, list[float]] = {lane: [] for lane in _LANES}
        for record in active:
            if not record.waits:
                begun[record.planned.lane].append(record.created_at)
            if record.outstanding is not None:
                unknown[record.planned.lane].append(record.outstanding.since)
        for number, oldest, since in ((self._active, self._oldest, begun), (self._unknown, self._unknown_oldest, unknown)):
            for lane, times in since.items():
                number.labels(lane).set(len(times))
                oldest.labels(lane).set(max(0.0, now - min(times)) if times else 0.0)


class CertificateGauges:
    """When the engine's certificates end, read at each scrape: a file may be replaced at any time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ends = Gauge(
            "shunter_certificate_ends_timestamp_seconds",
            "When the engine's own certificate or its CA's ends; NaN: the file can't be read",
            ["of"],
            registry=registry,
        )

    def watch(self, files: Mapping[str, Path]) -> None:
        """Show these, by what they are."""
        for name, path in files.items():
            self._ends.labels(name).set_function(partial(ends_at, path))


def ends_at(path: Path) -> float:
    """When the first certificate in a PEM file ends, in seconds since the epoch; NaN when there is none that can be read."""
    from cryptography import x509

    try:
        return min(one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(path.read_bytes()))
    except (OSError, ValueError):
        return math.nan
