"""Audit records as OpenTelemetry logs: the body of an OTLP/HTTP request in JSON (opentelemetry-proto 1.x, `ExportLogsServiceRequest`)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from shunter.model.operation import Status
from shunter.model.record import Record, RecordKind, Sealed

_INFO, _WARN, _ERROR = (9, "INFO"), (13, "WARN"), (17, "ERROR")
_SCOPE: Final = "shunter.audit"


def request(records: Sequence[Sealed], version: str) -> bytes:
    """What is posted to `/v1/logs`. Times are the records' own; `version` is Shunter's."""
    resource = {"attributes": [_pair("service.name", "shunter"), _pair("service.version", version)]}
    logs = [_log(sealed) for sealed in records]
    whole = {"resourceLogs": [{"resource": resource, "scopeLogs": [{"scope": {"name": _SCOPE}, "logRecords": logs}]}]}
    return msgspec.json.encode(whole)


def rejected(answer: bytes) -> tuple[int, str]:
    """How many of them a collector that answered 200 didn't take, and why."""
    try:
        partial = msgspec.json.decode(answer).get("partialSuccess") or {}
        return int(partial.get("rejectedLogRecords") or 0), str(partial.get("errorMessage") or "")
    except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, TypeError, ValueError):  # an answer in protobuf, or none
        return 0, ""


def _log(sealed: Sealed) -> dict[str, Any]:
    r = sealed.record
    number, text = _severity(r)
    stated = {
        "seq": sealed.seq, "hash": sealed.hash, "previous": sealed.previous, "kind": r.kind.value, "subject": r.subject,
        "epoch": int(r.epoch), "commit": r.commit, "snapshot": r.snapshot, "plan": r.plan, "operation": r.operation,
        "pretend": r.pretend, "body": r.body,
    }  # fmt: skip
    return {
        "timeUnixNano": str(round(r.at * 1e6) * 1000),  # a float has no nanoseconds to give
        "severityNumber": number,
        "severityText": text,
        "eventName": f"{_SCOPE}.{r.kind.value}",
        "body": {"stringValue": f"{r.subject}: {r.what}"},
        "attributes": [_pair(f"{_SCOPE}.{name}", value) for name, value in stated.items() if value is not None],
    }


def _severity(record: Record) -> tuple[int, str]:
    if record.kind is RecordKind.OUTCOME and isinstance(outcome := record.body.get("outcome"), Mapping):
        return {Status.FAILED.value: _ERROR, Status.ROLLED_BACK.value: _WARN}.get(str(outcome.get("status")), _INFO)
    return _WARN if record.body.keys() & {"problem", "outstanding"} else _INFO


def _pair(key: str, value: object) -> dict[str, Any]:
    return {"key": key, "value": _value(value)}


def _value(value: object) -> dict[str, Any]:
    """An AnyValue. Whole numbers are text, as protobuf's JSON has them."""
    match value:
        case bool():
            return {"boolValue": value}
        case int() if -(2**63) <= value < 2**63:
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case Mapping():
            return {"kvlistValue": {"values": [_pair(str(key), part) for key, part in value.items()]}}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(part) for part in value]}}
        case None:
            return {}
        case _:
            return {"stringValue": str(value)}
