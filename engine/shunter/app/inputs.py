"""The metrics that several policy sets declare: which can be asked once for all, and which samples of a recording a set may use."""

from collections.abc import Sequence

import msgspec

from shunter.app.world import inputs_of
from shunter.model.policy import MetricInput, Policy, PolicySet
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Samples


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """`common` declares what no two sets disagree on; `own` is, for each set, what it alone declares under a name that others use too."""

    common: PolicySet
    own: tuple[PolicySet | None, ...]


def asked(sets: Sequence[PolicySet]) -> Asked:
    """What to ask for these sets (at least one): a policy whose metrics are the same in all sets that have it is asked once."""
    common: dict[str, Policy] = {}
    own: list[PolicySet | None] = []
    for policies in sets:
        differing = []
        for policy in policies.policies:
            if policy.mode == "off" or not policy.metrics:
                continue
            if common.setdefault(policy.name, policy).metrics != policy.metrics:
                differing.append(policy)
        own.append(msgspec.structs.replace(policies, policies=tuple(differing)) if differing else None)
    return Asked(common=msgspec.structs.replace(sets[0], policies=tuple(common[name] for name in sorted(common))), own=tuple(own))


def fitted(samples: Samples, policies: PolicySet, at: float) -> tuple[Samples, tuple[str, ...]]:
    """Recorded samples as this set would have taken them at `at`, and a remark on what can't be told from them.

    A sample of another query is no sample of this metric, and `maxAge` counts as this set has it. Samples that fit stay as they are, so
    that the snapshot keeps its id; a metric that wasn't recorded at all stays out, and is unknown.
    """
    found = dict(samples.policies)
    remarks = []
    for policy, metrics in sorted(inputs_of(policies).items()):
        recorded = samples.policies.get(policy, {})
        fit = {name: {w: _fit(s, metrics[name], at) for w, s in own.items()} if name in metrics else own for name, own in recorded.items()}
        if fit != recorded:
            found[policy] = fit
        lacking = [name for name, metric in metrics.items() if not any(_of(s, metric) for s in recorded.get(name, {}).values())]
        if lacking:
            said = ", ".join(f"metrics.{name}" for name in sorted(lacking))
            remarks.append(f"The recording has no values of {said} of {policy}: it was made with other policies")
    return (samples if found == samples.policies else msgspec.structs.replace(samples, policies=found)), tuple(remarks)


def _fit(sample: Sample, metric: MetricInput, at: float) -> Sample:
    """Missing stays missing, whatever it was asked with."""
    if not _of(sample, metric):
        return Missing(reason="this was recorded with another query", query=metric.query)
    if isinstance(sample, Known) and sample.query == metric.query and at - sample.at > metric.max_age:
        return Stale(value=sample.value, age=at - sample.at, max_age=float(metric.max_age), query=metric.query)
    if isinstance(sample, Stale) and sample.age <= metric.max_age:
        return Known(value=sample.value, unit=metric.unit, at=at - sample.age, query=metric.query)
    return sample


def _of(sample: Sample, metric: MetricInput) -> bool:
    """The sample was taken for this metric: by its query, or by what its author declares for no data."""
    if isinstance(sample, Missing) or sample.query == metric.query:
        return True
    if isinstance(sample, Stale) or isinstance(metric.on_missing, str):
        return False
    declared = f"onMissing declares {float(metric.on_missing):g})"
    return sample.query.startswith(f"{metric.query} (no data: ") and sample.query.endswith(declared)
