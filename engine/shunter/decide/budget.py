"""Disruption budgets: what keeps voluntary work from disrupting too much at once. Involuntary work counts, but never asks."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from shunter.decide.gates import missing
from shunter.decide.history import History
from shunter.decide.plan import Ranked
from shunter.decide.usage import Usage
from shunter.decide.window import Unreadable, is_open, opens_at, said
from shunter.decide.world import World
from shunter.model.expression import Undecided
from shunter.model.finding import Evidence, Input, Verdict
from shunter.model.plan import OperationKind
from shunter.model.policy import BudgetSpec, DisruptionBudget, Policy, WorkerSelector
from shunter.model.snapshot import ZONE_LABEL, Worker
from shunter.model.units import Duration, Share

DEFAULT: Final = BudgetSpec(workers=WorkerSelector(all=True), max_concurrent=1)
"""What holds for a worker that no budget covers: one disruption at a time in its pool. Having written no budget is no leave to disrupt a
whole pool at once, and one at a time is the least with which anything can be done at all.
"""
_HELD: Final = 5
"""At most so many of the operations that a budget holds are named."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """One limit of a budget in one group: `used` of `allowed` disruptions, which ones in words, and how a share came to that number."""

    gate: str
    group: str
    used: int
    allowed: int
    told: str
    how: str = ""

    @property
    def spent(self) -> bool:
        """Nothing is left of it."""
        return self.used >= self.allowed

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The two numbers, for programs."""
        return (Input(name="used", value=self.used), Input(name="allowed", value=self.allowed))

    def __str__(self) -> str:
        return f"{self.used} of {self.allowed} {self.told}{self.how}"

    def there(self) -> str:
        """The same with the name of the group."""
        return f"{self.used} of {self.allowed} {self.told} in {self.group}{self.how}"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the budgets say of one operation. `refusal` is why it must wait, None when it needn't."""

    refusal: str | None
    evidence: tuple[Evidence, ...]


_FREE: Final = Answer(refusal=None, evidence=())


class _Refusal(NamedTuple):
    """Why a budget doesn't allow a disruption, None if it does; its state in words; and how many it leaves, less than nothing if more go on
    than may.
    """

    why: str | None
    state: str
    left: float = math.inf


_NOTHING: Final = -math.inf
"""What is left of a budget that counts as zero, whatever goes on."""


class Budget:
    """One budget, counting along while a plan is made. `policy` is None for the default one."""

    def __init__(self, policy: Policy | None, spec: BudgetSpec, usage: Usage, now: float) -> None:
        self.policy, self.spec, self.usage, self._now = policy, spec, usage, now
        self.held: dict[str, list[str]] = {}
        self.refused = _refused(policy)
        self.shut = self.refused or _shut(spec, now)

    @property
    def name(self) -> str:
        """As it is called in a reason."""
        return f"budget {self.policy.name}" if self.policy else "no budget covers it, so one at a time"

    def bounds(self, group: str, *, shown: bool = False) -> list[Bound]:
        """Its limits on the number in the group."""
        size, found, spec = self.usage.size[group], [], self.spec
        if spec.max_concurrent is not None:
            allowed, how = effective(spec.max_concurrent, size)
            used = self.usage.going(group, shown=shown)
            found.append(Bound(gate="maxConcurrent", group=group, used=used, allowed=allowed, told="at once", how=how))
        if spec.max_per_window is not None:
            allowed, how = effective(spec.max_per_window.max, size)
            used, told = self.usage.begun(group, shown=shown), f"begun within {Duration(spec.max_per_window.window)}"
            found.append(Bound(gate="maxPerWindow", group=group, used=used, allowed=allowed, told=told, how=how))
        return found

    def refusal(self, worker: Worker, covered: bool | Undecided, *, shown: bool) -> "_Refusal":
        """Whether, and why, the worker may not be disrupted now."""
        group = self.usage.group(worker)
        if isinstance(covered, Undecided):
            why = f"whether it covers {worker.id} can't be said ({missing(covered)}), so it counts as zero for it"
        elif self.refused is not None:
            why = self.refused
        elif group is None:
            why = f"{worker.node} has no label {ZONE_LABEL}, so it counts as zero for {worker.id}"
        elif self.shut is not None:
            why = self.shut
        else:
            bounds = self.bounds(group, shown=shown)
            # the one with the least left speaks for all
            tightest = min((b for b in bounds if b.spent), key=lambda b: b.allowed - b.used, default=None)
            state = ", ".join(b.there() for b in bounds) or f"no limit on the number in {group}"
            return _Refusal(tightest.there(), state, tightest.allowed - tightest.used) if tightest else _Refusal(None, state)
        return _Refusal(why, why, _NOTHING)

    def hold(self, worker: Worker, what: str) -> None:
        """Note what it holds, in the worker's group."""
        if (group := self.usage.group(worker)) is not None and what not in self.held.setdefault(group, []):
            self.held[group].append(what)


class Budgets:
    """All budgets in force or shown, asked by whoever wants to plan something voluntary."""

    def __init__(
        self,
        policies: Sequence[Policy],
        worlds: Sequence[World],
        history: History,
        covers: Callable[[Policy, Worker], bool | Undecided],
        ranked: Sequence[Ranked],
        now: float,
    ) -> None:
        self._covers, self._ranked, self._counted = covers, ranked, 0
        self._worlds, self._history, self._now = worlds, history, now
        own = sorted((p for p in policies if isinstance(p.document, DisruptionBudget) and p.mode != "off"), key=lambda p: p.name)
        self._own = [self._of(p, p.document.spec) for p in own if isinstance(p.document, DisruptionBudget)]

    @cached_property
    def _default(self) -> Budget:
        """Made when it is first asked: most of the time it isn't."""
        budget = self._of(None, DEFAULT)
        for one in self._ranked[: self._counted]:
            budget.usage.plan(one.operation)
        return budget

    def _of(self, policy: Policy | None, spec: BudgetSpec) -> Budget:
        covers = self._covers
        usage = Usage(spec, lambda w: True if policy is None else covers(policy, w), self._worlds, self._history, self._now)
        return Budget(policy, spec, usage, self._now)

    def ask(self, policy: Policy, kind: OperationKind, worker: Worker) -> Answer:
        """Whether the policy may begin an operation of this kind on the worker now: all budgets that cover it must allow it, and the one
        that leaves least says why not.

        What is only shown is also held by what else is only shown, but holds nothing that is carried out; nor does a budget that is only
        shown.
        """
        self._count()
        shown, asked = policy.mode == "preview", self._asked(kind, worker)
        if not asked:
            return _FREE
        refusals: list[tuple[float, str]] = []
        evidence: list[Evidence] = []
        for budget, covered in asked:
            refused = budget.refusal(worker, covered, shown=shown)
            why, state = refused.why, refused.state
            if why is not None:
                budget.hold(worker, f"{kind.value} of {worker.id} by {policy.name}")
            if budget.policy is not None and budget.policy.mode == "preview":
                continue
            if budget.policy is None:
                told = f"{budget.name} in {budget.usage.group(worker)}"
                evidence.append(Evidence(gate="budget.default", result=why is None, detail=told))
            else:
                evidence.append(Evidence(gate="budget", result=why is None, detail=f"{budget.name}: {state}"))
            if why is not None:
                refusals.append((refused.left, f"{budget.name}: {why}"))
        tightest = min(refusals, key=itemgetter(0), default=None)
        return Answer(refusal=tightest[1] if tightest else None, evidence=tuple(evidence))

    def _asked(self, kind: OperationKind, worker: Worker) -> list[tuple[Budget, bool | Undecided]]:
        """The budgets that have a say, with whether they cover the worker; the default one where no other that is in force does."""
        found: list[tuple[Budget, bool | Undecided]] = []
        for budget in self._own:
            if budget.policy is None or kind.value not in budget.spec.operations:
                continue
            covered = self._covers(budget.policy, worker)
            if covered is not False:
                found.append((budget, covered))
        in_force = any(b.policy is not None and b.policy.mode == "enforce" for b, _ in found)
        if not in_force and kind.value in DEFAULT.operations:
            found.append((self._default, True))
        return found

    def _count(self) -> None:
        """Catch up with the plan that is being made."""
        for one in self._ranked[self._counted :]:
            for budget in self._own if "_default" not in self.__dict__ else (*self._own, self._default):
                budget.usage.plan(one.operation)
        self._counted = len(self._ranked)

    def report(self, find: Callable[..., None]) -> None:
        """Enter a finding for each budget and group: what is in use, what is allowed, what it holds."""
        self._count()
        for budget in self._own:
            for group in sorted({*budget.usage.groups(), *budget.held}):
                _report(find, budget, group)


def effective(limit: int | Share, size: int) -> tuple[int, str]:
    """How many a limit allows in a group of `size` workers, and how a share came to that. Rounded down; 3% of 20 is none."""
    if not isinstance(limit, Share):
        return limit, ""
    # a share is a float: 0.29 * 100 is a little less than 29
    allowed = math.floor(round(float(limit) * size, 9))
    return allowed, f" ({limit} of {size}{'' if allowed == round(float(limit) * size, 9) else ' rounded down'}: {allowed})"


def _refused(policy: Policy | None) -> str | None:
    """Why a budget that couldn't be read allows nothing; None for one that could."""
    if policy is None or (wrong := policy.refused) is None:
        return None
    return f"it can't be read, so it counts as zero ({wrong.place or policy.place}: {wrong.code} {wrong.what})"


def _shut(spec: BudgetSpec, now: float) -> str | None:
    """Why no window is open now, and when one will be; None when one is, or none is asked for. One that can't be read is never open."""
    if not spec.windows:
        return None
    openings: list[tuple[float, str]] = []
    broken = ""
    for window in spec.windows:
        try:
            if is_open(window, now):
                return None
            if (at := opens_at(window, now)) is not None:
                openings.append((at, said(window, at)))
        except Unreadable as error:
            broken = broken or f", and {error}"
    return f"its windows are closed; opens at {min(openings)[1]}{broken}" if openings else f"its windows are closed and don't open{broken}"


def _report(find: Callable[..., None], budget: Budget, group: str) -> None:
    bounds, held = budget.bounds(group), budget.held.get(group, [])
    shown = budget.policy is not None and budget.policy.mode == "preview"
    spec, size = budget.spec, budget.usage.size[group]
    evidence = [Evidence(gate="per", result=True, detail=f"{size:,} workers in {group}: {', '.join(spec.operations)}")]
    evidence += [Evidence(gate=b.gate, result=not b.spent, detail=str(b), inputs=b.inputs) for b in bounds]
    if budget.refused:
        evidence.insert(1, Evidence(gate="file", result=False, detail=budget.refused))
    if spec.windows:
        evidence.append(Evidence(gate="windows", result=budget.shut is None, detail=budget.shut or "a window is open"))
    parts = [*(str(b) for b in bounds), *([budget.shut] if budget.shut else [])] or ["no limit on the number"]
    if held:
        named = ", ".join(sorted(held)[:_HELD]) + (f" and {len(held) - _HELD} more" if len(held) > _HELD else "")
        parts.append(f"{'it would hold' if shown else 'it holds'} {named}")
    verdict = Verdict.HOLD if held and not shown else Verdict.PASS
    gate = next((e.gate for e in evidence if not e.result), "budget")
    find(budget.policy, group, verdict, "; ".join(parts), gate=gate, evidence=evidence)
