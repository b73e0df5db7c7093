import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from shunter.act.beside import Beside
from shunter.act.beyond import Deposed
from shunter.app.showing import Showing
from shunter.cluster.estate import Estate
from shunter.cluster.pods import Being, WorkerPod
from shunter.model.errors import Problem
from shunter.model.ids import Incarnation, NodeId, SlotId, WorkerId
from shunter.model.pod import Pod, Resident
from shunter.model.snapshot import Fleet, Worker, WorkerState

POD = Pod(namespace="ns", name="decode-0", uid="u")


class Places:
    def __init__(self) -> None:
        self.said: list[tuple[str, bool]] = []

    async def show(self, pod: Pod, *, shown: bool) -> None:
        self.said.append((pod.name, shown))


def pod(**more: Any) -> WorkerPod:
    fields: dict[str, Any] = {
        "pod": POD, "resident": Resident(id=WorkerId("decode-0"), role="decode", graph="g", engine=""), "node": NodeId("a"),
        "being": Being.RUNNING, "ready": False, "why": "", "labels": {}, "tolerations": (), "gpus": 1, "controller": "", "gated": True,
        "hidden": True, **more,
    }  # fmt: skip
    return WorkerPod(**fields)


def worker(**more: Any) -> Fleet:
    fields: dict[str, Any] = {
        "id": WorkerId("decode-0"), "role": "decode", "graph": "g", "engine": "vllm", "state": WorkerState.RUNNING, "node": NodeId("a"),
        "slot": SlotId("a/0"), "incarnation": Incarnation(0), "pod": POD, **more,
    }  # fmt: skip
    return Fleet(workers=(Worker(**fields),))


def led() -> None: ...


def deposed() -> None:
    raise Deposed(Problem(code="SH551", what="another leads", remedy="-", subject="lease"))


async def said(found: WorkerPod, fleet: Fleet, busy: list[set[WorkerId]], still_leads: Callable[[], None] = led) -> list[tuple[str, bool]]:
    places, orders = Places(), Beside(lambda: 1.0, lambda _about, _problem: None)
    estate = Estate(namespace="ns", nodes={}, agents={}, pods={found.pod.uid: found})
    answers = iter([*busy, *([busy[-1]] * 9)])
    Showing(orders, lambda: estate, places, lambda: next(answers), still_leads).look(fleet)  # type: ignore[arg-type]
    await orders.idle()
    return places.said


def test_it_is_said_of_a_pod_that_dynamo_has_started_and_whose_worker_serves() -> None:
    assert asyncio.run(said(pod(), worker(), [set()])) == [("decode-0", True)]


@pytest.mark.parametrize(
    ("found", "fleet", "busy"),
    [
        (pod(hidden=False), worker(), [set()]),
        (pod(labels={"shunter.dev/operation": "move-1"}), worker(), [set()]),
        (pod(), worker(state=WorkerState.FENCED), [set()]),
        (pod(), worker(slot=None), [set()]),
        (pod(), worker(pod=None), [set()]),
        (pod(), worker(), [{WorkerId("decode-0")}]),
        (pod(), worker(), [set(), {WorkerId("decode-0")}]),
    ],
)
def test_and_of_no_other(found: WorkerPod, fleet: Fleet, busy: list[set[WorkerId]]) -> None:
    """Nor of one that an operation is about, also when that began only just now."""
    assert asyncio.run(said(found, fleet, busy)) == []


def test_and_not_by_an_engine_that_leads_no_more() -> None:
    """The next one may be moving that worker, and have closed the gate."""
    assert asyncio.run(said(pod(), worker(), [set()], deposed)) == []
