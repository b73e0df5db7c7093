"""A worker's memory, copied to where it goes while it still runs."""

import time
from typing import Final

import msgspec

from shunter_agent.depot import Sending
from shunter_agent.journal import WorkerRow
from shunter_agent.node import Node

COPY_S: Final = 60.0
"""The longest that memory is copied ahead."""


class Copied(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied, and how long that took."""

    bytes: int = 0
    seconds: float = 0.0


async def copy_ahead(node: Node, row: WorkerRow, sending: Sending, within_s: float | None, allowed_s: float | None) -> Copied:
    """Copy the worker's memory to the destination: for half of the time that the caller waits (None: it doesn't say), at most for `COPY_S`,
    and for no longer than `allowed_s`.

    It saves time when the worker stands still, and costs some before. How much there is of that is known to whoever has planned all that
    leaves the node; where nobody says so (None), nothing is copied on a node that has a notice with a deadline: there the worker has to
    leave soon, and how long it stands still comes second. What fails here is told, and holds nothing up.
    """
    worker = row.spec.worker
    seconds = COPY_S if within_s is None else min(COPY_S, within_s / 2)
    if allowed_s is not None:
        seconds = min(seconds, allowed_s)
    elif any(notice.deadline is not None for notice in node.notices.values()):
        seconds = 0.0
    if seconds <= 0:
        return Copied()
    try:
        memories = await node.in_thread(node.runtime.live, row.process)
    except OSError as error:
        node.log.error("memory isn't copied ahead", worker=worker, error=str(error))
        return Copied()
    began, before = time.monotonic(), sending.bytes
    try:
        failed = await node.in_thread(sending.copy, memories, seconds) if memories else ""
    finally:
        for memory in memories:
            memory.close()
    if failed:
        node.log.error("memory was copied ahead in part", worker=worker, error=failed)
    return Copied(bytes=sending.bytes - before, seconds=time.monotonic() - began)
