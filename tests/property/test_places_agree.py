"""The engine chooses no place that the agent there refuses, and refuses none that the agent would take: both judge by the same figures.

What the engine knows is what the agent's own report says, over the wire; what the agent is asked is what the engine would ask it.
"""

import sys
from pathlib import Path
from random import Random

import msgspec
from shunter.model.plan import OperationKind
from shunter.model.snapshot import Effect, Toleration
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert as wire
from shunter_agent import capacity, convert, gpus, inventory
from shunter_agent.preflight import Room, preflight
from shunter_agent.runtime.port import Gpu, Gpus
from shunter_agent.settings import SlotSettings, TaintSettings

sys.path.append(str(Path(__file__).parents[1] / "unit" / "agent"))
sys.path.append(str(Path(__file__).parents[1] / "unit" / "decide"))
from agent_fakes import SPEC, Bench
from decide_world import decide, finding, node, notice, ops, preemption, snap, worker

GB = 10**9
EFFECTS: tuple[Effect, ...] = ("NoSchedule", "NoExecute", "PreferNoSchedule")
TOLERATIONS = (
    Toleration(key="team", value="a"), Toleration(key="team", operator="Exists"), Toleration(key="gpu", operator="Exists"),
    Toleration(operator="Exists", effect="NoExecute"), Toleration(operator="Exists"), Toleration(key="gpu", operator="Exists", seconds=9.0),
)  # fmt: skip


def a_node(dice: Random, bench: Bench) -> Room:
    """The agent's node, anew: its taints, GPUs and room."""
    taints = tuple(
        TaintSettings(key=dice.choice(["team", "gpu"]), value=dice.choice(["a", ""]), effect=dice.choice(EFFECTS))
        for _ in range(dice.choice([0, 0, 1, 2]))
    )
    bench.node.settings = msgspec.structs.replace(bench.settings, taints=taints, slots=(SlotSettings(index=0),))
    linked, size = dice.random() < 0.5, dice.choice([80, 180]) * GB
    cards = tuple(
        Gpu(uuid=f"GPU-{n}", model=dice.choice(["B200", "B200", "H200"]), pci=f"0000:{n}0:00", memory=size, free=size - GB,
            domain="0000:00:00" if linked else f"0000:{n}0:00")
        for n in range(dice.choice([2, 2, 3]))
    )  # fmt: skip
    bench.runtime.has_gpus = Gpus(driver="580", cuda="13.0", gpus=cards)
    bench.node.facts = {**bench.runtime.facts(), "driver": "580", "cuda": "13.0", "gpus_all": str(len(cards))}
    bench.node.slot_gpus = {"n/0": cards[:2]}
    bench.depot.in_memory = dice.random() < 0.3
    return Room(disk=dice.choice([None, 20 * GB, 300 * GB]), memory=dice.choice([None, 20 * GB, 45 * GB, 150 * GB]))


async def test_a_place_is_chosen_where_its_agent_takes_the_worker_and_nowhere_else(tmp_path: Path, monkeypatch):
    bench, seen = Bench(tmp_path, worker=False), {True: 0, False: 0}
    for seed in range(200):
        dice = Random(seed)
        free = a_node(dice, bench)
        monkeypatch.setattr(inventory, "room_of", lambda _node, free=free: free)
        bench.node.promises = type(bench.node.promises)(bench.journal, bench.clock)
        size, on_one = dice.choice([5, 25, 100]) * GB, dice.choice([0, 40, 150]) * GB
        said = dice.choice([(), tuple(dice.sample(TOLERATIONS, dice.choice([1, 2])))])
        linked = dice.random() < 0.5

        # the engine: the worker is on a node with two B200s, and this one is the only other
        looks = capacity.Looks(bench.node)
        looks._known = capacity.GpuMemory(slots={"n/0": capacity.least(bench.node.slot_gpus["n/0"], bench.runtime.has_gpus, free=True)})
        looks._at = float("inf")
        there = wire.node(await inventory.report(bench.node, None, looks))
        facts = {**bench.node.facts, "gpus_all": "2"}
        home = node("a", ("decode-0",), gpus=2, gpu_model="B200", domains=("p",) if linked else ("p", "q"), facts=facts, runtime="fake")
        one = worker("decode-0", "a/0", memory=size, gpu_memory=on_one or None, tolerations=said)
        result = decide([preemption()], snap([home, there], [one], notices=[notice("a", 9_000)]))
        chosen = "decode-0" in ops(result, OperationKind.MOVE)

        # the agent, asked as `act.move` does
        needs = {"driver": "580", "cuda": "13.0", "gpu": "B200", "gpus": "2", "gpus_all": "2", "gpu_memory": str(on_one)}
        spec = convert.spec_message(msgspec.structs.replace(SPEC, tolerations=said, linked=linked))
        needed = gpus.facts_for(bench.node.facts, needs)
        order = pb.PreflightOrder(order=bench.order(f"op-{seed}"), destination=True, slot="n/0", facts=needed, bytes=size, spec=spec)
        reply = await preflight(bench.node, order, lambda _root, free=free: free)
        told = [r.what for r in reply.refusals]
        assert chosen is not bool(told), (seed, told, finding(result, "decode-0").reason)
        seen[chosen] += 1
    assert min(seen.values()) > 25
