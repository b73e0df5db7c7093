"""A term by its clock alone, and what is asked of terms."""

import asyncio
import json

import httpx
import pytest
from cluster_server import Server, refused
from shunter.cluster.backoff import Backoff
from shunter.cluster.elector import Elector, Term, Terms
from shunter.model.ids import Epoch


def test_a_term_ends_by_the_clock_though_nothing_got_to_run() -> None:
    now = 100.0
    term = Term(Epoch(3), 100.0, 10.0, lambda: now)
    assert term.held()
    now = 109.9
    assert term.held()
    now = 110.0
    assert not term.held()


def test_a_term_that_ended_never_comes_back() -> None:
    now = 110.0
    term = Term(Epoch(3), 100.0, 10.0, lambda: now)
    assert not term.held()
    term.renewed_at = 109.0  # an answer that came too late
    assert not term.held()
    assert term.left() == 0.0


@pytest.mark.parametrize(
    "terms",
    [Terms(lease=10.0, renew_deadline=10.0), Terms(lease=15.0, renew_deadline=2.0, retry=2.0), Terms(retry=0.0)],
)
def test_terms_under_which_two_could_lead_are_refused(terms: Terms) -> None:
    with pytest.raises(ValueError, match="rise"):
        Elector(Server().api(), "default", "lease", "me", terms=terms)


async def test_who_stood_by_remembers_the_epochs_of_a_lease_that_is_deleted() -> None:
    def lease(**spec: object) -> httpx.Response:
        return httpx.Response(200, json={"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": spec})

    def made(request: httpx.Request) -> httpx.Response:
        return httpx.Response(201, json=json.loads(request.content))

    theirs = lease(holderIdentity="other", leaseTransitions=41, leaseDurationSeconds=15)
    mine = lease(holderIdentity="me", leaseTransitions=42)
    server = Server(theirs, refused(404), made, *[mine] * 50)
    epochs = []

    async def work(term: Term) -> None:
        epochs.append(term.epoch)

    async def no_sleep(_seconds: float) -> None:
        await asyncio.sleep(0)

    api = server.api()
    await Elector(api, "default", "lease", "me", sleep=no_sleep).lead(work)
    await api.aclose()
    assert epochs == [42]


def test_waits_double_up_to_the_most_and_begin_anew() -> None:
    backoff = Backoff(1.0, 5.0, lambda: 1.0)
    assert [backoff.next() for _ in range(4)] == [1.0, 2.0, 4.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0
    assert Backoff(1.0, 5.0, lambda: 0.0).next() == 0.5
