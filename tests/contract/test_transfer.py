"""Images between agents over real TLS on loopback, with senders and receivers that misbehave; and beside a real CRIU's dump in the lab."""

import contextlib
import datetime
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from shunter.model.errors import Problem, Rejected, Retry, Unknown
from shunter_agent.depot import ImageFacts
from shunter_agent.images import frames, offering, room, store
from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.growth import Growth
from shunter_agent.images.manifest import ImageFile, ImageInfo, ImageManifest, manifest_of
from shunter_agent.images.pacing import Pacing
from shunter_agent.images.room import KEEP
from shunter_agent.images.server import CROWD, Allowance, ImageServer
from shunter_agent.images.store import ImageStore
from shunter_agent.images.transfer import Limits, Peer, Sent, send_growing, send_whole
from shunter_agent.refusals import Undone
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import Uplink
from shunter_agent.runtime.port import WorkerSpec
from shunter_agent.stored import StoredDepot
from shunter_agent.tls import TlsFiles, client_context

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "agent"))
from agent_fakes import PROCESS, Bench  # pyright: ignore[reportMissingImports]  (found by the line above)

SPEC = WorkerSpec(worker="w1", role="decode", graph="g", engine="vllm", address="10.0.0.1:9000")
QUICK = Limits(connect_s=2, idle_s=2, total_s=20)


class Authority:
    """A certificate authority that makes certificates with any URIs; below another one where that is given."""

    def __init__(self, folder: Path, above: "Authority | None" = None, *, is_ca: bool = True) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._key: Any = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        signed = (above or self)._sign(self._name, self._key, [], is_ca=is_ca)
        self.ca = folder / "ca.pem"
        self.certificate = signed.public_bytes(serialization.Encoding.PEM)
        self.ca.write_bytes(self.certificate)

    def _sign(self, subject: x509.Name, key: Any, uris: list[str], is_ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if uris:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(u) for u in uris]), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def files(self, name: str, *uris: str, key: Any = None) -> TlsFiles:
        key = key or ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, list(uris), is_ca=False)
        paths = TlsFiles(ca=self.ca, cert=self._folder / f"{name}.pem", key=self._folder / f"{name}.key")
        paths.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return paths

    def agent(self, node: str, key: Any = None) -> TlsFiles:
        return self.files(node, f"spiffe://shunter/agent/{node}", key=key)


def until(condition: Callable[[], object], what: str, deadline_s: float = 10) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain: {what}"
        time.sleep(0.002)


def info(image: str = "i1") -> ImageInfo:
    return ImageInfo(id=image, spec=SPEC, incarnation=1, taken_at=100.0, runtime="criu")


class Pair:
    """Agents n1, which sends, and n2, which receives."""

    def __init__(
        self,
        tmp_path: Path,
        allow: Allowance | None = None,
        stores: Callable[[Path, Authority, TlsFiles], ImageStore] = lambda root, _authority, _tls: ImageStore(root),
        authority: Authority | None = None,
    ) -> None:
        self.authority = authority or Authority(tmp_path / "tls")
        self.tls, there = self.authority.agent("n1"), self.authority.agent("n2")
        self.here = stores(tmp_path / "n1", self.authority, self.tls)
        self.there = stores(tmp_path / "n2", self.authority, there)
        self.received: list[tuple[str, str]] = []
        self.told: list[Problem] = []
        self.server = ImageServer(
            self.there,
            there,
            "127.0.0.1",
            0,
            allow=allow or Allowance(idle_s=2, handshake_s=2),
            received=lambda manifest, node: self.received.append((manifest.id, node)),
            tell=self.told.append,
        )
        self.server.start()

    @property
    def peer(self) -> Peer:
        return Peer.at("n2", "{}:{}".format(*self.server.address))

    def image(self, image: str = "i1", size: int = 3_000_000) -> ImageManifest:
        folder = self.here.begin(image)
        (folder / "pages-1.img").write_bytes(os.urandom(size))
        (folder / "core-1.img").write_bytes(b"core")
        (folder / "empty.img").touch()
        (folder / "dump.log").write_text("not sent")
        return self.here.commit(info(image))

    def nothing_there(self) -> None:
        until(lambda: not list(self.there.root.iterdir()), "nothing is left at the receiver")
        assert self.received == []

    @contextlib.contextmanager
    def raw(self) -> Iterator[frames.Link]:
        """A sender that says what it likes."""
        with (
            socket.create_connection(self.server.address, 5) as plain,
            client_context(self.tls).wrap_socket(plain) as secure,
        ):
            yield frames.Link(secure, 5, 20)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    with contextlib.closing(made.server):
        yield made


def test_a_whole_image_arrives_as_it_was(pair: Pair) -> None:
    manifest = pair.image()
    progress: list[int] = []
    sent = send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK, progress=progress.append)
    assert sent.bytes == manifest.bytes == progress[-1] == 3_000_004
    assert progress == sorted(progress)
    assert pair.there.get("i1") == manifest
    assert pair.there.verify("i1") == ()
    assert pair.received == [("i1", "n1")]
    assert {path.stat().st_mode & 0o777 for path in pair.there.folder("i1").iterdir()} == {0o600}
    assert not (pair.there.folder("i1") / "dump.log").exists()


def test_an_image_that_is_there_already_is_not_sent_again(pair: Pair) -> None:
    pair.image()
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
    assert send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK).bytes == 0


def test_another_image_of_the_same_id_is_refused(pair: Pair) -> None:
    pair.image()
    send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
    pair.here.discard("i1")
    pair.image()
    with pytest.raises(Rejected, match="SH803"):
        send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
    assert pair.there.verify("i1") == ()


def test_an_image_is_sent_while_it_grows(pair: Pair) -> None:
    folder = pair.here.begin("i1")
    growth, sent_so_far = Growth(), [0]
    described: list[bool] = []

    def describe() -> ImageInfo:
        described.append(True)
        return info()

    outcome: list[Sent] = []
    sender = threading.Thread(
        target=lambda: outcome.append(
            send_growing(
                folder,
                "i1",
                describe,
                growth,
                pair.peer,
                pair.tls,
                limits=QUICK,
                progress=lambda count: sent_so_far.__setitem__(0, count),
            )
        )
    )
    sender.start()
    half, rest = os.urandom(2_500_000), os.urandom(1_500_001)
    with (folder / "pages-1.img").open("wb", buffering=0) as pages:
        pages.write(half)
        until(lambda: sent_so_far[0] == 2 * CHUNK, "whole chunks of the first part are sent before the image is complete")
        (folder / "core-1.img").write_bytes(b"half written")
        assert described == []
        pages.write(rest)
    (folder / "core-1.img").write_bytes(b"core")
    growth.finish()
    sender.join(20)
    (sent,) = outcome
    assert sent.bytes == len(half + rest) + 4
    assert 0 <= sent.after_s < sent.seconds
    assert (pair.there.folder("i1") / "pages-1.img").read_bytes() == half + rest
    assert (pair.there.folder("i1") / "core-1.img").read_bytes() == b"core"
    assert pair.here.commit(info(), sent.files) == pair.there.get("i1")
    assert pair.here.verify("i1") == pair.there.verify("i1") == ()


def test_a_sender_with_nothing_to_say_for_long_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offering, "REASSURE_S", 0.1)
    pair = Pair(tmp_path, Allowance(idle_s=0.4))
    folder = pair.here.begin("i1")
    growth = Growth()
    timer = threading.Timer(0.9, growth.finish)  # longer than the receiver stays with a silent sender
    timer.start()
    with contextlib.closing(pair.server):
        assert send_growing(folder, "i1", info, growth, pair.peer, pair.tls, limits=QUICK).bytes == 0
    timer.join()


def test_a_failed_dump_leaves_nothing_there(pair: Pair) -> None:
    folder = pair.here.begin("i1")
    (folder / "pages-1.img").write_bytes(b"x" * CHUNK)
    growth = Growth()
    with pytest.raises(Rejected, match="SH805"):
        send_growing(
            folder, "i1", info, growth, pair.peer, pair.tls, limits=QUICK, progress=lambda count: growth.fail() if count == CHUNK else None
        )
    pair.nothing_there()


def test_a_sender_that_dies_on_the_way_leaves_nothing_there(pair: Pair) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image="i1"))
        assert link.from_receiver() == frames.Ready()
        link.send(frames.Data(name="pages-1.img", offset=0, size=4), b"abcd")
        until(lambda: (pair.there.root / "i1.partial" / "pages-1.img").exists(), "it is being received")
    pair.nothing_there()
    pair.image()
    assert send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK).bytes > 0


def test_a_silent_sender_is_dropped(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(idle_s=0.2, handshake_s=0.2))
    with contextlib.closing(pair.server):
        with pair.raw() as link:
            link.send(frames.Hello(image="i1"))
            link.from_receiver()
            pair.nothing_there()
        with socket.create_connection(pair.server.address, 5) as mute:
            assert mute.recv(1) == b"", "who doesn't even greet isn't waited for either"


def test_a_transfer_has_a_deadline_however_busy(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(total_s=0.3))
    with contextlib.closing(pair.server), pair.raw() as link:
        link.send(frames.Hello(image="i1"))
        link.from_receiver()

        def keep_busy() -> None:
            for _ in range(2000):
                link.send(frames.Wait())
                time.sleep(0.005)

        with pytest.raises(frames.Broken):
            keep_busy()
        pair.nothing_there()


def manifest(**changes: object) -> ImageManifest:
    good = ImageFile(name="core-1.img", size=4, blake3="00")
    return manifest_of(info(), (good,)) if not changes else manifest_of(info(), (ImageFile(**{**_plain(good), **changes}),))


def _plain(file: ImageFile) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "blake3": file.blake3}


@pytest.mark.parametrize(
    ("say", "code"),
    [
        (lambda link: link.send(frames.Data(name="../evil", offset=0, size=0)), "SH801"),
        (lambda link: link.send(frames.Data(name="/etc/evil", offset=0, size=0)), "SH801"),
        (lambda link: link.send(frames.Data(name="manifest.json", offset=0, size=0)), "SH801"),
        (lambda link: link.send(frames.Whole(manifest=manifest())), "SH804"),
        (
            lambda link: (
                link.send(frames.Data(name="core-1.img", offset=0, size=4), b"core"),
                link.send(frames.Whole(manifest=manifest())),
            ),
            "SH804",
        ),
    ],
    ids=["up", "absolute", "the manifest", "missing files", "wrong digest"],
)
def test_what_is_wrong_with_an_image_is_said_and_nothing_is_kept(pair: Pair, say: Callable[[frames.Link], object], code: str) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image="i1"))
        link.from_receiver()
        say(link)
        refused = link.from_receiver()
    assert isinstance(refused, frames.Refused)
    assert refused.code == code
    pair.nothing_there()
    assert sorted(path.name for path in pair.there.root.parent.iterdir()) == ["n1", "n2", "tls"]


@pytest.mark.parametrize("image", ["../n1", "a/b", "", ".."])
def test_an_id_from_outside_can_not_lead_out_of_the_store(pair: Pair, image: str) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image=image))
        refused = link.from_receiver()
    assert isinstance(refused, frames.Refused)
    assert refused.code == "SH801"
    pair.nothing_there()


@pytest.mark.parametrize(
    "header",
    [
        frames.Data(name="a.img", offset=5, size=1),
        frames.Data(name="a.img", offset=0, size=-1),
        frames.Data(name="a.img", offset=0, size=CHUNK + 1),
        frames.Hello(image="i2"),
    ],
    ids=["gap", "negative", "huge", "second hello"],
)
def test_nonsense_ends_the_connection(pair: Pair, header: frames.FromSender) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image="i1"))
        link.from_receiver()
        link.send(header)
        with pytest.raises(frames.Broken):
            link.from_receiver()
    pair.nothing_there()


def test_an_endless_header_is_not_read(pair: Pair) -> None:
    with pair.raw() as link:
        link.socket.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(frames.Broken):
            link.from_receiver()


def test_too_much_is_refused_while_it_comes(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(bytes=2_000_000))
    with contextlib.closing(pair.server):
        pair.image()
        with pytest.raises(Rejected, match="SH808"):
            send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
        pair.nothing_there()


def test_images_on_their_way_share_the_disk(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_free", lambda _root: KEEP + 8_000_000)
    pair.image()
    with pair.raw() as link:
        link.send(frames.Hello(image="other", bytes=6_000_000))
        assert link.from_receiver() == frames.Ready()
        with pytest.raises(Retry, match=r"SH814 .*3MB .*2MB are left"):
            send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
    pair.nothing_there()
    assert send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK).bytes == 3_000_004


def test_a_worker_stands_still_for_a_growing_image_once_it_is_whole(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Callable[[], bool]] = []
    sending = Pacing.sending
    monkeypatch.setattr(Pacing, "sending", lambda pacing, urgency, stands: said.append(stands) or sending(pacing, urgency, stands))
    depot = StoredDepot(pair.here, pair.tls)
    growing = depot.sending(depot.begin("i1"), "i1", "n2", f"{pair.peer.host}:{pair.peer.port}", lambda _bytes: None)
    (stands,) = said
    assert not stands()
    growing.finish(ImageFacts(id="i1", spec=SPEC, incarnation=1, taken_at=100.0))
    assert stands()


def test_a_growing_image_has_room_kept_for_what_its_worker_has(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_free", lambda _root: KEEP + 8_000_000)
    depot = StoredDepot(pair.here, pair.tls)
    address = f"{pair.peer.host}:{pair.peer.port}"
    facts = ImageFacts(id="i1", spec=SPEC, incarnation=1, taken_at=100.0)
    with pytest.raises(Retry, match=r"SH814 .*9MB .*8MB are left"):
        depot.sending(depot.begin("i1"), "i1", "n2", address, lambda _bytes: None, 9_000_000)
    depot.abandon("i1")
    depot.sending(depot.begin("i1"), "i1", "n2", address, lambda _bytes: None, 8_000_000).finish(facts)
    assert pair.received == [("i1", "n1")]


def test_an_image_that_outgrows_the_disk_is_refused_on_the_way(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "STEP", CHUNK)
    monkeypatch.setattr(store, "_free", lambda root: KEEP + CHUNK - sum(path.stat().st_size for path in root.rglob("*.img")))
    with pair.raw() as link:
        link.send(frames.Hello(image="i1"))
        assert link.from_receiver() == frames.Ready()
        for number in range(2):
            link.send(frames.Data(name="pages-1.img", offset=number * CHUNK, size=CHUNK), bytes(CHUNK))
        refused = link.from_receiver()
    assert isinstance(refused, frames.Refused)
    assert (refused.code, refused.again) == ("SH814", True)
    pair.nothing_there()


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(files=2))
    with contextlib.closing(pair.server):
        pair.image()
        with pytest.raises(Rejected, match="SH808"):
            send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
        pair.nothing_there()


def test_one_image_too_many_at_once_is_told_to_come_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(at_once=1))
    with contextlib.closing(pair.server):
        pair.image()
        with pair.raw() as link:
            link.send(frames.Hello(image="other"))
            link.from_receiver()
            with pytest.raises(Retry, match="SH812"):
                send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)


def test_connections_that_say_nothing_keep_no_transfer_out(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(at_once=2, handshake_s=60))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(pair.server))
        mute = [stack.enter_context(socket.create_connection(pair.server.address, 5)) for _ in range(2 * CROWD * 2)]
        pair.image()
        began = time.monotonic()
        assert send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK).bytes > 0
        assert time.monotonic() - began < QUICK.total_s
        until(lambda: len(receivers()) <= 2 * CROWD, "no more threads than connections may be open")
        assert mute[0].recv(1) == b"", "the oldest of them made room"
        (told,) = pair.told
        assert (told.code, told.subject) == ("SH813", "127.0.0.1")
    until(lambda: not receivers(), "they end with the server")


def receivers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "image-receiver"]


def test_agents_are_not_shown_out_for_strangers(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(at_once=1, idle_s=20, handshake_s=60))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(pair.server))
        link = stack.enter_context(pair.raw())
        link.send(frames.Hello(image="i1"))
        assert link.from_receiver() == frames.Ready()
        for _ in range(3 * CROWD):
            stack.enter_context(socket.create_connection(pair.server.address, 5))
        until(lambda: pair.told, "strangers make room for each other")
        link.send(frames.Data(name="core-1.img", offset=0, size=4), b"core")
        link.send(frames.Whole(manifest=manifest(blake3=blake3(b"core").hexdigest())))
        assert link.from_receiver() == frames.Stored(bytes=4)


def test_a_handshake_has_a_deadline_however_busy(tmp_path: Path) -> None:
    pair = Pair(tmp_path, Allowance(handshake_s=0.3))
    with contextlib.closing(pair.server), socket.create_connection(pair.server.address, 5) as slow:
        began = time.monotonic()
        slow.settimeout(0.02)
        with contextlib.suppress(ConnectionError):
            slow.sendall(b"\x16\x03\x01\x02\x00\x01")  # a hello of 512 bytes, of which one comes now and then
            while time.monotonic() - began < 10:
                slow.sendall(b"\x00")
                with contextlib.suppress(TimeoutError):
                    if slow.recv(1) == b"":
                        break
        assert time.monotonic() - began < 5


def test_a_damaged_image_is_not_sent_on(pair: Pair) -> None:
    pair.image()
    path = pair.here.folder("i1") / "core-1.img"
    path.write_bytes(b"kore")
    with pytest.raises(Rejected, match="SH804"):
        send_whole(pair.here, "i1", pair.peer, pair.tls, limits=QUICK)
    pair.nothing_there()


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("spiffe://shunter/engine",),
        ("spiffe://shunter/reader",),
        ("spiffe://shunter/agent/",),
        ("spiffe://other/agent/n1",),
        ("spiffe://shunter/agent/n1", "spiffe://shunter/engine"),
    ],
    ids=["none", "engine", "reader", "no node", "other domain", "two"],
)
def test_images_are_taken_from_agents_only(pair: Pair, uris: tuple[str, ...]) -> None:
    pair.image()
    with pytest.raises(Rejected, match="SH807"):
        send_whole(pair.here, "i1", pair.peer, pair.authority.files("odd", *uris), limits=QUICK)
    pair.nothing_there()


def test_an_agent_of_another_authority_is_not_let_in(pair: Pair, tmp_path: Path) -> None:
    pair.image()
    stranger = Authority(tmp_path / "stranger").agent("n1")
    trusting = TlsFiles(ca=pair.tls.ca, cert=stranger.cert, key=stranger.key)
    with pytest.raises(Retry, match="SH806"):
        send_whole(pair.here, "i1", pair.peer, trusting, limits=QUICK)
    with pytest.raises(Retry, match=r"SH806 .*certificate verify failed"):
        send_whole(pair.here, "i1", pair.peer, stranger, limits=QUICK)
    pair.nothing_there()


def test_a_client_without_a_certificate_or_with_old_tls_is_not_let_in(pair: Pair) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(pair.tls.ca)
        context.maximum_version = version
        if version == ssl.TLSVersion.TLSv1_2:
            context.load_cert_chain(pair.tls.cert, pair.tls.key)
        with pytest.raises(OSError), socket.create_connection(pair.server.address, 5) as plain, context.wrap_socket(plain) as secure:
            assert secure.recv(1) == b"let in"
    pair.nothing_there()


def test_nothing_is_sent_to_another_than_meant(pair: Pair) -> None:
    pair.image()
    host, port = pair.server.address
    with pytest.raises(Rejected, match=r"SH807 .*n2, not the agent of n3"):
        send_whole(pair.here, "i1", Peer(node="n3", host=host, port=port), pair.tls, limits=QUICK)
    pair.nothing_there()


def test_nobody_there_may_be_tried_again(pair: Pair) -> None:
    pair.image()
    peer = pair.peer
    pair.server.close()
    with pytest.raises(Retry, match="SH806"):
        send_whole(pair.here, "i1", peer, pair.tls, limits=QUICK)


def test_a_link_that_breaks_before_the_last_word_leaves_it_open(pair: Pair, tmp_path: Path) -> None:
    pair.image()
    server = pair.authority.agent("n9")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.cert, server.key)
    context.load_verify_locations(server.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0

    def take_all_and_hang_up(listener: socket.socket) -> None:
        plain, _address = listener.accept()
        with context.wrap_socket(plain, server_side=True) as secure:
            link = frames.Link(secure, 5, 20)
            link.from_sender()
            link.send(frames.Ready())
            while not isinstance(header := link.from_sender(), frames.Whole):
                if isinstance(header, frames.Data):
                    link.read(memoryview(bytearray(header.size)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take_all_and_hang_up, args=(listener,))
        thread.start()
        host, port = listener.getsockname()
        with pytest.raises(Unknown, match="SH811"):
            send_whole(pair.here, "i1", Peer(node="n9", host=host, port=port), pair.tls, limits=QUICK)
        thread.join(10)


@contextlib.contextmanager
def silent_receiver(pair: Pair, *, greets: bool = True) -> Iterator[tuple[Peer, threading.Event]]:
    """An agent n9 that takes every byte, and then neither answers nor hangs up, as one whose node lost its power. The event: it has all."""
    server = pair.authority.agent("n9")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.cert, server.key)
    context.load_verify_locations(server.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    complete, over = threading.Event(), threading.Event()

    def take(listener: socket.socket) -> None:
        plain, _address = listener.accept()
        with plain:
            if not greets:
                over.wait(20)
                return
            with context.wrap_socket(plain, server_side=True) as secure:
                link = frames.Link(secure, 20, 20)
                link.from_sender()
                link.send(frames.Ready())
                while not isinstance(header := link.from_sender(), frames.Whole):
                    if isinstance(header, frames.Data):
                        link.read(memoryview(bytearray(header.size)))
                complete.set()
                over.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take, args=(listener,), daemon=True)
        thread.start()
        try:
            yield Peer.at("n9", "{}:{}".format(*listener.getsockname())), complete
        finally:
            over.set()
            thread.join(20)


def test_a_receiver_that_has_it_all_and_never_answers_is_given_up(pair: Pair) -> None:
    pair.image()
    with silent_receiver(pair) as (peer, complete):
        began = time.monotonic()
        with pytest.raises(Unknown, match="SH811"):
            send_whole(pair.here, "i1", peer, pair.tls, limits=Limits(connect_s=2, idle_s=0.3, total_s=60))
        assert complete.is_set()
        assert time.monotonic() - began < 10


def test_a_cancelled_sending_hangs_up_on_a_receiver_that_never_answers(pair: Pair) -> None:
    depot = StoredDepot(pair.here, pair.tls)
    folder = depot.begin("i1")
    (folder / "pages-1.img").write_bytes(b"x" * 100)
    outcome: list[BaseException] = []
    with silent_receiver(pair) as (peer, complete):
        sending = depot.sending(folder, "i1", peer.node, f"{peer.host}:{peer.port}", lambda _bytes: None)

        def finish() -> None:
            try:
                sending.finish(ImageFacts(id="i1", spec=SPEC, incarnation=1, taken_at=100.0))
            except Unknown as error:
                outcome.append(error)

        finishing = threading.Thread(target=finish, daemon=True)
        finishing.start()
        assert complete.wait(10)
        began = time.monotonic()
        sending.cancel()
        finishing.join(3)
        assert not finishing.is_alive(), "nobody waits for it any more"
        assert time.monotonic() - began < 3
    assert [type(error) for error in outcome] == [Unknown]


def test_a_sending_that_was_hung_up_before_it_connected_ends_too(pair: Pair) -> None:
    folder = pair.here.begin("i1")
    growth = Growth()
    growth.hang_up()
    began = time.monotonic()
    with silent_receiver(pair, greets=False) as (peer, _complete), pytest.raises(Retry, match="SH806"):
        send_growing(folder, "i1", info, growth, peer, pair.tls, limits=Limits(connect_s=20))
    assert time.monotonic() - began < 10


async def test_a_worker_does_not_stand_still_for_a_destination_that_does_not_take_its_image(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    bench = Bench(tmp_path / "agent")
    bench.node.depot = StoredDepot(ImageStore(tmp_path / "agent" / "images"), pair.tls)
    order = bench.freeze()
    order.to.node, order.to.address = "n2", f"{pair.peer.host}:{pair.peer.port}"
    pair.server.close()
    with pytest.raises(Retry, match="SH806"):
        await bench.source.freeze(order)
    assert (bench.faults.done["freeze"], bench.state(), list(bench.node.depot.root.iterdir())) == (0, "running", [])


async def test_a_destination_that_lost_its_power_keeps_a_worker_standing_no_longer_than_its_hold(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    bench = Bench(tmp_path / "agent")
    depot = StoredDepot(ImageStore(tmp_path / "agent" / "images"), pair.tls)
    bench.node.depot = depot
    with silent_receiver(pair) as (peer, complete):
        order = bench.freeze(hold=1.0)
        order.to.node, order.to.address = peer.node, f"{peer.host}:{peer.port}"
        began = time.monotonic()
        with pytest.raises(Undone, match="SH653"):
            await bench.source.freeze(order)
        assert time.monotonic() - began < 6
        assert complete.is_set(), "it had every byte"
    assert (PROCESS in bench.runtime.running, bench.state(), depot.all(), list(depot.root.iterdir())) == (True, "running", (), [])


def test_close_breaks_off_what_is_being_received(pair: Pair) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image="i1"))
        link.from_receiver()
        began = time.monotonic()
        pair.server.close()
        assert time.monotonic() - began < 1.5
        pair.nothing_there()


_GROW = """
import sys, time
ballast = bytearray(b"k" * 4096) * 16384
open(sys.argv[1], "w").close()
while True: time.sleep(0.01)
"""


@pytest.mark.lab
def test_a_real_dump_is_whole_at_the_peer_moments_after_it_is_here(criu: Path, pair: Pair, tmp_path: Path) -> None:
    runtime = CriuRuntime(criu, Uplink(bridge="none"))
    spec = WorkerSpec(
        worker="w1",
        role="decode",
        graph="g",
        engine="test",
        address="127.0.0.1:9",
        command=(sys.executable, "-c", _GROW, str(tmp_path / "ready")),
    )
    network = runtime.network(spec)
    worker = runtime.start(spec, network).resume()
    folder, growth = pair.here.begin("i1"), Growth()
    outcome: list[Sent] = []
    counts: list[int] = []
    sender = threading.Thread(
        target=lambda: outcome.append(send_growing(folder, "i1", info, growth, pair.peer, pair.tls, limits=QUICK, progress=counts.append))
    )
    try:
        until((tmp_path / "ready").exists, "the worker comes up")
        sender.start()
        frozen = runtime.freeze(worker, spec, network, folder, lambda _at: None)
        early = counts[-1]
        growth.finish()
        sender.join(20)
        (sent,) = outcome
        assert pair.here.commit(info(), sent.files) == pair.there.get("i1")
        frozen.release()
        assert pair.here.verify("i1") == pair.there.verify("i1") == ()
        pair.here.discard("i1")
        held = runtime.restore(spec, network, pair.there.folder("i1"))
        worker = held.resume()
        assert runtime.find(worker)
        assert (runtime.memory(worker) or 0) > 64 << 20
        assert pair.there.verify("i1") == (), "a restore doesn't touch the image"
    finally:
        growth.fail()
        runtime.end(worker)
    assert early > sent.bytes // 10, "it was sent while it was written"
    if os.environ.get("SHUNTER_FIGURES"):
        share = early / sent.bytes
        print(f"{sent.bytes / 1e6:.0f} MB, dump {frozen.dump.dump_s:.3f} s, then {sent.after_s:.3f} s; {share:.0%} had gone before")


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:x"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(Rejected, match="SH805"):
        Peer.at("n2", address)
    assert Peer.at("n2", "[::1]:7000").host == "::1"
