"""Exact plans and recordings as files: whole, private, and refused once they were changed."""

import json
import stat
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from shunter.app import exact
from shunter.app.assumed import Assumed, with_assumed
from shunter.app.exact import ExactPlan, from_json, load, save, to_json
from shunter.app.inputs import asked, fitted
from shunter.app.looking import look_again, state_at, without_later
from shunter.app.recording import Past, Recording
from shunter.app.recording import load as load_recording
from shunter.app.recording import save as save_recording
from shunter.decide.profile import Profile
from shunter.lang.load import load as load_policies
from shunter.model.canon import encode
from shunter.model.errors import Rejected, Retry
from shunter.model.finding import Lane
from shunter.model.ids import (
    Commit,
    Digest,
    Epoch,
    ImageId,
    Incarnation,
    NodeId,
    NoticeId,
    OperationId,
    PolicyName,
    SlotId,
    WorkerId,
)
from shunter.model.operation import EngineState, OperationRecord, Outcome, Status, Step
from shunter.model.plan import OperationKind, Plan, PlannedOperation, Preconditions
from shunter.model.policy import PolicySet
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Snapshot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile
from shunter.observe.recorded import load as load_snapshot

NOW = 1_800_000_000.0
LOST = Worker(
    id=WorkerId("w"), role="decode", graph="g", engine="e", state=WorkerState.LOST, node=None, slot=None, incarnation=Incarnation(0)
)
SEEN = Recording(at=NOW, fleet=Fleet(workers=(LOST,)))


def operation(name: str = "move-1", *, preview: bool = False, lane: Lane = "voluntary") -> PlannedOperation:
    return PlannedOperation(
        id=OperationId(name), kind=OperationKind.MOVE, worker=WorkerId("w"), lane=lane, policy=PolicyName("p"), reason="r",
        expect=Preconditions(incarnation=0, at=SlotId("a/0"), free=SlotId("b/0")), from_slot=SlotId("a/0"), to_slot=SlotId("b/0"),
        preview=preview,
    )  # fmt: skip


def plan(*operations: PlannedOperation, at: float = NOW) -> Plan:
    return Plan(at=at, commit=Commit("c" * 40), policy_set=Digest("sha256:p"), snapshot=Digest("sha256:s"), operations=operations)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    made = ExactPlan.of(plan(operation(), operation("move-2", preview=True)), SEEN, now=NOW + 5)
    save(made, tmp_path / "plan.json")
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o600
    assert load(tmp_path / "plan.json") == made
    assert made.expires_at == NOW + 600
    assert made.basis() == SEEN
    assert [o.id for o in made.operations] == ["move-1"]
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]


def leaves(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    if isinstance(value, dict):
        return [leaf for key, part in value.items() for leaf in leaves(part, (*path, key))]
    if isinstance(value, list):
        return [leaf for key, part in enumerate(value) for leaf in leaves(part, (*path, key))]
    return [path]


def changed(document: dict, path: tuple[object, ...]) -> bytes:
    copy = json.loads(json.dumps(document))
    *way, last = path
    at = copy
    for key in way:
        at = at[key]
    before = at[last]
    at[last] = (before + 1) if isinstance(before, int | float) and not isinstance(before, bool) else f"{before}x"
    return json.dumps(copy).encode()


def test_any_changed_value_is_found() -> None:
    document = json.loads(to_json(ExactPlan.of(plan(operation()), SEEN, now=NOW)))
    paths = leaves(document)
    assert len(paths) > 20
    for path in paths:
        with pytest.raises(Rejected) as caught:
            from_json(changed(document, path), "plan.json")
        assert caught.value.problem.code == "SH953", path


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"format": "shunter.dev/exact-plan/v1"}', b"\xff"])
def test_what_is_no_plan_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(data)
    with pytest.raises(Rejected) as caught:
        load(tmp_path / "plan.json")
    assert caught.value.problem.code == "SH953"


def test_a_file_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        load(tmp_path / "nothing.json")
    assert "can't be read" in caught.value.problem.what
    with pytest.raises(Retry) as away:
        save(ExactPlan.of(plan(), SEEN, now=NOW), tmp_path / "no folder" / "plan.json")
    assert away.value.problem.code == "SH952"


def test_one_that_nobody_could_read_isnt_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_MAX_RECORDING", 100)
    with pytest.raises(Rejected, match="SH947") as caught:
        ExactPlan.of(plan(operation()), SEEN, now=NOW)
    assert "can carry 100" in caught.value.problem.what


def test_one_that_is_too_large_as_a_file_isnt_written_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MAX_BYTES", 100)
    with pytest.raises(Rejected, match="SH947"):
        save(ExactPlan.of(plan(operation()), SEEN, now=NOW), tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


def test_one_of_before_recordings_were_packed_is_read_still() -> None:
    made, small = ExactPlan.of(plan(operation()), SEEN, now=NOW), zlib.compress(encode(SEEN))
    seal = exact._seal("shunter.dev/exact-plan/v2", made.plan, made.expires_at, small)
    older = msgspec.structs.replace(made, format="shunter.dev/exact-plan/v2", recording=small, seal=seal)
    assert from_json(to_json(older), "plan.json").basis() == SEEN
    with pytest.raises(Rejected, match="its seal is"):
        from_json(to_json(msgspec.structs.replace(older, format=made.format)), "plan.json")


def test_what_is_assumed_or_past_cannot_be_carried_out() -> None:
    notices = with_assumed((), [Assumed(node=NodeId("a"), kind=NoticeKind.GONE, lead=None)], NOW, {NodeId("a")})
    with pytest.raises(Rejected) as caught:
        ExactPlan.of(plan(operation()), msgspec.structs.replace(SEEN, notices=notices), now=NOW)
    assert caught.value.problem.code == "SH950"
    with pytest.raises(Rejected) as late:
        ExactPlan.of(plan(operation()), SEEN, now=NOW + 600)
    assert late.value.problem.code == "SH951"
    assert "it isn't good at 2027-01-15 08:10:00 UTC" in late.value.problem.what.replace("the plan", "it")
    with pytest.raises(Rejected):
        ExactPlan.of(plan(operation()), SEEN, now=NOW - 6)


# -- recordings


def policies(text: str) -> PolicySet:
    found = load_policies(
        Revision(commit=Commit("c" * 40), committed_at=None, files=(SourceFile(path="a.yaml", blob="b", data=text.encode()),)), None
    )
    assert not found.problems
    return found


def wanting(query: str = "up", max_age: str = "30s", on_missing: str = "inconclusive", name: str = "shift") -> PolicySet:
    return policies(
        "apiVersion: shunter.dev/v1alpha1\nkind: ReassignmentPolicy\n"
        f"metadata: {{name: {name}}}\nspec:\n  workers: {{all: true}}\n  from: decode\n  to: prefill\n"
        f"  when: metrics.wait > 1.0\n  for: 1m\n"
        f"  metrics: {{wait: {{query: {query}, unit: seconds, maxAge: {max_age}, onMissing: {on_missing}}}}}\n"
    )


def recording(**samples: Sample) -> Recording:
    snapshot = Snapshot(
        at=NOW, fleet=Fleet(nodes=(Node(id=NodeId("a"), slots=()),)), samples=Samples(policies={"shift": {"wait": samples}})
    )
    return Recording.of(snapshot, (Past(at=NOW - 30, samples=snapshot.samples),), EngineState(), Profile(fixed_dump_s=3.0))


KNOWN = Known(value=2.0, unit="seconds", at=NOW - 10, query="up")


def test_a_recording_is_a_snapshot_for_those_who_read_one(tmp_path: Path) -> None:
    made = recording(w=KNOWN)
    save_recording(made, tmp_path / "r.json")
    assert stat.S_IMODE((tmp_path / "r.json").stat().st_mode) == 0o600
    assert load_recording(tmp_path / "r.json") == made
    assert load_snapshot(tmp_path / "r.json").id == made.snapshots()[-1].id
    bare = Snapshot(at=NOW, fleet=Fleet())
    (tmp_path / "bare.json").write_bytes(msgspec.json.encode(bare))
    assert load_recording(tmp_path / "bare.json") == Recording.of(bare)


@pytest.mark.parametrize("data", [b"", b"{", b'{"at": "now"}', b'{"at": 1, "fleet": {"nodes": [{}]}}'])
def test_what_is_no_recording_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(data)
    with pytest.raises(Rejected) as caught:
        load_recording(tmp_path / "r.json")
    assert caught.value.problem.code == "SH925"
    with pytest.raises(Rejected):
        load_recording(tmp_path / "nothing.json")


def test_a_recording_keeps_its_id_for_the_policies_that_it_was_made_with() -> None:
    for sample in (KNOWN, Missing(reason="away", query="up[45s]"), Stale(value=1.0, age=40, max_age=30, query="up")):
        made = recording(w=sample)
        (seen,) = look_again(made, [wanting()])
        assert seen.recording == made
        assert seen.remarks == ()


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (wanting(query="down"), Missing(reason="this was recorded with another query", query="down")),
        (wanting(max_age="5s"), Stale(value=2.0, age=10, max_age=5, query="up")),
        (wanting(max_age="1m"), KNOWN),
    ],
)
def test_a_sample_counts_only_for_its_own_query_and_age(declared: PolicySet, expected: Sample) -> None:
    found, remarks = fitted(recording(w=KNOWN).samples, declared, NOW)
    assert found.policies["shift"]["wait"]["w"] == expected
    assert bool(remarks) == (expected == Missing(reason="this was recorded with another query", query="down"))


def test_a_stale_sample_counts_where_more_age_is_allowed_and_a_declared_number_only_for_its_own_author() -> None:
    stale = Stale(value=2.0, age=40, max_age=30, query="up")
    found, _ = fitted(recording(w=stale).samples, wanting(max_age="1m"), NOW)
    assert found.policies["shift"]["wait"]["w"] == Known(value=2.0, unit="seconds", at=NOW - 40, query="up")
    declared = Known(value=0.0, unit="seconds", at=NOW, query="up (no data: 0 series; onMissing declares 0)")
    kept, _ = fitted(recording(w=declared).samples, wanting(on_missing="0"), NOW)
    assert kept.policies["shift"]["wait"]["w"] == declared
    for other in (wanting(), wanting(on_missing="7")):
        gone, _ = fitted(recording(w=declared).samples, other, NOW)
        assert isinstance(gone.policies["shift"]["wait"]["w"], Missing)


def test_a_metric_that_was_not_recorded_stays_unknown_and_is_said() -> None:
    made = recording(w=KNOWN)
    found, remarks = fitted(made.samples, wanting(name="other"), NOW)
    assert found == made.samples
    assert remarks == ("The recording has no values of metrics.wait of other: it was made with other policies",)


def test_sets_that_agree_are_asked_once_and_others_for_what_differs() -> None:
    same = asked([wanting(), wanting()])
    assert [p.name for p in same.common.policies] == ["shift"]
    assert same.own == (None, None)
    differ = asked([wanting(), wanting(query="down"), wanting(name="other")])
    assert [p.name for p in differ.common.policies] == ["other", "shift"]
    assert differ.own[0] is None
    assert differ.own[1] is not None
    assert differ.own[1].policies[0].metrics["wait"].query == "down"
    assert differ.own[2] is None


def test_the_engines_state_at_a_past_instant() -> None:
    def record(name: str, began: float, ended: float | None) -> OperationRecord:
        outcome = Outcome(status=Status.SUCCEEDED, at=ended) if ended is not None else None
        history = ((Step.INTENDED, began), (Step.FENCED, began + 10))
        return OperationRecord(
            planned=operation(name), plan=Digest("sha256:x"), epoch=Epoch(1), created_at=began, step=Step.FENCED, history=history,
            outcome=outcome,
        )  # fmt: skip

    active = [record("now", NOW - 5, None), record("long", NOW - 500, None)]
    ended = [record("before", NOW - 400, NOW - 300), record("since", NOW - 205, NOW - 100), record("old", NOW - 9000, NOW - 8000)]
    then = state_at(active, ended, NOW - 200)
    assert [r.id for r in then.active] == ["long", "since"]
    assert then.active[1].outcome is None
    assert then.active[1].step is Step.INTENDED
    assert [r.id for r in then.recent] == ["before"]


def test_what_came_after_a_past_instant_was_not_there() -> None:
    def image(name: str, at: float) -> Image:
        held: dict[str, Any] = {"bytes": 1, "nodes": (NodeId("a"),), "role": "decode", "graph": "g", "engine": "e"}
        return Image(id=ImageId(name), worker=WorkerId("w"), incarnation=Incarnation(0), taken_at=at, **held)

    def notice(name: str, at: float) -> Notice:
        return Notice(id=NoticeId(name), kind=NoticeKind.DRAIN, node=NodeId("a"), seen_at=at)

    fleet = Fleet(images=(image("earlier", NOW - 10), image("later", NOW + 10)))
    notices = (notice("z", NOW - 10), notice("b", NOW), notice("later", NOW + 1))
    then, open_then = without_later(fleet, notices, NOW)
    assert [i.id for i in then.images] == ["earlier"]
    assert [n.id for n in open_then] == ["b", "z"]
    assert without_later(fleet, notices, None)[0] == fleet
    assert len(without_later(fleet, notices, None)[1]) == 3
