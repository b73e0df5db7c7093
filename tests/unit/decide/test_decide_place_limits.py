"""Hard limits of places: taints, NVLink domains, memory of GPUs and of nodes, disk. Each refusal says both values."""

import msgspec
import pytest
from decide_world import (
    GB,
    again,
    begun,
    budget,
    checkpoints,
    decide,
    ended,
    ex,
    finding,
    image,
    kinds,
    moving,
    node,
    notice,
    operation,
    ops,
    policy_set,
    preemption,
    reassignment,
    rebalancing,
    snap,
    worker,
)
from shunter.decide.explain import explain_node
from shunter.decide.rooms import Rooms
from shunter.decide.world import World
from shunter.model.finding import Verdict
from shunter.model.operation import EngineState, Status, Step
from shunter.model.plan import OperationKind
from shunter.model.policy import WorkerSelector
from shunter.model.snapshot import Taint, Toleration, WorkerState

GPU = Taint(key="nvidia.com/gpu", value="present")
TEAM = Taint(key="team", value="a", effect="NoExecute")
SLOW = Taint(key="slow", effect="PreferNoSchedule")
ANY = (Toleration(operator="Exists"),)
HELD = {f"decode-{n}": {"sessions": 3, "kvTokens": 5120 - n} for n in range(4)}


def save(there, *workers, here=None, policy=None, state=None, **more):
    """Decide on a node `a` that is going, with these workers, and the nodes that are left."""
    a = here or node("a", tuple(w.id for w in workers))
    return decide([policy or preemption()], snap([a, *there], workers, notices=[notice("a")], samples=HELD, **more), state)


def refused(result, who="decode-0") -> str:
    assert who not in ops(result, OperationKind.MOVE)
    return finding(result, who).reason


def decode(n=0, **more):
    return worker(f"decode-{n}", f"a/{n}", **more)


class TestTaints:
    @pytest.mark.parametrize("taint", [GPU, TEAM], ids=str)
    def test_no_worker_goes_where_it_does_not_tolerate_the_taint(self, taint):
        there = node("b", taints=(SLOW, taint))
        why = refused(save([there], decode(tolerations=(Toleration(key="other", operator="Exists"),))))
        assert f"no slot (b: it is tainted with {taint}, and the worker tolerates other)" in why
        assert "the worker tolerates no taint" in refused(save([there], decode(tolerations=())))

    @pytest.mark.parametrize(
        ("toleration", "goes"),
        [
            (Toleration(key="team", value="a"), True),
            (Toleration(key="team", value="a", effect="NoExecute"), True),
            (Toleration(key="team", operator="Exists"), True),
            (Toleration(operator="Exists"), True),
            (Toleration(operator="Exists", effect="NoExecute"), True),
            (Toleration(key="team", value="b"), False),
            (Toleration(key="team"), False),
            (Toleration(key="tea", operator="Exists"), False),
            (Toleration(key="team", value="a", effect="NoSchedule"), False),
            (Toleration(key="team", value="a", seconds=300.0), False),
            (Toleration(), False),
            (Toleration(key="team", value="9", operator="Gt"), False),
        ],
        ids=str,
    )
    def test_tolerations_mean_what_they_mean_to_kubernetes(self, toleration, goes):
        result = save([node("b", taints=(TEAM,))], decode(tolerations=(toleration,)))
        assert ("decode-0" in ops(result, OperationKind.MOVE)) is goes

    def test_to_be_spared_is_a_wish_before_the_policys_own_and_after_a_doubt(self):
        there = [node("b", taints=(SLOW,)), node("c")]
        like = preemption(move=moving(prefer=ex('1.0 if v("node.id") == "b" else 0.0')))
        assert ops(save(there, decode(), policy=like))["decode-0"].to_slot == "c/0"
        assert ops(save(there[:1], decode(), policy=like))["decode-0"].to_slot == "b/0", "where there is no other place"
        assert ops(save(there, decode(tolerations=ANY), policy=like))["decode-0"].to_slot == "b/0", "who tolerates it doesn't mind"
        tried = ended(ops(save(there, decode()))["decode-0"], Status.ROLLED_BACK, code="SH605")
        again = save(there, decode(), state=EngineState(recent=(tried,)))
        assert ops(again)["decode-0"].to_slot == "b/0", "a move to c failed"

    def test_a_worker_of_which_nobody_says_what_it_tolerates_goes_where_it_is_like_at_home(self):
        home = node("a", ("decode-0",), taints=(GPU,))
        assert ops(save([node("b", taints=(GPU,))], decode(), here=home))["decode-0"].to_slot == "b/0"
        assert "tainted with team=a:NoExecute" in refused(save([node("b", taints=(GPU, TEAM))], decode(), here=home))
        assert "tainted with nvidia.com/gpu" in refused(save([node("b", taints=(GPU,))], decode(tolerations=()), here=home)), (
            "it is said: none"
        )

    @pytest.mark.parametrize(
        ("of_worker", "of_image", "taints", "comes"),
        [
            (None, None, (GPU,), True),  # both nodes that hold it have that taint
            (None, None, (TEAM,), False),
            (None, ANY, (TEAM,), True),
            (None, (), (GPU,), False),
            (ANY, (), (TEAM,), True),  # what is known of the worker is newer
            ((), ANY, (TEAM,), False),
        ],
    )
    def test_a_restore_asks_the_worker_then_its_image_then_its_holders(self, of_worker, of_image, taints, comes):
        lost = worker("decode-0", state=WorkerState.LOST, tolerations=of_worker)
        holders = [node("b", ("x",), taints=(GPU,)), node("c", ("y",), taints=(GPU, SLOW))]
        fleet = snap([*holders, node("d", taints=taints)], [lost], [image("i", lost, "b", "c", tolerations=of_image)])
        result = decide([preemption()], fleet)
        assert (kinds(result) == [("restore", "decode-0")]) is comes
        if not comes:
            assert "d: it is tainted with" in finding(result, "decode-0").reason

    def test_ac57_of_a_tainted_node_it_is_said_who_alone_comes_there(self):
        world = snap([node("a", ("decode-0",)), node("b", taints=(GPU, SLOW))], [decode()])
        policies = policy_set(preemption())
        there = explain_node(decide(policies.policies, world), policies, world, "b")
        assert there.against == "only workers come here that tolerate nvidia.com/gpu=present:NoSchedule"
        away = msgspec.structs.replace(world.fleet.nodes[1], reachable=False)
        lost = again(world, fleet=msgspec.structs.replace(world.fleet, nodes=(world.fleet.nodes[0], away)))
        assert explain_node(decide(policies.policies, lost), policies, lost, "b").against == "it doesn't answer"

    def test_nothing_voluntary_goes_there_either(self):
        there, home = node("b", taints=(GPU,)), node("a", ("decode-0",))
        tidy = rebalancing(when=ex('v("node.id") == "a"'), to=moving().to)
        for tolerations, moved in (((), False), (ANY, True)):
            result = decide([tidy], snap([home, there], [decode(tolerations=tolerations)]))
            assert bool(ops(result)) is moved
        assert "b: it is tainted with" in finding(decide([tidy], snap([home, there], [decode(tolerations=())])), "decode-0").reason


class TestMemory:
    def test_workers_share_what_a_node_has(self):
        """Each would have room alone, and agents would say so of each alone."""
        there = node("b", (None, None), memory=30 * GB)
        result = save([there], decode(0, memory=20 * GB), decode(1, memory=15 * GB))
        assert kinds(result)[0] == ("move", "decode-0"), "the one with more context"
        why = refused(result, "decode-1")
        assert (
            "others are saved first, and of the nodes with a slot left b has the most room: it has memory left for 7.27GB, not for 15GB"
            in why
        )

    def test_a_worker_goes_where_there_is_room_beside_the_other(self):
        there = [node("b", (None, None), memory=30 * GB), node("c", memory=18 * GB)]
        result = save(there, decode(0, memory=20 * GB), decode(1, memory=15 * GB))
        assert {w: o.to_slot for w, o in ops(result).items()} == {"decode-0": "b/0", "decode-1": "c/0"}

    @pytest.mark.parametrize(
        ("fields", "goes"),
        [
            ({"memory": 11 * GB}, True),
            ({"memory": 11 * GB - 10}, False),
            ({"memory": 22 * GB, "images_in_memory": True}, True),
            ({"memory": 22 * GB - 10, "images_in_memory": True}, False),
            ({"disk": 12 * GB}, True),
            ({"disk": 12 * GB - 10}, False),
            ({}, True),
        ],
        ids=str,
    )
    def test_the_margins_are_those_of_the_agents_preflight(self, fields, goes):
        result = save([node("b", **fields)], decode())
        assert ("decode-0" in ops(result, OperationKind.MOVE)) is goes
        if not goes:
            assert f"it has {next(iter(fields))} left for 10GB, not for 10GB" in refused(result)

    def test_what_is_not_known_of_the_worker_is_not_held_against_it(self):
        assert ops(save([node("b", memory=GB)], decode(memory=None)), OperationKind.MOVE)

    def test_also_where_more_is_on_its_way_than_there_is_room_for(self):
        """As a node whose memory somebody else has taken since."""
        coming = begun(operation(OperationKind.MOVE, "decode-9", to_slot="b/1", from_slot="c/0"))
        nodes = [node("a", ("decode-0", "decode-1")), node("b", (None, None, None), memory=5 * GB, disk=5 * GB), node("c", ("decode-9",))]
        workers = [decode(0, memory=None), decode(1, memory=GB), worker("decode-9", "c/0")]
        result = decide([preemption()], snap(nodes, workers, notices=[notice("a")], samples=HELD), EngineState(active=(coming,)))
        assert list(ops(result, OperationKind.MOVE)) == ["decode-0"]
        assert "b: it has disk left for 0B, not for 1GB" in finding(result, "decode-1").reason
        assert Rooms(World(snap(nodes, workers)), [coming]).holds("b", 0)

    def test_a_gpu_must_have_what_the_worker_has_on_one(self):
        there = node("b", gpu_memory=80 * GB, gpus=1, gpu_model="B200")
        home = node("a", ("decode-0",), gpus=1, gpu_model="B200", gpu_memory=180 * GB)
        assert ops(save([there], decode(gpu_memory=80 * GB), here=home), OperationKind.MOVE)
        why = refused(save([there], decode(gpu_memory=81 * GB), here=home))
        assert "b: a GPU of b/0 has 80GB, not 81GB" in why

    @pytest.mark.parametrize(
        ("step", "goes"),
        [(Step.INTENDED, False), (Step.PREPARED, False), (Step.FROZEN, False), (Step.HELD, True), (Step.RESUMED, True)],
    )
    def test_who_is_on_the_way_is_counted_until_the_report_shows_it(self, step, goes):
        coming = begun(operation(OperationKind.MOVE, "decode-9", to_slot="b/1", from_slot="c/0"))
        coming = msgspec.structs.replace(coming, step=step)
        fleet = [node("b", (None, None), memory=20 * GB), node("c", ("decode-9",))]
        a = node("a", ("decode-0",))
        world = snap([a, *fleet], [decode(), worker("decode-9", "c/0")], notices=[notice("a")], samples=HELD)
        result = decide([preemption()], world, EngineState(active=(coming,)))
        assert bool(ops(result, OperationKind.MOVE)) is goes

    @pytest.mark.parametrize("waits", [True, False])
    def test_what_waits_for_its_turn_keeps_no_room_from_who_must_leave_now(self, waits):
        later = begun(operation(OperationKind.MOVE, "decode-9", to_slot="b/1", from_slot="c/0"))
        state = EngineState(active=(msgspec.structs.replace(later, waits=waits),))
        nodes = [node("a", ("decode-0",)), node("b", (None, None), memory=20 * GB), node("c", ("decode-9",))]
        workers = [decode(), worker("decode-9", "c/0")]
        must = decide([preemption()], snap(nodes, workers, notices=[notice("a")], samples=HELD), state)
        assert bool(ops(must, OperationKind.MOVE)) is waits
        tidy = rebalancing(when=ex('v("node.id") == "a"'), to=moving().to)
        may = decide([tidy, budget(max_concurrent=9)], snap(nodes, workers), state)
        assert not ops(may), "its turn comes first among what can wait"
        assert "b: it has memory left for 8.18GB, not for 10GB" in finding(may, "decode-0").reason

    def test_policies_share_it_too(self):
        """What one policy brings to a node is no longer there for the next."""
        one, other = (preemption(f"save-{k}", workers=WorkerSelector(where=ex(f'v("worker.id") == "decode-{k}"'))) for k in (0, 1))
        nodes = [node("a", ("decode-0", "decode-1")), node("b", (None, None), memory=12 * GB)]
        result = decide([one, other], snap(nodes, [decode(0), decode(1)], notices=[notice("a")], samples=HELD))
        assert [k for k, _ in kinds(result)].count("move") == 1

    def test_restores_share_it(self):
        lost = [worker(f"decode-{n}", state=WorkerState.LOST) for n in range(2)]
        images = [image(f"i{n}", w, "h", bytes=8 * GB) for n, w in enumerate(lost)]
        fleet = snap([node("h", ("x",)), node("b", (None, None), memory=10 * GB)], lost, images)
        result = decide([preemption()], fleet)
        assert kinds(result) == [("restore", "decode-0")]
        assert "b has the most room: it has memory left for 1.09GB, not for 8GB" in finding(result, "decode-1").reason

    def test_one_who_makes_room_leaves_his_memory_and_his_image(self):
        """30 GB are free once the prefill worker is parked, 20 of which it had; its image takes 20 of the disk."""
        prefill = [worker(f"prefill-{n}", f"b/{n}", memory=20 * GB) for n in range(2)]
        make = preemption(move=moving(make_room="prefill"))
        for memory, disk, moved in ((10, None, True), (5, None, False), (10, 60, True), (10, 40, False)):
            b = node("b", ("prefill-0", "prefill-1"), memory=memory * GB, disk=disk * GB if disk else None)
            result = save([b], decode(memory=26 * GB), *prefill, here=node("a", ("decode-0",)), policy=make)
            assert (("move", "decode-0") in kinds(result)) is moved, (memory, disk)
            assert (("park", "prefill-0") in kinds(result)) is moved

    def test_a_slot_that_is_given_has_room_for_who_comes(self):
        waiting = worker("prefill-9", state=WorkerState.PARKED)
        for size, given in ((12, True), (30, False)):
            nodes = [node("a", ("decode-0", "prefill-0"), memory=5 * GB), node("b", ("decode-1", "decode-2"), memory=5 * GB)]
            held = [image("i", waiting, "a", bytes=size * GB)]
            workers = [decode(0), worker("prefill-0", "a/1"), worker("decode-1", "b/0"), worker("decode-2", "b/1"), waiting]
            fleet = snap(nodes, workers, held, samples=WAITS)
            result = decide([reassignment(sessions="park")], fleet)
            assert (("restore", "prefill-9") in kinds(result)) is given, size

    def test_copies_go_where_there_is_room(self):
        nodes = [node("a", ("decode-0",)), node("b", ("x",), disk=5 * GB), node("c", ("y",), disk=13 * GB)]
        result = decide([checkpoints(copies=3)], snap(nodes, [decode()]))
        assert ops(result)["decode-0"].copies == ("a", "c")
        assert "2 of 3 copies: no other node stays that has room" in ops(result)["decode-0"].reason
        full = save([node("b", ("x",), disk=5 * GB)], decode())
        assert kinds(full) == [("drain", "decode-0")], "nobody could hold its image"

    def test_images_in_memory_take_memory(self):
        world = World(snap([node("b", memory=22 * GB, images_in_memory=True)], [decode()]))
        rooms = Rooms(world, [begun(operation(OperationKind.CHECKPOINT, "decode-0", copies=("a", "b")))])
        assert rooms.left("b").bytes == pytest.approx(5 * GB), "one image is beside a worker with its image"
        assert rooms.holds("b", 10 * GB)
        assert not rooms.holds("b", 10 * GB + 10)


WAITS = {"prefill-0": {"waiting": 40}, **HELD}


class TestGpus:
    def test_gpus_that_nvlink_connects_stay_connected(self):
        linked = node("a", ("decode-0",), gpus=2, gpu_model="B200", domains=("a/0000:01:00",))
        apart = node("b", gpus=2, gpu_model="B200", domains=("b/0000:01:00", "b/0000:02:00"))
        why = refused(save([apart], decode(), here=linked))
        assert "b: its GPUs are in 2 NVLink domains (b/0000:01:00, b/0000:02:00), not in one" in why
        assert ops(save([node("b", gpus=2, gpu_model="B200", domains=("x.1",))], decode(), here=linked), OperationKind.MOVE)
        assert ops(save([node("b", gpus=2, gpu_model="B200")], decode(), here=linked), OperationKind.MOVE), "not known: the agent looks"
        unlinked = node("a", ("decode-0",), gpus=2, gpu_model="B200", domains=("p", "q"))
        assert ops(save([apart], decode(), here=unlinked), OperationKind.MOVE), "it does without"

    @pytest.mark.parametrize(
        ("facts", "more", "why"),
        [
            ({"gpus": "4"}, {}, "it has 2 GPUs, not 4"),
            ({"gpu": "NVIDIA B200"}, {}, "its GPUs are NVIDIA H200, not NVIDIA B200"),
            ({"gpus_all": "8"}, {}, "it has 4 GPUs in all, not 8"),
            ({"gpu_memory": str(90 * GB)}, {}, "a GPU of b/0 has 80GB, not 90GB"),
            ({"gpus": "2"}, {"linked": True}, "its GPUs are in 2 NVLink domains"),
            ({"gpus": "2", "gpu": "NVIDIA H200", "gpus_all": "4", "gpu_memory": str(80 * GB)}, {"linked": False}, ""),
            ({}, {}, ""),
        ],
    )
    def test_an_image_says_which_gpus_it_needs(self, facts, more, why):
        lost = worker("decode-0", state=WorkerState.LOST)
        there = node("b", gpus=2, gpu_memory=80 * GB, domains=("p", "q"), facts={"gpu": "NVIDIA H200", "gpus_all": "4"})
        fleet = snap([node("h", ("x",)), there], [lost], [image("i", lost, "h", facts=facts, **more)])
        result = decide([preemption()], fleet)
        assert (kinds(result) == [("restore", "decode-0")]) is not bool(why)
        assert why in finding(result, "decode-0").reason
        assert finding(result, "decode-0").verdict is (Verdict.HOLD if why else Verdict.ACT)

    def test_a_driver_that_wants_to_see_all_gpus_gets_as_many(self):
        home = node("a", ("decode-0",), gpus=2, facts={"gpus_all": "8"})
        why = refused(save([node("b", gpus=2, facts={"gpus_all": "4"})], decode(), here=home))
        assert "b: it has 4 GPUs in all, not 8, all of which the driver asks for" in why


def test_nothing_is_said_against_a_fleet_of_which_nothing_is_known():
    """As with agents of an older release."""
    result = save([node("b", (None, None))], decode(0), decode(1))
    assert kinds(result) == [("move", "decode-0"), ("move", "decode-1")]
