"""Candidates for the lead: what of it needs no API server."""

import asyncio
import time
from pathlib import Path

import pytest
import yaml
from shunter.app import electing
from shunter.app.electing import Electing, identity, terms
from shunter.app.settings import LeaseSettings
from shunter.model.errors import Stalled
from shunter.model.units import Duration


@pytest.fixture
def candidate(tmp_path: Path) -> Electing:
    path = tmp_path / "kubeconfig"
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    path.write_text(yaml.safe_dump({"current-context": "x", "contexts": [context], "clusters": [cluster], "users": users}))
    return Electing(None, LeaseSettings(kubeconfig=path), lambda _problem: None)  # type: ignore[arg-type]


async def test_an_engine_that_stands_still_gives_the_lead_up(candidate: Electing, monkeypatch: pytest.MonkeyPatch) -> None:
    working: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    candidate._beat = time.monotonic() - electing.STILL_S - 1.0
    with pytest.raises(Stalled) as raised:
        await candidate._while_it_beats(working)
    assert raised.value.problem.code == "SH556"


async def test_one_that_comes_round_keeps_it_until_it_is_done(candidate: Electing) -> None:
    working: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    candidate._beat = time.monotonic()
    asyncio.get_running_loop().call_later(0.05, working.set_result, None)
    await candidate._while_it_beats(working)


@pytest.mark.parametrize("lasts", [3.0, 15.0, 120.0])
def test_a_leader_stops_well_before_another_may_begin_and_could_try_more_than_once(lasts: float) -> None:
    found = terms(LeaseSettings(lasts=Duration(lasts)))
    assert found.renew_deadline + found.request < found.lease
    assert 2 * (found.retry + found.request) <= found.renew_deadline


def test_nobody_has_our_name_not_even_we_ourselves_before() -> None:
    assert len({identity() for _ in range(8)}) == 8
