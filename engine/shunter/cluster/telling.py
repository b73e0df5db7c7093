"""What to write into a policy's status, from what the engine has in force and what it decided last. Pure."""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.reading import Reading, Resource, git_commit
from shunter.cluster.status import Condition, ConditionType, Counts, Decision, PolicyStatus
from shunter.model.errors import Problem, Severity
from shunter.model.finding import Finding, Verdict, chapters
from shunter.model.policy import Policy, PolicySet

_WEIGHT: Final = (Verdict.ACT, Verdict.HOLD, Verdict.INCONCLUSIVE, Verdict.PASS)
_INVOLUNTARY: Final = ("PreemptionPolicy",)
"""Kinds whose work goes on whatever the engine can't write."""
_LONGEST: Final = 1024
"""Characters of a message: a status is stored with every version of the resource."""


class Said(msgspec.Struct, kw_only=True):
    """What one policy says of all its subjects, and of the first of the weightiest ones."""

    counts: dict[Verdict, int]
    first: Finding | None = None

    @property
    def blind(self) -> bool:
        """It could say nothing of anything."""
        return bool(self.counts) and set(self.counts) == {Verdict.INCONCLUSIVE}


def gather(findings: Sequence[Finding]) -> dict[str, Said]:
    """By the policies' names. One finding of each is told whole: a large fleet has tens of thousands."""
    found: dict[str, Said] = {}
    for policy, _, briefs, tell in chapters(findings):
        if not briefs:
            continue
        verdicts = [brief.verdict for brief in briefs]
        counts = Counter(verdicts)
        weightiest = next(verdict for verdict in _WEIGHT if verdict in counts)
        found[policy] = Said(counts=dict(counts), first=tell(verdicts.index(weightiest)))
    return found


def statuses(
    reading: Reading,
    policies: PolicySet,
    said: Mapping[str, Said],
    before: Callable[[str, Resource], Object],
    at: float,
    halted: str = "",
) -> dict[str, PolicyStatus]:
    """The status of every resource of `reading`, which `policies` were made from, by path.

    `said` is what `gather` found. `before` gives a resource's status as it stands, empty if there is none: times are taken over from it
    where what they are about didn't change. `at`: seconds since the epoch. `halted`: why the engine begins nothing voluntary at present;
    empty: it does.
    """
    by_path = {policy.place.file: policy for policy in policies.policies}
    problems: dict[str, list[Problem]] = {}
    for problem in policies.problems:
        if problem.severity is Severity.ERROR:
            problems.setdefault(problem.place.file if problem.place else problem.subject, []).append(problem)
    found = {}
    for path, resource in reading.resources.items():
        policy = by_path.get(path)
        here = said.get(policy.name) if policy else None
        found[path] = _status(resource, policy, problems.get(path, []), here, before(path, resource), at, halted)
    return found


def _status(
    resource: Resource, policy: Policy | None, problems: list[Problem], said: Said | None, before: Object, at: float, halted: str
) -> PolicyStatus:
    stamp = dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    accepted = policy is not None and policy.blob == resource.blob and not problems
    commit = (resource.commit if accepted else git_commit(policy.commit)) if policy else ""
    verdicts = _verdicts(accepted, policy, problems, said, halted)
    conditions = tuple(_condition(kind, *verdict, resource, before, stamp) for kind, verdict in verdicts.items())
    return PolicyStatus(
        observed_generation=resource.generation,
        conditions=conditions,
        commit=commit or None,
        counts=_counts(said) if said else None,
        last_decision=_decision(said, before, stamp) if said else None,
    )


_Verdict = tuple[bool, str, str]
"""Whether a condition holds, its reason, and its message."""


def _verdicts(
    accepted: bool, policy: Policy | None, problems: list[Problem], said: Said | None, halted: str
) -> dict[ConditionType, _Verdict]:
    if accepted and policy is not None:
        taken: _Verdict = (True, "InForce", "it is in force as it stands here")
    else:
        taken = (False, "Refused", _told(problems))
    return {"Accepted": taken, "Active": _active(policy, halted), "Degraded": _degraded(accepted, policy, said)}


def _active(policy: Policy | None, halted: str) -> _Verdict:
    if policy is None:
        return False, "NotInForce", "no version of it is in force"
    if policy.refused is not None:
        return False, "CountsAsZero", "it can't be read, so nothing voluntary is begun for its workers"
    match policy.mode:
        case "enforce" if halted and policy.kind not in _INVOLUNTARY:
            return False, "Halted", _cut(f"nothing voluntary is begun at present: {halted}")
        case "enforce":
            return True, "Enforced", "what it decides is done"
        case "preview":
            return False, "Preview", "it decides, and nothing is done: its mode is preview"
        case "off":
            return False, "Off", "it isn't evaluated: its mode is off"


def _degraded(accepted: bool, policy: Policy | None, said: Said | None) -> _Verdict:
    if policy is None or policy.refused is not None:
        return True, "Refused", "it was refused, and no earlier version of it is in force"
    if not accepted:
        return True, "OlderVersion", f"it was refused, and the version of {policy.commit[:12]} is in force instead"
    if said is not None and said.blind and said.first is not None:
        return True, "InputsMissing", _cut(f"it can't decide about any of its subjects; of {said.first.subject}: {said.first.reason}")
    return False, "AsWanted", "nothing is wrong with it"


def _told(problems: list[Problem]) -> str:
    if not problems:
        return "another policy's file was refused together with it"
    first = problems[0]
    where = f"line {first.place.line}: " if first.place else ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return _cut(f"{where}{first.code} {first.what}. {first.remedy}") + more


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _condition(kind: ConditionType, holds: bool, reason: str, message: str, resource: Resource, before: Object, stamp: str) -> Condition:
    status = "True" if holds else "False"
    conditions: list[Object] = before.get("conditions") or []
    stood: Object = next((c for c in conditions if c.get("type") == kind), {})
    since = stood.get("lastTransitionTime") if stood.get("status") == status else None
    return Condition(
        type=kind,
        status="True" if holds else "False",
        reason=reason,
        message=message,
        last_transition_time=since or stamp,
        observed_generation=resource.generation,
    )


def _counts(said: Said) -> Counts:
    act, hold, inconclusive, passes = (said.counts.get(verdict, 0) for verdict in _WEIGHT)
    return Counts(act=act, hold=hold, inconclusive=inconclusive, pass_=passes)


def _decision(said: Said, before: Object, stamp: str) -> Decision | None:
    """The same as before if it says the same of the same: a reason names figures, and they change all the time."""
    if said.first is None:
        return None
    verdict, about = said.first.verdict, "" if said.first.verdict is Verdict.PASS else said.first.subject
    stood = before.get("lastDecision") or {}
    if (stood.get("verdict"), stood.get("subject", "")) == (verdict.value, about) and stood.get("at"):
        return Decision(at=stood["at"], verdict=verdict.value, subject=about, reason=stood.get("reason", ""))
    return Decision(at=stamp, verdict=verdict.value, subject=about, reason=_cut(said.first.reason) if about else "")


def weighty(new: Object, before: Object) -> bool:
    """They differ in more than figures: in what is worth a write at once."""
    return any(new.get(key) != before.get(key) for key in ("observedGeneration", "conditions", "commit", "lastDecision"))
