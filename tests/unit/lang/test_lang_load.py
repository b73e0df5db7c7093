"""A set from a revision: quarantine, last good versions, and who keeps a name."""

import pytest
from lang_documents import CHECKPOINT, PREEMPT, REASSIGN
from shunter.lang import load as module
from shunter.lang.load import load
from shunter.model.errors import Problem
from shunter.model.ids import Commit
from shunter.model.source import Revision, SourceFile


def revision(commit: str, problems=(), **files: str) -> Revision:
    listed = tuple(
        SourceFile(path=path.replace("__", "/").replace("_dot_", "."), blob=f"{commit}-{path}-{hash(text)}", data=text.encode())
        for path, text in sorted(files.items())
    )
    return Revision(commit=Commit(commit), committed_at=0.0, files=listed, problems=tuple(problems))


def where(policies):
    return {p.name: (p.place.file, p.commit) for p in policies.policies}


A, B, C = "a_dot_yaml", "b_dot_yaml", "c_dot_yml"
BAD = PREEMPT.replace("reserve: 10s", "reserve: ten")


def test_good_files_give_policies_sorted_by_name_with_their_provenance():
    policies = load(revision("one", **{A: REASSIGN, B: PREEMPT, "sub__c_dot_yml": CHECKPOINT}), None)
    assert [p.name for p in policies.policies] == ["recent-images", "relieve-prefill", "save-sessions"]
    assert policies.problems == ()
    assert where(policies)["recent-images"] == ("sub/c.yml", "one")
    assert policies.policies[0].blob.startswith("one-sub__c")
    assert policies.digest.startswith("sha256:")


def test_tests_and_other_files_are_not_read():
    files = {"a_test_dot_yaml": "{", "README_dot_md": "{", "x_dot_json": "{", B: PREEMPT}
    policies = load(revision("one", **files), None)
    assert (where(policies), policies.problems) == ({"save-sessions": ("b.yaml", "one")}, ())


def test_a_bad_file_keeps_its_last_good_version_and_the_others_move_on():
    first = load(revision("one", **{A: REASSIGN, B: PREEMPT}), None)
    second = load(revision("two", **{A: REASSIGN.replace("60s", "90s"), B: BAD}), first)
    assert where(second) == {"relieve-prefill": ("a.yaml", "two"), "save-sessions": ("b.yaml", "one")}
    assert second.policies[0].document.spec.cooldown == 90
    assert second.policies[1] == first.policies[1]
    (problem,) = second.problems
    assert (problem.code, str(problem.place)) == ("SH116", "b.yaml:10:12")
    third = load(revision("three", **{A: REASSIGN, B: BAD}), second)
    assert where(third)["save-sessions"] == ("b.yaml", "one")
    mended = load(revision("four", **{A: REASSIGN, B: PREEMPT}), third)
    assert where(mended)["save-sessions"] == ("b.yaml", "four")


def test_a_bad_document_refuses_its_whole_file():
    policies = load(revision("one", **{A: REASSIGN + "---\n" + BAD}), None)
    assert policies.policies == ()
    assert len(policies.problems) == 1


def test_without_a_last_good_version_a_bad_file_is_absent():
    policies = load(revision("one", **{A: REASSIGN, B: BAD}), None)
    assert where(policies) == {"relieve-prefill": ("a.yaml", "one")}


def test_a_removed_file_is_removed():
    first = load(revision("one", **{A: REASSIGN, B: PREEMPT}), None)
    assert where(load(revision("two", **{A: REASSIGN}), first)) == {"relieve-prefill": ("a.yaml", "two")}


@pytest.mark.parametrize("named_by", ["subject", "place"])
def test_a_file_that_the_source_refused_to_read_keeps_its_last_good_version(named_by):
    first = load(revision("one", **{A: REASSIGN, B: PREEMPT}), None)
    place = module.Place(file="b.yaml", line=1, column=1) if named_by == "place" else None
    refused = Problem(code="SH210", what="a symlink", remedy="Use a file", subject="b.yaml" if place is None else "", place=place)
    second = load(revision("two", problems=[refused], **{A: REASSIGN}), first)
    assert where(second) == {"relieve-prefill": ("a.yaml", "two"), "save-sessions": ("b.yaml", "one")}
    assert second.problems == (refused,)


def test_a_name_stays_with_the_file_that_had_it():
    first = load(revision("one", **{B: PREEMPT}), None)
    second = load(revision("two", **{A: PREEMPT, B: PREEMPT}), first)
    assert where(second) == {"save-sessions": ("b.yaml", "two")}
    (problem,) = second.problems
    assert problem.code == "SH124"
    assert "a.yaml:3:18" in problem.what
    assert "b.yaml:3:18" in problem.what
    assert str(problem.place) == "a.yaml:3:18"


def test_without_a_holder_the_first_path_gets_the_name():
    assert where(load(revision("one", **{A: PREEMPT, B: PREEMPT}), None)) == {"save-sessions": ("a.yaml", "one")}


def test_a_policy_can_move_between_files_and_two_can_swap_names():
    first = load(revision("one", **{A: PREEMPT, B: CHECKPOINT}), None)
    moved = load(revision("two", **{B: CHECKPOINT, C: PREEMPT}), first)
    assert (where(moved)["save-sessions"], moved.problems) == (("c.yml", "two"), ())
    swapped = {A: PREEMPT.replace("save-sessions", "recent-images"), B: CHECKPOINT.replace("recent-images", "save-sessions")}
    second = load(revision("two", **swapped), first)
    assert (where(second), second.problems) == ({"recent-images": ("a.yaml", "two"), "save-sessions": ("b.yaml", "two")}, ())


def test_a_refusal_that_frees_no_name_refuses_the_next_claimant_too():
    """b is broken and keeps `y`; a's new `y` is refused, so a keeps `x`; c's new `x` is refused in turn."""
    x, y = PREEMPT.replace("save-sessions", "x"), PREEMPT.replace("save-sessions", "y")
    first = load(revision("one", **{A: x, B: y}), None)
    second = load(revision("two", **{A: y, B: BAD, C: x}), first)
    assert where(second) == {"x": ("a.yaml", "one"), "y": ("b.yaml", "one")}
    assert sorted(p.code for p in second.problems) == ["SH116", "SH124", "SH124"]


def test_the_digest_is_of_the_content_and_not_of_the_commit():
    files = {A: REASSIGN, B: PREEMPT}
    one = load(revision("one", **files), None)
    again = Revision(commit=Commit("two"), committed_at=1.0, files=revision("one", **files).files)
    two = load(again, one)
    assert (two.digest, two.commit) == (one.digest, "two")
    assert load(revision("one", **{A: REASSIGN.replace("60s", "61s"), B: PREEMPT}), None).digest != one.digest


def test_a_crash_of_the_checker_is_a_problem_of_that_file_only(monkeypatch):
    first = load(revision("one", **{A: REASSIGN, B: PREEMPT}), None)
    honest = module._check

    def crash(path, data):
        if path == "b.yaml":
            raise RuntimeError("boom")
        return honest(path, data)

    monkeypatch.setattr(module, "_check", crash)
    second = load(revision("crash", **{A: REASSIGN, B: PREEMPT + "# changed\n"}), first)
    assert [(p.code, p.place.file) for p in second.problems] == [("SH199", "b.yaml")]
    assert "boom" in second.problems[0].what
    assert where(second) == {"relieve-prefill": ("a.yaml", "crash"), "save-sessions": ("b.yaml", "one")}


def test_an_unchanged_file_is_not_read_twice(monkeypatch):
    files = {A: REASSIGN + "# once\n", B: PREEMPT}
    first = load(revision("same", **files), None)
    monkeypatch.setattr(module, "_check", lambda path, data: pytest.fail(f"{path} was read again"))
    assert load(revision("same", **files), first).policies == first.policies


def test_warnings_refuse_nothing_and_are_left_to_validate():
    policies = load(revision("one", **{A: "# to do\n", B: PREEMPT}), None)
    assert (where(policies), policies.problems) == ({"save-sessions": ("b.yaml", "one")}, ())
