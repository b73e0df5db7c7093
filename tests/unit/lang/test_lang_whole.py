"""Policies that are sound each by itself and wrong together, or for a fleet."""

import msgspec
import pytest
from lang_documents import CHECKPOINT, PREEMPT, REASSIGN
from shunter.cli.validate import check, text
from shunter.model.errors import Severity
from shunter.model.ids import NodeId, NoticeId, SlotId, WorkerId, slot_id
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState

NOW = 1_800_000_000.0
OPPOSITE = """\
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: give-back}
spec:
  workers: {graph: tiny}
  from: prefill
  to: decode
  when: pools.prefill.waiting < 10
  for: 5s
"""


def found(*documents, snapshot=None):
    """(code, what) of every problem in files a.yaml, b.yaml, ..."""
    report = check([(f"{chr(97 + n)}.yaml", d.encode()) for n, d in enumerate(documents)], snapshot=snapshot)
    assert all(p.severity is Severity.WARNING for p in report.problems), report.problems
    assert all(p.excerpt is not None and p.place is not None for p in report.problems)
    return [(p.code, p.what) for p in report.problems]


def renamed(document, name="another"):
    old = document.split("name: ")[1].split("}")[0].split(",")[0]
    return document.replace(f"name: {old}", f"name: {name}", 1)


def preempt(name, workers="{role: decode}", **changes):
    document = renamed(PREEMPT, name).replace("{role: decode}", workers)
    for old, new in changes.items():
        document = document.replace(f"{old}: ", f"{old}: {new} # ", 1)
    return document


def with_priority(document, priority):
    return document.replace("spec:\n", f"spec:\n  priority: {priority}\n")


def codes(*documents, snapshot=None):
    return [code for code, _ in found(*documents, snapshot=snapshot)]


# -- equal rank


def test_policies_of_different_kinds_are_no_rivals():
    assert found(REASSIGN, PREEMPT, CHECKPOINT) == []


def test_rivals_are_named_with_what_they_share_and_who_goes_first():
    report = check([("a.yaml", preempt("a").encode()), ("b.yaml", preempt("b", "{graph: tiny}").encode())])
    assert text(report) == (
        'b.yaml:3:18: SH140 warning: "b" and "a" at a.yaml:3:18 both cover decode workers of tiny; both have priority 100\n'
        "    metadata: {name: b}\n"
        "                     ^\n"
        '    By its name alone "a" goes first: give the one that should a higher priority, or cover different workers\n'
        "2 files, 2 valid policies, 0 errors, 1 warning"
    )


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("{all: true}", "{role: decode}", "both cover decode workers"),
        ("{role: decode}", "{where: 'worker.kvUsage > 0.5'}", 'both can cover decode workers, for instance with worker.kvUsage = 0.6'),
        ("{where: 'worker.role == \"decode\"'}", "{role: decode}", 'for instance with worker.role = "decode"'),
        ("{where: 'worker.id.startsWith(\"a\")'}", "{where: 'worker.id.startsWith(\"a\")'}", "both cover the same workers"),
        ("{where: 'worker.id.startsWith(\"a\")'}", "{all: true}", 'both cover all workers that "a" selects'),
        ("{graph: tiny, where: 'worker.labels[\"tier\"] == \"gold\"'}", "{graph: tiny}", 'worker.graph = "tiny" and worker.labels["tier"] = "gold"'),  # noqa: E501
    ],
)  # fmt: skip
def test_selectors_that_overlap(first, second, words):
    ((code, what),) = found(preempt("a", first), preempt("b", second))
    assert code == "SH140"
    assert words in what


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{role: decode}", "{role: prefill}"),
        ("{graph: tiny}", "{graph: large}"),
        ("{role: decode}", "{where: 'worker.role == \"prefill\"'}"),
        ("{graph: tiny}", "{where: 'worker.graph != \"tiny\"'}"),
        ("{where: 'worker.kvUsage > 0.5'}", "{where: 'worker.kvUsage <= 0.5'}"),
        ("{where: 'worker.id.startsWith(\"a\")'}", "{where: 'worker.id.startsWith(\"b\")'}"),  # nobody knows
        ("{where: 'worker.id.startsWith(\"a\")'}", "{role: decode}"),  # nobody knows
    ],
)
def test_selectors_that_do_not_overlap_or_of_which_it_is_not_sure(first, second):
    assert found(preempt("a", first), preempt("b", second)) == []


def test_rank_mode_and_notices_keep_rivals_apart():
    assert codes(preempt("a"), with_priority(preempt("b"), 100)) == ["SH140"]
    assert codes(preempt("a"), with_priority(preempt("b"), 200)) == []
    assert codes(preempt("a"), preempt("b").replace("spec:\n", "spec:\n  mode: off\n")) == []
    assert codes(preempt("a"), preempt("b").replace("[preemption, gone]", "[maintenance]")) == []
    assert codes(preempt("a"), preempt("b").replace("[preemption, gone]", "[maintenance, gone]")) == ["SH140"]


def test_each_loser_is_told_once():
    rivals = [preempt(name) for name in "abcd"]
    assert [what.partition(" at")[0] for _, what in found(*rivals)] == ['"b" and "a"', '"c" and "a"', '"d" and "a"']


def test_checkpoints_of_one_worker_but_not_under_conditions_that_exclude_each_other():
    assert codes(CHECKPOINT, renamed(CHECKPOINT)) == ["SH140"]
    assert codes(CHECKPOINT, renamed(CHECKPOINT).replace("kvUsage < 0.9", "kvUsage > 0.95")) == []


def test_two_shifts_of_one_graph_the_same_way():
    assert codes(REASSIGN, renamed(REASSIGN)) == ["SH140"]
    assert codes(REASSIGN, renamed(REASSIGN).replace("graph: tiny", "graph: large")) == []
    assert codes(REASSIGN, renamed(REASSIGN).replace("> 30", "< 5")) == []


def test_a_declared_metric_is_the_same_only_with_the_same_query():
    def shift(name, query, when):
        declared = f"  metrics: {{wait: {{query: {query}, unit: seconds}}}}\n"
        return (
            renamed(REASSIGN, name)
            .replace("pools.prefill.waiting > 30 && pools.decode.kvUsage < 0.6", when)
            .replace("  for:", f"{declared}  for:")
        )

    over, below = "metrics.wait > 2.0", "metrics.wait < 1.0"
    assert codes(shift("a", "up", over), shift("b", "up", "metrics.wait > 1.0")) == ["SH140"]
    assert codes(shift("a", "up", over), shift("b", "up", below)) == []
    assert codes(shift("a", "up", over), shift("b", "down", below)) == []  # what ties them isn't known
    assert codes(shift("a", "up", over), shift("b", "down", over)) == []


# -- back and forth


def reverting(when):
    return REASSIGN.replace("  pick:", f"  revert: {{when: {when}, for: 1m}}\n  pick:")


def test_a_shift_that_is_undone_while_it_is_wanted():
    report = check([("a.yaml", reverting("pools.prefill.waiting < 40").encode())])
    assert text(report).splitlines()[:4] == [
        "a.yaml:10:18: SH141 warning: revert.when can be true while when is, for instance with pools.decode.kvUsage = 0 and "
        "pools.prefill.waiting = 31: then hardware is neither given nor given back",
        "      revert: {when: pools.prefill.waiting < 40, for: 1m}",
        "                     ^",
        "    Keep a gap between the two conditions, so that never both are true",
    ]


@pytest.mark.parametrize(
    "when", ["pools.prefill.waiting < 5", "pools.decode.kvUsage > 0.9", "pools.prefill.waiting < pools.decode.waiting"]
)
def test_a_revert_with_a_gap_or_that_is_not_understood(when):
    assert found(reverting(when)) == []


def test_opposite_shifts():
    assert codes(REASSIGN, OPPOSITE) == []
    assert codes(REASSIGN, OPPOSITE.replace("< 10", "< 50")) == ["SH142"]
    assert codes(REASSIGN, with_priority(OPPOSITE.replace("< 10", "< 50"), 5)) == ["SH142"]  # no rank settles it
    assert codes(REASSIGN, OPPOSITE.replace("< 10", "< 50").replace("graph: tiny", "graph: large")) == []
    assert codes(REASSIGN, OPPOSITE.replace("< 10", "< 50").replace("{graph: tiny}", "{all: true}")) == ["SH142"]
    assert codes(REASSIGN, OPPOSITE.replace("< 10", "< 50").replace("spec:\n", "spec:\n  mode: off\n")) == []


# -- against a fleet


def fleet(labels=None, nodes=2, notices=(), graph="tiny"):
    names = [NodeId(f"node-{n}") for n in range(nodes)]
    workers = tuple(
        Worker(
            id=WorkerId(f"{role}-{n}"), role=role, graph=graph, engine="vllm", state=WorkerState.RUNNING, node=node,
            slot=slot_id(node, 0), incarnation=0,
        )
        for n, (node, role) in enumerate(zip(names, ("decode", "prefill"), strict=False))
    )  # fmt: skip
    held = {w.slot: w.id for w in workers}
    machines = tuple(
        Node(id=n, labels=labels or {}, slots=(Slot(id=SlotId(f"{n}/0"), worker=held.get(SlotId(f"{n}/0"))),), seen_at=NOW) for n in names
    )
    known = {"decode-0": {"kvUsage": Known(value=0.5, unit="1", at=NOW, query="q")}}
    return Snapshot(at=NOW, fleet=Fleet(nodes=machines, workers=workers), samples=Samples(workers=known), notices=notices)


def test_a_set_that_fits_its_fleet():
    assert found(REASSIGN, PREEMPT, CHECKPOINT, snapshot=fleet()) == []


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ("{graph: tinny}", "the fleet has no graph tinny"),
        ("{where: 'worker.engine == \"sglang\"'}", "none of the fleet's 2 workers fulfils the selector"),
        ("{role: decode, where: 'worker.kvUsage > 0.8'}", "none of the fleet's 2 workers fulfils the selector"),
        ("{role: prefill, where: 'worker.kvUsage > 0.8'}", None),  # its usage isn't known
        ("{where: 'worker.kvUsage < 0.8'}", None),
    ],
)
def test_a_selector_that_matches_nothing(workers, said):
    expected = [("SH143", said)] if said else []
    assert found(preempt("a", workers), snapshot=fleet()) == expected


def test_a_role_that_the_fleet_lacks():
    assert found(preempt("a", "{role: prefill}"), snapshot=fleet(nodes=1)) == [("SH143", "the fleet has no prefill worker")]
    report = check([("a.yaml", preempt("a", "{graph: tinny}").encode())], snapshot=fleet())
    assert (report.problems[0].remedy, report.problems[0].place.column) == ('Did you mean "tiny"?', 20)


def test_an_archive_that_no_node_knows():
    archived = CHECKPOINT.replace("copies: 2", "archive: true")
    assert archived != CHECKPOINT
    assert found(archived, snapshot=fleet(nodes=2)) == [("SH157", "images are to go to the archive, and no node of the fleet knows of one")]
    seen = fleet(nodes=2)
    nodes = (seen.fleet.nodes[0], msgspec.structs.replace(seen.fleet.nodes[1], archive=True))
    assert found(archived, snapshot=msgspec.structs.replace(seen, fleet=msgspec.structs.replace(seen.fleet, nodes=nodes))) == []


def test_more_copies_than_nodes():
    assert found(CHECKPOINT, snapshot=fleet(nodes=1)) == [
        ("SH144", "copies is 2, and the fleet has 1 node: each copy needs a node of its own")
    ]
    assert found(CHECKPOINT, snapshot=fleet(nodes=2)) == []


@pytest.mark.parametrize(
    ("label", "reserve", "said"),
    [
        ("kubernetes.azure.com/mode", "10s", "reserve is 10s, and Azure often announces a preemption only 10s ahead"),
        ("cloud.google.com/gke-spot", "30s", "reserve is 30s, and GCP often announces a preemption only 30s ahead"),
        ("eks.amazonaws.com/capacityType", "2m", "reserve is 2m, and AWS often announces a preemption only 2m ahead"),
        ("kubernetes.azure.com/mode", "9s", None),
        ("eks.amazonaws.com/capacityType", "119s", None),
        ("zone", "10m", None),
    ],
)
def test_a_reserve_that_leaves_no_time(label, reserve, said):
    policy = PREEMPT.replace("reserve: 10s", f"reserve: {reserve}")
    expected = [("SH145", f"{said}: no move would ever be begun")] if said else []
    assert found(policy, snapshot=fleet({label: "x"})) == expected
    assert found(policy.replace("[preemption, gone]", "[maintenance]"), snapshot=fleet({label: "x"})) == []


def test_notices_in_the_snapshot_tell_how_early_they_come():
    notice = Notice(id=NoticeId("n1"), kind=NoticeKind.PREEMPTION, node=NodeId("node-0"), seen_at=NOW - 1, deadline=NOW + 7)
    ((code, what),) = found(PREEMPT, snapshot=fleet(notices=(notice,)))
    assert (code, what) == ("SH145", "reserve is 10s, and the notice n1 in the snapshot came 8s ahead: no move would ever be begun")
