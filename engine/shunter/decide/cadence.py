"""How often a worker's images are worth taking: from what one costs it, and from how often it is lost without warning.

An image every `t` seconds costs the worker `C/t` of its time, where `C` is the time for which it stands still; being lost without an image
of the last moments costs `t/2` of work on average, `1/M` times a second, where `M` is the mean time between losses. The sum `C/t + t/(2M)`
is least at Young's interval, sqrt(2CM) (J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications of
the ACM 17(9), 1974). Daly's (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22(3), 2006) takes into account that a loss can strike again before the work is made up for:

    t = sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C    for C < 2M, else t = M

Young's is its first term. They differ by more than a few percent only where C/M is above about 1%.

That counts a second of lost work as a second that it takes to do it again. Late tokens of a long context take longer than early ones (see
`model.context`): what is lost at its end is `w` times as dear, the second cost above becomes `wt/2`, and the best interval is that of a
hazard of `w/M`.

Only the losses that no notice announces count: on a notice the worker is moved, with all that it holds. How long a restore takes doesn't
matter for the interval, as it is paid once for every loss whatever the interval is. Nor do the bytes that have changed since the image
before: where images are incremental, as here, a session's new bytes are written once sooner or later, so that their share of the time,
`g k / B` for `g` tokens a second of `k` bytes each at a rate of `B`, doesn't depend on `t`. So it is the fixed part of the pause that
counts; a measured pause has the bytes of one interval in it, which makes the interval a little longer than it need be, and costs little,
as the sum is flat around its least value.
"""

import math
from statistics import median
from typing import Final, NamedTuple

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.hints import hint
from shunter.decide.recompute import dearness
from shunter.decide.said import Part
from shunter.model.finding import Evidence
from shunter.model.ids import WorkerId
from shunter.model.operation import Status
from shunter.model.plan import OperationKind
from shunter.model.policy import CheckpointSpec, Optimal
from shunter.model.snapshot import Notice, Worker
from shunter.model.units import Duration


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """How long the worker is expected to stand still for an image: seconds, None when that can be neither measured nor planned."""

    seconds: float | None
    basis: str

    def __str__(self) -> str:
        return f"a pause of {_said(self.seconds)} ({self.basis})" if self.seconds is not None else "a pause that isn't known"


_UNUSED: Final = Pause(seconds=None, basis="nothing depends on it")


class Interval(NamedTuple):
    """How long after its newest image a worker's next one is due, in seconds, and what that was computed from."""

    seconds: float
    evidence: tuple[Part, ...] = ()


def daly(pause: float, hazard: float) -> float:
    """The interval in seconds by the formula above, for a `pause` in seconds and a `hazard` in losses per second (more than 0).

    Valid for C < 2M; beyond that images cost more than they save, and Daly's own answer is M.
    """
    mean = 1 / hazard
    if pause >= 2 * mean:
        return mean
    ratio = pause / (2 * mean)
    return math.sqrt(2 * pause * mean) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - pause


def pause_of(d: Deciding, spec: CheckpointSpec, worker: Worker) -> Pause:
    """The median of what its images have cost the worker so far; without any, what one is planned to cost."""
    if spec.cadence is None and spec.overhead is None and spec.pause.at_most is None:
        return _UNUSED
    own = _measured(d, worker.id)
    if own:
        return Pause(seconds=median(own.values()), basis=f"measured in {len(own)} of its own images")
    phases = d.phases(worker)
    if phases.bytes is None:
        return Pause(seconds=None, basis=phases.basis)
    return Pause(seconds=phases.freeze, basis=phases.basis)


def _measured(d: Deciding, worker: WorkerId) -> dict[str, float]:
    """Seconds that the worker stood still for each image that is there or was taken within the hour; an image counts once."""
    own: dict[str, float] = {i.id: i.pause for i in d.world.images.get(worker, ()) if i.pause is not None}
    for record in d.history.of_worker(worker):
        outcome = record.outcome if record.planned.kind is OperationKind.CHECKPOINT else None
        if outcome is not None and outcome.status is Status.SUCCEEDED and outcome.measured.stopped is not None:
            own.setdefault(outcome.image or record.id, outcome.measured.stopped)
    return own


def interval_for(d: Deciding, spec: CheckpointSpec, worker: Worker, pause: Pause) -> Interval:
    """The worker's, see `interval_of`."""
    if spec.cadence is None:
        return interval_of(spec, pause)
    given = d.world.snapshot.samples.workers.get(worker.id, {})
    return interval_of(spec, pause, hint(d.world, worker), dearness(d.figures(worker), given.get("kvTokens"), given.get("sessions")))


def interval_of(spec: CheckpointSpec, pause: Pause, hint: Notice | None = None, dear: tuple[float, str] = (1.0, "")) -> Interval:
    """`every`, or the optimum within `min` and `max`; then lengthened until no more than `overhead` of the time is spent on images.

    `hint` is one that is open for the worker: the optimum is then that of the hazard under a hint. `dear`: how many times as dear its last
    tokens are as first ones, and why. `every` is what somebody chose.
    """
    if spec.every is not None:
        chosen = Interval(seconds=float(spec.every))
    else:
        assert spec.cadence is not None, "one of the two is required"
        chosen = _optimum(spec.cadence.optimal, pause, hint, dear)
    if spec.overhead is None:
        return chosen
    return _lengthened(chosen, pause, spec.overhead.at_most)


def _optimum(optimal: Optimal, pause: Pause, hint: Notice | None, dear: tuple[float, str]) -> Interval:
    if pause.seconds is None:
        detail = f"{pause}, so the longest interval: {optimal.max}"
        return Interval(seconds=float(optimal.max), evidence=(Evidence(gate="cadence.optimal", result=None, detail=detail),))
    hazard = optimal.hazard if hint is None else max(optimal.hazard, optimal.hinted)
    because = "" if hint is None else f", likelier since a hint is open ({hint.kind.value} from {hint.source or 'an unnamed source'})"
    best = daly(pause.seconds, float(hazard) * dear[0])
    seconds = min(float(optimal.max), max(float(optimal.min), best))

    def told() -> Evidence:
        detail = (
            f"every {_said(seconds)}: {_said(best)} by Daly's formula for {pause} and one loss in {_said(1 / hazard)} that no "
            f"notice announces{because}, taken to come at any time alike{_dear(dear)}; at least {optimal.min}, at most {optimal.max}"
        )
        return Evidence(gate="cadence.optimal", result=True, detail=detail)

    return Interval(seconds=seconds, evidence=(told,))


def _dear(dear: tuple[float, str]) -> str:
    return f"{dear[1]} taken to be {dear[0]:.3g} times as dear as at their beginning" if dear[0] > 1 else dear[1]


def _lengthened(chosen: Interval, pause: Pause, most: float) -> Interval:
    if pause.seconds is None:
        unknown = Evidence(gate="overhead.atMost", result=None, detail=f"{pause}")
        return Interval(seconds=chosen.seconds, evidence=(*chosen.evidence, unknown))
    least = pause.seconds / most if most > 0 else math.inf

    def told() -> Evidence:
        detail = f"{pause} is at most {most * 100:g}% of {_said(least) if math.isfinite(least) else 'no interval'}"
        return Evidence(gate="overhead.atMost", result=chosen.seconds >= least, detail=detail)

    return Interval(seconds=max(chosen.seconds, least), evidence=(*chosen.evidence, told))


def _said(seconds: float) -> str:
    """To the millisecond below a minute, to the second above."""
    return str(Duration(seconds if seconds < 60 else round(seconds)))
