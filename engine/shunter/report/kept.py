"""What operations keep alive: sessions and tokens of context of the workers that move, park or come back, as far as metrics tell, and what
it would take to compute that context again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from shunter.model.context import in_early_tokens
from shunter.model.ids import WorkerId
from shunter.model.plan import OperationKind, PlannedOperation
from shunter.model.sample import Known
from shunter.model.snapshot import Slot, Snapshot
from shunter.report.words import count

_CARRIES: Final = (OperationKind.MOVE, OperationKind.PARK)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How fast workers on a GPU model compute context again: `tokens_per_s`, of a whole worker or (`per_gpu`) of each of its GPUs; `basis`
    says whose figure that is. `doubling`: tokens of a context at which one takes twice as long (see `model.context`); None: all count
    alike.
    """

    tokens_per_s: float
    per_gpu: bool
    basis: str
    doubling: float | None = None

    def gpu_seconds(self, tokens: float, sessions: float | None, gpus: int) -> float:
        """GPUs x tokens / rate, for a worker with that many GPUs; tokens late in a context count for what they cost."""
        return in_early_tokens(tokens, sessions, self.doubling) / self.tokens_per_s * (1 if self.per_gpu else gpus)

    def __str__(self) -> str:
        late = f", half as many {self.doubling:,.0f} tokens into a context" if self.doubling else ""
        return f"{self.tokens_per_s:,.0f} tokens a second and {'GPU' if self.per_gpu else 'worker'}{late}, {self.basis}"


class Kept(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Sums over `workers` decode workers; `unknown` of them have no value for one of the two, and count as nothing in it.

    `gpu_seconds` is what it would take to compute the tokens again, None where no worker has GPUs whose rate is known; `rates` says by what
    figures, in words.
    """

    workers: int = 0
    sessions: float = 0.0
    tokens: float = 0.0
    unknown: int = 0
    gpu_seconds: float | None = None
    rates: tuple[str, ...] = ()


def kept(operations: Iterable[PlannedOperation], snapshot: Snapshot, again: Mapping[str, Rate] | None = None) -> Kept:
    """What these operations keep that stopping their workers would lose. A worker counts once. `again` is by GPU model."""
    workers = {w.id: w for w in snapshot.fleet.workers}
    carried = sorted({o.worker for o in operations if o.kind in _CARRIES and o.worker in workers and workers[o.worker].role == "decode"})
    slots = {slot.id: slot for node in snapshot.fleet.nodes for slot in node.slots}
    sessions, tokens, unknown, spent = 0.0, 0.0, 0, 0.0
    used: dict[str, None] = {}
    for worker in carried:
        its, held = _value(snapshot, worker, "sessions"), _value(snapshot, worker, "kvTokens")
        sessions, tokens, unknown = sessions + (its or 0.0), tokens + (held or 0.0), unknown + (its is None or held is None)
        slot: Slot | None = slots.get(at) if (at := workers[worker].slot) else None
        rate = (again or {}).get(slot.gpu_model) if slot is not None and slot.gpus else None
        if slot is not None and rate is not None and held is not None:
            spent += rate.gpu_seconds(held, its, slot.gpus)
            used[str(rate)] = None
    return Kept(
        workers=len(carried),
        sessions=sessions,
        tokens=tokens,
        unknown=unknown,
        gpu_seconds=spent if used else None,
        rates=tuple(used),
    )


def kept_line(found: Kept) -> str:
    """In a sentence; empty where no decode worker is carried."""
    if not found.workers:
        return ""
    if found.unknown == found.workers and not found.sessions and not found.tokens:
        who = "1 decode worker stays" if found.workers == 1 else f"{found.workers:,} decode workers stay"
        return f"{who} alive, and all the context there; how much that is isn't known."
    unknown = f", as far as it is known: {found.unknown:,} of them can't be told" if found.unknown else ""
    what = f"{count(round(found.sessions), 'session')} with {count(round(found.tokens), 'token')} of context"
    told = f"{what} on {count(found.workers, 'decode worker')} stay alive{unknown}."
    if found.gpu_seconds is None:
        return told
    return f"{told} Computing that context again would take {found.gpu_seconds:,.3g} GPU-seconds ({'; '.join(found.rates)})."


def _value(snapshot: Snapshot, worker: WorkerId, field: str) -> float | None:
    found = snapshot.samples.workers.get(worker, {}).get(field)
    return found.value if isinstance(found, Known) else None
