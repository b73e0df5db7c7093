"""Policies, good and bad, that `shunter validate` and the API server must agree on; and those few on which they can't.

Whole documents of every kind are damaged at every place in every way that there is by rule (`damaged`), and by hand where keys depend on
each other (`EDITS`).
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from shunter.lang.load import is_policy_file

ROOT = Path(__file__).resolve().parents[2]
Path_ = tuple[str | int, ...]


class Case(NamedTuple):
    """A document, and what it is in a word."""

    name: str
    document: Any


def _whole(text: str) -> dict[str, Any]:
    return {"apiVersion": "shunter.dev/v1alpha1", **yaml.safe_load(text)}


_ACTING = """\
  mode: preview
  priority: 7
  workers: {role: decode, graph: tiny, where: 'worker.engine == "vllm"'}
  metrics:
    wait: {query: up, unit: seconds, maxAge: 1h30m, onMissing: 0.5}
    load: {query: up, unit: "1", onMissing: inconclusive}
"""
WHOLE: dict[str, dict[str, Any]] = {
    "preempt": _whole(
        "kind: PreemptionPolicy\nmetadata: {name: preempt, labels: {team: a}}\nspec:\n"
        + _ACTING
        + """\
  notices: [preemption, gpu-failing]
  move: {to: {where: node.freeSlots > 0, prefer: metrics.wait + metrics.load}, order: worker.kvTokens, makeRoom: prefill}
  reserve: 10s
  otherwise: [drain, checkpoint]
"""
    ),
    "shift": _whole(
        "kind: ReassignmentPolicy\nmetadata: {name: shift}\nspec:\n"
        + _ACTING
        + """\
  from: decode
  to: prefill
  when: pools.prefill.waiting > 30 && metrics.wait > 1 && metrics.load > 1
  for: 30s
  revert: {when: pools.prefill.waiting < 3, for: 1m}
  pick: {where: worker.sessions < 4, prefer: -worker.kvTokens}
  sessions: park
  goldenImages: use
  follow: thresholds
  method: in-place
  limits: {from: {min: 2}, to: {max: 4}, step: 1}
  cooldown: 1h
"""
    ),
    "follow": _whole(
        "kind: ReassignmentPolicy\nmetadata: {name: follow}\n"
        "spec: {workers: {graph: g}, from: decode, to: prefill, follow: planner, for: 0s}\n"
    ),
    "images": _whole(
        "kind: CheckpointPolicy\nmetadata: {name: images}\nspec:\n"
        + _ACTING
        + """\
  every: 5m
  when: worker.kvUsage < 0.9 && metrics.wait < 5 && metrics.load < 1
  pause: {atMost: 20s, share: 10%}
  overhead: {atMost: 2.5%}
  prefer: idle
  keep: {last: 2, within: 1d}
  copies: 2
  archive: true
"""
    ),
    "computed": _whole(
        "kind: CheckpointPolicy\nmetadata: {name: computed}\n"
        "spec: {workers: {all: true}, cadence: {optimal: {hazard: 1/1000h, hinted: 1/4h, min: 2m, max: 1h}}}\n"
    ),
    "rebalance": _whole(
        "kind: RebalancePolicy\nmetadata: {name: rebalance}\nspec:\n"
        + _ACTING
        + """\
  when: node.labels["tier"] == "old" && metrics.wait > 0 && metrics.load > 0
  for: 1m
  to: {where: node.freeSlots > 0, prefer: node.freeSlots}
  gain: {atLeast: 0.5}
  cooldown: 30m
  step: 2
"""
    ),
    "budget": _whole(
        """\
kind: DisruptionBudget
metadata: {name: budget}
spec:
  mode: enforce
  workers: {where: 'worker.role == "decode"'}
  operations: [move, park]
  per: zone
  maxConcurrent: 10%
  maxPerWindow: {max: 2, window: 10m}
  windows: [{zone: Europe/Berlin, from: "22:00", to: "24:00", days: [mon, sun]}]
"""
    ),
    "profile": _whole(
        """\
kind: FleetProfile
metadata: {name: profile}
spec:
  mode: enforce
  gpuModel: B200
  dump: 10GB/s
  restore: 8GiB/s
  network: 40GB/s
  fixedDump: 1s
  fixedRestore: 2s
  nativeStart: 10m
  prefillRate: 8000
  prefillDoubling: 65536
  lead: {preemption: 30s, maintenance: 1h}
"""
    ),
}


def edited(name: str, path: Path_, value: Any) -> Any:
    """A whole document with another value at a path; `...` takes the key out."""
    document = copy.deepcopy(WHOLE[name])
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


def good() -> Iterator[Case]:
    """Those that ship with the project, those above, and some edges."""
    for folder in ("policies", "examples/policy-repo"):
        for path in sorted((ROOT / folder).rglob("*.yaml")):
            if is_policy_file(path.name) and ".github" not in path.parts:
                documents = [found for found in yaml.safe_load_all(path.read_text()) if found and found.get("kind") in KINDS]
                yield from (Case(f"{path.name} {found['metadata']['name']}", found) for found in documents)
    for name, document in WHOLE.items():
        yield Case(name, document)
    for name, path, value in EDGES:
        yield Case(f"{name} {'.'.join(map(str, path))}={value!r}", edited(name, path, value))


KINDS = frozenset(document["kind"] for document in WHOLE.values())

EDGES: tuple[tuple[str, Path_, Any], ...] = (
    ("budget", ("spec", "maxConcurrent"), 0),
    ("budget", ("spec", "maxConcurrent"), "0%"),
    ("budget", ("spec", "maxConcurrent"), "100%"),
    ("budget", ("spec", "maxPerWindow", "window"), "1h"),
    ("budget", ("spec", "maxPerWindow", "window"), "59m60s"),
    ("budget", ("spec", "maxPerWindow", "window"), "0.04d"),
    ("budget", ("spec", "maxPerWindow", "max"), "7.5%"),
    ("budget", ("spec", "windows"), []),
    ("budget", ("spec", "workers"), {"all": True}),
    ("budget", ("spec", "workers"), {"role": "prefill", "graph": "g"}),
    ("computed", ("spec", "cadence", "optimal"), {"hazard": "0.5/1d"}),
    ("computed", ("spec", "cadence", "optimal"), {"hazard": "1/1000h", "min": "1h"}),
    ("computed", ("spec", "cadence", "optimal"), {"hazard": "1/1000h", "max": "60s"}),
    ("computed", ("spec", "cadence", "optimal"), {"hazard": "1/1000h", "min": "1d", "max": "1d12h"}),
    ("images", ("spec", "pause"), {}),
    ("images", ("spec", "metrics", "wait", "onMissing"), -3),
    ("images", ("spec", "priority"), -5),
    ("images", ("spec", "keep"), ...),
    ("preempt", ("spec", "otherwise"), []),
    ("preempt", ("spec", "reserve"), "0s"),
    ("preempt", ("spec", "move"), {}),
    ("profile", ("spec",), {"lead": {"gpu-failing": "250ms"}}),
    ("profile", ("spec",), {"gpuModel": "B200", "prefillDoubling": 0.5}),
    ("rebalance", ("spec", "gain"), ...),
    ("rebalance", ("spec", "workers"), {"all": True}),
    ("shift", ("spec", "cooldown"), "0s"),
    ("shift", ("spec", "limits"), {"from": {"min": 0}}),
    ("shift", ("spec", "workers"), {"all": True}),
    ("shift", ("spec", "workers"), {"all": False, "graph": "g"}),
    ("shift", ("metadata", "name"), "a" * 63),
)
"""What is just still right."""

EDITS: tuple[tuple[str, Path_, Any], ...] = (
    ("budget", ("spec", "maxConcurrent"), -1),
    ("budget", ("spec", "maxConcurrent"), "101%"),
    ("budget", ("spec", "maxConcurrent"), "5"),
    ("budget", ("spec", "maxConcurrent"), 2.5),
    ("budget", ("spec", "maxConcurrent"), True),
    ("budget", ("spec", "maxPerWindow", "window"), "61m"),
    ("budget", ("spec", "maxPerWindow", "window"), "0.05d"),
    ("budget", ("spec", "maxPerWindow", "window"), "0.0s"),
    ("budget", ("spec", "operations"), ["move", "move"]),
    ("budget", ("spec", "operations"), []),
    ("budget", ("spec",), {"workers": {"all": True}}),
    ("budget", ("spec",), {"workers": {"all": True}, "windows": []}),
    ("budget", ("spec", "windows", 0, "to"), "22:00"),
    ("budget", ("spec", "windows", 0, "from"), "24:00"),
    ("budget", ("spec", "windows", 0, "to"), "9:00"),
    ("budget", ("spec", "windows", 0, "days"), []),
    ("budget", ("spec", "windows", 0, "days"), ["mon", "mon"]),
    ("budget", ("spec", "workers"), {}),
    ("computed", ("spec", "every"), "5m"),
    ("computed", ("spec", "cadence"), ...),
    ("computed", ("spec", "cadence", "optimal", "min"), "61m"),
    ("computed", ("spec", "cadence", "optimal", "min"), "1d"),
    ("computed", ("spec", "cadence", "optimal"), {"hazard": "1/1000h", "min": "2h"}),
    ("computed", ("spec", "cadence", "optimal"), {"hazard": "1/1000h", "max": "30s"}),
    ("computed", ("spec", "cadence", "optimal", "min"), "0s"),
    ("computed", ("spec", "cadence", "optimal", "hazard"), "0/1000h"),
    ("computed", ("spec", "cadence", "optimal", "hazard"), "1/0h"),
    ("computed", ("spec", "cadence", "optimal", "hazard"), "1/1000"),
    ("computed", ("spec", "cadence", "optimal", "hinted"), "0/4h"),
    ("computed", ("spec", "cadence", "optimal", "hinted"), "4h"),
    ("computed", ("spec", "workers", "role"), "decode"),
    ("computed", ("spec", "workers", "all"), False),
    ("follow", ("spec", "when"), "pools.prefill.waiting > 3"),
    ("follow", ("spec", "revert"), {"when": "pools.prefill.waiting < 3"}),
    ("follow", ("spec", "workers", "role"), "decode"),
    ("images", ("spec", "archive"), "yes"),
    ("images", ("spec", "copies"), 0),
    ("images", ("spec", "every"), "0m"),
    ("images", ("spec", "every"), "5"),
    ("images", ("spec", "every"), "5m1h"),
    ("images", ("spec", "every"), "1m1m"),
    ("images", ("spec", "every"), ""),
    ("images", ("spec", "every"), "5 m"),
    ("images", ("spec", "keep", "last"), 0),
    ("images", ("spec", "keep", "within"), "0d"),
    ("images", ("spec", "metrics", "wait", "maxAge"), "0s"),
    ("images", ("spec", "metrics", "wait", "onMissing"), "zero"),
    ("images", ("spec", "metrics", "wait", "query"), ""),
    ("images", ("spec", "metrics", "wait", "unit"), "minutes"),
    ("images", ("spec", "overhead", "atMost"), "0%"),
    ("images", ("spec", "pause", "atMost"), "0ms"),
    ("images", ("spec", "pause", "share"), "0.2"),
    ("images", ("spec", "when"), ""),
    ("images", ("spec", "workers", "graph"), " "),
    ("preempt", ("spec", "notices"), []),
    ("preempt", ("spec", "notices"), ["gone", "gone"]),
    ("preempt", ("spec", "notices"), ["fire"]),
    ("preempt", ("spec", "otherwise"), ["drain", "drain"]),
    ("profile", ("spec", "dump"), "0GB/s"),
    ("profile", ("spec", "dump"), "10Gbit/s"),
    ("profile", ("spec", "dump"), "10GB"),
    ("profile", ("spec", "gpuModel"), ""),
    ("profile", ("spec", "lead", "preemption"), "0s"),
    ("profile", ("spec", "lead", "fire"), "1s"),
    ("profile", ("spec", "prefillDoubling"), 0),
    ("profile", ("spec", "prefillDoubling"), "64k"),
    ("profile", ("spec", "prefillRate"), 0),
    ("profile", ("spec",), {"gpuModel": "B200"}),
    ("profile", ("spec",), {"lead": {}}),
    ("rebalance", ("spec", "cooldown"), "61m"),
    ("rebalance", ("spec", "gain", "atLeast"), 0),
    ("rebalance", ("spec", "to", "prefer"), ...),
    ("rebalance", ("spec", "to"), ...),
    ("rebalance", ("spec", "step"), 0),
    ("shift", ("metadata", "name"), "Shift"),
    ("shift", ("metadata", "name"), "a" * 64),
    ("shift", ("metadata", "name"), "a.b"),
    ("shift", ("spec", "cooldown"), "1h1ms"),
    ("shift", ("spec", "cooldown"), "1d"),
    ("shift", ("spec", "from"), "prefill"),
    ("shift", ("spec", "limits", "from", "min"), -1),
    ("shift", ("spec", "limits", "to", "max"), 0),
    ("shift", ("spec", "limits", "step"), 0),
    ("shift", ("spec", "metrics", "1st"), {"query": "up", "unit": "1"}),
    ("shift", ("spec", "metrics", "a-b"), {"query": "up", "unit": "1"}),
    ("shift", ("spec", "priority"), 1.5),
    ("shift", ("spec", "when"), ...),
    ("shift", ("spec", "workers", "role"), "prefill"),
)  # fmt: skip
"""What is wrong, and why: a value that its key can't have, or keys that don't go together."""


def damaged() -> Iterator[Case]:
    """Every value replaced by one of another type, an unknown key in every mapping with fixed keys, and every required key taken away."""
    for name, document in WHOLE.items():
        for path, value in _places(document["spec"], ("spec",)):
            if "labels" in path:
                continue
            for other in (True, 7, "text !", [], {"x": 1}, None):
                if _may_be(path, value, other):
                    continue
                yield Case(f"{name} {'.'.join(map(str, path))}={other!r}", edited(name, path, other))
            if isinstance(value, dict) and path[-1] not in ("metrics", "lead"):
                yield Case(f"{name} {'.'.join(map(str, path))} with another key", edited(name, (*path, "wrong"), 1))
        for key in ("workers", "from", "to", "for", "notices"):
            if key in document["spec"] and (name, key) not in _OPTIONAL:
                yield Case(f"{name} without {key}", edited(name, ("spec", key), ...))


_OPTIONAL = {("rebalance", "to"), ("rebalance", "for")}


def _may_be(path: Path_, value: Any, other: Any) -> bool:
    """The replacement is of the same sort, so that it may well be right. An empty mapping isn't tried: many may be empty."""
    numbers = isinstance(value, int | float) and not isinstance(value, bool) and other == 7
    text = isinstance(value, str) and other == "text !"
    either = (path[-1] in ("maxConcurrent", "max", "onMissing") and other == 7) or (path[-1] == "onMissing" and other is None)
    return numbers or text or either or (isinstance(value, bool) and isinstance(other, bool)) or (isinstance(value, list) and other == [])


def _places(value: Any, path: Path_) -> Iterator[tuple[Path_, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _places(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _places(below, (*path, index))


def bad() -> Iterator[Case]:
    for name, path, value in EDITS:
        yield Case(f"{name} {'.'.join(map(str, path))}={value!r}", edited(name, path, value))
    yield from damaged()


ONLY_VALIDATE: tuple[Case, ...] = (
    Case("an expression that isn't one", edited("images", ("spec", "when"), "worker.kvUsage <")),
    Case("a variable that there isn't", edited("images", ("spec", "when"), "worker.kvusage < 0.9")),
    Case("a condition that is a number", edited("images", ("spec", "when"), "worker.kvUsage")),
    Case("a variable that isn't seen there", edited("shift", ("spec", "when"), "worker.kvUsage > 0.5")),
    Case("a metric that isn't declared", edited("follow", ("spec", "pick"), {"prefer": "metrics.wait"})),
    Case("a time zone that there isn't", edited("budget", ("spec", "windows", 0, "zone"), "Europe/Berlln")),
    Case("a size that rounds to nothing", edited("profile", ("spec", "dump"), "0.4B/s")),
    Case("less than a second beyond an hour, in days", edited("shift", ("spec", "cooldown"), "0.04d144.5s")),
    Case("nothing where a number or a word should be", edited("images", ("spec", "metrics", "wait", "onMissing"), None)),
    Case("a whole number written as 7.0", edited("shift", ("spec", "priority"), 7.0)),
)
"""What only `shunter validate` and the engine refuse. Such a policy isn't put in force, and its status says why."""

ONLY_SERVER: tuple[Case, ...] = (
    Case("a quantity of more than 64 characters", edited("images", ("spec", "every"), "0" * 63 + "5m")),
    Case("more than 100 windows", edited("budget", ("spec", "windows"), WHOLE["budget"]["spec"]["windows"] * 101)),
)
"""What only the API server refuses: it wants bounds."""
