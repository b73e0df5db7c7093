"""A real Dynamo: frontend, router, discovery and workers, of which one is moved in mid-stream. Without a GPU: its engine is synthetic."""

import asyncio
import contextlib
import ctypes
import errno
import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import httpx
import pytest
from dynamo_fleet import DECODE, DYNAMO, HERE, SYSTEM_PORT, Clients, DynamoFleet
from fleet import SetUpError, WorkerPlan
from move import Move, until
from shunter_agent.runtime.port import WorkerSpec
from shunter_agent.serving.dynamo import DynamoServing
from token_chain import WORD, chain, read, whole

NO_SUCH_CALL = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.syscall(425, 1, None), ctypes.get_errno())"


class TestWithoutIoUring:
    def run(self, *command: str) -> str:
        done = subprocess.run([sys.executable, str(HERE / "without_io_uring.py"), *command], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def test_the_system_call_is_not_there_for_the_command(self) -> None:
        assert self.run(sys.executable, "-c", NO_SUCH_CALL) == f"-1 {errno.ENOSYS}"

    def test_nor_for_its_children(self) -> None:
        child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {NO_SUCH_CALL!r}])"
        assert self.run(sys.executable, "-c", child) == f"-1 {errno.ENOSYS}"

    def test_it_is_there_for_everybody_else(self) -> None:
        """Else the tests before would say nothing."""
        kernel = ctypes.CDLL(None, use_errno=True)
        assert (kernel.syscall(425, 1, None), ctypes.get_errno() in (errno.EFAULT, errno.EPERM)) == (-1, True)


class TestTokenChain:
    def test_what_is_generated_is_what_is_read(self) -> None:
        ids = list(islice(chain(4711), 300))
        assert len(set(ids)) > 250
        assert read("".join(WORD.format(number) for number in ids)) == ids
        assert whole(ids, 300) == ""

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda ids: ids[:-1], "199 tokens"),
            (lambda ids: [*ids[:80], *ids[79:-1]], "token 80"),
            (lambda ids: [*ids[:80], *ids[81:], 1000], "token 80"),
            (lambda ids: [*ids[:50], *islice(chain(5000), 150)], "token 50"),
        ],
    )
    def test_a_lost_a_doubled_and_a_foreign_token_are_noticed(self, change: Callable[[list[int]], list[int]], words: str) -> None:
        """The last case is a session that was begun anew in its middle, as Dynamo's own migration does."""
        assert words in whole(change(list(islice(chain(4711), 200))), 200)

    def test_other_text_is_no_token(self) -> None:
        with pytest.raises(ValueError, match="more in it"):
            read(" w1000 oops w1001")


class WithoutControls(DynamoFleet):
    """Its agents know of no control API: workers are fenced and registered again by their records alone."""

    def worker_lines(self, worker: WorkerPlan) -> list[str]:
        return [line for line in super().worker_lines(worker) if not line.startswith("control = ")]


@pytest.fixture(params=[DynamoFleet, WithoutControls], ids=["controls", "records"])
def fleet(tmp_path: Path, criu: Path, request: pytest.FixtureRequest) -> Iterator[DynamoFleet]:
    if not (DYNAMO / "ready").exists():
        reason = DYNAMO / "why-not"
        pytest.skip(f"no Dynamo: {reason.read_text().strip() if reason.exists() else 'run scripts/install-dynamo'}")
    made: DynamoFleet = request.param(tmp_path / "fleet", criu=criu)
    with made:
        yield made
    shutil.rmtree(made.folder, ignore_errors=True)


def logs(fleet: DynamoFleet) -> str:
    """The ends of all logs, for a failed test's report."""
    found = sorted([*fleet.folder.glob("*.log"), *fleet.folder.glob("node-*/agent.log")])
    return "\n".join(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in found)


@pytest.mark.lab
@pytest.mark.timeout(180)
async def test_a_decode_worker_moves_in_mid_stream(fleet: DynamoFleet) -> None:
    """Nobody but Shunter notices: neither the clients, nor those that come meanwhile, nor Dynamo, which has nothing to migrate."""
    move = Move(fleet, clients=4, tokens=700)
    try:
        move.build()
        figures = await move.run()
    except SetUpError as error:
        raise AssertionError(f"{error}\n{logs(fleet)}") from error
    assert (figures["streams_whole"], figures["problems"]) == (figures["streams"], []), logs(fleet)
    assert figures["begun_while_it_moved"] >= 3, "nobody came while the worker was hidden"
    assert figures["still_streaming_after_the_move"] == 4, "the move came too late to prove anything"
    assert (figures["move"], figures["from"], figures["to"]) == ("succeeded", "node-a/0", "node-b/0"), figures
    assert (figures["copies"], figures["elsewhere"]) == (1, True), figures
    assert figures["same_instance"]
    assert figures["dynamo_migrations"] == 0


def slow_restores(fleet: DynamoFleet, node: str) -> tuple[Path, Path, Path]:
    """Let a node's CRIU wait for the file `go` once `armed` is there, and say by `begun` that it was asked. Returns (armed, begun, go)."""
    place = fleet.nodes[node]
    script, armed, begun, go = (place.folder / name for name in ("criu-slow", "armed", "begun", "go"))
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = swrk ] && [ -e {armed} ]; then touch {begun}; while [ ! -e {go} ]; do sleep 0.05; done; fi\n'
        f'exec {fleet.criu} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    place.config.write_text(place.config.read_text().replace(f'criu = "{fleet.criu}"', f'criu = "{script}"'))
    return armed, begun, go


def card(fleet: DynamoFleet, instance: int | None) -> float | None:
    """When a worker's model card in discovery was last renewed, seconds since the epoch; None when it isn't there."""
    for path in (fleet.discovery / "v1" / "mdc").glob("*backend*"):
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            if json.loads(path.read_bytes())["instance_id"] == instance:
                return path.stat().st_mtime
    return None


async def renewed(fleet: DynamoFleet, instance: int | None) -> None:
    seen = card(fleet, instance)
    assert seen is not None
    await until("the lease to be renewed", lambda: (card(fleet, instance) or 0.0) > seen, 15)


@pytest.mark.lab
@pytest.mark.timeout(180)
async def test_a_freeze_that_outlasts_the_discovery_lease(fleet: DynamoFleet) -> None:
    """Dynamo forgets the worker meanwhile. Its streams go on all the same, nobody who comes meanwhile sees an error, and afterwards it is
    known again and stays so.
    """
    armed, begun, go = slow_restores(fleet, "node-b")
    fleet.engine_config.write_text(fleet.engine_config.read_text().replace('hold = "20s"', 'hold = "60s"'))
    move = Move(fleet, clients=2, tokens=400)
    try:
        move.build()
        await until("the policies", lambda: move.audit("policies"), 30)
        instance = fleet.instance()
        streaming = asyncio.create_task(move.during.run(120))
        await until("the streams to begin", lambda: all(s.chunks > 20 for s in move.during.streams), 30)
        spec = WorkerSpec(
            worker=DECODE, role="decode", graph="tiny", engine="x", address="10.77.0.111:9000", control=f"http://10.77.0.111:{SYSTEM_PORT}"
        )
        with httpx.Client(trust_env=False) as client:
            assert await asyncio.to_thread(DynamoServing(fleet.discovery, client=client).inflight, spec) == 2
        await asyncio.to_thread(fleet.open_other)
        ended = asyncio.Event()
        coming = asyncio.create_task(move.newcomers.run(lambda: not ended.is_set(), 120))
        armed.touch()
        fleet.nodes["node-a"].post_notice("preemption", "90s", "spot-0")
        await until("the restore to begin", begun.exists, 30)
        await until("Dynamo to forget the worker", lambda: card(fleet, instance) is None and fleet.instance() is None, 40)
        go.touch()
        moved = await until("the move to end", move.moved, 60)
        assert moved["status"] == "succeeded", moved
        assert moved["measured"]["stopped"] > 5
        await until("Dynamo to know the worker again", lambda: fleet.instance() == instance, 15)
        ended.set()
        await asyncio.gather(streaming, coming)
        assert [s.verdict() for s in move.during.streams] == ["", ""], logs(fleet)
        since, until_ = move.hidden()
        while_frozen = [s for s, at in zip(move.newcomers.streams, move.newcomers.begun, strict=True) if since <= at <= until_]
        assert len(while_frozen) >= 5, "nobody came while it stood still"
        assert [verdict for s in move.newcomers.streams if (verdict := s.verdict())] == [], logs(fleet)
        for _ in range(2):  # it isn't known again by chance: its lease is renewed
            await renewed(fleet, instance)
        after = Clients(fleet.model, 3, 40)
        await after.run(60)
        assert [s.verdict() for s in after.streams] == ["", "", ""], logs(fleet)
        assert fleet.migrations() == 0
    except SetUpError as error:
        raise AssertionError(f"{error}\n{logs(fleet)}") from error
