"""What can't work in the fleet that the policies are meant for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from shunter.lang.diagnostics import nearest
from shunter.lang.whole.overlap import selector
from shunter.lang.whole.texts import Texts, many
from shunter.model.errors import Problem
from shunter.model.policy import BudgetSpec, CheckpointPolicy, CheckpointSpec, Policy, PreemptionPolicy
from shunter.model.snapshot import ZONE_LABEL, Fleet, Node, NoticeKind, Snapshot, Worker
from shunter.model.units import Duration, Share

LEADS: Final = {"AWS": 120.0, "GCP": 30.0, "Azure": 10.0}
"""Seconds between a preemption notice and the end, as short as they usually are."""
_LABELS: Final = {
    "eks.amazonaws.com/": "AWS",
    "karpenter.k8s.aws/": "AWS",
    "cloud.google.com/": "GCP",
    "kubernetes.azure.com/": "Azure",
}
"""Beginnings of node labels that clouds set themselves."""
_NAMED: Final = 3


class Engine(Protocol):
    """The engine's own answers for the fleet at hand."""

    def covers(self, policy: Policy, worker: Worker) -> bool | None:
        """Whether a policy's selector covers a worker as it is in the snapshot; None when that can't be said."""
        ...

    def allowed(self, policy: Policy, limit: Share) -> Mapping[str, tuple[int, int]]:
        """For each group of a budget that has workers, by its name: how many, and how many the share allows at once."""
        ...


def fits(policy: Policy, texts: Texts, snapshot: Snapshot, engine: Engine) -> Iterator[Problem]:
    """SH143 a selector that matches nothing, SH144 more copies than nodes, SH145 a reserve that is too long, SH146 a share of nothing,
    SH147 nodes without a zone, SH157 an archive that nobody knows.
    """
    yield from _matches_nothing(policy, texts, snapshot.fleet, engine)
    yield from _copies(policy, texts, snapshot.fleet)
    yield from _archive(policy, texts, snapshot.fleet)
    yield from _reserve(policy, texts, snapshot)
    spec = policy.document.spec
    if isinstance(spec, BudgetSpec):
        yield from _shares(policy, spec, texts, engine)
        yield from _zones(policy, spec, texts, snapshot.fleet, engine)


def _matches_nothing(policy: Policy, texts: Texts, fleet: Fleet, engine: Engine) -> Iterator[Problem]:
    """SH143. A worker of which it can't be said whether it is covered counts as covered."""
    if policy.selector is None or not fleet.workers or any(engine.covers(policy, worker) is not False for worker in fleet.workers):
        return
    select = selector(policy)
    graphs = sorted({w.graph for w in fleet.workers})
    if select.graph is not None and select.graph not in graphs:
        near = nearest(select.graph, graphs)
        remedy = f'Did you mean "{near}"?' if near else f"Its graphs are {', '.join(graphs)}"
        yield texts.warning(policy, ("spec", "workers", "graph"), "SH143", f"the fleet has no graph {select.graph}", remedy)
        return
    roles = Counter(w.role for w in fleet.workers if select.graph in (None, w.graph))
    if select.role is not None and not roles[select.role]:
        where = f" in {select.graph}" if select.graph else ""
        remedy = f"It has {' and '.join(f'{n} {role}' for role, n in sorted(roles.items()))}; select those, or check the fleet"
        yield texts.warning(policy, ("spec", "workers", "role"), "SH143", f"the fleet has no {select.role} worker{where}", remedy)
        return
    what = f"none of the fleet's {many(len(fleet.workers), 'worker')} fulfils the selector"
    remedy = "Correct the condition, or ask `shunter why WORKER` for its values"
    yield texts.warning(policy, ("spec", "workers", "where"), "SH143", what, remedy)


def _copies(policy: Policy, texts: Texts, fleet: Fleet) -> Iterator[Problem]:
    """SH144."""
    spec = policy.document.spec
    if isinstance(policy.document, CheckpointPolicy) and isinstance(spec, CheckpointSpec) and spec.copies > len(fleet.nodes) > 0:
        what = f"copies is {spec.copies}, and the fleet has {many(len(fleet.nodes), 'node')}: each copy needs a node of its own"
        yield texts.warning(policy, ("spec", "copies"), "SH144", what, f"Write {len(fleet.nodes)} or less, or add nodes")


def _archive(policy: Policy, texts: Texts, fleet: Fleet) -> Iterator[Problem]:
    """SH157. A node that doesn't answer is as it was when it did."""
    spec = policy.document.spec
    if isinstance(spec, CheckpointSpec) and spec.archive and fleet.nodes and not any(n.archive for n in fleet.nodes):
        what = "images are to go to the archive, and no node of the fleet knows of one"
        yield texts.warning(policy, ("spec", "archive"), "SH157", what, "Name it as `url` in the `[archive]` of all agents' settings")


def _reserve(policy: Policy, texts: Texts, snapshot: Snapshot) -> Iterator[Problem]:
    """SH145. Leads are those of the cloud that labels the nodes, and those of the notices in the snapshot."""
    if not isinstance(policy.document, PreemptionPolicy):
        return
    spec = policy.document.spec
    leads = _leads(spec.notices, snapshot)
    lead, whose = min(leads, default=(None, ""))
    if lead is not None and spec.reserve >= lead:
        what = f"reserve is {spec.reserve}, and {whose}: no move would ever be begun"
        remedy = f"Write less than {Duration(lead)}, so that time is left for the move"
        yield texts.warning(policy, ("spec", "reserve"), "SH145", what, remedy)


def _leads(kinds: Iterable[NoticeKind], snapshot: Snapshot) -> list[tuple[float, str]]:
    wanted = frozenset(kinds)
    found = [
        (n.deadline - n.seen_at, f"the notice {n.id} in the snapshot came {Duration(max(0.0, n.deadline - n.seen_at))} ahead")
        for n in snapshot.notices
        if n.kind in wanted and n.deadline is not None
    ]
    if NoticeKind.PREEMPTION in wanted:
        clouds = sorted({c for node in snapshot.fleet.nodes if (c := _cloud(node)) is not None})
        found += [(LEADS[cloud], f"{cloud} often announces a preemption only {Duration(LEADS[cloud])} ahead") for cloud in clouds]
    return found


def _cloud(node: Node) -> str | None:
    """Whose machine it is, by labels that only that cloud sets; None when they don't say."""
    return next((cloud for key in sorted(node.labels) for start, cloud in _LABELS.items() if key.startswith(start)), None)


def _shares(policy: Policy, spec: BudgetSpec, texts: Texts, engine: Engine) -> Iterator[Problem]:
    """SH146. A limit of nothing is told without a fleet."""
    for name, limit in (("maxConcurrent", spec.max_concurrent), ("maxPerWindow.max", spec.max_per_window and spec.max_per_window.max)):
        if not isinstance(limit, Share) or limit <= 0:
            continue
        groups = engine.allowed(policy, limit)
        none = {group: size for group, (size, allowed) in sorted(groups.items()) if allowed == 0}
        if none:
            few, size = min(none.items(), key=lambda one: (-one[1], one[0]))
            whose = f" in {len(none)} of {len(groups)} groups" if len(groups) > 1 else ""
            what = f"{limit} of {many(size, 'worker')} ({few}) rounds down to none: nothing voluntary ever begins{whose}"
            enough = next(percent for percent in range(1, 101) if percent * size >= 100)
            remedy = f"Write {enough}% or more, or a number"
            yield texts.warning(policy, ("spec", *name.split(".")), "SH146", what, remedy)


def _zones(policy: Policy, spec: BudgetSpec, texts: Texts, fleet: Fleet, engine: Engine) -> Iterator[Problem]:
    """SH147."""
    if spec.per != "zone":
        return
    covered = {w.node for w in fleet.workers if w.node is not None and engine.covers(policy, w) is not False}
    lacking = [str(n.id) for n in fleet.nodes if n.id in covered and not n.labels.get(ZONE_LABEL)]
    if lacking:
        named = ", ".join(lacking[:_NAMED]) + (f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else "")
        what = f"per is zone, and {named} of {many(len(covered), 'node')} with covered workers has no label {ZONE_LABEL}"
        remedy = "Nothing voluntary would begin on a node without one: label it, or write per: node"
        yield texts.warning(policy, ("spec", "per"), "SH147", what, remedy)
