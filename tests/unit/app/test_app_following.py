"""Following the policies: no change falls between the reading and the watching."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shunter.app.following import Following
from shunter.app.policies import PolicyFeed
from shunter.app.settings import PoliciesSettings
from shunter.app.sources import source_of
from shunter.model.policy import PolicySet
from test_app_policies import GOOD


class Deaf(PolicyFeed):
    """One that hears of nothing: what changed did so before anybody watched."""

    def watch(self, on_change: Callable[[], None]) -> Callable[[], None]:
        assert on_change
        return lambda: None


async def test_what_changed_before_anybody_watched_is_read_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_bytes(GOOD.replace(b"NAME", b"a"))
    feed = Deaf(source_of(PoliciesSettings(directory=folder), tmp_path / "cache"), lambda: 100.0)
    learned: asyncio.Queue[PolicySet] = asyncio.Queue()
    settings = SimpleNamespace(policies=SimpleNamespace(poll=3600.0))
    duty: Any = SimpleNamespace(feed=feed, settings=settings, on_problem=lambda _problem: None, wake=asyncio.Event())
    voice: Any = SimpleNamespace(tell_or_clear=lambda _what, _problem: None, record=lambda *_what: None)
    following = Following(duty, voice, learned.put_nowait)
    await following.once()
    assert [p.name for p in (await learned.get()).policies] == ["a"]
    (folder / "b.yaml").write_bytes(GOOD.replace(b"NAME", b"b"))
    running = asyncio.create_task(following.run())
    try:
        assert [p.name for p in (await asyncio.wait_for(learned.get(), 10)).policies] == ["a", "b"]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
