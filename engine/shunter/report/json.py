"""A plan as strict JSON, for programs: keys in one order, no NaN, samples tagged `known`, `missing` or `stale`."""

from typing import Any

import msgspec

from shunter.model.canon import plain
from shunter.model.plan import Evaluation
from shunter.model.snapshot import Snapshot
from shunter.report.marks import Marks


def plan_json(evaluation: Evaluation, snapshot: Snapshot | None = None) -> bytes:
    """The evaluation as indented JSON with a final newline.

    `at`, `commit`, `policy_set`, `snapshot` and `digest` are the plan's; `operations` and `findings` as in the model, operations with
    `pretend` besides (False for all without a snapshot). A float that isn't finite becomes `{"notFinite": "nan"}`.
    """
    marks = Marks(snapshot.fleet) if snapshot is not None else None
    document: dict[str, Any] = plain(evaluation.plan)
    document["digest"] = evaluation.plan.digest
    document["operations"] = [{**plain(o), "pretend": marks is not None and marks.pretends(o)} for o in evaluation.plan.operations]
    document["findings"] = plain(evaluation.findings)
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
