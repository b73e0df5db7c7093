"""The policies that come with Shunter are valid, pass the tests beside them, and each is seen to act and to hold back."""

from pathlib import Path

import pytest
from shunter.cases.read import is_test_file
from shunter.cli.test import Report, run_all
from shunter.lang.load import check_text, is_policy_file

ROOT = Path(__file__).parents[3]
FOLDERS = (ROOT / "policies", *(ROOT / "examples" / folder / "policies" for folder in ("policy-repo", "dynamo/policy-repo")))
SHIPPED = sorted(f for folder in FOLDERS for f in folder.iterdir() if is_policy_file(f.name))
FIRST = "# yaml-language-server: $schema=../schemas/policy.v1alpha1.json"


@pytest.fixture(scope="module")
def report() -> Report:
    return run_all(FOLDERS)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_it_is_valid_without_a_warning(path: Path):
    policies, problems = check_text(path.name, path.read_bytes())
    assert policies
    assert problems == ()


def test_every_test_beside_them_passes(report: Report):
    failed = [(f.path, [str(p) for p in f.problems], [r.name for r in f.results if not r.passed]) for f in report.files if not f.passed]
    assert failed == []
    assert report.passed
    assert {Path(f.path).name for f in report.files} == {f.name for folder in FOLDERS for f in folder.iterdir() if is_test_file(f.name)}


def test_there_is_a_test_file_beside_each():
    assert [path.name for path in SHIPPED if not path.with_name(f"{path.stem}_test.yaml").exists()] == []


def test_each_is_seen_to_act_and_not_to_act(report: Report):
    assert len(report.coverage) >= 19
    acting = {str(p.name) for path in SHIPPED for p in check_text(path.name, path.read_bytes())[0] if p.acts}
    assert [c.policy for c in report.coverage if c.policy in acting and not c.verdicts["act"]] == []
    budgets = [c for c in report.coverage if c.policy not in acting]
    assert {c.file for c in budgets} == {c.file for c in budgets if c.verdicts["hold"]}, "each file's budgets are seen to hold something"
    assert [c.policy for c in report.coverage if not c.verdicts["hold"] + c.verdicts["pass"]] == []


def test_the_reassignments_are_seen_to_do_nothing_for_lack_of_a_value(report: Report):
    inconclusive = {c.policy for c in report.coverage if c.verdicts["inconclusive"]}
    assert {"prefill-relief", "decode-relief", "relieve-prefill", "checkpoints-agentic"} <= inconclusive


@pytest.mark.parametrize("path", sorted((ROOT / "policies").glob("*.yaml")), ids=lambda path: path.name)
def test_editors_are_told_the_schema_and_readers_when_to_use_it(path: Path):
    lines = path.read_text().splitlines()
    if is_test_file(path.name):
        assert lines[0] == FIRST.replace("policy.", "policy-test.")
    else:
        assert lines[0] == FIRST
        assert "# Use it " in path.read_text()


def test_the_list_names_each_and_nothing_else():
    listed = (ROOT / "policies" / "README.md").read_text()
    names = {path.name for path in SHIPPED if path.parent == ROOT / "policies"}
    assert {name for name in names if f"]({name})" not in listed} == set()
    assert listed.count(".yaml](") == len(names)
    assert len(names) >= 10


def test_a_broken_policy_would_be_noticed(tmp_path: Path):
    """Each of these changes of a number or a field makes a test fail: the tests hold the policies to what they say."""
    changes = (
        ("spot-aws.yaml", "otherwise: [checkpoint, drain]", "otherwise: []"),
        ("spot-aws.yaml", "makeRoom: prefill", "makeRoom: none"),
        ("spot-aws.yaml", '== "reserved"', '== "spot"'),
        ("spot-aws.yaml", "order: worker.kvTokens", "order: -worker.kvTokens"),
        ("spot-gcp.yaml", "reserve: 3s", "reserve: 10s"),
        ("spot-azure.yaml", "reserve: 1s", "reserve: 3s"),
        ("spot-rebalance.yaml", "otherwise: []", "otherwise: [drain]"),
        ("planned-maintenance.yaml", "reserve: 20s", "reserve: 40s"),
        ("gpu-failing.yaml", "otherwise: [drain]", "otherwise: [checkpoint, drain]"),
        ("node-gone.yaml", "notices: [gone]", "notices: [drain]"),
        ("prefill-relief.yaml", "for: 2m", "for: 1m"),
        ("prefill-relief.yaml", "kvUsage < 0.6\n  for", "kvUsage < 1.6\n  for"),
        ("prefill-relief.yaml", "cooldown: 10m", "cooldown: 0s"),
        ("prefill-relief.yaml", "prefer: -worker.kvTokens", "prefer: worker.kvTokens"),
        ("decode-relief.yaml", "where: worker.running < 1", "where: worker.running < 100"),
        ("decode-relief.yaml", "min: 1", "min: 0"),
        ("night-batch.yaml", "getHours() < 6", "getHours() < 5"),
        ("checkpoints-agentic.yaml", "last: 2", "last: 3"),
        ("checkpoints-agentic.yaml", "copies: 2", "copies: 1"),
        ("checkpoints-chat.yaml", "every: 2h", "every: 3h"),
        ("checkpoints-spot.yaml", '== "spot"', '!= "spot"'),
        ("starter-preview.yaml", "mode: preview", "mode: enforce"),
    )
    noticed = []
    for index, (name, old, new) in enumerate(changes):
        folder = tmp_path / str(index)
        folder.mkdir()
        text = (ROOT / "policies" / name).read_text()
        assert old in text, name
        (folder / name).write_text(text.replace(old, new))
        test = name.replace(".yaml", "_test.yaml")
        (folder / test).write_bytes((ROOT / "policies" / test).read_bytes())
        noticed.append(not run_all([folder]).passed)
    assert [change for change, found in zip(changes, noticed, strict=True) if not found] == []


def test_the_example_of_the_how_to_passes(tmp_path: Path):
    page = (ROOT / "docs" / "how-to" / "test-a-policy.md").read_text()
    policy, test = (block.partition("```")[0] for block in page.split("```yaml\n")[1:3])
    (tmp_path / "relief.yaml").write_text(policy)
    (tmp_path / "relief_test.yaml").write_text(test)
    assert check_text("relief.yaml", policy.encode())[1] == ()
    report = run_all([tmp_path])
    assert [(r.failures, f.problems) for f in report.files for r in f.results] == [((), ())]
    assert report.passed
