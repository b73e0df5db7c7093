"""The status of a policy as a custom resource: its words. The resources' schemas come from these structs too.

Times are RFC 3339 in UTC with whole seconds, as everywhere in Kubernetes.
"""

from typing import Literal

import msgspec

ConditionType = Literal["Accepted", "Active", "Degraded"]
Truth = Literal["True", "False", "Unknown"]


class _Yaml(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of what stands below `status`."""


class Condition(_Yaml, frozen=True, kw_only=True):
    """One condition, as Kubernetes has them everywhere."""

    type: ConditionType
    """`Accepted`: the policy as it stands here is in force. `Active`: it is in force, and what it decides is done. `Degraded`: something is
    wrong with it: an older version is in force, or it can't decide since inputs are missing."""
    status: Truth
    reason: str
    """One word in CamelCase, for programs."""
    message: str
    """A sentence for people."""
    last_transition_time: str
    """Since when `status` is what it is."""
    observed_generation: int
    """The generation of the resource that this was said of."""


class Counts(_Yaml, frozen=True, kw_only=True):
    """Of how many subjects (workers or graphs) the policy said what at the last decision."""

    act: int
    hold: int
    inconclusive: int
    pass_: int = msgspec.field(name="pass")


class Decision(_Yaml, frozen=True, kw_only=True):
    """The weightiest thing that the policy says: `act` before `hold` before `inconclusive` before `pass`."""

    at: str
    """Since when it says so."""
    verdict: Literal["act", "hold", "inconclusive", "pass"]
    subject: str = ""
    """The first subject of which it says so; empty where it is about none."""
    reason: str = ""
    """Why, of that subject."""


class PolicyStatus(_Yaml, frozen=True, kw_only=True):
    """What the engine says of a policy. None: nothing was decided with it yet."""

    observed_generation: int
    """The generation that all of this is about."""
    conditions: tuple[Condition, ...]
    commit: str | None = None
    """The commit that the version in force came from, as the annotation shunter.dev/commit said."""
    counts: Counts | None = None
    last_decision: Decision | None = None
