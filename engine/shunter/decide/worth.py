"""Whether a voluntary move is worth it: what its sessions wait for, against what they would if the worker were started anew instead.

Four things could be done instead of a move, and each is priced here with what profiles say of it:

- a cold start elsewhere: `nativeStart`, and then the sessions' context is computed again, at `prefillRate`;
- a start with weights and compiled artifacts from a peer: also `nativeStart`, which is what a start takes here, by whatever way;
- a cold start beside a KV store that has the context: `nativeStart` alone, the least that any of them can take;
- a flip of the role in place: no agent reports an engine that can.

The same sessions wait in each case, so it is the times that are compared. A move that is quicker than the least of them is worth it, and
one that is slower than the most isn't. In between it depends on what the store holds, which isn't known here: then it may be done.
"""

import msgspec

from shunter.decide.deciding import Deciding
from shunter.model.finding import Evidence, Input
from shunter.model.plan import Estimate
from shunter.model.sample import Known
from shunter.model.snapshot import Worker

_GATE = "cost"


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """`refusal` is why the move isn't worth it; None when it is, or when that can't be said. `estimate` has what it was weighed against."""

    refusal: str | None
    estimate: Estimate
    evidence: Evidence


def weigh_move(d: Deciding, worker: Worker, estimate: Estimate) -> Worth:
    """Weigh a move with this estimate."""
    figures = d.figures(worker)
    given = d.world.snapshot.samples.workers.get(worker.id, {})
    inputs = tuple(Input(name=f"worker.{n}", sample=s) for n in ("kvTokens", "sessions") if (s := given.get(n)) is not None)
    if figures.native_start is None or estimate.stopped is None:
        lacking = "no profile says what a native start takes" if figures.native_start is None else "how long a move takes isn't known"
        return Worth(refusal=None, estimate=estimate, evidence=Evidence(gate=_GATE, result=None, detail=lacking, inputs=inputs))
    tokens = given.get("kvTokens")
    least, most, told = figures.native_start, None, f"a native start {figures.native_start:g} s"
    if isinstance(tokens, Known) and figures.prefill_rate:
        most = least + tokens.value / figures.prefill_rate
        told = f"{told}, {most:g} s with {tokens.value:,.0f} tokens computed again at {figures.prefill_rate:g} a second"
    elif estimate.stopped > least:
        told = f"{told}, and what computing the context again takes isn't known"
    detail = f"the move stops it for {estimate.stopped:g} s; {told}"
    refused = most is not None and estimate.stopped > most
    weighed = Evidence(gate=_GATE, result=False if refused else True if estimate.stopped <= least else None, detail=detail, inputs=inputs)
    basis = f"{estimate.basis}; against {told}" if estimate.basis else f"against {told}"
    refusal = f"starting it anew elsewhere is quicker: {detail}" if refused else None
    return Worth(refusal=refusal, estimate=msgspec.structs.replace(estimate, basis=basis), evidence=weighed)
