"""Notices that somebody asks about: they aren't there."""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from shunter.model.errors import Problem, Rejected
from shunter.model.ids import NodeId, NoticeId
from shunter.model.snapshot import Notice, NoticeKind
from shunter.model.units import Duration, UnitError

SOURCE: Final = "assumed"
"""The `source` of such a notice."""


class Assumed(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `lead` in seconds; None: no deadline."""

    node: NodeId
    kind: NoticeKind
    lead: float | None


def assumed(text: str) -> Assumed:
    """Read `node-a=preemption:120s` or `node-a=gone`. Raises Rejected SH912."""
    node, _, rest = text.partition("=")
    kind, colon, lead = rest.partition(":")
    try:
        if not node:
            raise ValueError("the node is missing")
        return Assumed(node=NodeId(node), kind=NoticeKind(kind), lead=float(Duration.parse(lead)) if colon else None)
    except (UnitError, ValueError) as error:
        kinds = ", ".join(NoticeKind)
        raise Rejected(
            Problem(
                code="SH912",
                what=f"{text!r} is not a notice: {error}",
                remedy=f"Write NODE=KIND:LEAD, as in node-a=preemption:120s; kinds are {kinds}",
            )
        ) from error


def with_assumed(notices: Sequence[Notice], more: Sequence[Assumed], at: float, known: Collection[NodeId]) -> tuple[Notice, ...]:
    """The notices and those that are assumed at `at`, sorted. Raises Rejected SH912 for a node that isn't among the `known`."""
    return tuple(sorted((*notices, *(_notice(one, at, known) for one in more)), key=lambda n: (n.node, n.id)))


def _notice(one: Assumed, at: float, known: Collection[NodeId]) -> Notice:
    if one.node not in known:
        raise Rejected(Problem(code="SH912", what=f"there is no node {one.node}", remedy=f"Nodes are {', '.join(sorted(known))}"))
    deadline = None if one.lead is None else at + one.lead
    return Notice(id=NoticeId(f"assumed-{one.kind}-{one.node}"), kind=one.kind, node=one.node, seen_at=at, deadline=deadline, source=SOURCE)
