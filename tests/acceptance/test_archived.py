"""Images in an archive, on the real parts: when all nodes that had a worker's image are dead, it comes back from there."""

import os
import re
import urllib.request

import pytest
from conftest import MakeScene
from fleet import ANY, Fleet, NodePlan, WorkerPlan

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
    NodePlan("node-c", 13, (ANY,), ()),
)
POLICIES = {
    "save.yaml": """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [gone], reserve: 5s}
""",
    "images.yaml": """
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec: {workers: {graph: tiny}, every: 1h, copies: 2, archive: true}
""",
}


def archived(fleet: Fleet) -> None:
    """Let all agents have one archive, encrypted: a folder."""
    key = fleet.folder / "archive.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    for node in fleet.nodes.values():
        node.write_config = _more(node.write_config, node.config, f'[archive]\nurl = "{fleet.folder / "archive"}"\nkeys = ["{key}"]\n')  # type: ignore[method-assign]


def _more(plain, config, text):  # type: ignore[no-untyped-def]
    def write() -> None:
        plain()
        config.write_text(config.read_text() + text)

    return write


def tokens() -> int:
    """How many tokens the worker has in its memory, which no other process has ever had."""
    with urllib.request.urlopen("http://10.77.0.111:9000/metrics", timeout=5) as reply:
        found = re.search(r"^shunter_worker_kv_tokens (\d+)", reply.read().decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_a_worker_comes_back_from_the_archive_when_both_nodes_that_had_its_image_are_dead(scene: MakeScene) -> None:
    s = scene(nodes=NODES, policies=POLICIES, prepare=archived, prometheus=False)
    s.stream(20)
    s.whole()
    before = tokens()
    assert before >= 20
    s.fleet.start_engine()
    taken = s.outcome("checkpoint")
    assert (taken["status"], taken["code"]) == ("succeeded", ""), taken
    image = taken["image"]
    assert (s.fleet.folder / "archive" / "images" / image).exists()
    holders = [name for name, node in s.fleet.nodes.items() if (node.folder / "state" / "images" / image).exists()]
    (third,) = set(s.fleet.nodes) - set(holders)
    assert "node-a" in holders
    for name in holders:
        s.fleet.nodes[name].power_off()
    for name in holders:
        s.wait(f"the silence of {name}", lambda name=name: [r for r in s.audit("source") if r["subject"] == f"agent {name}"])
        s.fleet.shunter("gone", name, "--yes", "--config", str(s.fleet.engine_config))
    restored = s.outcome("restore")
    assert (restored["status"], restored["to"], restored["policy"]) == ("succeeded", f"{third}/0", "save"), restored
    assert "in the archive alone" in restored["why"]
    assert (s.copies("decode-0"), tokens()) == (1, before)
    assert s.discovered() == 1
