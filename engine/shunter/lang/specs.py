"""What a kind's keys can get wrong together, each by itself in order: what a schema can't say, at the key where it is to be mended."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from shunter.lang import zones
from shunter.lang.bind import Path
from shunter.model.errors import Problem
from shunter.model.policy import (
    BudgetSpec,
    CheckpointSpec,
    FleetProfileSpec,
    PerWindow,
    ReassignmentSpec,
    RebalanceSpec,
    Window,
)
from shunter.model.units import Duration

Report: TypeAlias = Callable[[str, Path, str, str], Problem]
"""Makes a problem of a code, the path in the document, what is wrong and what to do."""

LOOKS_BACK: Final = Duration(3600)
"""How far back the engine knows what it did."""
_FIGURES: Final = ("dump", "restore", "network", "fixed_dump", "fixed_restore", "native_start", "prefill_rate")


def misuses(problem: Report, spec: object) -> Iterator[Problem]:
    """Everything that is wrong with a bound `spec`, whichever kind's it is."""
    check = _CHECKS.get(type(spec))
    return check(problem, spec) if check else iter(())


def _more_than_nothing(problem: Report, path: Path, value: float | None, remedy: str) -> Iterator[Problem]:
    if value is not None and value <= 0:
        yield problem("SH115", path, f"{'.'.join(str(step) for step in path)} must be more than 0", remedy)


def _cooldown(problem: Report, cooldown: Duration) -> Iterator[Problem]:
    if cooldown > LOOKS_BACK:
        what = f"spec.cooldown is {cooldown}, and the engine knows of the last hour only: it would act again after {LOOKS_BACK}"
        yield problem("SH115", ("spec", "cooldown"), what, f"Write {LOOKS_BACK} or less; to stop for longer, set mode: off")


# -- shifts


def _reassignment(problem: Report, spec: ReassignmentSpec) -> Iterator[Problem]:
    if spec.from_ == spec.to:
        yield problem("SH122", ("spec", "to"), f"from and to are both {spec.to}", "Give the hardware to the other role")
    yield from _taken_from(problem, spec)
    if spec.follow == "thresholds" and spec.when is None:
        what = 'spec lacks the key "when"'
        yield problem("SH112", ("spec",), what, "Add when: to it, or follow: planner to carry out what the planner wants")
    for name, given in (("when", spec.when), ("revert", spec.revert)) if spec.follow == "planner" else ():
        if given is not None:
            what = f"{name} stands beside follow: planner, which says itself when"
            yield problem("SH122", ("spec", name), what, f"Remove {name}, or follow: planner")
    yield from _cooldown(problem, spec.cooldown)


def _taken_from(problem: Report, spec: ReassignmentSpec) -> Iterator[Problem]:
    if spec.workers.role is None:
        return
    path = ("spec", "workers", "role")
    if spec.workers.role != spec.from_:
        what = f"workers.role is {spec.workers.role}, but hardware is taken from {spec.from_}: no worker can be picked"
        yield problem("SH122", path, what, f"Remove the role, or write {spec.from_}")
    elif spec.follow == "planner":
        what = f"workers.role is {spec.workers.role}, and the planner may want hardware of either pool: no {spec.to} worker can be picked"
        yield problem("SH122", path, what, "Remove the role, and say which graph is meant")


# -- images


def _checkpoint(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    if spec.every is None and spec.cadence is None:
        yield problem("SH112", ("spec",), 'spec lacks the key "every" or "cadence"', "Add every: 5m to it, or a computed cadence")
    elif spec.every is not None and spec.cadence is not None:
        yield problem("SH122", ("spec", "cadence"), "cadence stands beside every", "Keep one of the two")
    yield from _more_than_nothing(problem, ("spec", "every"), spec.every, "Write how long to wait between images, such as 5m")
    if spec.cadence is not None:
        optimal, path = spec.cadence.optimal, ("spec", "cadence", "optimal")
        yield from _more_than_nothing(problem, (*path, "min"), optimal.min, "Write the shortest interval that you would take, such as 1m")
        if optimal.min > optimal.max:
            what = f"the shortest interval is {optimal.min}, and the longest {optimal.max}"
            yield problem("SH122", (*path, "min"), what, f"Write a min of {optimal.max} or less, or a longer max")
    remedy = "Write how long a worker may stand still, or remove the key"
    yield from _more_than_nothing(problem, ("spec", "pause", "atMost"), spec.pause.at_most, remedy)
    if spec.overhead is not None:
        remedy = "Write the share of its time that a worker may stand still, such as 1%"
        yield from _more_than_nothing(problem, ("spec", "overhead", "atMost"), spec.overhead.at_most, remedy)
    yield from _more_than_nothing(problem, ("spec", "keep", "within"), spec.keep.within, "Write how long to keep images, or remove the key")


# -- moves


def _rebalance(problem: Report, spec: RebalanceSpec) -> Iterator[Problem]:
    if spec.gain is not None and spec.to.prefer is None:
        what = "gain stands without to.prefer, so there is nothing to be better in"
        yield problem("SH112", ("spec", "gain"), what, "Add prefer: to spec.to, a number by which places are compared; or remove gain")
    yield from _cooldown(problem, spec.cooldown)


# -- budgets


def _budget(problem: Report, spec: BudgetSpec) -> Iterator[Problem]:
    if spec.max_concurrent is None and spec.max_per_window is None and not spec.windows:
        remedy = "Add maxConcurrent, maxPerWindow or windows to it, or remove the budget"
        yield problem("SH128", ("spec",), "the budget limits nothing", remedy)
    if spec.max_per_window is not None:
        yield from _stretch(problem, spec.max_per_window)
    for index, window in enumerate(spec.windows):
        yield from _window(problem, ("spec", "windows", index), window)


def _stretch(problem: Report, given: PerWindow) -> Iterator[Problem]:
    path = ("spec", "maxPerWindow", "window")
    yield from _more_than_nothing(problem, path, given.window, "Write the stretch of time in which they are counted, such as 10m")
    if given.window > LOOKS_BACK:
        what = f"spec.maxPerWindow.window is {given.window}, and the engine knows of the last hour only"
        yield problem("SH115", path, what, f"Write {LOOKS_BACK} or less, and a lower max")


def _window(problem: Report, path: Path, window: Window) -> Iterator[Problem]:
    if (wrong := zones.fault(window.zone)) is not None:
        yield problem("SH127", (*path, "zone"), *wrong)
    if window.from_ == window.to:
        remedy = 'For the whole day write from: "00:00" and to: "24:00"'
        yield problem("SH122", (*path, "to"), f"from and to are both {window.to}: it isn't clear whether that is a day or nothing", remedy)


# -- figures


def _profile(problem: Report, spec: FleetProfileSpec) -> Iterator[Problem]:
    if not spec.lead and all(getattr(spec, name) is None for name in _FIGURES):
        yield problem("SH128", ("spec",), "the profile gives no figure", "Add one, such as network: 5GB/s, or remove the profile")
    for kind, lead in spec.lead.items():
        yield from _more_than_nothing(problem, ("spec", "lead", kind.value), lead, "Write how long before the end such a notice comes")


_CHECKS: Final[Mapping[type, Callable[[Report, Any], Iterator[Problem]]]] = {
    ReassignmentSpec: _reassignment,
    CheckpointSpec: _checkpoint,
    RebalanceSpec: _rebalance,
    BudgetSpec: _budget,
    FleetProfileSpec: _profile,
}
