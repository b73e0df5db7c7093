"""The section on budgets of a plan's text: what may be disrupted at once, by budget and group, and where none counts."""

import io
import os
from pathlib import Path

from report_world import FINDINGS, SNAPSHOT, evaluation
from rich.console import Console
from shunter.model.finding import Evidence, Finding, Verdict
from shunter.model.ids import PolicyName
from shunter.report.plan import plan_text

GOLDEN = Path(__file__).parents[2] / "golden" / "plan-budgets.txt"
DEFAULT = Evidence(gate="budget.default", result=True, detail="no budget covers it, so one at a time in pool:tiny/prefill")


def budget(group: str, verdict: Verdict, reason: str, name: str = "calm") -> Finding:
    seen = Evidence(gate="per", result=True, detail=f"40 workers in {group}: move, park, drain, reassign")
    return Finding(
        policy=PolicyName(name), subject=group, verdict=verdict, lane="voluntary", reason=reason, gate="maxConcurrent", evidence=(seen,)
    )


def moved(name: str) -> Finding:
    return Finding(
        policy=PolicyName("tidy"), subject=name, verdict=Verdict.ACT, lane="voluntary", reason="it moves to b/0", evidence=(DEFAULT,)
    )


SHOWN = (
    budget("pool:tiny/decode", Verdict.PASS, "0 of 1 at once (3% of 40 rounded down: 1)"),
    budget("zone:a", Verdict.HOLD, "1 of 1 at once; it holds move of decode-1 by tidy", "one-a-zone"),
    moved("prefill-0"),
    moved("prefill-1"),
)


def text(*findings: Finding) -> str:
    console = Console(file=io.StringIO(), width=100, color_system=None)
    plan_text(evaluation(findings=findings), SNAPSHOT, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_budgets_are_a_section_of_their_own() -> None:
    written = text(*FINDINGS, *SHOWN)
    if os.environ.get("SHUNTER_GOLDEN") == "write":
        GOLDEN.write_text(written)
    assert written == GOLDEN.read_text()


def test_what_holds_something_comes_first_and_each_default_once() -> None:
    lines = [line.strip() for line in text(*SHOWN).splitlines()]
    section = lines[lines.index("Budgets") + 1 :]
    assert [line.split(",")[0] for line in section[:3]] == ["zone:a", "pool:tiny/decode", "no budget covers it"]
    assert sum("no budget covers it" in line for line in lines) == 1
    assert "Held back" not in lines, "a budget isn't held back: it holds"


def test_without_budgets_there_is_no_section_and_many_are_cut() -> None:
    assert "Budgets" not in text(*FINDINGS)
    many = [budget(f"node:n{i}", Verdict.PASS, "0 of 1 at once") for i in range(60)]
    assert "and 10 more: the JSON form has all of them" in text(*many)
