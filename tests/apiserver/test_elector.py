"""Leading by a Lease of a real server: never two at once, never two epochs alike, whatever the server and the clocks do."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
from conftest import admin, running
from control_plane import ControlPlane
from proxy import Proxy
from shunter.cluster.api import Api
from shunter.cluster.elector import Elector, Term, Terms
from shunter.model.errors import Stalled

QUICK = Terms(lease=2.0, renew_deadline=1.2, retry=0.2, request=0.6)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
NAMES = itertools.count()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for this module's tests, which leave it running."""
    yield from running(tmp_path_factory.mktemp("leases"))


@pytest.fixture
def lease() -> str:
    return f"lease-{next(NAMES)}"


class Candidate:
    """One that leads until it is told to stop, and the stretches of time in which it would have acted."""

    def __init__(self, plane: ControlPlane, lease: str, name: str, port: int, **options: Any) -> None:
        self.api = Api(msgspec.structs.replace(admin(plane), server=f"https://127.0.0.1:{port}"))
        self.elector = Elector(self.api, "default", lease, name, terms=QUICK, **options)
        self.term: Term | None = None
        self.acts: list[float] = []
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self.elector.lead(self._work))

    async def _work(self, term: Term) -> None:
        self.term = term
        while not self.done.is_set():
            if term.held():
                self.acts.append(time.monotonic())
            await asyncio.sleep(0.02)

    @property
    def leads(self) -> bool:
        return self.term is not None and self.term.held()

    @property
    def epoch(self) -> int:
        assert self.term is not None
        return self.term.epoch


@pytest.fixture
async def candidates(plane: ControlPlane) -> AsyncIterator[Callable[..., Candidate]]:
    made: list[Candidate] = []

    def make(lease: str, name: str, port: int = plane.port, **options: Any) -> Candidate:
        made.append(Candidate(plane, lease, name, port, **options))
        return made[-1]

    yield make
    for one in made:
        one.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Stalled):
            await one.task
        await one.api.aclose()


async def until(done: Callable[[], object], within: float = 15.0) -> None:
    async with asyncio.timeout(within):
        while not done():
            await asyncio.sleep(0.01)


def never_both(first: Candidate, second: Candidate) -> None:
    assert first.acts
    assert second.acts
    assert max(first.acts) < min(second.acts)
    assert second.epoch > first.epoch


async def test_one_leads_and_the_next_takes_over_at_once_when_it_is_given_back(candidates: Any, lease: str) -> None:
    first = candidates(lease, "first")
    await until(lambda: first.leads)
    second = candidates(lease, "second")
    await asyncio.sleep(QUICK.lease + 1.0)
    assert first.leads, "it is renewed"
    assert not second.leads
    assert second.elector.leader == "first"
    first.done.set()
    await first.task
    given_back = time.monotonic()
    await until(lambda: second.leads)
    assert time.monotonic() - given_back < 1.0, "not after the Lease's whole time"
    never_both(first, second)
    assert second.epoch == first.epoch + 1


async def test_one_that_is_stopped_gives_it_back_too(plane: ControlPlane, candidates: Any, lease: str) -> None:
    first = candidates(lease, "first")
    await until(lambda: first.leads)
    first.task.cancel()
    await asyncio.wait([first.task])
    assert first.task.cancelled()
    assert not first.leads
    spec = plane.must("GET", f"{LEASES}/{lease}")["spec"]
    assert not spec.get("holderIdentity")
    assert spec["leaseTransitions"] == first.epoch, "the next one's epoch is higher"


async def test_one_that_is_cut_off_stops_before_the_next_begins(plane: ControlPlane, candidates: Any, lease: str) -> None:
    async with Proxy(plane.port) as proxy:
        first = candidates(lease, "first", proxy.port)
        await until(lambda: first.leads)
        second = candidates(lease, "second")
        await asyncio.sleep(0.5)
        proxy.refusing = True
        proxy.cut()
        await until(lambda: second.leads)
        never_both(first, second)
        with pytest.raises(Stalled) as raised:
            await first.task
        assert raised.value.problem.code == "SH550"


async def test_one_whose_connections_hang_stops_too(plane: ControlPlane, candidates: Any, lease: str) -> None:
    async with Proxy(plane.port) as proxy:
        first = candidates(lease, "first", proxy.port)
        await until(lambda: first.leads)
        second = candidates(lease, "second")
        await asyncio.sleep(0.5)

        async def hang() -> None:
            while True:
                proxy.hold()
                await asyncio.sleep(0.01)

        hanging = asyncio.create_task(hang())
        await until(lambda: second.leads)
        hanging.cancel()
        never_both(first, second)
        with pytest.raises(Stalled):
            await first.task


async def test_a_server_that_stands_still_ends_the_term(plane: ControlPlane, candidates: Any, lease: str) -> None:
    first = candidates(lease, "first")
    await until(lambda: first.leads)
    plane.freeze_api()
    frozen = time.monotonic()
    try:
        with pytest.raises(Stalled):
            async with asyncio.timeout(QUICK.renew_deadline + QUICK.request * 2 + 2.0):
                await first.task
        assert max(first.acts) - frozen < QUICK.renew_deadline + 0.1
    finally:
        plane.thaw_api()
    second = candidates(lease, "second")
    await until(lambda: second.leads)
    never_both(first, second)


async def test_a_short_outage_ends_nothing(plane: ControlPlane, candidates: Any, lease: str) -> None:
    first = candidates(lease, "first")
    await until(lambda: first.leads)
    plane.freeze_api()
    await asyncio.sleep(0.5)
    plane.thaw_api()
    epoch, renewed = first.epoch, first.term.renewed_at
    await until(lambda: first.term.renewed_at > renewed)
    assert first.leads
    assert first.epoch == epoch
    assert plane.must("GET", f"{LEASES}/{lease}")["spec"]["leaseTransitions"] == epoch


async def test_a_server_that_is_killed_ends_the_term_and_comes_back_to_a_higher_epoch(
    plane: ControlPlane, candidates: Any, lease: str
) -> None:
    first = candidates(lease, "first")
    await until(lambda: first.leads)
    await asyncio.to_thread(plane.kill_api)
    with pytest.raises(Stalled):
        await first.task
    second = candidates(lease, "second")
    await asyncio.sleep(0.5)
    assert second.elector.problem is not None
    await asyncio.to_thread(plane.start_api)
    await asyncio.to_thread(plane.wait_ready)
    await until(lambda: second.leads)
    never_both(first, second)


async def test_clocks_that_are_hours_apart_change_nothing(candidates: Any, lease: str) -> None:
    first = candidates(lease, "first", now=lambda: 86_400.0)
    await until(lambda: first.leads)
    second = candidates(lease, "second", now=lambda: 4e9)
    await asyncio.sleep(QUICK.lease + 0.6)
    assert first.leads, first.elector.problem
    assert not second.leads


async def test_whoever_finds_another_in_its_place_leads_no_more(plane: ControlPlane, candidates: Any, lease: str) -> None:
    first = candidates(lease, "first")
    await until(lambda: first.leads)
    found = plane.must("GET", f"{LEASES}/{lease}")
    found["spec"].update(holderIdentity="somebody", leaseTransitions=first.epoch + 1)
    del found["metadata"]["resourceVersion"]
    found["metadata"].pop("managedFields", None)
    plane.must("PATCH", f"{LEASES}/{lease}", {"spec": found["spec"]}, "application/merge-patch+json")
    with pytest.raises(Stalled):
        async with asyncio.timeout(2.0):
            await first.task
    assert not first.leads
    assert plane.must("GET", f"{LEASES}/{lease}")["spec"]["holderIdentity"] == "somebody", "and doesn't give back what isn't its own"


async def test_a_lease_that_is_deleted_makes_nobody_older(plane: ControlPlane, candidates: Any, lease: str) -> None:
    first = candidates(lease, "first", above=lambda: 41)
    await until(lambda: first.leads)
    assert first.epoch == 42, "higher than any that agents have seen"
    plane.must("DELETE", f"{LEASES}/{lease}")
    with pytest.raises(Stalled):
        await first.task
    second = candidates(lease, "second", above=lambda: 42)
    await until(lambda: second.leads)
    never_both(first, second)


async def test_of_many_that_come_together_one_leads(candidates: Any, lease: str) -> None:
    many = [candidates(lease, f"n{number}") for number in range(6)]
    await until(lambda: any(one.leads for one in many))
    await asyncio.sleep(1.0)
    assert sum(one.leads for one in many) == 1


async def test_our_own_name_without_a_term_is_no_reason_to_wait(candidates: Any, lease: str, plane: ControlPlane) -> None:
    """A write whose answer got lost: nobody else leads then."""
    spec = {"holderIdentity": "first", "leaseDurationSeconds": 3600, "leaseTransitions": 4}
    plane.must("POST", LEASES, {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": lease}, "spec": spec})
    first = candidates(lease, "first")
    await until(lambda: first.leads, 1.5)
    assert first.epoch == 5
