"""Hostile and damaged files: never an exception, always a set or problems with real places."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.lang.bind import Binder
from shunter.lang.cel import CelRules, check
from shunter.lang.diagnostics import MAX_PROBLEMS
from shunter.lang.load import check_text, load
from shunter.lang.locate import in_file
from shunter.lang.misfits import explain
from shunter.lang.schema import KINDS
from shunter.lang.yaml import Mapping, Scalar, decode, parse, plain
from shunter.model.errors import Severity
from shunter.model.expression import Expression
from shunter.model.ids import Commit
from shunter.model.source import Revision, SourceFile

POLICY = """\
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: relieve-prefill, labels: {team: inference}}
spec:
  workers: {graph: tiny, where: worker.role == "decode"}
  from: decode
  to: prefill
  when: >-
    pools.prefill.waiting > 30 &&
    metrics.wait < 0.6
  for: 5s
  metrics:
    wait: {query: 'up{job="x"}', unit: seconds, maxAge: 30s, onMissing: 1.5}
  revert: {when: pools.decode.waiting > 3, for: 1m}
  pick: {where: worker.sessions < 4, prefer: -worker.kvTokens}
  limits: {from: {min: 2}, to: {max: 2}, step: 1}
---
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec:
  workers: {all: true}
  notices: [preemption, gone]
  move: {to: {prefer: '1'}, makeRoom: prefill}
---
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec:
  workers: {role: decode}
  cadence: {optimal: {hazard: 1/1000h, min: 2m, max: 1h}}
  pause: {atMost: 20s, share: 10%}
  overhead: {atMost: 1%}
  prefer: idle
  keep: {last: 2, within: 1h}
---
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: spread}
spec:
  workers: {role: decode}
  when: worker.kvUsage > 0.9
  to: {where: '!node.noticed', prefer: double(node.freeSlots)}
  gain: {atLeast: 0.5}
  step: 2
---
apiVersion: shunter.dev/v1alpha1
kind: DisruptionBudget
metadata: {name: gently}
spec:
  workers: {role: decode, where: node.freeSlots > 0}
  operations: [move, drain]
  per: zone
  maxConcurrent: 10%
  maxPerWindow: {max: 3, window: 10m}
  windows: [{zone: Europe/Berlin, from: "22:00", to: "24:00", days: [mon, tue]}]
---
apiVersion: shunter.dev/v1alpha1
kind: FleetProfile
metadata: {name: b200}
spec:
  gpuModel: B200
  dump: 40GB/s
  prefillRate: 20000
  prefillDoubling: 65536
  nativeStart: 4m
  lead: {preemption: 30s, maintenance: 1h}
"""
PIECES = [
    ": ", "- ", "\n", "  ", "{", "}", "[", "]", "&a ", "*a", "!!str ", "|\n", ">-\n", "'", '"', "\\", "#", "---\n", "...\n", "%YAML 1.1\n",
    "? ",    "012", "12:30", "1e999", ".nan", "no", "null", "\t", "\0", "\x85", "\u2028", "\ufeff", "\r", "é", "😀", "true", "-1", "9" * 30,
    "has(", "1/0",
    "worker.kvUsge", "metrics.x", "all: true", "spec:", "name:", "<<: ", "=",
]  # fmt: skip


def examine(data: bytes):
    policies, problems = check_text("f.yaml", data)
    assert "SH199" not in {p.code for p in problems}, problems
    lines = data.decode("utf-8", "replace").split("\n")
    for problem in problems:
        assert problem.what
        assert problem.remedy
        assert problem.place.column >= 1
        assert 1 <= problem.place.line <= len(data) + 1
        if "\r" not in "".join(lines):
            assert problem.place.line <= len(lines)
            assert problem.place.column <= len(lines[problem.place.line - 1]) + 1
    if any(p.severity is Severity.ERROR for p in problems):
        assert policies == ()
    return policies, problems


@given(st.binary(max_size=400))
def test_any_bytes(data):
    examine(data)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=40))
def test_any_tokens(parts):
    examine("".join(parts).encode("utf-8", "ignore"))


@given(st.data())
@settings(max_examples=200)
def test_damaged_policies(data):
    text = POLICY
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.sampled_from(["", *PIECES])) + text[at + cut :]
    raw = text.encode("utf-8", "ignore")
    policies, _ = examine(raw)
    revision = Revision(commit=Commit("c"), committed_at=None, files=(SourceFile(path="f.yaml", blob="b", data=raw),))
    loaded = load(revision, None)
    assert len([policy for policy in loaded.policies if policy.refused is None]) == len(policies)
    assert not any(policy.acts for policy in loaded.policies if policy.refused is not None), (
        "only a zero budget stands in for what is broken"
    )
    assert bool(loaded.problems) == (len(policies) == 0 and any(p.severity is Severity.ERROR for p in check_text("f.yaml", raw)[1]))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from([0.5, 1.0, -2.5])
    | st.sampled_from(["5s", "decode", "gone", "1", "x", "", "a b", "A", "10%", "120%", "3%\n", "22:00", "24:00", "4GB/s", "1/5h"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["min", "where", "for", "all", "gone", "zone", "x", "a b"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def subtrees(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from subtrees(below, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    if new is REMOVED and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


REMOVED = object()
NODES = [node for node in parse(decode("f.yaml", POLICY.encode())[0])[0] if isinstance(node, Mapping)]


@given(st.data())
@settings(max_examples=300)
def test_the_binder_and_the_schema_agree(data):
    """What the fast way refuses, the schema can explain; what it takes, the schema takes. JSON is YAML, so any tree can be written down."""
    import json

    node = data.draw(st.sampled_from(NODES))
    tree = plain(node)
    path = data.draw(st.sampled_from([p for p in subtrees(tree) if p and p != ("kind",)]))
    tree = replaced(tree, path, data.draw(VALUES | st.just(REMOVED)))
    source, _ = decode("f.yaml", json.dumps(tree).encode())
    (changed,), problems = parse(source)
    assert problems == []
    assert isinstance(changed, Mapping)
    kind = changed.get("kind").value
    binder = Binder(source)
    bound = binder.document(KINDS[kind], changed)
    explained = explain(source, kind, changed)
    assert bool(binder.misfits) == bool(explained), (binder.misfits, explained)
    assert (bound is not None) == (not explained and not binder.problems)


@given(st.text(max_size=60))
def test_any_text_as_an_expression(text):
    faults = check(text, "bool", frozenset({"worker"}), frozenset())
    for fault in faults:
        assert 0 <= fault.offset <= len(text)
    if not faults:
        CelRules().test(Expression(text=text), {})


@given(
    st.lists(
        st.sampled_from(
            [*PIECES, " && ", " || ", "!", "(", ")", "worker.kvUsage", " < ", "0.5", "worker.labels", "['a']", ".exists(k, ", "r'\\'"]
        ),
        max_size=15,
    )
)
def test_any_tokens_as_an_expression(parts):
    text = "".join(parts)
    faults = check(text, "bool", frozenset({"worker"}), frozenset())
    for fault in faults:
        assert 0 <= fault.offset <= len(text)
    answer = CelRules().test(Expression(text=text), {"worker.kvUsage": 0.25, "worker.labels": {"a": "b"}})
    if not faults:
        assert "compile" not in str(answer)


WORDS = st.text(alphabet=st.sampled_from("ab'\"\\é😀 \n"), min_size=1, max_size=30)


@given(WORDS, st.data())
def test_offsets_in_quoted_and_block_scalars(text, data):
    """Whatever the style, the character in the file at the mapped offset is the character of the text (or begins its escape)."""
    style = data.draw(st.sampled_from("'\"|"))
    if style == "'":
        body = "'" + text.replace("'", "''").replace("\n", "\n\n ") + "'"
    elif style == '"':
        body = '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("é", "\\u00e9") + '"'
    else:
        body = "|2-\n" + "\n".join("  " + line for line in text.split("\n"))
    file = f"k: {body}\n"
    nodes, problems = parse(decode("f.yaml", file.encode())[0])
    if problems:
        return
    node = nodes[0].get("k")
    assert isinstance(node, Scalar)
    for index, character in enumerate(node.text):
        if character not in " \n":
            there = file[in_file(file, node, index) :]
            assert there[0] == character or there[0] == "\\", (index, character, there)


PREEMPT = b"apiVersion: shunter.dev/v1alpha1\nkind: PreemptionPolicy\nmetadata: {name: x}\nspec:\n  workers: {all: true}\n"


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b"- " * 100_000,
        b"? " * 100_000,
        b"{a: " * 60_000,
        b"a: &a [*a, *a]\n" * 10_000,
        b"a: b\n" * 40_000,
        b"'" + b"a\n" * 100_000,
        b"{" + b"a,\n" * 80_000 + b"}",
        b"---\n" * 60_000,
        b"k: !<" + b"a" * 200_000,
        b"k: " + b"9" * 200_000,
        b"k: " + b"1:" * 100_000,
        b"k: " + b"1_" * 100_000 + b"x",
        b"k: |\n" + b" a\n" * 80_000,
        b"\n" * 250_000,
        PREEMPT + b"  notices: [" + b"[1], " * 9_000 + b"]\n",
        PREEMPT + b"  notices: [" + b"gone, " * 19_000 + b"]\n",
        PREEMPT + b"  notices: [gone]\n" + b"".join(b"  k%d: 1\n" % n for n in range(9_000)),
        PREEMPT + b"  notices: [gone]\n  metrics: {" + b", ".join(b"a%d: x" % n for n in range(9_000)) + b"}\n",
        b"a: 1\n---\n" * 6_000,
    ],
    ids=range(20),
)
def test_hostile_files_end_soon(data):
    began = time.process_time()
    _, problems = examine(data)
    assert problems
    assert len(problems) <= MAX_PROBLEMS + 1
    assert time.process_time() - began < 10


def test_a_hostile_expression_ends_soon():
    nested = "[1].all(a, " * 8 + "true" + ")" * 8
    big = "[" + "1," * 1000 + "1]"
    began = time.process_time()
    for text in (
        f"{big}.all(a, {big}.all(b, {big}.all(c, a + b + c > 0)))",
        nested,
        "worker.id.matches('(a*)*b')",
        "worker.id + " * 300 + "'' == ''",
    ):
        CelRules().test(Expression(text=text), {"worker.id": "a" * 10_000})
        check(text, "bool", frozenset({"worker"}), frozenset())
    assert time.process_time() - began < 10
