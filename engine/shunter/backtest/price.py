"""What acts cost and what would have been instead. Formulas and figures are named, so that they can be disputed.

Where a node was going, its workers would have been lost and started anew; where roles changed, one would have been torn down and another
started. That has a price by four other ways. Whatever else is voluntary, a flap of such changes included, has been done instead of nothing:
it costs what it costs and saves nothing.

For an act that carries a worker with G GPUs and n tokens of context elsewhere, for which GPUs do nothing for t seconds (those of a parked
one until their slot serves another, or to the end of the time looked at). With a FleetProfile's `prefillDoubling` n is what the tokens cost
in such at the beginning of a context (see `model.context`), else their number:

- spent: G * t
- cold: G * (S + n / P), with S the time of a native start and P the tokens of context that a worker computes again in a second
- peer: G * (S' + n / P), a start with weights and compiled artifacts from a peer
- store: G * (S + (1 - d) * n / P), a cold start beside a KV store that has the share d of the context
- nothing: 0
- no images: 0, for a checkpoint, whose worker stands still for it too
- flip: G * (F + n / P), the role flipped in place; only where hardware and node stay the same, which is never so when a node is going

S and P are a FleetProfile's if it gives them. The others, and those where none does, are public figures for 8xB200 nodes: a native start of
481 s and one from a peer of 104 s (ModelExpress' benchmark of DeepSeek-V4-Pro), 18,471 tokens a second and GPU (LMSYS on GB200), a flip of
1 s beside the drain. d is 0.9, the hits within a turn of a production trace; across turns it is 0.55, so the store is given the better of
the two. None of them was measured on the fleet at hand.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from shunter.decide.figures import AllFigures
from shunter.decide.profile import Profile
from shunter.model.backtest import Act, Price
from shunter.model.context import in_early_tokens
from shunter.model.plan import OperationKind
from shunter.model.policy import Policy

_CARRIES: Final = (OperationKind.MOVE, OperationKind.PARK)


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Public figures; seconds, and tokens a second for each GPU."""

    native_start: float = 481.0
    peer_start: float = 104.0
    flip: float = 1.0
    prefill_rate_per_gpu: float = 18471.0
    stored: float = 0.9


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    """An act's own figures: `again` is the time to compute its context again, None when that isn't known."""

    gpus: float
    start: float
    again: float | None
    in_place: bool


_LATE: Final = (
    "Where a FleetProfile has `prefillDoubling`, tokens late in a context count for what they cost, all contexts of a worker taken to be"
    " equally long"
)

Way = Callable[[_Case, Defaults], float | None]


def _cold(c: _Case, _: Defaults) -> float | None:
    return None if c.again is None else c.start + c.again


def _peer(c: _Case, d: Defaults) -> float | None:
    return None if c.again is None else min(c.start, d.peer_start) + c.again


def _store(c: _Case, d: Defaults) -> float | None:
    return None if c.again is None else c.start + (1 - d.stored) * c.again


def _flip(c: _Case, d: Defaults) -> float | None:
    return d.flip + c.again if c.in_place and c.again is not None else None


def _nothing(_c: _Case, _d: Defaults) -> float:
    return 0.0


_WAYS: Final[tuple[tuple[str, str, Way], ...]] = (
    ("cold start", "GPUs x (native start + tokens / prefill rate)", _cold),
    ("weights and artifacts from a peer", "GPUs x (start from a peer + tokens / prefill rate)", _peer),
    ("KV store and cold start", "GPUs x (native start + what the store lacks of the tokens / prefill rate)", _store),
    ("flip in place", "GPUs x (flip + tokens / prefill rate), only where node and hardware stay", _flip),
)


class Prices:
    """Prices acts with the figures of these policies' fleet profiles. The acts must be settled: see `outcome`."""

    def __init__(self, policies: Iterable[Policy], profile: Profile, defaults: Defaults | None = None) -> None:
        self._figures = AllFigures(tuple(policies), profile)
        self._defaults = defaults or Defaults()

    def of(self, acts: Sequence[Act]) -> tuple[Price, ...]:
        """One price for each of the four ways, over all acts that carry a worker elsewhere which would have been lost or torn down; one for
        those without which nothing would have happened; and one for images.
        """
        carried = [a for a in acts if a.operation.kind in _CARRIES and not a.operation.preview]
        needed = [a for a in carried if a.instead != "nothing"]
        chosen = [a for a in carried if a.instead == "nothing"]
        four = (self._price(name, formula, way, needed) for name, formula, way in _WAYS)
        images = [a for a in acts if a.operation.kind is OperationKind.CHECKPOINT and not a.operation.preview]
        return (
            *four,
            self._price("doing nothing", "0: the worker would have gone on where it was", _nothing, chosen),
            self._price("taking no images", "0: the worker would have gone on; what an image spares isn't known", _nothing, images),
        )

    def assumed(self) -> tuple[str, ...]:
        """What is compared with what, and the figures in words and whose they are."""
        d = self._defaults
        return (
            "Sessions count as kept, and the four other ways are priced, only where a node was going, or where roles changed and stayed so"
            " for an hour: a worker would have been lost there, or torn down so that another is started. Any other voluntary move is"
            " compared with doing nothing, which costs nothing",
            "GPUs of a parked worker count as spent until their slot serves another, or to the end. Its sessions wait until it is brought"
            " back, or to the end: that is no GPU's time, so no price has it, and it is told as standing still. The other ways would have"
            " had them go on elsewhere",
            "Images cost what their workers stood still for them. What they spare isn't priced: losses without a warning aren't simulated,"
            " and what an image held of a worker that is restored from one isn't known",
            f"Where no FleetProfile says otherwise: native start {d.native_start:g} s, from a peer {d.peer_start:g} s, flip {d.flip:g} s,"
            f" {d.prefill_rate_per_gpu:,.0f} tokens a second and GPU computed again, {d.stored:.0%} of the context in a KV store; public"
            " figures for 8xB200 nodes, not measured on this fleet",
            *([_LATE] if self._figures.late_cost_more else []),
        )

    def _price(self, name: str, formula: str, way: Way, acts: list[Act]) -> Price:
        spent = instead = 0.0
        priced = 0
        for act in acts:
            case, stopped = self._case(act), act.idle
            other = way(case, self._defaults)
            if other is None or stopped is None:
                continue
            priced += 1
            spent += case.gpus * stopped
            instead += case.gpus * other
        return Price(baseline=name, formula=formula, spent=spent, instead=instead, acts=priced, unpriced=len(acts) - priced)

    def _case(self, act: Act) -> _Case:
        figures = self._figures.of(act.gpu_model)
        rate = figures.prefill_rate or self._defaults.prefill_rate_per_gpu * act.gpus
        tokens = None if act.tokens is None else in_early_tokens(act.tokens, act.sessions, figures.prefill_doubling)
        again = tokens / rate if tokens is not None and rate else None
        start = figures.native_start if figures.native_start is not None else self._defaults.native_start
        in_place = act.operation.lane == "voluntary" and act.operation.kind is OperationKind.PARK
        return _Case(gpus=act.gpus or 1, start=start, again=again, in_place=in_place)
