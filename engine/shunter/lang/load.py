"""A revision's files to a policy set. A bad file hurts only itself: its last good version stays in force, and its problems say why."""

from collections.abc import Container, Iterable
from functools import lru_cache
from typing import Final

import msgspec

from shunter.lang import check
from shunter.lang.bind import Binder
from shunter.lang.broken import Draft, Refused, draft_of, drafts, names, renamed, stand_ins, told
from shunter.lang.diagnostics import MAX_PROBLEMS, SourceText, one_of, suggest
from shunter.lang.misfits import explain
from shunter.lang.schema import KINDS
from shunter.lang.yaml import Mapping, Node, Scalar, Sequence, decode, parse
from shunter.model import canon
from shunter.model.errors import Place, Problem, Severity
from shunter.model.ids import Commit
from shunter.model.policy import API_VERSION, DisruptionBudget, Document, Policy, PolicySet
from shunter.model.source import Revision, SourceFile

SUFFIXES: Final = (".yaml", ".yml")
_UNSAVED: Final = Commit("unsaved")
_LACKING: Final = frozenset({"SH112", "SH120", "SH128"})
"""Something isn't there."""


class _Stated(msgspec.Struct, frozen=True):
    """A document and the place of its name."""

    document: Document
    place: Place


class _Checked(msgspec.Struct, frozen=True):
    """What a file's bytes alone say: the same for every commit that holds them."""

    stated: tuple[_Stated, ...]
    problems: tuple[Problem, ...]
    names: tuple[tuple[str, str], ...] = ()
    """Kind and name of each document, also in a file that is refused."""
    budgets: tuple[Draft, ...] = ()
    """The budgets in a file that is refused."""

    @property
    def good(self) -> bool:
        return not any(problem.severity is Severity.ERROR for problem in self.problems)


def is_policy_file(path: str) -> bool:
    """Whether a path is read at all: `*.yaml` and `*.yml`, but not the tests (`*_test.yaml`) beside them."""
    stem, dot, suffix = path.rpartition(".")
    return dot + suffix in SUFFIXES and not stem.endswith("_test")


def check_text(path: str, data: bytes) -> tuple[tuple[Policy, ...], tuple[Problem, ...]]:
    """The policies in one file's bytes and everything wrong with it, warnings included, in the file's order. Never raises."""
    checked = _checked(path, data)
    return tuple(_policy(stated, "", _UNSAVED) for stated in checked.stated), checked.problems


def zeros(path: str, data: bytes) -> tuple[Problem, ...]:
    """SH129 for each budget of a file that is refused: what it means for the workers. Never raises."""
    checked = _checked(path, data)
    return () if checked.good else tuple(told(draft, data) for draft in checked.budgets)


def duplicates(policies: tuple[Policy, ...]) -> tuple[Problem, ...]:
    """A problem at each policy whose name an earlier one has already, naming both places."""
    first: dict[str, Policy] = {}
    found = []
    for policy in policies:
        holder = first.setdefault(policy.name, policy)
        if holder is not policy and holder.place.file != policy.place.file:
            found.append(_same_name(policy.name, policy.place, holder.place))
    return tuple(found)


def load(revision: Revision, previous: PolicySet | None) -> PolicySet:
    """The policy set at a revision. A file with an error is refused as a whole: its version in `previous` stays, with its commit and blob.

    What was renamed in the same commit keeps its last good version too, by its name; a budget without one is zero (`Policy.refused`).
    A name belongs to the file that had it in `previous`, else to the first file by path: a newcomer with the same name is refused. Never
    raises: even a failure of the checker is a problem of that one file.
    """
    good = tuple(p for p in previous.policies if p.refused is None) if previous else ()
    old = _by_file(good)
    problems = list(revision.problems)
    new: dict[str, tuple[Policy, ...]] = {}
    kept = {path: old[path] for path in _unread(revision.problems) if path in old}
    for file in sorted((f for f in revision.files if is_policy_file(f.path)), key=lambda f: f.path):
        checked = _cached(file)
        problems += [problem for problem in checked.problems if problem.severity is Severity.ERROR]
        if checked.good:
            kept.pop(file.path, None)
            new[file.path] = tuple(_policy(stated, file.blob, revision.commit) for stated in checked.stated)
        elif file.path in old:
            kept[file.path] = old[file.path]
    problems += _settle(new, kept, old)
    found = [p for group in (*new.values(), *kept.values()) for p in group]
    refused = _refused(revision, new, problems)
    found += renamed(refused, found, good)
    zeros, more = stand_ins(refused, found, revision.commit)
    problems += more
    policies = tuple(sorted((*found, *zeros), key=lambda p: p.name))
    content = [(p.place.file, p.blob, p.document) for p in policies]
    return PolicySet(commit=revision.commit, digest=canon.digest(content), policies=policies, problems=tuple(problems))


def _refused(revision: Revision, new: Container[str], problems: Iterable[Problem]) -> list[Refused]:
    """The files that aren't in force as they stand."""
    first: dict[str, Problem] = {}
    for problem in problems:
        if problem.place is not None:
            first.setdefault(problem.place.file, problem)
    found = []
    for file in sorted(revision.files, key=lambda f: f.path):
        if is_policy_file(file.path) and file.path not in new:
            checked = _cached(file)
            sound = tuple(draft_of(s.document, s.place) for s in checked.stated if isinstance(s.document, DisruptionBudget))
            found.append(Refused(file.path, file.blob, checked.names, (*checked.budgets, *sound), first[file.path]))
    return found


def _by_file(policies: tuple[Policy, ...]) -> dict[str, tuple[Policy, ...]]:
    groups: dict[str, tuple[Policy, ...]] = {}
    for policy in policies:
        groups[policy.place.file] = (*groups.get(policy.place.file, ()), policy)
    return groups


def _unread(problems: tuple[Problem, ...]) -> set[str]:
    """Paths that the source refused to read."""
    return {problem.place.file for problem in problems if problem.place} | {problem.subject for problem in problems if problem.subject}


def _settle(new: dict[str, tuple[Policy, ...]], kept: dict[str, tuple[Policy, ...]], old: dict[str, tuple[Policy, ...]]) -> list[Problem]:
    """Take files out of `new` until no name is claimed twice; each that goes falls back to its old version, which can claim others anew.

    Old versions never collide with each other (they stood in one set), so every round takes at least one file out of `new`, and it ends.
    """
    owner = {policy.name: path for path, group in old.items() for policy in group}
    problems: list[Problem] = []
    while True:
        holder: dict[str, Policy] = {p.name: p for group in kept.values() for p in group}
        for name, path in owner.items():
            for policy in new.get(path, ()):
                if policy.name == name:
                    holder.setdefault(name, policy)
        refused: dict[str, Problem] = {}
        for path in sorted(new):
            for policy in new[path]:
                other = holder.setdefault(policy.name, policy)
                if other.place.file != path:
                    refused.setdefault(path, _same_name(policy.name, policy.place, other.place))
        if not refused:
            return problems
        path, problem = min(refused.items())
        problems.append(problem)
        del new[path]
        if path in old:
            kept[path] = old[path]


def _same_name(name: str, place: Place, other: Place) -> Problem:
    what = f'"{name}" at {place} is the name of the policy at {other} already'
    return Problem(code="SH124", what=what, remedy="Rename one of them", place=place)


def _policy(stated: _Stated, blob: str, commit: Commit) -> Policy:
    return Policy(document=stated.document, place=stated.place, blob=blob, commit=commit)


@lru_cache(maxsize=8192)
def _by_blob(path: str, blob: str, data: bytes) -> _Checked:
    return _checked(path, data)


def _cached(file: SourceFile) -> _Checked:
    """By path, blob and the bytes themselves (their hash is computed once): a wrong blob id can't bring another file's policies back."""
    return _by_blob(file.path, file.blob, file.data)


def _checked(path: str, data: bytes) -> _Checked:
    try:
        return _check(path, data)
    except Exception as error:  # noqa: BLE001, RUF100  (one file must never stop the others)
        what = f"the checker failed on this file with {type(error).__name__}: {error}"
        place = Place(file=path, line=1, column=1)
        remedy = "The last good version stays in force. Please report this, with the file"
        return _Checked((), (Problem(code="SH199", what=what, remedy=remedy, place=place),))


def _check(path: str, data: bytes) -> _Checked:
    source, problems = decode(path, data)
    if problems:
        return _Checked((), tuple(problems))
    nodes, problems = parse(source)
    named = names(nodes)
    stated: list[_Stated] = []
    for node in nodes:
        if isinstance(node, Scalar) and node.value is None:
            continue
        found, document = _document(source, node)
        problems += found
        if document is not None and isinstance(node, Mapping):
            stated.append(_Stated(document, _name_place(source, node)))
    problems += _within(source, stated)
    if not stated and not problems:
        remedy = "Add a policy, or remove the file"
        problems.append(source.problem("SH109", 0, "the file has no policy", remedy, severity=Severity.WARNING))
    checked = _Checked(tuple(stated), _in_order(problems), named)
    if checked.good:
        return checked
    return _Checked((), checked.problems, named, drafts(source, nodes))


def _in_order(problems: list[Problem]) -> tuple[Problem, ...]:
    """By place. What doubtful YAML means for the policy isn't worth a second problem at the same place."""
    doubtful = {problem.place for problem in problems if problem.code in ("SH105", "SH107")}
    told = (p for p in problems if p.place not in doubtful or p.code < "SH110")
    ordered = sorted(dict.fromkeys(told), key=lambda p: (p.place.line, p.place.column) if p.place else (0, 0))
    if len(ordered) > MAX_PROBLEMS:
        last = ordered[MAX_PROBLEMS - 1]
        what = f"the file has at least {len(ordered) - MAX_PROBLEMS} more problems"
        ordered[MAX_PROBLEMS:] = [Problem(code="SH126", what=what, remedy="Correct those above first", place=last.place)]
    return tuple(ordered)


def _document(source: SourceText, node: Node) -> tuple[list[Problem], Document | None]:
    problems, kind = _header(source, node)
    if kind is None or not isinstance(node, Mapping):
        return problems, None
    binder = Binder(source)
    document: Document | None = binder.document(KINDS[kind], node)
    problems += binder.problems
    if binder.misfits:
        problems += explain(source, kind, node) or [_unexplained(source, binder.misfits[0])]
    problems += check.expressions(source, kind, node, binder.expressions)
    # what a misspelt key may have been meant for isn't lacking
    unsure = {source.place(misfit.start) for misfit in binder.misfits}
    problems += [p for p in check.document(source, node, binder.partial) if p.code not in _LACKING or p.place not in unsure]
    return problems, document


def _unexplained(source: SourceText, node: Node) -> Problem:
    return source.problem("SH113", node.start, "this value doesn't fit its key", "See the policy reference")


def _header(source: SourceText, node: Node) -> tuple[list[Problem], str | None]:
    """The kind of a document, or None with the reason why it is none of ours."""
    if not isinstance(node, Mapping):
        given = "a list" if isinstance(node, Sequence) else "text"
        return [source.problem("SH110", node.start, f"{given} is not a policy", "A policy begins with apiVersion: and kind:")], None
    kind = node.get("kind")
    if kind is None:
        remedy = f"Add kind: {one_of(KINDS)}"
        return [source.problem("SH110", node.start, "the document has no kind", remedy)], None
    if not isinstance(kind, Scalar) or kind.text not in KINDS:
        given = kind.text if isinstance(kind, Scalar) else "this"
        remedy = suggest(given, KINDS, f"Write {one_of(KINDS)}")
        return [source.problem("SH110", kind.start, f"{given or 'nothing'} is not a kind of policy", remedy)], None
    version = node.get("apiVersion")
    if isinstance(version, Scalar) and version.text != API_VERSION:
        return [source.problem("SH110", version.start, f"apiVersion {version.text} is not known", f"Write {API_VERSION}")], None
    return [], kind.text


def _name_place(source: SourceText, node: Mapping) -> Place:
    metadata = node.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return source.place(name.start if name else node.start)


def _within(source: SourceText, stated: list[_Stated]) -> list[Problem]:
    """Names that stand twice in one file."""
    first: dict[str, Place] = {}
    problems = []
    for one in stated:
        name = one.document.metadata.name
        if name in first:
            problem = _same_name(name, one.place, first[name])
            problems.append(msgspec.structs.replace(problem, excerpt=source.line(one.place.line)))
        first.setdefault(name, one.place)
    return problems
