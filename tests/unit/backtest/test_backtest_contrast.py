"""What other policies would have done otherwise over the past, with the expressions that did it."""

import io
import json
import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from shunter.backtest.contrast import Contrasting
from shunter.backtest.run import Run
from shunter.lang.cel import CelRules
from shunter.model.backtest import Backtest, Contrast
from shunter.model.finding import Verdict
from shunter.model.policy import PolicySet
from shunter.report.backtest import backtest_json, backtest_markdown, backtest_text
from shunter.report.contrast import contrast_json, contrast_markdown, contrast_text
from test_backtest_run import BEGUN, EMPTY, HEAD, NOW, PROFILE, SAVE, STEP, notice, policies, samples

GOLDEN = Path(__file__).parents[2] / "golden"
IMAGES = HEAD + "CheckpointPolicy\nmetadata: {name: images}\nspec:\n  workers: {role: decode}\n  every: 5m\n  when: worker.waiting < 5\n"
STEPS = 40


def contrasted(base: PolicySet, head: PolicySet) -> tuple[Backtest, Backtest, Contrast]:
    """Twenty minutes; from the tenth on requests wait, and a node goes at the fifteenth."""
    notices = (notice(node="b", at=NOW + 900),)
    one, other = (Run(s, BEGUN, notices, CelRules(), PROFILE, begin=NOW, end=NOW + (STEPS - 1) * STEP, step=STEP) for s in (base, head))
    contrast = Contrasting(head, CelRules(), PROFILE)
    for n in range(STEPS):
        at = NOW + n * STEP
        seen = samples(at, waiting=1.0 if n < 20 else 9.0)
        contrast.step(one.step(at, seen), seen)
        other.step(at, seen)
    before, after = one.result(), other.result()
    return before, after, contrast.result(before, after)


@pytest.fixture(name="found", scope="module")
def found_() -> tuple[Backtest, Backtest, Contrast]:
    return contrasted(policies(SAVE, EMPTY, IMAGES), policies(SAVE, EMPTY.replace("for: 1m", "for: 10m"), IMAGES.replace("< 5", "< 50")))


def test_a_set_and_itself_differ_in_nothing() -> None:
    one, other, contrast = contrasted(policies(SAVE, EMPTY, IMAGES), policies(SAVE, EMPTY, IMAGES))
    assert not contrast
    assert one == other
    out = io.StringIO()
    contrast_text(contrast, Console(file=out, width=120))
    assert "no difference in outcome" in out.getvalue()


def test_the_expression_that_flipped_a_finding_is_named(found: tuple[Backtest, Backtest, Contrast]) -> None:
    _, _, contrast = found
    turned = {(t.flip.policy, t.flip.subject, t.flip.before, t.flip.after): t for t in contrast.turned}
    freed = turned["images", "d0", Verdict.PASS, Verdict.ACT]
    assert freed.flip.by_before is not None
    assert freed.flip.by_after is not None
    assert (freed.flip.by_before.gate, freed.flip.by_before.expression) == ("when", "worker.waiting < 5")
    assert (freed.flip.by_after.gate, freed.flip.by_after.expression) == ("when", "worker.waiting < 50")
    assert freed.flip.by_after.inputs == (("worker.waiting", "9"),)
    assert NOW + 600 <= freed.first <= freed.last <= NOW + (STEPS - 1) * STEP
    slower = turned["empty-a", "d0", Verdict.ACT, Verdict.HOLD]
    assert slower.flip.by_after is not None
    assert slower.flip.by_after.gate == "for"
    assert (slower.first, slower.steps) == (NOW + 60, 1), "one step is enough to be seen"


def test_operations_that_came_and_went_have_their_cause(found: tuple[Backtest, Backtest, Contrast]) -> None:
    before, after, contrast = found
    ids = [{a.operation.id for a in one.acts} for one in (before, after)]
    came = {a.operation.id for a in contrast.added}
    assert came
    assert came <= ids[1] - ids[0]
    late = [a for a in contrast.added if a.operation.kind.value == "checkpoint" and a.at >= NOW + 600]
    assert late
    for act in late:
        cause = contrast.cause(act)
        assert cause is not None
        assert cause.flip.policy == "images"
        assert cause.flip.subject == act.operation.worker


def test_the_same_thing_done_at_another_time_is_a_change(found: tuple[Backtest, Backtest, Contrast]) -> None:
    both = [a for a in found[2].altered if a.before.operation.kind.value == "move"]
    assert {field for a in both for field, _, _ in a.fields} <= {"begun", "to_slot", "from_slot", "copies", "policy", "lane"}
    moved = [next(a.at for a in one.acts if a.operation.policy == "empty-a") - NOW for one in found[:2]]
    assert moved[0] == 60
    assert moved[1] >= 600 or not moved[1:], "it must hold for ten minutes"


def test_both_sides_are_compared_on_the_base_s_fleet() -> None:
    """A worker that the base has moved is no longer where the other would move it from: that isn't a difference of the policies."""
    one, _, contrast = contrasted(policies(EMPTY), policies(EMPTY.replace("step: 3", "step: 2")))
    assert {a.operation.worker for a in one.acts} == {"d0", "d1"}
    assert [t for t in contrast.turned if t.first > NOW + 600] == []


def test_the_text_and_the_comment(found: tuple[Backtest, Backtest, Contrast]) -> None:
    one, other, contrast = found
    out = io.StringIO()
    backtest_text((one, other), Console(file=out, width=140), contrast)
    comment = backtest_markdown((one, other), contrast, link="https://ci.example/7")
    alone = contrast_markdown(contrast, "20 minutes", link="https://ci.example/7")
    told = {"contrast.txt": _section(out.getvalue()), "contrast.md": alone}
    for name, text in told.items():
        if os.environ.get("SHUNTER_GOLDEN") == "write":
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), f"SHUNTER_GOLDEN=write writes {name}"
    assert "**What differs, and what did it**" in comment
    assert "`worker.waiting < 50` with worker.waiting = 9" in comment
    assert len(contrast_markdown(contrast, "20 minutes", limit=2000).encode()) <= 2000


def _section(text: str) -> str:
    lines = text.splitlines(keepends=True)
    begin = next(n for n, line in enumerate(lines) if line.startswith("What differs"))
    end = next(n for n, line in enumerate(lines) if n > begin and not line.strip())
    return "".join(lines[begin:end])


def test_the_forms_for_programs_have_all_of_it(found: tuple[Backtest, Backtest, Contrast]) -> None:
    one, other, contrast = found
    document = json.loads(contrast_json(contrast))
    assert document["changes"] is True
    told = document["contrast"]
    assert told["counts"] == {
        "added": len(contrast.added),
        "removed": len(contrast.removed),
        "changed": len(contrast.altered),
        "flipped": len(contrast.turned),
    }
    for act, given in zip(contrast.added, told["added"], strict=True):
        cause = contrast.cause(act)
        assert given["operation"]["id"] == act.operation.id
        assert (given["cause"] is None) == (cause is None)
        assert cause is None or told["turned"][given["cause"]]["flip"]["subject"] == cause.flip.subject
    assert json.loads(backtest_json((one, other), contrast))["contrast"] == told
    assert "contrast" not in json.loads(backtest_json((one,)))
    assert (
        msgspec.json.decode(contrast_json(msgspec.structs.replace(contrast, added=(), removed=(), altered=(), turned=())))["changes"]
        is False
    )
