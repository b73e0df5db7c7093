"""Receiving images from other agents: a listener, one thread for each connection, and nothing visible before all of it was checked."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec
from shunter.model.errors import Problem, Rejected, Retry, ShunterError

from shunter_agent.images.assembly import Assembly
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.frames import VERSION, Broken, FromReceiver, FromSender, Hello, Lane, Link, Ready, Refused, Resume, Stored
from shunter_agent.images.guests import Guests
from shunter_agent.images.incoming import Incoming, problem, too_large
from shunter_agent.images.manifest import ImageManifest, check_id
from shunter_agent.images.room import Share
from shunter_agent.images.secure import Secure
from shunter_agent.images.session import Session, unknown_session
from shunter_agent.images.store import ImageStore
from shunter_agent.images.transfer import digests_of
from shunter_agent.tls import TlsFiles, require_agent, server_context

_DRAIN_S: Final = 2.0
CROWD: Final = 8
"""Connections for each image that may be received at once: its own, those beside it, and who comes to go on with it."""


class Allowance(msgspec.Struct, frozen=True, kw_only=True):
    """The most that is taken: bytes and files of an image, images at once; seconds for a handshake, silent, and in all.

    There may be `CROWD` times as many connections as images, most of which haven't said who they are.
    """

    bytes: int = 4 << 40
    files: int = 100_000
    at_once: int = 8
    handshake_s: float = 5.0
    idle_s: float = 20.0
    total_s: float = 3600.0
    resume_s: float = 15.0
    """How long a transfer whose link broke waits for another one; and how long one that has ended can still tell so."""


class _Transfer(NamedTuple):
    """One that may go on over other links, and have more of them beside it."""

    image: str
    session: Session
    assembly: Assembly


class ImageServer:
    """Takes images for one store. `start` it once, `close` it once; it may serve in between from as many agents as allowed."""

    def __init__(
        self,
        store: ImageStore,
        tls: TlsFiles,
        host: str,
        port: int,
        *,
        allow: Allowance = Allowance(),  # noqa: B008  (frozen)
        fsync: bool = False,
        received: Callable[[ImageManifest, str], None] = lambda _manifest, _node: None,
        tell: Callable[[Problem], None] = lambda _problem: None,
    ) -> None:
        """Bind (port 0: any that is free). `received` is called, from a thread, with each new image and the node that sent it; `tell` with
        what somebody should look at (SH813).

        Raises Stalled SH810, OSError. With `fsync` an image is on the disk before it is confirmed, if that takes no longer than its sender
        waits; else call `ImageStore.sync` in time.
        """
        self._store = store
        self._allow = allow
        self._fsync = fsync
        self._received = received
        self._context = server_context(tls)
        self._listener = socket.create_server((host, port), backlog=64)
        self._guests = Guests(CROWD * allow.at_once, tell)
        self._places = threading.Semaphore(allow.at_once)
        self._closing = threading.Event()
        self._transfers: dict[str, _Transfer] = {}
        """By the random name that their senders gave them."""
        self._thread = threading.Thread(target=self._listen, name="image-listener", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it is bound to."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    def start(self) -> None:
        """Take connections from here on."""
        self._thread.start()

    def close(self) -> None:
        """Take no more, break off what is being received (nothing of it stays), and wait for that. Idempotent."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # what wakes accept
        self._guests.close()
        if self._thread.is_alive():
            self._thread.join()
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                plain, address = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM) and not self._closing.wait(0.1):
                    continue
                return
            if not self._guests.enter(plain, address[0]):
                plain.close()
                return
            self._begin(plain)

    def _begin(self, plain: socket.socket) -> None:
        try:
            threading.Thread(target=self._serve, args=(plain,), name="image-receiver", daemon=True).start()
        except RuntimeError:  # no thread to be had: whoever it is comes again
            plain.close()
            self._guests.leave(plain)

    def _serve(self, plain: socket.socket) -> None:
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with Secure(plain, self._context, server_side=True, within_s=self._allow.handshake_s) as secure:
                self._guests.greet(plain)
                self._talk(secure)
        except (OSError, Broken):
            pass  # the sender is told by the end of the connection, and nothing of it stays here
        finally:
            plain.close()
            self._guests.leave(plain)

    def _talk(self, secure: Secure) -> None:
        link = Link(secure, self._allow.idle_s, self._allow.total_s)
        try:
            node = require_agent(secure.tls)
            hello = link.from_sender()
            if isinstance(hello, Resume | Lane):
                self._join(link, hello, node)
                return
            if not self._places.acquire(blocking=False):
                raise Retry(problem("SH812", f"this node receives {self._allow.at_once} images already", "Try again in a while"))
            try:
                self._receive(link, hello, node)
            finally:
                self._places.release()
        except ShunterError as error:
            _refuse(link, error.problem, again=isinstance(error, Retry))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "the disk is full" if full else f"it can't be written: {error.strerror}"
            _refuse(
                link, problem("SH809", f"no image can be stored here: {what}", "Discard old images, or check the node's disk"), again=True
            )

    def _join(self, link: Link, hello: Resume | Lane, node: str) -> None:
        """A further link of a transfer. Raises Rejected SH821."""
        found = self._transfers.get(hello.session)
        if found is None or found.image != hello.image or found.session.sender != node:
            raise Rejected(unknown_session(hello.image))
        if hello.key:
            link.seal(hello.key)
        if isinstance(hello, Resume):
            found.session.adopt(link, hello)
        else:
            link.send(Ready(chunks=True, sealed=link.sealed))
            found.assembly.take_lane(link)

    def _receive(self, link: Link, hello: FromSender, node: str) -> None:
        if not isinstance(hello, Hello) or hello.version != VERSION:
            raise Rejected(problem("SH805", "the sender speaks another version of this protocol", "Run the same version on all nodes"))
        check_id(hello.image)
        if hello.digests and self._has(hello):
            link.send(Ready(have=True))
            return
        if self._store.trust is not None and not hello.signed:
            self._store.trust.check_unsigned(hello.image)  # now, not once its worker stands still
        if hello.bytes > self._allow.bytes:
            raise Rejected(too_large(hello.bytes, self._allow.bytes))
        self._supersede(hello.image, node)
        with self._store.room.share(hello.image) as share:
            share.announce(hello.bytes)
            if hello.chunks:
                self._receive_chunks(link, hello, share, node)
                return
            with Incoming(self._store, hello.image, share, bytes=self._allow.bytes, files=self._allow.files) as incoming:
                link.send(Ready())
                manifest = incoming.take(link)
                self._store.commit_received(manifest, fsync=self._fsync)
        self._received(manifest, node)
        link.send(Stored(bytes=manifest.bytes))

    def _supersede(self, image: str, node: str) -> None:
        """An agent that begins with an image anew has died since it began before: nobody will go on with that."""
        for found in tuple(self._transfers.values()):
            if found.image == image and found.session.sender == node and found.session.finished_at is None:
                found.session.give_way()
                found.session.over.wait(_DRAIN_S)

    def _receive_chunks(self, link: Link, hello: Hello, share: Share, node: str) -> None:
        patience_s = self._allow.resume_s if hello.session else 0.0
        session = Session(link, node, patience_s, self._closing.is_set)
        try:
            with (
                Assembly(self._store, hello.image, share, bytes=self._allow.bytes, files=self._allow.files) as assembly,
                self._known(hello, session, assembly),
            ):
                if hello.key:
                    link.seal(hello.key)
                link.send(Ready(chunks=True, known=len(self._store.index), session=bool(hello.session), sealed=link.sealed))
                manifest = assembly.take(session)
                self._store.commit_received(manifest, fsync=self._fsync)
                self._received(manifest, node)
                session.send(Stored(bytes=manifest.bytes))
        except ShunterError as error:
            _refuse(session.link, error.problem, again=isinstance(error, Retry))
        finally:
            session.end()

    @contextlib.contextmanager
    def _known(self, hello: Hello, session: Session, assembly: Assembly) -> Iterator[None]:
        """For as long as other links may come for it: one that has ended well can still say so."""
        if not hello.session:
            yield
            return
        self._forget_ended()
        if hello.session in self._transfers:
            raise Rejected(unknown_session(hello.image))
        self._transfers[hello.session] = _Transfer(hello.image, session, assembly)
        try:
            yield
        finally:
            if session.finished_at is None:
                del self._transfers[hello.session]

    def _forget_ended(self) -> None:
        now = time.monotonic()
        for name, (_image, session, _assembly) in tuple(self._transfers.items()):
            if session.finished_at is not None and now - session.finished_at > self._allow.resume_s:
                self._transfers.pop(name, None)

    def _has(self, hello: Hello) -> bool:
        try:
            return digests_of(self._store.get(hello.image)) == hello.digests
        except Rejected:
            return False


def _refuse(link: Link, problem: Problem, *, again: bool) -> None:
    """Say no, and wait a little for the sender to read it: a connection closed on unread bytes would lose the answer."""
    answer: FromReceiver = Refused(code=problem.code, what=problem.what, remedy=problem.remedy, again=again)
    with contextlib.suppress(Broken, OSError):
        link.send(answer)
        until = time.monotonic() + _DRAIN_S
        link.socket.settimeout(_DRAIN_S)
        while time.monotonic() < until and link.socket.recv(CHUNK):
            pass
