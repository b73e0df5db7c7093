"""An operation as a custom resource: `WorkerOperation`. What was intended is its spec and never changes; how far it has come is its status.

Names are the model's in camelCase, times RFC 3339 with microseconds. What isn't there has the model's default. A resource without a status
was made durable and not begun. Pure.
"""

import datetime as dt
import enum
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from shunter.cluster.api import Object
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import OperationId
from shunter.model.operation import OperationRecord, Outcome, Sending, Status, Step
from shunter.model.policy import API_VERSION

KIND: Final = "WorkerOperation"
OPERATIONS: Final = "workeroperations"
ENGINE_KEYS: Final = ("plan", "epoch", "createdAt", "waits", "left", "batch")
"""Keys of the spec that aren't of the planned operation itself."""
FINALIZER: Final = "shunter.dev/under-way"
"""Keeps an operation's resource until it has ended: to delete one is to ask the engine to give it up."""
UNDER_WAY: Final = "shunter.dev/active"
"""The label of those."""
LONGEST: Final = 1024
"""Characters of a text for people; longer ones are cut."""
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDED: Final = {
    Status.SUCCEEDED: "Succeeded",
    Status.ROLLED_BACK: "RolledBack",
    Status.FAILED: "Failed",
    Status.SUPERSEDED: "Superseded",
    Status.UNKNOWN: "Unknown",
}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that became durable together or not at all: the id of the first of them, and how many they are."""

    first: str
    size: int


def collection(namespace: str) -> str:
    """The path of all operations of a namespace."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{OPERATIONS}"


def camel(name: str) -> str:
    """A field's name as it is in a resource."""
    first, *more = name.split("_")
    return first + "".join(part.capitalize() for part in more)


def stamp(at: float) -> str:
    """Seconds since the epoch as RFC 3339, in UTC."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds(text: str) -> float:
    """What `stamp` wrote, to the microsecond."""
    return dt.datetime.fromisoformat(text).timestamp()


def resource(record: OperationRecord, batch: Batch, namespace: str) -> Object:
    """The resource that makes an intent durable. It has no status: that is written by itself."""
    planned = _plain(record.planned)
    del planned["id"]
    if "deadline" in planned:
        planned["deadline"] = stamp(planned["deadline"])
    spec = {**planned, "plan": record.plan, "epoch": record.epoch, "createdAt": stamp(record.created_at), "batch": _plain(batch)}
    if record.waits:
        spec["waits"] = True
    if record.left is not None:
        spec["left"] = _plain(record.left)
    labels = {"shunter.dev/worker": label(record.planned.worker), "shunter.dev/policy": label(record.planned.policy)}
    meta = {
        "name": record.id,
        "namespace": namespace,
        "finalizers": [FINALIZER],
        "labels": {UNDER_WAY: "true", **{key: value for key, value in labels.items() if value}},
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}


def status(record: OperationRecord, sending: Sending | None = None) -> Object:
    """How far an operation has come, and how far its image is on its way in this step. Nobody goes on from the latter."""
    found: Object = {
        "phase": record.status.value,
        "epoch": record.epoch,
        "step": record.step.value,
        "history": [{"step": step.value, "at": stamp(at)} for step, at in record.history],
        "waits": record.waits,
        "measured": _plain(record.measured),
        "conditions": [_condition(record)],
    }
    for key, part in (("problem", record.problem), ("cancelled", record.cancelled), ("pod", record.pod), ("left", record.left)):
        if part is not None:
            found[key] = _plain(part)
    if sending is not None:
        shown = _plain(sending)
        del shown["operation"]
        found["sending"] = {**shown, "at": stamp(sending.at)}
    if record.outstanding is not None:
        found["outstanding"] = {**_plain(record.outstanding), "since": stamp(record.outstanding.since)}
    if record.frozen_at is not None:
        found["frozenAt"] = stamp(record.frozen_at)
    if record.outcome is not None:
        found["outcome"] = {**_plain(record.outcome), "at": stamp(record.outcome.at)}
    return found


def released(one: Object) -> Object:
    """The resource of an operation that has ended: nothing keeps it any more."""
    meta = one["metadata"]
    labels = {key: value for key, value in (meta.get("labels") or {}).items() if key != UNDER_WAY}
    kept = [name for name in meta.get("finalizers") or () if name != FINALIZER]
    return {**one, "metadata": {**meta, "labels": labels, "finalizers": kept}}


def record_of(one: Object) -> OperationRecord:
    """What a resource says. Raises Rejected SH260 for one that this engine can't read."""
    try:
        return _record(one)
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # msgspec's ValidationError is a ValueError
        raise Rejected(
            Problem(
                code="SH260",
                what=f"this operation can't be read: {error}",
                remedy="Run the engine that wrote it, or a newer one; delete it only when you know that its worker is where it ought to be",
                subject=str(one.get("metadata", {}).get("name", "")),
            )
        ) from error


def batch_of(one: Object) -> Batch:
    """The operations that a resource became durable with. Raises as `record_of` does, which has to be asked first."""
    return msgspec.convert(one["spec"]["batch"], Batch)


def epoch_of(one: Object) -> int:
    """The epoch of whoever wrote it last."""
    return int((one.get("status") or {}).get("epoch") or one["spec"].get("epoch") or 0)


def incomplete(found: Iterable[Object]) -> frozenset[OperationId]:
    """Operations of batches of which a part only was ever made, as whoever made them died: nothing of those was begun."""
    batches: dict[str, list[Object]] = {}
    for one in found:
        batches.setdefault(one["spec"]["batch"]["first"], []).append(one)
    return frozenset(
        OperationId(one["metadata"]["name"])
        for batch in batches.values()
        for one in batch
        if len(batch) < one["spec"]["batch"]["size"] and not any(other.get("status") for other in batch)
    )


def _record(one: Object) -> OperationRecord:
    spec, told = one["spec"], one.get("status") or {}
    planned = {key: value for key, value in spec.items() if key not in ENGINE_KEYS}
    if "deadline" in planned:
        planned["deadline"] = seconds(planned["deadline"])
    created = seconds(spec["createdAt"])
    fields: Object = {
        "planned": {**planned, "id": one["metadata"]["name"]},
        "plan": spec["plan"],
        "epoch": told.get("epoch", spec["epoch"]),
        "created_at": created,
        "step": told.get("step", Step.INTENDED.value),
        "history": [(entry["step"], seconds(entry["at"])) for entry in told.get("history", [])] or [(Step.INTENDED.value, created)],
        "waits": told.get("waits", spec.get("waits", False)),
        **{key: told[key] for key in ("problem", "cancelled", "measured", "pod") if key in told},
        "left": told.get("left", spec.get("left")),
    }
    if "frozenAt" in told:
        fields["frozen_at"] = seconds(told["frozenAt"])
    if "outstanding" in told:
        fields["outstanding"] = {**told["outstanding"], "since": seconds(told["outstanding"]["since"])}
    if "outcome" in told:
        fields["outcome"] = {**told["outcome"], "at": seconds(told["outcome"]["at"])}
    return msgspec.convert(_snake(fields), OperationRecord)


def _condition(record: OperationRecord) -> Object:
    """For `kubectl wait --for=condition=Ended`."""
    outcome: Outcome | None = record.outcome
    since = outcome.at if outcome else record.created_at
    reason = _ENDED[outcome.status] if outcome else "Waits" if record.waits else "Unknown" if record.outstanding else "UnderWay"
    problem = record.outstanding.problem if record.outstanding else record.problem
    told = outcome.reason if outcome else problem.what if problem else ""
    return {
        "type": "Ended",
        "status": "True" if outcome else "False",
        "reason": reason,
        "message": _cut(told or f"{record.planned.kind.value}: {record.step.value}"),
        "lastTransitionTime": stamp(since),
    }


def _plain(value: msgspec.Struct) -> Object:
    """As JSON, without what is None, for which a structural schema has no word, or empty by default."""
    fields = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
    return {camel(f.name): _tidy(part) for f, part in fields if part is not None and not (part == "" and f.default == "")}


def _tidy(value: object) -> Any:  # noqa: ANN401  (JSON)
    match value:
        case msgspec.Struct():
            return _plain(value)
        case enum.Enum():
            return value.value
        case str():
            return _cut(value)
        case tuple():
            return [_tidy(part) for part in value]
    return value


def _snake(value: Any) -> Any:  # noqa: ANN401  (JSON)
    if isinstance(value, dict):
        return {_HUMP.sub("_", key).lower(): _snake(part) for key, part in value.items()}
    return [_snake(part) for part in value] if isinstance(value, list | tuple) else value


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def label(text: str) -> str:
    """As much of a name as fits into a label's value."""
    return re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9]+$", "", re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63])
