"""Budgets under which nothing voluntary would ever be done."""

from collections.abc import Iterator

from shunter.lang.whole.overlap import same_workers
from shunter.lang.whole.texts import Texts
from shunter.lang.whole.weeks import meet
from shunter.model.errors import Problem
from shunter.model.policy import BudgetSpec, Policy


def never_met(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH146: a limit of nothing, and budgets that cover the same workers without ever being open at once."""
    budgets = [(p, p.document.spec) for p in policies if isinstance(p.document.spec, BudgetSpec) and p.mode == "enforce"]
    for index, (policy, spec) in enumerate(budgets):
        yield from _nothing(policy, spec, texts)
        for earlier, its in budgets[:index]:
            if _apart(spec, its) and (shared := same_workers(earlier, policy)) is not None:
                what = f'no window is open while one of "{earlier.name}" at {earlier.place} is, and both cover {shared}'
                remedy = "The most restrictive budget counts, so nothing voluntary would ever begin: let the windows meet"
                yield texts.warning(policy, ("spec", "windows"), "SH146", what, remedy)


def idle(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH156: a budget that counts only what is never done."""
    for policy in policies:
        spec = policy.document.spec
        if isinstance(spec, BudgetSpec) and policy.mode != "off" and set(spec.operations) == {"reassign"}:
            what = "no engine flips a worker's role in place yet, so the budget neither counts nor holds anything"
            remedy = "A reassignment is made of moves, parks and drains: name those of them that it should limit"
            yield texts.warning(policy, ("spec", "operations"), "SH156", what, remedy)


def _nothing(policy: Policy, spec: BudgetSpec, texts: Texts) -> Iterator[Problem]:
    limits = {"maxConcurrent": spec.max_concurrent, "maxPerWindow.max": spec.max_per_window.max if spec.max_per_window else None}
    for name, limit in limits.items():
        if limit is not None and limit == 0:
            what = f"{name} is {limit}: nothing voluntary ever begins on the workers that it covers"
            remedy = "Write 1 or more; to have a policy only say what it would do, set its mode: preview"
            yield texts.warning(policy, ("spec", *name.split(".")), "SH146", what, remedy)


def _apart(one: BudgetSpec, other: BudgetSpec) -> bool:
    """Both have windows, both are asked for some operation, and no two of the windows meet."""
    both = one.windows and other.windows and not set(one.operations).isdisjoint(other.operations)
    return bool(both) and not any(meet(a, b) for a in one.windows for b in other.windows)
