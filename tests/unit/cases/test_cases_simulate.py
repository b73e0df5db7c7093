"""Simulated time: what is seen at each step, and what carrying out comes to."""

import pytest
from case_files import FILES, RULES, differences, one
from shunter.cases.read import read
from shunter.cases.scenario import Scenario, scenarios
from shunter.cases.simulate import Moment, simulate
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import WorkerState

TWO = "fleet: {nodes: {a: {slots: 2}, b: {slots: 2}}, workers: {decode-0: {node: a}, decode-1: {node: a}}}\n"


def scenario(text: str) -> Scenario:
    found, problems = read("x_test.yaml", text.encode())
    assert found is not None, problems
    made, problems = scenarios(found, "", FILES)
    assert problems == ()
    return made[0]


def moments(text: str) -> list[Moment]:
    return list(simulate(scenario(text), RULES))


def planned(moment: Moment) -> list[str]:
    return [f"{o.kind.value} {o.worker} {o.to_slot or ''}".strip() for o in moment.evaluation.plan.operations]


def test_there_is_a_snapshot_at_every_step_to_the_last_expectation():
    seen = moments(
        "policies: [leave.yaml]\nstart: 2026-03-01T12:00:00Z\n" + TWO + "tests: [{name: t, expect: [{at: 20s, operations: []}]}]"
    )
    assert [m.snapshot.at - seen[0].snapshot.at for m in seen] == [0, 5, 10, 15, 20]
    assert seen[0].snapshot.at == 1772366400
    assert seen[0].evaluation.plan.at == seen[0].snapshot.at


def test_values_markers_and_what_is_not_given():
    seen = moments(
        "policies: [images.yaml]\n"
        "fleet: {nodes: {a: {}}, workers: {decode-0: {node: a, kvTokens: 5 missing stale failed}}}\n"
        "tests: [{name: t, samples: {decode: {waiting: 1 2}}, expect: [{at: 15s, operations: []}]}]"
    )
    tokens = [m.snapshot.samples.workers["decode-0"]["kvTokens"] for m in seen]
    assert isinstance(tokens[0], Known)
    assert (tokens[0].value, tokens[0].at, tokens[0].unit) == (5.0, seen[0].snapshot.at, "tokens")
    assert tokens[1] == Missing(reason="no data", query="kvTokens")
    assert isinstance(tokens[2], Stale)
    assert tokens[2].value == 5.0
    assert tokens[3] == Missing(reason="the query failed", query="kvTokens")
    assert [w["waiting"].value for w in (m.snapshot.samples.workers["decode-0"] for m in seen)] == [1.0, 2.0, 2.0, 2.0]  # type: ignore[union-attr]
    assert seen[0].snapshot.samples.workers["decode-0"]["running"] == Missing(reason="the test gives it no value", query="running")
    assert [f.verdict.value for m in seen for f in m.evaluation.findings] == ["pass", "inconclusive", "inconclusive", "inconclusive"]


def test_a_worker_goes_before_the_fleet_and_the_fleet_before_its_role():
    made = scenario(
        "policies: [images.yaml]\n"
        "fleet: {nodes: {a: {slots: 3}}, workers: {decode-0: {node: a, waiting: 1},"
        " decode-1: {node: a, waiting: 2}, decode-2: {node: a}}}\n"
        "tests: [{name: t, samples: {decode: {waiting: 9}, decode-1: {waiting: 3}}, expect: [{operations: []}]}]"
    )
    assert {w: f["waiting"].entries for w, f in made.samples.items()} == {"decode-0": (1.0,), "decode-1": (3.0,), "decode-2": (9.0,)}


def test_declared_metrics_for_all_and_by_worker_and_what_no_data_means():
    seen = moments(
        "policies: [shift.yaml]\n" + TWO + "tests: [{name: t, metrics: {shift: {wait: 3 missing failed stale, other: {decode-0: 1}}},"
        " expect: [{at: 15s, operations: []}]}]"
    )
    wait = [m.snapshot.samples.policies["shift"]["wait"][""] for m in seen]
    assert isinstance(wait[1], Known)
    assert isinstance(wait[3], Stale)
    assert (wait[1].value, wait[3].max_age) == (0.0, 10.0)
    assert wait[2] == Missing(reason="the query failed", query="prefill_wait_seconds")
    other = seen[0].snapshot.samples.policies["shift"]["other"]
    assert isinstance(other["decode-0"], Known)
    assert other["decode-1"] == Missing(reason="the test gives it no value", query="other_seconds")


def test_without_carrying_out_every_step_decides_anew():
    seen = moments(
        "policies: [leave.yaml]\n"
        + TWO
        + "tests: [{name: t, notices: [{node: a, kind: preemption, lead: 10m}], expect: [{at: 60s, operations: []}]}]"
    )
    assert {tuple(planned(m)) for m in seen} == {("move decode-0 b/0", "move decode-1 b/1")}
    assert seen[-1].snapshot.fleet == seen[0].snapshot.fleet


def test_moves_take_their_time_and_change_the_fleet():
    seen = moments(
        "policies: [leave.yaml]\n" + TWO + "tests: [{name: t, carryOut: true, notices: [{node: a, kind: preemption, lead: 10m}],"
        " expect: [{at: 60s, operations: []}]}]"
    )
    assert [len(planned(m)) for m in seen] == [2] + [0] * 12
    # 80 GB: 17 s to dump and 9.9 s to restore; the second waits for the first one's dump
    where = [[w.slot for w in m.snapshot.fleet.workers] for m in seen]
    assert where[5] == ["a/0", "a/1"]
    assert where[6] == ["b/0", "a/1"]
    assert where[8] == ["b/0", "a/1"]
    assert where[9] == ["b/0", "b/1"]
    end = seen[-1].snapshot.fleet
    assert [w.incarnation for w in end.workers] == [1, 1]
    assert [[s.worker for s in n.slots] for n in end.nodes] == [[None, None], ["decode-0", "decode-1"]]


def test_a_parked_worker_comes_back_when_there_is_room():
    seen = moments(
        "policies: [leave.yaml]\n"
        "fleet: {nodes: {a: {}, b: {}}, workers: {decode-0: {node: a, kvTokens: 5}, prefill-0: {node: b}}}\n"
        "tests: [{name: t, carryOut: true, notices: [{node: a, kind: preemption, lead: 10m}],\n"
        "  changes: [{at: 40s, worker: prefill-0, state: lost}], expect: [{at: 60s, operations: []}]}]"
    )
    assert planned(seen[0]) == ["park decode-0"]
    parked = seen[4].snapshot.fleet
    assert [w.state for w in parked.workers] == [WorkerState.PARKED, WorkerState.RUNNING]
    assert [(i.worker, i.nodes, i.incarnation) for i in parked.images] == [("decode-0", ("b",), 0)]
    assert planned(seen[7]) == []
    assert planned(seen[8]) == ["restore decode-0 b/0"]
    back = seen[-1].snapshot.fleet.workers[0]
    assert (back.state, back.slot, back.incarnation) == (WorkerState.RUNNING, "b/0", 1)


def test_a_drained_worker_is_no_more_and_a_discarded_image_neither():
    seen = moments(
        "policies: [leave.yaml, images.yaml]\n"
        "fleet: {nodes: {a: {}, b: {}}, workers: {decode-0: {node: a, memory: 80GB}, decode-1: {node: b, kvTokens: 1,\n"
        "  images: [{age: 1s, nodes: [a, b]}, {age: 9s, nodes: [b]}]}}}\n"
        "tests: [{name: t, carryOut: true, notices: [{node: a, kind: preemption, lead: 8s}], expect: [{at: 10s, operations: []}]}]"
    )
    assert planned(seen[0]) == ["drain decode-0"]
    assert [w.id for w in seen[1].snapshot.fleet.workers] == ["decode-1"]
    assert seen[1].snapshot.fleet.nodes[0].slots[0].worker is None
    after = moments(
        "policies: [images.yaml]\nfleet: {nodes: {a: {}, b: {}}, workers: {decode-1: {node: b, kvTokens: 1,\n"
        "  images: [{age: 1s, nodes: [a, b]}, {age: 9s, nodes: [b]}]}}}\n"
        "tests: [{name: t, carryOut: true, expect: [{at: 10s, operations: []}]}]"
    )
    assert planned(after[0]) == ["discard decode-1"]
    assert [i.id for i in after[1].snapshot.fleet.images] == ["decode-1-image-0"]


def test_a_checkpoint_leaves_an_image_of_the_time_when_it_ended():
    seen = moments(
        "policies: [images.yaml]\nfleet: {nodes: {a: {facts: {driver: '1'}}, b: {}}, workers: {decode-0: {node: a, kvTokens: 50}}}\n"
        "tests: [{name: t, carryOut: true, expect: [{at: 85s, operations: []}]}]"
    )
    assert [i for m, s in enumerate(seen) for i in [m] if planned(s)] == [0, 16]  # 17 s for the image, due again 60 s later
    (image,) = seen[5].snapshot.fleet.images
    assert (image.taken_at - seen[0].snapshot.at, image.bytes, image.nodes, image.facts) == (17.0, 80 * 10**9, ("a", "b"), {"driver": "1"})


def test_what_waits_in_a_chain_begins_when_the_one_before_it_has_ended():
    text = (
        "policies: [leave.yaml]\n"
        "fleet: {nodes: {a: {}, b: {slots: 2}}, workers: {decode-0: {node: a, kvTokens: 5, memory: 20GB},\n"
        "  prefill-0: {node: b, memory: 20GB}, prefill-1: {node: b, memory: 20GB}}}\n"
        "tests: [{name: t, carryOut: true, notices: [{node: a, kind: preemption, lead: 10m}], expect: [{at: 30s, operations: []}]}]"
    )
    files = {"leave.yaml": FILES["leave.yaml"] + b"  move: {makeRoom: prefill}\n"}
    found, _ = read("x_test.yaml", text.encode())
    assert found is not None
    seen = list(simulate(scenarios(found, "", files)[0][0], RULES))
    assert planned(seen[0]) == ["park prefill-0", "move decode-0 b/0"]
    states = [{str(w.id): w.slot for w in m.snapshot.fleet.workers} for m in seen]
    assert states[1] == {"decode-0": "a/0", "prefill-0": None, "prefill-1": "b/1"}  # 5 s for the park
    assert states[2] == states[1]
    assert states[3]["decode-0"] == "b/0"


def test_preview_is_never_carried_out():
    files = {"leave.yaml": FILES["leave.yaml"].replace(b"spec:\n", b"spec:\n  mode: preview\n")}
    text = (
        "tests: [{name: t, carryOut: true, notices: [{node: a, kind: preemption, lead: 10m}],"
        " expect: [{at: 60s, workers: {decode-0: {node: a}}}]}]"
    )
    assert one("policies: [leave.yaml]\n" + TWO + text, files).passed


def test_an_operation_fails_with_its_worker():
    seen = moments(
        "policies: [leave.yaml]\n" + TWO + "tests: [{name: t, carryOut: true, notices: [{node: a, kind: preemption, lead: 10m}],\n"
        "  changes: [{at: 10s, worker: decode-0, state: lost}], expect: [{at: 60s, operations: []}]}]"
    )
    states = [m.snapshot.fleet.workers[0].state for m in seen]
    assert states[1] is WorkerState.RUNNING
    assert set(states[2:]) == {WorkerState.LOST}
    assert "no node that answers has an image" in next(f.reason for f in seen[-1].evaluation.findings if f.subject == "decode-0")


def test_notices_come_and_go_and_nodes_fall_silent():
    seen = moments(
        "policies: [leave.yaml]\n" + TWO + "tests: [{name: t, notices: [{node: a, kind: preemption, at: 5s, lead: 60s, until: 15s}],\n"
        "  changes: [{at: 10s, node: b, reachable: false}, {at: 15s, node: b, reachable: true}], expect: [{at: 20s, operations: []}]}]"
    )
    assert [len(m.snapshot.notices) for m in seen] == [0, 1, 1, 0, 0]
    (notice,) = seen[2].snapshot.notices
    assert (notice.seen_at - seen[0].snapshot.at, (notice.deadline or 0) - seen[0].snapshot.at) == (5.0, 65.0)
    assert [m.snapshot.fleet.nodes[1].reachable for m in seen] == [True, True, False, True, True]


def test_the_window_is_as_long_as_the_longest_for():
    """A condition that began before the window is seen to have held for all of it, as in the engine."""
    text = (
        "policies: [shift.yaml]\n"
        "fleet: {nodes: {a: {slots: 2}}, workers: {decode-0: {node: a, kvUsage: 0.1}, decode-1: {node: a, kvUsage: 0.1}}}\n"
        "tests: [{name: t, metrics: {shift: {wait: 3, other: 1}}, expect: [{at: 10m, operations: []}]}]"
    )
    seen = moments(text)
    since = [seen[i].snapshot.at - (seen[i].evaluation.findings[0].since or 0) for i in (2, 4, 60, 120)]
    assert since == [10, 20, 35, 35]  # 20 s and a margin of 15 s


def test_the_same_test_gives_the_same_findings_and_plans():
    text = (
        "policies: [leave.yaml]\n"
        + TWO
        + "tests: [{name: t, carryOut: true, notices: [{node: a, kind: preemption, lead: 10m}], expect: [{at: 30s, operations: []}]}]"
    )
    assert moments(text) == moments(text)


def test_rates_of_the_profile_count():
    text = (
        "policies: [leave.yaml]\nprofile: {dump: 100GB, restore: 100GB, network: 100GB}\n" + TWO + "tests: [{name: t, carryOut: true,"
        " notices: [{node: a, kind: preemption, lead: 10m}], expect: [{at: 5s, workers: {decode-0: {node: b}}}]}]"
    )
    assert differences(text) == []
    slower = text.replace("100GB", "10GB")
    assert differences(slower) == [("worker  decode-0: on b", "worker  decode-0: running, on a/0")]


@pytest.mark.parametrize(("knows", "wanted"), [("true", ["discard decode-1"]), ("false", [])])
def test_an_image_can_be_in_the_archive_alone(knows: str, wanted: list[str]) -> None:
    seen = moments(
        f"policies: [images.yaml]\nfleet: {{nodes: {{b: {{archive: {knows}}}}}, workers: {{decode-1: {{node: b, kvTokens: 1,\n"
        "  images: [{age: 1s, nodes: [b]}, {age: 9s, nodes: [], archived: true}]}}}\n"
        "tests: [{name: t, carryOut: true, expect: [{at: 10s, operations: []}]}]"
    )
    assert [i.holders for i in seen[0].snapshot.fleet.images] == ["b", "the archive"]
    assert planned(seen[0]) == wanted
