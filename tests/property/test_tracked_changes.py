"""Comparing what policies say in brief, and telling only what has changed, gives the records of telling everything in every tick."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shunter.audit.decisions import Tracker, shape
from shunter.decide.evaluate import evaluate
from shunter.lang.bulk import BulkCelRules
from shunter.lang.cel import CelRules
from shunter.model.canon import encode, plain
from shunter.model.finding import Chapter, Evidence, Finding, Findings, Verdict, chapters, tally
from shunter.model.ids import Commit, Digest, Epoch, NodeId, PolicyName, WorkerId
from shunter.model.plan import Evaluation, Plan
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Fleet, Node, Worker, WorkerState
from test_decide import NOW, PROFILE, situation_of
from test_decide_bulk import awkward, awkward_fleet

EPOCH = Epoch(2)


class Everything:
    """The plain way: each finding of each tick is told whole, and compared with that of the tick before."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], dict[str, Any]] = {}

    def observe(self, evaluation: Evaluation, at: float, fleet: Fleet | None) -> list[Record]:
        pretend_nodes = {n.id for n in fleet.nodes if n.runtime == "pretend"} if fleet else set()
        pretending = {x for w in (fleet.workers if fleet else ()) if w.node in pretend_nodes for x in (w.id, w.graph)}
        plan, now, records = evaluation.plan, {}, []

        def record(subject: str, what: str, body: dict[str, Any], pretend: bool) -> Record:
            facts: dict[str, Any] = {
                "commit": plan.commit,
                "snapshot": plan.snapshot,
                "plan": plan.digest,
                "pretend": pretend,
                "body": body,
            }
            return Record(at=at, kind=RecordKind.FINDING, subject=subject, what=what, epoch=EPOCH, **facts)

        def previous(one: dict[str, Any] | None) -> dict[str, Any] | None:
            return {k: one[k] for k in ("verdict", "gate", "reason", "since", "ticks")} if one else None

        for f in list(evaluation.findings):
            one = {
                "verdict": f.verdict.value,
                "gate": f.gate,
                "reason": f.reason,
                "since": at,
                "ticks": 1,
                "pretend": f.subject in pretending,
            }
            before = self._before.get((f.policy, f.subject))
            now[f.policy, f.subject] = one
            if before and all(before[k] == one[k] for k in ("verdict", "gate", "pretend")) and shape(before["reason"]) == shape(f.reason):
                one |= {"since": before["since"], "ticks": before["ticks"] + 1}
            elif before or f.verdict is not Verdict.PASS:
                body = {
                    "policy": f.policy,
                    "lane": f.lane,
                    "verdict": f.verdict.value,
                    "gate": f.gate,
                    "reason": f.reason,
                    "since": f.since,
                }
                body |= {"evidence": plain(f.evidence), "previous": previous(before)}
                records.append(record(f.subject, f"{f.policy}: {f.verdict.value}: {f.reason}", body, one["pretend"]))
        for (policy, subject), before in self._before.items():
            if (policy, subject) not in now and before["verdict"] != "pass":
                body = {"policy": policy, "verdict": "none", "previous": previous(before)}
                records.append(record(subject, f"{policy}: no longer says anything of it", body, before["pretend"]))
        self._before = now
        return records


class Lazy:
    """Findings of one tick that count which of them are told."""

    def __init__(self, given: Sequence[Finding]) -> None:
        self.told: list[tuple[str, str]] = []
        self._given = sorted(given, key=lambda f: (f.policy, f.subject))

    def findings(self) -> Findings:
        return Findings(lambda: [self._chapter(policy) for policy in sorted({f.policy for f in self._given})])

    def _chapter(self, policy: PolicyName) -> Chapter:
        own = [f for f in self._given if f.policy == policy]

        def tell(place: int) -> Finding:
            self.told.append((policy, own[place].subject))
            return own[place]

        return Chapter(policy, [f.subject for f in own], own, tell)


REASONS = st.sampled_from(["cooldown: 90 s left", "cooldown: 3 s left", "1 worker", "2 workers", "goes to node-a/0", "goes to node-a/1"])
FINDING = st.builds(
    lambda policy, subject, verdict, gate, reason, detail: Finding(
        policy=PolicyName(policy),
        subject=subject,
        verdict=verdict,
        lane="voluntary",
        gate=gate,
        reason=reason,
        evidence=(Evidence(gate=gate, result=True, detail=detail),),
    ),
    st.sampled_from("pq"),
    st.sampled_from(["d0", "d1", "d2"]),
    st.sampled_from([Verdict.HOLD, Verdict.PASS, Verdict.ACT]),
    st.sampled_from(["for", "step"]),
    REASONS,
    st.sampled_from(["x", "y"]),
)
TICK = st.lists(FINDING, max_size=6, unique_by=lambda f: (f.policy, f.subject))
WORKER: dict[str, Any] = {"role": "decode", "graph": "g", "engine": "e", "state": WorkerState.RUNNING, "slot": None, "incarnation": 0}


def fleet(pretending: Sequence[str]) -> Fleet:
    nodes = tuple(Node(id=NodeId(n), slots=(), runtime="pretend" if n in pretending else "criu") for n in ("d0", "d1", "d2"))
    return Fleet(nodes=nodes, workers=tuple(Worker(id=WorkerId(n.id), node=n.id, **WORKER) for n in nodes))


def evaluation(findings: Sequence[Finding]) -> Evaluation:
    return Evaluation(findings=findings, plan=Plan(at=1.0, commit=Commit("c"), policy_set=Digest("p"), snapshot=Digest("s")))


HELD = Finding(policy=PolicyName("p"), subject="d0", verdict=Verdict.HOLD, lane="voluntary", gate="for", reason="cooldown: 90 s left")


@given(st.lists(st.tuples(TICK, st.lists(st.sampled_from(["d0", "d1"]), max_size=1)), max_size=6))
@example([([HELD], []), ([HELD], []), ([], []), ([HELD], []), ([HELD], ["d0"])])
@settings(max_examples=200)
def test_the_records_are_those_of_telling_everything(ticks: list[tuple[list[Finding], list[str]]]) -> None:
    plainly, tracker = Everything(), Tracker()
    for at, (said, pretending) in enumerate(ticks, 1):
        lazy = Lazy(said)
        wanted = plainly.observe(evaluation(Lazy(said).findings()), float(at), fleet(pretending))
        tracker, records = tracker.observe(evaluation(lazy.findings()), float(at), EPOCH, fleet(pretending))
        assert encode(records) == encode(wanted)
        assert lazy.told == [(r.body["policy"], r.subject) for r in records if r.body["verdict"] != "none"], "and nothing else is told"


def test_what_does_not_change_is_not_made_anew() -> None:
    lazy = Lazy([HELD])
    first, _ = Tracker().observe(evaluation(lazy.findings()), 1.0, EPOCH)
    second, records = first.observe(evaluation(lazy.findings()), 2.0, EPOCH)
    assert second.seen["p"] is first.seen["p"]
    assert (records, len(lazy.told)) == ((), 1)


@pytest.mark.parametrize("seeds", [range(at, at + 40) for at in range(0, 120, 40)])
def test_so_they_are_for_what_is_really_decided(seeds: range) -> None:
    """A series of ticks with the same state and ever more of the history: each judged in brief, and told whole."""
    changed = 0
    for seed in seeds:
        dice = Random(seed)
        policies, series, state = situation_of(dice)
        if seed % 2:
            policies = [awkward(dice, p) for p in policies]
            series = [awkward_fleet(dice, s, policies) for s in series]
        held = PolicySet(commit=Commit("c"), digest=Digest("sha256:p"), policies=tuple(policies))
        plainly, tracker, rules = Everything(), Tracker(), BulkCelRules()
        for end in range(1, len(series) + 1):
            lazy = evaluate(held, series[:end], state, NOW, rules, PROFILE)
            whole = evaluate(held, series[:end], state, NOW, CelRules(), PROFILE)
            tracker, records = tracker.observe(lazy, series[end - 1].at, EPOCH, series[end - 1].fleet)
            wanted = plainly.observe(whole, series[end - 1].at, series[end - 1].fleet)
            assert encode([r for r in records if r.kind is RecordKind.FINDING]) == encode(wanted), seed
            told = {(f.policy, f.subject): (f.verdict, f.reason, f.gate) for f in whole.findings}
            for policy, subjects, briefs, _ in chapters(lazy.findings):
                assert [told.pop((policy, s)) for s in subjects] == [(b.verdict, b.reason, b.gate) for b in briefs], seed
            assert not told, seed
            assert tally(lazy.findings) == tally(tuple(whole.findings))
            changed += len(wanted)
    assert changed > 100
