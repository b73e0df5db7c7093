"""The policy language through the command line: whole documents of every kind, damaged at every place of one sort, and what is said of it.

Where a key or a value stands is told by PyYAML's own composer, and what may stand there by the published schema: neither is the product's
own reader.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

SHUNTER = Path(sys.executable).with_name("shunter")
SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "policy.v1alpha1.json").read_text())

_HEAD = (
    "apiVersion: shunter.dev/v1alpha1\nkind: {kind}\n"
    "metadata: {{name: {name}, namespace: serving, labels: {{team: a}}, annotations: {{note: b}}}}\n"
)
_ACTING = """\
spec:
  mode: enforce
  priority: 7
  workers: {graph: tiny, where: 'worker.engine == "vllm"'}
  metrics:
    wait: {query: up, unit: seconds, maxAge: 30s, onMissing: inconclusive}
"""


def _document(kind: str, name: str, spec: str) -> str:
    return _HEAD.format(kind=kind, name=name) + spec


WHOLE: dict[str, str] = {
    "preempt": _document(
        "PreemptionPolicy",
        "preempt",
        _ACTING
        + """\
  notices: [preemption, gone]
  move:
    to: {where: node.freeSlots > 0, prefer: metrics.wait}
    order: worker.kvTokens
    makeRoom: prefill
  reserve: 10s
  otherwise: [checkpoint, drain]
""",
    ),
    "shift": _document(
        "ReassignmentPolicy",
        "shift",
        _ACTING
        + """\
  from: decode
  to: prefill
  when: pools.prefill.waiting > 30 && metrics.wait > 1
  for: 30s
  revert: {when: pools.prefill.waiting < 3, for: 1m}
  pick: {where: worker.sessions < 4, prefer: -worker.kvTokens}
  sessions: move
  goldenImages: use
  method: auto
  limits: {from: {min: 2}, to: {max: 4}, step: 1}
  cooldown: 5m
""",
    ),
    "follow": _document(
        "ReassignmentPolicy",
        "follow",
        "spec:\n  workers: {graph: other}\n  from: decode\n  to: prefill\n  follow: planner\n  for: 30s\n",
    ),
    "images": _document(
        "CheckpointPolicy",
        "images",
        _ACTING
        + """\
  every: 5m
  when: worker.kvUsage < 0.9 && metrics.wait < 5
  pause: {atMost: 20s, share: 10%}
  overhead: {atMost: 2%}
  prefer: idle
  keep: {last: 2, within: 1h}
  copies: 2
  archive: true
""",
    ),
    "cadence": _document(
        "CheckpointPolicy",
        "cadence",
        "spec:\n  workers: {role: decode, graph: other}\n  cadence: {optimal: {hazard: 1/1000h, hinted: 1/2h, min: 1m, max: 1h}}\n",
    ),
    "spread": _document(
        "RebalancePolicy",
        "spread",
        _ACTING
        + """\
  when: node.noticed || metrics.wait > 3
  for: 1m
  to: {where: '!node.noticed', prefer: double(node.freeSlots)}
  gain: {atLeast: 2}
  cooldown: 30m
  step: 1
""",
    ),
    "budget": _document(
        "DisruptionBudget",
        "budget",
        """\
spec:
  mode: enforce
  workers: {role: decode, graph: tiny, where: 'worker.labels["tier"] == "gold"'}
  operations: [move, drain]
  per: zone
  maxConcurrent: 10%
  maxPerWindow: {max: 3, window: 10m}
  windows:
    - {zone: Europe/Berlin, from: "22:00", to: "06:00", days: [mon, sun]}
""",
    ),
    "profile": _document(
        "FleetProfile",
        "profile",
        """\
spec:
  mode: enforce
  gpuModel: NVIDIA B200
  dump: 40GB/s
  restore: 30GB/s
  network: 12.5GB/s
  fixedDump: 800ms
  fixedRestore: 1s
  nativeStart: 4m
  prefillRate: 20000
  prefillDoubling: 65536
  lead: {preemption: 30s, maintenance: 1h}
""",
    ),
    "all": _document("PreemptionPolicy", "all", "spec: {workers: {all: true}, notices: [drain]}\n"),
}
"""Documents that together have every key of every kind."""


class Spot(NamedTuple):
    """A key and its value in a document: where they stand (lines and columns from 1, offsets from 0), and the value's schema."""

    path: str
    key: str
    key_line: int
    key_column: int
    key_start: int
    key_end: int
    line: int
    column: int
    start: int
    end: int
    scalar: bool
    schema: dict[str, Any]
    first: bool
    flow: bool


def spots(text: str) -> Iterator[Spot]:
    """Every key of a document, as PyYAML sees them, with what the schema says of its value."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    kind = next(value.value for key, value in root.value if key.value == "kind")
    yield from _spots(root, "", SCHEMA["$defs"][kind])


def _spots(node: yaml.Node, path: str, schema: dict[str, Any]) -> Iterator[Spot]:
    schema = resolved(schema)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _spots(item, f"{path}[{index}]", schema.get("items", {}))
    if not isinstance(node, yaml.MappingNode):
        return
    for index, (key, value) in enumerate(node.value):
        inner = schema.get("properties", {}).get(key.value) or schema.get("additionalProperties") or {}
        here = f"{path}.{key.value}".lstrip(".")
        a, b = key.start_mark, value.start_mark
        yield Spot(
            here, key.value, a.line + 1, a.column + 1, a.index, key.end_mark.index, b.line + 1, b.column + 1, b.index, value.end_mark.index,
            isinstance(value, yaml.ScalarNode), inner, index == 0, bool(node.flow_style),
        )  # fmt: skip
        yield from _spots(value, here, inner if isinstance(inner, dict) else {})


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without its reference."""
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def named(schema: dict[str, Any]) -> set[str]:
    """The names of the definitions that a value may follow: `Duration`, `Share`, `Expression`, ..."""
    return {part["$ref"].rpartition("/")[2] for part in (schema, *schema.get("anyOf", ())) if "$ref" in part}


def put(text: str, spot: Spot, value: str) -> str:
    """The document with another value."""
    return text[: spot.start] + value + text[spot.end :]


def shunter(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command. A traceback is a failure whatever was asked."""
    done = subprocess.run(
        [SHUNTER, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=100,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 1, 2, 3), done
    return done


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Files in a new folder."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def validate(folder: Path, *options: str | Path) -> dict[str, list[dict[str, Any]]]:
    """What `shunter validate` says of each file in the folder, by name. Warnings are left out."""
    done = shunter("validate", "--format", "json", *options, folder)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["valid"] else 1)
    found: dict[str, list[dict[str, Any]]] = {Path(path).name: [] for path in report["paths"]}
    for problem in report["problems"]:
        if problem["severity"] == "error":
            found[Path(problem["place"]["file"]).name].append(problem)
    return found


def at(problem: dict[str, Any]) -> tuple[int, int]:
    """A problem's line and column."""
    return problem["place"]["line"], problem["place"]["column"]
