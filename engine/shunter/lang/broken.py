"""Budgets that were refused. Leaving one out would free the workers that it protects, so without a last good version it counts as zero: for
its own workers where its selector can be read, else for all.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, get_args

import msgspec

from shunter.lang import cel
from shunter.lang.bind import Binder
from shunter.lang.diagnostics import MAX_EXCERPT, SourceText, nearest
from shunter.lang.schema import KINDS
from shunter.lang.yaml import Mapping, Node, Scalar, decode, look_up
from shunter.lang.yaml import Sequence as List
from shunter.model.errors import Place, Problem, Severity
from shunter.model.ids import Commit
from shunter.model.policy import BudgetSpec, Disruption, DisruptionBudget, Metadata, Policy, WorkerSelector

_KIND: Final = DisruptionBudget.__name__
_WRITTEN: Final = re.compile(rf"^[ ]*[\"']?kind[\"']?[ ]*:[ ]*[\"']?{_KIND}\b", re.MULTILINE)
_DISRUPTIONS: Final[tuple[Disruption, ...]] = get_args(Disruption)
_ALL: Final = WorkerSelector(all=True)


class Draft(msgspec.Struct, frozen=True):
    """A budget as far as it can be read. `name` is empty where it can't be."""

    name: str
    place: Place
    spec: BudgetSpec


class Refused(msgspec.Struct, frozen=True):
    """A file that was refused: the (kind, name) of the documents in it, its budgets, and the first thing that is wrong."""

    path: str
    blob: str
    names: tuple[tuple[str, str], ...]
    budgets: tuple[Draft, ...]
    problem: Problem


def names(nodes: Iterable[Node]) -> tuple[tuple[str, str], ...]:
    """Kind and name of each document that tells both."""
    found = ((_kind(node), _name(node)) for node in nodes if isinstance(node, Mapping))
    return tuple((kind, name) for kind, name in found if kind in KINDS and name)


def drafts(source: SourceText, nodes: Sequence[Node]) -> tuple[Draft, ...]:
    """The budgets in a file that has something wrong with it. One on whose other side the YAML can't be read covers all workers."""
    found = [_draft(source, node) for node in nodes if isinstance(node, Mapping) and _is_budget(node)]
    written = [source.place(match.start()) for match in _WRITTEN.finditer(source.text)]
    unread = [Draft("", place, _zero(_ALL, _DISRUPTIONS)) for place in written[len(found) :]]
    return tuple(d for d in (*found, *unread) if d.spec.mode == "enforce")


def draft_of(document: DisruptionBudget, place: Place) -> Draft:
    """A sound budget of a file that was refused for something else."""
    spec = document.spec
    return Draft(document.metadata.name, place, msgspec.structs.replace(_zero(spec.workers, spec.operations), mode=spec.mode))


def told(draft: Draft, data: bytes) -> Problem:
    """SH129, for whoever checks the file with these bytes."""
    source, _ = decode(draft.place.file, data)
    return msgspec.structs.replace(_told(draft, draft.name or "this"), excerpt=source.line(draft.place.line)[:MAX_EXCERPT])


def renamed(refused: Iterable[Refused], policies: Iterable[Policy], previous: Iterable[Policy]) -> list[Policy]:
    """Last good versions of what stands in refused files now, and stood in others that have it no longer."""
    taken, old = {p.name for p in policies}, {(p.kind, str(p.name)): p for p in previous}
    wanted = (old[key] for file in refused for key in file.names if key in old)
    return list({p.name: p for p in wanted if p.name not in taken}.values())


def stand_ins(refused: Iterable[Refused], policies: Iterable[Policy], commit: Commit) -> tuple[list[Policy], list[Problem]]:
    """A budget of zero for each one without a version in force, and SH129 for it."""
    kinds: dict[str, str] = {p.name: p.kind for p in policies}
    older = {p.place.file for p in policies if p.kind == _KIND}
    made: list[Policy] = []
    problems: list[Problem] = []
    for file in refused:
        for draft in file.budgets:
            # what has no name may be the very one that is in force
            if draft.spec.mode != "enforce" or (kinds.get(draft.name) == _KIND if draft.name else file.path in older):
                continue
            name = draft.name if draft.name and draft.name not in kinds else f"{draft.place.file}:{draft.place.line}"
            kinds[name] = ""
            document = DisruptionBudget(metadata=Metadata(name=name), spec=draft.spec)
            made.append(Policy(document=document, place=draft.place, blob=file.blob, commit=commit, refused=file.problem))
            problems.append(_told(draft, name))
    return made, problems


def _told(draft: Draft, name: str) -> Problem:
    select = draft.spec.workers
    parts = (f"role {select.role}" if select.role else "", f"graph {select.graph}" if select.graph else "", select.where)
    whom = "all workers" if select.all else f"workers of {' and '.join(str(part) for part in parts if part)}"
    what = f"{name} is a budget that can't be read, so it counts as zero for {whom}: nothing voluntary is begun there"
    remedy = "Mend it. Where an engine has an earlier version of it in force, that stays instead"
    return Problem(code="SH129", what=what, remedy=remedy, place=draft.place, severity=Severity.WARNING)


def _zero(workers: WorkerSelector, operations: tuple[Disruption, ...]) -> BudgetSpec:
    return BudgetSpec(workers=workers, operations=operations, max_concurrent=0)


def _kind(node: Mapping) -> str:
    kind = node.get("kind")
    return kind.text if isinstance(kind, Scalar) else ""


def _is_budget(node: Mapping) -> bool:
    kind = _kind(node)
    return kind == _KIND or (kind not in KINDS and nearest(kind, KINDS) == _KIND)


def _name(node: Mapping) -> str:
    metadata = node.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name.value if isinstance(name, Scalar) and isinstance(name.value, str) else ""


def _draft(source: SourceText, node: Mapping) -> Draft:
    spec = node.get("spec")
    below = spec if isinstance(spec, Mapping) else Mapping({}, node.start, node.end)
    metadata = look_up(node, ("metadata", "name"))
    zero = _zero(_workers(source, below.get("workers")), _operations(below))
    mode = below.get("mode")
    if isinstance(mode, Scalar) and mode.text in ("off", "preview"):
        zero = msgspec.structs.replace(zero, mode="off")
    return Draft(_name(node), source.place(metadata.start), zero)


def _operations(spec: Mapping) -> tuple[Disruption, ...]:
    """What it counts; everything if that can't be read."""
    if (given := spec.get("operations")) is None:
        return BudgetSpec(workers=_ALL).operations
    words = [item.text if isinstance(item, Scalar) else "" for item in given.items] if isinstance(given, List) else [""]
    return tuple(o for o in _DISRUPTIONS if o in words) if words and set(words) <= set(_DISRUPTIONS) else _DISRUPTIONS


def _workers(source: SourceText, node: Node | None) -> WorkerSelector:
    """Its selector; without a `where` that can't be read, and all workers if nothing of it can."""
    if not isinstance(node, Mapping):
        return _ALL
    binder = Binder(source)
    select: WorkerSelector | None = binder.document(WorkerSelector, node)
    if select is None:
        return _ALL
    if any(cel.check(found.node.text, "bool", frozenset({"worker", "node"}), frozenset()) for found in binder.expressions):
        select = msgspec.structs.replace(select, where=None)
    return _ALL if select.all or (select.role is None and select.graph is None and select.where is None) else select
