"""What a Prometheus client is made from. How it behaves is tested against servers, in tests/contract."""

from pathlib import Path

import pytest
from shunter.model.errors import Rejected
from shunter.observe.prometheus import Prometheus


@pytest.mark.parametrize(
    "url",
    [
        "",
        "prometheus:9090",
        "ftp://host",
        "http://",
        "http:///path",
        "http://host?x=1",
        "http://host#x",
        "http://[::1",
        "file:///etc/passwd",
    ],
)
def test_urls_that_are_no_server(url: str) -> None:
    with pytest.raises(Rejected) as caught:
        Prometheus(url)
    assert caught.value.problem.code == "SH306"


async def test_the_shown_url_has_no_credentials() -> None:
    async with Prometheus("https://user:hunter2@host:9090/prefix/") as client:
        assert client.where == "https://host:9090/prefix"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_can_not_be_used(tmp_path: Path, content: str | None) -> None:
    ca = tmp_path / "ca.pem"
    if content is not None:
        ca.write_text(content)
    with pytest.raises(Rejected) as caught:
        Prometheus("https://host", ca=ca)
    assert caught.value.problem.code == "SH306"
