"""Who may use the link, and when: by a clock that only waiting moves."""

import threading

import pytest
from shunter_agent.images.pacing import Pacing, Urgency

MOVE = Urgency.by(1000.0, copy=False)
COPY = Urgency.by(None, copy=True)
ARCHIVED = Urgency.by(None, copy=True, archived=True)
RATE = 100.0


class Ticking(threading.Condition):
    """Whoever waits on it finds that so much time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        return False


@pytest.fixture
def ticking() -> Ticking:
    return Ticking()


@pytest.fixture
def pacing(ticking: Ticking) -> Pacing:
    return Pacing(RATE, lambda: ticking.now, ticking)


def test_what_goes_to_the_archive_shares_the_rate_with_copies(pacing: Pacing, ticking: Ticking) -> None:
    with pacing.sending(ARCHIVED) as archiving:
        began = ticking.now
        for _ in range(4):
            archiving(10, _nobody)
        with pacing.sending(COPY) as copying:
            for _ in range(4):
                copying(10, _nobody)
        assert ticking.now - began == pytest.approx(70 / RATE), "the last of eight goes when the seven before it have gone"


def test_an_archive_waits_while_a_worker_leaves_and_goes_on_when_that_one_waits_for_something_else(
    pacing: Pacing, ticking: Ticking
) -> None:
    with pacing.sending(ARCHIVED) as archiving:
        archiving(10, _nobody)
        with pacing.sending(MOVE) as moving:
            for _ in range(5):
                moving(10, _nobody)
            last = ticking.now
            archiving(10, _nobody)
            assert ticking.now - last >= 0.25, "the move has sent nothing for so long: its dump goes on"
            before = ticking.now
            moving(10, _nobody)
            assert ticking.now - before <= 10 / RATE + 1e-6, "and waits for one chunk at most"
        over = ticking.now
        archiving(10, _nobody)
        assert ticking.now - over <= 10 / RATE + 1e-6, "nobody is ahead of it any more"


def _nobody() -> None:
    pass
