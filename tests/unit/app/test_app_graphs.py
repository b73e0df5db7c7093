"""What is followed in a cluster, here one that can't be reached, and who ends that."""

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from shunter.app import graphs
from shunter.app.graphs import Graphs, following
from shunter.app.settings import DynamoSettings, LeaseSettings
from shunter.cluster.dynamo.following import Following


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    path = tmp_path / "kubeconfig"
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    path.write_text(yaml.safe_dump({"current-context": "x", "contexts": [context], "clusters": [cluster], "users": users}))
    return SimpleNamespace(cluster=LeaseSettings(kubeconfig=path, dynamo=DynamoSettings(namespace="dynamo")))


def followed() -> bool:
    return any(thread.name == "dynamo" for thread in threading.enumerate())


async def use(settings: Any) -> None:
    async with following(settings):
        raise AssertionError("nothing can be listed")


async def test_whoever_is_stopped_while_it_waits_for_the_first_lists_leaves_nothing_running(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "LISTED_S", 60.0)
    waiting, end = asyncio.create_task(use(settings)), time.monotonic() + 10
    while not followed():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (waiting.cancelled(), followed()) == (True, False)


async def test_pods_are_followed_no_more_where_graphs_cannot_be(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Housed:
        closed = False

        async def close(self) -> None:
            self.closed = True

    async def housing(_settings: Any) -> Housed:
        return housed

    async def broken(_self: Graphs) -> Graphs:
        raise RuntimeError("can't start new thread")

    housed = Housed()
    monkeypatch.setattr(graphs, "housing", housing)
    monkeypatch.setattr(Graphs, "open", broken)
    with pytest.raises(RuntimeError):
        await use(settings)
    assert housed.closed


async def test_what_is_not_listed_in_time_is_waited_for_no_longer(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LISTED_S", 0.0)
    async with following(settings) as (housed, found):
        assert (housed, found is not None and found.view().doubt is not None) == (None, True)
    assert not followed()


async def test_a_fault_of_ours_is_no_silence_of_the_clusters(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: Following, _within_s: float) -> None:
        raise TypeError("of ours")

    monkeypatch.setattr(Following, "wait", broken)
    with pytest.raises(TypeError):
        await use(settings)
    assert not followed()
