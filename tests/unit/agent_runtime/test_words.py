"""What is read out of CRIU's logs and the kernel's tables, and what is written on the wire."""

from pathlib import Path

import pytest
from shunter.model.errors import Retry
from shunter_agent.runtime import hostfacts, netlink, swrk
from shunter_agent.runtime.network import _announcement, outer_name

LOG = """\
(00.000000) CRIU run id = a5e50969-6ed5-4eff-a98e-6e71a989913d
(00.000000) CRIU run id = 18735ba5-8e8a-4b70-89a1-ab3e02e5c641
(00.001299) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
(00.010000) Warn  (criu/net.c:1): harmless
(00.019000) Error (criu/files.c:1): first
(00.020000) Error (criu/files-ext.c:94): Can't dump file 3 of that type [600] (anon anon_inode:[userfaultfd])
(00.021000) Error (criu/cr-dump.c:1669): Dump files (pid: 9) failed with -1
(00.022000) Error (criu/cr-dump.c:2098): Dumping FAILED.
"""


def test_a_logs_last_errors_are_the_reason_and_its_noise_is_not(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    assert swrk.reasons(log) == ""
    assert swrk.run_id(log) is None
    log.write_text(LOG)
    assert swrk.reasons(log) == (
        "Can't dump file 3 of that type [600] (anon anon_inode:[userfaultfd]); Dump files (pid: 9) failed with -1; Dumping FAILED"
    )
    assert swrk.run_id(log) == "18735ba5-8e8a-4b70-89a1-ab3e02e5c641"
    log.write_text("\n".join(LOG.splitlines()[2:4]))
    assert swrk.reasons(log) == ""
    assert swrk.run_id(log) is None


def test_a_missing_criu_is_told(tmp_path: Path) -> None:
    with pytest.raises(Retry, match="SH703"):
        swrk.version(tmp_path / "criu")


def test_cpu_facts_do_not_depend_on_the_order_of_flags(tmp_path: Path) -> None:
    def facts(text: str) -> dict[str, str]:
        (tmp_path / "cpuinfo").write_text(text)
        return hostfacts.host_facts(tmp_path / "cpuinfo")

    first = facts("processor : 0\nmodel name\t: Xeon\nflags\t: avx512f sse2\n\nprocessor : 1\nmodel name\t: Other\n")
    assert first["cpu"] == "Xeon"
    assert first["cpu_features"] == facts("model name: Xeon\nflags: sse2 avx512f\n")["cpu_features"]
    assert first["cpu_features"] != facts("model name: Xeon\nflags: sse2\n")["cpu_features"]
    arm = facts("processor : 0\nFeatures : fp asimd\nCPU part : 0xd0c\n")
    assert (arm["cpu"], arm["cpu_features"][:7]) == ("0xd0c", "sha256:")
    assert hostfacts.host_facts(tmp_path / "missing")["cpu"] == "unknown"


def test_a_links_name_is_the_workers_own_and_short() -> None:
    names = {outer_name(worker) for worker in ("w1", "w2", "a-worker-with-a-name-that-is-much-too-long-for-a-link")}
    assert len(names) == 3
    assert all(len(name) <= 15 for name in names)
    assert outer_name("w1") == outer_name("w1")


def test_an_announcement_is_a_gratuitous_arp_request() -> None:
    frame = _announcement("02:00:00:00:00:10", "10.77.0.10")
    ours, ip = bytes.fromhex("020000000010"), bytes([10, 77, 0, 10])
    assert frame[:14] == b"\xff" * 6 + ours + b"\x08\x06"
    assert frame[14:22] == bytes.fromhex("0001080006040001"), "Ethernet, IPv4, request"
    assert (frame[22:28], frame[28:32], frame[38:42]) == (ours, ip, ip)
    assert len(frame) == 42


def test_netlink_messages_and_attributes_are_read_as_they_are_written() -> None:
    body = netlink.attribute(1, b"CRIU-abc\0") + netlink.attribute(2 | 0x8000, b"1234")
    packet = netlink.message(16, 1, body) + netlink.message(2, 0, (-2 & 0xFFFFFFFF).to_bytes(4, "little"))
    (first, content), (second, failure) = netlink.messages(packet)
    assert (first, second) == (16, 2)
    assert netlink.attributes(content) == {1: b"CRIU-abc\0", 2: b"1234"}
    assert netlink.error_of(failure) == 2
