"""A worker with its weights and KV cache in GPU memory, moved by the engine between nodes with GPUs of their own (a stand-in's)."""

import os
from pathlib import Path

import pytest
from conftest import MakeScene
from fleet import ANY, HERE, Fleet, NodePlan, WorkerPlan
from stub_gpus import STUB, StubNode, build, private_dev

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
    NodePlan("node-c", 13, (ANY,), ()),
)
SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s, otherwise: [checkpoint, drain]}
"""


class Gpus:
    """The stand-in's nodes, one for each of the fleet's."""

    def __init__(self, folder: Path) -> None:
        self.library = folder / "library"
        self.library.mkdir()
        build(self.library)
        self.device = private_dev(folder / "dev")
        self.of = {plan.name: StubNode(folder, plan.name) for plan in NODES}

    def prepare(self, fleet: Fleet) -> None:
        fleet.worker_script["decode-0"] = STUB / "fleet_worker.py"
        fleet.worker_env["decode-0"] = {"PYTHONPATH": f"{HERE}:{STUB}"}
        for name, node in fleet.nodes.items():
            self._prepare(node, self.of[name].environment(self.library, self.device))

    @staticmethod
    def _prepare(node, here: dict[str, str]) -> None:
        plain, config = node.start, node.write_config

        def start() -> None:
            os.environ.update(here)
            try:
                plain()
            finally:
                for name in here:
                    del os.environ[name]

        def write() -> None:  # what GPUs its slot has is for the driver to say
            config()
            node.config.write_text(node.config.read_text().replace('gpu_model = ""\n', "").replace("gpus = 0\n", ""))

        node.start, node.write_config = start, write


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path)


def test_a_preempted_worker_takes_its_gpu_memory_along(scene: MakeScene, gpus: Gpus) -> None:
    """Its streams go on, from weights and a KV cache that are on another GPU now. What it needed of GPUs, the drivers have said."""
    s = scene(nodes=NODES[:2], policies={"save.yaml": SAVE}, prepare=gpus.prepare, prometheus=False)
    s.stream(250)
    a, b = gpus.of["node-a"], gpus.of["node-b"]
    assert a.taken() > s.fleet.weights_mb << 20
    s.fleet.start_engine()
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    moved = s.outcome("move")
    assert (moved["status"], moved["to"]) == ("succeeded", "node-b/0"), moved
    assert (a.calls(), b.calls()) == (["lock 0", "checkpoint 0"], ["restore 0", "unlock 0"])
    s.whole()
    assert (a.taken(), b.taken() > s.fleet.weights_mb << 20) == (0, True)
    assert s.copies("decode-0") == 1
    assert s.discovered() == 1


def test_a_restore_that_lacks_gpu_memory_gives_the_source_its_gpu_back(scene: MakeScene, gpus: Gpus) -> None:
    """The move is rolled back, and said why; then the worker is saved by its image, since its node still goes. Its streams go on."""
    s = scene(nodes=NODES, policies={"save.yaml": SAVE}, prepare=gpus.prepare, prometheus=False)
    s.stream(200)
    a, b, _c = gpus.of.values()
    b.fail("restore", "2")
    s.fleet.start_engine()
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    moved = s.outcome("move")
    assert (moved["status"], moved["outcome"]["code"]) == ("rolled-back", "SH741"), moved
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in moved["outcome"]["reason"]
    assert a.calls()[:4] == ["lock 0", "checkpoint 0", "restore 0", "unlock 0"]
    assert b.calls()[0] == "restore 2"
    assert s.outcome("restore")["status"] == "succeeded"
    s.whole()
    assert a.taken() == 0
    assert s.copies("decode-0") == 1
    assert s.discovered() == 1
