"""Ed25519 keys: what the writer signs heads with, and what an auditor checks them with.

The private key is a PKCS8 PEM file for its owner alone, the public one a PEM file beside it that may go anywhere.
"""

import base64
import hashlib
import os
import stat
from pathlib import Path
from typing import Final, Self

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shunter.model.errors import Problem, Rejected, Stalled

KEY_UNUSABLE, NO_PUBLIC_KEY = "SH970", "SH971"
_GENERATE: Final = (
    "Give the Ed25519 key in PEM that the audit was begun with; `openssl genpkey -algorithm ed25519` makes one for a new audit"
)


class Public(msgspec.Struct, frozen=True, kw_only=True):
    """A public key: its 32 bytes."""

    raw: bytes

    @property
    def name(self) -> str:
        """`SHA256:...`, as ssh-keygen writes fingerprints, over the raw key."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.raw).digest()).decode().rstrip("=")

    def signed(self, data: bytes, signature: bytes) -> bool:
        """Whether this key's owner signed the data."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except InvalidSignature:
            return False
        return True


class Key:
    """A private key."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = Public(raw=private.public_key().public_bytes_raw())

    @classmethod
    def make(cls) -> Self:
        """A new one, by the system's random numbers."""
        return cls(Ed25519PrivateKey.generate())

    def sign(self, data: bytes) -> bytes:
        """64 bytes."""
        return self._private.sign(data)

    def save(self, path: Path) -> None:
        """Write it to a new file, mode 0600, durably. Raises OSError, also when there is one."""
        data = self._private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _put(path, data, 0o600, new=True)

    def publish(self, path: Path, *, anew: bool) -> None:
        """Write the public half; unless `anew`, only if there is none. Raises OSError."""
        data = Ed25519PublicKey.from_public_bytes(self.public.raw).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        if anew or not path.exists():
            _put(path, data, 0o644, new=False)


def load(path: Path) -> Key:
    """Read a private key. Raises FileNotFoundError; Stalled SH970 for one that isn't usable, or that others than its owner can read."""
    try:
        data, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unusable(path, f"it can't be read: {error.strerror}") from error
    if mode & 0o077:
        raise Stalled(
            Problem(
                code=KEY_UNUSABLE,
                what=f"others than its owner may use the key that the audit is signed with (mode {mode:04o})",
                remedy="`chmod 600` it; if somebody may have read it, move the audit and the key away, to begin a new chain",
                subject=str(path),
            )
        )
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise _unusable(path, f"it isn't a private key in PEM, without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _unusable(path, "it isn't an Ed25519 key")
    return Key(key)


def load_public(path: Path) -> Public:
    """Read a public key. Raises Rejected SH971."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except OSError as error:
        raise _no_public(path, f"there is no key to check the audit's signatures with: {error.strerror}") from error
    except ValueError as error:
        raise _no_public(path, "it isn't a public key in PEM") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_public(path, "it isn't an Ed25519 key")
    return Public(raw=key.public_bytes_raw())


def _put(path: Path, data: bytes, mode: int, *, new: bool) -> None:
    """Whole or not at all: a half-written key would be taken for another one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
        os.write(fd, data)
        os.fsync(fd)
        if new:
            os.link(part, path)
        else:
            os.replace(part, path)
    finally:
        os.close(fd)
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unusable(path: Path, why: str) -> Stalled:
    return Stalled(Problem(code=KEY_UNUSABLE, what=f"the key that the audit is signed with: {why}", remedy=_GENERATE, subject=str(path)))


def _no_public(path: Path, why: str) -> Rejected:
    return Rejected(
        Problem(
            code=NO_PUBLIC_KEY,
            what=why,
            remedy="Give --key the public key that the engine put beside its audit (audit.pub), as you keep it",
            subject=str(path),
        )
    )
