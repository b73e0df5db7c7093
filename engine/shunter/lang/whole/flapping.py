"""Work that would be done and undone, or done again and again."""

from collections.abc import Iterator

from shunter.lang import ranges
from shunter.lang.cel import named
from shunter.lang.whole.overlap import pairs, same_shift
from shunter.lang.whole.texts import Texts, for_instance
from shunter.model.errors import Problem
from shunter.model.policy import Policy, ReassignmentSpec, RebalanceSpec

_OF_THE_PLACE = ("node.", "worker.node", "worker.slot")


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


def restless(policy: Policy, texts: Texts) -> Iterator[Problem]:
    """SH152: a worker that is moved, and then moved again for the same reason. A gain that is asked for ends that."""
    spec = policy.document.spec
    if not isinstance(spec, RebalanceSpec) or spec.gain is not None:
        return
    again = f"a worker that has moved can be moved again every {spec.cooldown}"
    if not any(name.startswith(_OF_THE_PLACE) for name in named(spec.when.text)):
        what = f"when says nothing of where the worker is, so going elsewhere doesn't end it: {again}"
        remedy = "Add gain: and to.prefer: so that it goes only where it is better off, or say in when what is wrong with its place"
        yield texts.warning(policy, ("spec", "when"), "SH152", what, remedy)
        return
    where = spec.to.where
    example = ranges.meeting(ranges.boxes(spec.when.text), ranges.boxes(where.text) if where else ({},))
    if example is not None or (where is not None and where.text == spec.when.text):
        what = f"when can be true at a place that the worker may move to{for_instance(example)}: {again}"
        remedy = "Refuse such places in to.where, or add gain: and to.prefer:"
        yield texts.warning(policy, ("spec", "to", "where"), "SH152", what, remedy)
