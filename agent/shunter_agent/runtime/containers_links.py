"""Connections of a worker whose pod's address stays behind: which go along, which end, and how their peers come to know.

A pod that a worker moves to has another address. Connections within the worker (over loopback, or over the pod's own address) go along, as
do sockets that listen. A connection with somebody else can't: its peer speaks to the old address. It lives until the commit, so that it
lives on when the move is rolled back; then its peer gets a reset, never silence and never what looks like a regular end. In the copy it is
a closed socket."""

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from shunter_agent.images.criu_images_pb2 import FileEntry, InetSocket
from shunter_agent.runtime.connections import connected_of
from shunter_agent.runtime.namespaces import inside

FILES: Final = "files.img"
_INETSK: Final = 4
_TCP: Final = 6
_CLOSE, _LISTEN = 7, 10
_HEAD: Final = 8
_LENGTH: Final = struct.Struct("<I")
_REPAIR, _REPAIR_OFF_SILENTLY = 19, -1
_RESET: Final = struct.pack("ii", 1, 0)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Unmovable(msgspec.Struct, frozen=True):
    """A socket that can't be had where the worker is going: bound to `address`, which isn't there."""

    address: str
    port: int


def addresses(netns: int | None) -> tuple[str, ...]:
    """The addresses of a network namespace that others can reach: none of the loopback's. Sorted. Raises OSError."""

    def look() -> list[str]:
        found = []
        for index, name in socket.if_nameindex():
            del index
            found += _ipv4_of(name)
        return found + _ipv6()

    return tuple(sorted(one for one in inside(netns, look) if not ipaddress.ip_address(one).is_loopback))


def _ipv4_of(interface: str) -> list[str]:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):  # it has none
        answer = fcntl.ioctl(asked, 0x8915, struct.pack("256s", interface.encode()[:15]))  # SIOCGIFADDR
        return [socket.inet_ntoa(answer[20:24])]
    return []


def _ipv6() -> list[str]:
    """Those of the calling thread's namespace: global ones alone, the others mean nothing elsewhere anyway."""
    try:
        lines = Path("/proc/thread-self/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [str(ipaddress.IPv6Address(bytes.fromhex(one[0]))) for one in fields if len(one) > 3 and one[3] == "00"]


# -- the image


def rewritten(data: bytes, moved: Mapping[str, str]) -> tuple[bytes, int, list[Unmovable]]:
    """`files.img` for another pod: addresses as in `moved`, connections with others closed. How many those are; and what can't be had.

    Raises ValueError when it isn't a file of this kind.
    """
    entries = _entries(data)
    sockets = [entry.isk for entry in entries if entry.type == _INETSK]
    ends = {(_end(one, "src"), _end(one, "dst")) for one in sockets if _is_connection(one)}
    closed, unmovable = 0, []
    for one in sockets:
        if _is_connection(one) and (_end(one, "dst"), _end(one, "src")) not in ends:
            _close(one)
            closed += 1
            continue
        for side in ("src", "dst"):
            _move(one, side, moved)
        address = _address(one, "src")
        if moved and not _anywhere(address) and str(address) not in moved.values():
            unmovable.append(Unmovable(str(address), one.src_port))
    out = [data[:_HEAD]]
    for entry in entries:
        raw = entry.SerializeToString()
        out += [_LENGTH.pack(len(raw)), raw]
    return b"".join(out), closed, unmovable


def _entries(data: bytes) -> list[FileEntry]:
    found, at = [], _HEAD
    try:
        while at < len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if at + length > len(data):
                raise ValueError("it ends in the middle of an entry")
            found.append(FileEntry.FromString(data[at : at + length]))
            at += length
    except (struct.error, DecodeError) as error:
        raise ValueError(f"{FILES} can't be read: {error}") from error
    return found


def _is_connection(one: InetSocket) -> bool:
    return one.proto == _TCP and one.state not in (_CLOSE, _LISTEN)


def _end(one: InetSocket, side: str) -> tuple[str, int]:
    return str(_address(one, side)), one.src_port if side == "src" else one.dst_port


def _address(one: InetSocket, side: str) -> Address:
    """IPv4 in IPv6's clothes counts as what it is."""
    words = one.src_addr if side == "src" else one.dst_addr
    raw = struct.pack(f"<{len(words)}I", *words)
    if len(raw) < 16:
        return ipaddress.IPv4Address(raw[:4] or bytes(4))
    six = ipaddress.IPv6Address(raw[:16])
    return six.ipv4_mapped or six


def _move(one: InetSocket, side: str, moved: Mapping[str, str]) -> None:
    words = one.src_addr if side == "src" else one.dst_addr
    to = moved.get(str(_address(one, side)))
    if to is None or not words:
        return
    new = ipaddress.ip_address(to)
    raw = new.packed if len(words) < 4 or new.version == 6 else b"\0" * 10 + b"\xff\xff" + new.packed
    words[:] = struct.unpack(f"<{len(raw) // 4}I", raw)


def _close(one: InetSocket) -> None:
    one.state, one.src_port, one.dst_port = _CLOSE, 0, 0
    for words in (one.src_addr, one.dst_addr):
        words[:] = [0] * len(words)


def _anywhere(address: Address) -> bool:
    return address.is_unspecified or address.is_loopback or address.is_multicast


def moves(old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """Which address stands for which: the first of each kind for the others of that kind. An address that both have stays."""
    found: dict[str, str] = {}
    for version in (4, 6):
        here = [one for one in new if ipaddress.ip_address(one).version == version]
        for one in old:
            if ipaddress.ip_address(one).version == version and here:
                found[one] = one if one in here else here[0]
    return found


# -- the peers


class Outside:
    """The connections of a worker with others, held beside the worker itself. Exactly one of `reset` and `close` ends it."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Of these processes, which stand still. Raises OSError."""
        links = connected_of(pids)
        own = {_name(link.getsockname()) for link in links}
        self._links = [link for link in links if _peer(link) not in own]
        for link in links:
            if link not in self._links:
                link.close()

    def __len__(self) -> int:
        return len(self._links)

    def reset(self) -> None:
        """Its processes are dead, and nothing keeps its packets back: tell each peer that its connection is over."""
        for link in self._links:
            with contextlib.suppress(OSError):  # over already
                link.setsockopt(socket.IPPROTO_TCP, _REPAIR, _REPAIR_OFF_SILENTLY)
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close()

    def close(self) -> None:
        """Let go of them as they are. Idempotent."""
        while self._links:
            self._links.pop().close()


def _name(name: Sequence[object]) -> tuple[str, int]:
    """An end of a connection; IPv4 in IPv6's clothes counts as what it is."""
    host, port = str(name[0]), name[1]
    assert isinstance(port, int)
    return host.removeprefix("::ffff:") if "." in host else host, port


def _peer(link: socket.socket) -> tuple[str, int] | None:
    try:
        return _name(link.getpeername())
    except OSError:  # there is none yet, or no more
        return None


def count_outside(pids: Iterable[int]) -> int:
    """How many connections with others these processes have. They may run. Raises OSError."""
    outside = Outside(pids)
    try:
        return len(outside)
    finally:
        outside.close()


def rewrite(folder: Path, to: Path, moved: Mapping[str, str]) -> tuple[int, list[Unmovable]]:
    """Write to `to` what stands for `files.img` of the image in `folder`. As `rewritten`. Raises OSError, ValueError."""
    data, closed, unmovable = rewritten((folder / FILES).read_bytes(), moved)
    to.write_bytes(data)
    return closed, unmovable
