"""Asking about all at once is asking about each: whole evaluations are the same bytes, whichever way the rules answer, and whether or not
anybody has looked at the findings.
"""

import gc
import itertools
from random import Random
from typing import Any
from weakref import ref

import msgspec
import pytest
from column_expressions import DOUBLES, INTS, KEYS, TEXTS, Expressions
from shunter.decide.deciding import Deciding
from shunter.decide.evaluate import evaluate
from shunter.decide.gates import Teller, ask
from shunter.lang import bulk
from shunter.lang.bulk import BulkCelRules
from shunter.lang.cel import CelRules, compiled
from shunter.model.canon import encode
from shunter.model.expression import BulkRules, Expression, OneByOne, Scope, Undecided, in_bulk
from shunter.model.plan import Evaluation
from shunter.model.policy import MetricInput, Policy, PolicySet
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import Samples, Snapshot
from shunter.model.units import Duration
from test_decide import NOW, PROFILE, situation_of


def decided(policies: list[Policy], series: list[Snapshot], state: Any, rules: Any) -> Evaluation:
    return evaluate(PolicySet(commit="c", digest="sha256:p", policies=tuple(policies)), series, state, NOW, rules, PROFILE)


@pytest.fixture(autouse=True)
def always_over_columns(monkeypatch):
    monkeypatch.setattr(bulk, "FEW", 0)


def awkward(dice: Random, policy: Policy) -> Policy:
    """The policy with grown expressions in place of the simple ones, and a metric of its own."""
    grown = Expressions(dice.randint(0, 10**9))

    def replaced(part: Any) -> Any:
        if isinstance(part, Expression):
            text = grown.truth(2) if ">" in part.text else grown.double(2)
            return Expression(text=text if "pools" not in part.text else part.text)
        if isinstance(part, msgspec.Struct) and not isinstance(part, Policy):
            return msgspec.structs.replace(part, **{f: replaced(getattr(part, f)) for f in part.__struct_fields__})
        return part

    spec = replaced(policy.document.spec)
    if policy.acts:
        spec = msgspec.structs.replace(spec, metrics={"wait": MetricInput(query="q", unit="1", max_age=Duration(30))})
    return msgspec.structs.replace(policy, document=msgspec.structs.replace(policy.document, spec=spec))


def awkward_fleet(dice: Random, snapshot: Snapshot, policies: list[Policy]) -> Snapshot:
    """The snapshot with strange labels, numbers and samples."""

    def labels() -> dict[str, str]:
        return {key: dice.choice(TEXTS) for key in KEYS if dice.random() < 0.6}

    def sample() -> Any:
        known = Known(value=float(dice.choice((*DOUBLES, *INTS))), unit="1", at=NOW - dice.choice([1, 1, 100]), query="q")
        return dice.choice([known] * 6 + [Missing(reason="NaN"), Stale(value=1.0, age=90, max_age=30, query="q")])

    fleet = snapshot.fleet
    workers = tuple(msgspec.structs.replace(w, labels=labels(), engine=dice.choice(TEXTS)) for w in fleet.workers)
    nodes = tuple(msgspec.structs.replace(n, labels=labels()) for n in fleet.nodes)
    fields = ("running", "waiting", "kvUsage", "sessions", "kvTokens")
    own = {p.name: {"wait": {dice.choice([w.id, ""]): sample() for w in workers}} for p in policies}
    taken = {w.id: {f: sample() for f in fields if dice.random() < 0.9} for w in workers}
    changed = msgspec.structs.replace(fleet, workers=workers, nodes=nodes)
    return msgspec.structs.replace(snapshot, fleet=changed, samples=Samples(workers=taken, policies=own))


@pytest.mark.parametrize("seeds", [range(at, at + 40) for at in range(0, 200, 40)])
def test_evaluations_are_the_same_whichever_way_the_rules_answer(seeds):
    for seed in seeds:
        situation = situation_of(Random(seed))
        assert encode(decided(*situation, BulkCelRules())) == encode(decided(*situation, CelRules())), seed


@pytest.mark.parametrize("seeds", [range(at, at + 40) for at in range(0, 200, 40)])
def test_so_they_are_for_awkward_conditions_and_values(seeds):
    for seed in seeds:
        dice = Random(seed)
        policies, series, state = situation_of(dice)
        policies = [awkward(dice, p) for p in policies]
        series = [awkward_fleet(dice, s, policies) for s in series]
        assert encode(decided(policies, series, state, BulkCelRules())) == encode(decided(policies, series, state, CelRules())), seed


class Counting(BulkCelRules):
    """How often it was asked about single subjects."""

    asked = 0

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        self.asked += 1
        return super().test(expression, scope)


def test_findings_are_worked_out_when_one_is_looked_at_and_then_kept():
    looked, once = 0, 0
    for seed in range(60):
        situation, rules = situation_of(Random(seed)), Counting()
        first, second = decided(*situation, rules), decided(*situation, CelRules())
        before = rules.asked
        assert encode(first.plan) == encode(second.plan)
        assert rules.asked == before, "the plan doesn't depend on findings"
        assert first.findings == second.findings
        looked += rules.asked > before
        after = rules.asked
        assert list(first.findings) == list(second.findings)
        once += rules.asked == after
        assert all(first.findings[n] == f for n, f in enumerate(second.findings))
        assert first.findings[:2] == second.findings[:2]
    assert looked > 20
    assert once == 60


class Rows:
    """A sheet of given columns."""

    def __init__(self, size: int, columns: dict[str, list[Any]]) -> None:
        self.size, self._columns = size, columns

    def values(self, name: str) -> list[Any]:
        return self._columns.get(name, [None])


SHEET = Rows(
    20,
    {
        "worker.kvUsage": [Known(value=n / 20, unit="1", at=0.0, query="q") if n % 7 else Missing(reason="NaN") for n in range(20)],
        "worker.role": ["prefill" if n % 3 else "decode" for n in range(20)],
        "worker.labels": [{"tier": "gold"} if n % 2 else {} for n in range(20)],
        "worker.incarnation": [2**63 - 1 if n == 4 else n for n in range(20)],
        "pools.decode.waiting": [Known(value=3.0, unit="1", at=0.0, query="q")],
    },
)
ASKED = (
    'worker.role == "decode" && worker.kvUsage > 0.5',
    'worker.labels["tier"] == "gold" || worker.kvUsage < 0.3',
    "worker.incarnation + 1 > 3",
    "pools.decode.waiting > 2.0 && worker.kvUsage < 0.9",
    "pools.prefill.waiting > 2.0",
    "worker.labels.exists(k, k == 'tier')",
    "this isn't an expression",
)


@pytest.mark.parametrize("few", [0, 100])
@pytest.mark.parametrize("text", ASKED)
def test_each_is_answered_as_if_it_were_asked_alone(monkeypatch, text, few):
    monkeypatch.setattr(bulk, "FEW", few)
    reference, expression = OneByOne(CelRules()), Expression(text=text)
    assert list(BulkCelRules().test_all(expression, SHEET)) == list(reference.test_all(expression, SHEET))
    number = Expression(text=f"({text}) ? worker.kvUsage : 1.5 * pools.decode.waiting")
    assert list(BulkCelRules().measure_all(number, SHEET)) == list(reference.measure_all(number, SHEET))


def test_answers_differ_from_row_to_row():
    answers = BulkCelRules().test_all(Expression(text=ASKED[0]), SHEET)
    assert {True, False, None} == set(answers)
    assert compiled(ASKED[5]).inputs, "one of them has no counterpart on columns and is answered row by row"


def test_a_sheet_is_not_kept_beyond_its_time():
    rules, sheet = BulkCelRules(), Rows(20, {"worker.kvUsage": [Known(value=0.5, unit="1", at=0.0, query="q")] * 20})
    rules.test_all(Expression(text="worker.kvUsage > 0.1"), sheet)
    assert len(rules._tables) == 1
    del sheet
    assert len(rules._tables) == 0


def test_rules_that_answer_one_by_one_are_asked_so():
    assert isinstance(in_bulk(CelRules()), OneByOne)
    rules = BulkCelRules()
    assert in_bulk(rules) is rules
    assert isinstance(rules, BulkRules)


@pytest.mark.parametrize("looked", [True, False])
def test_an_evaluation_leaves_nothing_for_the_garbage_collector(monkeypatch, looked):
    """A large fleet's indexes would wait for a full collection, which takes as long as deciding does."""
    made = []

    class Watched(Deciding):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.extend([ref(self), ref(self.world), ref(self.scopes), ref(self.finder)])

    monkeypatch.setattr("shunter.decide.evaluate.Deciding", Watched)
    rules = BulkCelRules()
    for seed in range(60):
        situation = situation_of(Random(seed))
        gc.disable()
        try:
            evaluation = decided(*situation, rules)
            assert not looked or len(evaluation.findings) >= 0
            del evaluation
            assert [one() for one in made] == [None] * 4, seed
        finally:
            gc.enable()
            made.clear()


def test_evidence_of_a_known_answer_is_what_asking_gives():
    """Also where two things read differ and the answer doesn't: evidence that is shared must be alike in all of it."""
    rules, told = CelRules(), 0
    teller = Teller(rules)
    texts = ('worker.role == "decode" || worker.incarnation > -1', "worker.incarnation >= 0", 'worker.labels["tier"] == "gold"', ASKED[1])
    for expression in (Expression(text=text) for text in texts):
        for role, incarnation, tier, usage in itertools.product(("decode", "prefill"), (0, 1), ("gold", "silver"), (0.1, 0.2, None)):
            scope: dict[str, Any] = {"worker.role": role, "worker.incarnation": incarnation, "worker.labels": {"tier": tier}}
            if usage is not None:
                scope["worker.kvUsage"] = Known(value=usage, unit="1", at=0.0, query="q")
            answer, evidence = ask(rules, "when", expression, scope)
            if not isinstance(answer, Undecided):
                assert teller.tell("when", expression, scope, answer) == evidence
                told += 1
    assert told > 60
