"""A budget that can't be read frees nobody: through the loader, whatever else the commit did to its file."""

import msgspec
import pytest
from decide_world import NOW, node, snap, worker
from shunter.decide.evaluate import evaluate
from shunter.decide.explain import explain
from shunter.lang.cel import CelRules
from shunter.lang.load import load, zeros
from shunter.model.finding import Verdict
from shunter.model.ids import Commit, PolicyName
from shunter.model.operation import EngineState
from shunter.model.policy import PolicySet
from shunter.model.source import Revision, SourceFile

STEP = """\
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: tidy}
spec:
  workers: {all: true}
  when: node.id == "a"
  for: 0s
  step: 2
"""
CALM = """\
apiVersion: shunter.dev/v1alpha1
kind: DisruptionBudget
metadata: {name: calm}
spec:
  workers: {role: decode}
  maxConcurrent: 5
"""
TYPO = CALM.replace("maxConcurrent", "maxConcurent")
FLEET = snap([node("a", ["decode-0", "prefill-0"]), node("b", [None, None])], [worker("decode-0", "a/0"), worker("prefill-0", "a/1")])


def read(commit: str, previous: PolicySet | None = None, **files: str) -> PolicySet:
    given = tuple(SourceFile(path=f"{name}.yaml", blob=f"{hash(text)}", data=text.encode()) for name, text in sorted(files.items()))
    return load(Revision(commit=Commit(commit), committed_at=0.0, files=given), previous)


def moved(policies: PolicySet) -> set[str]:
    """Who moves, of the two that ought to: by the default of one in each pool both may, so that who doesn't is held by a budget."""
    return {str(o.worker) for o in evaluate(policies, [FLEET], EngineState(), NOW, CelRules()).plan.operations}


def test_without_a_budget_both_move():
    assert moved(read("one", tidy=STEP)) == {"decode-0", "prefill-0"}


def test_a_new_budget_with_a_typo_counts_as_zero_for_its_workers():
    policies = read("one", tidy=STEP, limits=TYPO)
    assert moved(policies) == {"prefill-0"}
    (wrong, zero) = policies.problems
    assert (wrong.code, zero.code, str(zero.place)) == ("SH111", "SH129", "limits.yaml:3:18")
    assert "counts as zero for workers of role decode" in zero.what
    evaluation = evaluate(policies, [FLEET], EngineState(), NOW, CelRules())
    (held,) = [f for f in evaluation.findings if f.subject == "decode-0"]
    assert held.verdict is Verdict.HOLD
    assert "budget calm: it can't be read, so it counts as zero (limits.yaml:6:3: SH111" in held.reason
    told = {e.policy: e for e in explain(evaluation, policies, FLEET, held.subject)}
    assert (told[PolicyName("calm")].verdict, told[PolicyName("calm")].gate) == (Verdict.HOLD, "file")
    assert "limits.yaml:6:3: SH111" in told[PolicyName("calm")].reason


def test_renamed_in_the_same_commit_its_last_good_version_stays_by_its_name():
    first = read("one", tidy=STEP, limits=CALM)
    second = read("two", first, tidy=STEP, renamed=TYPO)
    assert [(p.name, p.place.file, p.commit, p.refused) for p in second.policies if p.name == "calm"] == [
        ("calm", "limits.yaml", "one", None)
    ]
    assert moved(second) == {"decode-0", "prefill-0"}
    assert [p.code for p in second.problems] == ["SH111"]
    third = read("three", second, tidy=STEP, renamed=TYPO)
    assert third.policies[0] == second.policies[0], "however often it is read"
    assert [p.name for p in read("four", third, tidy=STEP).policies] == ["tidy"], "taken away, it is gone"


def test_renamed_inside_and_out_it_counts_as_zero_until_it_is_mended():
    first = read("one", tidy=STEP, limits=CALM)
    second = read("two", first, tidy=STEP, renamed=TYPO.replace("calm", "calmer"))
    assert moved(second) == {"prefill-0"}
    third = read("three", second, tidy=STEP, renamed=TYPO.replace("calm", "calmer"))
    assert third.policies == tuple(msgspec.structs.replace(p, commit="three") for p in second.policies), "it is no last good version"
    assert moved(read("four", third, tidy=STEP, renamed=CALM.replace("calm", "calmer"))) == {"decode-0", "prefill-0"}


@pytest.mark.parametrize(
    ("broken", "who"),
    [
        (CALM.replace("role: decode", "rol: decode"), set()),
        (CALM.replace("role: decode", "role: decode, where: worker.nod == 1"), {"prefill-0"}),
        (CALM.replace("role: decode", "where: worker.id == 'prefill-0'").replace("5", "five"), {"decode-0"}),
        (CALM.replace("5", "5\n  operations: [drain, park]\n  per: zones"), {"decode-0", "prefill-0"}),
        (CALM.replace("5", "5\n  operations: [mov]"), {"prefill-0"}),
        (CALM.replace("5", "5\n  mode: preview\n  per: zones"), {"decode-0", "prefill-0"}),
        (CALM.replace("DisruptionBudget", "DisruptionBudgt"), {"prefill-0"}),
        (CALM.replace("v1alpha1", "v1"), {"prefill-0"}),
        (CALM.replace("{name: calm}", "{name: Calm!}"), {"prefill-0"}),
        (CALM.replace("  maxConcurrent: 5", "  maxConcurrent: [5"), set()),
        (CALM.replace("name: calm", "name: tidy"), {"prefill-0"}),
        (CALM + "---\n" + STEP.replace("tidy", "other").replace("when:", "whn:"), {"prefill-0"}),
    ],
)
def test_it_holds_its_own_workers_where_they_can_be_told_and_else_all(broken, who):
    assert moved(read("one", tidy=STEP, z=broken)) == who


def test_a_second_budget_in_a_file_that_has_a_good_version_counts_as_zero_too():
    first = read("one", tidy=STEP, limits=CALM.replace("decode", "prefill"))
    more = CALM.replace("decode", "prefill") + "---\n" + TYPO.replace("calm", "more")
    second = read("two", first, tidy=STEP, limits=more)
    assert moved(second) == {"prefill-0"}
    assert moved(read("two", first, tidy=STEP, limits=CALM + "  windows: [")) == {"decode-0", "prefill-0"}, "its good version is in force"


def test_the_digest_tells_a_stand_in_from_none():
    without, zero = read("one", tidy=STEP), read("one", tidy=STEP, limits=TYPO)
    assert without.digest != zero.digest
    (stand_in,) = [p for p in zero.policies if p.refused]
    alone = read("other", limits=TYPO).policies
    assert [(p.document, p.blob, p.refused) for p in alone] == [(stand_in.document, stand_in.blob, stand_in.refused)], (
        "it can be made again"
    )


def test_whoever_checks_the_file_is_told():
    (told,) = zeros("limits.yaml", TYPO.encode())
    assert (told.code, told.excerpt) == ("SH129", "metadata: {name: calm}")
    assert "earlier version" in told.remedy
    assert zeros("limits.yaml", CALM.encode()) == ()
