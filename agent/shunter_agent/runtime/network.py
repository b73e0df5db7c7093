"""Network identities of workers: a namespace of its own with an address and a MAC that go with the worker, on a link to the node's bridge.

The inner end of the link is `eth0`; the outer end is in the node's own namespace, up at all times but on the bridge only while connected.
So to connect is one change, with no wait for a carrier. While disconnected the outer end answers nothing: it has no address and no ARP.
"""

import contextlib
import hashlib
import ipaddress
import os
import socket
import subprocess
import threading
from typing import Final, Protocol

import msgspec
from shunter.model.errors import Problem, Rejected, Retry

from shunter_agent.runtime import elsewhere
from shunter_agent.runtime.links import set_master
from shunter_agent.runtime.namespaces import inside, make_network, network_of
from shunter_agent.runtime.port import Process, WorkerSpec

INNER: Final = "eth0"
_ETH_ARP: Final = 0x0806


class Uplink(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node's workers are connected: a bridge in the node's namespace, and the length of its subnet's prefix."""

    bridge: str
    prefix: int = 24


class NoNetwork:
    """The network of a worker that shares its node's: nothing to make, connect or remove."""

    netns: int | None = None
    own = False

    def connect(self) -> None:
        """See `port.Network`."""

    def disconnect(self) -> None:
        """See `port.Network`."""

    def elsewhere(self) -> bool:
        """See `port.Network`: its node's address tells nothing of it."""
        return False

    def destroy(self) -> None:
        """See `port.Network`."""


def outer_name(worker: str) -> str:
    """The outer end's name: the same for a worker on every node and after every restart, within the kernel's 15 characters."""
    return "sh" + hashlib.sha256(worker.encode()).hexdigest()[:12]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _batch(lines: list[str]) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", check=True, capture_output=True, text=True)


def exists(link: str) -> bool:
    """There is a network device of this name in this process' namespace."""
    # not by /sys/class/net, which shows the namespace in which /sys was mounted
    try:
        socket.if_nametoindex(link)
    except OSError:
        return False
    return True


def _packet_socket() -> socket.socket:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # of protocol 0: it receives nothing


def _announcement(mac: str, address: str) -> bytes:
    """A gratuitous ARP request: `address` is at `mac`, said by itself to everybody."""
    ours, ip = bytes.fromhex(mac.replace(":", "")), socket.inet_aton(address)
    head = b"\xff" * 6 + ours + _ETH_ARP.to_bytes(2, "big")
    return head + bytes.fromhex("0001080006040001") + ours + ip + b"\0" * 6 + ip


class Waiting(Protocol):
    """Something that runs in a network, and can be ended."""

    def close(self) -> None:
        """End it. Idempotent."""
        ...


class WorkerNetwork:
    """Implements `port.Network`. Made by `make`, found again by `adopt`. Kept by a descriptor (CRIU refuses a mounted namespace)."""

    own = True

    def __init__(self, spec: WorkerSpec, uplink: Uplink, netns: int) -> None:
        """For `make` and `adopt`. `netns` is this object's own from here on."""
        self.waiting: Waiting | None = None
        """What was started in it ahead of its use; it ends with the network at the latest."""
        self.outer = outer_name(spec.worker)
        self._netns: int | None = netns
        self._wire: socket.socket | None = None
        """To announce the address with, made before the worker stands still. None: made when it is wanted."""
        self._uplink = uplink
        self._worker = spec.worker
        self._host = spec.address.rpartition(":")[0]
        self._mac = spec.mac

    @classmethod
    def make(cls, spec: WorkerSpec, uplink: Uplink) -> "WorkerNetwork":
        """A new one, disconnected. One of the same worker that was left behind here loses its link first.

        Raises Rejected SH706 when the address isn't IPv4, Retry SH706 when the kernel or the `ip` command refuses.
        """
        try:
            ipaddress.IPv4Address(spec.address.rpartition(":")[0])
        except ValueError as error:
            raise Rejected(_unmakeable(spec.worker, f"its address {spec.address!r} is not an IPv4 address and a port")) from error
        try:
            network = cls(spec, uplink, make_network())
        except OSError as error:
            raise Retry(_unmakeable(spec.worker, str(error))) from error
        try:
            network._build()
        except (OSError, subprocess.CalledProcessError) as error:
            network.destroy()
            raise Retry(_unmakeable(spec.worker, _said(error))) from error
        return network

    @classmethod
    def adopt(cls, spec: WorkerSpec, uplink: Uplink, process: Process) -> "WorkerNetwork":
        """The one that a worker's process lives in, connected or not as it is. Raises Retry SH706."""
        try:
            return cls(spec, uplink, network_of(process.pid))
        except OSError as error:
            raise Retry(_unmakeable(spec.worker, f"process {process.pid} shows no network namespace: {error}")) from error

    @property
    def netns(self) -> int | None:
        """The namespace as a descriptor. None once destroyed."""
        return self._netns

    def _build(self) -> None:
        if exists(self.outer):
            with contextlib.suppress(subprocess.CalledProcessError):  # it may go by itself, with a namespace that is just ending
                _ip("link", "delete", self.outer)
        inner = f"/proc/{os.getpid()}/fd/{self._netns}"
        _batch(
            [
                f"link add {self.outer} address {_outer_mac(self.outer)} type veth peer name {INNER} address {self._mac} netns {inner}",
                f"link set {self.outer} arp off addrgenmode none up",
            ]
        )
        commands = ["link set lo up", f"address add {self._host}/{self._uplink.prefix} dev {INNER}", f"link set {INNER} up"]
        inside(self._netns, lambda: _batch(commands))
        self._wire = inside(self._netns, _packet_socket)

    def connect(self) -> None:
        """See `port.Network`. Raises Retry SH706 when there is no bridge or no link."""
        try:
            set_master(self.outer, self._uplink.bridge)
            self._announce()
        except OSError as error:
            raise Retry(_unmakeable(self._worker, _said(error))) from error

    def _announce(self) -> None:
        if self._netns is None:
            raise OSError("its namespace is gone")
        wire, self._wire = self._wire or inside(self._netns, _packet_socket), None
        try:
            wire.sendto(_announcement(self._mac, self._host), (INNER, _ETH_ARP))
        finally:
            # the kernel first waits for all who might still use it: some 5 ms, in which the copy would stand still
            threading.Thread(target=wire.close, name="close-wire", daemon=True).start()

    def disconnect(self) -> None:
        """See `port.Network`. Raises Retry SH706 when the kernel refuses."""
        if not exists(self.outer):
            return
        try:
            set_master(self.outer, None)
        except OSError as error:
            raise Retry(_unmakeable(self._worker, _said(error))) from error

    def dismiss(self) -> None:
        """End what waits in it. Idempotent."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.close()

    def elsewhere(self) -> bool:
        """See `port.Network`."""
        try:
            return elsewhere.answers(self._uplink.bridge, self._mac, self._host)
        except OSError:  # the bridge is gone or down
            return False

    def destroy(self) -> None:
        """See `port.Network`. Raises Retry SH706 when the kernel refuses."""
        self.dismiss()
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._netns is not None:
            os.close(self._netns)
            self._netns = None
        if exists(self.outer):
            try:
                _ip("link", "delete", self.outer)
            except subprocess.CalledProcessError as error:
                if exists(self.outer):
                    raise Retry(_unmakeable(self._worker, _said(error))) from error


def _outer_mac(name: str) -> str:
    """A locally administered MAC, as high as can be: a bridge without one of its own takes over its lowest port's. Were that a worker's,
    the node's address would change with the worker's coming and going, and its neighbours would speak to the old one for seconds.
    """
    digits = hashlib.sha256(name.encode()).hexdigest()
    return "fe:ff:" + ":".join(digits[at : at + 2] for at in range(0, 8, 2))


def _said(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return " ".join((error.stderr or "").split()) or f"ip ended with status {error.returncode}"
    return str(error)


def _unmakeable(worker: str, what: str) -> Problem:
    return Problem(
        code="SH706",
        what=f"the worker's network can't be made or connected: {what}",
        remedy="Check that the node has its bridge, that `ip` (iproute2) is installed, and that the agent runs as root",
        subject=worker,
    )
