"""Whether there is time: of workers that have none, whatever may work is tried."""

from collections.abc import Iterable

from shunter.wire import agent_pb2 as pb

from shunter_agent.convert import deadline_of
from shunter_agent.journal import WorkerRow
from shunter_agent.notices.port import Notice


def is_urgent(order: pb.Order, row: WorkerRow, notices: Iterable[Notice]) -> bool:
    """The order has a deadline, or there is a notice, with one or without, for the worker's node or slot."""
    return deadline_of(order) is not None or any(notice.slot in ("", row.slot) for notice in notices)
