"""Looking for slots, shared by all that are alike, against looking at every node for each."""

from random import Random

from decide_world import GB, ex, node, notice, snap, worker
from shunter.decide.conflict import Ledger
from shunter.decide.fit import Finder, needs_of_worker, unfit_node, unfit_slot
from shunter.decide.jobs import Option
from shunter.decide.rooms import Rooms, Size
from shunter.decide.scope import Scopes
from shunter.decide.world import STANDING, World
from shunter.lang.bulk import BulkCelRules
from shunter.lang.cel import CelRules
from shunter.model.errors import Place
from shunter.model.expression import Undecided
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.policy import Destination, Metadata, NoticeKind, Policy, PreemptionPolicy, PreemptionSpec, WorkerSelector
from shunter.model.snapshot import Taint, Toleration

WHERE = ('node.labels["zone"] == "a"', "node.freeSlots > 1", "worker.sessions > 2.0", "worker.sessions > 2.0 || node.freeSlots > 1")
PREFER = ("worker.sessions * 2.0", 'node.labels["zone"] == "a" ? 2.0 : 1.0', "double(node.freeSlots)", "pools.decode.sessions")
TAINTS = (Taint(key="gpu"), Taint(key="team", value="a", effect="NoExecute"), Taint(key="slow", effect="PreferNoSchedule"))
POLICY = Policy(
    document=PreemptionPolicy(
        metadata=Metadata(name="p"), spec=PreemptionSpec(workers=WorkerSelector(all=True), notices=(NoticeKind.DRAIN,))
    ),
    place=Place(file="p", line=1, column=1), blob="b", commit="c",
)  # fmt: skip


def room_for(world, slot, node, size) -> bool:
    """By the node's own figures alone, and the margins that the agents' preflight keeps."""
    memory = size.bytes * 1.1 * (2 if node.images_in_memory else 1)
    return (
        (slot.gpu_memory is None or slot.gpu_memory >= size.gpu)
        and (node.memory is None or node.memory >= memory)
        and (node.disk is None or node.disk >= size.bytes * 1.2)
    )


def plainly(world, scopes, ledger, free, needs, scope, to, avoid, leaving, size):
    """What `Finder.find` means, node by node, and by asking about each alone. What has no room is told apart: refused for that."""
    rules, options, refused = CelRules(), {}, {}
    for there in world.nodes.values():
        if there.id == leaving:
            continue
        own = free.get(there.id, ())
        slots = [s for s in own if unfit_slot(needs, s) is None]
        why = unfit_node(world, needs, there) or (None if slots else (unfit_slot(needs, own[0]) if own else "no free slot"))
        at, doubtful, prefer = scopes.at(scope, there), 0, None
        if why is None and to.where is not None:
            answer = rules.test(to.where, at)
            why = None if answer is not False else f"`move.to.where` is false there: {to.where.text}"
            doubtful = int(isinstance(answer, Undecided))
        if why is not None:
            refused[there.id] = why
            continue
        if to.prefer is not None:
            value = rules.measure(to.prefer, at)
            doubtful, prefer = (1, None) if isinstance(value, Undecided) else (doubtful, value)
        base = sum(w.node == there.id and bool(w.slot) and w.state in STANDING for w in world.workers.values()) + ledger.load[there.id]
        doubtful = 2 if there.id in avoid else doubtful
        shunned = int(any(t.effect == "PreferNoSchedule" and not any(n.tolerates(t) for n in needs.tolerations) for t in there.taints))
        found = {
            s.id: Option(doubtful=doubtful, shunned=shunned, prefer=prefer, load=base + rank)
            for rank, s in enumerate(slots)
            if room_for(world, s, there, size)
        }
        if not found:
            refused[there.id] = "no room"
        options |= found
    return options, refused


def fleet(dice: Random):
    workers, nodes = [], []
    for n in range(dice.randint(3, 14)):
        name, slots = f"n{n:02d}", []
        for _ in range(dice.randint(0, 3)):
            held = f"{dice.choice(['decode', 'prefill'])}-{len(workers)}" if dice.random() < 0.4 else None
            if held:
                said = dice.choice([None, (), (Toleration(key="gpu", operator="Exists"),), (Toleration(operator="Exists"),)])
                workers.append(worker(held, f"{name}/{len(slots)}", tolerations=said))
            slots.append(held)
        nodes.append(
            node(
                name, slots, reachable=dice.random() < 0.9, gpu_model=dice.choice(["", "B200"]), labels={"zone": dice.choice("ab")},
                roles=dice.choice([("prefill", "decode")] * 4 + [("decode",)]), facts={"kernel": dice.choice("1112")},
                runtime=dice.choice(["criu"] * 5 + ["pretend"]),
                taints=tuple({dice.choice(TAINTS) for _ in range(dice.choice([0, 0, 1, 2]))}),
                memory=dice.choice([None, 8 * GB, 40 * GB]), disk=dice.choice([None, None, 20 * GB]),
                images_in_memory=dice.random() < 0.2, gpu_memory=dice.choice([None, 2 * GB, 9 * GB]),
            )
        )  # fmt: skip
    samples = {w.id: {"sessions": dice.randint(0, 4)} for w in workers if dice.random() < 0.8}
    return snap(nodes, workers, samples=samples, notices=[notice(n.id) for n in nodes if dice.random() < 0.15])


def test_what_is_found_is_what_looking_at_each_node_gives():
    looked, cramped = 0, 0
    for seed in range(120):
        dice = Random(seed)
        world = World(fleet(dice))
        scopes, ledger = Scopes(world), Ledger([], world.vacant)
        finder = Finder(world, scopes, BulkCelRules(), ledger, Rooms(world, []))
        for step in range(4):
            free = dict(ledger.vacant()) if step == 2 else ledger.vacant()
            for one in world.workers.values():
                for _ in range(2):
                    to = Destination(
                        where=dice.choice([None, *map(ex, WHERE)]),
                        prefer=dice.choice([None, *map(ex, PREFER)]),
                    )
                    avoid = frozenset(dice.sample(sorted(world.nodes), dice.choice([0, 0, 1])))
                    leaving, scope = dice.choice([one.node, None]), scopes.worker(POLICY, one)
                    needs = needs_of_worker(world, one)
                    size = Size(dice.choice([0, 5, 10, 30]) * GB, dice.choice([0, 1, 4, 90]) * GB)
                    found = finder.find(needs, free, scope=scope, to=to, avoid=avoid, leaving=leaving, size=size)
                    options, refused = plainly(world, scopes, ledger, free, needs, scope, to, avoid, leaving, size)
                    assert dict(found.options) == options, (seed, one.id, to)
                    told = {n: w for n, w in found._refused().items() if n != leaving}
                    assert told.keys() == refused.keys(), (seed, one.id, to)
                    for name, why in refused.items():
                        assert " has " in told[name] if why == "no room" else told[name] == why, (seed, one.id, name, told[name])
                    looked += bool(options)
                    cramped += "no room" in refused.values()
            empty = [s.id for slots in free.values() for s in slots]
            if empty:
                taken = PlannedOperation(
                    id=f"o{step}", kind=OperationKind.RESTORE, worker=f"x{step}", lane="voluntary", policy="p", reason="r",
                    to_slot=dice.choice(empty), expect=Preconditions(incarnation=0),
                )  # fmt: skip
                ledger.take(taken)
    assert looked > 300
    assert cramped > 100


def test_reasons_name_the_first_nodes_and_count_the_rest():
    nodes = [node(f"n{n}", [None], runtime="pretend") for n in range(5)] + [node("z", ["decode-0"])]
    world = World(snap(nodes, [worker("decode-0", "z/0")]))
    finder = Finder(world, Scopes(world), BulkCelRules(), Ledger([], world.vacant), Rooms(world, []))
    needs = needs_of_worker(world, world.workers["decode-0"])
    found = finder.find(needs, world.vacant, scope={}, leaving="z")
    why = "its runtime is pretend, not criu"
    assert found.why() == f"n0: {why}; n1: {why}; n2: {why}; 2 more: {why}"
    assert finder.find(needs, {}, scope={}, leaving=None).why().endswith("1 more: no free slot")
