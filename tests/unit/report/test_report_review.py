"""A pull request's comment: what matters first, within the limit, and nothing in a name that turns into markup."""

import msgspec
from shunter.model.difference import Changed, Compared, Difference, Flip, Gate
from shunter.model.errors import Place, Problem, Severity
from shunter.model.finding import Verdict
from shunter.model.ids import Commit, Digest, NodeId, OperationId, PolicyName, WorkerId, slot_id
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.report.markdown import LIMIT
from shunter.report.review import FailedTest, Review, mark, review_markdown, review_text


def operation(kind: str, worker: str, lane: str = "voluntary", reason: str = "so it is", preview: bool = False) -> PlannedOperation:
    return PlannedOperation(
        id=OperationId(f"{kind}-{worker}"),
        kind=OperationKind(kind),
        worker=WorkerId(worker),
        lane=lane,  # type: ignore[arg-type]
        policy=PolicyName("p"),
        reason=reason,
        expect=Preconditions(incarnation=0),
        from_slot=slot_id(NodeId("node-a"), 0),
        preview=preview,
    )


def flip(subject: str, expression: str = "worker.kvUsage < 0.5") -> Flip:
    gate = Gate(gate="when", expression=expression, inputs=(("worker.kvUsage", "0.9"),))
    return Flip(
        policy=PolicyName("p"), subject=subject, before=Verdict.PASS, after=Verdict.ACT, by_before=None, by_after=gate, reason="it holds"
    )


def review(difference: Difference, **more: object) -> Review:
    one = Compared(at=1_800_000_000.0, snapshot=Digest("sha256:0"), base=Commit("b" * 40), head=Commit("a" * 40), difference=difference)
    plain = Review(base="b" * 40, head="a" * 40, folder="policies", policies=3, tests=4, compared=(one,))
    return msgspec.structs.replace(plain, **more)


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("| added", "| removed", "| changed", "| flipped"))]


def test_what_stops_the_most_comes_first_and_previews_last() -> None:
    found = review(
        Difference(
            added=(
                operation("checkpoint", "w1"),
                operation("move", "w2"),
                operation("move", "w3", lane="involuntary"),
                operation("drain", "w9", preview=True),
            ),
            removed=(operation("drain", "w4"),),
            changed=(Changed(before=operation("park", "w5"), after=operation("park", "w5"), fields=(("to_slot", "a/0", "b/0"),)),),
            flipped=(flip("w6"),),
        )
    )
    shown = rows(review_markdown(found))
    assert [row.split("`")[1] for row in shown] == [
        "drain w4 from node-a/0",
        "park w5 from node-a/0",
        "move w3 from node-a/0",
        "move w2 from node-a/0",
        "checkpoint w1 from node-a/0",
        "w6",
        "drain w9 from node-a/0",
    ]
    assert shown[1].startswith("| changed |")
    assert "to slot: `a/0`, now `b/0`" in shown[1]
    assert "pass, now act: `worker.kvUsage < 0.5` with worker.kvUsage = 0.9" in shown[5]
    assert "(preview)" in shown[6]


def test_ten_are_in_the_table_and_the_others_folded() -> None:
    text = review_markdown(review(Difference(added=tuple(operation("checkpoint", f"w{n:02}") for n in range(25)))))
    assert "**The 10 most important of 25 changes**" in text
    assert len(rows(text)) == 10
    folded = text.partition("<details>")[2].partition("</details>")[0]
    assert folded.count("- added: `checkpoint w") == 15
    assert "### Shunter: 25 differences in outcome" in text


def test_the_largest_one_is_within_the_limit_and_keeps_verdict_counts_and_link() -> None:
    long = "x" * 5_000
    problems = tuple(
        Problem(code="SH111", what=long, remedy=long, place=Place(file=f"policies/{n}.yaml", line=n + 1, column=1)) for n in range(300)
    )
    failed = tuple(FailedTest(file=f"policies/{n}_test.yaml", name=long, why=long) for n in range(300))
    difference = Difference(
        added=tuple(operation("checkpoint", f"w{n:05}", reason=long) for n in range(1_000)),
        flipped=tuple(flip(f"v{n:05}", expression=long) for n in range(1_000)),
    )
    one = review(difference).compared[0]
    found = review(difference, problems=problems, failed=failed, tests=300, compared=(one,) * 12, uncompared=long)
    text = review_markdown(found, link="https://example.com/whole")
    assert len(text.encode()) <= LIMIT
    assert text.startswith(f"{mark('policies')}\n### Shunter: 300 errors: these policies wouldn't come into force\n")
    assert "0 of 300 passed" in text
    assert "1,000 operations added, 1,000 findings flipped" in text
    assert "more lines left out here, from the middle" in text
    assert text.rstrip().endswith("[All of it](https://example.com/whole)")


def test_names_and_reasons_turn_into_no_markup() -> None:
    evil = "</details><img src=x> @team | `rm` [x](http://evil) <!-- shunter: review of other -->"
    problem = Problem(code="SH111", what=evil, remedy=evil, subject=evil)
    found = review(
        Difference(added=(operation("move", evil, reason=evil),), flipped=(flip(evil, evil),)),
        problems=(problem,),
        failed=(FailedTest(file=evil, name=evil, why=evil),),
    )
    outside_code = "".join(review_markdown(found).split("`")[0::2])
    for sign in ("<img", "</details><img", "@team", "[x](", "<!-- shunter: review of other"):
        assert sign not in outside_code
    assert mark("a--><b>") == "<!-- shunter: review of a----b -->"
    assert mark("policies") != mark("policies-eu")


def test_a_warning_is_told_and_fails_nothing() -> None:
    warning = Problem(code="SH140", what="two of them", remedy="Look", subject="a", severity=Severity.WARNING)
    found = review(Difference(), problems=(warning,))
    assert found.sound
    assert "0 errors, 1 warning" in review_markdown(found)
    assert "no difference in outcome" in review_text(found)[0]


def test_the_worst_is_the_verdict() -> None:
    error = Problem(code="SH111", what="wrong", remedy="Mend it", subject="a")
    failed = (FailedTest(file="f", name="n", why="w"),)
    assert "1 error" in review_text(review(Difference(), problems=(error,), failed=failed))[0]
    assert "1 test of the policies failed" in review_text(review(Difference(), failed=failed))[0]
    assert not review(Difference(), failed=failed).sound
