"""The engine's loops when the audit takes no writes: they go on, and nothing is left out of it in the end."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from shunter.act.lease import Lease
from shunter.act.store import Store
from shunter.app.engine import Engine, _Leading
from shunter.app.policies import PolicyFeed
from shunter.app.settings import AgentSettings, PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sources import source_of
from shunter.audit.journal import Journal
from shunter.model.errors import Problem, Stalled
from shunter.model.record import RecordKind
from shunter.model.units import Duration

POLICY = """apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec: {workers: {all: true}, every: 5m}
"""
FULL = Problem(code="SH901", what="the disk that holds the audit is full", remedy="Free some space")


class Filling:
    """A journal on a disk that is full for a number of writes."""

    def __init__(self, journal: Journal, refused: int) -> None:
        self.journal, self.refused = journal, refused
        self.tried = 0

    def append(self, records: Any) -> Any:
        self.tried += 1
        if self.tried <= self.refused:
            raise Stalled(FULL)
        return self.journal.append(records)


def settings(folder: Path) -> Settings:
    (folder / "policies").mkdir()
    (folder / "policies" / "images.yaml").write_text(POLICY)
    return Settings(
        state=folder,
        policies=PoliciesSettings(directory=folder / "policies", poll=Duration(0.01)),
        prometheus=PrometheusSettings(url="http://127.0.0.1:9"),
        tls=TlsSettings(ca=folder, cert=folder, key=folder),
        agents=(AgentSettings(node="node-a", address="127.0.0.1:9"),),
    )


@pytest.mark.parametrize("refused", [0, 3])
async def test_policies_are_followed_and_recorded_once_when_the_audit_takes_writes_again(tmp_path: Path, refused: int) -> None:
    given = settings(tmp_path)
    told: list[Problem] = []
    engine = Engine(given, PolicyFeed(source_of(given.policies, tmp_path), lambda: 100.0), clock=lambda: 100.0, on_problem=told.append)
    with (
        closing(Store(tmp_path / "engine.db")) as store,
        Lease(tmp_path / "engine.lock", store) as lease,
        Journal(tmp_path / "a.db") as journal,
    ):
        filling: Any = Filling(journal, refused)
        leading = _Leading(engine, store, lease, filling, {}, None)  # type: ignore[arg-type]
        following = asyncio.create_task(leading._follow_policies())

        async def until_recorded() -> None:
            while not journal.list(kind=RecordKind.POLICIES, limit=None):
                await asyncio.wait([following], timeout=0.01)
                assert not following.done(), following.exception()

        try:
            await asyncio.wait_for(until_recorded(), 10)
            for _ in range(3):  # further polls add nothing
                await leading._follow_policies_once()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        records = journal.list(kind=RecordKind.POLICIES, limit=None)
    assert [sealed.record.body["policies"] for sealed in records] == [["images"]]
    assert told == ([FULL] if refused else [])
