"""Figures, one JSON object a line, and all of them in bench.json: `make bench`, or `make bench NAME=decide` for one.

Nothing is asserted: a figure that misses its target says `"met": false`. Real moves (`moves`) need root, and have labs of their own.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import columns
import large
import msgspec
import notice
import past
import placement
import tick
from shunter.app.collector import paused
from shunter.audit.journal import Journal
from shunter.decide.evaluate import evaluate
from shunter.decide.memory import Memory
from shunter.lang.bulk import BulkCelRules
from shunter.model.ids import Commit, Epoch
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation, OperationKind
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from shunter.model.snapshot import Snapshot

ROOT = Path(__file__).resolve().parents[2]
SHUNTER = Path(sys.executable).with_name("shunter")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `target` is what it should be, at most for times and at least for rates; None: only told."""

    name: str
    value: float
    unit: str
    target: float | None
    met: bool | None
    how: str


def seconds(name: str, value: float, target: float | None, how: str) -> Figure:
    """A time, which should be at most its target."""
    return Figure(name=name, value=round(value, 4), unit="s", target=target, met=None if target is None else value <= target, how=how)


def best(of: int, work: Callable[[], object]) -> float:
    """The shortest of several runs in seconds: what else the machine does can only make a run longer."""
    taken = []
    for _ in range(of):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def decide() -> Iterator[Figure]:
    """A snapshot in memory to a plan; with all findings; with 60 nodes leaving at once; and at other sizes."""
    names = {5: "decide_1k", 150: "decide_30k"}
    taken: dict[int, float] = {}
    for graphs in (50, 5, 150):
        policies, made = large.policies(graphs), large.snapshot(graphs=graphs)
        taken[graphs], _, how = _decided(policies, made)
        if graphs == large.GRAPHS:
            yield seconds("decide", taken[graphs], 0.1, how)
            yield seconds("decide_digest", _processor(7, lambda made=made: large.fresh(made).id), None, "of that: the snapshot's digest")
            yield seconds("decide_findings", *_decided(policies, made, findings=True))
            yield seconds("decide_60_nodes_leave", *_decided(policies, large.snapshot(graphs=graphs, going=60)))
            yield from _behind_for(made)
            yield _after_an_hour(policies, made)
        else:
            yield seconds(names[graphs], taken[graphs], None, how)
    exponent = math.log(taken[150] / taken[5]) / math.log(30)
    how = "the time goes with this power of the number of workers, from 1,000 to 30,000, a policy for every 50 of them; 1 is linear"
    yield Figure(name="decide_growth", value=round(exponent, 2), unit="1", target=1.1, met=exponent <= 1.1, how=how)


def _decided(policies: PolicySet, made: Snapshot, *, findings: bool = False) -> tuple[float, float | None, str]:
    """The processor time that deciding takes, no target, and what was decided."""
    rules = BulkCelRules()
    last: list[Evaluation] = []

    def work() -> None:
        with paused():  # as the engine does
            last[:] = [evaluate(policies, [large.fresh(made)], EngineState(), made.at, rules)]
            assert last[0].plan.digest
            if findings:
                list(last[0].findings)

    taken = _processor(7, work)
    fleet, count = made.fleet, len(policies.policies)
    how = (
        f"{len(fleet.workers):,} workers, {len(fleet.nodes):,} nodes, {count} policies with {large.expressions(policies)} expressions; one "
        f"snapshot in memory to {len(last[0].plan.operations)} operations{f' and {len(last[0].findings):,} findings' if findings else ''}, "
        "digests included; processor time, best of 7"
    )
    return taken, None, how


def _after_an_hour(policies: PolicySet, made: Snapshot) -> Figure:
    """With workers of many sizes, and an hour's measurements to tell what their images will take."""
    number, rules, memory, taken, operations = 20_000, BulkCelRules(), Memory(), [], 0
    images = [o for o in evaluate(policies, [made], EngineState(), made.at, rules).plan.operations if o.kind is OperationKind.CHECKPOINT]
    fleet, state = large.busy(made, images, number)
    for _ in range(5):
        began = time.process_time()
        with paused():
            last = evaluate(policies, [large.fresh(fleet)], state, made.at, rules, memory=memory)
            assert last.plan.digest
        taken.append(time.process_time() - began)
        operations = len(last.plan.operations)
    how = (
        f"a size of its own for each worker, {number:,} checkpoints that ended within the hour, {operations} operations; "
        f"processor time, best of {len(taken)} ticks"
    )
    return seconds("decide_after_an_hour", min(taken), None, how)


def _behind_for(made: Snapshot) -> Iterator[Figure]:
    """Ticks with 30 snapshots behind `for: 30s`, with what one decision leaves to the next and without."""
    policies, series = large.policies(held="30s"), [large.later(made, n) for n in range(-30, 6)]
    for name, memory in (("decide_for_30s", Memory()), ("decide_for_30s_anew", None)):
        taken, rules = [], BulkCelRules()
        for end in range(31, len(series) + 1):
            began = time.process_time()
            with paused():
                last = evaluate(policies, series[end - 31 : end], EngineState(), series[end - 1].at, rules, memory=memory)
                assert last.plan.digest
            taken.append(time.process_time() - began)
        how = f"31 snapshots a second apart, `for: 30s`, {len(last.plan.operations)} operations; processor time, best of {len(taken)} ticks"
        yield seconds(name, min(taken), None, how if memory is None else f"{how}; as the engine does")


def _processor(of: int, work: Callable[[], object]) -> float:
    """The least processor time of several runs in seconds: one core's, whatever the others do."""
    taken = []
    for _ in range(of):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def placement_500() -> Iterator[Figure]:
    """Many workers, few slots, little time."""
    yield from (Figure(**figure) for figure in placement.benches())


def evaluate_10m() -> Iterator[Figure]:
    """Conditions over whole columns."""
    yield from (Figure(**figure) for figure in columns.benches())


def cli_help() -> Iterator[Figure]:
    """The command line's start."""
    taken = best(10, lambda: subprocess.run([SHUNTER, "--help"], check=True, stdout=subprocess.DEVNULL))
    yield seconds("cli_help", taken, 0.15, "`shunter --help` as a process of its own; best of 10")


def validate_500() -> Iterator[Figure]:
    """500 policy files of 100 lines, with conditions of their own, and with the same ones in all files."""
    for name, target, own in (("validate_500", 1.0, True), ("validate_500_alike", None, False)):
        with tempfile.TemporaryDirectory() as folder:
            for n in range(500):
                (Path(folder) / f"policy-{n}.yaml").write_text(_hundred_lines(n, own))
            command = [SHUNTER, "validate", folder]
            taken = best(3, lambda command=command: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        conditions = "no two conditions alike" if own else "the same conditions in all files"
        yield seconds(
            name, taken, target, f"`shunter validate` on 500 files of 100 lines, {conditions}, as a process of its own; best of 3"
        )


def _hundred_lines(n: int, own: bool) -> str:
    """Whole policies, and comments for the rest."""
    text = "---\n".join(large.four(f"graph-{n}-{k}", 600 + 3 * n + k if own else 600) for k in range(3))
    lines = text.splitlines()[:100]
    cut = max(i for i, line in enumerate(lines) if line == "---")
    return "\n".join([*lines[:cut], *(f"# line {i}" for i in range(cut, 100))]) + "\n"


def audit_rate() -> Iterator[Figure]:
    """Durable, chained records a second: a tick's records at once, and one by one."""
    for name, batch, batches, target in (("audit_rate", 250, 20, 5000.0), ("audit_rate_single", 1, 500, None)):
        with tempfile.TemporaryDirectory(dir=ROOT) as folder, Journal(Path(folder) / "audit.db") as journal:
            records = [_record(n) for n in range(batch)]

            def work(journal: Journal = journal, records: list[Record] = records, batches: int = batches) -> None:
                for _ in range(batches):
                    journal.append(records)

            rate = batch * batches / best(3, work)
            assert journal.verify().ok
        how = f"{batch} record{'s' if batch > 1 else ''} of about 650 bytes an append, each append on the disk before it returns; best of 3"
        yield Figure(name=name, value=round(rate), unit="records/s", target=target, met=None if target is None else rate >= target, how=how)


def backtest_24h() -> Iterator[Figure]:
    """A day of 1,000 workers, decided on every 30 s."""
    found = past.measure(24.0)
    sizes = f"{past.WORKERS:,} workers, {4 * past.GRAPHS} policies, {found['operations']:,.0f} operations"
    how = f"{found['steps']:.0f} steps over a real Prometheus, {sizes}"
    yield seconds("backtest_24h", found["seconds"], 30.0, f"{how}; one run, by the clock")
    yield seconds("backtest_24h_cpu", found["cpu"], 30.0, "processor time of the backtest's own process in that run, its start included")
    megabytes = found["bytes"] / 1e6
    yield Figure(
        name="backtest_24h_memory",
        value=round(megabytes),
        unit="MB",
        target=500.0,
        met=megabytes <= 500,
        how="peak of the backtest's own process",
    )


def whole_tick() -> Iterator[Figure]:
    """Metrics from a real Prometheus to what is offered for carrying out, and recorded."""
    found = tick.measure()
    decided = f"{found['findings']:,.0f} findings, {found['operations']:,.0f} operations"
    how = (
        f"{large.WORKERS:,} workers with {len(tick.GAUGES)} gauges each in a real Prometheus: queries, snapshot, deciding ({decided}), "
        "what is new for the audit; processor time of the engine's own process, best of 3"
    )
    yield seconds("tick", found["cpu"], 1.0, how)
    yield seconds("tick_wall", found["wall"], None, "the same by the clock: Prometheus has the other core")
    megabytes = found["bytes"] / 1e6
    how = "peak of that process, the fleet and its history of one snapshot included"
    yield Figure(name="tick_memory", value=round(megabytes), unit="MB", target=500.0, met=megabytes <= 500, how=how)


def notice_to_order() -> Iterator[Figure]:
    """What a notice asks for, from the agent that sees it to the orders that it gets, while an engine of that size ticks."""
    found = notice.measure()
    number, ticks = len(found["freeze"]), found["ticks"]
    how = (
        f"{number} notices at any moment of {ticks} ticks: seen by a real agent, decided on with {large.WORKERS:,} workers, to the freeze"
        f" order back there, over TLS; store and audit on a disk that takes {found['fsync']:.2f} ms to write a page; of what shares two"
        " cores the agent and its workers' control APIs go before the engine (for root), and Prometheus after it"
    )
    freeze, first = notice.at(found["freeze"], 0.99), notice.at(found["first"], 0.99)
    yield Figure(name="notice_to_order_p99", value=round(freeze, 1), unit="ms", target=50.0, met=freeze <= 50.0, how=how)
    yield Figure(
        name="notice_to_order_p50", value=round(notice.at(found["freeze"], 0.5), 1), unit="ms", target=None, met=None, how="the median"
    )
    yield Figure(
        name="notice_to_first_order_p99", value=round(first, 1), unit="ms", target=None, met=None, how="to its first order, a preflight"
    )


def _record(n: int) -> Record:
    return Record(
        at=large.NOW,
        kind=RecordKind.FINDING,
        subject=f"worker-{n:05d}",
        what="save-sessions: pass: no notice is open for its node",
        epoch=Epoch(7),
        commit=Commit("c" * 40),
        body={"policy": "save-sessions", "verdict": "pass", "reason": "no notice is open for its node", "evidence": ["x" * 300]},
    )


def moves() -> Iterator[Figure]:
    """Real moves with CRIU, against what can be done by hand. Only as root: elsewhere there are no figures, and that is said."""
    if os.geteuid() != 0:
        print("moves: not measured: they need root, for network namespaces and CRIU", file=sys.stderr)
        return
    sizes = ((1000, 6, 6, ""), (128, 8, 6, "_148mb"))
    for megabytes, number, _copies, suffix in sizes:
        found = _in_lab("stopped.py", "--moves", str(number), "--weights-mb", str(megabytes))[-1]
        ratio, ours, hand = found["ratio"], found["total"]["median"], found["by_hand"]["median"]
        how = f"an image of {found['image_mb']} MB: {ours} s against {hand} s by CRIU dump, cp and restore; medians of {number}, in turn"
        how += f" (the fastest of each: {found['total']['min']} s, {found['by_hand']['min']} s)"
        yield Figure(name=f"stopped_over_by_hand{suffix}", value=ratio, unit="ratio", target=0.7, met=ratio <= 0.7, how=how)
    for megabytes, _number, copies, suffix in sizes:
        arguments = ("--weights-mb", str(megabytes), "--copies", str(copies), "--suffix", suffix)
        yield from (msgspec.convert(figure, Figure) for figure in _in_lab("moved.py", *arguments))


def cluster() -> Iterator[Figure]:
    """An engine's start at a real API server, in a process of its own. Where none was built that is said, and there are no figures."""
    command = [sys.executable, str(ROOT / "tests" / "bench" / "cluster_pods.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        print("cluster: not measured, for the reason above", file=sys.stderr)
    yield from (msgspec.json.decode(line, type=Figure) for line in done.stdout.splitlines() if line.startswith("{"))


def _in_lab(script: str, *arguments: str) -> list[Any]:
    """The JSON lines that a bench prints in a lab of its own."""
    command = [str(ROOT / "scripts" / "lab"), sys.executable, str(ROOT / "tests" / "bench" / script), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [msgspec.json.decode(line) for line in done.stdout.splitlines() if line.startswith("{")]


BENCHES: dict[str, Callable[[], Iterator[Figure]]] = {
    "decide": decide,
    "placement_500": placement_500,
    "evaluate_10m": evaluate_10m,
    "cli_help": cli_help,
    "validate_500": validate_500,
    "audit_rate": audit_rate,
    "tick": whole_tick,
    "notice": notice_to_order,
    "backtest_24h": backtest_24h,
    "moves": moves,
    "cluster": cluster,
}


def main() -> int:
    """0: measured, met or not. 2: there is no bench of that name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=list(BENCHES), help="one bench; all without it")
    options = parser.parse_args()
    figures = []
    for name in [options.name] if options.name else BENCHES:
        for figure in BENCHES[name]():
            print(msgspec.json.encode(figure).decode(), flush=True)
            figures.append(figure)
    (ROOT / "bench.json").write_bytes(msgspec.json.format(msgspec.json.encode(figures)) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
