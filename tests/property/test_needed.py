"""Whatever a policy says that isn't an act, it is told what would have to be otherwise."""

from random import Random

from shunter.decide.evaluate import evaluate
from shunter.decide.explain import explain
from shunter.lang.cel import CelRules
from shunter.model.finding import Verdict
from shunter.model.policy import PolicySet
from test_decide import NOW as THEN
from test_decide import PROFILE, situation_of


def test_something_is_said_of_every_gate_that_decides() -> None:
    gates, dumb = set(), set()
    for seed in range(150):
        policies, series, state = situation_of(Random(seed))
        held = PolicySet(commit="c", digest="sha256:p", policies=tuple(policies))  # type: ignore[arg-type]
        result = evaluate(held, series, state, THEN, CelRules(), PROFILE)
        for one in series[-1].fleet.workers:
            for told in explain(result, held, series[-1], one.id):
                if told.finding is not None and told.verdict is not Verdict.ACT and told.kind != "DisruptionBudget":
                    gates.add(told.gate)
                    dumb |= {told.gate} if not told.needed else set()
    assert len(gates) > 12
    assert dumb == set()
