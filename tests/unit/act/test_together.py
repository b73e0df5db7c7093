"""Orders that are given at once: none is left on its way, and what may have happened counts before what was refused."""

import asyncio
import itertools

import pytest
from shunter.act.together import all_of
from shunter.model.errors import Problem, Rejected, Retry, ShunterError, Stalled, Unknown

_WHY = Problem(code="SH000", what="a test", remedy="Nothing to do")
_GRAVEST_FIRST: tuple[Exception, ...] = (ZeroDivisionError(), Stalled(_WHY), Unknown(_WHY), Rejected(_WHY), Retry(_WHY))


async def _fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


@pytest.mark.parametrize(("graver", "lesser"), list(itertools.combinations(_GRAVEST_FIRST, 2)), ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("turned", [False, True])
async def test_the_gravest_counts_whichever_order_it_came_of(graver: Exception, lesser: Exception, turned: bool) -> None:
    errors = (lesser, graver) if turned else (graver, lesser)
    with pytest.raises((ZeroDivisionError, ShunterError)) as found:
        await all_of(*(asyncio.create_task(_fail(error)) for error in errors))
    assert found.value is graver


async def test_a_refusal_waits_for_the_other_orders_answer() -> None:
    """Else what comes next, a way back, would overtake an order that is still on its way."""
    answer = asyncio.Event()
    refused, other = asyncio.create_task(_fail(Rejected(_WHY))), asyncio.create_task(answer.wait())
    both = asyncio.create_task(all_of(refused, other))
    while not refused.done():
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not both.done()
    answer.set()
    with pytest.raises(Rejected):
        await both
    assert other.done()


async def test_who_is_told_to_stop_leaves_no_order_behind() -> None:
    orders = [asyncio.create_task(asyncio.Event().wait()) for _ in range(2)]
    both = asyncio.create_task(all_of(*orders))
    await asyncio.sleep(0)
    both.cancel()
    with pytest.raises(asyncio.CancelledError):
        await both
    assert all(order.cancelled() for order in orders)
