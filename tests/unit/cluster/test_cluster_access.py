"""Who we are to the API server, and what its refusals mean."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from cluster_server import Server, refused
from shunter.cluster.access import Access, from_kubeconfig, in_cluster, tls
from shunter.cluster.api import Absent, Conflict, Expired
from shunter.model.errors import Rejected, Retry, ShunterError, Stalled, Unknown


def kubeconfig(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    path = tmp_path / "config"
    text = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "inference"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://example:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(text))
    return path


def test_a_kubeconfig_names_files_from_where_it_stands(tmp_path: Path) -> None:
    found = from_kubeconfig(
        kubeconfig(tmp_path, {"client-certificate": "c.pem", "client-key": "k.pem"}, {"certificate-authority": "ca.pem"})
    )
    assert found == Access(
        server="https://example:6443", namespace="inference", ca=tmp_path / "ca.pem", cert=tmp_path / "c.pem", key=tmp_path / "k.pem"
    )


def test_a_kubeconfig_may_hold_them_itself(tmp_path: Path) -> None:
    pem = base64.b64encode(b"-----BEGIN X-----").decode()
    found = from_kubeconfig(kubeconfig(tmp_path, {"token": "secret"}, {"certificate-authority-data": pem}))
    assert (found.ca, found.token) == ("-----BEGIN X-----", "secret")


@pytest.mark.parametrize("user", [{"exec": {"command": "aws"}}, {"auth-provider": {"name": "gcp"}}])
def test_programs_that_log_in_are_not_started(tmp_path: Path, user: dict[str, Any]) -> None:
    with pytest.raises(Stalled, match="logs in with a program"):
        from_kubeconfig(kubeconfig(tmp_path, user))


@pytest.mark.parametrize("text", ["", "[]", "{current-context: y, contexts: []}", "{", "{current-context: x}"])
def test_a_kubeconfig_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(Stalled, match="SH250"):
        from_kubeconfig(path)
    with pytest.raises(Stalled, match="SH250"):
        from_kubeconfig(tmp_path / "none")


def test_a_pod_has_its_own_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Stalled, match="doesn't run in a pod"):
        in_cluster(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(Stalled, match="can't be read"):
        in_cluster(tmp_path)
    (tmp_path / "namespace").write_text("inference\n")
    found = in_cluster(tmp_path)
    assert (found.server, found.namespace, found.token) == ("https://[fd00::1]:443", "inference", tmp_path / "token")


def test_certificates_that_are_none_are_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(Stalled, match="TLS can't be set up"):
        tls(Access(server="https://example", ca=tmp_path / "ca.pem"))


async def test_a_token_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    token = tmp_path / "token"
    server = Server(httpx.Response(200, json={}), httpx.Response(200, json={}))
    api = server.api(token=token)
    token.write_text("one\n")
    await api.get("/x")
    token.write_text("two\n")
    await api.get("/x")
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    ("status", "reading", "writing"),
    [
        (401, Retry, Retry),
        (403, Retry, Retry),
        (404, Absent, Absent),
        (409, Conflict, Conflict),
        (410, Expired, Expired),
        (422, Rejected, Rejected),
        (429, Retry, Retry),
        (500, Retry, Unknown),
        (504, Retry, Unknown),
    ],
)
async def test_a_refusal_says_that_nothing_was_done_and_a_failure_says_nothing(
    status: int, reading: type[ShunterError], writing: type[ShunterError]
) -> None:
    with pytest.raises(ShunterError, match="because") as raised:
        await Server(refused(status, "because")).api().get("/x")
    assert type(raised.value) is reading
    with pytest.raises(ShunterError) as raised:
        await Server(refused(status)).api().replace("/x", {})
    assert type(raised.value) is writing


async def test_no_answer_to_a_write_leaves_it_unknown_and_no_connection_leaves_it_undone() -> None:
    with pytest.raises(Unknown):
        await Server(httpx.ReadError("cut")).api().apply("/x", {}, "me")
    with pytest.raises(Retry):
        await Server(httpx.ConnectError("refused")).api().apply("/x", {}, "me")


async def test_every_request_ends() -> None:
    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

    api = Server().api()
    api._http._transport = Slow()
    with pytest.raises(Retry, match="took too long"):
        await api.get("/x", timeout_s=0.01)
    with pytest.raises(Retry, match="took too long"):
        await api.watch("/x", {}, lambda _: None, within_s=0.01)
