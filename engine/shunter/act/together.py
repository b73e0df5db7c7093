"""Several orders at once: each is seen through, and the gravest failure counts."""

import asyncio
from typing import Final

from shunter.model.errors import Rejected, Retry, Stalled, Unknown

_GRAVE: Final = (Stalled, Unknown, Rejected, Retry)
"""The gravest first: of what may have happened it is found out whether it has, before anything that was refused is looked at. What none of
them is goes before all."""


async def all_of(*orders: "asyncio.Task[object]") -> None:
    """Wait until all have an answer: none may still be on its way when another step begins. Raises the gravest of what they raise."""
    try:
        await asyncio.wait(orders)
    except asyncio.CancelledError:
        for order in orders:
            order.cancel()
        await asyncio.gather(*orders, return_exceptions=True)
        raise
    failures = [error for order in orders if (error := order.exception()) is not None]
    if failures:
        raise min(failures, key=_gravity)


def _gravity(error: BaseException) -> int:
    return next((n for n, kind in enumerate(_GRAVE) if isinstance(error, kind)), -1)
