import gc
import threading
from weakref import ref

import pytest
from shunter.app.collector import EVERY_S, Sweeping, paused


class Ring:
    """Two that hold each other."""

    def __init__(self) -> None:
        self.other = Ring.__new__(Ring)
        self.other.other = self


def test_it_runs_again_after_the_last_pause_and_also_after_an_error():
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        with pytest.raises(KeyError), paused():
            raise KeyError
        assert not gc.isenabled(), "somebody still wants it quiet"
    assert gc.isenabled()


def test_what_was_left_meanwhile_is_found_at_the_end():
    with paused():
        seen = ref(Ring())
        assert seen() is not None
    assert seen() is None


def test_a_collector_that_others_stopped_stays_stopped():
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pauses_of_several_threads_end_with_the_last():
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with paused():
            entered.set()
            assert leave.wait(5)

    thread = threading.Thread(target=hold)
    with paused():
        thread.start()
        assert entered.wait(5)
    assert not gc.isenabled()
    leave.set()
    thread.join(5)
    assert gc.isenabled()


def test_everything_is_looked_through_when_it_is_a_good_moment_and_at_no_other():
    before, now = gc.get_threshold(), 100.0
    with Sweeping(lambda: now) as sweeping:
        seen = ref(Ring())
        gc.collect(1)  # what survives that is looked at with everything else alone
        kept = Ring()
        old = ref(kept)
        gc.collect(1)
        del kept
        for _ in range(40 * before[0] * before[1]):
            Ring.__new__(Ring).other = []  # type: ignore[assignment]
        assert seen() is None
        assert old() is not None
        now += EVERY_S - 1
        sweeping.sweep()
        assert old() is not None, "too soon"
        now += 1
        sweeping.sweep()
        assert old() is None
        assert gc.get_threshold()[2] > 10**6
    assert gc.get_threshold() == before


def test_what_a_decision_made_is_looked_at_by_the_next_sweep_and_not_before():
    now = 0.0
    with Sweeping(lambda: now) as sweeping:
        with paused():
            seen = ref(Ring())
        gc.collect()
        assert seen() is not None, "nobody looks through it"
        now += EVERY_S
        sweeping.sweep()
        assert seen() is None
        with paused():
            late = ref(Ring())
    gc.collect()
    assert late() is None, "nothing is hidden for good once nobody sweeps"
