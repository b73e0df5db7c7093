"""Chunks on their way, beside TLS records instead of in them.

A TLS record has at most 16 KiB, and each is copied four times on its way through OpenSSL and Python. So the two sides agree, over the TLS
link and thus only with each other, on a key for this one link, and chunks go over between the records: encrypted by that key as a whole,
with AES-256-GCM. Their nonces are their numbers, so none can be left out, repeated or put elsewhere; the header that went before a chunk,
over TLS, is authenticated with it, so it can't be taken for another. Headers, answers and the end of it all stay in TLS.
"""

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG: Final = 16
_KEY: Final = 32


def new_key() -> bytes:
    """For one direction of one link."""
    return secrets.token_bytes(_KEY)


class Wrong(Exception):
    """The bytes aren't those that were sealed."""


class Sealed:
    """The chunks of one direction of one link, in their order."""

    def __init__(self, key: bytes) -> None:
        """Raises ValueError when it is no key."""
        if len(key) != _KEY:
            raise ValueError("a key has 32 bytes")
        self._aead = AESGCM(key)
        self._count = 0
        self._buffer = bytearray()

    def _nonce(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(12, "big")

    def seal(self, body: memoryview | bytes, header: bytes) -> bytes | memoryview:
        """What goes over the link: `TAG` bytes more than the body. Valid until the next one."""
        encrypt_into = getattr(self._aead, "encrypt_into", None)  # newer releases of cryptography spare a MiB of new memory for each
        if encrypt_into is None:
            return self._aead.encrypt(self._nonce(), body, header)
        sealed = self.room(len(body))
        encrypt_into(self._nonce(), body, header, sealed)
        return sealed

    def room(self, size: int) -> memoryview:
        """Where to put what is sealed of a body of so many bytes."""
        if len(self._buffer) < size + TAG:
            self._buffer = bytearray(size + TAG)
        return memoryview(self._buffer)[: size + TAG]

    def open(self, sealed: memoryview, header: bytes, into: memoryview) -> None:
        """Raises Wrong when it was changed, or isn't the next one behind this header."""
        try:
            decrypt_into = getattr(self._aead, "decrypt_into", None)  # newer releases of cryptography spare a copy
            if decrypt_into is not None:
                decrypt_into(self._nonce(), sealed, header, into)
            else:
                into[:] = self._aead.decrypt(self._nonce(), sealed, header)
        except InvalidTag as error:
            raise Wrong from error
