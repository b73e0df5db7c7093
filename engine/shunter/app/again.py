"""How fast the context of workers that are lost would be computed again, by GPU model: what a plan's tokens are worth."""

from collections.abc import Mapping

import msgspec

from shunter.backtest.price import Defaults
from shunter.decide.figures import AllFigures
from shunter.decide.profile import Profile
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet
from shunter.report.kept import Rate

_PUBLIC = "a public figure that wasn't measured here; `prefillRate` of a FleetProfile replaces it"


def rates_of(policies: PolicySet, fleet: Fleet) -> Mapping[str, Rate]:
    """A FleetProfile's `prefillRate` where there is one, else the public figure that backtests are priced by as well; and its
    `prefillDoubling`, whoever gave the rate.
    """
    figures = AllFigures(policies.policies, Profile())
    found: dict[str, Rate] = {}
    for model in sorted({slot.gpu_model for node in fleet.nodes for slot in node.slots if slot.gpus}):
        given = figures.of(model)
        if given.prefill_rate is not None:
            rate = Rate(tokens_per_s=given.prefill_rate, per_gpu=False, basis=f"as {' and '.join(given.names)} says")
        else:
            rate = Rate(tokens_per_s=Defaults().prefill_rate_per_gpu, per_gpu=True, basis=_PUBLIC)
        found[model] = msgspec.structs.replace(rate, doubling=given.prefill_doubling)
    return found
