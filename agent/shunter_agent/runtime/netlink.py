"""Netlink messages as bytes: the little that listing tables and sockets needs."""

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

REQUEST: Final = 1
ACK: Final = 4
DUMP: Final = 0x300
ERROR: Final = 2
_DONE: Final = 3
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_WAIT_S: Final = 5.0


def connect(protocol: int) -> socket.socket:
    """A netlink socket in the calling thread's network namespace. Raises OSError."""
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    link.settimeout(_WAIT_S)
    link.bind((0, 0))
    return link


def message(kind: int, flags: int, body: bytes, sequence: int = 1) -> bytes:
    """One message; `body` is a whole number of 4-byte words."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, sequence, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + b"\0" * (-len(value) % 4)


def messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and body of each message in a packet."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_rest = _HEADER.unpack_from(data, at)
        yield kind, data[at + _HEADER.size : at + length]
        at += max(_HEADER.size, (length + 3) & ~3)


def attributes(body: bytes) -> dict[int, bytes]:
    """The attributes in a body that begins with the first of them, by kind; the last of a kind counts."""
    found = {}
    at = 0
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        found[kind & 0x3FFF] = body[at + _ATTRIBUTE.size : at + length]
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return found


def error_of(body: bytes) -> int:
    """The errno in an ERROR message's body; 0 is an acknowledgement."""
    return -int(struct.unpack_from("=i", body)[0])


def dump(link: socket.socket, kind: int, body: bytes) -> Iterator[bytes]:
    """Ask for all of something and give the body of each answer. Raises OSError."""
    link.send(message(kind, REQUEST | DUMP, body))
    while True:
        for answer, content in messages(link.recv(1 << 16)):
            if answer == _DONE:
                return
            if answer == ERROR:
                raise OSError(error_of(content), os.strerror(error_of(content)))
            yield content
