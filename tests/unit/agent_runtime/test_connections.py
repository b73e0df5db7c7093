import errno
import os
import socket

import pytest
from shunter_agent.runtime import connections


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        return near, listener.accept()[0]


def test_what_is_closed_while_it_is_looked_at_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that runs closes connections, and opens other files under their numbers."""
    (closed, kept), (reused, other) = connected(), connected()
    listener = socket.create_server(("127.0.0.1", 0))
    there, gone = ({one.getsockname() for one in links} for links in ((kept, other), (closed, reused, listener)))
    listdir, readlink = os.listdir, os.readlink

    def list_and_close(path: str) -> list[str]:
        found = listdir(path)
        closed.close()
        return found

    def look_and_replace(path: str) -> str:
        found = readlink(path)
        if path.endswith(f"/{reused.fileno()}"):
            with open(os.devnull) as null:
                os.dup2(null.fileno(), reused.fileno())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", list_and_close)
        patched.setattr(os, "readlink", look_and_replace)
        found = connections.connected_of([os.getpid()])
    names = {link.getsockname() for link in found}
    os.close(reused.detach())
    for link in (*found, kept, other, listener):
        link.close()
    assert there <= names
    assert not gone & names


def test_a_socket_without_addresses_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of AF_XDP or AF_ALG, which Python can't take over: each look at a worker that has one would leave a descriptor behind."""

    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    near, far = connected()
    with near, far, monkeypatch.context() as patched:
        patched.setattr(connections.socket, "socket", refuse)
        before = os.listdir("/proc/self/fd")
        assert connections.connected_of([os.getpid()]) == []
        assert len(os.listdir("/proc/self/fd")) == len(before)
