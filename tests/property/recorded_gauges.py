"""Made-up gauges of workers over time, and a server that answers queries for them in Prometheus' own JSON."""

import json
import random
import re
from collections.abc import Mapping, Sequence

import msgspec
from shunter.model.errors import Problem, Retry
from shunter.observe.answer import Answer, LabelSets, series_of

_QUERY = re.compile(r'\{__name__=~?"([^"]*)"(,worker!="")?\}\[([0-9]+)s\]')
_PLAIN = re.compile(r"([a-z_]+)\[([0-9]+)s\]")
ODD = ("NaN", "+Inf", "-Inf", "-0", "1e+06", "0.30000000000000004", "5e-324")

Line = tuple[dict[str, str], list[tuple[float, str]]]
"""Labels, with the name among them, and points as a server writes them."""


class Server:
    """Answers what samples are taken with. `refuse`: names of which queries fail, or are partial."""

    def __init__(self, lines: Sequence[Line], *, refuse: Mapping[str, str] | None = None) -> None:
        self._lines, self._refuse = lines, refuse or {}
        self._labels = LabelSets()

    async def query(self, promql: str, at: float | None, *, lookback_s: float | None = None) -> Answer:
        assert at is not None
        found = _QUERY.fullmatch(promql)
        plain = _PLAIN.fullmatch(promql)
        names = found[1].split("|") if found else [plain[1]] if plain else []
        reach = float(found[3] if found else plain[2] if plain else 0)
        how = next((self._refuse[name] for name in names if name in self._refuse), "")
        if how == "fails":
            raise Retry(Problem(code="SH301", what="no whole reply", remedy="Wait", subject="made up"))
        elements = [
            {"metric": labels, "values": seen}
            for labels, points in self._lines
            if labels["__name__"] in names
            and (not found or not found[2] or labels.get("worker"))
            and (seen := [(t, value) for t, value in points if at - reach <= t <= at])
        ]
        text = msgspec.Raw(json.dumps(elements).encode())
        series = series_of(text, lambda texts: self._labels.read(promql, texts))
        return Answer(kind="matrix", series=series, warnings=("a store is away",) if how == "partial" else ())

    async def query_range(self, promql: str, begin: float, end: float, step_s: float, *, lookback_s: float | None = None) -> Answer:
        return Answer(kind="matrix", series=())


def lines(
    dice: random.Random, workers: Sequence[str], gauges: Sequence[str], begin: float, length: float, odd: float, *, calm: bool = False
) -> list[Line]:
    """Of each worker and gauge mostly one series; some workers have none, some come back under another address, some are told twice, unless
    it is `calm`. `odd` is the share of values that are strange.
    """
    found: list[Line] = []
    for worker in workers:
        for gauge in gauges:
            for number in range(1 if calm else dice.choice((0, 1, 1, 1, 1, 1, 2, 2))):
                labels = {"__name__": gauge, "worker": worker, "instance": f"10.0.0.{number}"}
                if gauge == "dynamo_component_inflight_requests" and dice.random() < 0.7:
                    labels["dynamo_endpoint"] = "generate"
                first, last = (
                    sorted((dice.uniform(-60, length), dice.uniform(-60, length))) if dice.random() < 0.4 and not calm else (-60.0, length)
                )
                found.append((labels, _points(dice, begin, first, last, odd, calm=calm)))
    dice.shuffle(found)
    return found


def _points(dice: random.Random, begin: float, first: float, last: float, odd: float, *, calm: bool) -> list[tuple[float, str]]:
    every, level = (15.0, 0.6) if calm else (dice.choice((10.0, 15.0, 30.0, 61.0)), dice.choice((0.2, 3.0, 40.0)))
    times = [round(begin + first + n * every + dice.choice((0.0, 0.001, 0.25)), 3) for n in range(int((last - first) / every) + 1)]
    return [(t, dice.choice(ODD) if dice.random() < odd else repr(round(level * dice.random(), 3))) for t in times]
