"""What a cloud says reaches the engine's next look at the node, and what keeps it from saying anything does too."""

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import msgspec
import pytest
from agent_fakes import Bench
from shunter.act.agents import view_of
from shunter.model.errors import Rejected
from shunter_agent import agent, inventory
from shunter_agent.notices import watching
from shunter_agent.settings import CloudSettings, Settings, load

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "agent_notices"))
from metadata_services import Aws, Azure, Gcp, serving  # pyright: ignore[reportMissingImports]  (found by the line above)


def with_clouds(bench: Bench, *clouds: CloudSettings) -> Settings:
    return msgspec.structs.replace(bench.settings, clouds=clouds)


async def until_noticed(bench: Bench, number: int) -> None:
    async with asyncio.timeout(10):
        while len(bench.node.notices) != number:
            await asyncio.sleep(0.01)


async def test_a_spot_interruption_is_in_the_nodes_report_with_where_it_came_from(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    service = Aws()
    service.says["spot/instance-action"] = '{"action": "terminate", "time": "2030-01-02T03:02:00Z"}'
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(serving(service))
        bench.node.settings = with_clouds(bench, CloudSettings(name="aws", url=service.url))
        agent.watch_notices(bench.node, stack)
        await until_noticed(bench, 1)
        view = view_of(await inventory.report(bench.node))
    assert [(n.kind.value, n.source) for n in view.notices] == [("preemption", "aws")]
    assert view.notices[0].id.startswith("n/aws-spot-"), "of two nodes that are taken alike, each has its own"
    assert (view.node.sources, view.node.problems) == (("aws",), ())


async def test_an_agent_that_is_started_anew_goes_on_with_the_lead_where_it_was(tmp_path: Path) -> None:
    """The one before it saw it 12 s earlier than it did: what it has left on the disk says so."""
    bench, ends = Bench(tmp_path), list[float]()
    service = Gcp()
    service.says["preempted"] = "TRUE"
    with serving(service):
        for _ in range(2):
            async with contextlib.AsyncExitStack() as stack:
                bench.node.settings = with_clouds(bench, CloudSettings(name="gcp", url=service.url))
                agent.watch_notices(bench.node, stack)
                await until_noticed(bench, 1)
                ends.append(bench.node.notices["gcp-preempted"].deadline or 0.0)
            left = tmp_path / "first-seen.json"
            (kept,) = (said := json.loads(left.read_bytes()))["kept"]
            left.write_text(json.dumps(said | {"kept": [kept | {"at": kept["at"] - 12.0, "deadline": kept["deadline"] - 12.0}]}))
            bench.node.notices = {}
    assert ends[0] - ends[1] == pytest.approx(12.0, abs=1.0)


async def test_a_source_that_is_blind_is_in_the_nodes_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    monkeypatch.setattr(watching, "BLIND_S", 0.0)
    bench.node.settings = with_clouds(bench, CloudSettings(name="aws", url="http://127.0.0.1:1"))
    async with contextlib.AsyncExitStack() as stack:
        agent.watch_notices(bench.node, stack)
        async with asyncio.timeout(10):
            while not (problems := view_of(await inventory.report(bench.node)).node.problems):
                await asyncio.sleep(0.01)
    assert {p.code for p in problems} == {"SH645"}
    assert "blind since" in problems[0].what


async def test_azure_is_let_go_ahead_once_the_last_worker_has_left(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    service = Azure()
    service.preempt()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(serving(service))
        bench.node.settings = with_clouds(bench, CloudSettings(name="azure", url=service.url, acknowledge=True))
        agent.watch_notices(bench.node, stack)
        await until_noticed(bench, 1)
        assert service.started == [], "its worker is still here"
        bench.journal.drop_worker("w")
        async with asyncio.timeout(10):
            while not service.started:
                await asyncio.sleep(0.01)
    assert service.started == ["e1"]


SETTINGS = """\
node = "n"
listen = "127.0.0.1:1"
image_listen = "127.0.0.1:2"
state = "state"
runtime = "pretend"
slots = []
tls = {ca = "ca", cert = "cert", key = "key"}
"""


def test_settings_name_clouds(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text('clouds = [{name = "aws"}, {name = "gcp", lead = 110.0}]\n' + SETTINGS)
    assert [(c.name, c.lead) for c in load(path).clouds] == [("aws", None), ("gcp", 110.0)]
    for wrong in ('clouds = [{name = "aws"}, {name = "aws"}]\n', 'clouds = [{name = "oci"}]\n'):
        path.write_text(wrong + SETTINGS)
        with pytest.raises(Rejected) as caught:
            load(path)
        assert caught.value.problem.code == "SH672"


async def test_a_canary_reaches_the_engine_and_is_no_notice_anywhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    service = Aws()
    told: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(serving(service))
        bench.node.settings = with_clouds(bench, CloudSettings(name="aws", url=service.url))
        bench.node.events.publish = lambda event: told.append(str(event.WhichOneof("what")))  # type: ignore[method-assign]
        agent.watch_notices(bench.node, stack)
        async with asyncio.timeout(10):
            while not (view := view_of(await inventory.report(bench.node))).node.canaries:
                await asyncio.sleep(0.01)
    assert view.node.canaries == {"aws": bench.clock()}
    assert (view.notices, bench.node.notices, told) == ((), {}, [])
    assert view.node.problems == ()


@pytest.mark.parametrize(
    "wrong",
    [
        'http = [{name = "a", url = "http://x/"}, {name = "a", url = "http://y/"}]\n',
        'http = [{name = "file", url = "http://x/"}]\n',
        'http = [{name = "a", url = "ftp://x/"}]\n',
        'http = [{name = "a", url = "http://x/", every = 0.0}]\n',
        'dcgm = "localhost:9400"\n',
    ],
)
def test_settings_of_other_sources_are_checked(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(wrong + SETTINGS)
    with pytest.raises(Rejected) as caught:
        load(path)
    assert caught.value.problem.code == "SH672"


def test_settings_of_kubernetes_have_their_paths_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(SETTINGS + '[kubernetes]\nserver = "https://k"\nca = "k.pem"\n')
    found = load(path).kubernetes
    assert found is not None
    assert (found.ca, found.token) == (tmp_path / "k.pem", None)
