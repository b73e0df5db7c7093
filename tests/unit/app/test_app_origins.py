"""Records of operations say the commit and the place of the policy that they came from, also after a restart and for an older commit."""

from pathlib import Path

from shunter.app.origins import PLACE, Origins
from shunter.audit.journal import Journal
from shunter.audit.trail import Trail
from shunter.model.errors import Place
from shunter.model.expression import Expression
from shunter.model.ids import Commit, Digest, Epoch
from shunter.model.plan import Plan
from shunter.model.policy import Metadata, Policy, PolicySet, RebalancePolicy, RebalanceSpec, WorkerSelector
from shunter.model.record import Record, RecordKind

A, B = Commit("a" * 40), Commit("b" * 40)


def policies(commit: Commit, line: int) -> PolicySet:
    spec = RebalanceSpec(workers=WorkerSelector(all=True), when=Expression(text="true"))
    policy = Policy(
        document=RebalancePolicy(metadata=Metadata(name="tidy"), spec=spec),
        place=Place(file="policies/tidy.yaml", line=line, column=1),
        blob="",
        commit=commit,
    )
    return PolicySet(commit=commit, digest=Digest(commit), policies=(policy,))


def plan(commit: Commit) -> Plan:
    return Plan(at=0.0, commit=commit, policy_set=Digest(commit), snapshot=Digest("s"), operations=())


def step(of: Plan, policy: object = "tidy") -> Record:
    return Record(at=1.0, kind=RecordKind.STEP, subject="w", what="move: frozen", epoch=Epoch(1), plan=of.digest, body={"policy": policy})


def test_a_step_says_the_commit_of_its_plan_and_where_its_policy_stood_then() -> None:
    origins = Origins()
    for commit, line in ((A, 3), (B, 7)):
        origins.learn(policies(commit, line))
        origins.planned(plan(commit))
    told = origins.told(step(plan(A)))
    assert (told.commit, told.body) == (A, {"policy": "tidy", PLACE: "policies/tidy.yaml:3:1"}), "not where it stands now"
    assert origins.told(step(plan(B))).body[PLACE] == "policies/tidy.yaml:7:1"


def test_what_is_not_known_is_left_out_and_what_was_said_stays() -> None:
    origins = Origins()
    assert origins.told(step(plan(A))) == step(plan(A))
    origins.planned(plan(A))
    assert origins.told(step(plan(A))).commit == A
    assert PLACE not in origins.told(step(plan(A))).body
    origins.learn(policies(A, 3))
    assert PLACE not in origins.told(step(plan(A), policy="gone")).body
    assert PLACE not in origins.told(step(plan(A), policy=["odd"])).body
    engine = Record(at=1.0, kind=RecordKind.ENGINE, subject="engine", what="leads", epoch=Epoch(1))
    assert origins.told(engine) == engine


def test_an_engine_that_goes_on_with_what_another_began_knows_the_commit_from_its_records(tmp_path: Path) -> None:
    with Journal(tmp_path / "audit.db") as journal:
        first = Origins()
        trail = Trail(journal, lambda: 1.0, first.told)
        first.planned(plan(A))
        trail.add([Record(at=1.0, kind=RecordKind.PLAN, subject="plan", what="1 move", epoch=Epoch(1), plan=plan(A).digest, commit=A)])
        next_one = Origins.of(journal)
        Trail(journal, lambda: 2.0, next_one.told).add([step(plan(A))])
        assert [sealed.record.commit for sealed in journal.list(kind=RecordKind.STEP)] == [A]


def test_only_so_many_plans_and_sets_are_remembered() -> None:
    origins = Origins()
    for number in range(20):
        origins.learn(policies(Commit(f"{number:040}"), number + 1))
        origins.planned(plan(Commit(f"{number:040}")))
    assert origins.told(step(plan(Commit(f"{0:040}")))).body == {"policy": "tidy"}
    assert origins.told(step(plan(Commit(f"{19:040}")))).body[PLACE] == "policies/tidy.yaml:20:1"
