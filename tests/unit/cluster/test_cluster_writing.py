"""Statuses on their way to a pretended server: by which version they are written, when, and what happens when it refuses."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
from cluster_server import Server, refused
from shunter.cluster.reading import Reading, read
from shunter.cluster.telling import gather
from shunter.cluster.writing import StatusWriter
from shunter.lang.load import load
from shunter.model.finding import Finding, Verdict
from shunter.model.ids import PolicyName
from test_cluster_reading import images

DONE = httpx.Response(200, json={})


class Copies:
    """What a reflector holds."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self.objects = {("n", one["metadata"]["name"]): one for one in found}


class Wired:
    """A writer over one policy, whose copy tests may change."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.now = 0.0
        self.server = Server(*answers)
        kind, self.one = images(commit="a" * 40)
        self.copies = Copies(self.one)
        self.writer = StatusWriter(self.server.api(), {kind: self.copies}, figures_s=30.0, clock=lambda: self.now)  # type: ignore[dict-item]
        self.reading: Reading = read([(kind, self.one)])
        self.policies = load(self.reading.revision, None)

    async def offer(self, *verdicts: Verdict, requests: int = 1) -> None:
        """Offer what these come to, and let it be written until so many requests were made; none more may come."""
        findings = tuple(
            Finding(policy=PolicyName("images"), subject=f"w{n}", verdict=v, lane="voluntary", reason="") for n, v in enumerate(verdicts)
        )
        before = len(self.server.requests)
        running = asyncio.create_task(self.writer.run())
        self.writer.offer(self.reading, self.policies, gather(findings), 1_800_000_000.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3.0 if requests else 0.05):
                while len(self.server.requests) - before < requests or not requests:
                    await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        running.cancel()
        assert len(self.server.requests) - before == requests

    def body(self, number: int = -1) -> Any:
        return json.loads(self.server.requests[number].content)


async def test_it_is_applied_to_the_version_that_our_copy_has() -> None:
    wired = Wired(DONE)
    await wired.offer()
    [request] = wired.server.requests
    assert request.url.path.endswith("/namespaces/n/checkpointpolicies/images/status")
    assert dict(request.url.params)["fieldManager"] == "shunter-engine"
    assert wired.body()["metadata"] == {"name": "images", "namespace": "n", "resourceVersion": "9"}
    assert wired.body().keys() == {"apiVersion", "kind", "metadata", "status"}


async def test_one_that_was_changed_meanwhile_is_tried_again() -> None:
    wired = Wired(refused(409), DONE)
    wired.one["metadata"]["resourceVersion"] = "8"
    await wired.offer(requests=2)
    assert wired.writer.problem is None
    assert wired.writer.writes == 1


async def test_another_of_the_same_name_gets_nothing() -> None:
    wired = Wired()
    wired.copies.objects["n", "images"] = {**wired.one, "metadata": {**wired.one["metadata"], "uid": "another"}}
    await wired.offer(requests=0)
    wired.copies.objects.clear()
    await wired.offer(requests=0)


async def test_a_refusal_is_told_and_tried_again() -> None:
    wired = Wired(refused(403), DONE)
    await wired.offer(requests=2)
    assert wired.writer.problem is None
    wired = Wired(refused(403))
    await wired.offer()
    assert wired.writer.problem is not None
    assert wired.writer.problem.code == "SH255"


async def test_figures_alone_wait_and_what_matters_does_not() -> None:
    wired = Wired(DONE, DONE, DONE)
    await wired.offer(Verdict.HOLD)
    wired.now = 29.0
    await wired.offer(Verdict.HOLD, Verdict.PASS, requests=0)
    wired.now = 30.0
    await wired.offer(Verdict.HOLD, Verdict.PASS)
    assert wired.body()["status"]["counts"] == {"act": 0, "hold": 1, "inconclusive": 0, "pass": 1}
    wired.now = 30.1
    await wired.offer(Verdict.ACT)
    assert wired.body()["status"]["lastDecision"]["verdict"] == "act"
