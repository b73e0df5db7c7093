"""A plan as strict JSON, for programs: keys in one order, no NaN, samples tagged `known`, `missing` or `stale`."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from shunter.model.canon import plain
from shunter.model.finding import chapters
from shunter.model.plan import Evaluation
from shunter.model.snapshot import Snapshot
from shunter.report.kept import Rate, kept
from shunter.report.marks import Marks

_NONE: Final = b'"findings": []'
_AT_ONCE: Final = 1000


def plan_json(evaluation: Evaluation, snapshot: Snapshot | None = None, again: Mapping[str, Rate] | None = None) -> bytes:
    """All that `plan_json_parts` gives."""
    return b"".join(plan_json_parts(evaluation, snapshot, again))


def plan_json_parts(evaluation: Evaluation, snapshot: Snapshot | None = None, again: Mapping[str, Rate] | None = None) -> Iterator[bytes]:
    """The evaluation as indented JSON with a final newline, a policy's findings at a time: thousands of policies over thousands of workers
    have findings for a gigabyte.

    `at`, `commit`, `policy_set`, `snapshot` and `digest` are the plan's; `operations` and `findings` as in the model, operations with
    `pretend` besides (False for all without a snapshot). `kept` is what they keep alive (see `kept`, and `again` there; None without a
    snapshot). A float that isn't finite becomes `{"notFinite": "nan"}`.
    """
    marks = Marks(snapshot.fleet) if snapshot is not None else None
    document: dict[str, Any] = plain(evaluation.plan)
    document["digest"] = evaluation.plan.digest
    document["operations"] = [{**plain(o), "pretend": marks is not None and marks.pretends(o)} for o in evaluation.plan.operations]
    real = (o for o in evaluation.plan.operations if not o.preview)
    document["kept"] = plain(kept(real, snapshot, again)) if snapshot is not None else None
    document["findings"] = []
    before, none, after = _pretty(document).partition(_NONE)  # within a string its quotes would be escaped
    begun = False
    yield before
    for _, subjects, _, tell in chapters(evaluation.findings):
        for first in range(0, len(subjects), _AT_ONCE):
            some = [_pretty(plain(tell(place))) for place in range(first, min(first + _AT_ONCE, len(subjects)))]
            yield (b"," if begun else _NONE[:-1]) + b",".join(b"\n    " + one.replace(b"\n", b"\n    ") for one in some)
            begun = True
    yield (b"\n  ]" if begun else none) + after + b"\n"


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value, order="sorted"), indent=2)
