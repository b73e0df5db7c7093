"""What would have to be otherwise: with the value and the threshold where a comparison says so, and for every gate that there is."""

from typing import Any

import pytest
from decide_world import (
    NOW,
    checkpoints,
    decide,
    ex,
    image,
    known,
    node,
    notice,
    policy_set,
    preemption,
    reassignment,
    rebalancing,
    snap,
    worker,
)
from shunter.decide.explain import explain, explain_node, explain_policy
from shunter.decide.needed import needed
from shunter.model.finding import Evidence, Finding, Input, Verdict
from shunter.model.policy import Trigger, WorkerSelector
from shunter.model.sample import Missing, Stale
from shunter.model.units import Duration


def read(expression: str, result: bool | None = False, **inputs: Any) -> Evidence:
    given = tuple(
        Input(name=f"worker.{name}", value=value) if isinstance(value, str | int | None) else Input(name=f"worker.{name}", sample=value)
        for name, value in inputs.items()
    )
    return Evidence(gate="when", result=result, expression=expression, inputs=given)


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        (
            read("worker.kvUsage > 0.5", kvUsage=known(0.25)),
            "`worker.kvUsage > 0.5` would have to be true: worker.kvUsage is 0.25, and would have to be > 0.5",
        ),
        (
            read("worker.images >= 2 && worker.waiting == 0.0", images=1, waiting=known(0.0)),
            "`worker.images >= 2 && worker.waiting == 0.0` would have to be true: worker.images is 1, and would have to be >= 2",
        ),
        (
            read("worker.waiting < -1.5 || worker.running != 3", waiting=known(0.0), running=known(3.0)),
            "`worker.waiting < -1.5 || worker.running != 3` would have to be true: worker.waiting is 0, and would have to be < -1.5, and "
            "worker.running is 3, and would have to be != 3",
        ),
        (read("!(worker.kvUsage < 0.5)", kvUsage=known(0.25)), "`!(worker.kvUsage < 0.5)` would have to be true"),
        (read("1.0 + worker.kvUsage > 2.0", kvUsage=known(0.25)), "`1.0 + worker.kvUsage > 2.0` would have to be true"),
        (read("worker.kvUsage > 0.5 * 2.0", kvUsage=known(0.25)), "`worker.kvUsage > 0.5 * 2.0` would have to be true"),
        (read('worker.id == "x"', id="y"), '`worker.id == "x"` would have to be true'),
        (
            read("worker.kvUsage > 0.5", None, kvUsage=Missing(reason="query returned 0 series")),
            "there would have to be a value for worker.kvUsage (query returned 0 series)",
        ),
        (
            read("worker.kvUsage > 0.5", None, kvUsage=Stale(value=1.0, age=44.0, max_age=30.0, query="q")),
            "there would have to be a value for worker.kvUsage (44 s old, at most 30 s allowed)",
        ),
        (read("worker.imageAge > 60.0", None, imageAge=None), "there would have to be a value for worker.imageAge"),
    ],
)
def test_of_a_condition(evidence: Evidence, told: str) -> None:
    verdict = Verdict.INCONCLUSIVE if evidence.result is None else Verdict.PASS
    assert needed(verdict, "when", evidence) == told


def test_who_acts_needs_nothing() -> None:
    assert needed(Verdict.ACT, "when", read("worker.kvUsage > 0.5", True, kvUsage=known(0.75))) == ""


D = [worker(f"decode-{n}", f"n{n}/0") for n in range(8)]
NODES = [node(f"n{n}", (f"decode-{n}", None)) for n in range(8)]


def test_of_a_policy_those_that_are_alike_are_told_together() -> None:
    policies = policy_set(checkpoints())
    images = [image(f"i{n}", D[n], f"n{n}", at=NOW - 5) for n in range(7)]
    told = explain_policy(decide(policies.policies, snap(NODES, D, images)), policies, policies.policies[0].name)
    acts, young = told.groups
    assert (acts.example.verdict, acts.number, acts.subjects, acts.example.needed) == (Verdict.ACT, 1, ("decode-7",), "")
    assert [o.worker for o in told.operations] == [o.worker for o in acts.example.operations] == ["decode-7"]
    assert (young.number, len(young.subjects), young.example.gate) == (7, 5, "every")
    assert young.example.needed == "its newest image would have to be older"
    with pytest.raises(KeyError):
        explain_policy(decide(policies.policies, snap(NODES, D)), policies, "other")  # type: ignore[arg-type]


def test_of_a_node_what_is_on_it_and_what_comes_and_goes() -> None:
    policies, world = policy_set(preemption()), snap(NODES, D, notices=[notice("n0")])
    result = decide(policies.policies, world)
    (move,) = result.plan.operations
    going = explain_node(result, policies, world, NODES[0].id)
    assert (going.free, going.against, going.leaving, going.arriving) == (1, "preemption: a notice is open for it", (move,), ())
    ((name, (only,)),) = going.workers
    assert (name, only.verdict, only.operations) == ("decode-0", Verdict.ACT, (move,))
    there = next(n for n in NODES if n.slots[1].id == move.to_slot)
    coming = explain_node(result, policies, world, there.id)
    assert (coming.against, coming.arriving, coming.leaving) == ("", (move,), ())
    with pytest.raises(KeyError):
        explain_node(result, policies, world, "nowhere")  # type: ignore[arg-type]


def test_of_a_large_fleet_only_what_is_asked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = policy_set(checkpoints(workers=WorkerSelector(all=True)), rebalancing(when=ex("False")))
    images = [image(f"i{n}", D[n], f"n{n}", at=NOW - 5) for n in range(8)]
    result = decide(policies.policies, snap(NODES, D, images))
    made: list[Finding] = []
    monkeypatch.setattr("shunter.decide.said.Finding", lambda **fields: made.append(Finding(**fields)) or made[-1])
    explain(result, policies, snap(NODES, D, images), D[3].id)
    assert [f.subject for f in made] == ["decode-3", "decode-3"]


def test_the_evidence_of_the_gate_that_decided_is_told_also_where_more_was_read() -> None:
    back = Trigger(when=ex('v("pools.prefill.waiting") < 1'), for_=Duration(0))
    policies = policy_set(reassignment(when=ex('v("pools.prefill.waiting") > 30'), revert=back))
    world = snap([node("p", ("prefill-0",)), *NODES], [worker("prefill-0", "p/0"), *D], samples={"prefill-0": {"waiting": 5}})
    (told,) = explain(decide(policies.policies, world), policies, world, D[0].id)
    assert told.finding is not None
    assert [e.gate for e in told.finding.evidence] == ["when", "revert.when"]
    assert (told.gate, told.expression) == ("when", 'v("pools.prefill.waiting") > 30')
