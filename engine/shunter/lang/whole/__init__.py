"""What policies that are sound each by itself get wrong together, or for the fleet that they are meant for. All warnings.

These checks are for whoever writes policies (`shunter validate`). Loading a set doesn't need them: the engine copes with all of it.
"""

from collections.abc import Sequence

from shunter.lang.whole.budgets import idle, never_met
from shunter.lang.whole.flapping import motionless, opposites, swings, undone
from shunter.lang.whole.fleet import Engine, fits
from shunter.lang.whole.rivals import followers, profiles, rivals, unbound, unpriced, unseen
from shunter.lang.whole.texts import Texts
from shunter.model.errors import Problem
from shunter.model.policy import Policy
from shunter.model.snapshot import Snapshot

__all__ = ["Engine", "Texts", "check_fleet", "check_set"]


def check_set(policies: Sequence[Policy], texts: Texts) -> tuple[Problem, ...]:
    """Policies that contradict each other or themselves.

    SH140 equal rank, SH141 `revert`, SH142 opposites, SH146 budgets under which nothing begins, SH148 two profiles for one GPU model,
    SH149 two that decide one graph's split, SH152 moves that never come about, SH153 previews that can't show or limit anything,
    SH154 moves that are weighed by half, SH155 moves that another takes back, SH156
    budgets that count nothing.
    """
    ordered = sorted(policies, key=lambda p: p.name)
    found: list[Problem] = []
    for check in (rivals, opposites, never_met, profiles, followers, unseen, unbound, unpriced, swings, idle):
        found += check(ordered, texts)
    for policy in ordered:
        found += [*undone(policy, texts), *motionless(policy, texts)]
    return tuple(found)


def check_fleet(policies: Sequence[Policy], texts: Texts, snapshot: Snapshot, engine: Engine) -> tuple[Problem, ...]:
    """What can't work in a fleet: see `fleet.fits`."""
    in_use = (p for p in sorted(policies, key=lambda p: p.name) if p.mode != "off")
    return tuple(problem for policy in in_use for problem in fits(policy, texts, snapshot, engine))
