"""Tests as they stand in `*_test.yaml`: these structs mirror the document key by key (camelCase there); its JSON Schema comes from them.

Everything has a default but what a test is about.
"""

from typing import Literal, TypeAlias

import msgspec

from shunter.model.finding import Verdict
from shunter.model.plan import OperationKind
from shunter.model.snapshot import NoticeKind, Role, WorkerState
from shunter.model.units import Duration

Values: TypeAlias = float | str | tuple[float | str, ...]
"""A number for all the time, a text such as `0 0 40x10`, or a list with one entry for each step (see `cases.series`)."""


class _Yaml(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of everything that stands in a test file."""


class GivenNode(_Yaml, frozen=True, kw_only=True):
    """A node. `{}` is one slot for either role, without GPUs, that answers."""

    slots: int = 1
    gpus: int = 0
    """GPUs of each slot. A restore with GPUs is planned to take at least 20 s until one was measured."""
    gpu_model: str = ""
    roles: tuple[Role, ...] = ("prefill", "decode")
    """What its slots can serve."""
    labels: dict[str, str] = {}
    facts: dict[str, str] = {}
    """What restores must match: `kernel`, `arch`, `cpu`, `criu`, `driver`, `cuda`."""
    runtime: Literal["criu", "pretend"] = "criu"
    reachable: bool = True
    """Whether its agent answers at the beginning (see `changes`)."""
    archive: bool = False
    """Whether it knows of the archive of images."""


class GivenImage(_Yaml, frozen=True, kw_only=True):
    """A checkpoint of the worker that it stands at."""

    nodes: tuple[str, ...]
    """Nodes that hold a whole copy; `[]` where the archive alone does."""
    age: Duration = Duration(0)
    """How old it is at the beginning."""
    size: str = ""
    """A size such as `80GB`; empty: the worker's memory."""
    archived: bool = False
    """Whether the archive has it, too."""


class GivenWorker(_Yaml, frozen=True, kw_only=True):
    """A worker, and what its metrics say. A metric that isn't given here or in `samples` is missing, not 0."""

    node: str | None = None
    """Where it runs: a node (its first free slot is taken) or a slot, as in `node-a/1`. Without it the worker is parked."""
    role: Role | None = None
    """Without it: the first part of the worker's name, as in `decode-0`."""
    graph: str | None = None
    """Without it: the fleet's `graph`."""
    engine: str = "vllm"
    state: WorkerState | None = None
    """Without it: `running` with a node, `parked` without one."""
    labels: dict[str, str] = {}
    memory: str = "80GB"
    """What a dump of it will have; `unknown` for a worker that its agent couldn't measure."""
    incarnation: int = 0
    images: tuple[GivenImage, ...] = ()
    running: Values | None = None
    waiting: Values | None = None
    kv_usage: Values | None = None
    sessions: Values | None = None
    kv_tokens: Values | None = None


class GivenFleet(_Yaml, frozen=True, kw_only=True):
    """Nodes and workers by their names."""

    graph: str | None = None
    """The graph of all workers that name no other; `demo` unless given."""
    nodes: dict[str, GivenNode] = {}
    workers: dict[str, GivenWorker] = {}


class GivenNotice(_Yaml, frozen=True, kw_only=True):
    """A signal that a node is going."""

    node: str
    kind: NoticeKind
    at: Duration = Duration(0)
    """When it is first seen."""
    lead: Duration | None = None
    """Time from then to its deadline; without it there is no deadline."""
    until: Duration | None = None
    """When it is withdrawn; without it, never."""


class Change(_Yaml, frozen=True, kw_only=True):
    """Something that happens to the fleet. Name a node with `reachable`, or a worker with `state`."""

    at: Duration
    node: str | None = None
    reachable: bool | None = None
    worker: str | None = None
    state: WorkerState | None = None
    """`lost` and `parked` free its slot."""


class WantedFinding(_Yaml, frozen=True, kw_only=True):
    """A finding that there must be."""

    subject: str
    """A worker's name, or a graph's for what a policy says of its pools. For a budget the group that it limits: `pool:<graph>/<role>`,
    `node:<name>`, `zone:<name>` or `all`."""
    verdict: Verdict
    policy: str | None = None
    """May be left out where a test has one policy."""
    gate: str | None = None
    """The YAML field or the limit that decided, as in `when`, `for`, `cooldown`, `limits.from.min`."""
    reason: str | None = None
    """A part of the reason's words."""


class WantedOperation(_Yaml, frozen=True, kw_only=True):
    """An operation that must be planned. What is left out isn't compared."""

    kind: OperationKind
    worker: str
    policy: str | None = None
    from_: str | None = msgspec.field(name="from", default=None)
    """A node or a slot."""
    to: str | None = None
    """A node or a slot."""
    after: tuple[str, ...] | None = None
    """The workers whose operations must have succeeded first; `[]`: none."""
    copies: tuple[str, ...] | None = None
    """The nodes that are to hold the image, in any order."""
    preview: bool | None = None


class WantedWorker(_Yaml, frozen=True, kw_only=True):
    """Where a worker must be by then: only operations that were carried out, and `changes`, make it another place than at first."""

    node: str | None = None
    """A node or a slot."""
    state: WorkerState | None = None


class Expectation(_Yaml, frozen=True, kw_only=True):
    """What must be so at one step."""

    at: Duration = Duration(0)
    findings: tuple[WantedFinding, ...] = ()
    """These must be there; others may be."""
    operations: tuple[WantedOperation, ...] | None = None
    """What must be planned at this step; `[]`: nothing."""
    exactly: bool = True
    """`operations` are all that is planned. With false there may be others."""
    workers: dict[str, WantedWorker] = {}


class GivenProfile(_Yaml, frozen=True, kw_only=True):
    """Rates to plan with, in bytes per second, as in the engine's settings. What is left out is the engine's own default."""

    dump: str = ""
    restore: str = ""
    network: str = ""


class Case(_Yaml, frozen=True, kw_only=True):
    """One test."""

    name: str
    expect: tuple[Expectation, ...]
    policies: tuple[str, ...] | None = None
    """Policy files in force, by their names in the test's folder; without it the file's own list."""
    fleet: GivenFleet = GivenFleet()
    """Nodes and workers besides the file's own; one of the same name takes the other's place as a whole."""
    samples: dict[str, dict[str, Values]] = {}
    """Metrics by worker, or by role for all its workers that say nothing of their own: `{decode: {kvUsage: 0.4}}`."""
    pools: dict[str, dict[str, Values]] = {}
    """Metrics of pools themselves, by role or by `<graph>/<role>`: `{prefill: {desired: 2x10 3}}` is what the planner wants."""
    metrics: dict[str, dict[str, Values | dict[str, Values]]] = {}
    """What policies declare in their `metrics`: by policy, then by name; one value for all, or by worker."""
    notices: tuple[GivenNotice, ...] = ()
    changes: tuple[Change, ...] = ()
    carry_out: bool = False
    """Carry out what is planned: each operation succeeds after the time that was estimated for it."""
    step: Duration | None = None
    start: str | None = None


class Suite(_Yaml, frozen=True, kw_only=True):
    """A test file: what its tests share, and the tests."""

    tests: tuple[Case, ...]
    policies: tuple[str, ...] | None = None
    """Policy files in force, by their names in the same folder; without it, all of the folder."""
    fleet: GivenFleet = GivenFleet()
    step: Duration = Duration(5)
    """Time between two looks. All times in the file are multiples of it, from the beginning of each test."""
    start: str = "2026-01-01T00:00:00Z"
    """When each test begins, for conditions on `now` and for windows: a moment of ISO 8601 with `Z` or an offset, or a time on the clocks
    of a place, such as `2026-03-29 01:55 Europe/Berlin`."""
    profile: GivenProfile = GivenProfile()
