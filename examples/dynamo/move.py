"""Move a real Dynamo decode worker while clients stream through Dynamo's frontend.

    scripts/lab .venv/bin/python examples/dynamo/move.py

Ends with one JSON object: what was seen. Exit status 0 when every stream is whole and Dynamo had to do nothing for it.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "local-fleet"))

from dynamo_fleet import DECODE, DYNAMO, Clients, DynamoFleet, Newcomers
from fleet import SetUpError

POLICIES: Final = Path(__file__).resolve().parent / "policy-repo"


class Move:
    """One run: streams, a notice in their middle, the move, requests that begin meanwhile, and requests after it."""

    def __init__(self, fleet: DynamoFleet, clients: int, tokens: int, say: Callable[[str], None] = lambda _line: None) -> None:
        """`say` gets a line for each thing that happens."""
        self.fleet, self.say = fleet, say
        self.during = Clients(fleet.model, clients, tokens)
        self.newcomers = Newcomers(fleet.model, 20, every_s=0.05)
        self.after = Clients(fleet.model, clients, 50)

    def build(self) -> None:
        """Start everything; returns when Dynamo serves the model."""
        self.fleet.start_nodes()
        self.fleet.make_repository(POLICIES)
        self.fleet.start_engine()

    def audit(self, kind: str) -> list[dict[str, Any]]:
        """All audit records of a kind."""
        arguments = ("audit", "list", "--state", str(self.fleet.state), "--kind", kind, "--limit", "0", "--json")
        return [json.loads(line)["record"] for line in self.fleet.shunter(*arguments, check=False).stdout.splitlines()]

    def moved(self) -> dict[str, Any] | None:
        """The outcome of the worker's move, once there is one."""
        ended = [r["body"] | r["body"]["outcome"] for r in self.audit("outcome") if r["subject"] == DECODE]
        return next((body for body in ended if body["kind"] == "move"), None)

    def hidden(self) -> tuple[float, float]:
        """When the moving worker was out of discovery, from and to, in seconds since the epoch."""
        at = {r["body"]["step"]: r["at"] for r in self.audit("step") if r["subject"] == DECODE}
        return at["fenced"], at["unfenced"]

    async def run(self) -> dict[str, Any]:
        """The figures. Raises SetUpError when something doesn't come to be, TimeoutError when streams don't end."""
        fleet = self.fleet
        await until("the policies", lambda: self.audit("policies"), 30)
        instance, (process,) = fleet.instance(), fleet.decode_pids()
        network = fleet.netns(process)
        streaming = asyncio.create_task(self.during.run(120))
        await until("the streams to begin", lambda: all(s.chunks > 20 for s in self.during.streams), 30)
        await asyncio.to_thread(fleet.open_other)
        self.say(f"{len(self.during.streams)} clients stream from {DECODE} on node-a; a second decode worker takes new requests")
        ended = asyncio.Event()
        coming = asyncio.create_task(self.newcomers.run(lambda: not ended.is_set(), 60))
        fleet.nodes["node-a"].post_notice("preemption", "60s", "spot-0")
        self.say("node-a is to be preempted in 60 s")
        moved = await until("the move to end", self.moved, 60)
        midway = sum(not s.ended for s in self.during.streams)
        pids = fleet.decode_pids()
        networks = {fleet.netns(pid) for pid in pids}
        ended.set()
        if moved["status"] != "succeeded":
            streaming.cancel()
            raise SetUpError(f"the move is {moved['status']}: {moved['code']} {moved['outcome']['reason']}")
        self.say(f"moved to {moved['to']}, stood still for {moved['measured']['stopped']:.2f} s; {midway} streams go on")
        fleet.nodes["node-a"].power_off()
        self.say("node-a is powered off")
        await asyncio.gather(streaming, coming)
        await self.after.run(60)
        streams = [*self.during.streams, *self.newcomers.streams, *self.after.streams]
        since, until_ = self.hidden()
        return {
            "streams": len(streams),
            "streams_whole": sum(not s.verdict() for s in streams),
            "problems": [v for s in streams if (v := s.verdict())],
            "still_streaming_after_the_move": midway,
            "begun_while_it_moved": sum(since <= begun <= until_ for begun in self.newcomers.begun),
            "longest_pause_s": round(max(s.pause_s or 0.0 for s in self.during.streams), 3),
            "move": moved["status"],
            "reason": moved["reason"],
            "stopped_s": moved["measured"]["stopped"],
            "image_bytes": moved["measured"]["bytes"],
            "from": moved["from"],
            "to": moved["to"],
            "copies": len(pids),
            "elsewhere": networks.isdisjoint({network}) and len(networks) == 1,
            "same_instance": instance is not None and fleet.instance() == instance,
            "dynamo_migrations": fleet.migrations(),
            "sent_on_before_they_began": fleet.migrations("new_request"),
        }


def good(figures: dict[str, Any]) -> bool:
    """Every stream whole, those too that began meanwhile, in one move, on another node, under the same identity, and without Dynamo's own
    migration.
    """
    whole = figures["streams_whole"] == figures["streams"]
    whole = whole and figures["still_streaming_after_the_move"] > 0 and figures["begun_while_it_moved"] > 0
    moved = (figures["move"], figures["copies"], figures["elsewhere"]) == ("succeeded", 1, True)
    return whole and moved and figures["same_instance"] and not figures["dynamo_migrations"]


async def until(what: str, condition: Callable[[], Any], timeout_s: float) -> Any:  # noqa: ANN401  (what the condition gives)
    """Wait for the condition beside running streams, and return its value. Raises SetUpError after `timeout_s` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            while not (found := await asyncio.to_thread(condition)):
                await asyncio.sleep(0.1)
    except TimeoutError as error:
        raise SetUpError(f"{what}: not within {timeout_s:g} s") from error
    return found


class Said:
    """Lines for whoever watches, with the seconds since the first."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._began = out, time.monotonic()

    def __call__(self, line: str) -> None:
        """Print a line."""
        print(f"{time.monotonic() - self._began:6.2f} s  {line}", file=self._out, flush=True)


def main() -> int:
    """Build, move, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dynamo", type=Path, default=DYNAMO, help="what scripts/install-dynamo made")
    parser.add_argument("--criu", type=Path, default=Path("/opt/shunter/criu/bin/criu"))
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=800, help="for each client; they must outlast the move")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs, images and the audit")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shunter-dynamo-"))
    try:
        fleet = DynamoFleet(folder / "fleet", criu=options.criu, dynamo=options.dynamo)
        with fleet:
            move = Move(fleet, options.clients, options.tokens, Said(sys.stderr))
            move.say("starting Dynamo: a frontend with its KV router, a prefill worker and two decode workers; one of them on node-a")
            move.build()
            figures = asyncio.run(move.run())
    except (SetUpError, TimeoutError) as error:
        print(f"The run stopped: {error or 'streams did not end in time'}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(figures))
    return 0 if good(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
