"""What operations keep alive: sessions and tokens of context of the workers that move, park or come back, as far as metrics tell."""

from collections.abc import Iterable
from typing import Final

import msgspec

from shunter.model.ids import WorkerId
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.sample import Known
from shunter.model.snapshot import Snapshot

_CARRIES: Final = (OperationKind.MOVE, OperationKind.PARK)


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over `workers` decode workers; `unknown` of them have no value for one of the two, and count as nothing in it."""

    workers: int = 0
    sessions: float = 0.0
    tokens: float = 0.0
    unknown: int = 0


def kept(operations: Iterable[PlannedOperation], snapshot: Snapshot) -> Kept:
    """What these operations keep that stopping their workers would lose. A worker counts once."""
    roles = {w.id: w.role for w in snapshot.fleet.workers}
    carried = {o.worker for o in operations if o.kind in _CARRIES and roles.get(o.worker) == "decode"}
    sessions = [_value(snapshot, worker, "sessions") for worker in sorted(carried)]
    tokens = [_value(snapshot, worker, "kvTokens") for worker in sorted(carried)]
    return Kept(
        workers=len(carried),
        sessions=sum(v for v in sessions if v is not None),
        tokens=sum(v for v in tokens if v is not None),
        unknown=sum(s is None or t is None for s, t in zip(sessions, tokens, strict=True)),
    )


def _value(snapshot: Snapshot, worker: WorkerId, field: str) -> float | None:
    found = snapshot.samples.workers.get(worker, {}).get(field)
    return found.value if isinstance(found, Known) else None
