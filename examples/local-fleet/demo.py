"""The main job on one machine, while you watch.

A node is preempted, and its decode worker's streams go on elsewhere; then traffic shifts, and decode makes way for prefill.

scripts/demo            (as root: in a lab with CRIU; otherwise with the `pretend` runtime, which moves nothing, and says so)
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from byhand import move_by_hand
from fleet import HERE, Fleet
from machine import SetUpError, wait_for
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from shunter.audit.journal import Journal
from shunter.model.errors import Stalled
from shunter.model.record import RecordKind

STREAM_TOKENS = 1500
SPREAD = (4, 4, 2)
"""Streams on each decode worker."""
CALM, RUSH = "5", "16"
"""Prefill jobs per second before and after the shift; a prefill worker does 10."""

NOTICE = "preempt-node-a"


class Demo:
    """One run. Steps are methods, in the order in which they are seen."""

    def __init__(self, fleet: Fleet, console: Console) -> None:
        self.fleet, self.console = fleet, console
        self.begun = time.monotonic()
        self.report_path = fleet.folder / "clients.json"
        self.rate = fleet.folder / "rate"
        self.commit = ""
        self.preview: list[dict[str, Any]] = []
        self.by_hand: float | None = None
        self.engine: subprocess.Popen[bytes] | None = None
        self.mark = "[bold yellow]pretend[/] " if fleet.pretend else ""

    # -- what people read

    def say(self, text: str) -> None:
        """One line of the account, with the time since the start."""
        self.console.print(f"{self.mark}[cyan]{time.monotonic() - self.begun:6.1f} s[/]  {text}", highlight=False)

    def title(self, text: str) -> None:
        """A heading."""
        self.console.print()
        self.console.rule(f"[bold]{text}[/]", align="left")

    # -- what the product says

    def outcomes(self, kind: str) -> list[dict[str, Any]]:
        """Operations of a kind that succeeded, oldest first: their worker, slots, notice, policy, reason and what was measured.

        None before the engine has begun its audit. It is read in this process, as it is asked for again and again: a command each time
        would take half a core from what is measured.
        """
        try:
            with Journal(self.fleet.state / "audit.db", read_only=True) as journal:
                records = [sealed.record for sealed in journal.list(kind=RecordKind.OUTCOME, limit=None)]
        except Stalled:
            return []
        found = []
        for record in records:
            body: dict[str, Any] = record.body
            if "outcome" in body:
                found.append({**body, **body["outcome"], "reason": body["reason"], "worker": record.subject})
        return [one for one in found if one["kind"] == kind and one["status"] == "succeeded"]

    def streams(self) -> list[dict[str, Any]]:
        """What the clients saw so far."""
        return list(json.loads(self.report_path.read_text())["streams"]) if self.report_path.exists() else []

    def wait_for(self, what: str, condition: Callable[[], object], timeout: float, every: float) -> None:
        """As `machine.wait_for`, but not on an engine that has ended. Raises SetUpError."""

        def met() -> object:
            status = self.engine.poll() if self.engine else None
            if status is not None:
                raise SetUpError(f"{what}: the engine ended with status {status}")
            return condition()

        wait_for(what, met, timeout, every)

    # -- steps

    def build(self) -> None:
        """Nodes, workers, policies, metrics, clients."""
        fleet = self.fleet
        self.title("A fleet of three nodes")
        where = "agents on loopback ports" if fleet.pretend else "network namespaces on one bridge, an agent in each"
        self.say(f"3 nodes ({where}); workers start: 2 prefill, 3 decode, each a process tree of its own")
        fleet.start_nodes()
        self.commit = fleet.make_repository()
        self.say(
            f"policies: a bare Git repository, commit {self.commit[:12]}: "
            + ", ".join(p.name for p in sorted((HERE.parent / "policy-repo" / "policies").glob("*.yaml")))
        )
        fleet.start_prometheus()
        self.say("Prometheus scrapes every worker once a second")
        self.rate.write_text(CALM)
        asked = ["--spread", ",".join(map(str, SPREAD)), "--tokens", str(STREAM_TOKENS), "--weights-mb", str(fleet.weights_mb)]
        files = ["--discovery", str(fleet.discovery), "--control", str(self.rate), "--report", str(self.report_path)]
        fleet.run(sys.executable, str(HERE / "clients.py"), *asked, *files, log="clients.log")
        wait_for("all streams to have begun", lambda: sum(s["got"] > 0 for s in self.streams()) == sum(SPREAD), 40)
        self.say(f"{len(self.streams())} clients stream {STREAM_TOKENS} numbered tokens each, and check every one")

    def start_engine(self) -> None:
        """The engine, and its first periodic images."""
        self.title("The engine: policies from Git, metrics from Prometheus, every second")
        self.engine = self.fleet.start_engine(log="")
        self.wait_for("an image of every decode worker", lambda: len({o["worker"] for o in self.outcomes("checkpoint")}) >= 3, 60, 0.5)
        self.say("every decode worker has an image on two nodes; its clients saw a short pause")

    def preempt(self) -> None:
        """Preview, notice, move."""
        self.title("What would happen if node-a were preempted in 120 s? (a preview: nothing is done)")
        config = str(self.fleet.engine_config)
        self.console.print(
            self.fleet.shunter("plan", "--config", config, "--notice", "node-a=preemption:120s").stdout, markup=False, highlight=False
        )
        printed = self.fleet.shunter("plan", "--config", config, "--notice", "node-a=preemption:120s", "--format", "json").stdout
        self.preview = [o for o in json.loads(printed)["operations"] if o["lane"] == "involuntary"]
        self.title("node-a is preempted: the notice reaches its agent")
        noticed = time.monotonic()
        self.fleet.nodes["node-a"].post_notice("preemption", "120s", NOTICE)
        self.say("notice posted: preemption, deadline in 120 s")
        self.wait_for("decode-0 to be moved", lambda: any(o["worker"] == "decode-0" for o in self.outcomes("move")), 60, 0.2)
        self.wait_for("prefill-0 to be parked", lambda: any(o["worker"] == "prefill-0" for o in self.outcomes("park")), 60, 0.2)
        self.say(f"node-a is empty {time.monotonic() - noticed:.1f} s after the notice; the cloud takes it away now")
        self.fleet.nodes["node-a"].power_off()

    def shift(self) -> None:
        """Traffic turns to prefill."""
        self.title("The traffic shifts: prompts queue, decode has room")
        self.rate.write_text(RUSH)
        self.say(f"prefill jobs: {CALM} to {RUSH} per second; the one prefill worker that is left does 10")
        self.wait_for("decode-2 to make way", lambda: any(o["worker"] == "decode-2" for o in self.outcomes("move")), 90, 0.2)
        self.wait_for("prefill-0 to be back", lambda: any(o["worker"] == "prefill-0" for o in self.outcomes("restore")), 60, 0.2)
        self.say("prefill-0 serves again, restored from its image; decode-2 went on elsewhere with its sessions")
        self.rate.write_text(CALM)

    def measure_by_hand(self) -> None:
        """The same move with criu and cp."""
        if self.fleet.pretend:
            return
        moved = next(o for o in self.outcomes("move") if o["worker"] == "decode-0")
        megabytes = max(1, round(moved["measured"]["bytes"] / 2**20) - 12)  # 12 MB: the interpreter itself
        self.title("For comparison: a worker of the same size moved by hand, with criu and cp")
        self.by_hand = move_by_hand(self.fleet.folder / "by-hand", self.fleet.criu, megabytes)
        self.say(f"dump, cp and restore of {megabytes} MiB by hand: {self.by_hand:.2f} s")

    def table(self) -> Table:
        """What was done, in the audit's own words."""
        table = Table(show_edge=False, pad_edge=False)
        for column in ("operation", "worker", "from", "to", "stopped", "image"):
            table.add_column(column, no_wrap=True)
        table.add_column("why", overflow="fold")
        for outcome in (*self.outcomes("move"), *self.outcomes("park"), *self.outcomes("restore")):
            stopped, size = outcome["measured"].get("stopped"), outcome["measured"].get("bytes")
            measured = (f"{stopped:.2f} s" if stopped is not None else "", f"{size / 1e6:.0f} MB" if size else "")
            where = (outcome["from"] or "", outcome["to"] or "")
            table.add_row(outcome["kind"], outcome["worker"], *where, *measured, outcome["reason"])
        return table

    def finish(self) -> dict[str, Any]:
        """Wait for the last token; the table and the figures."""
        self.wait_for("all streams to end", lambda: all(s["ended"] for s in self.streams()), 120, 0.5)
        streams = self.streams()
        moves = {o["worker"]: o for o in self.outcomes("move")}
        noticed = f"node-a/{NOTICE}"  # as engines tell notices of several nodes apart
        did = sorted((o["kind"], o["worker"]) for o in (*self.outcomes("move"), *self.outcomes("park")) if o["notice"] == noticed)
        as_previewed = did == sorted((o["kind"], o["worker"]) for o in self.preview)
        verified = self.fleet.shunter("audit", "verify", "--state", str(self.fleet.state), check=False)
        self.title("What the clients saw, and what the audit says")
        self.console.print(self.table())
        worst = max(streams, key=lambda s: float(s["longest_pause_s"]))
        when = datetime.fromtimestamp(worst["paused_at"], UTC).strftime("%H:%M:%S")
        self.say(
            f"the longest pause that a client saw: {worst['longest_pause_s']:.2f} s, {worst['session']} of {worst['worker']}, until {when}"
        )
        self.say(f"done as previewed: {'yes' if as_previewed else f'[red]no[/]: {did}'}")
        self.say(verified.stdout.strip() or verified.stderr.strip())
        complete = [s for s in streams if s["got"] == s["wanted"] and not (s["lost"] or s["duplicated"] or s["corrupt"] or s["error"])]
        for stream in streams:
            if stream not in complete:
                self.say(f"[red]incomplete[/]: {stream}")
        return {
            "streams": len(streams),
            "streams_complete": len(complete),
            "tokens_lost": sum(s["lost"] for s in streams),
            "tokens_duplicated": sum(s["duplicated"] for s in streams),
            "tokens_corrupt": sum(s["corrupt"] for s in streams),
            "longest_pause_s": round(max(s["longest_pause_s"] for s in streams), 3),
            "worker_stopped_s": _round(moves["decode-0"]["measured"].get("stopped")),
            "by_hand_s": _round(self.by_hand),
            "policy_commit": self.commit,
            "as_previewed": as_previewed,
            "reassigned": "decode-2" in moves and any(o["worker"] == "prefill-0" for o in self.outcomes("restore")),
            "audit_ok": verified.returncode == 0,
            **({"pretend": True} if self.fleet.pretend else {}),
        }

    def run(self) -> dict[str, Any]:
        """All steps."""
        self.build()
        self.start_engine()
        self.preempt()
        self.shift()
        self.measure_by_hand()
        return self.finish()


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    """A folder of its own, removed at the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="shunter-demo-"))
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _raise_interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; 0 when every stream is whole and all figures are as they must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--pretend", metavar="WHY", help="use the pretend runtime, and say why")
    parser.add_argument("--criu", type=Path, default=Path("/opt/shunter/criu/bin/criu"))
    parser.add_argument("--weights-mb", type=int, default=128, help="memory of each worker before its sessions")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs, images and the audit")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _raise_interrupt)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.pretend:
        console.print(
            f"[bold yellow]pretend[/]: {options.pretend}"
            "\nEverything runs but the checkpoint itself: workers are stopped and continued, not moved."
        )
    try:
        with (
            _folder(options.keep) as folder,
            Fleet(folder, pretend=bool(options.pretend), criu=options.criu, weights_mb=options.weights_mb) as fleet,
        ):
            demo = Demo(fleet, console)
            try:
                figures = demo.run()
            except SetUpError as error:
                for log in sorted([*folder.glob("*.log"), *folder.glob("node-*/agent.log")]):
                    tail = log.read_text(errors="replace").splitlines()[-15:]
                    console.print(f"--- {log.relative_to(folder)}", *tail, sep="\n", markup=False, highlight=False)
                console.print(f"[red]The demo stopped:[/] {escape(str(error))}")
                return 1
    except KeyboardInterrupt:
        console.print("\nInterrupted: everything that the demo made is gone.")
        return 130
    print(json.dumps(figures), flush=True)
    whole = figures["streams_complete"] == figures["streams"] and figures["reassigned"] and figures["audit_ok"]
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
