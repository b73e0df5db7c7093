"""Which records somebody wants to see."""

from collections.abc import Iterator, Mapping

import msgspec

from shunter.model.record import Record, RecordKind


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """All that is given must fit; None asks for nothing. `since` is included, `until` isn't; both are seconds since the epoch.

    `worker`, `node` and `policy` find what is about them also where they aren't the subject: a plan that moves the worker, an operation
    from or to the node, a finding or an operation of the policy. `commit` may be its beginning.
    """

    kind: RecordKind | None = None
    subject: str | None = None
    operation: str | None = None
    since: float | None = None
    until: float | None = None
    worker: str | None = None
    node: str | None = None
    policy: str | None = None
    commit: str | None = None

    def columns(self) -> list[tuple[str, str, object]]:
        """What the database can tell by itself: column, comparison, value."""
        asked: tuple[tuple[str, str, object], ...] = (
            ("kind", "=", self.kind.value if self.kind else None),
            ("subject", "=", self.subject),
            ("operation", "=", self.operation),
            ("at", ">=", self.since),
            ("at", "<", self.until),
        )
        return [one for one in asked if one[2] is not None]

    def needles(self) -> tuple[bytes, ...]:
        """What the bytes of every record that fits have in them somewhere: others needn't be decoded."""
        given = (text for text in (self.worker, self.node, self.policy, self.commit) if text is not None)
        return tuple(msgspec.json.encode(text)[1:-1] for text in given)

    def fits(self, record: Record) -> bool:
        """What only the record itself tells; not what `columns` asks for."""
        if self.commit is not None and not (record.commit or "").startswith(self.commit):
            return False
        return all(
            wanted is None or wanted in told(record)
            for wanted, told in ((self.worker, _workers), (self.node, _nodes), (self.policy, _policies))
        )


def operations_of(record: Record) -> frozenset[str]:
    """The ids of a plan's operations; none for records of other kinds."""
    listed = (one.get("id") for one in _sequence(record.body.get("operations")) if isinstance(one, Mapping))
    return frozenset(name for name in listed if isinstance(name, str))


def notice_of(record: Record) -> str | None:
    """The id of the notice that a record tells of; None when it tells of none."""
    notice = record.body.get("notice")
    found = notice.get("id") if isinstance(notice, Mapping) else notice
    return found if isinstance(found, str) else None


def _workers(record: Record) -> set[str]:
    return {record.subject, *_texts(record, "worker")}


def _nodes(record: Record) -> set[str]:
    slots = (*_texts(record, "from"), *_texts(record, "to"), *_texts(record, "from_slot"), *_texts(record, "to_slot"))
    listed = (str(node) for part in _parts(record) for node in _sequence(part.get("copies")))
    return {record.subject, *listed, *_texts(record, "node"), *(slot.rpartition("/")[0] for slot in slots)}


def _policies(record: Record) -> set[str]:
    named = {record.subject} if record.kind is RecordKind.POLICIES else set()
    in_force = {name for name in _sequence(record.body.get("policies")) if isinstance(name, str)}
    return {*named, *in_force, *_texts(record, "policy")}


def _texts(record: Record, key: str) -> Iterator[str]:
    return (value for part in _parts(record) if isinstance(value := part.get(key), str))


def _parts(record: Record) -> Iterator[Mapping[str, object]]:
    """The body, the operations of a plan, and a notice."""
    yield record.body
    for part in (*_sequence(record.body.get("operations")), record.body.get("notice")):
        if isinstance(part, Mapping):
            yield part


def _sequence(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()
