"""From where a notice is first said to the worker's streams going on elsewhere, on the real parts."""

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import MakeScene
from fleet import ANY, GATEWAY, Fleet, NodePlan, WorkerPlan

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "agent_notices"))
from metadata_services import Aws, serving  # pyright: ignore[reportMissingImports]  (found by the line above)

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption, gpu-failing], reserve: 5s, otherwise: [checkpoint, drain]}
"""
TWO_WORKERS = (
    NodePlan("node-a", 11, (ANY, ANY), (WorkerPlan("decode-0", "decode", 0, 111), WorkerPlan("decode-1", "decode", 1, 112))),
    NodePlan("node-b", 12, (ANY, ANY), ()),
)


def configured(fleet: Fleet, node: str, *, first: str = "", slot: str = "") -> None:
    """Give a node's agent more settings: `first` at the top of the file, `slot` in its first slot."""
    plain = fleet.nodes[node].write_config

    def write() -> None:
        plain()
        config = fleet.nodes[node].config
        config.write_text(f"{first}\n" + config.read_text().replace("gpus = 0", f"gpus = 0\n{slot}", 1))

    fleet.nodes[node].write_config = write  # type: ignore[method-assign]


def test_a_spot_interruption_in_the_metadata_service_moves_the_worker(scene: MakeScene) -> None:
    """Nobody posts anything: the agent finds it where AWS says it, and the deadline is AWS's own."""
    service = Aws()
    with ExitStack() as stack:

        def prepare(fleet: Fleet) -> None:  # the network that the node reaches it by is there from here on
            stack.enter_context(serving(service, host=GATEWAY))
            configured(fleet, "node-a", first=f'clouds = [{{name = "aws", url = "{service.url}"}}]')

        s = scene(policies={"save.yaml": SAVE}, prepare=prepare, prometheus=False)
        s.stream(400)
        s.fleet.start_engine()
        ends = (datetime.now(UTC) + timedelta(seconds=90)).strftime("%Y-%m-%dT%H:%M:%SZ")
        asked = s.fleet.shunter("notices", "-c", str(s.fleet.folder / "engine.toml"), "--notice", "node-a=preemption:60s", "--json")
        (here, there) = json.loads(asked.stdout)["nodes"]
        assert (here["sources"], here["problems"]) == (["aws", "file"], [])
        assert (set(here["canaries"]), set(there["canaries"])) == ({"aws", "file"}, {"file"}), "each was tried out, and none is a notice"
        assert [(o["kind"], o["to_slot"]) for o in here["notices"][0]["operations"]] == [("move", "node-b/0")]
        assert here["notices"][0]["alone"] == {"decode-0": "it is taken out of the router's sight, and an image of it goes to node-b"}, (
            "and were the engine away"
        )
        assert (there["notices"], s.outcomes("move")) == ([], []), "it was only asked"
        service.says["spot/instance-action"] = f'{{"action": "terminate", "time": "{ends}"}}'
        moved = s.outcome("move")
    assert (moved["status"], moved["to"]) == ("succeeded", "node-b/0"), moved
    (noticed,) = [r["body"]["notice"] for r in s.audit("notice")]
    assert (noticed["kind"], noticed["source"]) == ("preemption", "aws")
    assert noticed["deadline"] == datetime.fromisoformat(ends).timestamp()
    s.whole()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Writes a line into what node-a takes for the kernel's log (see `heard`), which holds such a line only where there is such a GPU."""
    os.mkfifo(tmp_path / "kmsg")
    written = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    yield lambda line: os.write(written, f"{line}\n".encode())
    os.close(written)


def heard(folder: Path) -> Callable[[Fleet], None]:
    return lambda fleet: configured(fleet, "node-a", first=f'kernel_log = "{folder / "kmsg"}"', slot='pci = ["0000:4f:00"]')


def test_an_error_of_one_gpu_moves_the_worker_on_it_and_leaves_its_neighbour(
    scene: MakeScene, kernel: Callable[[str], int], tmp_path: Path
) -> None:
    s = scene(nodes=TWO_WORKERS, policies={"save.yaml": SAVE}, prepare=heard(tmp_path), prometheus=False)
    s.stream(400, spread="1,1")
    s.fleet.start_engine()
    kernel("4,1,1000000,-;NVRM: Xid (PCI:0000:4F:00): 48, pid=1, name=worker, DBE (double bit error) occurred")
    moved = s.outcome("move")
    assert (moved["status"], moved["from"], moved["to"].partition("/")[0]) == ("succeeded", "node-a/0", "node-b"), moved
    (noticed,) = [r["body"]["notice"] for r in s.audit("notice")]
    assert (noticed["kind"], noticed["slot"], noticed["source"]) == ("gpu-failing", "node-a/0", "gpu")
    s.whole()
    assert len(s.outcomes("move")) == 1, "decode-1 stays where it is"


GOOD = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [gone]}
---
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec: {workers: {graph: tiny}, every: 3s}
"""


def test_a_process_that_a_gpus_error_made_suspect_comes_back_from_an_image_of_before(
    scene: MakeScene, kernel: Callable[[str], int], tmp_path: Path
) -> None:
    """No image is taken of it any more; once it has ended, the last good one counts, and images are taken again."""
    s = scene(policies={"good.yaml": GOOD}, prepare=heard(tmp_path), prometheus=False)
    config = str(s.fleet.folder / "engine.toml")
    s.fleet.start_engine()
    taken = s.outcome("checkpoint")
    assert taken["status"] == "succeeded"
    s.wait("it to be of well before the error", lambda: time.time() - taken["at"] > 1.2)
    kernel(f"4,1,{time.monotonic() * 1e6:.0f},-;NVRM: Xid (PCI:0000:4F:00): 31, pid=1, name=worker, MMU Fault")
    s.wait("it to be said", lambda: "XID 31 on 0000:4f:00" in s.fleet.shunter("why", "decode-0", "-c", config, check=False).stdout)
    s.wait("what is under way to end", lambda: len(s.outcomes("checkpoint")) == len(s.audit("intent")))
    good = [taken["image"] for taken in s.outcomes("checkpoint")]
    with sqlite3.connect(s.fleet.nodes["node-a"].folder / "state" / "journal.db") as journal:
        (row,) = (json.loads(body) for (body,) in journal.execute("SELECT body FROM workers"))
    assert "XID 31" in row["doubt"]
    os.kill(row["process"]["pid"], signal.SIGKILL)
    restored = s.outcome("restore")
    assert (restored["status"], restored["image"] in good) == ("succeeded", True), restored
    s.wait("images again", lambda: len(s.outcomes("checkpoint")) > len(good))
    assert s.copies("decode-0") == 1
