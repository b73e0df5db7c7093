"""What a kind's keys can get wrong together, each by itself in order: what a schema can't say, at the key where it is to be mended."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from shunter.lang import zones
from shunter.lang.bind import Path, UnboundError
from shunter.model.errors import Problem
from shunter.model.policy import (
    BudgetSpec,
    CheckpointSpec,
    FleetProfileSpec,
    ReassignmentSpec,
    RebalanceSpec,
    Window,
)
from shunter.model.snapshot import NoticeKind
from shunter.model.units import Duration

Report: TypeAlias = Callable[[str, Path, str, str], Problem]
"""Makes a problem of a code, the path in the document, what is wrong and what to do."""

LOOKS_BACK: Final = Duration(3600)
"""How far back the engine knows what it did."""
FIGURES: Final = ("dump", "restore", "network", "fixed_dump", "fixed_restore", "native_start", "prefill_rate", "prefill_doubling")
"""Of a profile, of which it has to give one."""


def misuses(problem: Report, spec: object) -> Iterator[Problem]:
    """Everything that is wrong with a `spec`, whichever kind's it is, as far as it could be bound."""
    for check in _CHECKS.get(type(spec), ()):
        yield from known(check(problem, spec))


def known(found: Iterator[Problem]) -> Iterator[Problem]:
    """What a check can say before it needs a value that couldn't be bound."""
    try:  # not `suppress`: this is asked of every check of every document
        yield from found
    except UnboundError:
        return


def _more_than_nothing(problem: Report, path: Path, value: float | None, remedy: str) -> Iterator[Problem]:
    if value is not None and value <= 0:
        yield problem("SH115", path, f"{'.'.join(str(step) for step in path)} must be more than 0", remedy)


def _cooldown(problem: Report, spec: ReassignmentSpec | RebalanceSpec) -> Iterator[Problem]:
    if spec.cooldown > LOOKS_BACK:
        what = f"spec.cooldown is {spec.cooldown}, and the engine knows of the last hour only: it would act again after {LOOKS_BACK}"
        yield problem("SH115", ("spec", "cooldown"), what, f"Write {LOOKS_BACK} or less; to stop for longer, set mode: off")


# -- shifts


def _to_the_other(problem: Report, spec: ReassignmentSpec) -> Iterator[Problem]:
    if spec.from_ == spec.to:
        yield problem("SH122", ("spec", "to"), f"from and to are both {spec.to}", "Give the hardware to the other role")


def _when(problem: Report, spec: ReassignmentSpec) -> Iterator[Problem]:
    if spec.follow == "thresholds" and spec.when is None:
        what = 'spec lacks the key "when"'
        yield problem("SH112", ("spec",), what, "Add when: to it, or follow: planner to carry out what the planner wants")
    for name, given in (("when", spec.when), ("revert", spec.revert)) if spec.follow == "planner" else ():
        if given is not None:
            what = f"{name} stands beside follow: planner, which says itself when"
            yield problem("SH122", ("spec", name), what, f"Remove {name}, or follow: planner")


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


def _how_often(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    if spec.every is None and spec.cadence is None:
        yield problem("SH112", ("spec",), 'spec lacks the key "every" or "cadence"', "Add every: 5m to it, or a computed cadence")
    elif spec.every is not None and spec.cadence is not None:
        yield problem("SH122", ("spec", "cadence"), "cadence stands beside every", "Keep one of the two")


def _every(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    yield from _more_than_nothing(problem, ("spec", "every"), spec.every, "Write how long to wait between images, such as 5m")


def _shortest(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    path = ("spec", "cadence", "optimal", "min")
    if spec.cadence is not None:
        remedy = "Write the shortest interval that you would take, such as 1m"
        yield from _more_than_nothing(problem, path, spec.cadence.optimal.min, remedy)


def _shortest_and_longest(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    if spec.cadence is not None and (optimal := spec.cadence.optimal).min > optimal.max:
        what = f"the shortest interval is {optimal.min}, and the longest {optimal.max}"
        remedy = f"Write a min of {optimal.max} or less, or a longer max"
        yield problem("SH122", ("spec", "cadence", "optimal", "min"), what, remedy)


def _pause(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    remedy = "Write how long a worker may stand still, or remove the key"
    yield from _more_than_nothing(problem, ("spec", "pause", "atMost"), spec.pause.at_most, remedy)


def _overhead(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    if spec.overhead is not None:
        remedy = "Write the share of its time that a worker may stand still, such as 1%"
        yield from _more_than_nothing(problem, ("spec", "overhead", "atMost"), spec.overhead.at_most, remedy)


def _within(problem: Report, spec: CheckpointSpec) -> Iterator[Problem]:
    yield from _more_than_nothing(problem, ("spec", "keep", "within"), spec.keep.within, "Write how long to keep images, or remove the key")


# -- moves


def _gain(problem: Report, spec: RebalanceSpec) -> Iterator[Problem]:
    if spec.gain is not None and spec.to.prefer is None:
        what = "gain stands without to.prefer, so there is nothing to be better in"
        yield problem("SH112", ("spec", "gain"), what, "Add prefer: to spec.to, a number by which places are compared; or remove gain")


# -- budgets


def _some_limit(problem: Report, spec: BudgetSpec) -> Iterator[Problem]:
    if spec.max_concurrent is None and spec.max_per_window is None and not spec.windows:
        remedy = "Add maxConcurrent, maxPerWindow or windows to it, or remove the budget"
        yield problem("SH128", ("spec",), "the budget limits nothing", remedy)


def _stretch(problem: Report, spec: BudgetSpec) -> Iterator[Problem]:
    path, given = ("spec", "maxPerWindow", "window"), spec.max_per_window
    if given is None:
        return
    yield from _more_than_nothing(problem, path, given.window, "Write the stretch of time in which they are counted, such as 10m")
    if given.window > LOOKS_BACK:
        what = f"spec.maxPerWindow.window is {given.window}, and the engine knows of the last hour only"
        yield problem("SH115", path, what, f"Write {LOOKS_BACK} or less, and a lower max")


def _windows(problem: Report, spec: BudgetSpec) -> Iterator[Problem]:
    for index, window in enumerate(spec.windows):
        path = ("spec", "windows", index)
        yield from known(_zone(problem, path, window))
        yield from known(_ends(problem, path, window))


def _zone(problem: Report, path: Path, window: Window) -> Iterator[Problem]:
    if (wrong := zones.fault(window.zone)) is not None:
        yield problem("SH127", (*path, "zone"), *wrong)


def _ends(problem: Report, path: Path, window: Window) -> Iterator[Problem]:
    if window.from_ == window.to:
        remedy = 'For the whole day write from: "00:00" and to: "24:00"'
        yield problem("SH122", (*path, "to"), f"from and to are both {window.to}: it isn't clear whether that is a day or nothing", remedy)


# -- figures


def _some_figure(problem: Report, spec: FleetProfileSpec) -> Iterator[Problem]:
    if not spec.lead and all(getattr(spec, name) is None for name in FIGURES):
        yield problem("SH128", ("spec",), "the profile gives no figure", "Add one, such as network: 5GB/s, or remove the profile")


def _leads(problem: Report, spec: FleetProfileSpec) -> Iterator[Problem]:
    for kind, lead in spec.lead.items():
        yield from known(_lead(problem, kind, lead))


def _lead(problem: Report, kind: NoticeKind, lead: Duration) -> Iterator[Problem]:
    yield from _more_than_nothing(problem, ("spec", "lead", kind.value), lead, "Write how long before the end such a notice comes")


_CHECKS: Final[Mapping[type, tuple[Callable[[Report, Any], Iterator[Problem]], ...]]] = {
    ReassignmentSpec: (_to_the_other, _taken_from, _when, _cooldown),
    CheckpointSpec: (_how_often, _every, _shortest, _shortest_and_longest, _pause, _overhead, _within),
    RebalanceSpec: (_gain, _cooldown),
    BudgetSpec: (_some_limit, _stretch, _windows),
    FleetProfileSpec: (_some_figure, _leads),
}
"""Each check stands by itself, so that one which needs a value that couldn't be bound doesn't silence the others."""
