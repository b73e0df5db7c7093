"""Each order, going well and failing at each call that it makes, on a fake runtime."""

import asyncio
import errno
from pathlib import Path

import msgspec
import pytest
from agent_fakes import PROCESS, Bench, Gate, problem
from shunter.model.errors import Rejected, Retry, ShunterError, Stalled, Unknown
from shunter.model.pod import Pod
from shunter.wire import agent_pb2 as pb
from shunter_agent import inventory
from shunter_agent.preflight import Room, preflight
from shunter_agent.refusals import Undone
from shunter_agent.runtime.port import FileUse, Uses


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, worker=False)
    bench.runtime.alive.clear()
    bench.runtime.running.clear()
    bench.give_image()
    return bench


def code(error: pytest.ExceptionInfo[ShunterError]) -> str:
    return error.value.problem.code


async def frozen(bench: Bench) -> None:
    await bench.source.fence(bench.step())
    await bench.source.freeze(bench.freeze())


async def held(bench: Bench) -> None:
    await bench.destination.prepare(bench.prepare())
    await bench.destination.restore(bench.restore())


class TestSource:
    async def test_fenced_frozen_released(self, bench: Bench) -> None:
        await bench.source.fence(bench.step())
        assert (bench.state(), bench.serving.registered) == ("fenced", False)
        reply = await bench.source.freeze(bench.freeze())
        assert (bench.state(), PROCESS in bench.runtime.running) == ("frozen", False)
        assert (reply.image.bytes, reply.frozen_at, bench.depot.peers) == (100, 1000.0, {"m": ["image-op"]})
        assert bench.depot.expected == 100, "the destination keeps room for what the worker has"
        network = bench.network
        await bench.source.release(bench.step())
        await bench.node.finish_background()
        assert (bench.state(), PROCESS in bench.runtime.alive, network.exists) == ("none", False, False)
        order = bench.faults.order
        assert order.index("disconnect") < order.index("release") < order.index("destroy")
        assert "image-op" in bench.depot.whole

    async def test_thawed_and_unfenced(self, bench: Bench) -> None:
        await frozen(bench)
        await bench.source.thaw(bench.step())
        assert (bench.state(), PROCESS in bench.runtime.running) == ("fenced", True)
        await bench.source.unfence(bench.step())
        row = bench.journal.worker("w")
        assert row is not None
        assert (row.state, row.operation, bench.serving.registered) == ("running", "", True)

    async def test_after_a_rollback_the_same_operation_can_freeze_again(self, bench: Bench) -> None:
        await frozen(bench)
        await bench.source.thaw(bench.step())
        bench.depot.whole.clear()
        (bench.depot.root / "image-op" / "pages-1.img").unlink()
        (bench.depot.root / "image-op").rmdir()
        await bench.source.freeze(bench.freeze())
        assert bench.faults.done["freeze"] == 2

    @pytest.mark.parametrize("call", ["freeze", "finish", "commit"])
    async def test_a_freeze_that_fails_leaves_the_worker_running_and_nothing_else(self, bench: Bench, call: str) -> None:
        await bench.source.fence(bench.step())
        bench.faults.at[call] = Rejected(problem())
        with pytest.raises(Undone) as error:
            await bench.source.freeze(bench.freeze())
        assert code(error) == "SH799"
        assert (bench.state(), PROCESS in bench.runtime.running) == ("fenced", True)
        assert (bench.depot.partial, bench.depot.whole, bench.node.frozen, bool(bench.node.busy_images)) == (set(), {}, {}, False)
        assert bench.faults.done["cancel"] == 1
        entry = bench.journal.entry("op", "freeze")
        assert entry is not None
        assert entry.state == "failed"

    async def test_a_broken_send_after_the_dump_undoes_the_freeze_though_its_outcome_there_is_unknown(self, bench: Bench) -> None:
        bench.faults.at["finish"] = Unknown(problem("SH811"))
        with pytest.raises(Undone):
            await bench.source.freeze(bench.freeze())
        assert PROCESS in bench.runtime.running

    @pytest.mark.parametrize("call", ["freeze", "finish"])
    async def test_a_freeze_is_undone_though_its_image_cannot_be_deleted(self, bench: Bench, call: str) -> None:
        bench.faults.at.update({call: Rejected(problem("SH701")), "abandon": Stalled(problem("SH667"))})
        with pytest.raises(Undone) as error:
            await bench.source.freeze(bench.freeze())
        assert (code(error), PROCESS in bench.runtime.running, bench.state()) == ("SH701", True, "running")
        assert "SH667" in bench.said()

    async def test_release_without_a_freeze_is_refused(self, bench: Bench) -> None:
        with pytest.raises(Rejected) as error:
            await bench.source.release(bench.step())
        assert code(error) == "SH606"
        assert PROCESS in bench.runtime.running

    async def test_release_by_another_operation_is_refused(self, bench: Bench) -> None:
        await frozen(bench)
        with pytest.raises(Retry) as error:
            await bench.source.release(bench.step("other", epoch=2))
        assert code(error) == "SH605"
        assert bench.state() == "frozen"

    async def test_release_whose_effect_is_unknown_stays_unknown_while_the_process_lives(self, bench: Bench) -> None:
        await frozen(bench)
        bench.faults.at["release"] = Unknown(problem())
        with pytest.raises(Unknown):
            await bench.source.release(bench.step())
        assert inventory.copy_of(bench.node, "w") == "frozen"
        entry = bench.journal.entry("op", "release")
        assert entry is not None
        assert entry.state == "begun"

    async def test_release_whose_effect_is_unknown_is_done_when_the_process_is_dead(self, bench: Bench) -> None:
        await frozen(bench)

        def die_and_say_nothing() -> None:
            bench.runtime.alive.clear()
            raise Unknown(problem())

        bench.faults.at["release"] = die_and_say_nothing
        await bench.source.release(bench.step())
        assert bench.state() == "none"

    async def test_a_network_that_cannot_be_disconnected_stops_the_release_before_the_worker_dies(self, bench: Bench) -> None:
        await frozen(bench)
        bench.faults.at["disconnect"] = Retry(problem())
        with pytest.raises(Retry):
            await bench.source.release(bench.step())
        assert PROCESS in bench.runtime.alive
        del bench.faults.at["disconnect"]
        await bench.source.release(bench.step())
        assert PROCESS not in bench.runtime.alive

    @pytest.mark.parametrize("error", [Unknown(problem("SH707")), Rejected(problem("SH708")), OSError("no descriptor to be had")])
    async def test_a_release_that_failed_leaves_the_worker_watched(self, bench: Bench, error: Exception) -> None:
        await frozen(bench)
        bench.exits.watch("w", PROCESS)
        bench.faults.at["release"] = error
        with pytest.raises(ShunterError):
            await bench.source.release(bench.step())
        assert bench.exits.watched == {"w": PROCESS}

    async def test_what_is_released_is_watched_no_more(self, bench: Bench) -> None:
        await frozen(bench)
        bench.exits.watch("w", PROCESS)
        await bench.source.release(bench.step())
        assert bench.exits.watched == {}

    async def test_a_checkpoint_lets_the_worker_run_before_it_digests(self, bench: Bench) -> None:
        reply = await bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(), image="c"))
        order = bench.faults.order
        assert order.index("thaw") < order.index("commit")
        assert (bench.state(), PROCESS in bench.runtime.running, reply.image.id) == ("running", True, "c")
        row = bench.journal.worker("w")
        assert row is not None
        assert row.operation == ""

    async def test_a_checkpoint_that_fails_leaves_no_image(self, bench: Bench) -> None:
        bench.faults.at["freeze"] = Rejected(problem())
        with pytest.raises(Undone):
            await bench.source.checkpoint(pb.CheckpointOrder(order=bench.order(), image="c"))
        assert (bench.depot.partial, bench.depot.whole, bench.state()) == (set(), {}, "running")

    async def test_a_fence_that_fails_leaves_the_worker_in_no_operation(self, bench: Bench) -> None:
        bench.faults.at["fence"] = Retry(problem())
        with pytest.raises(Retry):
            await bench.source.fence(bench.step())
        del bench.faults.at["fence"]
        await bench.source.fence(bench.step("other"))
        assert bench.state() == "fenced"

    async def test_a_drained_worker_is_ended(self, bench: Bench) -> None:
        await bench.source.drain(bench.step(), 5.0)
        assert (bench.state(), PROCESS in bench.runtime.alive) == ("none", False)
        assert bench.faults.order.index("fence") < bench.faults.order.index("end")

    async def test_a_busy_worker_is_left_fenced_and_running(self, bench: Bench) -> None:
        bench.serving.requests = 3
        with pytest.raises(Undone) as error:
            await bench.source.drain(bench.step(), 0.0)
        assert code(error) == "SH651"
        assert "3" in error.value.problem.what
        assert (bench.state(), PROCESS in bench.runtime.running) == ("fenced", True)

    async def test_a_hold_longer_than_allowed_is_refused(self, bench: Bench) -> None:
        with pytest.raises(Rejected) as error:
            await bench.source.freeze(bench.freeze(hold=1e9))
        assert code(error) == "SH608"
        assert bench.faults.done["freeze"] == 0

    async def test_a_worker_that_comes_back_waits_for_its_former_network_to_be_gone(self, bench: Bench) -> None:
        await frozen(bench)
        gate = Gate()
        bench.faults.at["destroy"] = gate
        await bench.source.release(bench.step())
        coming = asyncio.create_task(bench.destination.prepare(bench.prepare()))
        await asyncio.to_thread(gate.reached.wait, 10)
        assert bench.faults.done["network"] == 0
        gate.open()
        await coming
        order = bench.faults.order
        assert order.index("destroy") < order.index("network")


class TestDestination:
    async def test_prepared_restored_resumed_unfenced(self, empty: Bench) -> None:
        await held(empty)
        assert not empty.network.connected
        assert inventory.copy_of(empty.node, "w") == "held"
        reply = await empty.destination.resume(empty.step())
        assert (reply.running_at, reply.probe) == (1000.0, "probed")
        order = empty.faults.order
        assert order.index("connect") == order.index("resume") - 1
        row = empty.journal.worker("w")
        assert row is not None
        assert (row.slot, row.incarnation, row.state, empty.journal.reservations()) == ("n/0", 1, "fenced", {})
        await empty.source.unfence(empty.step())
        assert empty.state() == "running"

    async def test_what_prepare_refuses(self, empty: Bench) -> None:
        with pytest.raises(Rejected) as error:
            await empty.destination.prepare(empty.prepare("n/7"))
        assert code(error) == "SH661"
        with pytest.raises(Rejected) as error:
            await empty.destination.prepare(empty.prepare("n/1"))
        assert code(error) == "SH662"

    async def test_a_slot_is_reserved_once(self, empty: Bench) -> None:
        await empty.destination.prepare(empty.prepare())
        with pytest.raises(Retry) as error:
            await empty.destination.prepare(empty.prepare(operation="other"))
        assert code(error) == "SH605"

    async def test_a_newer_leader_takes_an_abandoned_reservation_over(self, empty: Bench) -> None:
        await empty.destination.prepare(empty.prepare())
        await empty.destination.prepare(empty.prepare(operation="other", epoch=2))
        assert {kept.operation for kept in empty.journal.reservations().values()} == {"other"}

    async def test_a_newer_leader_does_not_take_a_held_copys_slot(self, empty: Bench) -> None:
        await held(empty)
        with pytest.raises(Retry):
            await empty.destination.prepare(empty.prepare(operation="other", epoch=2))

    async def test_the_worker_that_lives_here_is_not_prepared_again(self, bench: Bench) -> None:
        with pytest.raises(Rejected) as error:
            await bench.destination.prepare(bench.prepare("n/2"))
        assert code(error) == "SH663"

    async def test_restore_needs_a_reservation(self, empty: Bench) -> None:
        with pytest.raises(Rejected) as error:
            await empty.destination.restore(empty.restore())
        assert code(error) == "SH606"

    async def test_restore_needs_the_workers_image(self, empty: Bench) -> None:
        empty.depot.whole.clear()
        await empty.destination.prepare(empty.prepare())
        with pytest.raises(Rejected) as error:
            await empty.destination.restore(empty.restore())
        assert code(error) == "SH665"

    async def test_a_restore_that_failed_can_be_ordered_again(self, empty: Bench) -> None:
        await empty.destination.prepare(empty.prepare())
        empty.faults.at["restore"] = Rejected(problem("SH702"))
        with pytest.raises(Undone):
            await empty.destination.restore(empty.restore())
        del empty.faults.at["restore"]
        await empty.destination.restore(empty.restore())
        assert inventory.copy_of(empty.node, "w") == "held"

    @pytest.mark.parametrize("call", ["resume", "probe"])
    async def test_a_resume_that_fails_leaves_no_copy_and_can_be_tried_again(self, empty: Bench, call: str) -> None:
        await held(empty)
        empty.faults.at[call] = Rejected(problem())
        if call == "resume":
            empty.runtime.alive.clear()  # what the port says of a resume that is refused: the copy is dead
        with pytest.raises(Undone):
            await empty.destination.resume(empty.step())
        assert (empty.runtime.alive, empty.network.connected, empty.state()) == (set(), False, "none")
        del empty.faults.at[call]
        await empty.destination.restore(empty.restore())
        await empty.destination.resume(empty.step())
        assert empty.state() == "fenced"

    @pytest.mark.parametrize(("call", "ran"), [("resume", False), ("probe", True)])
    async def test_peers_hear_of_the_end_of_a_copy_that_ran_and_of_no_other(self, empty: Bench, call: str, ran: bool) -> None:
        """What it has sent them isn't in the image: they would wait for what is restored of that, for as long as they have patience."""
        await held(empty)
        empty.faults.at[call] = Rejected(problem())
        with pytest.raises(Undone):
            await empty.destination.resume(empty.step())
        ends = [name for name in empty.faults.order if name in ("end", "disconnect")]
        assert (ends[0] == "end") == ran, ends
        assert (empty.runtime.alive, empty.network.connected) == (set(), False)

    async def test_a_copy_that_may_live_on_after_a_resume_that_failed_is_watched(self, empty: Bench) -> None:
        await held(empty)
        (copy,) = empty.runtime.alive
        empty.faults.at.update(probe=Rejected(problem()), end=OSError("no descriptor to be had"))
        with pytest.raises(Unknown):
            await empty.destination.resume(empty.step())
        assert empty.exits.watched == {"w": copy}

    async def test_a_copy_that_is_said_to_be_gone_and_lives_keeps_its_slot_until_it_is_dead(self, empty: Bench) -> None:
        await held(empty)
        (copy,) = empty.runtime.alive
        empty.faults.at.update(resume=Rejected(problem("SH708")), end=Unknown(problem("SH707")))
        for _ in range(2):
            with pytest.raises(Unknown):
                await empty.destination.resume(empty.step())
            assert (inventory.copy_of(empty.node, "w"), empty.network.connected) == ("held", False)
            (kept,) = empty.journal.reservations().values()
            assert kept.process == copy
        await empty.destination.restore(empty.restore())
        assert empty.faults.done["restore"] == 1, "a second copy beside the first"
        del empty.faults.at["end"]
        with pytest.raises(Undone):
            await empty.destination.resume(empty.step())
        assert (empty.runtime.alive, inventory.copy_of(empty.node, "w")) == (set(), "none")

    async def test_a_network_that_cannot_be_connected_keeps_the_copy_held(self, empty: Bench) -> None:
        await held(empty)
        empty.faults.at["connect"] = Retry(problem())
        with pytest.raises(Retry):
            await empty.destination.resume(empty.step())
        assert (inventory.copy_of(empty.node, "w"), empty.faults.done["resume"]) == ("held", 0)

    async def test_abort_frees_everything(self, empty: Bench) -> None:
        await held(empty)
        network = empty.network
        await empty.destination.abort(empty.step())
        assert (empty.runtime.alive, empty.journal.reservations(), network.exists) == (set(), {}, False)
        await held(empty)  # and all of it can be ordered again
        assert empty.faults.done["restore"] == 2

    async def test_abort_is_refused_once_it_runs(self, empty: Bench) -> None:
        await held(empty)
        await empty.destination.resume(empty.step())
        with pytest.raises(Rejected) as error:
            await empty.destination.abort(empty.step())
        assert code(error) == "SH606"

    async def test_abort_of_nothing_is_done(self, empty: Bench) -> None:
        assert "nothing" in (await empty.destination.abort(empty.step())).detail


class TestOnceOnly:
    async def test_a_repeated_order_gets_the_same_answer_and_does_nothing(self, bench: Bench) -> None:
        first = await bench.source.freeze(bench.freeze())
        bench.clock.now += 5
        assert await bench.source.freeze(bench.freeze()) == first
        assert bench.faults.done["freeze"] == 1

    async def test_the_same_order_twice_at_once_is_done_once(self, bench: Bench) -> None:
        gate = Gate()
        bench.faults.at["freeze"] = gate
        both = [asyncio.create_task(bench.source.freeze(bench.freeze())) for _ in range(2)]
        await asyncio.to_thread(gate.reached.wait, 10)
        gate.open()
        first, second = await asyncio.gather(*both)
        assert first == second
        assert bench.faults.done["freeze"] == 1

    async def test_an_order_whose_caller_goes_away_is_carried_out_all_the_same(self, bench: Bench) -> None:
        gate = Gate()
        bench.faults.at["freeze"] = gate
        call = asyncio.create_task(bench.source.freeze(bench.freeze()))
        await asyncio.to_thread(gate.reached.wait, 10)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        gate.open()
        await bench.orders.close()
        assert bench.state() == "frozen"

    async def test_a_second_operation_is_refused_while_one_is_at_work(self, bench: Bench) -> None:
        gate = Gate()
        bench.faults.at["freeze"] = gate
        call = asyncio.create_task(bench.source.freeze(bench.freeze()))
        await asyncio.to_thread(gate.reached.wait, 10)
        with pytest.raises(Retry) as error:
            await bench.source.fence(bench.step("other", epoch=9))
        assert code(error) == "SH605"
        gate.open()
        await call

    async def test_a_thaw_that_comes_during_the_freeze_follows_it(self, bench: Bench) -> None:
        gate = Gate()
        bench.faults.at["freeze"] = gate
        freezing = asyncio.create_task(bench.source.freeze(bench.freeze()))
        await asyncio.to_thread(gate.reached.wait, 10)
        thawing = asyncio.create_task(bench.source.thaw(bench.step()))
        gate.open()
        await asyncio.gather(freezing, thawing)
        assert (bench.state(), PROCESS in bench.runtime.running) == ("running", True)

    async def waiting(self, bench: Bench, gate: Gate) -> tuple["asyncio.Task[pb.Done]", "asyncio.Task[pb.FreezeReply]"]:
        """A fence under way, by the leader of epoch 1, and its freeze that waits for it."""
        bench.faults.at["fence"] = gate
        fencing = asyncio.create_task(bench.source.fence(bench.step()))
        await asyncio.to_thread(gate.reached.wait, 10)
        freezing = asyncio.create_task(bench.source.freeze(bench.freeze()))
        while not bench.orders._queued:
            await asyncio.sleep(0)
        return fencing, freezing

    async def test_an_order_that_waited_for_longer_than_its_leader_led_is_not_begun(self, bench: Bench) -> None:
        gate = Gate()
        fencing, freezing = await self.waiting(bench, gate)
        bench.journal.raise_epoch(2)
        gate.open()
        await fencing
        with pytest.raises(Rejected) as error:
            await freezing
        assert (code(error), bench.faults.done["freeze"], bench.state()) == ("SH601", 0, "fenced")

    async def test_a_newer_leader_that_repeats_it_has_it_carried_out(self, bench: Bench) -> None:
        gate = Gate()
        fencing, freezing = await self.waiting(bench, gate)
        order = bench.freeze()
        order.order.epoch = 2
        again = asyncio.create_task(bench.source.freeze(order))
        while bench.journal.epoch < 2:
            await asyncio.sleep(0)
        gate.open()
        await fencing
        await again
        with pytest.raises(Rejected) as error:
            await freezing
        row = bench.journal.worker("w")
        assert row is not None
        assert (code(error), bench.faults.done["freeze"], row.state, row.epoch) == ("SH601", 1, "frozen", 2)

    async def test_what_was_joined_and_is_refused_for_all_is_told_to_all(self, bench: Bench) -> None:
        gate = Gate()
        fencing, freezing = await self.waiting(bench, gate)
        order = bench.freeze()
        order.order.epoch = 2
        again = asyncio.create_task(bench.source.freeze(order))
        while bench.journal.epoch < 2:
            await asyncio.sleep(0)
        bench.journal.raise_epoch(3)
        gate.open()
        await fencing
        for waiting in (freezing, again):
            with pytest.raises(Rejected) as error:
                await waiting
            assert code(error) == "SH601"
        assert bench.faults.done["freeze"] == 0

    async def test_an_error_that_nobody_knows_is_an_unknown_outcome(self, bench: Bench) -> None:
        bench.faults.at["fence"] = ZeroDivisionError()
        with pytest.raises(Unknown) as error:
            await bench.source.fence(bench.step())
        assert code(error) == "SH699"

    async def test_the_epoch_is_durable_before_the_effect(self, bench: Bench) -> None:
        def look() -> None:
            import sqlite3

            with sqlite3.connect(bench.folder / "journal.db") as other:
                found.append(other.execute("SELECT value FROM meta WHERE key='epoch'").fetchone()[0])
            other.close()

        found: list[int] = []
        bench.faults.at["fence"] = look
        await bench.source.fence(bench.step(epoch=7))
        assert found == [7]


class TestTransfers:
    async def test_sends_to_two_nodes_are_two_steps(self, empty: Bench) -> None:
        for node in ("m", "k", "m"):
            await empty.transfers.send(pb.SendOrder(order=empty.order(), image="image", to=pb.Peer(node=node, address="10.0.0.2:1")))
        assert empty.depot.peers == {"m": ["image"], "k": ["image"]}

    async def test_an_image_in_use_is_not_discarded(self, empty: Bench) -> None:
        await held(empty)
        with pytest.raises(Retry) as error:
            await empty.transfers.discard(pb.DiscardOrder(order=empty.order("other"), image="image"))
        assert code(error) == "SH666"
        assert "image" in empty.depot.whole

    async def test_discarding_what_is_not_there_is_done(self, empty: Bench) -> None:
        await empty.transfers.discard(pb.DiscardOrder(order=empty.order(), image="image"))
        assert empty.depot.whole == {}
        assert "no such" in (await empty.transfers.discard(pb.DiscardOrder(order=empty.order("op2"), image="image"))).detail


class TestPreflight:
    async def ask(self, bench: Bench, *, size: int = 100, slot: str = "n/0", **facts: str) -> list[str]:
        order = pb.PreflightOrder(order=bench.order(), destination=True, slot=slot, facts=facts, bytes=size)
        reply = await preflight(bench.node, order, lambda _root: Room(disk=1000, memory=1000))
        return [refusal.code for refusal in reply.refusals]

    async def test_equal_nodes_with_room(self, empty: Bench) -> None:
        assert await self.ask(empty, kernel="6.1", runtime="fake") == []

    async def test_both_values_are_named(self, empty: Bench) -> None:
        order = pb.PreflightOrder(order=empty.order(), destination=True, slot="n/0", facts={"kernel": "6.8"})
        reply = await preflight(empty.node, order)
        assert [refusal.code for refusal in reply.refusals] == ["SH655"]
        assert "6.8" in reply.refusals[0].what
        assert "6.1" in reply.refusals[0].what

    async def test_what_a_worker_uses_goes_from_its_node_to_the_one_that_is_to_have_it(self, bench: Bench, tmp_path: Path) -> None:
        bench.runtime.used = Uses(files=(FileUse(path="/model", bytes=0, build="ab"), FileUse(path="/log")), addresses=("10.0.0.7",))
        (tmp_path / "there").mkdir()
        there = Bench(tmp_path / "there", worker=False)
        told = await preflight(bench.node, pb.PreflightOrder(order=bench.order()))
        order = pb.PreflightOrder(order=there.order(), destination=True, slot="n/0", uses=told.uses)
        there.runtime.used, there.runtime.lacks = bench.runtime.used, [problem("SH767")]
        assert [refusal.code for refusal in (await preflight(there.node, order)).refusals] == ["SH767"]
        there.runtime.lacks = []
        assert (await preflight(there.node, order)).refusals == []
        order.ClearField("uses")
        there.runtime.used, there.runtime.lacks = None, [problem("SH767")]
        assert (await preflight(there.node, order)).refusals == [], "an older agent's worker, or one that brings all of it along"

    async def test_a_look_that_fails_is_no_reason_to_refuse(self, empty: Bench) -> None:
        empty.runtime.faults.at["lacking"] = OSError(errno.EIO, "the disk")
        order = pb.PreflightOrder(order=empty.order(), destination=True, slot="n/0", uses=pb.Uses(addresses=["10.0.0.7"]))
        assert (await preflight(empty.node, order)).refusals == []
        assert "the disk" in empty.said()

    async def test_a_fact_that_the_node_lacks(self, empty: Bench) -> None:
        assert await self.ask(empty, driver="570") == ["SH655"]

    @pytest.mark.parametrize(("size", "codes"), [(833, []), (834, ["SH656"]), (910, ["SH656", "SH657"])])
    async def test_room_with_margins(self, empty: Bench, size: int, codes: list[str]) -> None:
        assert await self.ask(empty, size=size) == codes

    async def test_slots(self, bench: Bench) -> None:
        assert await self.ask(bench, slot="n/9") == ["SH661"]
        assert await self.ask(bench, slot="n/2") == ["SH663"]

    async def test_what_it_says_beside_is_what_the_inventory_says(self, bench: Bench, empty: Bench) -> None:
        """So that nobody has to ask for that before a worker that can't wait is fenced."""
        pod = Pod(namespace="dynamo", name="decode-0", uid="u1", container="main")
        row = bench.node.row("w")
        bench.journal.put_worker(msgspec.structs.replace(row, spec=msgspec.structs.replace(row.spec, pod=pod, labels={"a": "b"})))
        (told,) = (await inventory.report(bench.node)).workers
        assert (told.pod_uid, told.memory) == ("u1", 100)
        told.memory = 0
        assert (await preflight(bench.node, pb.PreflightOrder(order=bench.order()))).worker == told
        reply = await preflight(empty.node, pb.PreflightOrder(order=empty.order(), destination=True, slot="n/0"))
        assert reply.image_address == (await inventory.report(empty.node)).image_address != ""

    async def test_the_source_measures_the_worker(self, bench: Bench) -> None:
        reply = await preflight(bench.node, pb.PreflightOrder(order=bench.order()))
        assert (reply.bytes, dict(reply.facts)["kernel"], bench.journal.worker("w").operation) == (100, "6.1", "")  # type: ignore[union-attr]


async def test_the_report_names_everything(bench: Bench) -> None:
    bench.give_image()
    found = await inventory.report(bench.node)
    assert [(slot.id, slot.worker) for slot in found.slots] == [("n/0", "w"), ("n/1", ""), ("n/2", "")]
    assert [(w.spec.worker, w.state, w.memory) for w in found.workers] == [("w", "running", 100)]
    assert [image.id for image in found.images] == ["image"]
    assert found.runtime == "fake"
