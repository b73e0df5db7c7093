"""CRIU's network locks: nftables tables `inet CRIU-<run id>` that drop a worker's packets while it stands still.

A CRIU that is killed leaves its table behind, and the worker's connections then hang for ever without an error. The tables are listed and
deleted by netlink itself, since a node need not have the `nft` command.

An image says how its connections were locked, so that CRIU unlocks them when it restores it. In a network that was made for it there is
nothing to unlock, and CRIU takes 6 to 12 ms to find that out while the worker stands still. So images of workers with a network of their
own say that there was no lock, and where one may be left it is swept before a restore.
"""

import os
import socket
import struct
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from shunter_agent.images.criu_images_pb2 import InventoryEntry
from shunter_agent.runtime import netlink
from shunter_agent.runtime.namespaces import inside

_NETLINK_NETFILTER: Final = 12
_NFPROTO_INET: Final = 1
_NFTABLES: Final = 10
_GET_TABLE: Final = (_NFTABLES << 8) | 1
_DELETE_TABLE: Final = (_NFTABLES << 8) | 2
_BATCH_BEGIN, _BATCH_END = 16, 17
_TABLE_NAME: Final = 1
_GENERAL: Final = struct.Struct("=BBH")
_PREFIX: Final = "CRIU-"
_NO_SUCH: Final = 2
_INVENTORY: Final = "inventory.img"
_HEAD: Final = struct.Struct("<II")
"""What kind of file it is, and the length of what follows."""
_MAGIC: Final = 0x58313116
_NO_LOCK: Final = 2


def _general(family: int, resource: int = 0) -> bytes:
    return _GENERAL.pack(family, 0, socket.htons(resource))


def _list(link: socket.socket) -> list[str]:
    bodies = netlink.dump(link, _GET_TABLE, _general(_NFPROTO_INET))
    names = [netlink.attributes(body[_GENERAL.size :])[_TABLE_NAME].rstrip(b"\0").decode() for body in bodies]
    return [name for name in names if name.startswith(_PREFIX)]


def _delete(link: socket.socket, name: str) -> None:
    table = _general(_NFPROTO_INET) + netlink.attribute(_TABLE_NAME, name.encode() + b"\0")
    link.send(
        netlink.message(_BATCH_BEGIN, netlink.REQUEST, _general(0, _NFTABLES), 1)
        + netlink.message(_DELETE_TABLE, netlink.REQUEST | netlink.ACK, table, 2)
        + netlink.message(_BATCH_END, netlink.REQUEST, _general(0, _NFTABLES), 3)
    )
    for kind, body in netlink.messages(link.recv(1 << 16)):
        number = netlink.error_of(body) if kind == netlink.ERROR else 0
        if number not in (0, _NO_SUCH):  # no such table: somebody else was faster, which is as good
            raise OSError(number, f"deleting nftables table {name}: {os.strerror(number)}")


def tables(netns: int | None) -> list[str]:
    """Names of CRIU's lock tables in a network namespace (None: the agent's own). Raises OSError."""
    with inside(netns, lambda: netlink.connect(_NETLINK_NETFILTER)) as link:
        return _list(link)


def sweep(netns: int | None, only: str | None = None) -> list[str]:
    """Delete CRIU's lock tables there; with `only`, those of that CRIU run id alone. Returns the names deleted. Raises OSError."""
    with inside(netns, lambda: netlink.connect(_NETLINK_NETFILTER)) as link:
        # CRIU cuts the run id to fit, hence the comparison by prefix
        found = [name for name in _list(link) if only is None or only.startswith(name.removeprefix(_PREFIX))]
        for name in found:
            _delete(link, name)
        return found


def inventory(folder: Path) -> InventoryEntry | None:
    """What the image in `folder` says of itself as a whole; None: that can't be read. Raises OSError."""
    data = (folder / _INVENTORY).read_bytes()
    if len(data) < _HEAD.size or _HEAD.unpack_from(data) != (_MAGIC, len(data) - _HEAD.size):
        return None
    try:
        return InventoryEntry.FromString(data[_HEAD.size :])
    except DecodeError:
        return None


def leave_out(folder: Path) -> None:
    """Let the image in `folder` say that its connections weren't locked. One that can't be read stays as it is. Raises OSError."""
    entry = inventory(folder)
    if entry is None:
        return
    entry.network_lock_method = _NO_LOCK
    made = entry.SerializeToString()
    (folder / _INVENTORY).write_bytes(_HEAD.pack(_MAGIC, len(made)) + made)


def closes(folder: Path) -> bool:
    """The image in `folder` was made without its connections: a copy of it finds them closed."""
    try:
        entry = inventory(folder)
    except OSError:  # CRIU will say so
        return False
    return entry is not None and entry.tcp_close
