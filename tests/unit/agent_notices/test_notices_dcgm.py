"""DCGM's exporter, by its own text over real HTTP. No GPU made these lines: they are as public reports have them."""

from collections.abc import Iterator, Mapping

import pytest
from metadata_services import Answer, Service, serving
from shunter.model.errors import Retry
from shunter_agent.notices import dcgm
from shunter_agent.notices.gpu import GpuNotices
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.metadata import Metadata
from shunter_agent.notices.port import Notice
from shunter_agent.notices.xid import Xid

NOW = 1_767_322_800.0
OLD = 'gpu="1",UUID="GPU-bbb",device="nvidia1",modelName="NVIDIA B200",Hostname="n"'
"""Before exporters named PCI addresses."""
NEW = 'gpu="0",UUID="GPU-aaa",pci_bus_id="00000000:4F:00.0",device="nvidia0",modelName="NVIDIA B200",Hostname="n",pod="a{b,c=\\"d\\"}"'
RECOVERY = dcgm.LINKS[0]


class Exporter(Service):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[str, str], str] = {(dcgm.XID, NEW): "0", (dcgm.XID, OLD): "0"}

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        lines = [f"# HELP {dcgm.XID} Value of the last XID error encountered.", f"# TYPE {dcgm.XID} gauge"]
        lines += [f"{name}{{{labels}}} {value}" for (name, labels), value in self.values.items()]
        return 200, "\n".join([*lines, "go_goroutines 7", ""]), {}


class Case:
    def __init__(self, service: Exporter) -> None:
        self.service, self.now = service, NOW
        self.client = Metadata("dcgm", service.url, called="DCGM's exporter", clock=lambda: self.now)
        self.slots = Gpus(pci={"0000:4f:00": "n/0"}, uuids={"GPU-bbb": "n/1"})
        (self.look,) = dcgm.looks(self.client, self.slots, elapsed=lambda: self.now - NOW + 5_000.0)

    def doubts(self) -> list[tuple[str, float]]:
        return [(d.slot, d.at) for d in self.look.doubts()]

    def say(self, name: str, labels: str, value: str) -> list[tuple[str, str, bool]]:
        self.service.values[name, labels] = value
        return self.ask()

    def ask(self) -> list[tuple[str, str, bool]]:
        """Kind, slot, and whether it may be dumped."""
        found: Mapping[str, Notice] = self.look.ask()
        return sorted((n.kind, n.slot, n.dumpable) for n in found.values())


@pytest.fixture
def case() -> Iterator[Case]:
    service = Exporter()
    with serving(service):
        made = Case(service)
        yield made
        made.client.close()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (dcgm.XID, "79", [("gpu-failing", "SLOT", False)]),
        (dcgm.XID, "48", [("gpu-failing", "SLOT", True)]),
        (dcgm.XID, "63", [("rebalance", "SLOT", True)]),
        (dcgm.XID, "31", []),
        (dcgm.XID, "9223372036854775794", []),
        (dcgm.XID, "NaN", []),
        (dcgm.REMAP_FAILED, "1", [("gpu-failing", "SLOT", True)]),
        (dcgm.REMAP_FAILED, "0", []),
        (dcgm.REMAP_PENDING, "1", [("rebalance", "SLOT", True)]),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "3", []),
        ("DCGM_FI_DEV_GPU_TEMP", "91", []),
        (RECOVERY, "12", []),
    ],
)
def test_what_each_number_means(case: Case, name: str, value: str, expected: list[tuple[str, str, bool]]) -> None:
    for labels, slot in ((NEW, "n/0"), (OLD, "n/1"), ('gpu="7"', "")):
        assert case.say(name, labels, value) == [(kind, slot, dumpable) for kind, _, dumpable in expected]
        case.service.values = {(dcgm.XID, NEW): "0", (dcgm.XID, OLD): "0"}
        (case.look,) = dcgm.looks(case.client, case.slots)


def test_a_harmless_error_doesnt_hide_the_grave_one_before_it(case: Case) -> None:
    """The exporter tells the last XID only, and that stays until there is another."""
    assert case.say(dcgm.XID, NEW, "79") == [("gpu-failing", "n/0", False)]
    assert case.say(dcgm.XID, NEW, "45") == [("gpu-failing", "n/0", False), ("rebalance", "n/0", True)]
    assert case.ask() == [("gpu-failing", "n/0", False), ("rebalance", "n/0", True)]
    assert case.say(dcgm.XID, NEW, "0") == [], "it was reset"


def test_a_gpu_that_the_kernel_says_has_recovered_isnt_ill_for_ever(case: Case) -> None:
    """Its last XID stays as it is after a reset, until the exporter is started anew."""
    kernel = GpuNotices({"0000:4f:00": "n/0"})
    (case.look,) = dcgm.looks(case.client, case.slots, mended=kernel.mended)

    def happens(xid: int, text: str = "") -> None:
        kernel.heard(Xid(gpu="0000:4f:00", number=xid, text=text), NOW)

    happens(79)
    assert case.say(dcgm.XID, NEW, "79") == [("gpu-failing", "n/0", False)]
    happens(45)
    assert len(case.say(dcgm.XID, NEW, "45")) == 2
    happens(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert case.ask() == [], "all of it was before"
    (case.look,) = dcgm.looks(case.client, case.slots, mended=kernel.mended)
    assert case.ask() == [], "an agent that starts now reads the kernel's log, too"
    assert case.say(dcgm.XID, OLD, "79") == [("gpu-failing", "n/1", False)], "of another GPU the kernel has said nothing"
    case.say(dcgm.XID, OLD, "0")
    happens(45)
    assert case.ask() == [("rebalance", "n/0", True)], "once more"


def test_a_gpu_that_isnt_told_of_any_more_keeps_what_was_said(case: Case) -> None:
    assert case.say(dcgm.XID, NEW, "79") == [("gpu-failing", "n/0", False)]
    del case.service.values[dcgm.XID, NEW]
    assert case.ask() == [("gpu-failing", "n/0", False)]


def test_an_error_of_the_process_is_told_for_an_hour_or_until_the_exporter_forgets_it(case: Case) -> None:
    def told() -> list[tuple[str, str]]:
        case.ask()
        return [(p.code, p.subject) for p in case.look.problems()]

    case.say(dcgm.XID, NEW, "31")
    assert told() == told() == [("SH647", "n/0")]
    case.now += 3600
    assert told() == [], "the exporter still says so, and it is no news"
    case.say(dcgm.XID, NEW, "94")
    assert told() == [("SH647", "n/0")]
    case.say(dcgm.XID, NEW, "0")
    assert told() == []


def test_links_that_make_errors_raise_the_hazard_for_a_while(case: Case) -> None:
    assert case.say(RECOVERY, NEW, "5") == [], "what was counted before we looked isn't news"
    assert case.say(RECOVERY, NEW, "6") == [("rebalance", "n/0", True)]
    case.now += dcgm.CALM_S - 1
    assert case.ask() == [("rebalance", "n/0", True)]
    case.now += 1
    assert case.ask() == []


def test_half_a_text_isnt_believed(case: Case) -> None:
    for text in (f"{dcgm.XID}{{{NEW}}} ", "", "<html>"):
        case.service.broken = (200, text, {})
        with pytest.raises(Retry) as caught:
            case.ask()
        assert caught.value.problem.code == "SH644"
        assert "DCGM" in caught.value.problem.what


def test_what_was_computed_since_the_last_look_before_an_error_is_doubted(case: Case) -> None:
    case.ask()
    case.now += 5.0
    case.say(dcgm.XID, NEW, "31")
    assert case.doubts() == [("n/0", 5_000.0)], "it may have come right after that look"
    case.now += 5.0
    case.say(dcgm.XID, OLD, "48")
    case.say(dcgm.XID, NEW, "13")
    assert case.doubts() == [("n/0", 5_010.0)]


def test_an_error_that_was_there_at_the_first_look_has_no_time_and_doubts_nothing(case: Case) -> None:
    case.say(dcgm.XID, NEW, "31")
    assert (case.doubts(), [p.code for p in case.look.problems()]) == ([], ["SH647"])
