"""What an image's manifest says, and the rules for names that come from elsewhere."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from blake3 import blake3
from shunter.model.errors import Problem, Rejected

from shunter_agent.images.cutting import CHUNK
from shunter_agent.runtime.port import Privileges, WorkerSpec

MANIFEST: Final = "manifest.json"
HEAD: Final = "sealed.json"
"""Beside the files of an image that is encrypted: see `sealing`."""
_IMAGE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
_BESIDE: Final = re.compile(r".*\.log|stats-.*|lazy-pages\.socket", re.ASCII)
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}", re.ASCII)


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes by what they are: the BLAKE3 of them in hex, and how many."""

    blake3: str
    size: int


class ImageFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of an image: its name (no folders), its size in bytes, and the BLAKE3 in hex of its bytes or, of a file in `chunks` (see
    `cutting`), of their digests and sizes in turn. No chunks: it is all one.
    """

    name: str
    size: int
    blake3: str
    chunks: tuple[Chunk, ...] = ()

    @classmethod
    def of(cls, name: str, chunks: Sequence[Chunk]) -> "ImageFile":
        """A file that is these chunks, at least one, side by side."""
        if len(chunks) == 1:
            return cls(name=name, size=chunks[0].size, blake3=chunks[0].blake3)
        digest = blake3(b"".join(bytes.fromhex(chunk.blake3) + chunk.size.to_bytes(8, "little") for chunk in chunks))
        return cls(name=name, size=sum(chunk.size for chunk in chunks), blake3=digest.hexdigest(), chunks=tuple(chunks))

    @property
    def parts(self) -> tuple[Chunk, ...]:
        """Its chunks, one where it is all one."""
        return self.chunks or (Chunk(self.blake3, self.size),)


class ImageInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an image beside its bytes.

    `incarnation` is the worker's at the dump. `taken_at` is when it stood still (seconds since the epoch), `pause_s` for how many seconds;
    None while that isn't known. `facts` are those of the node that made it (see `port.Runtime.facts`).
    """

    id: str
    spec: WorkerSpec
    incarnation: int
    taken_at: float
    runtime: str
    pause_s: float | None = None
    facts: dict[str, str] = {}
    doubt: str = ""
    """Why what is in it isn't to be trusted; empty: nothing was known against it."""
    privileges: Privileges | None = None
    """Those that its worker had. None: not known, as of an image of a release that didn't ask."""


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Who made an image, and that it is what they made. See `signing`.

    `statement` is the JSON that was signed, as it was: so a release that knows more fields can still check it. `certificates` are those of
    the signer in DER, its own first and then what is between it and the authority; `value` is the signature by the first one's key.
    """

    statement: bytes
    certificates: tuple[bytes, ...]
    value: bytes


class ImageManifest(msgspec.Struct, frozen=True, kw_only=True):
    """A whole image. `bytes` is the sum of its files' sizes; files are sorted by name, without the manifest itself.

    `signature` is None for an image of a release that signed none.
    """

    id: str
    spec: WorkerSpec
    incarnation: int
    taken_at: float
    runtime: str
    bytes: int
    files: tuple[ImageFile, ...]
    pause_s: float | None = None
    facts: dict[str, str] = {}
    doubt: str = ""
    privileges: Privileges | None = None
    signature: Signature | None = None

    @property
    def in_chunks(self) -> bool:
        """No file has more bytes in one piece than a chunk may. False for an image of a release that knew no chunks."""
        return all(part.size <= CHUNK for file in self.files for part in file.parts)


def manifest_of(info: ImageInfo, files: tuple[ImageFile, ...]) -> ImageManifest:
    """The manifest of an image with these files."""
    return ImageManifest(
        id=info.id,
        spec=info.spec,
        incarnation=info.incarnation,
        taken_at=info.taken_at,
        runtime=info.runtime,
        pause_s=info.pause_s,
        facts=info.facts,
        doubt=info.doubt,
        privileges=info.privileges,
        bytes=sum(file.size for file in files),
        files=tuple(sorted(files, key=lambda file: file.name)),
    )


def check_id(image: str) -> str:
    """The id itself, which becomes a folder's name. Raises Rejected SH801."""
    if not _IMAGE_ID.fullmatch(image):
        raise Rejected(
            Problem(
                code="SH801",
                what="an image's id is letters, digits, - and _, at most 128 of them",
                remedy="Use an id that Shunter made",
                subject=repr(image[:140]),
            )
        )
    return image


def belongs(name: str) -> bool:
    """The file is part of an image. Logs and statistics aren't: a driver goes on writing them when the image is complete."""
    return name not in (MANIFEST, HEAD) and not _BESIDE.fullmatch(name)


def check_name(name: str) -> str:
    """The name itself, of a file inside an image's folder. Raises Rejected SH801."""
    if not _FILE_NAME.fullmatch(name) or not belongs(name):
        raise Rejected(
            Problem(
                code="SH801",
                what="an image's file has a plain name of letters, digits and _.+-, at most 128 of them",
                remedy="Nothing was kept of it. Find out who sent it",
                subject=repr(name[:140]),
            )
        )
    return name
