"""What computing context again would take: a plan, its report and a backtest say the same of the same worker."""

from typing import Any

import msgspec
import pytest
from report_world import FLEET, MOVE, NOW, SNAPSHOT
from shunter.app.again import rates_of
from shunter.backtest.price import Defaults, Prices
from shunter.decide.figures import AllFigures, Figures
from shunter.decide.profile import Profile
from shunter.decide.worth import _most
from shunter.lang.load import load
from shunter.model.backtest import Act
from shunter.model.ids import Commit
from shunter.model.policy import PolicySet
from shunter.model.sample import Known, Sample
from shunter.model.snapshot import Samples
from shunter.model.source import Revision, SourceFile
from shunter.report.kept import kept, kept_line

GPUS, TOKENS, SESSIONS, START = 8, 300_000.0, 4.0, 100.0
EARLY = TOKENS + TOKENS * (TOKENS / SESSIONS) / (2 * 50_000)
"""Four contexts of 75,000 tokens, of which one takes twice as long after 50,000."""
HELD: dict[str, Sample] = {
    name: Known(value=value, unit="", at=NOW, query="q") for name, value in (("kvTokens", TOKENS), ("sessions", SESSIONS))
}


def profile(**spec: Any) -> PolicySet:
    given = ", ".join(f"{name}: {value}" for name, value in {"gpuModel": "B200", "nativeStart": f"{START:g}s", **spec}.items())
    text = f"apiVersion: shunter.dev/v1alpha1\nkind: FleetProfile\nmetadata: {{name: ours}}\nspec: {{{given}}}\n"
    found = load(Revision(commit=Commit("c"), committed_at=None, files=(SourceFile(path="p.yaml", blob="b", data=text.encode()),)), None)
    assert not found.problems, found.problems
    return found


def figures(policies: PolicySet) -> Figures:
    return AllFigures(policies.policies, Profile()).of("B200")


@pytest.mark.parametrize(
    ("spec", "tokens", "sessions", "rate"),
    [
        ({"prefillRate": 40_000, "prefillDoubling": 50_000}, EARLY, SESSIONS, 40_000.0),
        ({"prefillRate": 40_000, "prefillDoubling": 50_000}, TOKENS, None, 40_000.0),
        ({"prefillRate": 40_000}, TOKENS, SESSIONS, 40_000.0),
        ({"prefillDoubling": 50_000}, EARLY, SESSIONS, Defaults().prefill_rate_per_gpu * GPUS),
    ],
)
def test_plan_report_and_backtest_say_the_same(spec: dict[str, float], tokens: float, sessions: float | None, rate: float) -> None:
    policies, seconds = profile(**spec), GPUS * tokens / rate
    nodes = tuple(
        msgspec.structs.replace(n, slots=tuple(msgspec.structs.replace(s, gpu_model="B200", gpus=GPUS) for s in n.slots))
        for n in FLEET.nodes
    )
    held = HELD if sessions is not None else {"kvTokens": HELD["kvTokens"]}
    fleet = msgspec.structs.replace(FLEET, nodes=nodes)
    seen = msgspec.structs.replace(SNAPSHOT, fleet=fleet, samples=Samples(workers={MOVE.worker: held}))
    found = kept([MOVE], seen, rates_of(policies, fleet))
    assert found.gpu_seconds == pytest.approx(seconds)
    assert ("half as many 50,000 tokens into a context" in kept_line(found)) is ("prefillDoubling" in spec)
    act = Act(at=NOW, operation=MOVE, sessions=sessions, tokens=TOKENS, gpus=GPUS, gpu_model="B200", instead="loss", idle=0.0)
    prices = Prices(policies.policies, Profile())
    assert prices.of([act])[0].instead == pytest.approx(GPUS * START + seconds)
    assert any("prefillDoubling" in told for told in prices.assumed()) is ("prefillDoubling" in spec)
    if "prefillRate" in spec:  # a plan weighs a move against no figure that nobody gave
        most, _ = _most(figures(policies), held["kvTokens"], held.get("sessions"))
        assert most == pytest.approx(START + seconds / GPUS)
