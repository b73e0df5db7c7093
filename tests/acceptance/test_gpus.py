"""A worker with its weights and KV cache in GPU memory, moved by the engine between nodes with GPUs of their own (a stand-in's)."""

import os
from collections.abc import Iterator
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

    def __init__(self, folder: Path, device: Path) -> None:
        self.device, self.library = device, folder / "library"
        self.library.mkdir()
        build(self.library)
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
def gpus(tmp_path: Path) -> Iterator[Gpus]:
    with private_dev(tmp_path / "dev") as device:
        yield Gpus(tmp_path, device)


def test_preempted_workers_take_their_gpu_memory_along_and_have_it_back_when_that_fails(scene: MakeScene, gpus: Gpus) -> None:
    """First the GPU at the destination lacks memory: the move is rolled back and said why, and the worker moves to the other node, since
    its own still goes. Then that one goes, too. The streams go on, from weights and a KV cache that are on another GPU each time. What the
    worker needed of GPUs, the drivers have said.
    """
    s = scene(nodes=NODES, policies={"save.yaml": SAVE}, prepare=gpus.prepare, prometheus=False)
    s.stream(400)
    a, b, c = gpus.of.values()
    weights = s.fleet.weights_mb << 20
    assert a.taken() > weights
    b.fail("restore", "2")
    s.fleet.start_engine()
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "n1")
    back = s.outcome("move")
    assert (back["status"], back["outcome"]["code"]) == ("rolled-back", "SH741"), back
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in back["outcome"]["reason"]
    assert a.calls()[:4] == ["lock 0", "checkpoint 0", "restore 0", "unlock 0"]
    assert b.calls()[0] == "restore 2"
    s.wait("the second move", lambda: len(s.outcomes("move")) == 2)
    saved = s.outcomes("move")[1]
    assert (saved["status"], saved["to"]) == ("succeeded", "node-c/0"), saved
    assert (a.taken(), c.taken() > weights) == (0, True)

    before = len(c.calls()), len(b.calls())
    s.fleet.nodes["node-c"].post_notice("preemption", "90s", "n2")
    s.wait("the third move", lambda: len(s.outcomes("move")) == 3)
    moved = s.outcomes("move")[2]
    assert (moved["status"], moved["from"], moved["to"]) == ("succeeded", "node-c/0", "node-b/0"), moved
    assert (c.calls()[before[0] :], b.calls()[before[1] :]) == (["lock 0", "checkpoint 0"], ["restore 0", "unlock 0"])
    s.whole()
    assert (c.taken(), b.taken() > weights) == (0, True)
    assert s.copies("decode-0") == 1
    assert s.discovered() == 1
