"""Whether a worker that isn't connected here answers all the same: then another copy of it runs, and the one here mustn't.

An address and a MAC go with a worker (see `network`), and only the copy that runs is ever connected. So whoever shares the node's network
can be asked without an engine, by an ARP probe (RFC 5227). A router that answers for others does so with a MAC of its own.
"""

import select
import socket
import time
from typing import Final

_ETH_ARP: Final = 0x0806
_HEAD: Final = bytes.fromhex("0001080006040001")
"""Ethernet, IPv4, their lengths, a request."""
_REPLY: Final = 2
PROBES: Final = (0.0, 0.1, 0.3)
"""When it is asked, in seconds from the beginning."""
WITHIN_S: Final = 0.5
"""Seconds within which it must answer. Its host's kernel does that, whatever the worker itself is at."""


def answers(link: str, mac: str, address: str) -> bool:
    """Whether somebody with this MAC answers for this IPv4 address on the network of `link` (in the calling thread's namespace).

    False also when nobody can be asked: a network that is down connects no other copy with anybody. Raises OSError.
    """
    wanted = bytes.fromhex(mac.replace(":", "")), socket.inet_aton(address)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_ARP)) as wire:
        wire.bind((link, _ETH_ARP))
        ours = wire.getsockname()[4]
        probe = b"\xff" * 6 + ours + _ETH_ARP.to_bytes(2, "big") + _HEAD + ours + bytes(4) + bytes(6) + wanted[1]
        began, asked = time.monotonic(), 0
        while (now := time.monotonic() - began) < WITHIN_S:
            if asked < len(PROBES) and now >= PROBES[asked]:
                asked += 1
                wire.send(probe)
            until = PROBES[asked] if asked < len(PROBES) else WITHIN_S
            if select.select([wire], [], [], max(0.0, until - now))[0] and _said(wire.recv(2048)) == wanted:
                return True
    return False


def _said(packet: bytes) -> tuple[bytes, bytes] | None:
    """Who says so, and of which address; None for anything but a reply."""
    arp = packet[14:]
    if len(arp) < 28 or int.from_bytes(arp[6:8], "big") != _REPLY:
        return None
    return arp[8:14], arp[14:18]
