"""Each rule of the language, with the exact place and the advice that its problem gives."""

import pytest
from lang_documents import ALL, BUDGET, CADENCE, CHECKPOINT, PREEMPT, PROFILE, REASSIGN, swap
from shunter.lang.diagnostics import CODES
from shunter.lang.load import check_text
from shunter.model.errors import Severity


def wrong(data: bytes):
    _, problems = check_text("p.yaml", data)
    lines = data.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    for problem in problems:
        assert problem.code in CODES
        assert problem.excerpt == lines[problem.place.line - 1].rstrip("\r")
        assert problem.remedy[0].isupper() or problem.remedy[0] == "*"
    return [(p.code, p.place.line, p.place.column, f"{p.what}. {p.remedy}") for p in problems]


def only(data: bytes, code: str, line: int, column: int, *words: str):
    found = wrong(data)
    assert [f[:3] for f in found] == [(code, line, column)], found
    for word in words:
        assert word in found[0][3]


@pytest.mark.parametrize("text", ALL)
def test_sound_policies_have_no_problem(text):
    policies, problems = check_text("p.yaml", text.encode())
    assert problems == ()
    assert len(policies) == 1


CASES = [
    # YAML that isn't what it seems
    ("duplicate key", REASSIGN, "  cooldown: 60s", "  cooldown: 60s\n  for: 9s", "SH103", 15, 3, ["line 9", "line 15"]),
    ("anchor", REASSIGN, "{graph: tiny}", "&w {graph: tiny}", "SH104", 5, 12, ["anchor"]),
    ("tag", REASSIGN, "graph: tiny", "graph: !!str tiny", "SH105", 5, 20, ["tag"]),
    ("custom tag", REASSIGN, "graph: tiny", "graph: !!python/object:os.system tiny", "SH105", 5, 20, []),
    ("octal", REASSIGN, "team: inference", "team: 012", "SH107", 3, 50, ["octal", '"012"']),
    ("sexagesimal", REASSIGN, "team: inference", "team: 12:30", "SH107", 3, 50, ["base 60"]),
    ("underscored", REASSIGN, "step: 1", "step: 1_0", "SH107", 13, 48, []),
    ("not finite", REASSIGN, "step: 1", "step: .inf", "SH107", 13, 48, ["finite"]),
    # structure
    ("unknown key", REASSIGN, "graph: tiny", "grph: tiny", "SH111", 5, 13, ['"graph"']),
    ("unknown key far from all", REASSIGN, "graph: tiny", "zzz: tiny", "SH111", 5, 13, ["role, graph, where or all"]),
    ("missing key", REASSIGN, "  for: 5s\n", "", "SH112", 4, 1, ['"for"']),
    ("text for a number", REASSIGN, "step: 1", "step: one", "SH113", 13, 48, ["whole number"]),
    ("half for a whole number", REASSIGN, "step: 1", "step: 1.0", "SH113", 13, 48, []),
    ("number for text", REASSIGN, "graph: tiny", "graph: 7", "SH113", 5, 20, ['"7"']),
    ("nothing for text", REASSIGN, "workers: {graph: tiny}", "workers: {graph: }", "SH113", 5, 20, ["no value"]),
    ("boolean for an expression", CHECKPOINT, "worker.kvUsage < 0.9", "true", "SH113", 7, 9, ['"true"']),
    ("enum", REASSIGN, "from: decode", "from: decod", "SH114", 6, 9, ['"decode"']),
    ("YAML 1.1 boolean as an enum", CHECKPOINT, "every: 5m", "every: 5m\n  mode: off ", None, 0, 0, []),
    ("kind", REASSIGN, "kind: ReassignmentPolicy", "kind: ReassignPolicy", "SH110", 2, 7, ['"ReassignmentPolicy"']),
    ("version", REASSIGN, "v1alpha1", "v1", "SH110", 1, 13, ["shunter.dev/v1alpha1"]),
    ("no version", REASSIGN, "apiVersion: shunter.dev/v1alpha1\n", "", "SH112", 1, 1, ["apiVersion"]),
    # quantities
    ("bare number for a duration", REASSIGN, "for: 5s", "for: 5", "SH116", 9, 8, ["5s"]),
    ("unit of memory for a duration", REASSIGN, "for: 5s", "for: 5MB", "SH116", 9, 8, ["not a duration"]),
    ("units that rise", REASSIGN, "cooldown: 60s", "cooldown: 1m1h", "SH116", 14, 13, ["fall"]),
    # bounds and names
    ("negative floor", REASSIGN, "min: 2", "min: -1", "SH115", 13, 24, ["at least 0"]),
    ("no step", REASSIGN, "step: 1", "step: 0", "SH115", 13, 48, ["at least 1"]),
    ("no image kept", CHECKPOINT, "last: 2", "last: 0", "SH115", 8, 16, ["at least 1"]),
    ("no copy", CHECKPOINT, "copies: 2", "copies: 0", "SH115", 9, 11, ["at least 1"]),
    ("always", CHECKPOINT, "every: 5m", "every: 0s", "SH115", 6, 10, ["more than 0"]),
    ("no notice", PREEMPT, "[preemption, gone]", "[]", "SH115", 6, 12, ["empty"]),
    ("notice twice", PREEMPT, "[preemption, gone]", "[gone, gone]", "SH123", 6, 19, ["gone twice"]),
    ("fallback twice", PREEMPT, "[checkpoint, drain]", "[drain, drain]", "SH123", 11, 22, []),
    ("name", PREEMPT, "name: save-sessions", "name: Save", "SH117", 3, 18, ["lower-case"]),
    ("name with a newline", PREEMPT, "name: save-sessions", 'name: "a\\n"', "SH113", 3, 18, []),
    # contradictions
    ("empty selector", REASSIGN, "{graph: tiny}", "{}", "SH120", 5, 3, ["all: true"]),
    ("selector of nothing", CHECKPOINT, "{all: true}", "{all: false}", "SH120", 5, 12, ["all: true"]),
    ("all and others", CHECKPOINT, "{all: true}", "{all: true, role: decode}", "SH121", 5, 18, ["role"]),
    ("from is to", REASSIGN, "to: prefill", "to: decode", "SH122", 7, 7, ["decode"]),
    ("nobody to pick", REASSIGN, "{graph: tiny}", "{role: prefill}", "SH122", 5, 19, ["decode"]),
    # expressions
    ("misspelt field", REASSIGN, "pools.decode.kvUsage", "pools.decode.kvUsge", "SH131", 8, 39, ['"pools.decode.kvUsage"']),
    ("worker in a pool condition", REASSIGN, "pools.decode.kvUsage", "worker.kvUsage", "SH132", 8, 39, ["now or pools"]),
    ("notice in a selector", PREEMPT, "{role: decode}", "{where: notice.lead > 1.0}", "SH132", 5, 20, []),
    ("pools for a destination", PREEMPT, "worker.kvTokens", "pools.decode.kvTokens", "SH132", 9, 12, []),
    ("undeclared metric", CHECKPOINT, "worker.kvUsage < 0.9", "metrics.wait < 0.9", "SH131", 7, 9, ["spec.metrics"]),
    ("number for a condition", REASSIGN, "worker.sessions < 4", "worker.sessions", "SH134", 11, 12, ["double", "true or false"]),
    ("condition for a number", REASSIGN, "-worker.kvTokens", "worker.kvTokens > 1", "SH134", 12, 13, ["bool", "a number"]),
    ("text against a number", CHECKPOINT, "worker.kvUsage < 0.9", "worker.role < 5", "SH133", 7, 21, ["(string, int)"]),
    ("int plus double", REASSIGN, "-worker.kvTokens", "worker.kvTokens + 1", "SH133", 12, 29, ["1.0"]),
    ("syntax", CHECKPOINT, "worker.kvUsage < 0.9", "worker.kvUsage < ", "SH130", 7, 25, ["too soon"]),
    ("has on a scalar", CHECKPOINT, "worker.kvUsage < 0.9", "has(worker.kvUsage)", "SH135", 7, 9, ["Remove"]),
    ("has on a boolean", CHECKPOINT, "worker.kvUsage < 0.9", "has(node.noticed) && true", "SH135", 7, 9, []),
    ("has in disguise", CHECKPOINT, "worker.kvUsage < 0.9", "true || has ( (node) . noticed )", "SH135", 7, 17, []),
    ("unknown function", CHECKPOINT, "worker.kvUsage < 0.9", 'worker.id.startWith("a")', "SH137", 7, 19, ['"startsWith"']),
    ("text without quotes", CHECKPOINT, "worker.kvUsage < 0.9", "worker.role == prefill", "SH131", 7, 24, ['"prefill"']),
    ("empty", CHECKPOINT, "worker.kvUsage < 0.9", '""', "SH136", 7, 10, []),
    ("long", CHECKPOINT, "worker.kvUsage < 0.9", "true " + " " * 5 + "|| true" * 700, "SH136", 7, 9, ["4 KiB"]),
    ("deep", CHECKPOINT, "worker.kvUsage < 0.9", "(" * 60 + "true" + ")" * 60, "SH136", 7, 9, ["nested"]),
]


@pytest.mark.parametrize(("text", "old", "new", "code", "line", "column", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_one_fault_gives_one_problem_at_its_place(text, old, new, code, line, column, words):
    data = swap(text, old, new)
    if code is None:
        assert wrong(data) == []
    else:
        only(data, code, line, column, *words)


@pytest.mark.parametrize("word", ["no", "on", "off", "yes", "y", "n", "2026-01-01", "0.5.1", "1e", "null-ish", "12:99"])
def test_words_that_yaml_once_changed_stay_text(word):
    policies, problems = check_text("p.yaml", swap(REASSIGN, "graph: tiny", f"graph: {word}"))
    assert problems == ()
    assert policies[0].document.spec.workers.graph == word


def test_all_problems_of_all_documents_come_in_one_run():
    text = (
        "\n---\n".join((REASSIGN, PREEMPT, CHECKPOINT))
        .replace("graph: tiny", "grph: tiny")
        .replace("reserve: 10s", "reserve: 10")
        .replace("kvUsage < 0.9", "kvUsge < 1")
    )
    text = text.replace("step: 1", "step: x")
    assert [f[0] for f in wrong(text.encode())] == ["SH111", "SH113", "SH116", "SH131"]


@pytest.mark.parametrize(
    ("scalar", "line", "column"),
    [
        ("worker.kvUsge < 1", 7, 9),
        ("'worker.role == ''x'' && worker.kvUsge < 1'", 7, 34),
        (r'"worker.role == \"x\" && worker.kvUsge < 1"', 7, 34),
        (r'"worker.role == \"\u00e9\x41\" && worker.kvUsge < 1"', 7, 43),
        ("|\n    worker.kvUsage < 1 &&\n      worker.kvUsge < 1", 9, 7),
        (">-\n    worker.kvUsage < 1 &&\n\n    true && worker.kvUsge < 1", 10, 13),
        ("|2-\n    worker.kvUsage < 1 &&\n    worker.kvUsge < 1", 9, 5),
        ("worker.kvUsage < 1\n    && worker.kvUsge < 1", 8, 8),
        ("worker.kvUsage < 1 &&   \n    worker.kvUsge < 1", 8, 5),
        ('"worker.kvUsage < 1 \\\n    && worker.kvUsge < 1"', 8, 8),
        ("'worker.kvUsage < 1\n\n    && worker.kvUsge < 1'", 9, 8),
        ("> # why\n    worker.role == '\u20ac\U0001f600' && worker.kvUsge < 1", 8, 28),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_error_is_placed_through_quotes_folds_and_blocks(scalar, line, column, newline):
    data = swap(CHECKPOINT, "worker.kvUsage < 0.9", scalar).decode().replace("\n", newline).encode()
    only(data, "SH131", line, column)


def test_an_expression_knows_where_its_text_begins():
    policies, _ = check_text("p.yaml", swap(CHECKPOINT, "worker.kvUsage < 0.9", ">\n\n      worker.kvUsage < 0.9"))
    expression = policies[0].document.spec.when
    assert (expression.place.line, expression.place.column) == (9, 7)
    assert expression.text == "\nworker.kvUsage < 0.9\n"


def test_names_are_unique_within_a_file():
    data = (PREEMPT + "---\n" + CHECKPOINT.replace("recent-images", "save-sessions")).encode()
    only(data, "SH124", 15, 18, "p.yaml:3:18", "p.yaml:15:18")


@pytest.mark.parametrize(
    ("data", "code", "line", "column"),
    [
        (b"a: \xff\n", "SH101", 1, 4),
        (b"\xef\xbb\xbfa: 1\nb: \xe9\n", "SH101", 2, 4),
        (b"a: 1\nb: \0\n", "SH101", 2, 4),
        (b"#" * (256 * 1024 + 1), "SH101", 1, 1),
        (b"a: \x01\n", "SH102", 1, 4),
        (b"a: [1, 2\n", "SH102", 2, 1),
        (b"a: b: c\n", "SH102", 1, 5),
        (b"a:\n\t- 1\n", "SH102", 2, 1),
        (b"a: *x\n", "SH104", 1, 4),
        (b"- 1\n", "SH110", 1, 1),
        (b"text\n", "SH110", 1, 1),
        (b"a: 1\n", "SH110", 1, 1),
        (b"[" * 40 + b"]" * 40, "SH108", 1, 33),
        (b"{" * 100_000, "SH108", 1, 1001),
        (b"- " * 5000, "SH108", 1, 65),
        (b"a: {1: 2}\nkind: X\n", "SH106", 1, 5),
    ],
)
def test_what_is_no_policy_file_at_all(data, code, line, column):
    _, problems = check_text("p.yaml", data)
    assert (problems[0].code, problems[0].place.line, problems[0].place.column) == (code, line, column)


def test_too_many_values_are_refused():
    _, problems = check_text("p.yaml", b"- a\n" * 30_000)
    assert [p.code for p in problems][:1] == ["SH108"]


@pytest.mark.parametrize("data", [b"", b"# nothing yet\n", b"---\n---\n"])
def test_a_file_without_a_policy_is_a_warning(data):
    _, problems = check_text("p.yaml", data)
    assert [(p.code, p.severity) for p in problems] == [("SH109", Severity.WARNING)]


def test_a_metric_that_nothing_reads_is_a_warning_and_a_read_one_is_none():
    metric = "\n  metrics: {wait: {query: up, unit: seconds}}"
    policies, problems = check_text("p.yaml", swap(CHECKPOINT, "\n  keep:", metric + "\n  keep:"))
    assert [(p.code, p.place.line, p.place.column, p.severity) for p in problems] == [("SH125", 8, 13, Severity.WARNING)]
    assert len(policies) == 1
    used = swap(CHECKPOINT, "worker.kvUsage < 0.9", "metrics.wait < 1" + metric)
    assert check_text("p.yaml", used)[1] == ()


def test_a_metric_whose_use_is_misspelt_is_one_problem():
    metric = "\n  metrics: {wait: {query: up, unit: seconds}}"
    only(swap(CHECKPOINT, "worker.kvUsage < 0.9", "metrics.wiat < 1" + metric), "SH131", 7, 9, '"metrics.wait"')


def test_a_metrics_own_fields_are_checked():
    metrics = "\n  metrics: {wait: {query: '', unit: second, maxAge: 0s, onMissing: zero}}"
    found = wrong(swap(CHECKPOINT, "worker.kvUsage < 0.9", "metrics.wait < 1" + metrics))
    assert [(f[0], f[2]) for f in found] == [("SH115", 27), ("SH114", 37), ("SH115", 53), ("SH114", 68)]
    only(
        swap(CHECKPOINT, "worker.kvUsage < 0.9", "metrics.wait < 1\n  metrics: {wait: {query: up, unit: '1', maxAge: 0s}}"), "SH115", 8, 50
    )


SUNDAY = '{zone: UTC, from: "00:00", to: "24:00", days: [sun]}'
OLD = "{w: {query: up, unit: seconds, maxAge: 0s}}"
SEVERAL = [
    # an unknown key hides nothing that is wrong elsewhere in its document
    ("unknown key", REASSIGN, ("  for: 5s", "  for: 5s\n  fro: 1s"), ("to: prefill", "to: decode"), ["SH122", "SH111"]),
    ("in a part", REASSIGN, ("{graph: tiny}", "{graph: tiny, rol: x}"), ("to: prefill", "to: decode"), ["SH111", "SH122"]),
    # nor does a value of the wrong type, a wrong unit, a missing key
    ("wrong type", BUDGET, ("max: 3", "max: three"), ("Europe/Berlin", "Europe/Berln"), ["SH114", "SH127"]),
    ("wrong unit", BUDGET, ("window: 10m", "window: 10MB"), ("UTC", "UCT+1"), ["SH116", "SH127"]),
    ("wrong word", BUDGET, ("[mon, tue]", "[mon, thu, day]"), ("Europe/Berlin", "Europe/Berln"), ["SH127", "SH114"]),
    ("missing key", REASSIGN, ("  for: 5s\n", ""), ("cooldown: 60s", "cooldown: 2d"), ["SH112", "SH115"]),
    ("no window", BUDGET, (SUNDAY, "sunday"), ("Europe/Berlin", "Berlin"), ["SH127", "SH113"]),
    ("a metric", CHECKPOINT, ("worker.kvUsage < 0.9", f"metrics.w < 1\n  metrics: {OLD}"), ("last: 2", "lst: 2"), ["SH115", "SH111"]),
    ("two intervals", CADENCE, ("min: 2m", "min: 2h"), ("atMost: 20s", "atMost: 0s, often: 1"), ["SH122", "SH115", "SH111"]),
    ("its name", PROFILE, ("name: b200", "name: B_200"), ("preemption: 30s", "preemption: 0s"), ["SH117", "SH115"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "one", "other", "codes"), [case[1:] for case in SEVERAL], ids=[case[0] for case in SEVERAL])
def test_everything_wrong_with_a_document_is_told_at_once(text, one, other, codes):
    assert sorted(found[0] for found in wrong(swap(swap(text, *one).decode(), *other))) == sorted(codes)


def test_what_may_have_been_meant_is_not_told_as_lacking():
    only(swap(CHECKPOINT, "every: 5m", "evry: 5m"), "SH111", 6, 3, '"every"')
    only(swap(PROFILE.split("  gpuModel")[0] + "  dump: 40GB/s\n", "dump", "dmp"), "SH111", 5, 3, '"dump"')


def test_values_arrive_in_the_structs():
    (policy,), _ = check_text("p.yaml", REASSIGN.encode())
    spec = policy.document.spec
    assert (policy.name, policy.kind, spec.for_, spec.cooldown, spec.limits.from_.min) == (
        "relieve-prefill",
        "ReassignmentPolicy",
        5,
        60,
        2,
    )
    assert spec.pick.where.text == "worker.sessions < 4"
    assert policy.document.metadata.labels == {"team": "inference"}
    assert str(policy.place) == "p.yaml:3:18"
