"""`for`: a condition that has held without a break, as far as the snapshots show."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import msgspec

from shunter.decide.gates import missing
from shunter.model.expression import Undecided
from shunter.model.policy import PolicySet, ReassignmentPolicy, RebalancePolicy

MIN_TOLERANCE = 5.0
"""Seconds between two snapshots that are never a gap."""
STEPS = 3.0
"""A gap is longer than so many times the median step between snapshots."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How long a condition has held. `since` is None when it doesn't hold now; `remaining` is what is left of `for`, in seconds.

    `begun` is True when the snapshots show the condition begin, so that `since` stays what it is while they roll on.
    `why` says what broke it or that the history is too short; empty once it has held long enough.
    """

    since: float | None
    remaining: float
    begun: bool = False
    why: str = ""


def tolerance(times: Sequence[float]) -> float:
    """The longest step between snapshots that isn't a gap: 3 times the median step, at least 5 s. Several at one time are one step."""
    steps = [b - a for a, b in pairwise(times) if b > a]
    return max(MIN_TOLERANCE, STEPS * median(steps)) if steps else MIN_TOLERANCE


def held(answers: Sequence[tuple[float, bool | Undecided | None]], now: float, needed: float) -> Held:
    """Whether the newest unbroken run of True reaches back `needed` seconds.

    `answers` are (time, answer) of each snapshot, oldest first; an undecided answer, or None, breaks the run like False. The run ends with
    the newest snapshot, not with `now`: what wasn't looked at hasn't held.
    """
    if not answers or answers[-1][1] is not True:
        return Held(since=None, remaining=needed, why="it doesn't hold now")
    allowed = tolerance([at for at, _ in answers])
    newest = answers[-1][0]
    if needed > 0 and now - newest > allowed:
        return Held(since=None, remaining=needed, why=f"the newest snapshot is more than {allowed:g} s old")
    since = newest
    broken = "the history reaches no further back"
    begun = False
    for at, answer in reversed(answers[:-1]):
        if since - at > allowed:
            broken, begun = f"a gap of {since - at:g} s in the snapshots before it", True
            break
        if answer is not True:
            broken, begun = ("it didn't hold before" if answer is False else _undecided(answer)), True
            break
        since = at
    remaining = max(0.0, needed - (newest - since))
    return Held(since=since, remaining=remaining, begun=begun, why=f"not long enough seen: {broken}" if remaining > 0 else "")


def _undecided(answer: Undecided | None) -> str:
    return f"it was undecided before ({missing(answer)})" if answer is not None else "it was undecided before"


def horizon(policies: PolicySet) -> float:
    """The longest time that any policy looks back, in seconds."""
    longest = 0.0
    for policy in policies.policies:
        document = policy.document
        if isinstance(document, ReassignmentPolicy):
            revert = document.spec.revert
            longest = max(longest, float(document.spec.for_), float(revert.for_) if revert else 0.0)
        elif isinstance(document, RebalancePolicy):
            longest = max(longest, float(document.spec.for_))
    return longest
