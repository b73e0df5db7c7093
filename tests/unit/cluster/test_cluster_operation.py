"""Operations as resources: nothing of a record is lost on the way, and the definition has a place for all of it."""

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml
from shunter.cluster.operation import LONGEST, Batch, batch_of, camel, incomplete, record_of, resource, seconds, stamp, status
from shunter.cluster.retention import KEPT_S, ROUTINE_S, outdated
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import Digest, Epoch, ImageId, Incarnation, NodeId, NoticeId, OperationId, PolicyName, PoolId, SlotId, WorkerId
from shunter.model.operation import Measured, OperationRecord, Outcome, Outstanding, Sending, Status, Step
from shunter.model.plan import Estimate, OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Pod

CRD = Path(__file__).resolve().parents[3] / "schemas" / "crds" / "workeroperations.shunter.dev.yaml"
WHY = Problem(code="SH513", what="late", remedy="none", subject="w")


def planned(kind: OperationKind = OperationKind.MOVE, worker: str = "w", **more: Any) -> PlannedOperation:
    """Nothing in it is what it would be by default."""
    given: dict[str, Any] = {
        "id": OperationId("move-0123456789abcdef"), "kind": kind, "worker": WorkerId(worker), "lane": "involuntary",
        "policy": PolicyName("leave"), "reason": "preempted",
        "expect": Preconditions(
            incarnation=Incarnation(2), at=SlotId("a/0"), absent=True, free=SlotId("b/1"), image=ImageId("i")
        ),
        "from_slot": SlotId("a/0"), "to_slot": SlotId("b/1"), "image": ImageId("i"), "copies": (NodeId("c"),),
        "after": (OperationId("drain-1"),), "notice": NoticeId("n"), "cause": "notice:n", "attempt": 1, "deadline": 1_800_000_000.25,
        "estimate": Estimate(bytes=2**40, stopped=0.5, total=7.0, basis="measured"), "pool": PoolId("g/decode"),
        "hands_to": PoolId("g/prefill"), "golden": "gold", "archive": True, "ahead": 0.25,
    }  # fmt: skip
    return PlannedOperation(**(given | more))


SENDING = Sending(operation=OperationId("o"), bytes=5, at=1_800_000_001.5, total=10, rate=2.5, left=2.0)


def record(**more: Any) -> OperationRecord:
    given: dict[str, Any] = {
        "planned": planned(), "plan": Digest("sha256:p"), "epoch": Epoch(7), "created_at": 1_800_000_000.125, "step": Step.HELD,
        "history": ((Step.INTENDED, 1_800_000_000.125), (Step.HELD, 1_800_000_001.0)), "problem": WHY, "cancelled": WHY, "waits": True,
        "measured": Measured(stopped=0.25, dump=1.0, send=2.0, restore=3.0, bytes=5, sent=4, copy=0.5, copied=3),
        "frozen_at": 1_800_000_000.5, "outstanding": Outstanding(since=1_800_000_001.25, problem=WHY),
        "pod": Pod(namespace="n", name="d-1", uid="u1", container="main"), "left": Pod(namespace="n", name="d-0", uid="u0", container="m"),
        "outcome": Outcome(
            status=Status.FAILED, at=1_800_000_002.75, code="SH517", reason="gone", measured=Measured(stopped=1.5), image=ImageId("j")
        ),
    }  # fmt: skip
    return OperationRecord(**(given | more))


def whole(one: OperationRecord, batch: Batch | None = None) -> dict[str, Any]:
    made = resource(one, batch or Batch(first=one.id, size=1), "shunter")
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**made, "status": status(one)}))
    return found


def defaults(value: msgspec.Struct) -> list[str]:
    """Fields that are as they would be anyway."""
    return [f.name for f in msgspec.structs.fields(value) if not f.required and getattr(value, f.name) == f.default]


def test_nothing_is_lost_on_the_way() -> None:
    one = record()
    assert defaults(one) == []
    assert defaults(one.planned) == ["preview"], "which is never carried out"
    assert record_of(whole(one)) == one


def test_how_far_its_image_is_on_its_way_is_shown_and_nobody_goes_on_from_it() -> None:
    shown = status(record(), SENDING)
    assert shown["sending"] == {"bytes": 5, "at": "2027-01-15T08:00:01.500000Z", "total": 10, "rate": 2.5, "left": 2.0}
    assert record_of({**whole(record()), "status": shown}) == record()
    assert "sending" not in status(record())


def test_one_whose_answer_is_outstanding_is_unknown_and_says_which_answer() -> None:
    shown = status(record(outcome=None, waits=False, problem=None))
    assert shown["phase"] == "unknown"
    assert shown["outstanding"]["since"] == "2027-01-15T08:00:01.250000Z"
    assert (shown["conditions"][0]["status"], shown["conditions"][0]["reason"]) == ("False", "Unknown")
    assert shown["conditions"][0]["message"] == WHY.what
    assert status(record(outcome=None, outstanding=None))["phase"] == "active"


def test_what_has_no_status_was_made_durable_and_not_begun() -> None:
    one = record(step=Step.INTENDED, history=((Step.INTENDED, 1_800_000_000.125),), problem=None, cancelled=None, outcome=None,
                 measured=Measured(), frozen_at=None, outstanding=None, pod=None, left=None)  # fmt: skip
    made = resource(one, Batch(first="x", size=3), "shunter")
    assert record_of(made) == one
    assert batch_of(made) == Batch(first="x", size=3)


def test_the_pod_that_it_is_to_leave_is_known_from_the_first_word_on_and_by_the_last() -> None:
    """Also where nothing could be written after the intent."""
    made = whole(record())
    del made["status"]
    assert record_of(made).left == record().left
    later = Pod(namespace="n", name="d-9", uid="u9")
    assert record_of({**made, "status": status(record(left=later))}).left == later


def test_texts_that_are_too_long_are_cut_and_not_refused() -> None:
    one = record(planned=planned(reason="r" * 5000), problem=msgspec.structs.replace(WHY, what="w" * 5000))
    made = whole(one)
    assert len(made["spec"]["reason"]) == LONGEST == len(made["status"]["problem"]["what"])
    assert len(made["status"]["conditions"][0]["message"]) <= LONGEST


def test_the_definition_has_a_place_for_everything_and_nothing_more() -> None:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]

    def unknown(value: Any, known: dict[str, Any], where: str) -> list[str]:
        if isinstance(value, list):
            return [bad for part in value for bad in unknown(part, known["items"], f"{where}[]")]
        if not isinstance(value, dict):
            return []
        fields = known.get("properties", {})
        return [f"{where}.{key}" for key in value if key not in fields] + [
            bad for key, part in value.items() if key in fields for bad in unknown(part, fields[key], f"{where}.{key}")
        ]

    made = whole(record())
    made["status"] = msgspec.json.decode(msgspec.json.encode(status(record(), SENDING)))
    assert unknown(made["spec"], schema["spec"], "spec") + unknown(made["status"], schema["status"], "status") == []
    fields = {camel(f.name) for f in msgspec.structs.fields(PlannedOperation)} - {"id"}
    assert schema["spec"]["properties"].keys() - {"plan", "epoch", "createdAt", "waits", "left", "batch"} == fields
    assert set(schema["status"]["properties"]["step"]["enum"]) == {step.value for step in Step}
    assert schema["spec"]["properties"]["lane"]["enum"] == list(get_args(PlannedOperation.__annotations__["lane"]))


def test_the_condition_says_what_kubectl_wait_waits_for() -> None:
    condition = whole(record(outcome=None, waits=False, problem=None, outstanding=None))["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ended", "False", "UnderWay")
    condition = whole(record())["status"]["conditions"][0]
    assert (condition["status"], condition["reason"], condition["message"]) == ("True", "Failed", "gone")


@pytest.mark.parametrize("broken", [{"spec": {}}, {}, {"spec": {"kind": "teleport"}}, {"spec": None}, {"spec": {"createdAt": "now"}}])
def test_what_cannot_be_read_is_refused_and_named(broken: dict[str, Any]) -> None:
    with pytest.raises(Rejected) as raised:
        record_of({**whole(record()), **broken} if broken else {"metadata": {"name": "x"}})
    assert raised.value.problem.code == "SH260"
    assert raised.value.problem.subject


def test_a_batch_counts_as_a_whole() -> None:
    def made(name: str, first: str, size: int, *, begun: bool = False) -> dict[str, Any]:
        one = record(planned=planned(id=OperationId(name)), outcome=None)
        found = whole(one, Batch(first=first, size=size))
        return found if begun else {key: value for key, value in found.items() if key != "status"}

    assert incomplete([made("a", "a", 2), made("b", "a", 2)]) == frozenset()
    assert incomplete([made("a", "a", 3), made("b", "a", 3), made("c", "c", 1)]) == {"a", "b"}
    assert incomplete([made("a", "a", 2, begun=True)]) == frozenset(), "the other has ended, and was dropped since"


def test_what_is_old_goes_but_what_ended_a_worker_on_purpose_stays_until_it_is_back() -> None:
    def ended(name: str, kind: OperationKind, worker: str, at: float, how: Status = Status.SUCCEEDED) -> OperationRecord:
        return record(planned=planned(kind, worker, id=OperationId(name)), outcome=Outcome(status=how, at=at))

    now = KEPT_S + 10_000.0
    records = [
        ended("parked", OperationKind.PARK, "p", 1.0),
        ended("parked-before", OperationKind.PARK, "q", 1.0),
        ended("restored", OperationKind.RESTORE, "q", 2.0),
        ended("not-drained", OperationKind.DRAIN, "r", 1.0, Status.ROLLED_BACK),
        ended("checkpoint", OperationKind.CHECKPOINT, "s", now - ROUTINE_S - 1),
        ended("fresh-checkpoint", OperationKind.CHECKPOINT, "s", now - ROUTINE_S + 1),
        ended("failed-checkpoint", OperationKind.CHECKPOINT, "s", now - ROUTINE_S - 1, Status.FAILED),
        ended("moved", OperationKind.MOVE, "t", now - KEPT_S + 1),
    ]
    assert set(outdated(records, now)) == {"parked-before", "restored", "not-drained", "checkpoint"}


def test_times_survive_to_the_microsecond() -> None:
    assert stamp(0.5) == "1970-01-01T00:00:00.500000Z"
    assert seconds(stamp(1_800_000_000.123456)) == pytest.approx(1_800_000_000.123456, abs=1e-6)
