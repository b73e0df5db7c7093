"""Golden images in decisions: used where a policy asks for it and one fits, by name, and natively with the reason where none does."""

import msgspec
import pytest
from decide_world import NOW, decide, ended, finding, operation, ops, reassignment
from shunter.decide.words import clock
from shunter.model.finding import Verdict
from shunter.model.ids import PoolId
from shunter.model.operation import EngineState, Outcome, Status
from shunter.model.plan import OperationKind
from shunter.model.sample import Known, Missing
from test_decide_numbers import AFTER, CALM, P0, P9, REVERT, D, numbers, shifted, world

GOLD = Known(value=1, unit="1", at=NOW, query="PodSnapshot ns/gold-2", labels={"name": "gold-2"})
PARK = OperationKind.PARK


def pools(golden=GOLD, *counts):
    found = numbers(*counts)
    if golden is not None:
        found["tiny/prefill"]["golden"] = golden
    return found


def tried(code, *, at=NOW - 1200, golden="gold-2", pool="tiny/prefill"):
    one = operation(PARK, "decode-9", policy="another", cause="shift:another:1", hands_to=PoolId(pool), golden=golden)
    record = ended(one, Status.SUCCEEDED, at=at, began=at - 60)
    return EngineState(recent=(msgspec.structs.replace(record, outcome=Outcome(status=Status.SUCCEEDED, at=at, code=code)),))


@pytest.mark.parametrize("sessions", ["park", "drain"])
def test_where_the_policy_asks_for_it_the_golden_image_is_named_in_the_plan_and_in_what_is_found(sessions):
    result = decide([reassignment(sessions=sessions, golden_images="use")], world(pools()))
    planned = ops(result)["decode-0"]
    assert (planned.golden, planned.hands_to) == ("gold-2", "tiny/prefill")
    assert planned.reason.endswith("; a prefill worker is started for it from golden image gold-2")
    assert "makes way for a prefill worker that is started from golden image gold-2" in finding(result, "tiny").reason
    assert finding(result, "decode-0").verdict is Verdict.ACT


def test_a_policy_that_says_nothing_of_it_decides_as_if_there_were_none():
    silent, without = (decide([reassignment(sessions="park")], world(pools(golden))) for golden in (GOLD, None))
    assert [msgspec.structs.replace(o) for o in silent.plan.operations] == list(without.plan.operations)
    assert ops(silent)["decode-0"].golden == ""
    assert finding(silent, "tiny").reason == finding(without, "tiny").reason


@pytest.mark.parametrize(
    ("golden", "said"),
    [
        (Missing(reason="gold-1 isn't ready"), "natively, as tiny/prefill has no golden image to start from: gold-1 isn't ready"),
        (None, "natively, as tiny/prefill has no golden image to start from"),
    ],
)
def test_where_none_fits_one_is_started_natively_and_why_is_said(golden, said):
    result = decide([reassignment(sessions="park", golden_images="use")], world(pools(golden)))
    planned = ops(result)["decode-0"]
    assert (planned.golden, planned.hands_to) == ("", "tiny/prefill")
    assert planned.reason.endswith(said)
    assert said in finding(result, "tiny").reason


@pytest.mark.parametrize("code", ["SH571", "SH572", "SH573"])
def test_one_that_was_tried_in_vain_isnt_tried_again_within_the_hour_by_any_policy(code):
    result = decide([reassignment(sessions="park", golden_images="use")], world(pools()), tried(code))
    planned = ops(result)["decode-0"]
    assert (planned.golden, planned.hands_to) == ("", "tiny/prefill")
    assert f"golden image gold-2 failed at {clock(NOW - 1200)} ({code}) and isn't tried again within the hour" in planned.reason


@pytest.mark.parametrize("state", [tried("SH570"), tried(""), tried("SH571", golden="gold-1"), tried("SH571", pool="other/prefill")])
def test_what_didnt_fail_or_is_another_is_tried(state):
    result = decide([reassignment(sessions="park", golden_images="use")], world(pools()), state)
    assert ops(result)["decode-0"].golden == "gold-2"


def test_what_was_started_so_isnt_what_is_given_back_while_there_is_another():
    """Agents can't park it: its process isn't the one that they find."""
    gold = msgspec.structs.replace(P0, pinned="Dynamo Snapshot has restored it")
    result = decide([REVERT], world(numbers(2, 2), nodes=AFTER, workers=(*D[1:], gold, P9), samples=CALM), shifted(OperationKind.DRAIN))
    assert [o.worker for o in result.plan.operations] == ["prefill-9"]
    both = (gold, msgspec.structs.replace(P9, pinned="Dynamo Snapshot has restored it"))
    result = decide([REVERT], world(numbers(2, 2), nodes=AFTER, workers=(*D[1:], *both), samples=CALM), shifted(OperationKind.DRAIN))
    assert not result.plan.operations
    assert "Dynamo Snapshot has restored it" in finding(result, "tiny").reason


def test_a_decode_worker_never_starts_so():
    """Of what it holds there is nothing in a golden image."""
    both = pools(GOLD, 2, 2)
    both["tiny/decode"]["golden"] = GOLD
    policy = msgspec.structs.replace(
        REVERT,
        document=msgspec.structs.replace(REVERT.document, spec=msgspec.structs.replace(REVERT.document.spec, golden_images="use")),
    )
    result = decide([policy], world(both, nodes=AFTER, workers=(*D[1:], P0, P9), samples=CALM), shifted(OperationKind.DRAIN))
    (planned,) = result.plan.operations
    assert (planned.hands_to, planned.golden) == ("tiny/decode", "")
