"""Putting a link on a bridge and taking it off, by netlink: while a worker stands still there is no time to start an `ip` for it."""

import os
import socket
import struct
from typing import Final

from shunter_agent.runtime import netlink

_SET_LINK: Final = 19
_MASTER: Final = 10
_INFO: Final = struct.Struct("=BxHiII")


def set_master(link: str, bridge: str | None) -> None:
    """Put `link` on `bridge`, or on none, in the calling thread's network namespace. Idempotent. Raises OSError, naming what is missing."""
    body = _INFO.pack(socket.AF_UNSPEC, 0, _index(link), 0, 0)
    body += netlink.attribute(_MASTER, struct.pack("=I", _index(bridge) if bridge else 0))
    with netlink.connect(socket.NETLINK_ROUTE) as kernel:
        kernel.send(netlink.message(_SET_LINK, netlink.REQUEST | netlink.ACK, body))
        for kind, answer in netlink.messages(kernel.recv(1 << 16)):
            if kind == netlink.ERROR and (error := netlink.error_of(answer)):
                raise OSError(error, os.strerror(error), link)


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        raise OSError(error.errno, f"there is no link {name}") from error
