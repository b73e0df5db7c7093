"""An operation's account: why, what, each step, how it ended; with whatever of it there is."""

from typing import Any

import pytest
from rich.console import Console
from shunter.model.ids import Commit, Epoch
from shunter.model.operation import Status, Step
from shunter.model.plan import OperationKind
from shunter.model.record import Record, RecordKind, Sealed
from shunter.report import account
from shunter.report.account import Because, account_text

NOW = 1_800_000_000.0


def sealed(number: int, kind: RecordKind, body: dict[str, object], subject: str = "decode-0", **more: Any) -> Sealed:
    r = Record(at=NOW + number, kind=kind, subject=subject, what="x", epoch=Epoch(1), body=body, **more)
    return Sealed(seq=number, previous="0" * 64, hash="1" * 64, record=r)


def body(step: str, **more: object) -> dict[str, object]:
    whole: dict[str, object] = {
        "step": step, "kind": "move", "reason": "node-a is preempted", "policy": "save", "lane": "involuntary",
        "from": "node-a/0", "to": "node-b/0", "notice": "n",
    }  # fmt: skip
    return whole | more


def told(records: list[Sealed], because: Because | None = None) -> str:
    console = Console(width=400, highlight=False)
    with console.capture() as capture:
        account_text("move-1", records, because or Because(), console)
    return capture.get()


def outcome(status: str, **more: object) -> dict[str, object]:
    return {"status": status, "code": "", "reason": "", "measured": {}, **more}


def test_a_move_with_all_that_led_to_it() -> None:
    notice = sealed(1, RecordKind.NOTICE, {"notice": {"id": "n", "kind": "preemption", "deadline": NOW + 120}}, subject="node-a").record
    finding = sealed(2, RecordKind.FINDING, {"policy": "save", "reason": "it moves to node-b/0"}, commit=Commit("c" * 40)).record
    plan = sealed(3, RecordKind.PLAN, {"operations": []})
    text = told(
        [
            sealed(4, RecordKind.INTENT, body("intended", policy_at="policies/save.yaml:3:1")),
            sealed(5, RecordKind.STEP, body("frozen")),
            sealed(
                9,
                RecordKind.OUTCOME,
                body("unfenced", outcome=outcome("succeeded", measured={"stopped": 4.2, "bytes": 40 * 10**9, "copied": 39 * 10**9})),
            ),
        ],
        Because(notice=notice, finding=finding, plan=plan),
    )
    assert "node-a was to go (preemption, by 08:02:00 UTC), as was heard at 08:00:01 UTC." in text
    assert "The policy save (policies/save.yaml:3:1), as of commit cccccccccccc, said that decode-0 should go on node-b/0" in text
    assert "It had found: it moves to node-b/0." in text
    assert "It couldn't wait" in text
    assert "shunter audit replay 3" in text
    assert "08:00:05  it was stopped" in text
    assert "At 08:00:09, 5.00 s after the decision, it was done." in text
    assert "stood still for 4.20 s" in text
    assert "Its image had 40GB, of which 39GB went ahead while it ran." in text
    assert "Records 4, 5, 9 say so" in text


def test_one_that_went_wrong_says_how_and_why() -> None:
    wrong = body("rolling-back", problem={"code": "SH712", "what": "no room on node-b"})
    ended = body("rolling-back", outcome=outcome("rolled-back", code="SH712", reason="no room on node-b"))
    text = told([sealed(4, RecordKind.INTENT, body("intended")), sealed(5, RecordKind.STEP, wrong), sealed(6, RecordKind.OUTCOME, ended)])
    assert "brought back to where it was (no room on node-b)" in text
    assert "it failed, and the worker ran on where it was: SH712 no room on node-b." in text


def test_one_that_has_no_end_yet_and_little_else() -> None:
    text = told([sealed(4, RecordKind.INTENT, {}, pretend=True)])
    assert text.startswith("[pretend] What became of move-1\n")
    assert "has no end of it" in text


def test_every_step_kind_and_end_has_its_words() -> None:
    assert set(account._STEPS) == {step.value for step in Step}
    assert set(account._WANTED) == {kind.value for kind in OperationKind}
    assert set(account._ENDS) == set(Status)


@pytest.mark.parametrize("kind", [k.value for k in OperationKind])
def test_nothing_is_left_to_fill_in(kind: str) -> None:
    text = told([sealed(4, RecordKind.INTENT, body("intended", kind=kind, **{"from": None, "to": None}))])
    assert "{" not in text
    assert "None" not in text
