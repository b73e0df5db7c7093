"""A newer commit takes back what its policies don't want any more, and nothing else."""

from collections.abc import Sequence

from shunter.app.withdrawn import withdrawn
from shunter.model.errors import Place, Problem
from shunter.model.expression import Expression
from shunter.model.finding import Lane
from shunter.model.ids import Commit, Digest, Epoch, Incarnation, OperationId, PolicyName, WorkerId
from shunter.model.operation import OperationRecord
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import Metadata, Mode, Policy, PolicySet, RebalancePolicy, RebalanceSpec, WorkerSelector


def policies(commit: str, **modes: Mode) -> PolicySet:
    made = tuple(
        Policy(
            document=RebalancePolicy(
                metadata=Metadata(name=name),
                spec=RebalanceSpec(workers=WorkerSelector(all=True), when=Expression(text="true"), mode=mode),
            ),
            place=Place(file=f"{name}.yaml", line=1, column=1),
            blob="",
            commit=Commit(commit),
        )
        for name, mode in sorted(modes.items())
    )
    return PolicySet(commit=Commit(commit), digest=Digest(commit), policies=made)


def begun(policy: str, lane: Lane = "voluntary", **more: object) -> OperationRecord:
    planned = PlannedOperation(
        id=OperationId(f"move-{policy}"),
        kind=OperationKind.MOVE,
        worker=WorkerId("w"),
        lane=lane,
        policy=PolicyName(policy),
        reason="",
        expect=Preconditions(incarnation=Incarnation(0)),
    )
    return OperationRecord(planned=planned, plan=Digest("p"), epoch=Epoch(1), created_at=0.0, **more)  # type: ignore[arg-type]


def taken_back(active: Sequence[OperationRecord], before: PolicySet | None, after: PolicySet) -> dict[str, str]:
    return {str(operation): why for operation, why in withdrawn(active, before, after)}


BEFORE = policies("a" * 40, tidy="enforce", shown="preview")


def test_one_that_is_gone_or_was_turned_off_takes_back_what_it_began() -> None:
    assert taken_back([begun("tidy")], BEFORE, policies("b" * 40, shown="preview")) == {
        "move-tidy": "commit bbbbbbbbbbbb has no policy tidy"
    }
    for mode in ("preview", "off"):
        after = policies("b" * 40, tidy=mode, shown="preview")  # type: ignore[arg-type]
        assert taken_back([begun("tidy")], BEFORE, after) == {"move-tidy": f"commit bbbbbbbbbbbb has tidy in mode {mode}"}


def test_one_that_is_still_in_force_takes_nothing_back() -> None:
    assert taken_back([begun("tidy")], BEFORE, policies("b" * 40, tidy="enforce")) == {}


def test_what_a_preview_had_applied_goes_on_while_the_policy_is_there() -> None:
    assert taken_back([begun("shown")], BEFORE, policies("b" * 40, shown="preview")) == {}
    assert "move-shown" in taken_back([begun("shown")], BEFORE, policies("b" * 40))


def test_what_is_involuntary_or_given_up_already_goes_its_way() -> None:
    given_up = begun("tidy", cancelled=Problem(code="SH528", what="", remedy=""))
    assert taken_back([begun("tidy", "involuntary"), given_up], BEFORE, policies("b" * 40)) == {}


def test_an_engine_that_has_just_begun_takes_back_only_what_no_policy_stands_for() -> None:
    assert taken_back([begun("tidy"), begun("old")], None, policies("b" * 40, tidy="off")) == {
        "move-old": "commit bbbbbbbbbbbb has no policy old"
    }
