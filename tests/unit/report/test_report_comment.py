"""A plan for a pull request: within a forge's limit, with nothing that a name could turn into markup."""

import json
import re
from random import Random

import msgspec
import pytest
from report_world import CHECKPOINT, EVERYTHING, FINDINGS, FLEET, MOVE, SNAPSHOT, evaluation, worker
from shunter.model.errors import Place, Problem
from shunter.model.finding import Evidence, Finding, Verdict
from shunter.model.ids import OperationId, PolicyName, WorkerId
from shunter.model.sample import Known
from shunter.model.snapshot import Samples
from shunter.report.comment import MARK, plan_markdown
from shunter.report.json import plan_json
from shunter.report.kept import Kept, Rate, kept, kept_line
from shunter.report.markdown import LIMIT, code, escaped, page
from shunter.report.plan import plan_text
from test_report_text import printed, same_as_golden

KNOWN = {
    "decode-0": {
        "sessions": Known(value=3, unit="sessions", at=0, query="q"),
        "kvTokens": Known(value=5120, unit="tokens", at=0, query="q"),
    }
}
SEEN = msgspec.structs.replace(SNAPSHOT, samples=Samples(workers=KNOWN))
PROBLEM = Problem(
    code="SH111", what="unknown key `form`", remedy="Did you mean from?", place=Place(file="policies/a.yaml", line=3, column=5)
)


def test_the_comment_as_a_whole() -> None:
    text = plan_markdown(EVERYTHING, SEEN, problems=(PROBLEM,), remarks=("Samples are as they were then",), link="https://ci.example/run/7")
    # digests change with every field that the model gets
    same_as_golden("plan.md", re.sub(r"sha256:[0-9a-f]{12}", "sha256:(digest)", text))


def test_with_nothing_to_do() -> None:
    text = plan_markdown(evaluation(findings=FINDINGS[-1:]), SNAPSHOT)
    assert text.startswith(f"{MARK}\n### Shunter: nothing would be done now\n")
    assert "<details>" not in text
    assert "No policy covers anything." in plan_markdown(evaluation(findings=()), SNAPSHOT)


def many(number: int) -> tuple:
    return tuple(msgspec.structs.replace(MOVE, id=OperationId(f"move-{n:05d}"), worker=WorkerId(f"decode-{n:05d}")) for n in range(number))


@pytest.mark.parametrize("number", [0, 9, 10, 11, 200, 1_000, 5_000])
def test_no_comment_is_too_long_and_what_is_left_out_is_counted(number: int) -> None:
    text = plan_markdown(evaluation(*many(number), findings=FINDINGS), SNAPSHOT)
    assert len(text.encode()) <= LIMIT
    assert f"{number:,} operation" in text or number == 0
    listed = len(re.findall(r"^- `move decode-", text, re.MULTILINE)) + len(re.findall(r"^- (?:held|inconclusive): ", text, re.MULTILINE))
    cut = re.search(r"… ([\d,]+) more lines? left out here, from the middle", text)
    left_out = int(cut[1].replace(",", "")) if cut else 0
    held = sum(f.verdict in (Verdict.HOLD, Verdict.INCONCLUSIVE) for f in FINDINGS)
    assert listed + left_out == (number if number > 10 else 0) + held
    assert bool(cut) == (number >= 1_000)
    assert text.count("<details>") == text.count("</details>")
    if cut:
        assert len(text.encode()) > LIMIT * 0.98
        assert "decode-00000" in text
        assert f"decode-{number - 1:05d}" in text or "held: " in text


def test_effective_budgets_are_shown() -> None:
    per = Evidence(gate="per", result=True, detail="4 workers in pool:tiny/decode: move")
    held = Finding(
        policy=PolicyName("gentle"), subject="pool:tiny/decode", verdict=Verdict.HOLD, lane="voluntary", gate="maxConcurrent",
        reason="1 of 1 at once in pool:tiny/decode (30% of 4 rounded down: 1)", evidence=(per,),
    )  # fmt: skip
    text = plan_markdown(evaluation(MOVE, findings=(held,)), SNAPSHOT)
    assert "**Budgets**\n\n- pool:tiny/decode, by gentle: 1 of 1 at once in pool:tiny/decode (30% of 4 rounded down: 1)\n" in text
    many = tuple(msgspec.structs.replace(held, subject=f"pool:g{n}/decode") for n in range(14))
    assert "- and 4 more\n" in plan_markdown(evaluation(findings=many), SNAPSHOT)


def test_what_goes_first() -> None:
    voluntary = [msgspec.structs.replace(CHECKPOINT, id=OperationId(f"c-{n}"), worker=WorkerId(f"c-{n}")) for n in range(20)]
    text = plan_markdown(evaluation(*voluntary, MOVE, findings=()), SNAPSHOT)
    rows = [line for line in text.splitlines() if re.match(r"\| (\\\[pretend\\\] )?`(move|checkpoint) ", line)]
    assert len(rows) == 10
    assert "move decode-0" in rows[0]
    assert "The 10 most important of 21 changes" in text


NASTY = [
    "<script>alert(1)</script>",
    "a|b",
    "`code`",
    "[x](http://evil.example)",
    "![x](y)",
    "@everyone",
    "<!-- ",
    "line\nbreak",
    "**bold** _it_",
    "</details>",
    "#12",
    "\x1b[31m",
]


@pytest.mark.parametrize("name", NASTY)
def test_no_name_becomes_markup(name: str) -> None:
    operation = msgspec.structs.replace(MOVE, worker=WorkerId(name), policy=name, reason=name)
    finding = msgspec.structs.replace(FINDINGS[1], subject=name, reason=name, gate=name, policy=name)
    text = plan_markdown(evaluation(operation, findings=(finding,)), SNAPSHOT, problems=(msgspec.structs.replace(PROBLEM, what=name),))
    outside = re.sub(r"`[^`]*`", "", text.replace(MARK, ""))
    for bad in ("<script", "![", "@everyone", "<!--", "**bold**", "\x1b"):
        assert bad not in outside
    assert not re.search(r"(?<!\\)\]\(", outside)
    assert outside.count("</details>") == outside.count("<details>") == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in rows} == {7, 5}


def test_pages_are_cut_in_the_middle_of_the_list_alone() -> None:
    dice = Random(7)
    for _ in range(200):
        lines = [f"- {n} " + "x" * dice.randint(0, 80) for n in range(dice.randint(0, 200))]
        limit = dice.randint(300, 6_000)
        text = page(["before"], lines, ["after"], title="t", limit=limit)
        assert len(text.encode()) <= limit
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        shown = [line for line in text.splitlines() if line in lines]
        half = next((i for i, line in enumerate(shown) if line != lines[i]), len(shown))
        assert shown[half:] == lines[len(lines) - len(shown) + half :]
    with pytest.raises(ValueError):
        page(["x" * 500], ["- 1"], [], title="t", limit=400)


def test_escapes() -> None:
    assert code("a`b") == "`a'b`"
    assert escaped("a_b <c>") == r"a\_b &lt;c&gt;"


def test_what_is_kept_counts_a_decode_worker_once_and_says_what_is_not_known() -> None:
    fleet = msgspec.structs.replace(
        SNAPSHOT.fleet, workers=(worker("decode-0", "node-a/0"), worker("decode-1", "node-a/1"), worker("prefill-0", "node-b/0"))
    )
    seen = msgspec.structs.replace(SEEN, fleet=fleet)
    moves = [msgspec.structs.replace(MOVE, worker=WorkerId(w)) for w in ("decode-0", "decode-0", "decode-1", "prefill-0")]
    assert kept(moves, seen) == Kept(workers=2, sessions=3, tokens=5120, unknown=1)
    assert kept([CHECKPOINT], seen) == Kept()


B200 = Rate(tokens_per_s=18_000.0, per_gpu=True, basis="a public figure")
OWN = Rate(tokens_per_s=40_000.0, per_gpu=False, basis="as ours says")


@pytest.mark.parametrize(("rate", "seconds"), [(B200, 5120 / 18_000), (OWN, 5120 / 40_000 * 8)])
def test_what_it_would_take_to_compute_the_context_again(rate: Rate, seconds: float) -> None:
    """GPUs x tokens / the rate of the whole worker; or tokens / the rate of one GPU, however many share them."""
    nodes = tuple(
        msgspec.structs.replace(n, slots=tuple(msgspec.structs.replace(s, gpu_model="B200", gpus=8) for s in n.slots)) for n in FLEET.nodes
    )
    seen = msgspec.structs.replace(SEEN, fleet=msgspec.structs.replace(FLEET, nodes=nodes))
    found = kept([MOVE], seen, {"B200": rate})
    assert found.gpu_seconds == pytest.approx(seconds)
    assert found.rates == (str(rate),)
    line = kept_line(found)
    assert line.startswith(
        "3 sessions with 5,120 tokens of context on 1 decode worker stay alive. Computing that context again would take "
    )
    assert f"{seconds:,.3g} GPU-seconds ({rate})." in line
    assert line in " ".join(printed(lambda console: plan_text(evaluation(MOVE), seen, console, {"B200": rate}), 500).split())
    told = json.loads(plan_json(evaluation(MOVE), seen, {"B200": rate}))["kept"]
    assert (told["sessions"], told["tokens"], told["gpuSeconds"]) == (3.0, 5120.0, pytest.approx(seconds))


def test_without_gpus_or_a_rate_no_gpu_seconds_are_made_up() -> None:
    for again in ({}, {"H100": B200}):
        found = kept([MOVE], SEEN, again)
        assert found.gpu_seconds is None
        assert kept_line(found) == "3 sessions with 5,120 tokens of context on 1 decode worker stay alive."
    assert kept_line(kept([MOVE], SNAPSHOT)) == "1 decode worker stays alive, and all the context there; how much that is isn't known."
    assert kept_line(Kept()) == ""
