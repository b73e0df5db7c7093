"""Who made an image: its manifest is signed with the key that its maker's agent shows to other agents, too.

What is signed names the maker, the time, everything that the manifest says, and one digest over all of its files. Whoever holds the image
later can check that against the authority alone, whichever node it came by, and also when the maker is gone.
"""

import datetime
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from blake3 import blake3
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtensionOID
from shunter.model.errors import Problem, Rejected, Stalled

from shunter_agent.images.manifest import ImageManifest, Signature
from shunter_agent.tls import TlsFiles, agent_of, unreadable

_CONTEXT: Final = b"shunter image manifest\n"
"""Before every signed statement: a signature by the same key for another purpose is none here."""
_MOST_BETWEEN: Final = 8
"""Certificates between a signer's and the authority's."""
_KNOWN: Final = frozenset(
    {ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE, ExtensionOID.EXTENDED_KEY_USAGE, ExtensionOID.SUBJECT_ALTERNATIVE_NAME}
)
"""Critical extensions that mean nothing else here. A certificate with another one, such as name constraints, isn't trusted."""
_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH)
_Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey

_FORGOTTEN: Final = frozenset({"privileges"})
"""What a release that doesn't know it leaves out of the manifests that it keeps and sends on. Without it less is checked before a restore,
and nothing is restored that wouldn't be otherwise."""

Unsigned = Literal["refuse", "accept"]


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """What is signed: node `by` made, at `at` (its clock, seconds since the epoch), the image of this manifest (here without its files and
    signature), and `entries` is the digest of all names, sizes and digests of its files."""

    by: str
    at: float
    entries: str
    manifest: ImageManifest


def entries_of(manifest: ImageManifest) -> str:
    """One BLAKE3 (hex) over the names, sizes and digests of all its files."""
    return blake3(msgspec.json.encode([(file.name, file.size, file.blake3) for file in manifest.files])).hexdigest()


def _bare(manifest: ImageManifest) -> ImageManifest:
    return msgspec.structs.replace(manifest, files=(), signature=None)


class Signer:
    """Signs what this agent makes. The files are read each time: whoever renews certificates changes them under a running agent."""

    def __init__(self, tls: TlsFiles, clock: Callable[[], float]) -> None:
        self._tls = tls
        self._clock = clock

    def sign(self, manifest: ImageManifest) -> ImageManifest:
        """The manifest with a signature. Raises Stalled SH810 when the agent's certificate or key can't be used for it."""
        try:
            certificates = x509.load_pem_x509_certificates(self._tls.cert.read_bytes())
            key = load_pem_private_key(self._tls.key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise Stalled(unreadable(_named(self._tls), str(error))) from error
        node = _node_of(certificates[0])
        if node is None or not isinstance(key, _Key) or key.public_key() != certificates[0].public_key():
            raise Stalled(unreadable(_named(self._tls), "the certificate is no agent's, or the key isn't its key"))
        said = Statement(by=node, at=self._clock(), entries=entries_of(manifest), manifest=_bare(manifest))
        statement = msgspec.json.encode(said)
        signature = Signature(
            statement=statement,
            certificates=tuple(certificate.public_bytes(Encoding.DER) for certificate in certificates[: _MOST_BETWEEN + 1]),
            value=_sign(key, _CONTEXT + statement),
        )
        return msgspec.structs.replace(manifest, signature=signature)


class Trust:
    """Whose images are taken and restored: those that an agent with a certificate of `ca` has signed."""

    def __init__(self, ca: Path, unsigned: Unsigned = "refuse") -> None:
        """`unsigned`: what becomes of images without any signature, which releases before this one made."""
        self._ca = ca
        self._unsigned = unsigned

    def check(self, manifest: ImageManifest) -> str:
        """The node that made it; empty for an unsigned one that is accepted.

        Raises Rejected SH815 (unsigned), SH816 (it isn't what was signed; with both values), SH817 (not signed by an agent of this fleet);
        Stalled SH810 when the authority's certificate can't be read.
        """
        signature = manifest.signature
        if signature is None:
            self.check_unsigned(manifest.id)
            return ""
        try:
            said = msgspec.json.decode(signature.statement, type=Statement)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Rejected(_unknown(manifest.id, f"what was signed can't be read: {error}")) from error
        self._check_signer(manifest.id, signature, said)
        differing = next(_differences(said, manifest), None)
        if differing is not None:
            what, signed, found = differing
            raise Rejected(
                Problem(
                    code="SH816",
                    what=f"the image's {what} is {found}, and {said.by} signed {signed}",
                    remedy="Discard it and use another copy. It was changed after it was made: find out by whom",
                    subject=manifest.id,
                )
            )
        return said.by

    def check_unsigned(self, image: str) -> None:
        """An image comes that nobody has signed. Raises Rejected SH815 when those are refused."""
        if self._unsigned == "refuse":
            raise Rejected(
                Problem(
                    code="SH815",
                    what="the image isn't signed by the agent that made it, and this node takes none that isn't",
                    remedy='Take a new image with a current agent, or set `unsigned = "accept"` in the `[images]` of this node\'s settings',
                    subject=image,
                )
            )

    def _check_signer(self, image: str, signature: Signature, said: Statement) -> None:
        try:
            chain = [x509.load_der_x509_certificate(data) for data in signature.certificates[: _MOST_BETWEEN + 1]]
            found = _node_of(chain[0])
        except (ValueError, IndexError) as error:
            raise Rejected(_unknown(image, "its signer's certificate can't be read")) from error
        if found is None or found != said.by:
            raise Rejected(_unknown(image, f"it says that {said.by!r} signed it, with a certificate of {found or 'nobody in particular'}"))
        try:
            at = datetime.datetime.fromtimestamp(said.at, datetime.UTC)
        except (ValueError, OverflowError, OSError) as error:
            raise Rejected(_unknown(image, f"it says that it was signed at {said.at:g}, which is no time")) from error
        if not led_to(chain, self._roots(), at):
            raise Rejected(_unknown(image, f"the authority here didn't vouch for the certificate of {found} at {at:%Y-%m-%d %H:%M} UTC"))
        if not verified(chain[0], signature.value, _CONTEXT + signature.statement):
            raise Rejected(_unknown(image, f"its signature isn't one by the key of {found}"))

    def _roots(self) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(self._ca.read_bytes())
        except (OSError, ValueError) as error:
            raise Stalled(unreadable(str(self._ca), str(error))) from error


def _named(tls: TlsFiles) -> str:
    return f"{tls.cert}, {tls.key}"


def _unknown(image: str, what: str) -> Problem:
    return Problem(
        code="SH817",
        what=f"the image isn't signed by an agent of this fleet: {what}",
        remedy="Discard it and use another copy; or check that all nodes have the same certificate authority",
        subject=image,
    )


def _differences(said: Statement, manifest: ImageManifest) -> Iterator[tuple[str, str, str]]:
    """What a manifest says otherwise than was signed: its name, the signed value, the found one."""
    bare = _bare(manifest)
    for field in ImageManifest.__struct_fields__:
        signed, found = getattr(said.manifest, field), getattr(bare, field)
        if signed != found and not (found is None and field in _FORGOTTEN):
            yield field, _short(signed), _short(found)
    if said.entries != entries_of(manifest):
        yield "digest over all files", said.entries, entries_of(manifest)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def covers(signature: Signature, manifest: ImageManifest) -> bool:
    """It was made over this very manifest. Says nothing of who made it."""
    try:
        said = msgspec.json.decode(signature.statement, type=Statement)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return False
    return not any(True for _difference in _differences(said, manifest))


# -- certificates


def _node_of(certificate: x509.Certificate) -> str | None:
    """The node whose agent it names: by its one URI, as in `tls.identity`."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return agent_of(uris[0]) if len(uris) == 1 else None


def led_to(chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], moment: datetime.datetime) -> bool:
    """Whether the first of the chain is vouched for by a root, through the others where needed, all of them valid at that time."""
    current, between = chain[0], 0
    while _usable(current, moment):
        if any(_usable(root, moment) and _issued(root, current, between) for root in roots):
            return True
        above = next((one for one in chain[1:] if one is not current and _issued(one, current, between)), None)
        if above is None or between >= _MOST_BETWEEN:
            return False
        current, between = above, between + 1
    return False


def _usable(certificate: x509.Certificate, moment: datetime.datetime) -> bool:
    in_time = certificate.not_valid_before_utc <= moment <= certificate.not_valid_after_utc
    return in_time and all(extension.oid in _KNOWN for extension in certificate.extensions if extension.critical)


def _issued(issuer: x509.Certificate, certificate: x509.Certificate, between: int) -> bool:
    """`issuer` is an authority, may have so many more below it, and has signed the certificate."""
    try:
        limits = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(issuer)
    except (x509.ExtensionNotFound, ValueError, TypeError, InvalidSignature):
        return False
    return limits.ca and (limits.path_length is None or limits.path_length >= between)


def _sign(key: _Key, data: bytes) -> bytes:
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, _PSS, hashes.SHA256())
    return key.sign(data)


def verified(certificate: x509.Certificate, value: bytes, data: bytes) -> bool:
    """Whether `value` is a signature over the data by the certificate's key."""
    key = certificate.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(value, data, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(value, data, _PSS, hashes.SHA256())
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(value, data)
        else:
            return False
    except InvalidSignature:
        return False
    return True
