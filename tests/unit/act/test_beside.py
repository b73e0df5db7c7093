"""Orders beside the ticks: when one that failed is given again."""

from shunter.act.beside import LONGEST_S, Beside
from shunter.model.errors import Problem, Retry


async def test_one_that_failed_is_given_again_also_when_the_clock_was_set_back_meanwhile() -> None:
    now, tries, told = [10_000.0], list[float](), list[Problem | None]()
    beside = Beside(lambda: now[0], lambda _thing, why: told.append(why))

    async def order() -> None:
        tries.append(now[0])
        raise Retry(Problem(code="SH500", what="not now", remedy="Wait"))

    async def at(seconds: float) -> int:
        now[0] = seconds
        beside.begin("w", order)
        await beside.idle()
        return len(tries)

    assert [await at(10_000.0), await at(10_000.9), await at(10_001.0)] == [1, 1, 2]
    assert await at(10_001.0 - 3600.0) == 3, "nobody stays out of the router's sight until that hour is over again"
    assert await at(10_001.0 - 3600.0 + 1.0) == 3
    assert await at(10_001.0 - 3600.0 + LONGEST_S) == 4
    assert len(told) == 4
