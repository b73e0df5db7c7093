"""Images that are signed by their maker, over real TLS on loopback: what was changed, swapped or signed by a stranger is refused."""

import contextlib
import datetime
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from shunter.model.errors import Rejected, Stalled
from shunter_agent.images import frames, transfer
from shunter_agent.images.manifest import MANIFEST, ImageManifest
from shunter_agent.images.signing import Signer, Trust, entries_of
from shunter_agent.images.store import ImageStore
from shunter_agent.images.transfer import send_whole
from shunter_agent.stored import StoredDepot
from shunter_agent.tls import TlsFiles
from test_chunks_sent import facts, memory, write
from test_transfer import QUICK, SPEC, Authority, Pair, info


def trusted(root: Path, authority: Authority, tls: TlsFiles, *, unsigned: str = "refuse") -> ImageStore:
    now = datetime.datetime.now(datetime.UTC).timestamp()
    return ImageStore(root, signer=Signer(tls, lambda: now), trust=Trust(authority.ca, unsigned))  # type: ignore[arg-type]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, stores=trusted)
    with contextlib.closing(made.server):
        yield made


def sent(pair: Pair, image: str = "i1") -> None:
    send_whole(pair.here, image, pair.peer, pair.tls, limits=QUICK)


def altered(pair: Pair, image: str, **changes: object) -> ImageManifest:
    """Change a manifest where it lies, as somebody who can write there would."""
    path = pair.here.folder(image) / MANIFEST
    manifest = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=ImageManifest), **changes)
    path.write_bytes(msgspec.json.encode(manifest))
    return manifest


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_an_image_says_who_made_it_wherever_it_goes(pair: Pair, tmp_path: Path) -> None:
    manifest = pair.image()
    sent(pair)
    assert pair.there.get("i1") == manifest
    assert Trust(pair.authority.ca).check(pair.there.get("i1")) == "n1"
    third = Pair(tmp_path / "more", stores=trusted, authority=pair.authority)
    with contextlib.closing(third.server):
        send_whole(pair.there, "i1", third.peer, pair.authority.agent("n2"), limits=QUICK)
    assert Trust(pair.authority.ca).check(third.there.get("i1")) == "n1", "made by n1, though n2 sent it on"


def test_both_sides_of_a_move_keep_the_same_manifest(pair: Pair) -> None:
    depot = StoredDepot(pair.here, pair.tls)
    folder = depot.begin("i1")
    sending = depot.sending(folder, "i1", "n2", f"{pair.peer.host}:{pair.peer.port}", lambda _bytes: None)
    write(folder, memory(40))
    sending.finish(facts("i1"))
    depot.commit(facts("i1"), durable=False)
    assert pair.here.get("i1") == pair.there.get("i1")
    assert pair.here.get("i1").signature is not None


@pytest.mark.parametrize(
    ("changes", "found", "signed"),
    [
        ({"spec": msgspec.structs.replace(SPEC, worker="w2")}, "w2", "w1"),
        ({"incarnation": 7}, "7", "1"),
        ({"taken_at": 5.0}, "5.0", "100.0"),
        ({"facts": {"kernel": "other"}}, "other", "{}"),
        ({"doubt": "XID 31"}, "XID 31", ""),
    ],
    ids=["worker", "incarnation", "time", "facts", "doubt"],
)
def test_a_changed_manifest_is_refused_with_both_values(pair: Pair, changes: dict[str, object], found: str, signed: str) -> None:
    pair.image()
    altered(pair, "i1", **changes)
    with pytest.raises(Rejected, match="SH816") as refused:
        sent(pair)
    before, after = refused.value.problem.what.split(", and n1 signed ")
    assert found in before
    assert signed in after
    pair.nothing_there()
    with pytest.raises(Rejected, match="SH816"):
        pair.here.open_to_restore("i1")
    assert [problem.code for problem in pair.here.verify("i1")] == ["SH816"]


def test_changed_bytes_with_a_manifest_to_match_are_refused_with_both_digests(pair: Pair) -> None:
    """Whoever changes both can't sign."""
    before = pair.image()
    folder = pair.here.folder("i1").rename(pair.here.root / "i1.partial")
    flip(folder / "core-1.img", 2)
    forged = pair.here.commit(info("i1"))
    assert forged.signature != before.signature
    altered(pair, "i1", signature=before.signature)
    with pytest.raises(Rejected, match=r"SH816") as refused:
        sent(pair)
    assert entries_of(before) in refused.value.problem.what
    assert entries_of(forged) in refused.value.problem.what
    pair.nothing_there()


def test_another_workers_manifest_is_refused(pair: Pair) -> None:
    pair.image("i1")
    other = pair.image("i2")
    (pair.here.folder("i1") / MANIFEST).write_bytes((pair.here.folder("i2") / MANIFEST).read_bytes())
    with pytest.raises(Rejected, match=r"SH804 .*'i2'"):
        pair.here.open_to_restore("i1")
    altered(pair, "i2", id="i1", files=other.files)
    (pair.here.folder("i1") / MANIFEST).write_bytes((pair.here.folder("i2") / MANIFEST).read_bytes())
    with pytest.raises(Rejected, match=r"SH816 .*id is 'i1', and n1 signed 'i2'"):
        pair.here.open_to_restore("i1")


@pytest.mark.parametrize("name", ["pages-1.img", "core-1.img"])
def test_a_changed_byte_is_refused_before_a_restore(pair: Pair, name: str) -> None:
    pair.image()
    pair.here.close(pair.here.open_to_restore("i1").name)
    flip(pair.here.folder("i1") / name, 3)
    with pytest.raises(Rejected, match=f"SH804 .*{name}"):
        pair.here.open_to_restore("i1")


def test_chunks_that_make_another_file_than_the_manifest_says_are_refused(pair: Pair) -> None:
    """The digest that was signed is over the chunks' digests: the list beside it alone proves nothing."""
    manifest = pair.image()
    other = os.urandom(1 << 20)
    with (pair.here.folder("i1") / "pages-1.img").open("r+b") as file:
        file.write(other)
    files = tuple(
        msgspec.structs.replace(f, chunks=(msgspec.structs.replace(f.chunks[0], blake3=blake3(other).hexdigest()), *f.chunks[1:]))
        if f.chunks
        else f
        for f in manifest.files
    )
    altered(pair, "i1", files=files)
    with pytest.raises(Rejected, match=r"SH804 .*pages-1\.img"):
        pair.here.open_to_restore("i1")


def test_bytes_that_this_agent_has_seen_right_are_not_read_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stands still doesn't wait for that."""
    pair.image()
    sent(pair)
    reads: list[str] = []
    monkeypatch.setattr(pair.there, "verify", lambda image: reads.append(image) or ())
    pair.there.open_to_restore("i1")
    assert reads == []
    os.utime(pair.there.folder("i1") / "core-1.img")
    pair.there.open_to_restore("i1")
    assert reads == ["i1"]


def test_a_stranger_may_not_sign(pair: Pair, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "elsewhere")
    forged = trusted(pair.here.root, pair.authority, stranger.agent("n1"))
    (forged.begin("i1") / "core-1.img").write_bytes(b"core")
    forged.commit(info("i1"))
    with pytest.raises(Rejected, match=r"SH817 .*didn't vouch for the certificate of n1"):
        sent(pair)
    pair.nothing_there()


def resigned(pair: Pair, tls: TlsFiles, at: float | None = None) -> ImageManifest:
    now = datetime.datetime.now(datetime.UTC).timestamp()
    manifest = msgspec.structs.replace(pair.image(), signature=None)
    return Signer(tls, lambda: now if at is None else at).sign(manifest)


def test_a_certificate_must_have_been_valid_when_it_signed(pair: Pair) -> None:
    with pytest.raises(Rejected, match=r"SH817 .*1970-01-01"):
        Trust(pair.authority.ca).check(resigned(pair, pair.tls, at=1000.0))


def test_the_engine_makes_no_images(pair: Pair) -> None:
    with pytest.raises(Stalled, match=r"SH810 .*no agent's"):
        resigned(pair, pair.authority.files("engine", "spiffe://shunter/engine"))


def test_what_one_agent_signed_is_not_another_ones(pair: Pair) -> None:
    signed = resigned(pair, pair.tls)
    other = pair.authority.agent("n3")
    assert signed.signature is not None
    certificate = x509.load_pem_x509_certificate(other.cert.read_bytes()).public_bytes(Encoding.DER)
    swapped = msgspec.structs.replace(signed.signature, certificates=(certificate,))
    with pytest.raises(Rejected, match=r"SH817 .*'n1' signed it, with a certificate of n3"):
        Trust(pair.authority.ca).check(msgspec.structs.replace(signed, signature=swapped))
    renamed = msgspec.structs.replace(swapped, statement=signed.signature.statement.replace(b'"by":"n1"', b'"by":"n3"'))
    with pytest.raises(Rejected, match=r"SH817 .*isn't one by the key of n3"):
        Trust(pair.authority.ca).check(msgspec.structs.replace(signed, signature=renamed))
    pair.here.discard("i1")
    assert Trust(pair.authority.ca).check(resigned(pair, other)) == "n3"


@pytest.mark.parametrize(
    "key", [ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())]
)
def test_agents_may_have_keys_of_any_kind(pair: Pair, key: ed25519.Ed25519PrivateKey) -> None:
    assert Trust(pair.authority.ca).check(resigned(pair, pair.authority.agent("n4", key))) == "n4"


def test_an_authority_between_is_enough_if_the_fleets_own_vouches_for_it(pair: Pair, tmp_path: Path) -> None:
    between = Authority(tmp_path / "between", above=pair.authority)
    tls = between.agent("n5")
    tls.cert.write_bytes(tls.cert.read_bytes() + between.certificate)
    signed = resigned(pair, tls)
    assert Trust(pair.authority.ca).check(signed) == "n5"
    assert signed.signature is not None
    alone = msgspec.structs.replace(signed.signature, certificates=signed.signature.certificates[:1])
    with pytest.raises(Rejected, match="SH817"):
        Trust(pair.authority.ca).check(msgspec.structs.replace(signed, signature=alone))


def test_an_agents_certificate_is_no_authority(pair: Pair, tmp_path: Path) -> None:
    """Else every agent could make itself any other."""
    lower = Authority(tmp_path / "lower", above=pair.authority, is_ca=False)
    tls = lower.agent("n6")
    tls.cert.write_bytes(tls.cert.read_bytes() + lower.certificate)
    with pytest.raises(Rejected, match="SH817"):
        Trust(pair.authority.ca).check(resigned(pair, tls))


# -- images of before


def test_an_unsigned_image_is_refused_before_anything_is_sent(pair: Pair) -> None:
    pair.here = ImageStore(pair.here.root)
    pair.image()
    with pytest.raises(Rejected, match=r'SH815 .*unsigned = "accept"'):
        sent(pair)
    pair.nothing_there()


def test_a_sender_that_promises_a_signature_must_have_one(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    hello = transfer._hello
    monkeypatch.setattr(transfer, "_hello", lambda manifest, session: msgspec.structs.replace(hello(manifest, session), signed=True))
    pair.here = ImageStore(pair.here.root)
    pair.image()
    with pytest.raises(Rejected, match="SH815"):
        sent(pair)
    pair.nothing_there()


def test_unsigned_images_are_taken_where_the_settings_say_so(tmp_path: Path) -> None:
    made = Pair(tmp_path, stores=lambda root, authority, tls: trusted(root, authority, tls, unsigned="accept"))
    with contextlib.closing(made.server):
        made.here = ImageStore(made.here.root)
        made.image()
        sent(made)
        made.there.open_to_restore("i1")
    strict = trusted(made.there.root, made.authority, made.tls)
    with pytest.raises(Rejected, match="SH815"):
        strict.open_to_restore("i1")


def test_a_sender_of_a_release_that_signs_nothing_is_told_at_once(pair: Pair) -> None:
    with pair.raw() as link:
        link.send(frames.Hello(image="i1", chunks=True))
        refused = link.from_receiver()
    assert isinstance(refused, frames.Refused)
    assert refused.code == "SH815"


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_a_key_that_is_not_the_certificates_signs_nothing(pair: Pair) -> None:
    pair.tls.key.write_bytes(key_pem(ec.generate_private_key(ec.SECP256R1())))
    (pair.here.begin("i1") / "core-1.img").write_bytes(b"core")
    with pytest.raises(Stalled, match="SH810"):
        pair.here.commit(info("i1"))
    assert pair.here.list() == []


@pytest.mark.parametrize("at", [1e300, -1e300, float("1e15")])
def test_a_time_that_is_none_is_refused(pair: Pair, at: float) -> None:
    with pytest.raises(Rejected, match=r"SH817 .*which is no time"):
        Trust(pair.authority.ca).check(Signer(pair.tls, lambda: at).sign(pair.image()))
