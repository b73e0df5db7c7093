"""Who is at the other end of a UNIX socket: /proc doesn't say, the kernel's socket diagnosis does."""

import socket
import struct
from typing import Final

from shunter_agent.runtime import netlink
from shunter_agent.runtime.namespaces import inside

_NETLINK_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_SHOW_PEER: Final = 4
_PEER: Final = 2
_ESTABLISHED: Final = 1
_REQUEST: Final = struct.Struct("=BBHIIIII")
_ANSWER: Final = struct.Struct("=BBBBIII")


def stream_peers(netns: int | None) -> dict[int, int]:
    """Inode of each connected UNIX stream socket of a network namespace to that of its peer. Raises OSError."""
    ask = _REQUEST.pack(socket.AF_UNIX, 0, 0, 1 << _ESTABLISHED, 0, _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF)
    found = {}
    with inside(netns, lambda: netlink.connect(_NETLINK_SOCK_DIAG)) as link:
        for body in netlink.dump(link, _BY_FAMILY, ask):
            _family, kind, _state, _pad, inode, _cookie, _cookie2 = _ANSWER.unpack_from(body)
            peer = netlink.attributes(body[_ANSWER.size :]).get(_PEER)
            if kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET) and peer:
                found[inode] = int.from_bytes(peer, "little")
    return found
