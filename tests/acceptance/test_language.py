"""Complaints about other policy engines, as they would be made about this one: by their numbers, and each with all of its kind.

Everything goes through the command line, on real files.
"""

import json
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from language import SCHEMA, SHUNTER, WHOLE, at, named, put, resolved, shunter, spots, validate, write
from shunter.model.ids import Incarnation, NodeId, SlotId, WorkerId
from shunter.model.sample import Missing
from shunter.model.snapshot import Fleet, Node, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.observe.recorded import save

IMAGES = WHOLE["images"]
HEAD = "apiVersion: shunter.dev/v1alpha1\nkind: CheckpointPolicy\n"


def test_the_documents_have_every_key_of_every_kind(tmp_path: Path) -> None:
    """Or "the whole kind" would be a word only."""
    found = validate(write(tmp_path / "p", {f"{name}.yaml": text for name, text in WHOLE.items()}))
    assert found == {f"{name}.yaml": [] for name in WHOLE}
    seen = {(resolved(s.schema).get("title"), s.path.rpartition(".")[0], s.key) for text in WHOLE.values() for s in spots(text)}
    keys = {key for _, _, key in seen}
    told = {key for body in SCHEMA["$defs"].values() for key in body.get("properties", {})}
    assert told <= keys
    assert {kind["$ref"].rpartition("/")[2] for kind in SCHEMA["oneOf"]} == {re.findall(r"kind: (\w+)", t)[0] for t in WHOLE.values()}


# -- 19: "256m" was taken for an amount of memory

WRONG_UNITS = {
    "Duration": ["300", "0.5", "5MB", "2 m", "1m1h", "-5s", "5min", "1h30", "PT5M", "true", "[5s]", "''", "5S"],
    "Share": ["0.1", "10", "110%", "-1%", "10 %", "10pct", "256m", "true", "{}", "'%'"],
    "Bandwidth": ["256m", "40", "40GB", "40Gbit/s", "40GB/m", "0GB/s", "1e9", "40gb/s", "40 GB/s", "-1GB/s", "40G/s", "false"],
    "Rate": ["1", "0.001", "1/1000", "0/1h", "1/5GB", "1/0s", "-1/1h", "1 / 1h", "10%", "1/1000h/1h"],
    "amount": ["true", "0.5", "-1", "110%", "ten", "256m", "'3'", "10 %", "[1]"],
    "integer": ["2m", "256m", "1.5", "'1'", "true", "10%", "1e1x"],
    "number": ["5%", "2s", "'1'", "true", "256m"],
}


def unit_of(schema: dict[str, Any]) -> str | None:
    found = named(schema)
    if "Share" in found and "anyOf" in schema:
        return "amount"
    kinds = found & WRONG_UNITS.keys()
    return kinds.pop() if kinds else schema.get("type") if schema.get("type") in WRONG_UNITS else None


def test_ac19_a_quantity_in_a_wrong_unit_is_an_error_with_its_column_in_every_field_of_every_kind(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    wanted: dict[str, tuple[int, int]] = {}
    met = set()
    for name, text in WHOLE.items():
        for spot in spots(text):
            unit = unit_of(spot.schema)
            for value in WRONG_UNITS[unit] if unit else ():
                met.add(unit)
                file = f"{name}-{len(files)}.yaml"
                files[file] = put(text, spot, value)
                wanted[file] = (spot.line, spot.column)
    assert met == set(WRONG_UNITS)
    assert len(files) > 300
    found = validate(write(tmp_path / "p", files))
    for file, place in wanted.items():
        assert [at(p) for p in found[file]] == [place], (files[file], found[file])
        (problem,) = found[file]
        assert problem["code"] in ("SH112", "SH113", "SH114", "SH115", "SH116"), problem
        assert problem["what"]
        assert problem["remedy"]


def test_ac19_an_error_says_what_to_write_and_tests_and_settings_have_units_too(tmp_path: Path) -> None:
    text = WHOLE["profile"].replace("40GB/s", "256m")
    done = shunter("validate", write(tmp_path / "p", {"a.yaml": text}))
    assert "a.yaml:7:9: SH116 '256m' is not a bandwidth" in done.stdout
    assert "Write a size per second, such as 40GB/s" in done.stdout
    test = "fleet: {nodes: {a: {}}, workers: {decode-0: {node: a, memory: 256m}}}\ntests: [{name: x, expect: [{operations: []}]}]\n"
    done = shunter("test", write(tmp_path / "t", {"a.yaml": IMAGES, "a_test.yaml": test}))
    assert done.returncode == 1
    assert re.search(r"a_test\.yaml:1:\d+: SH\d+ .*'256m' is not a size", done.stdout), done.stdout
    settings = '[policies]\ndirectory = "p"\n[prometheus]\nurl = "http://127.0.0.1:9"\ndeadline = 2\n'
    (tmp_path / "engine.toml").write_text(f'state = "s"\nagents = []\n{settings}[tls]\nca = "a"\ncert = "b"\nkey = "c"\n')
    done = shunter("plan", "--config", tmp_path / "engine.toml")
    assert done.returncode == 1
    assert "deadline" in done.stderr


# -- 21: a time zone alone, and the rest fell back to a default

WINDOW = '{zone: Europe/Berlin, from: "22:00", to: "06:00", days: [mon, sun]}'
UNCLEAR = {
    "no zone": '{from: "22:00", to: "06:00"}',
    "no beginning": '{zone: Europe/Berlin, to: "06:00"}',
    "no end": '{zone: Europe/Berlin, from: "22:00"}',
    "a zone alone": "{zone: Europe/Berlin}",
    "nothing": "{}",
    "an empty zone": '{zone: "", from: "22:00", to: "06:00"}',
    "no value": '{zone: , from: "22:00", to: "06:00"}',
    "whatever the machine has": '{zone: localtime, from: "22:00", to: "06:00"}',
    "local": '{zone: local, from: "22:00", to: "06:00"}',
    "no days": '{zone: Europe/Berlin, from: "22:00", to: "06:00", days: []}',
    "another key for it": '{tz: Europe/Berlin, from: "22:00", to: "06:00"}',
    **{zone: f'{{zone: "{zone}", from: "22:00", to: "06:00"}}' for zone in ("CET", "EST", "PST8PDT", "UTC+2", "+02:00", "GMT-5", "Berlin")},
    **{
        zone: f'{{zone: "{zone}", from: "22:00", to: "06:00"}}' for zone in ("Europe/Berln", "europe/berlin", "Europe", "../UTC", "Factory")
    },
}


def test_ac21_no_part_of_a_window_is_ever_made_up(tmp_path: Path) -> None:
    assert WINDOW in WHOLE["budget"]
    files: dict[str, str | bytes] = {f"{n}.yaml": WHOLE["budget"].replace(WINDOW, one) for n, one in enumerate(UNCLEAR.values())}
    files |= {"spec.yaml": WHOLE["budget"].replace("  windows:", "  zone: Europe/Berlin\n  windows:")}
    found = validate(write(tmp_path / "p", files))
    silent = [what for n, what in enumerate(UNCLEAR) if not found[f"{n}.yaml"]]
    assert silent == []
    assert all(11 <= line <= 12 for problems in found.values() for line, _ in map(at, problems))
    assert found["spec.yaml"][0]["code"] == "SH111"


AC21_TEST = """
policies: [move.yaml, budget.yaml]
step: 1m
fleet:
  nodes: {{a: {{labels: {{tier: old}}}}, b: {{labels: {{tier: new}}}}}}
  workers: {{decode-0: {{node: a}}}}
tests:
  - name: in the window, on the clocks of its zone
    start: "{moment}"
    expect:
      - {{at: 2m, operations: {operations}}}
"""
MOVE = """
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: move}
spec: {workers: {role: decode}, when: 'node.labels["tier"] == "old"', to: {where: 'node.id == "b"'}, for: 1m}
"""


@pytest.mark.parametrize(
    ("zone", "moment", "is_open"),
    [
        ("Europe/Berlin", "2026-01-10T20:57:00Z", False),  # it is 21:59 there at the look that counts
        ("Europe/Berlin", "2026-01-10T20:58:00Z", True),
        ("Europe/Berlin", "2026-07-10T19:58:00Z", True),  # in summer an hour earlier
        ("UTC", "2026-07-10T19:58:00Z", False),
        ("UTC", "2026-01-10T21:58:00Z", True),
        ("Asia/Kolkata", "2026-01-10T16:28:00Z", True),
        ("Asia/Kolkata", "2026-01-10T21:58:00Z", True),
        ("Asia/Kolkata", "2026-01-11T00:28:00Z", False),
    ],
)
def test_ac21_a_window_is_that_of_its_zone_whatever_the_machines_own(tmp_path: Path, zone: str, moment: str, is_open: bool) -> None:
    spec = f'spec: {{workers: {{all: true}}, windows: [{{zone: {zone}, from: "22:00", to: "06:00"}}]}}\n'
    budget = f"apiVersion: shunter.dev/v1alpha1\nkind: DisruptionBudget\nmetadata: {{name: nights}}\n{spec}"
    operations = "[{kind: move, worker: decode-0, to: b}]" if is_open else "[]"
    test = AC21_TEST.format(moment=moment, operations=operations)
    folder = write(tmp_path / "p", {"move.yaml": MOVE, "budget.yaml": budget, "x_test.yaml": test})
    for own in ("UTC", "America/New_York"):
        done = subprocess.run([SHUNTER, "test", folder], capture_output=True, text=True, env={"TZ": own}, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_ac21_a_moment_without_a_zone_is_none(tmp_path: Path) -> None:
    test = AC21_TEST.format(moment="2026-01-10T20:58:00", operations="[]")
    done = shunter("test", write(tmp_path / "p", {"move.yaml": MOVE, "budget.yaml": WHOLE["budget"], "x_test.yaml": test}))
    assert done.returncode == 1
    assert "x_test.yaml:9:" in done.stdout
    assert "has no time zone" in done.stdout


# -- 25: of two equal keys the last one won


def twice(text: str) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """The document with each of its keys standing twice: once each, with the key's path and the lines of both."""
    for spot in spots(text):
        pair = text[spot.key_start : spot.end].rstrip()
        if spot.flow:
            doubled = text[: spot.key_start] + pair + ", " + text[spot.key_start :]
            lines = (spot.key_line, spot.key_line)
        else:
            doubled = text[: spot.key_start] + pair + "\n" + " " * (spot.key_column - 1) + text[spot.key_start :]
            lines = (spot.key_line, spot.key_line + pair.count("\n") + 1)
        yield doubled, spot.path, lines


def test_ac25_a_key_that_stands_twice_is_an_error_naming_both_lines_at_every_place_of_every_kind(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    wanted: dict[str, tuple[str, tuple[int, int]]] = {}
    for name, text in WHOLE.items():
        for doubled, path, lines in twice(text):
            file = f"{name}-{len(files)}.yaml"
            files[file], wanted[file] = doubled, (path, lines)
    assert len(files) > 150
    found = validate(write(tmp_path / "p", files))
    for file, (path, (first, second)) in wanted.items():
        key = path.rpartition(".")[2]
        (problem,) = [p for p in found[file] if p["code"] == "SH103"]
        assert f'"{key}" stands twice, on line {first} and on line {second}' in problem["what"], (files[file], problem)
        assert problem["place"]["line"] == second


def test_ac25_quotes_make_no_other_key(tmp_path: Path) -> None:
    same = ["every: 5m\n  'every': 9m", 'every: 5m\n  "every": 9m', '"every": 5m\n  "ev\\u0065ry": 9m', "every: 5m\n  every : 9m"]
    files: dict[str, str | bytes] = {f"{n}.yaml": IMAGES.replace("every: 5m", one) for n, one in enumerate(same)}
    found = validate(write(tmp_path / "p", files))
    assert [[p["code"] for p in problems] for problems in found.values()] == [["SH103"]] * len(same)


def test_ac25_every_command_reads_with_the_same_reader(tmp_path: Path) -> None:
    bad = IMAGES.replace("  every: 5m", "  every: 5m\n  every: 500m")
    folder = write(tmp_path / "p", {"bad.yaml": bad, "good.yaml": MOVE})
    said = "SH103"
    assert said in shunter("validate", folder).stdout
    assert said in shunter("fmt", "--check", folder / "bad.yaml").stderr
    planned = shunter("plan", "--snapshot", snapshot(tmp_path / "s.json"), "--policies", folder)
    assert f"bad.yaml:11:3: {said}" in planned.stderr
    assert ("by move" in planned.stdout, "images" in planned.stdout) == (True, False)
    tests = "tests: [{name: x, policies: [bad.yaml], expect: [{operations: []}]}]\n"
    (folder / "x_test.yaml").write_text(tests)
    assert said in shunter("test", folder).stdout
    (folder / "x_test.yaml").write_text(tests.replace("[{name: x,", "[{name: x, name: y,"))
    tested = shunter("test", folder)
    assert said in tested.stdout
    assert "x_test.yaml:1:" in tested.stdout


# -- 26: `y` was read as true

ONCE_BOOLEANS = ["y", "Y", "n", "N", "yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF"]
READ_DIFFERENTLY = ["012", "0o14", "0x1F", "0b11", "1_000", "12:30", "12:30:45", "1:0", "0_0", "-012", ".inf", "-.INF", ".nan", "1_0.5"]
TEXT = ["2026-01-01", "1.2.3", "1e", "0.5.1", "nope", "=", "node-1", "TRUE-ish", "12:99"]


def of_graph(value: str) -> str:
    return IMAGES.replace("graph: tiny", f"graph: {value}")


def test_ac26_words_that_were_booleans_once_are_text_and_stay_so(tmp_path: Path) -> None:
    """As a graph's name: what is covered then tells how it was read."""
    files: dict[str, str | bytes] = {}
    for n, word in enumerate([*ONCE_BOOLEANS, *(w for w in TEXT if w != "=")]):
        files[f"p{n}.yaml"] = f"{HEAD}metadata: {{name: p}}\nspec: {{workers: {{graph: {word}}}, every: 5m}}\n"
        test = f"policies: [p{n}.yaml]\nfleet: {{graph: {word}, nodes: {{a: {{}}}}, workers: {{decode-0: {{node: a}}}}}}\n"
        files[f"p{n}_test.yaml"] = f"{test}tests: [{{name: {word}, expect: [{{operations: [{{kind: checkpoint, worker: decode-0}}]}}]}}]\n"
    done = shunter("test", "--verbose", write(tmp_path / "p", files))
    assert done.returncode == 0, done.stdout
    assert all(f"ok    {word}  " in done.stdout for word in ONCE_BOOLEANS), done.stdout


def test_ac26_what_versions_of_yaml_read_differently_is_flagged_wherever_it_stands(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    for value in READ_DIFFERENTLY:
        files[f"graph-{len(files)}.yaml"] = of_graph(value)
        files[f"label-{len(files)}.yaml"] = IMAGES.replace("team: a", f"team: {value}")
        files[f"copies-{len(files)}.yaml"] = IMAGES.replace("copies: 2", f"copies: {value}")
        files[f"list-{len(files)}.yaml"] = WHOLE["budget"].replace("days: [mon", f"days: [{value}")
    files["time.yaml"] = WHOLE["budget"].replace('"22:00"', "22:00")
    found = validate(write(tmp_path / "p", files))
    for file, problems in found.items():
        assert [p["code"] for p in problems] == ["SH107"], (files[file], problems)
        assert "in quotes" in problems[0]["remedy"]
    texts = [*READ_DIFFERENTLY, *ONCE_BOOLEANS, *TEXT, "true", "null", "7"]
    quoted = {f"q{n}.yaml": of_graph(f'"{text}"').replace("images", f"i{n}", 1) for n, text in enumerate(texts)}
    assert not any(validate(write(tmp_path / "q", {**quoted})).values())


def test_ac26_numbers_booleans_and_nothing_are_not_text(tmp_path: Path) -> None:
    plain = {f"p{n}.yaml": of_graph(value) for n, value in enumerate(["true", "False", "null", "~", "", "7", "-1.5", "1e3"])}
    found = validate(write(tmp_path / "p", {**plain}))
    assert {file: [p["code"] for p in problems] for file, problems in found.items()} == {file: ["SH113"] for file in plain}
    words = {f"w{n}.yaml": WHOLE["all"].replace("all: true", f"all: {word}") for n, word in enumerate(ONCE_BOOLEANS)}
    found = validate(write(tmp_path / "w", {**words}))
    assert all(problems and problems[0]["code"] == "SH113" for problems in found.values()), "a boolean is true or false"


# -- 28: a misspelt filter, and everything was meant

FREE = ("labels", "annotations", "metrics", "lead")
"""Mappings whose keys are names."""


def misspelt(key: str) -> str:
    return key[0] + key[2] + key[1] + key[3:] if len(key) > 3 and key[1] != key[2] else f"{key}{key[-1]}"


def test_ac28_a_misspelt_key_is_an_error_with_the_right_one_at_every_place_of_every_kind(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    wanted: dict[str, tuple[str, str, tuple[int, int]]] = {}
    for name, text in WHOLE.items():
        for spot in spots(text):
            parent = spot.path.split(".")[-2:-1]
            if parent and parent[0] in FREE:
                continue
            wrong = misspelt(spot.key)
            file = f"{name}-{len(files)}.yaml"
            files[file] = text[: spot.key_start] + wrong + text[spot.key_end :]
            wanted[file] = (spot.key, wrong, (spot.key_line, spot.key_column))
    assert len(files) > 130
    found = validate(write(tmp_path / "p", files))
    for file, (key, wrong, place) in wanted.items():
        if key == "kind":
            assert found[file][0]["code"] == "SH110"
            continue
        (problem,) = [p for p in found[file] if p["code"] == "SH111"]
        assert (at(problem), f'"{wrong}"' in problem["what"]) == (place, True), problem
        assert problem["remedy"] == f'Did you mean "{key}"?', problem


def test_ac28_a_selector_that_selects_by_nothing_is_an_error(tmp_path: Path) -> None:
    nothing = [
        "{}",
        "",
        "null",
        "[]",
        "{all: false}",
        "{graph: ''}",
        "{graph: ' '}",
        "{where: ''}",
        "{role: }",
        "{rol: decode}",
        "all",
        "true",
    ]
    selectors = {name: next(s for s in spots(text) if s.path == "spec.workers") for name, text in WHOLE.items() if name != "profile"}
    files: dict[str, str | bytes] = {
        f"{name}-{n}.yaml": put(WHOLE[name], spot, value) for name, spot in selectors.items() for n, value in enumerate(nothing)
    }
    found = validate(write(tmp_path / "p", files))
    assert len(files) == 8 * len(nothing)
    assert [file for file, problems in found.items() if not problems] == []
    assert {p["code"] for file, problems in found.items() if file.endswith(("-0.yaml", "-4.yaml")) for p in problems} == {"SH120"}
    missing = {f"{name}.yaml": WHOLE[name][: s.key_start] + WHOLE[name][s.end :].lstrip() for name, s in selectors.items() if name != "all"}
    assert all(validate(write(tmp_path / "m", {**missing})).values())


def test_ac28_nothing_of_a_file_with_a_misspelt_filter_is_carried_out(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a.yaml": MOVE.replace("role: decode", "rol: decode")})
    done = shunter("plan", "--snapshot", snapshot(tmp_path / "s.json"), "--policies", folder)
    assert "Nothing is to be done." in done.stdout
    assert 'SH111 "rol" is not a key of spec.workers' in done.stderr
    assert 'Did you mean "role"?' in done.stderr
    programs = shunter("plan", "--snapshot", tmp_path / "s.json", "--policies", folder, "--format", "json")
    assert json.loads(programs.stdout)["findings"] == []
    assert programs.stderr == done.stderr


# -- 54: a type error leaked, and a field that isn't there compared as false


def snapshot(path: Path) -> Path:
    """A recorded fleet: one worker whose load isn't known, on a node with a label, and a free node."""
    nodes = (
        Node(id=NodeId("a"), labels={"tier": "old"}, slots=(Slot(id=SlotId("a/0"), worker=WorkerId("decode-0")),), seen_at=100.0),
        Node(id=NodeId("b"), labels={"tier": "new"}, slots=(Slot(id=SlotId("b/0")),), seen_at=100.0),
    )
    worker = Worker(
        id=WorkerId("decode-0"),
        role="decode",
        graph="tiny",
        engine="vllm",
        state=WorkerState.RUNNING,
        node=NodeId("a"),
        slot=SlotId("a/0"),
        incarnation=Incarnation(0),
        labels={"tier": "gold"},
        memory=10**9,
    )
    samples = {"decode-0": {"kvUsage": Missing(reason="no data"), "waiting": Missing(reason="no data")}}
    save(Snapshot(at=100.0, fleet=Fleet(nodes=nodes, workers=(worker,)), samples=Samples(workers=samples)), path)
    return path


FAULTS = {
    "SH130": ["{v} >", "({v}", "{v} ==== 1", "{v} && && true"],
    "SH131": ["{v}x > 1.0", "true || {v}x > 1.0", "false && {v}x > 1.0", "true ? true : {v}x > 1.0", "nothing > 1", "{v}.x > 1.0"],
    "SH132": ["notice.lead > 1.0 || notice.lead < 1.0"],
    "SH133": ["{v} > 'x'", "true || {v} + 'x' == 'y'", "!{v}", "-'x' == 'y'"],
    "SH134": ["'x'", "[1]", "{{'a': 1}}"],
    "SH135": ["has({v})", "true || has({v})"],
    "SH137": ["'x'.startWith('x')", "false && siz('x') > 1"],
}
"""By code, expressions with that fault; `{v}` is a number that the field sees. In branches that are never taken, too."""


def test_ac54_a_fault_in_any_expression_of_any_kind_is_found_before_it_is_ever_evaluated(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {}
    wanted: dict[str, tuple[str, int, int]] = {}
    for name, text in WHOLE.items():
        for spot in (s for s in spots(text) if "Expression" in named(s.schema)):
            of_pools = name == "shift" and spot.path.endswith(".when")
            variable = "pools.prefill.waiting" if of_pools else "node.freeSlots"
            for code, faulty in FAULTS.items():
                for one in faulty if not (code == "SH132" and name == "preempt" and ".move." in spot.path) else ():
                    expression = one.format(v=variable)
                    file = f"{name}-{len(files)}.yaml"
                    files[file] = put(text, spot, json.dumps(expression))
                    wanted[file] = code, spot.line, spot.column + 1
    assert len(files) > 250
    found = validate(write(tmp_path / "p", files))
    for file, (code, line, column) in wanted.items():
        codes = [p["code"] for p in found[file]]
        assert code in codes, (files[file], found[file])
        length = len(str(files[file]).split("\n")[line - 1])
        assert all(p["place"]["line"] == line and column <= p["place"]["column"] <= length for p in found[file]), found[file]


def test_ac54_the_column_is_that_of_the_word(tmp_path: Path) -> None:
    text = IMAGES.replace("worker.kvUsage < 0.9 && metrics.wait < 5", 'worker.role == "prefill" && worker.kvUsge < 0.2')
    (problem,) = validate(write(tmp_path / "p", {"a.yaml": text}))["a.yaml"]
    assert (problem["code"], problem["remedy"]) == ("SH131", 'Did you mean "worker.kvUsage"?')
    assert text.split("\n")[problem["place"]["line"] - 1][problem["place"]["column"] - 1 :].startswith("worker.kvUsge")


@pytest.mark.parametrize(
    ("when", "verdict", "words"),
    [
        ("worker.kvUsage < 0.9", "inconclusive", "worker.kvUsage"),
        ("!(worker.kvUsage > 0.5)", "inconclusive", "worker.kvUsage"),
        ("worker.kvUsage != 0.5", "inconclusive", "worker.kvUsage"),
        ("worker.kvUsage == worker.kvUsage", "inconclusive", "worker.kvUsage"),
        ("worker.kvUsage < 0.9 || worker.waiting < 3.0", "inconclusive", "worker.waiting"),
        ("worker.kvUsage < 0.9 && true", "inconclusive", "worker.kvUsage"),
        ("worker.kvUsage < 0.9 ? true : true", "inconclusive", "worker.kvUsage"),
        ("worker.running < 1.0", "inconclusive", "worker.running"),  # never asked for at all
        ("worker.imageAge > 1.0", "inconclusive", "worker.imageAge"),
        ("1 / worker.images > 0", "inconclusive", "zero"),
        ("worker.labels['nope'] == 'x'", "inconclusive", "nope"),
        ("worker.labels.nope != 'x'", "inconclusive", "nope"),
        ("int(worker.labels.tier) > 1", "inconclusive", ""),
        ("9223372036854775807 + worker.images + 1 > 0", "inconclusive", ""),
        ("worker.kvUsage < 0.9 || worker.role == 'decode'", "act", ""),  # decided without it
        ("has(worker.labels.tier)", "act", ""),
        ("!has(worker.labels.nope)", "act", ""),
        ("worker.kvUsage < 0.9 && worker.role == 'prefill'", "pass", ""),
        ("worker.role == 'prefill'", "pass", ""),
    ],
)
def test_ac54_an_evaluation_is_true_or_false_or_says_why_it_is_neither(tmp_path: Path, when: str, verdict: str, words: str) -> None:
    policy = f"{HEAD}metadata: {{name: p}}\nspec: {{workers: {{all: true}}, every: 5m, when: {json.dumps(when)}}}\n"
    folder = write(tmp_path / "p", {"a.yaml": policy})
    done = shunter("plan", "--snapshot", snapshot(tmp_path / "s.json"), "--policies", folder, "--format", "json")
    planned = json.loads(done.stdout)
    (finding,) = [f for f in planned["findings"] if f["subject"] == "decode-0"]
    assert finding["verdict"] == verdict, finding
    assert bool(planned["operations"]) == (verdict == "act")
    if verdict == "inconclusive":
        (evidence,) = [e for e in finding["evidence"] if e["gate"] == "when"]
        assert (evidence["result"], evidence["expression"]) == (None, when)
        assert evidence["detail"], "a reason"
        assert words in evidence["detail"]


# -- 56: one bad policy, and the engine crashed again and again

HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "zeros": b"\0" * 1000,
    "random": random.Random(5).randbytes(5000),
    "latin": IMAGES.encode().replace(b"team: a", b"team: \xe4"),
    "half": IMAGES[: len(IMAGES) // 2].encode(),
    "list": b"- a\n- b\n",
    "text": b"just text\n",
    "number": b"42\n",
    "json": b'{"kind": "CheckpointPolicy"}',
    "another kind": b"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n",
    "newer": IMAGES.encode().replace(b"v1alpha1", b"v9"),
    "aliases": b"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n",
    "tag": b"kind: !!python/object/apply:os.system [true]\n",
    "deep": b"[" * 50_000,
    "deeper": b"a: " * 3 + b"{a: " * 20_000,
    "wide": b"k: [" + b"1, " * 100_000 + b"]\n",
    "large": b"# " + b"x" * 400_000 + b"\n",
    "quote": b"a: 'never closed\n" * 3,
    "tabs": b"spec:\n\tworkers: {}\n",
    "merge": b"base: &b {a: 1}\nspec: {<<: *b}\n",
    "set": b"? a\n? b\n",
    "null": b"apiVersion:\nkind:\nmetadata:\nspec:\n",
    "wrong types": b"apiVersion: [1]\nkind: {a: b}\nmetadata: 7\nspec: text\n",
    "nested types": IMAGES.encode().replace(b"keep: {last: 2, within: 1h}", b"keep: [[[{last: {last: []}}]]]"),
    "long expression": IMAGES.encode().replace(b"worker.kvUsage < 0.9", b"worker.kvUsage < 0.9 && " * 400 + b"true"),
    "deep expression": IMAGES.encode().replace(b"worker.kvUsage < 0.9", b"(" * 900 + b"true" + b")" * 900),
    "huge number": IMAGES.encode().replace(b"copies: 2", b"copies: " + b"9" * 400),
    "negative": IMAGES.encode().replace(b"last: 2", b"last: -2"),
    "surrogate": b'{"apiVersion": "\\ud800"}',
    "bell": b"a: \x07\n",
    "bom": b"\xff\xfe" + IMAGES.encode("utf-16-le"),
    "same name": MOVE.encode().replace(b"for: 1m", b"for: 2m"),
}


def test_ac56_bad_files_cost_only_themselves(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {f"x-{name}.yaml": data for name, data in HOSTILE.items()} | {"good.yaml": MOVE})
    found = validate(folder)
    unharmed = {"good.yaml", "x-empty.yaml", "x-large.yaml"} & {file for file, problems in found.items() if not problems}
    assert {file for file, problems in found.items() if not problems} == {"good.yaml", "x-empty.yaml"}, unharmed
    assert all(p["place"]["line"] >= 1 and p["place"]["column"] >= 1 and p["remedy"] for problems in found.values() for p in problems)
    assert "SH199" not in {p["code"] for problems in found.values() for p in problems}, "the checker itself failed"
    done = shunter("plan", "--snapshot", snapshot(tmp_path / "s.json"), "--policies", folder)
    assert done.returncode == 0
    assert "by move" in done.stdout
    assert [name for name in HOSTILE if name != "empty" and f"x-{name}.yaml" not in done.stderr] == []
    for name in HOSTILE:
        assert shunter("fmt", "--check", folder / f"x-{name}.yaml").returncode in (0, 1)


def test_ac56_bad_test_files_cost_only_themselves(tmp_path: Path) -> None:
    good = "tests: [{name: fine, policies: [good.yaml], fleet: {nodes: {a: {}}}, expect: [{operations: []}]}]\n"
    files = {f"x-{name}_test.yaml": data for name, data in HOSTILE.items()}
    done = shunter("test", "--verbose", write(tmp_path / "p", {"good.yaml": MOVE, "a_test.yaml": good, **files}))
    assert done.returncode == 1
    assert "ok    fine" in done.stdout
    assert [name for name in HOSTILE if f"x-{name}_test.yaml" not in done.stdout] == []


@contextmanager
def engine(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A running engine on the policies in `folder`; its only agent doesn't answer."""
    shunter("certs", folder / "certs", "--agent", "a")
    (folder / "engine.toml").write_text(
        'state = "state"\ntick = "100ms"\nlisten = ""\n[policies]\ndirectory = "p"\npoll = "100ms"\n[prometheus]\nurl = "http://127.0.0.1:9"\n'
        '[tls]\nca = "certs/ca.pem"\ncert = "certs/engine.pem"\nkey = "certs/engine.key"\n[[agents]]\nnode = "a"\naddress = "127.0.0.1:9"\n'
    )
    with (folder / "engine.log").open("wb") as log:
        running = subprocess.Popen([SHUNTER, "engine", "--config", folder / "engine.toml"], stdout=log, stderr=log)
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(30)


def in_force(running: subprocess.Popen[bytes], folder: Path, names: list[str], files: set[str]) -> dict[str, Any]:
    """Wait until the engine's record says that these policies are in force, with problems in these files."""
    deadline = time.monotonic() + 30
    while True:
        listed = subprocess.run(
            [SHUNTER, "audit", "list", "--state", folder / "state", "--kind", "policies", "--limit", "0", "--json"],
            capture_output=True,
            text=True,
        )
        records = [json.loads(line)["record"] for line in listed.stdout.splitlines()]
        last = records[-1]["body"] if records else {"policies": [], "problems": []}
        if last["policies"] == names and {p["place"]["file"] for p in last["problems"]} == files:
            return last
        assert running.poll() is None, (folder / "engine.log").read_text()
        assert time.monotonic() < deadline, (last, (folder / "engine.log").read_text())
        threading.Event().wait(0.05)


def test_ac56_the_engine_goes_on_with_the_last_good_version(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a.yaml": MOVE, "b.yaml": WHOLE["all"]})
    with engine(tmp_path) as running:
        in_force(running, tmp_path, ["all", "move"], set())
        for name in ("random", "half", "deep", "long expression", "wrong types", "aliases"):
            (folder / "b.yaml").write_bytes(HOSTILE[name])
            in_force(running, tmp_path, ["all", "move"], {"b.yaml"})
        (folder / "a.yaml").write_text(MOVE.replace("name: move", "name: moved"))
        in_force(running, tmp_path, ["all", "moved"], {"b.yaml"})  # the others go on as they are now
        (folder / "b.yaml").write_text(WHOLE["all"].replace("name: all", "name: mended"))
        in_force(running, tmp_path, ["mended", "moved"], set())
        assert running.poll() is None, (tmp_path / "engine.log").read_text()
    assert running.returncode in (0, -signal.SIGTERM), (tmp_path / "engine.log").read_text()
    assert "Traceback" not in (tmp_path / "engine.log").read_text()
