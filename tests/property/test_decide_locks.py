"""Where a decision may stand still, it has no lock that another one waits for."""

import sys
from random import Random

from shunter.decide.evaluate import evaluate
from shunter.model.expression import Expression, Scope, Undecided
from shunter.model.ids import Commit, Digest
from shunter.model.policy import PolicySet
from test_decide import NOW, PROFILE, Threshold, situation_of


class Watching(Threshold):
    """Notes the attributes that are being made by a `cached_property` while it is asked: Python 3.11's holds one lock for all instances."""

    def __init__(self) -> None:
        self.asked, self.locked = 0, set[str]()

    def _look(self) -> None:
        self.asked += 1
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "__get__" and frame.f_code.co_filename.endswith("functools.py"):
                self.locked.add(frame.f_locals["self"].attrname)
            frame = frame.f_back  # type: ignore[assignment]

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        self._look()
        return super().test(expression, scope)

    def measure(self, expression: Expression, scope: Scope) -> float | Undecided:
        self._look()
        return super().measure(expression, scope)


def test_no_rule_is_asked_while_a_lock_is_held_that_all_decisions_share() -> None:
    rules = Watching()
    for seed in range(100):
        policies, series, state = situation_of(Random(seed))
        given = PolicySet(commit=Commit("c"), digest=Digest("sha256:p"), policies=tuple(policies))
        tuple(evaluate(given, series, state, NOW, rules, PROFILE).findings)
    assert rules.asked > 100
    assert rules.locked == set()
