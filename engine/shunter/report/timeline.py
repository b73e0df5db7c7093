"""A backtest as a picture: pools, what policies said, and operations, over one axis of time."""

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from shunter.model.backtest import Act, Backtest, Point
from shunter.model.finding import Verdict
from shunter.model.ids import PolicyName, PoolId
from shunter.report.drawing import Drawing
from shunter.report.plan import headline
from shunter.report.words import count, moment, short

_PAD, _LEFT, _WIDTH, _RIGHT = 10.0, 240.0, 960.0, 20.0
_POOL, _ROW, _GAP = 54.0, 16.0, 10.0
_COLOURS: Final = {Verdict.ACT: "#2e7d32", Verdict.HOLD: "#f9a825", Verdict.INCONCLUSIVE: "#8e24aa", Verdict.PASS: "#eceff1"}
_WORST: Final = (Verdict.ACT, Verdict.HOLD, Verdict.INCONCLUSIVE, Verdict.PASS)
_LINES: Final = (("workers that run", "#37474f"), ("requests that wait", "#d81b60"), ("mean KV usage", "#00acc1"))
_SPARE: Final = (1.1, 1.3)
"""Room above the highest value of a line, not the same for two of them, which would hide each other where neither changes. KV usage is a
share, and always drawn from 0 to 1."""
_MOST_POLICIES: Final = 40
_MOST_POOLS: Final = 12
_MOST_ACTS: Final = 2_000


def timeline(one: Backtest) -> Drawing:
    """The picture, about 1,200 pixels wide. What is too much for it is counted in its last line; the JSON form has all of it."""
    draw = _Timeline(one.begin, max(one.end, one.begin + 1.0))
    draw.text(_PAD, 14, f"{moment(one.begin)} to {moment(one.end)}, policies at {short(one.commit)}", bold=True)
    draw.y = 24.0
    pools = sorted({pool for point in one.points for pool in point.pools})
    for pool in pools[:_MOST_POOLS]:
        _pool(draw, pool, one.points)
    policies = [t.policy for t in one.tallies]
    for policy in policies[:_MOST_POLICIES]:
        _policy(draw, policy, one.points)
    draw.y += _GAP
    kinds = sorted({a.operation.kind for a in one.acts})
    for kind in kinds:
        _acts(draw, kind.value, [a for a in one.acts if a.operation.kind is kind])
    _axis(draw, one)
    _legend(draw)
    left_out = [
        count(n, noun) for n, noun in ((len(pools) - _MOST_POOLS, "more pool"), (len(policies) - _MOST_POLICIES, "more row")) if n > 0
    ]
    if left_out:
        draw.text(_PAD, draw.y + 12, f"Not shown: {', '.join(left_out)}")
        draw.y += _ROW
    draw.width, draw.height = _LEFT + _WIDTH + _RIGHT, draw.y + _GAP
    return draw


class _Timeline(Drawing):
    """The drawing, and how far down it reaches."""

    def __init__(self, begin: float, end: float) -> None:
        super().__init__()
        self._begin, self._span = begin, end - begin
        self.y = 0.0

    def x(self, at: float) -> float:
        """Where a time is."""
        return _LEFT + (at - self._begin) / self._span * _WIDTH


Figures = tuple[int, float | None, float | None]
_PICKS: Final[tuple[Callable[[Figures], float | None], ...]] = (lambda f: float(f[0]), lambda f: f[1], lambda f: f[2])


def _pool(draw: _Timeline, pool: PoolId, points: Sequence[Point]) -> None:
    """A pool's three figures, each on a scale of its own; where one isn't known its line breaks."""
    top, bottom = draw.y + 4, draw.y + _POOL - 4
    draw.rect(_LEFT, draw.y, _WIDTH, _POOL - 2, "#fafafa")
    draw.text(_PAD, draw.y + 14, pool, bold=True)
    for number, ((name, colour), pick) in enumerate(zip(_LINES, _PICKS, strict=True)):
        values = [(p.at, pick(p.pools[pool]) if pool in p.pools else None) for p in points]
        most = max((v for _, v in values if v is not None), default=None)
        draw.text(_PAD, draw.y + 27 + 11 * number, f"{name}: {'not known' if most is None else f'at most {most:.3g}'}", size=9)
        full = _SPARE[number] * (most or 1.0) if number < len(_SPARE) else 1.0
        for part in _unbroken(values):
            draw.line([(draw.x(at), bottom - (bottom - top) * min(1.0, value / full)) for at, value in part], colour)
    draw.y += _POOL + 2


def _unbroken(values: Sequence[tuple[float, float | None]]) -> Iterator[list[tuple[float, float]]]:
    part: list[tuple[float, float]] = []
    for at, value in values:
        if value is not None:
            part.append((at, value))
        elif part:
            yield part
            part = []
    if part:
        yield part


def _policy(draw: _Timeline, policy: PolicyName, points: Sequence[Point]) -> None:
    """What the policy said most importantly at each point, equal neighbours as one."""
    draw.text(_PAD, draw.y + 12, policy)
    ends = [*(p.at for p in points[1:]), None]
    stretches: list[tuple[float, float, Verdict, str]] = []
    for point, end in zip(points, ends, strict=True):
        counts = point.verdicts.get(policy, {})
        verdict = next((v for v in _WORST if counts.get(v)), Verdict.PASS)
        until = point.at if end is None else end
        if stretches and stretches[-1][2] is verdict:
            begin, _, _, title = stretches[-1]
            stretches[-1] = (begin, until, verdict, title)
        else:
            stretches.append((point.at, until, verdict, _said(policy, point.at, counts)))
    for begin, end_, verdict, title in stretches:
        draw.rect(draw.x(begin), draw.y + 2, draw.x(end_) - draw.x(begin), _ROW - 4, _COLOURS[verdict], title)
    draw.y += _ROW


def _said(policy: PolicyName, at: float, counts: Mapping[Verdict, int]) -> str:
    told = ", ".join(f"{verdict.value} {counts[verdict]:,}" for verdict in _WORST if counts.get(verdict))
    return f"{policy} from {moment(at)}: {told or 'nothing said'}"


def _acts(draw: _Timeline, kind: str, acts: Sequence[Act]) -> None:
    """One mark an operation; beyond the most that are shown, every so manyth."""
    every = max(1, -(-len(acts) // _MOST_ACTS))
    shown = f"{count(len(acts), kind)}" + (f", one in {every} shown" if every > 1 else "")
    draw.text(_PAD, draw.y + 12, shown)
    for act in acts[::every]:
        colour = "#c62828" if act.undoes else "#ef6c00" if act.operation.lane == "involuntary" else "#1565c0"
        draw.rect(draw.x(act.at) - 0.5, draw.y + 2, 1.5, _ROW - 4, colour, f"{moment(act.at)} {headline(act.operation)}")
    draw.y += _ROW


def _axis(draw: _Timeline, one: Backtest) -> None:
    draw.y += 4
    draw.rect(_LEFT, draw.y, _WIDTH, 1, "#90a4ae")
    for n in range(7):
        at = one.begin + (one.end - one.begin) * n / 6
        told = f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%m-%d %H:%M}"
        draw.rect(draw.x(at) - 0.5, draw.y, 1, 4, "#90a4ae")
        draw.text(draw.x(at), draw.y + 15, told, anchor="start" if n == 0 else "end" if n == 6 else "middle", size=9)
    draw.y += 22


def _legend(draw: _Timeline) -> None:
    marks = [(v.value, c) for v, c in _COLOURS.items()]
    marks += [("voluntary", "#1565c0"), ("because a node is going", "#ef6c00"), ("undoes an earlier one", "#c62828")]
    marks += list(_LINES)
    x = _LEFT
    for name, colour in marks:
        draw.rect(x, draw.y, 8, 8, colour)
        draw.text(x + 11, draw.y + 8, name, size=9)
        x += 22 + 5.2 * len(name)
    draw.y += 14
