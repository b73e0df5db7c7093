import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from report_world import (
    CHECKPOINT,
    DONE,
    EVERYTHING,
    FAILED,
    FINDINGS,
    FLEET,
    LATE,
    MOVE,
    NOTICES,
    NOW,
    SHOWN,
    SNAPSHOT,
    evaluation,
    record,
)
from rich.console import Console
from shunter.model.errors import Problem
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import Commit, Digest, Epoch, ImageId, NodeId, NoticeId, PolicyName, SlotId, WorkerId
from shunter.model.operation import Outcome, Outstanding, Status, Step
from shunter.model.record import Record, RecordKind, Sealed
from shunter.model.snapshot import Notice, NoticeKind, Snapshot
from shunter.report.json import plan_json
from shunter.report.notices import notices_document, notices_text
from shunter.report.text import audit_text, operation_line, plan_text, record_text, status_text, summary_table

GOLDEN = Path(__file__).parents[2] / "golden"


def printed(write: Callable[[Console], None], width: int = 100) -> str:
    out = io.StringIO()
    write(Console(file=out, width=width, color_system=None, force_terminal=False))
    return out.getvalue()


def plan(operations=EVERYTHING, snapshot: Snapshot = SNAPSHOT, width: int = 100) -> str:
    return printed(lambda console: plan_text(operations, snapshot, console), width)


def same_as_golden(name: str, text: str) -> None:
    """Compare with tests/golden; SHUNTER_GOLDEN=write writes it instead, to be read before it is committed."""
    path = GOLDEN / name
    if os.environ.get("SHUNTER_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text()


SEALED = tuple(
    Sealed(
        seq=n,
        previous="0" * 64,
        hash=f"{n}" * 64,
        record=Record(
            at=NOW + n, kind=kind, subject="decode-0", what=what, epoch=Epoch(3), commit=Commit("c" * 40), plan=Digest("sha256:x"),
            operation="move-decode-0", pretend=n == 2, body={"operation_kind": "move", "measured": {"stopped": 1.25}},
        ),
    )
    for n, kind, what in (
        (1, RecordKind.FINDING, "save: act: node-a is preempted in 120 s; decode-0 holds 3 sessions and so on at some length"),
        (2, RecordKind.OUTCOME, "succeeded"),
    )
)  # fmt: skip


TRIED = msgspec.structs.replace(SNAPSHOT.fleet.nodes[0], sources=("aws", "file"), canaries={"aws": NOW - 3000, "old": NOW - 9})
MORE = msgspec.structs.replace(
    SNAPSHOT,
    fleet=msgspec.structs.replace(SNAPSHOT.fleet, nodes=(TRIED, *SNAPSHOT.fleet.nodes[1:])),
    notices=(
        *(msgspec.structs.replace(n, source="aws", detail="spot: terminate at 2027-01-15T08:02:00Z") for n in NOTICES),
        Notice(
            id=NoticeId("gpu"), kind=NoticeKind.GPU_FAILING, node=NodeId("node-b"), seen_at=NOW - 60, source="gpu",
            detail="XID 48 on 0000:4f:00", slot=SlotId("node-b/0"),
        ),
        Notice(id=NoticeId("m"), kind=NoticeKind.MAINTENANCE, node=NodeId("node-c"), seen_at=NOW - 60),
    ),
)  # fmt: skip
NOTICED = evaluation(
    msgspec.structs.replace(MOVE, notice=NoticeId("n1")),
    findings=(
        Finding(
            policy=PolicyName("save"), subject="decode-1", verdict=Verdict.HOLD, lane="involuntary", since=NOW - 2,
            reason="no node has a free slot, and it can't be parked", gate="otherwise",
        ),
    ),
)  # fmt: skip


ALONE = {NoticeId("n1"): {WorkerId("decode-0"): "it is taken out of the router's sight, and an image of it goes to node-b"}}


def test_notices_for_programs_say_the_same():
    nodes = notices_document(NOTICED, MORE, ALONE)["nodes"]
    (first,) = nodes[0]["notices"]  # type: ignore[index]
    assert ([o.worker for o in first["operations"]], [f.subject for f in first["held"]]) == (["decode-0"], ["decode-1"])
    assert first["alone"] == ALONE["n1"]
    assert nodes[0]["canaries"] == {"aws": NOW - 3000, "old": NOW - 9}  # type: ignore[index]
    assert [(n["id"], n["sources"], [p.code for p in n["problems"]]) for n in nodes] == [  # type: ignore[attr-defined]
        ("node-a", ("aws", "file"), ["SH645"]),
        ("node-b", (), []),
        ("node-c", (), []),
    ]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("plan.txt", lambda c: plan_text(EVERYTHING, SNAPSHOT, c)),
        ("plan-nothing.txt", lambda c: plan_text(evaluation(findings=FINDINGS[-1:]), SNAPSHOT, c)),
        ("summary.txt", lambda c: c.print(summary_table(EVERYTHING))),
        (
            "status.txt",
            lambda c: status_text(
                FLEET, (record(CHECKPOINT, (Step.DUMPED, 4.0)), DONE, FAILED), {"fleet": 1.25, "audit": None}, c, now=NOW + 5, epoch=3,
                commit="c" * 40, notices=NOTICES,
            ),
        ),
        ("audit.txt", lambda c: audit_text(SEALED, c)),
        ("record.txt", lambda c: record_text(SEALED[1], c)),
        ("notices.txt", lambda c: notices_text(NOTICED, MORE, c, ALONE)),
    ],
)  # fmt: skip
def test_what_people_read(name: str, write: Callable[[Console], None]):
    same_as_golden(name, printed(write))


def test_a_decision_says_what_it_was_before_since_when_and_for_how_many_ticks():
    before = {"verdict": "hold", "gate": "window", "reason": "closed", "since": SEALED[0].record.at - 61.0, "ticks": 61}

    def line(**body: object) -> str:
        record = msgspec.structs.replace(SEALED[0].record, what="x", body=body)
        shown = printed(lambda c: audit_text([msgspec.structs.replace(SEALED[0], record=record)], c))
        return " ".join(shown.split())

    assert line(previous=before).endswith("x (before: hold since 07:59:00, 61 ticks)")
    assert line(previous={**before, "since": before["since"] - 86400, "ticks": 1}).endswith(
        "(before: hold since 2027-01-14 07:59:00 UTC, 1 tick)"
    )  # type: ignore[operator]
    assert line(previous={**before, "verdict": "pass"}).endswith(": x")
    assert line(previous=None).endswith(": x")
    assert line(spooled={"at": 1.0, "written": SEALED[0].record.at + 9}).endswith("x (written 08:00:10)")


def test_every_operation_says_what_why_and_by_whom():
    text = plan()
    for operation in (MOVE, LATE, CHECKPOINT, SHOWN):
        assert f"{operation.kind.value} {operation.worker}" in text
        assert operation.reason in text
    assert "from node-a/0 to node-b/1" in text
    assert "about 32s of the 2m left" in text
    assert "10s too late" in text


def test_nothing_to_do_is_said_in_a_line_of_its_own():
    assert "Nothing is to be done." in plan(evaluation(findings=FINDINGS)).splitlines()
    assert "Nothing is to be done." not in plan()


def test_what_is_only_shown_and_what_only_pretends_is_marked_on_its_line():
    lines = [line for line in plan().splitlines() if "  [" in line or "move decode-0" in line]
    assert [line.split("  ")[-1].split(" prefill")[0].split(" decode")[0] for line in lines] == [
        "move",
        "[pretend] park",
        "[pretend] checkpoint",
        "[preview] [pretend] restore",
    ]
    assert "nothing really moves on node-c" in plan()
    real = Snapshot(at=NOW, fleet=msgspec.structs.replace(FLEET, nodes=FLEET.nodes[:2]))
    assert "pretend" not in plan(snapshot=real)


@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_lines_keep_to_the_width_and_have_no_blanks_at_their_end(width: int):
    lines = plan(width=width).splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) <= width
    assert "decode-0" in "".join(lines)


def test_a_terminal_obeys_nothing_that_others_wrote():
    evil = msgspec.structs.replace(MOVE, reason="\x1b]0;owned\x07[bold red]\nover", worker=WorkerId("w\x1b[2J"))
    text = plan(evaluation(evil))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold red] over" in text, "markup is text"
    assert "\x1b" not in operation_line(record(evil))


def test_of_many_findings_the_first_are_shown_and_the_rest_counted():
    many = tuple(msgspec.structs.replace(FINDINGS[1], subject=f"graph-{n:03}") for n in range(1200))
    text = plan(evaluation(findings=many))
    assert "graph-049" in text
    assert "graph-050" not in text
    assert "and 1,150 more" in text


def test_a_line_for_each_step():
    assert operation_line(record(MOVE, (Step.FROZEN, 1.0))) == "08:00:01.000  move decode-0 from node-a/0 to node-b/1: frozen (+1.00 s)"
    assert operation_line(record(MOVE)) == "08:00:00.000  move decode-0 from node-a/0 to node-b/1: intended (+0.00 s)"
    unknown = msgspec.structs.replace(
        record(MOVE, (Step.COMMITTING, 1.0)),
        outstanding=Outstanding(since=1.5, problem=Problem(code="SH514", what="node-a doesn't answer", remedy="Wait")),
    )
    assert operation_line(unknown).endswith(
        "node-b/1: unknown after committing, the agents are asked: SH514 node-a doesn't answer (+1.00 s)"
    )
    waiting = msgspec.structs.replace(record(msgspec.structs.replace(MOVE, after=("park-1",))), waits=True)
    assert operation_line(waiting).endswith("move decode-0 from node-a/0 to node-b/1: waits for park-1 (+0.00 s)")
    assert operation_line(DONE).endswith(": done, stood still 1.25 s, 3GB (+3.25 s)")
    assert "rolled back: the worker runs on where it was, SH711 the dump was refused after fenced" in operation_line(FAILED)
    lost = record(MOVE, outcome=Outcome(status=Status.FAILED, at=NOW, code="SH530", reason="no", image=ImageId("img-9")))
    assert "its image img-9 remains" in operation_line(lost)
    assert operation_line(record(SHOWN), pretend=True).startswith("08:00:00.000  [preview] [pretend] restore")


def test_json_is_strict_and_complete():
    def no_constant(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    document = json.loads(plan_json(EVERYTHING, SNAPSHOT), parse_constant=no_constant)
    assert list(document) == sorted(document)
    assert document["digest"] == EVERYTHING.plan.digest
    assert [(o["kind"], o["worker"], o["lane"], o["preview"], o["pretend"]) for o in document["operations"]] == [
        ("move", "decode-0", "involuntary", False, False),
        ("park", "decode-1", "involuntary", False, True),
        ("checkpoint", "decode-2", "voluntary", False, True),
        ("restore", "prefill-0", "voluntary", True, True),
    ]
    assert document["operations"][0]["estimate"]["bytes"] == 10**10
    assert [f["verdict"] for f in document["findings"]] == ["act", "hold", "inconclusive", "pass"]
    inputs = document["findings"][2]["evidence"][0]["inputs"]
    assert [i["sample"]["is"] for i in inputs] == ["stale", "known", "missing"]
    assert plan_json(EVERYTHING, SNAPSHOT) == plan_json(EVERYTHING, SNAPSHOT)


def test_json_has_no_nan():
    broken = msgspec.structs.replace(FINDINGS[1], since=float("nan"), verdict=Verdict.HOLD)
    data = plan_json(evaluation(findings=(broken,)))
    assert json.loads(data)["findings"][0]["since"] == {"notFinite": "nan"}
