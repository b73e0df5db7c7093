"""One node of a local fleet: a network namespace held open by a sleeping process, and an agent in it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from machine import BRIDGE, LOOPBACK, SetUpError, descendants, ip, wait_for
from plans import NodePlan
from shunter.model.errors import Rejected
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.pretend import shared_shelf
from shunter_agent.runtime.shelf import Shelf

if TYPE_CHECKING:
    from fleet import Fleet

BIN = Path(sys.executable).parent


class Node:
    """See the module. In a pretend fleet a node is nothing but its agent, on loopback."""

    def __init__(self, fleet: "Fleet", plan: NodePlan) -> None:
        self.fleet, self.plan = fleet, plan
        self.name = plan.name
        self.folder = fleet.folder / plan.name
        self.notices = self.folder / "notices"
        self.notices.mkdir(parents=True)
        self.config = self.folder / "agent.toml"
        self.log = self.folder / "agent.log"
        self._logged_before = 0
        self.command = [str(BIN / "shunter-agent"), "run", "--config", str(self.config)]
        self._holder: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The agent's host."""
        return LOOPBACK if self.fleet.pretend else f"10.77.0.{self.plan.host}"

    def port(self, kind: int) -> int:
        """Port 0: orders; port 1: images. In a lab every node has the same; on loopback they differ."""
        return self.fleet.ports.of(f"{self.name} {kind}") if self.fleet.pretend else 7443 + kind

    def connect(self) -> None:
        """Make the namespace, its bridge `br0`, and the link to the others."""
        if self.fleet.pretend:
            return
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        mine = os.readlink("/proc/self/ns/net")
        holder = self._holder.pid
        wait_for(f"{self.name}'s network namespace", lambda: os.readlink(f"/proc/{holder}/ns/net") != mine)
        outer, inner = f"up-{self.name}", "uplink"
        ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(holder))
        ip("link", "set", outer, "master", BRIDGE, "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("link", "add", "br0", "address", f"02:53:48:00:0b:{self.plan.host:02x}", "type", "bridge"),  # else it is that of any port
            ("link", "set", inner, "master", "br0", "up"),
            ("addr", "add", f"{self.address}/24", "dev", "br0"),
            ("link", "set", "br0", "up"),
        ):
            ip(*command, within=holder)

    def write_config(self) -> None:
        """Write the agent's settings file."""
        fleet, certs = self.fleet, self.fleet.folder / "certs"
        lines = [
            f'node = "{self.name}"',
            f'listen = "{self.address}:{self.port(0)}"',
            f'image_listen = "{self.address}:{self.port(1)}"',
            f'state = "{self.folder / "state"}"',
            f'runtime = "{"pretend" if fleet.pretend else "criu"}"',
            f'criu = "{fleet.criu}"',
            'bridge = "br0"',
            "prefix = 24",
            f'notices = "{self.notices}"',
            f'discovery = "{fleet.discovery}"',
            "[tls]",
            f'ca = "{certs / "ca.pem"}"',
            f'cert = "{certs / f"agent-{self.name}.pem"}"',
            f'key = "{certs / f"agent-{self.name}.key"}"',
            "[labels]",
            *(f'{key} = "{value}"' for key, value in self.plan.labels.items()),
        ]
        for index, roles in enumerate(self.plan.slots):
            lines += ["[[slots]]", f"index = {index}", f"roles = {json.dumps(list(roles))}", 'gpu_model = ""', "gpus = 0"]
        for worker in self.plan.workers:
            lines += ["[[workers]]", *fleet.worker_lines(worker)]
        self.config.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start the agent, which starts the node's workers unless its journal knows them already."""
        enter = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--"] if self._holder else []
        with self.log.open("ab") as log:
            self._logged_before = log.tell()
            self.agent = subprocess.Popen(
                [*enter, *self.command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(self.fleet.folder)},  # whatever an agent leaves there goes with the fleet
            )

    def takes_orders(self) -> bool:
        """Whether the agent that was started last says so. Raises SetUpError when it has ended instead."""
        assert self.agent is not None
        said = self.log.read_bytes()[self._logged_before :].decode(errors="replace")
        if self.agent.poll() is not None:
            last = said.strip().rpartition("\n")[2]
            raise SetUpError(f"the agent of {self.name} ended with status {self.agent.returncode}: {last or 'it said nothing'}")
        return '"taking orders"' in said

    def kill_agent(self) -> None:
        """SIGKILL the agent alone: its workers live on."""
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def power_off(self) -> None:
        """What the end of a preempted machine is: agent, workers and links gone at once."""
        pids = descendants(self.agent.pid) if self.agent else []
        spared = {pid for left in pids if self._went_on(left) for pid in (left, *descendants(left))}
        pids = [*(pid for pid in pids if pid not in spared), *([self.agent.pid] if self.agent else [])]
        if self._holder:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "del", f"up-{self.name}")
            pids.append(self._holder.pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in (self.agent, self._holder):
            if process:
                process.wait()
        self.agent = self._holder = None

    def _went_on(self, pid: int) -> bool:
        """A pretend move leaves the process where it is, as its first agent's child: it isn't this node's any more all the same."""
        if not self.fleet.pretend:
            return False
        with contextlib.suppress(Rejected):
            standing = Shelf(self.fleet.folder / shared_shelf().name).get(processes.note(pid))  # beside the agents' own temporary files
            return standing is not None and standing.owner != self.name
        return False

    def post_notice(self, kind: str, lead: str | None, notice: str) -> None:
        """Post a notice to this node's agent through its local source; without a deadline where `lead` is None."""
        left = [] if lead is None else ["--lead", lead]
        subprocess.run(
            [BIN / "shunter-agent", "notice", "post", "--dir", self.notices, "--id", notice, "--kind", kind, *left],
            check=True,
            capture_output=True,
        )
