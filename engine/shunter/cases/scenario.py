"""A test in the model's terms: what there is at each step, and what must be found then. Whatever doesn't make sense becomes a problem."""

from collections.abc import Mapping
from typing import Final

import msgspec

from shunter.cases.document import Case, Change, Expectation, GivenNotice, GivenProfile, Values
from shunter.cases.fleet import Begun, begin
from shunter.cases.marks import Marks, Path
from shunter.cases.moment import NoMoment, moment
from shunter.cases.read import Read
from shunter.cases.series import Series
from shunter.cases.wanted import Wanted
from shunter.decide.profile import Profile
from shunter.lang.load import is_policy_file, load
from shunter.model.errors import Place, Problem
from shunter.model.ids import Commit, NodeId, NoticeId, pool_id
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Fleet, Notice
from shunter.model.source import Revision, SourceFile
from shunter.model.units import Duration
from shunter.model.vocabulary import POOL_METRICS, WORKER_METRICS

MOST_STEPS: Final = 20_000
ROLES: Final = ("prefill", "decode")
ALL: Final = ""
"""Under this name stand values for all workers."""
_FIELDS: Final = tuple(v.name for v in WORKER_METRICS)
_POOL_FIELDS: Final = tuple(v.name for v in POOL_METRICS)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A notice, open from step `first` until before step `last` (None: to the end)."""

    notice: Notice
    first: int
    last: int | None


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """What must be so at a step."""

    step: int
    place: Place
    wanted: Expectation


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One test, ready to run. `begins` is in seconds since the epoch, `step` in seconds; the last step is that of the last expectation."""

    name: str
    place: Place
    policies: PolicySet
    profile: Profile
    fleet: Fleet
    begins: float
    step: float
    steps: int
    samples: dict[str, dict[str, Series]]
    """By worker, then by catalog field."""
    pools: dict[str, dict[str, Series]]
    """By pool, then by field of pools."""
    metrics: dict[str, dict[str, dict[str, Series]]]
    """By policy, then by declared name, then by worker, or under `ALL`."""
    notices: tuple[Told, ...]
    changes: tuple[tuple[int, Change], ...]
    carry_out: bool
    expect: tuple[Due, ...]


def scenarios(read: Read, folder: str, files: Mapping[str, bytes]) -> tuple[tuple[Scenario, ...], tuple[Problem, ...]]:
    """The tests of a file, and everything wrong with it. `files` are the policy files beside it, by name; `folder` is put before the names
    in places.

    With a problem in a test, or in a policy file that it names, that test isn't among the scenarios.
    """
    marks, made, wrong = Marks(read), [], dict[Problem, None]()
    profile = _profile(marks, read.suite.profile)
    for index, case in enumerate(read.suite.tests):
        before = len(marks.problems)
        path: Path = ("tests", index)
        if any(other.name == case.name for other in read.suite.tests[:index]):
            marks.add("SH161", (*path, "name"), f'two tests are called "{case.name}"', "Rename one of them")
        scenario = _One(marks, read, path, case).scenario(folder, files, profile, wrong)
        if scenario is not None and len(marks.problems) == before:
            made.append(scenario)
    if not read.suite.tests:
        marks.add("SH166", ("tests",), "the file has no test", "Add one, or remove the file")
    return tuple(made), (*marks.problems, *wrong)


def _profile(marks: Marks, given: GivenProfile) -> Profile:
    changed = {}
    for name, attribute in (("dump", "dump_bytes_per_s"), ("restore", "restore_bytes_per_s"), ("network", "network_bytes_per_s")):
        text = getattr(given, name)
        rate = marks.size(("profile", name), text) if text else None
        if rate == 0:
            marks.add("SH169", ("profile", name), "a rate must be more than 0", "Write bytes per second, as in 5GB")
        elif rate is not None:
            changed[attribute] = float(rate)
    return msgspec.structs.replace(Profile(), **changed)


class _One:
    """One test in the making."""

    def __init__(self, marks: Marks, read: Read, path: Path, case: Case) -> None:
        self.marks, self.suite, self.path, self.case = marks, read.suite, path, case
        self.step = float(case.step if case.step is not None else read.suite.step)

    def scenario(self, folder: str, files: Mapping[str, bytes], profile: Profile, wrong: dict[Problem, None]) -> Scenario | None:
        case, marks = self.case, self.marks
        if self.step <= 0:
            marks.add("SH164", (*self.path, "step"), "a step must be more than 0", "Write the time between two looks, such as 5s")
            return None
        begins = self._moment()
        begun = begin(marks, [(("fleet",), self.suite.fleet), ((*self.path, "fleet"), case.fleet)], begins)
        policies = self._policies(folder, files)
        if policies is None:
            return None
        wrong.update(dict.fromkeys(policies.problems))
        wanted = Wanted(marks, policies, begun.fleet)
        expect = tuple(self._due((*self.path, "expect", i), one, wanted) for i, one in enumerate(case.expect))
        if not expect:
            marks.add("SH166", (*self.path, "expect"), "the test expects nothing", "Say what must be found or planned, and when")
        made = Scenario(
            name=case.name,
            place=marks.place(self.path),
            policies=policies,
            profile=profile,
            fleet=begun.fleet,
            begins=begins,
            step=self.step,
            steps=max((one.step for one in expect), default=0),
            samples=self._samples(begun),
            pools=self._pools(begun.fleet),
            metrics=self._metrics(policies, begun.fleet),
            notices=tuple(self._notice((*self.path, "notices", i), i, one, begun.fleet, begins) for i, one in enumerate(case.notices)),
            changes=tuple(self._change((*self.path, "changes", i), one, begun.fleet) for i, one in enumerate(case.changes)),
            carry_out=case.carry_out,
            expect=tuple(sorted(expect, key=lambda one: one.step)),
        )
        return None if policies.problems else made

    def _moment(self) -> float:
        path, text = ((*self.path, "start"), self.case.start) if self.case.start is not None else (("start",), self.suite.start)
        try:
            return moment(text)
        except NoMoment as error:
            self.marks.add("SH169", path, *error.said)
            return 0.0

    def _count(self, path: Path, at: Duration) -> int:
        """The step at a time, counted from 0; with a problem when there is none, or too many before it."""
        steps = float(at) / self.step
        count = round(steps)
        if abs(steps - count) > 1e-6:
            what = f"{at} is not at a step: there is one every {Duration(self.step)}"
            near = f"{Duration(int(steps) * self.step)} or {Duration((int(steps) + 1) * self.step)}"
            self.marks.add("SH164", path, what, f"Write {near}, or change step")
        if count > MOST_STEPS:
            self.marks.add("SH164", path, f"{at} is step {count:,}: there are {MOST_STEPS:,} at most", "Make step longer")
            return 0
        return count

    def _policies(self, folder: str, files: Mapping[str, bytes]) -> PolicySet | None:
        own = self.case.policies is not None
        names = self.case.policies if own else self.suite.policies
        path: Path = (*self.path, "policies") if own else ("policies",)
        there = {name: data for name, data in files.items() if is_policy_file(name)}
        if names is None:
            names = tuple(sorted(there))
            if not names:
                self.marks.add("SH162", self.path, "there is no policy in the test's folder", "Put the test beside the policies")
        elif not names:
            self.marks.add("SH162", path, "the list of policies is empty", "Name a file, or remove the key for all of the folder")
        sound = [self.marks.known((*path, i), name, there, "policy file") for i, name in enumerate(names)]
        if not names or not all(sound):
            return None
        sources = tuple(SourceFile(path=f"{folder}{name}", blob="", data=there[name]) for name in sorted(set(names)))
        return load(Revision(commit=Commit("unsaved"), committed_at=None, files=sources), None)

    def _due(self, path: Path, one: Expectation, wanted: Wanted) -> Due:
        wanted.check(path, one)
        return Due(step=self._count((*path, "at"), one.at), place=self.marks.place(path), wanted=one)

    def _samples(self, begun: Begun) -> dict[str, dict[str, Series]]:
        """By worker: what the test says of its role, then what stands at the worker, then what the test says of the worker itself."""
        workers = {str(w.id): w for w in begun.fleet.workers}
        said: dict[str, dict[str, Series]] = {}
        for name, fields in self.case.samples.items():
            path = (*self.path, "samples", name)
            self.marks.known(path, name, [*workers, *ROLES], "worker or role", key=True)
            said[name] = {}
            for field, values in fields.items():
                known = self.marks.known((*path, field), field, _FIELDS, "worker metric", key=True)
                if known and (one := self.marks.series((*path, field), values)) is not None:
                    said[name][field] = one
        return {n: {**said.get(w.role, {}), **begun.samples.get(n, {}), **said.get(n, {})} for n, w in workers.items()}

    def _pools(self, fleet: Fleet) -> dict[str, dict[str, Series]]:
        """What is said of a pool by its role, then what is said of it by its own name."""
        pools = {pool_id(graph, role): role for graph in sorted({w.graph for w in fleet.workers}) for role in ROLES}
        said: dict[str, dict[str, Series]] = {}
        for name, fields in self.case.pools.items():
            path = (*self.path, "pools", name)
            self.marks.known(path, name, [*pools, *ROLES], "pool", key=True)
            said[name] = {}
            for field, values in fields.items():
                known = self.marks.known((*path, field), field, _POOL_FIELDS, "pool metric", key=True)
                if known and (one := self.marks.series((*path, field), values)) is not None:
                    said[name][field] = one
        return {pool: {**said.get(role, {}), **said.get(pool, {})} for pool, role in pools.items()}

    def _metrics(self, policies: PolicySet, fleet: Fleet) -> dict[str, dict[str, dict[str, Series]]]:
        declared = {str(p.name): p.metrics for p in policies.policies}
        found: dict[str, dict[str, dict[str, Series]]] = {}
        for policy, given in self.case.metrics.items():
            path = (*self.path, "metrics", policy)
            if not self.marks.known(path, policy, declared, "policy", key=True):
                continue
            for name, values in given.items():
                self.marks.known((*path, name), name, declared[policy], f"metric of {policy}", key=True)
                found.setdefault(policy, {})[name] = self._metric((*path, name), values, fleet)
        return found

    def _metric(self, path: Path, given: Values | dict[str, Values], fleet: Fleet) -> dict[str, Series]:
        if not isinstance(given, dict):
            one = self.marks.series(path, given)
            return {} if one is None else {ALL: one}
        for name in given:
            self.marks.known((*path, name), name, [str(w.id) for w in fleet.workers], "worker", key=True)
        read = {name: self.marks.series((*path, name), values) for name, values in given.items()}
        return {name: one for name, one in read.items() if one is not None}

    def _notice(self, path: Path, index: int, given: GivenNotice, fleet: Fleet, begins: float) -> Told:
        self.marks.known((*path, "node"), given.node, [str(n.id) for n in fleet.nodes], "node")
        first = self._count((*path, "at"), given.at)
        last = None if given.until is None else self._count((*path, "until"), given.until)
        if last is not None and last <= first:
            self.marks.add("SH164", (*path, "until"), "the notice ends before it begins", f"Write more than {given.at}")
        seen = begins + given.at
        notice = Notice(
            id=NoticeId(f"{given.node}-{given.kind.value}-{index}"),
            kind=given.kind,
            node=NodeId(given.node),
            seen_at=seen,
            deadline=None if given.lead is None else seen + given.lead,
            source="test",
        )
        return Told(notice=notice, first=first, last=last)

    def _change(self, path: Path, given: Change, fleet: Fleet) -> tuple[int, Change]:
        of_node = given.node is not None and given.reachable is not None and given.worker is None and given.state is None
        of_worker = given.worker is not None and given.state is not None and given.node is None and given.reachable is None
        if not of_node and not of_worker:
            self.marks.add("SH168", path, "it isn't clear what changes", "Write node and reachable, or worker and state")
        if given.node is not None:
            self.marks.known((*path, "node"), given.node, [str(n.id) for n in fleet.nodes], "node")
        if given.worker is not None:
            self.marks.known((*path, "worker"), given.worker, [str(w.id) for w in fleet.workers], "worker")
        return self._count((*path, "at"), given.at), given
