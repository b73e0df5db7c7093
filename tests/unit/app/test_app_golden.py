"""An engine that leads brings what another one has begun to start from a golden image to its end."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from shunter.app.leading import Leading
from shunter.model.ids import Digest, Epoch, Incarnation, OperationId, PolicyName, PoolId, SlotId, WorkerId
from shunter.model.operation import OperationRecord, Status, Step
from shunter.model.plan import OperationKind, PlannedOperation, Preconditions
from shunter.model.pod import Started
from test_app_engine import Stage, stage

__all__ = ["stage"]
PLANNED = PlannedOperation(
    id=OperationId("park-1"), kind=OperationKind.PARK, worker=WorkerId("decode-0"), lane="voluntary", policy=PolicyName("p"), reason="r",
    expect=Preconditions(incarnation=Incarnation(0)), from_slot=SlotId("node-a/0"), cause="shift:p:1", pool=PoolId("g/decode"),
    hands_to=PoolId("g/prefill"), golden="gold",
)  # fmt: skip


class Starts:
    """It serves at once."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    async def begin(self, record: OperationRecord, may: Callable[[], None]) -> str:
        may()
        self.begun.append(record.planned.golden)
        return ""

    async def look(self, record: OperationRecord) -> Started:
        return Started(state="serves")


@pytest.mark.parametrize("makes_pods", [True, False])
async def test_with_graphs_and_pods_it_starts_from_the_image_and_without_natively(stage: Callable[[int], Stage], makes_pods: bool) -> None:
    s, starts = stage(0), Starts()
    graphs = SimpleNamespace(replicas=None, router=None, starts=starts if makes_pods else None, measured=lambda samples, _at: samples)
    before = s.leading
    before.store.insert([OperationRecord(planned=PLANNED, plan=Digest("sha256:p"), epoch=Epoch(1), created_at=1.0)])
    before.store.advance(PLANNED.id, Step.STARTING, 2.0)
    leading = Leading(s.engine, before.store, before.lease, before.trail, before.watch, {}, None, graphs=graphs)  # type: ignore[arg-type]
    leading.scheduler.pump()
    await leading.scheduler.idle()
    found = before.store.get(PLANNED.id)
    assert found is not None
    assert found.outcome is not None
    assert (found.status, found.outcome.code) == (Status.SUCCEEDED, "" if makes_pods else "SH570")
    assert starts.begun == (["gold"] if makes_pods else [])
