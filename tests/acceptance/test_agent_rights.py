"""The agent under the bounds of deploy/systemd/shunter-agent.service: it starts a worker, moves it with its clients, and is replaced.

That each capability is needed takes minutes to show: SHUNTER_RIGHTS=1. What the kernel's log needs is shown by itself.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fleet as fleets
import node as nodes
import pytest
from conftest import MakeScene, Scene

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

UNIT = Path(__file__).resolve().parents[2] / "deploy" / "systemd" / "shunter-agent.service"
SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s, otherwise: [checkpoint, drain]}
"""
BESIDE = {"CAP_SYSLOG", "CAP_SYS_RESOURCE"}
"""Of the kernel's log; and what this machine may not have."""


def setting(name: str) -> str:
    (value,) = [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith(f"{name}=")]
    return value


RIGHTS = setting("CapabilityBoundingSet").split()


def had() -> set[str]:
    """Capabilities that can be given here at all."""
    bounds = int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd")), 16)
    said = subprocess.run(["capsh", f"--decode={bounds:x}"], capture_output=True, text=True, check=True).stdout
    return {word.upper() for word in said.strip().partition("=")[2].split(",")}


def bounded(rights: list[str]) -> list[str]:
    given = "".join(f",+{right.removeprefix('CAP_').lower()}" for right in rights if right in had())
    return ["setpriv", f"--bounding-set=-all{given}", "--no-new-privs", "--"]


@pytest.fixture
def under(scene: MakeScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    """A fleet whose agents have these capabilities alone."""

    def make(rights: list[str], within: str = "") -> Scene:
        """`within`: a command that the agent is started by."""
        assert setting("NoNewPrivileges") == "yes"
        real, wrapped = nodes.BIN, tmp_path / "bin"
        wrapped.mkdir()
        (wrapped / "shunter-agent").write_text(f'#!/bin/sh\nexec {within} {" ".join(bounded(rights))} {real}/shunter-agent "$@"\n')
        (wrapped / "shunter-agent").chmod(0o755)
        monkeypatch.setattr(nodes, "BIN", wrapped)
        return scene(policies={"save.yaml": SAVE}, prometheus=False)

    return make


def moves(s: Scene) -> str:
    """How the worker's move ended, once its agent was replaced under it."""
    s.stream(300)
    node = s.fleet.nodes["node-a"]
    node.kill_agent()
    node.start()
    s.wait("the new agent to take orders", node.takes_orders)
    s.fleet.start_engine()
    node.post_notice("preemption", "60s", "n1")
    return str(s.outcome("move")["status"])


def test_with_what_the_unit_gives_it_the_agent_moves_a_worker(under: Callable[[list[str]], Scene]) -> None:
    s = under(RIGHTS)
    agent = s.fleet.nodes["node-a"].agent
    assert agent is not None
    status = Path(f"/proc/{agent.pid}/status").read_text()
    bounds = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
    said = subprocess.run(["capsh", f"--decode={bounds}"], capture_output=True, text=True, check=True).stdout
    assert {word.upper() for word in said.strip().partition("=")[2].split(",")} == set(RIGHTS) & had()
    assert moves(s) == "succeeded", s.logs()
    s.whole()
    assert "SH715" in s.logs(), "CRIU loads memory alone, which is said"


def test_with_ptrace_besides_the_agent_loads_memory_itself(under: Callable[[list[str]], Scene]) -> None:
    s = under([*RIGHTS, "CAP_SYS_PTRACE"])
    assert moves(s) == "succeeded", s.logs()
    s.whole()
    assert "SH715" not in s.logs()


@pytest.mark.skipif(os.environ.get("SHUNTER_RIGHTS") != "1", reason="takes minutes: SHUNTER_RIGHTS=1")
@pytest.mark.parametrize("missing", sorted(set(RIGHTS) - BESIDE))
def test_with_one_less_it_does_not(under: Callable[[list[str]], Scene], missing: str) -> None:
    with pytest.raises((AssertionError, fleets.SetUpError)):
        assert moves(under([right for right in RIGHTS if right != missing])) == "succeeded"


def test_an_agent_in_a_mount_namespace_of_its_own_does_not_dump_what_could_not_be_restored(under: Callable[..., Scene]) -> None:
    """As if its unit had ProtectSystem: each agent would be in another one, and the worker in that of the first."""
    s = under(RIGHTS, "unshare --mount --")
    assert moves(s) != "succeeded"
    assert "SH735" in "".join(str(one.get("code")) + str(one.get("reason")) for one in s.outcomes("move")), s.logs()
    assert s.copies("decode-0") == 1
    s.whole()


@pytest.mark.skipif(Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1", reason="the kernel's log is open to all here")
@pytest.mark.parametrize(("rights", "status"), [(RIGHTS, 0), ([right for right in RIGHTS if right != "CAP_SYSLOG"], 1)])
def test_the_kernels_log_takes_one_of_its_own(rights: list[str], status: int) -> None:
    program = "import os; os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK)"
    ended = subprocess.run([*bounded(rights), sys.executable, "-c", program], capture_output=True)
    assert ended.returncode == status
