"""The local certificate authority: one CA, the engine's identity, one for each agent, and one for whoever previews.

ECDSA P-256. Who somebody is stands in the certificate's URI (`spiffe://shunter/engine`, `spiffe://shunter/agent/<node>`,
`spiffe://shunter/reader`). Made to be run again: what is there is kept, what is missing is added, and nothing is ever overwritten.
"""

import datetime
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shunter.model.errors import Problem, Rejected, Stalled

ENGINE: Final = "spiffe://shunter/engine"
AGENT: Final = "spiffe://shunter/agent/"
READER: Final = "spiffe://shunter/reader"
_CA_DAYS: Final = 3650
_EARLIER: Final = datetime.timedelta(minutes=5)
"""Certificates are valid from this long before they are made: clocks of nodes differ."""
_NODE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """One identity: its certificate and key file, when it ends (seconds since the epoch), and whether it was there already."""

    uri: str
    cert: Path
    key: Path
    ends_at: float
    kept: bool


def issue(folder: Path, agents: Iterable[str], now: float, days: int = 365, *, reader: bool = False) -> tuple[Made, ...]:
    """Make what is missing in `folder` (made 0700), and return all of it: the CA, the engine, the agents in the order given, and with
    `reader` the identity that agents let look and nothing else.

    `now` is in seconds since the epoch; new certificates are valid for `days` from then, the CA for ten years. Keys are made 0600, PKCS8.
    Raises Rejected: SH920 for a node name that can't be in a certificate, SH921 for `days` out of range, SH922 when a file that is there
    is of another CA, another identity or another key, or its other half is missing. Raises Stalled SH923 when a file can't be read or
    written.
    """
    nodes = list(dict.fromkeys(agents))
    for node in nodes:
        if not _NODE.fullmatch(node):
            raise _rejected(
                "SH920", f"{node!r} is not a node name", "Use 1 to 63 lower-case letters, digits and dashes, such as node-a", node
            )
    if not 1 <= days <= _CA_DAYS:
        raise _rejected("SH921", f"certificates can't be valid for {days} days", f"Give --days from 1 to {_CA_DAYS}", "")
    start = datetime.datetime.fromtimestamp(now, datetime.UTC)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = _Authority(folder, start)
        leaves = [authority.leaf("engine", ENGINE, "engine.shunter", days)]
        leaves += [authority.leaf(f"agent-{node}", f"{AGENT}{node}", f"{node}.agent.shunter", days) for node in nodes]
        leaves += [authority.leaf("reader", READER, "reader.shunter", days)] if reader else []
    except OSError as error:
        raise Stalled(
            Problem(
                code="SH923",
                what=f"a certificate can't be read or written: {error.strerror}",
                remedy="Check that this user may write there, and that the disk isn't full",
                subject=str(error.filename or folder),
            )
        ) from error
    return (authority.made, *leaves)


class _Authority:
    """The CA in a folder, and what it signs."""

    def __init__(self, folder: Path, start: datetime.datetime) -> None:
        self._folder, self._start = folder, start
        cert, key = folder / "ca.pem", folder / "ca.key"
        found = _load(cert, key)
        if found is None:
            private = ec.generate_private_key(ec.SECP256R1())
            name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Shunter local CA")])
            builder = (
                _builder(name, name, private, start, start + datetime.timedelta(days=_CA_DAYS))
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_usage(ca=True), critical=True)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
            )
            self.cert, self._key = builder.sign(private, hashes.SHA256()), private
            _save(key, _pem(private), 0o600)
            _save(cert, self.cert.public_bytes(serialization.Encoding.PEM), 0o644)
        else:
            self.cert, self._key = found
            if not _is_authority(self.cert):
                raise _different(cert, "it isn't the certificate of an authority")
        self.made = _made("ca", cert, key, self.cert, kept=found is not None)

    def leaf(self, stem: str, uri: str, dns: str, days: int) -> Made:
        """Keep or make one identity."""
        cert, key = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        found = _load(cert, key)
        if found is not None:
            self._check(cert, found[0], uri)
            return _made(uri, cert, key, found[0], kept=True)
        private = ec.generate_private_key(ec.SECP256R1())
        end = min(self._start + datetime.timedelta(days=days), self.cert.not_valid_after_utc)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, dns)])
        builder = (
            _builder(name, self.cert.subject, private, self._start, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri), x509.DNSName(dns)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        made = builder.sign(self._key, hashes.SHA256())
        _save(key, _pem(private), 0o600)
        _save(cert, made.public_bytes(serialization.Encoding.PEM), 0o644)
        return _made(uri, cert, key, made, kept=False)

    def _check(self, path: Path, cert: x509.Certificate, uri: str) -> None:
        try:
            cert.verify_directly_issued_by(self.cert)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise _different(path, "another authority issued it") from error
        try:
            names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except x509.ExtensionNotFound:
            uris = []
        if uris != [uri]:
            raise _different(path, f"it is for {', '.join(uris) or 'nobody'}, not for {uri}")


def _builder(
    subject: x509.Name, issuer: x509.Name, private: ec.EllipticCurvePrivateKey, start: datetime.datetime, end: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _EARLIER)
        .not_valid_after(end)
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _load(cert: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """A certificate and the key that belongs to it; None if neither is there."""
    there = [path for path in (cert, key) if path.exists() or path.is_symlink()]
    if not there:
        return None
    if len(there) == 1:
        raise _different(there[0], f"{(key if there[0] == cert else cert).name} is missing beside it")
    try:
        loaded = x509.load_pem_x509_certificate(cert.read_bytes())
    except ValueError as error:
        raise _different(cert, "it isn't a certificate in PEM form") from error
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise _different(key, "it isn't an unencrypted private key in PEM form") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != loaded.public_key():
        raise _different(key, f"it isn't the key of {cert.name}")
    return loaded, private


def _is_authority(cert: x509.Certificate) -> bool:
    try:
        return cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    return private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _save(path: Path, data: bytes, mode: int) -> None:
    """Write a new file whole, durably, with its mode from the start. Raises FileExistsError rather than replace one."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    try:
        os.link(part, path)  # unlike a rename, it never replaces what another run has just made
    finally:
        part.unlink()


def _made(uri: str, cert: Path, key: Path, loaded: x509.Certificate, *, kept: bool) -> Made:
    return Made(uri=uri, cert=cert, key=key, ends_at=loaded.not_valid_after_utc.timestamp(), kept=kept)


def _different(path: Path, why: str) -> Rejected:
    return _rejected("SH922", f"this file can't be used, and isn't overwritten: {why}", "Move it away, or choose another folder", str(path))


def _rejected(code: str, what: str, remedy: str, subject: str) -> Rejected:
    return Rejected(Problem(code=code, what=what, remedy=remedy, subject=subject))
