"""Work that would be undone while it is wanted, and so is never begun."""

from collections.abc import Iterator

from shunter.lang import ranges
from shunter.lang.cel import named
from shunter.lang.whole.overlap import pairs, same_shift
from shunter.lang.whole.texts import Texts, for_instance
from shunter.model.errors import Problem
from shunter.model.expression import Expression
from shunter.model.policy import Policy, ReassignmentSpec, RebalanceSpec
from shunter.model.vocabulary import CHANGED_BY_A_MOVE

_OF_A_PLACE = ("node.",)


def undone(policy: Policy, texts: Texts) -> Iterator[Problem]:
    """SH141: a shift that is to be given back while it is wanted."""
    spec = policy.document.spec
    if not isinstance(spec, ReassignmentSpec) or spec.revert is None or spec.when is None:
        return
    example = ranges.meeting(ranges.boxes(spec.when.text), ranges.boxes(spec.revert.when.text))
    if example is None and spec.when.text != spec.revert.when.text:
        return
    what = f"revert.when can be true while when is{for_instance(example)}: then hardware is neither given nor given back"
    remedy = "Keep a gap between the two conditions, so that never both are true"
    yield texts.warning(policy, ("spec", "revert", "when"), "SH141", what, remedy)


def opposites(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH142, whatever the priorities: the engine lets neither shift while both want to."""
    shifts = [p for p in policies if isinstance(p.document.spec, ReassignmentSpec) and p.mode == "enforce"]
    for first, second in pairs(shifts):
        a, b = first.document.spec, second.document.spec
        assert isinstance(a, ReassignmentSpec)
        assert isinstance(b, ReassignmentSpec)
        if (a.from_, a.to) != (b.to, b.from_) or (shared := same_shift(first, second)) is None:
            continue
        case = for_instance(shared.example)
        what = f'when can be true while that of "{first.name}" at {first.place} is, which shifts the other way{case}: then neither shifts'
        remedy = "Keep a gap between the two conditions, or make one policy of them with revert:"
        yield texts.warning(second, ("spec", "when"), "SH142", what, remedy)


def swings(policies: list[Policy], texts: Texts) -> Iterator[Problem]:
    """SH155: two policies each of which moves workers to where the other moves them away. The engine then moves them to neither place."""
    moves = [p for p in policies if isinstance(p.document.spec, RebalanceSpec) and p.mode == "enforce"]
    for first, second in pairs(moves):
        a, b = first.document.spec, second.document.spec
        assert isinstance(a, RebalanceSpec)
        assert isinstance(b, RebalanceSpec)
        if None not in (a.workers.role, b.workers.role) and a.workers.role != b.workers.role:
            continue
        # what goes along with a worker is the same at both places: only conditions on the place alone are sure to be met in turn
        if not all(_of_places_alone(e) for spec in (a, b) for e in (spec.when, spec.to.where) if e is not None):
            continue
        there, back = ranges.meeting(_goal(a), ranges.boxes(b.when.text)), ranges.meeting(_goal(b), ranges.boxes(a.when.text))
        if there is None or back is None:
            continue
        what = f'it moves workers to where "{first.name}" at {first.place} moves them away{for_instance(back)}, and the other way round'
        remedy = (
            f"Neither would move them there{for_instance(there)}: say in to.where which places both leave alone, or keep one of the two"
        )
        yield texts.warning(second, ("spec", "when"), "SH155", what, remedy)


def _of_places_alone(expression: Expression) -> bool:
    return all(name.startswith(_OF_A_PLACE) for name in named(expression.text))


def _goal(spec: RebalanceSpec) -> tuple[ranges.Box, ...]:
    """Places where the policy surely may bring a worker and would leave it."""
    calm = ranges.boxes(f"!({spec.when.text})")
    return calm if spec.to.where is None else tuple(ranges.both(calm, ranges.boxes(spec.to.where.text)))


def motionless(policy: Policy, texts: Texts) -> Iterator[Problem]:
    """SH152: no place is better by the gain, or one at which `when` would end, as the engine moves no worker that it would move again; or
    hardware is to change sides in a way that no engine can.
    """
    spec = policy.document.spec
    if isinstance(spec, ReassignmentSpec) and spec.method == "in-place":
        what = "method is in-place, and no agent reports an engine that can change its role where it stands: nothing would ever be moved"
        yield texts.warning(policy, ("spec", "method"), "SH152", what, "Write `method: auto`, which goes by checkpoint until one can")
    if not isinstance(spec, RebalanceSpec):
        return
    if spec.gain is not None:
        if spec.to.prefer is not None and not _reads(spec.to.prefer, _OF_A_PLACE):
            what = "prefer says nothing of the node, so no place is better than another: no worker would ever be moved"
            remedy = "Compare nodes in it, as in double(node.freeSlots), or remove gain"
            yield texts.warning(policy, ("spec", "to", "prefer"), "SH152", what, remedy)
    elif not _reads(spec.when, CHANGED_BY_A_MOVE):
        what = "when says nothing of where the worker is, so a move wouldn't end it: no worker would ever be moved"
        remedy = "Add gain: and to.prefer: to move it to where it is better off, or say in when what is wrong with its place"
        yield texts.warning(policy, ("spec", "when"), "SH152", what, remedy)
    elif spec.to.where is not None and spec.to.where.text == spec.when.text:
        what = "each place that to.where allows is one at which when is true: no worker would ever be moved"
        yield texts.warning(policy, ("spec", "to", "where"), "SH152", what, "Write the opposite of when")


def _reads(expression: Expression, names: tuple[str, ...]) -> bool:
    return any(name.startswith(names) for name in named(expression.text))
