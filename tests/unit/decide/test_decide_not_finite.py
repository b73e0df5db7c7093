"""What isn't a finite number makes nothing voluntary happen, whichever way the conditions are asked."""

import pytest
from decide_world import NOW, checkpoints, finding, known, node, ops, policy_set, reassignment, rebalancing, snap, worker
from shunter.decide.evaluate import evaluate
from shunter.lang.bulk import BulkCelRules
from shunter.lang.cel import CelRules
from shunter.model.expression import Expression
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState

WORKERS = [worker(f"decode-{n:02d}", f"n{n:02d}/0") for n in range(12)]
NODES = [node(f"n{n:02d}", (f"decode-{n:02d}",)) for n in range(12)]
SAMPLES = {w.id: {"kvTokens": known(1e10 if n < 10 else 1.0)} for n, w in enumerate(WORKERS)}


@pytest.mark.parametrize("rules", [BulkCelRules(), CelRules()])
@pytest.mark.parametrize("made", [checkpoints, rebalancing])
@pytest.mark.parametrize("text", ["worker.kvTokens * 1e300 > 0.5", "worker.kvTokens * 1e300 - worker.kvTokens * 1e300 != 1.0"])
def test_an_overflow_is_inconclusive_and_says_so(rules, made, text):
    policies = policy_set(made(when=Expression(text=text)))
    result = evaluate(policies, [snap(NODES, WORKERS, samples=SAMPLES)], EngineState(), NOW, rules)
    for n, subject in enumerate(WORKERS):
        found = finding(result, subject.id)
        if n < 10:
            assert (found.verdict, found.gate) == (Verdict.INCONCLUSIVE, "when")
            assert found.reason == "it comes to what is not a finite number"
            assert found.evidence[-1].result is None
            assert found.evidence[-1].inputs[0].sample == known(1e10), "and shows what it was computed from"
        else:
            assert found.verdict is not Verdict.INCONCLUSIVE
    assert not {o.worker for o in result.plan.operations} & {w.id for w in WORKERS[:10]}


@pytest.mark.parametrize("field", ["waiting", "kvUsage"])
def test_a_pools_figure_that_overflows_has_no_value_and_stops_nothing(field):
    """Two workers report what no sum can hold: their pool's figure is unknown, and the rest is decided."""
    samples = {w.id: {field: known(1.5e308)} for w in WORKERS[:2]} | {w.id: {field: known(1.0)} for w in WORKERS[2:]}
    policies = policy_set(reassignment(when=Expression(text=f"pools.decode.{field} > 0.5")), checkpoints())
    for rules in (BulkCelRules(), CelRules()):
        result = evaluate(policies, [snap(NODES, WORKERS, samples=samples)], EngineState(), NOW, rules)
        found = finding(result, "tiny", "relieve")
        assert (found.verdict, found.reason) == (Verdict.INCONCLUSIVE, f"no value for pools.decode.{field}")
        assert f"the sum of {field} over 12 running workers is not a finite number" in found.evidence[0].detail
        assert ops(result), "images are taken all the same"
