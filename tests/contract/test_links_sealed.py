"""Chunks beside TLS records: nobody on the way reads or changes them, and agents that don't know of it get them in TLS."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import msgspec
import pytest
from shunter_agent.images import frames, transfer
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.frames import Link
from shunter_agent.images.sealed import TAG, Sealed, Wrong, new_key
from shunter_agent.images.secure import Secure
from shunter_agent.images.transfer import Peer, send_whole
from shunter_agent.tls import client_context, server_context
from test_links_broken import ALONE, SEVERAL, arrived, pair
from test_transfer import Pair, info

__all__ = ["pair"]
SECRET = b"what the user said in confidence"


class Between:
    """Somebody on the way, who sees every byte, and changes what comes from the sender as `change` says of what was seen so far."""

    def __init__(self, to: tuple[str, int], change: Callable[[int, bytes], bytes] = lambda _seen, data: data) -> None:
        self.seen = bytearray()
        self.links = 0
        self._to, self._change = to, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _address = self._listener.accept()
                there = socket.create_connection(self._to)
                self.links += 1
                self._open += [here, there]
                threading.Thread(target=self._pass, args=(here, there, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(there, here, False), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket, forth: bool) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(1 << 16):
                if forth:
                    seen = len(self.seen)
                    self.seen += data
                    data = self._change(seen, data)
                there.sendall(data)
        for end in (here, there):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for link in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()


@contextlib.contextmanager
def between(pair: Pair, change: Callable[[int, bytes], bytes] = lambda _seen, data: data) -> Iterator[tuple[Between, Peer]]:
    with contextlib.closing(Between(pair.server.address, change)) as somebody:
        yield somebody, Peer(node="n2", host="127.0.0.1", port=somebody.port)


def secret_image(pair: Pair, chunks: int = 4) -> None:
    folder = pair.here.begin("i1")
    (folder / "pages-1.img").write_bytes(SECRET * (chunks * CHUNK // len(SECRET)))
    (folder / "core-1.img").write_bytes(SECRET)
    pair.here.commit(info())


@pytest.mark.parametrize("limits", [ALONE, SEVERAL], ids=["one link", "several"])
def test_nobody_on_the_way_reads_it(pair: Pair, limits: transfer.Limits) -> None:
    secret_image(pair)
    with between(pair) as (somebody, peer):
        send_whole(pair.here, "i1", peer, pair.tls, limits=limits)
    arrived(pair)
    assert len(somebody.seen) > 4 * CHUNK
    assert SECRET[:8] not in somebody.seen


def test_chunks_do_go_beside_tls(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of this would test TLS."""
    sizes: list[int] = []
    send = Secure.sendall

    def noted(link: Secure, data: bytes, raw: bytes = b"") -> None:
        sizes.append(len(raw))
        send(link, data, raw)

    monkeypatch.setattr(Secure, "sendall", noted)
    secret_image(pair)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    assert sizes.count(CHUNK + TAG) == 4


@pytest.mark.parametrize("at", [100_000, CHUNK + 300_000, 3 * CHUNK])
def test_what_was_changed_on_the_way_is_not_taken(pair: Pair, at: int) -> None:
    """The link breaks, and the transfer goes on over another."""
    done: list[int] = []

    def change(seen: int, data: bytes) -> bytes:
        if not done and seen <= at < seen + len(data):
            done.append(at)
            changed = bytearray(data)
            changed[at - seen] ^= 1
            return bytes(changed)
        return data

    secret_image(pair)
    with between(pair, change) as (somebody, peer):
        send_whole(pair.here, "i1", peer, pair.tls, limits=ALONE)
        assert (done, somebody.links) == ([at], 2)
    arrived(pair)


def test_a_chunk_is_only_itself() -> None:
    key = new_key()
    here = Sealed(key)
    first, second, third = (bytes(here.seal(SECRET, header)) for header in (b"a", b"b", b"c"))
    into = memoryview(bytearray(len(SECRET)))

    def opened(*chunks: tuple[bytes, bytes]) -> bytes:
        there = Sealed(key)
        for sealed, header in chunks:
            room = there.room(len(SECRET))
            room[:] = sealed
            there.open(room, header, into)
        return bytes(into)

    assert opened((first, b"a"), (second, b"b"), (third, b"c")) == SECRET
    for wrong in (
        [(first, b"b")],
        [(second, b"b")],
        [(first, b"a"), (third, b"c")],
        [(first, b"a"), (first, b"a")],
        [(second, b"b"), (first, b"a")],
        [(first[:-1] + bytes([first[-1] ^ 1]), b"a")],
    ):
        with pytest.raises(Wrong):
            opened(*wrong)
    with pytest.raises(Wrong):
        Sealed(new_key()).open(memoryview(first), b"a", into)
    with pytest.raises(ValueError, match="32 bytes"):
        Sealed(b"short")


def test_each_link_has_a_key_of_its_own(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nonce begins anew with each."""
    keys: list[bytes] = []
    seal = Link.seal
    monkeypatch.setattr(Link, "seal", lambda link, key: (keys.append(key), seal(link, key))[1])
    secret_image(pair, 9)
    cut: list[bool] = []

    def change(seen: int, data: bytes) -> bytes:
        if seen > 2 * CHUNK and not cut:
            cut.append(True)
            raise OSError
        return data

    with between(pair, change) as (_somebody, peer):
        send_whole(pair.here, "i1", peer, pair.tls, limits=ALONE)
    arrived(pair)
    assert len(keys) == 4, "two links, and both sides of each"
    assert len(set(keys)) == 2


def test_a_key_that_is_none_ends_the_link(pair: Pair) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image="i1", chunks=True, session="s", key=b"short"))
        with pytest.raises(frames.Broken):
            link.from_receiver()
    pair.nothing_there()


def test_an_older_receiver_gets_it_in_tls(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Link.from_sender
    monkeypatch.setattr(
        Link,
        "from_sender",
        lambda link: msgspec.structs.replace(header, key=b"") if isinstance(header := decode(link), frames.Hello) else header,
    )
    secret_image(pair)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    arrived(pair)


def test_an_older_sender_is_understood(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "new_key", lambda: b"")
    secret_image(pair)
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=ALONE)
    arrived(pair)


@pytest.mark.parametrize("raw", [b"", b"r" * 7, b"r" * 300_000], ids=["none", "little", "much"])
def test_tls_and_other_bytes_may_follow_each_other_anyhow(pair: Pair, raw: bytes) -> None:
    """However they are cut on the way, and when all have come before the first is read."""
    here, there = socket.socketpair()
    made: list[Secure] = []
    there_tls = server_context(pair.authority.agent("n2"))
    shaking = threading.Thread(target=lambda: made.append(Secure(there, there_tls, server_side=True, within_s=5)))
    shaking.start()
    with Secure(here, client_context(pair.tls), server_side=False, within_s=5) as sender:
        shaking.join(5)
        (receiver,) = made
        with receiver:
            receiver.settimeout(5)
            sending = threading.Thread(target=lambda: [sender.sendall(b"%05d" % n * 9000, raw) for n in range(5)])
            sending.start()
            for n in range(5):
                for expected, take in ((b"%05d" % n * 9000, receiver.recv_into), (raw, receiver.raw_into)):
                    got = bytearray(len(expected))
                    left = memoryview(got)
                    while left:
                        left = left[take(left) :]
                    assert got == expected
            sending.join(5)
