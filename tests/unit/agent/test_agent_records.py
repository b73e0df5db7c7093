"""Workers that are fenced, and registered again, by their records in the file discovery."""

import json
import os
from pathlib import Path
from typing import Final

import httpx
import pytest
from agent_fakes import SPEC
from msgspec.structs import replace
from shunter.model.errors import Rejected, Retry
from shunter_agent.runtime.port import WorkerSpec
from shunter_agent.serving import records as module
from shunter_agent.serving.dynamo import DynamoServing

PLAIN: Final = replace(SPEC, control="")
EXPIRED: Final = 1_000_000.0
"""A time long past, in seconds since the epoch: peers would take such a lease for expired."""


class Discovery:
    """A worker's records, and those of another on the same host whose address begins alike."""

    def __init__(self, root: Path, spec: WorkerSpec = PLAIN, instance: int = 255) -> None:
        self.root = root
        host = spec.address.rpartition(":")[0]
        tcp = {"tcp": f"{spec.address}/ff/dynamo/backend/generate"}
        self.generate = self.write("instances", "generate-ff", type="Endpoint", endpoint="generate", instance_id=instance, transport=tcp)
        self.clear = self.write("instances", "clear-ff", type="Endpoint", endpoint="clear", instance_id=instance, transport=tcp)
        self.others = [
            self.write("instances", "query-ff", type="Endpoint", endpoint="worker_kv_query_source_1", instance_id=instance, transport=tcp),
            self.write("mdc", "generate-ff", type="Model", instance_id=instance, card_json={"a": 1}),
            self.write("event_sources", "ff", type="EventSource", metadata={"worker": {"worker_id": instance}}),
            self.write("event_channels", "ff", type="EventChannel", transport={"config": {"endpoint": f"tcp://{host}:5"}}),
        ]
        self.foreign = [
            self.write("instances", "fe", endpoint="generate", instance_id=254, transport={"tcp": f"{spec.address}1/fe/x"}),
            self.write("mdc", "fe", type="Model", instance_id=254),
            self.write("event_channels", "fe", type="EventChannel", transport={"config": {"endpoint": f"tcp://{host}1:5"}}),
        ]
        (root / "v1" / "mdc" / "half").write_text('{"type": "Mod')

    def write(self, bucket: str, name: str, **fields: object) -> Path:
        path = self.root / "v1" / bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(fields))
        os.chmod(path, 0o640)
        os.utime(path, (EXPIRED, EXPIRED))
        return path

    @property
    def own(self) -> list[Path]:
        return [self.generate, self.clear, *self.others]

    def serving(self) -> DynamoServing:
        """An agent's; another each time, as after a crash or at a move's destination."""
        return DynamoServing(self.root, wait=lambda _seconds: None, monotonic=iter(range(10**6)).__next__)


def test_what_takes_requests_goes_and_comes_back_as_it_was(tmp_path: Path) -> None:
    discovery = Discovery(tmp_path)
    before = {path: path.read_bytes() for path in discovery.own}
    assert "taken out of discovery" in discovery.serving().fence(PLAIN)
    assert not discovery.generate.exists()
    assert not discovery.clear.exists()
    assert all(path.exists() for path in (*discovery.others, *discovery.foreign))
    assert "taken out of discovery" in discovery.serving().fence(PLAIN), "once more, after a crash"
    for kept in (tmp_path / "shunter").glob("*/*/*"):
        os.utime(kept, (EXPIRED, EXPIRED))
    assert "back in discovery, 2 of its records" in discovery.serving().unfence(PLAIN)
    assert {path: path.read_bytes() for path in discovery.own} == before
    assert all(path.stat().st_mtime > EXPIRED for path in (discovery.generate, discovery.clear)), "peers would delete them at once"
    assert discovery.generate.stat().st_mode & 0o777 == 0o640
    assert not (tmp_path / "shunter" / "w").exists()
    assert "back in discovery" in discovery.serving().unfence(PLAIN)


def test_it_is_deleted_and_not_renamed_away(tmp_path: Path) -> None:
    """Of a file that is renamed away Dynamo's routers don't hear, and go on sending to its worker."""
    discovery = Discovery(tmp_path)
    with discovery.generate.open() as file:
        discovery.serving().fence(PLAIN)
        assert os.fstat(file.fileno()).st_nlink == 0


def test_at_a_crash_between_two_deletions_both_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery, unlink = Discovery(tmp_path), Path.unlink

    def dies(path: Path, missing_ok: bool = False) -> None:
        if path == discovery.generate:  # the second one
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            discovery.serving().fence(PLAIN)
    assert discovery.generate.exists()
    assert not discovery.clear.exists()
    discovery.serving().unfence(PLAIN)
    assert all(path.exists() for path in discovery.own)


@pytest.mark.parametrize("controls", [False, True])
def test_what_peers_deleted_while_it_stood_still_is_there_again(tmp_path: Path, controls: bool) -> None:
    discovery = Discovery(tmp_path)
    before = {path: path.read_bytes() for path in discovery.own}

    def answer(request: httpx.Request) -> httpx.Response:
        for path in (discovery.generate, discovery.clear):
            path.unlink() if request.url.path.endswith("/fence") else path.write_bytes(before[path])
        return httpx.Response(200, json={"instance_id": 255})

    def serving() -> DynamoServing:
        return DynamoServing(tmp_path, client=httpx.Client(transport=httpx.MockTransport(answer)))

    spec = SPEC if controls else PLAIN
    serving().fence(spec)
    for path in (*discovery.others, *discovery.foreign):
        path.unlink()
    assert f"{4 if controls else 6} of its records put back" in serving().unfence(spec)
    assert {path: path.read_bytes() for path in discovery.own} == before
    assert not any(path.exists() for path in discovery.foreign), "another worker's records are its own business"


def test_a_control_that_says_more_than_it_did(tmp_path: Path) -> None:
    """It thinks that it is registered; but its lease has ended."""
    discovery = Discovery(tmp_path)
    discovery.serving().fence(PLAIN)
    client = httpx.Client(transport=httpx.MockTransport(lambda _request: httpx.Response(200, json={"instance_id": 255})))
    waited: list[float] = []
    serving = DynamoServing(tmp_path, client=client, wait=waited.append, monotonic=iter(range(10**6)).__next__)
    assert "2 of its records put back" in serving.unfence(SPEC)
    assert discovery.generate.exists()
    assert waited, "it may need a moment to register, and is to do that by itself if it can"


def test_nothing_of_an_earlier_process_is_put_back(tmp_path: Path) -> None:
    discovery = Discovery(tmp_path)
    discovery.serving().fence(PLAIN)
    new = discovery.write("instances", "new", endpoint="generate", instance_id=7, transport={"tcp": f"{PLAIN.address}/7/x"})
    discovery.serving().unfence(PLAIN)
    assert new.exists()
    assert not discovery.generate.exists()


def test_what_was_kept_of_an_earlier_process_goes_with_the_next_fence(tmp_path: Path) -> None:
    discovery = Discovery(tmp_path)
    discovery.serving().fence(PLAIN)
    new = discovery.write("instances", "new", endpoint="generate", instance_id=7, transport={"tcp": f"{PLAIN.address}/7/x"})
    discovery.serving().fence(PLAIN)
    discovery.serving().unfence(PLAIN)
    assert new.exists()
    assert not discovery.generate.exists()


def test_a_worker_that_is_registered_elsewhere_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="SH621"):
        Discovery(tmp_path).serving().fence(replace(PLAIN, address="10.9.9.9:1"))
    assert "nothing of it was taken out" in Discovery(tmp_path).serving().unfence(replace(PLAIN, address="10.9.9.9:1"))


def test_what_is_registered_again_at_once_can_not_be_fenced_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = Discovery(tmp_path)
    monkeypatch.setattr(Path, "unlink", lambda _path, missing_ok=False: None)
    with pytest.raises(Retry, match="SH627"):
        discovery.serving().fence(PLAIN)
    assert all(path.exists() for path in discovery.own)


def test_a_discovery_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = Discovery(tmp_path)

    def fails(_path: Path, _to: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(module, "_copy", fails)
        with pytest.raises(Retry, match="SH625"):
            discovery.serving().fence(PLAIN)
    assert all(path.exists() for path in discovery.own), "nothing is deleted of which there is no copy"
    discovery.serving().fence(PLAIN)
    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(Retry, match="SH626"):
        discovery.serving().unfence(PLAIN)
