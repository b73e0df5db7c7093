"""Policies that want the same thing done, or the same figures believed: one of them goes unheard."""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from shunter.lang.whole.overlap import contested, pairs, same_graph, same_workers, within
from shunter.lang.whole.texts import Texts
from shunter.model.errors import Problem
from shunter.model.policy import BudgetSpec, FleetProfileSpec, Policy, ReassignmentSpec


def rivals(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH140, once for each policy in force: at the one that loses, naming the first that it loses to."""
    told: set[str] = set()
    for first, second in pairs(_in_force(policies)):
        if second.name in told or first.priority != second.priority or first.kind != second.kind:
            continue
        shared = contested(first, second)
        if shared is None:
            continue
        told.add(second.name)
        sure = "both cover" if shared.example is None else "both can cover"
        what = f'"{second.name}" and "{first.name}" at {first.place} {sure} {shared}; both have priority {first.priority}'
        remedy = f'By its name alone "{first.name}" goes first: give the one that should a higher priority, or cover different workers'
        yield texts.warning(second, ("spec", "priority") if second.priority != 100 else (), "SH140", what, remedy)


def profiles(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH148: two profiles in force that give the same figure for one GPU model, or for all."""
    given: defaultdict[str | None, list[tuple[Policy, frozenset[str]]]] = defaultdict(list)
    for policy in policies:
        spec = policy.document.spec
        if not isinstance(spec, FleetProfileSpec) or policy.mode != "enforce":
            continue
        own = _figures(spec)
        for other, its in given[spec.gpu_model]:
            if own & its:
                whose = spec.gpu_model or "workers of any GPU model"
                what = f'"{policy.name}" and "{other.name}" at {other.place} both give {", ".join(sorted(own & its))} for {whose}'
                remedy = f'By its name alone "{other.name}" counts: keep one figure of each'
                yield texts.warning(policy, ("spec", sorted(own & its)[0].partition(".")[0]), "SH148", what, remedy)
                break
        given[spec.gpu_model].append((policy, own))


def unpriced(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH154: a native start for which no profile says what computing context again takes."""
    given = [(p, spec) for p in policies if isinstance(spec := p.document.spec, FleetProfileSpec) and p.mode == "enforce"]
    rated = {spec.gpu_model for _, spec in given if spec.prefill_rate is not None}
    for policy, spec in given:
        if spec.native_start is not None and not {spec.gpu_model, None} & rated:
            what = f"moves are weighed against a native start of {spec.native_start} alone, as if its sessions' context came back by itself"
            remedy = "Add prefillRate: the tokens of context that a worker computes again in a second"
            yield texts.warning(policy, ("spec", "nativeStart"), "SH154", what, remedy)


def _figures(spec: FleetProfileSpec) -> frozenset[str]:
    """The keys that a profile gives: `network`, `lead.preemption`."""
    set_ = (
        f.encode_name
        for f in msgspec.structs.fields(spec)
        if f.name not in ("mode", "gpu_model", "lead") and getattr(spec, f.name) is not None
    )
    return frozenset((*set_, *(f"lead.{kind.value}" for kind in spec.lead)))


def followers(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH149: a policy that follows the planner, and another that decides the split of the same graph."""
    shifts = [p for p in _in_force(policies) if isinstance(p.document.spec, ReassignmentSpec)]
    for first, second in pairs(shifts):
        modes = [_follows(first), _follows(second)]
        if not any(modes):
            continue
        where = same_graph(first, second)
        if all(modes):
            what = f'"{second.name}" and "{first.name}" at {first.place} both carry out what the planner wants of {where}'
            yield texts.warning(second, ("spec", "follow"), "SH149", what, "Keep one of them")
            continue
        own, planned = (second, first) if modes[0] else (first, second)
        what = f'"{own.name}" shifts {where} by thresholds of its own, and "{planned.name}" at {planned.place} by what the planner wants'
        remedy = "What one does the other undoes: keep one of them, or name different graphs"
        yield texts.warning(own, ("spec", "when"), "SH149", what, remedy)


def unseen(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH153: a preview that shows nothing, because a policy in force acts on all that it is about, and takes its workers first."""
    told: set[str] = set()
    acting = [p for p in policies if p.acts and p.mode != "off"]
    for pair in pairs(acting) if any(p.mode == "preview" for p in acting) else ():
        preview, other = pair if pair[0].mode == "preview" else (pair[1], pair[0])
        if preview.mode != "preview" or other.mode == "preview" or preview.kind != other.kind or preview.name in told:
            continue
        if not within(preview, other):
            continue
        told.add(preview.name)
        what = f'it is only shown, and "{other.name}" at {other.place} acts on all that it is about: it takes the workers first'
        remedy = "To see what it would do in the other's stead, ask `shunter plan --policies` with a changed copy"
        yield texts.warning(preview, ("spec", "mode"), "SH153", what, remedy)


def unbound(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH153: a budget that is only shown, where no other limits the workers that policies in force disrupt."""
    budgets = [p for p in policies if isinstance(p.document.spec, BudgetSpec)]
    acting = [p for p in _in_force(policies) if p.kind in _DISRUPTING]
    for budget in (b for b in budgets if b.mode == "preview"):
        others = [b for b in budgets if b.mode == "enforce" and same_workers(budget, b) is not None]
        bound = next((p for p in acting if same_workers(budget, p) is not None), None)
        if bound is None or others:
            continue
        what = f'the budget is only shown, so what "{bound.name}" at {bound.place} does is limited to one worker of a pool at a time'
        yield texts.warning(budget, ("spec", "mode"), "SH153", what, "Set mode: enforce, or bear with that until you do")


_DISRUPTING = ("ReassignmentPolicy", "RebalancePolicy", "CheckpointPolicy")


def _follows(policy: Policy) -> bool:
    spec = policy.document.spec
    return isinstance(spec, ReassignmentSpec) and spec.follow == "planner"


def _in_force(policies: list[Policy]) -> list[Policy]:
    return [p for p in policies if p.mode == "enforce" and p.acts]
