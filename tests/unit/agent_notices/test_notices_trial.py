"""What `shunter-agent check` says of a node's sources of notices."""

import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from metadata_services import Aws, Service, serving
from shunter_agent.notices import aws
from shunter_agent.notices.canary import Canary
from shunter_agent.notices.trial import trial
from shunter_agent.settings import CloudSettings, KubernetesSettings, Settings, TlsSettings

TLS = TlsSettings(ca=Path("ca"), cert=Path("cert"), key=Path("key"))


def settings(folder: Path, **more: Any) -> Settings:
    plain = Settings(node="n", listen="", image_listen="", state=folder, tls=TLS, slots=())
    return msgspec.structs.replace(plain, notices=folder / "notices", **more)


def codes(given: Settings, **more: Any) -> list[tuple[str, str]]:
    return [(p.code, p.subject) for p in trial(given, **more)]


def test_all_is_well_where_each_source_answers(tmp_path: Path) -> None:
    service = Aws()
    with serving(service):
        assert codes(settings(tmp_path, clouds=(CloudSettings(name="aws", url=service.url),))) == []
    assert list((tmp_path / "notices").iterdir()) == [], "it leaves nothing behind"


def test_a_notice_that_is_open_is_nothing_wrong(tmp_path: Path) -> None:
    service = Aws()
    service.says["spot/instance-action"] = '{"action": "terminate", "time": "2030-01-02T03:02:00Z"}'
    with serving(service):
        assert codes(settings(tmp_path, clouds=(CloudSettings(name="aws", url=service.url),))) == []


def test_what_doesnt_answer_and_what_cant_be_read_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    found = codes(
        settings(
            tmp_path,
            clouds=(CloudSettings(name="alibaba", url="http://127.0.0.1:1"),),
            kernel_log=tmp_path / "kmsg",
            kubernetes=KubernetesSettings(),
        )
    )
    assert found == [("SH643", "alibaba"), ("SH646", f"{tmp_path}/kmsg"), ("SH648", "kubernetes")]


class Mute(Service):
    """Takes the request and says nothing, for as long as it isn't ended."""

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Any:
        self.ends.wait(20)
        return 404, "", {}

    def __init__(self) -> None:
        super().__init__()
        self.ends = threading.Event()


def test_one_that_never_answers_isnt_waited_for_longer_than_stated(tmp_path: Path) -> None:
    with ExitStack() as stack:
        mute = Mute()
        stack.enter_context(serving(mute))
        stack.callback(mute.ends.set)
        assert codes(settings(tmp_path, clouds=(CloudSettings(name="alibaba", url=mute.url),)), within=0.5) == [("SH643", "alibaba")]


def test_a_detector_that_is_deaf_is_told_though_its_service_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "_SPOT", "/latest/meta-data/spot/moved-elsewhere")
    monkeypatch.setattr("shunter_agent.notices.trial.Canary", partial(Canary, within=0.2))
    service = Aws()
    with serving(service):
        found = codes(settings(tmp_path, clouds=(CloudSettings(name="aws", url=service.url),)))
    assert found == [("SH654", "aws")]
