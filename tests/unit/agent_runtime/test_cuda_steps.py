"""The order of locks, checkpoints, restores and unlocks over a tree, and what any failure leaves; the processes are a dictionary."""

from collections.abc import Callable, Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shunter_agent.runtime.cuda.api import Refused, State
from shunter_agent.runtime.cuda.steps import StateWrong, Steps, Stuck
from shunter_agent.runtime.cuda.stopping import NotStopped

ROOT = 1
PAIRS = [("old", "new")]


class World:
    """Implements `Api` and `Stops` over processes 1 to n. Calls are counted; the ones in `faults` fail, before or after their effect."""

    def __init__(self, count: int, faults: dict[int, tuple[int, bool]] | None = None) -> None:
        self.states = dict.fromkeys(range(ROOT, ROOT + count), State.RUNNING)
        self.stopped, self.guarded, self.running_thread = False, False, 0
        self.faults, self.calls, self.asked = faults or {}, [], 0
        self.told: list[str] = []
        self.stop_fails = False
        self.pairs: list[Sequence[tuple[str, str]]] = []

    def steps(self) -> Steps:
        return Steps(self, self, list, lambda call, _pid, _within: self.told.append(call), 0)

    # -- Api

    def state(self, pid: int) -> State | None:
        return self.states.get(pid)

    def restore_thread(self, pid: int) -> int:
        if pid not in self.states:
            raise Refused("cuCheckpointProcessGetRestoreThreadId", pid, 1, "CUDA_ERROR_INVALID_VALUE")
        return pid + 100

    def lock(self, pid: int, timeout_ms: int) -> None:
        assert timeout_ms > 0, "0 would be for ever"
        self._do("lock", pid, State.RUNNING, State.LOCKED)

    def checkpoint(self, pid: int) -> None:
        self._moving(pid)
        self._do("checkpoint", pid, State.LOCKED, State.CHECKPOINTED)

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        self._moving(pid)
        self.pairs.append(pairs)
        self._do("restore", pid, State.CHECKPOINTED, State.LOCKED)

    def unlock(self, pid: int) -> None:
        self._do("unlock", pid, State.LOCKED, State.RUNNING)

    def _moving(self, pid: int) -> None:
        assert not self.stopped or self.running_thread == pid + 100, "the driver's thread stands still, and this would never come back"

    def _do(self, call: str, pid: int, before: State, after: State) -> None:
        code, late = self.faults.get(len(self.calls), (0, False))
        self.calls.append(f"{call} {pid}")
        if self.states[pid] is not before:
            raise Refused(call, pid, 401, "CUDA_ERROR_ILLEGAL_STATE")
        if not code or late:
            self.states[pid] = after
        if code:
            raise Refused(call, pid, code, f"CUDA_ERROR_{code}")

    # -- Stops

    def tree(self, root: int) -> list[int]:
        return sorted(self.states)

    def stop(self, root: int) -> None:
        self.stopped = True
        if self.stop_fails:
            raise NotStopped("process 1 didn't stop")

    def go_on(self, root: int, but: Collection[int]) -> None:
        assert all(state is State.RUNNING for state in self.states.values()), "nothing may run while its GPU memory is away"
        self.stopped = False

    def running(self, thread: int, call: Callable[[], None]) -> None:
        assert not self.running_thread
        self.running_thread = thread
        try:
            call()
        finally:
            self.running_thread = 0

    def guard(self, root: int) -> None:
        self.guarded = True

    def unguard(self, root: int) -> None:
        self.guarded = False


def kinds(world: World) -> list[str]:
    return [call.split()[0] for call in world.calls]


def test_all_are_locked_before_any_is_checkpointed_and_restored_before_any_is_unlocked() -> None:
    world = World(3)
    assert world.steps().freeze(ROOT, (), 1.0) == [1, 2, 3]
    assert kinds(world) == ["lock"] * 3 + ["checkpoint"] * 3
    assert (set(world.states.values()), world.stopped) == ({State.CHECKPOINTED}, True)
    world.steps().thaw(ROOT, ())
    assert kinds(world)[6:] == ["restore"] * 3 + ["unlock"] * 3
    assert (set(world.states.values()), world.stopped) == ({State.RUNNING}, False)
    assert world.pairs == [(), (), ()]


def test_a_tree_without_cuda_processes_is_not_stopped() -> None:
    world = World(0)
    assert world.steps().freeze(ROOT, (), 1.0) == []
    assert not world.stopped


faults = st.dictionaries(st.integers(0, 12), st.tuples(st.sampled_from([2, 304, 401, 600, 801]), st.booleans()), max_size=3)


@given(st.integers(1, 3), faults, st.booleans())
def test_whatever_fails_a_tree_is_frozen_whole_or_runs_whole_or_is_said_to_be_stuck(
    count: int, faults: dict[int, tuple[int, bool]], stop_fails: bool
) -> None:
    world = World(count, faults)
    world.stop_fails = stop_fails
    try:
        world.steps().freeze(ROOT, (), 1.0)
    except Stuck:
        assert State.CHECKPOINTED in world.states.values() or State.LOCKED in world.states.values()
        return
    except (Refused, StateWrong, NotStopped):
        assert (set(world.states.values()), world.stopped) == ({State.RUNNING}, False)
        return
    assert (set(world.states.values()), world.stopped) == ({State.CHECKPOINTED}, True)
    assert not stop_fails


@given(st.integers(1, 3), st.lists(st.sampled_from([State.RUNNING, State.LOCKED, State.CHECKPOINTED]), min_size=3, max_size=3))
def test_a_thaw_goes_on_from_wherever_each_process_is(count: int, states: list[State]) -> None:
    world = World(count)
    world.states = dict(zip(range(ROOT, ROOT + count), states, strict=False))
    world.stopped = True
    world.steps().thaw(ROOT, ())
    assert (set(world.states.values()), world.stopped) == ({State.RUNNING}, False)


def test_a_call_that_somebody_else_has_made_is_no_failure() -> None:
    """The helper of an agent that died may be at the same work."""
    world = World(1)
    world.states[1], world.stopped = State.CHECKPOINTED, True

    def overtaken(pid: int, pairs: Sequence[tuple[str, str]]) -> None:
        world.states[pid] = State.LOCKED
        raise Refused("restore", pid, 401, "CUDA_ERROR_ILLEGAL_STATE")

    world.restore = overtaken  # type: ignore[method-assign]
    world.steps().thaw(ROOT, ())
    assert world.states == {1: State.RUNNING}


@pytest.mark.parametrize("state", [State.LOCKED, State.FAILED, State.CHECKPOINTED])
def test_a_worker_that_another_tool_has_locked_or_that_failed_is_not_frozen(state: State) -> None:
    world = World(2)
    world.states[2] = state
    with pytest.raises(StateWrong, match=state.name):
        world.steps().freeze(ROOT, (), 1.0)
    assert (world.calls, world.states[2]) == ([], state), "what somebody else has done stays done"


def test_all_locks_share_their_time() -> None:
    """Processes that wait for each other's kernels would else each wait for the whole of it, while the first one can't serve."""
    now, world = [0.0], World(3)
    asked: list[int] = []
    plain = world.lock

    def lock(pid: int, timeout_ms: int) -> None:
        asked.append(timeout_ms)
        now[0] += 0.25
        plain(pid, timeout_ms)

    world.lock = lock  # type: ignore[method-assign]
    Steps(world, world, list, lambda *_told: None, 0, lambda: now[0]).freeze(ROOT, (), 1.0)
    assert asked == [1000, 750, 500]


def test_a_copy_is_revived_with_the_pairs_and_stays_stopped() -> None:
    world = World(2)
    world.states, world.stopped = {1: State.CHECKPOINTED, 2: State.CHECKPOINTED}, True
    world.steps().revive(ROOT, 2, PAIRS)
    assert world.pairs == [PAIRS, PAIRS]
    assert kinds(world) == ["restore", "restore", "unlock", "unlock"]
    assert world.stopped


def test_a_copy_with_fewer_cuda_processes_than_its_image_had_is_refused() -> None:
    world = World(1)
    world.states, world.stopped = {1: State.CHECKPOINTED}, True
    with pytest.raises(StateWrong, match="one of 2 CUDA processes"):
        world.steps().revive(ROOT, 2, PAIRS)


def test_each_call_is_told_before_it_is_made_since_it_may_never_come_back() -> None:
    world = World(1, {1: (2, False)})
    with pytest.raises(Refused):
        world.steps().freeze(ROOT, (), 1.0)
    told = [
        call.removeprefix("cuCheckpointProcess").lower()
        for call in world.told
        if call.endswith(("Lock", "Checkpoint", "Unlock", "Restore"))
    ]
    assert told == [call.split()[0] for call in world.calls] == ["lock", "checkpoint", "unlock"]
