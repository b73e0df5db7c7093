"""Whether a voluntary move is worth it: what its sessions wait for, against what they would if the worker were started anew instead.

Four things could be done instead of a move, and each is priced here with what profiles say of it:

- a cold start elsewhere: `nativeStart`, and then the sessions' context is computed again, at `prefillRate`;
- a start with weights and compiled artifacts from a peer: also `nativeStart`, which is what a start takes here, by whatever way;
- a cold start beside a KV store that has the context: `nativeStart` alone, the least that any of them can take;
- a flip of the role in place: no agent reports an engine that can.

The same sessions wait in each case, so it is the times that are compared. A move that is quicker than the least of them is worth it, and
one that is slower than the most isn't. In between it depends on what the store holds, which isn't known here: then it may be done. Where
it is slower than the least and the most can't be said, since the worker's tokens or its size aren't known, it isn't done: a metric that is
lost makes nothing voluntary happen.
"""

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.figures import Figures
from shunter.decide.recompute import beginnings
from shunter.model.finding import Evidence, Input, Verdict
from shunter.model.plan import Estimate
from shunter.model.sample import Known, Sample
from shunter.model.snapshot import Worker

_GATE = "cost"


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """`refusal` is why the move isn't made, None when it may be; `verdict` is HOLD if it isn't worth it, INCONCLUSIVE where that can't
    be said. `estimate` has what it was weighed against.
    """

    refusal: str | None
    estimate: Estimate
    evidence: Evidence
    verdict: Verdict = Verdict.HOLD


def weigh_move(d: Deciding, worker: Worker, estimate: Estimate) -> Worth:
    """Weigh a move with this estimate."""
    given = d.world.snapshot.samples.workers.get(worker.id, {})
    inputs = tuple(Input(name=f"worker.{n}", sample=s) for n in ("kvTokens", "sessions") if (s := given.get(n)) is not None)

    def weighed(result: bool | None, detail: str) -> Evidence:
        return Evidence(gate=_GATE, result=result, detail=detail, inputs=inputs)

    figures, stopped = d.figures(worker), estimate.stopped
    least = figures.native_start
    if least is None:
        return Worth(refusal=None, estimate=estimate, evidence=weighed(None, "no profile says what a native start takes"))
    if stopped is None:
        why = f"how long a move takes isn't known, as nothing tells its size, and a native start takes {least:g} s"
        return Worth(refusal=why, estimate=estimate, evidence=weighed(None, why), verdict=Verdict.INCONCLUSIVE)
    most, told = _most(figures, given.get("kvTokens"), given.get("sessions"))
    detail = f"the move stops it for {stopped:g} s; {told}"
    basis = f"{estimate.basis}; against {told}" if estimate.basis else f"against {told}"
    estimate = msgspec.structs.replace(estimate, basis=basis)
    if stopped <= least:
        return Worth(refusal=None, estimate=estimate, evidence=weighed(True, detail))
    if most is None:
        refusal = f"whether starting it anew elsewhere is quicker can't be said: no value for worker.kvTokens; {detail}"
        return Worth(refusal=refusal, estimate=estimate, evidence=weighed(None, detail), verdict=Verdict.INCONCLUSIVE)
    if stopped > most:
        refusal = f"starting it anew elsewhere is quicker: {detail}"
        return Worth(refusal=refusal, estimate=estimate, evidence=weighed(False, detail))
    return Worth(refusal=None, estimate=estimate, evidence=weighed(None, detail))


def _most(figures: Figures, tokens: Sample | None, sessions: Sample | None) -> tuple[float | None, str]:
    """The most that starting anew takes, in seconds, and how it is made up; None where that hangs on tokens that aren't known.

    Where no profile says how fast context is computed again, that counts for nothing: whoever gives a native start asks for the comparison,
    and sessions aren't stopped for longer than it on a figure that nobody gave.
    """
    least = figures.native_start or 0.0
    told = f"a native start {least:g} s"
    if not figures.prefill_rate:
        return least, f"{told}, and no profile says what computing the context again takes"
    if not isinstance(tokens, Known):
        return None, f"{told}, and how much context is to be computed again isn't known"
    begun = beginnings(figures, tokens.value, sessions)
    most = least + begun / figures.prefill_rate
    longer = f", which take as long as {begun:,.0f} at the beginning of contexts," if begun > tokens.value else ""
    return most, f"{told}, {most:g} s with {tokens.value:,.0f} tokens{longer} computed again at {figures.prefill_rate:g} a second"
