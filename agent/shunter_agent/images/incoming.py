"""An image in the making: its bytes come from another agent, and nothing of it stays unless it becomes whole."""

import io
import os

from blake3 import blake3
from shunter.model.errors import Problem, Rejected
from shunter.model.units import Bytes

from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.frames import Broken, Data, Link, Wait, Whole
from shunter_agent.images.manifest import ImageFile, ImageManifest, check_name
from shunter_agent.images.room import Share
from shunter_agent.images.store import ImageStore


class Incoming:
    """An image in the making. Leaves nothing behind unless it became whole."""

    def __init__(self, store: ImageStore, image: str, share: Share, *, bytes: int, files: int) -> None:
        """`share` is its part of the disk; `bytes` and `files` are the most that it may have. Raises Rejected SH801, SH803; OSError."""
        self._store = store
        self._image = image
        self._share = share
        self._most_bytes = bytes
        self._most_files = files
        self._bytes = 0
        self._folder = store.begin(image)
        self._files: dict[str, tuple[io.FileIO, blake3]] = {}
        self._sizes: dict[str, int] = {}
        self._buffer = memoryview(bytearray(CHUNK))

    def __enter__(self) -> "Incoming":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        for file, _hash in self._files.values():
            file.close()
        self._store.abandon(self._image)  # does nothing to one that has become whole

    def take(self, link: Link) -> ImageManifest:
        """Receive all files, compare with the manifest at the end. Raises Rejected SH801, SH804, SH808; Retry SH814; Broken; OSError."""
        while not isinstance(header := link.from_sender(), Whole):
            if isinstance(header, Data):
                self._write(header, link)
            elif not isinstance(header, Wait):
                raise Broken("the sender spoke out of turn")
        for file, _hash in self._files.values():
            file.close()
        manifest = header.manifest
        found = tuple(
            ImageFile(name=name, size=size, blake3=self._files[name][1].hexdigest()) for name, size in sorted(self._sizes.items())
        )
        if manifest.id != self._image or manifest.files != found or manifest.bytes != sum(self._sizes.values()):
            raise Rejected(
                problem("SH804", "what arrived is not what the manifest says", "Send it again; if it happens again, check the link")
            )
        return manifest

    def _write(self, header: Data, link: Link) -> None:
        file, digest = self._file(check_name(header.name))
        if not 0 <= header.size <= CHUNK or header.offset != self._sizes[header.name]:
            raise Broken("the sender's bytes are out of order")
        self._bytes += header.size
        if self._bytes > self._most_bytes:
            raise Rejected(too_large(self._bytes, self._most_bytes))
        self._share.need(header.size)
        body = self._buffer[: header.size]
        link.read(body)
        digest.update(body)
        self._sizes[header.name] += header.size
        while body:
            body = body[file.write(body) :]
        self._share.wrote(header.size)

    def _file(self, name: str) -> tuple[io.FileIO, blake3]:
        if name not in self._files:
            if len(self._files) >= self._most_files:
                raise Rejected(problem("SH808", f"the image has more than {self._most_files} files", "Find out what made it"))
            descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            self._files[name] = (io.FileIO(descriptor, "w"), blake3())
            self._sizes[name] = 0
        return self._files[name]


def too_large(size: int, most: int) -> Problem:
    """SH808."""
    return problem(
        "SH808", f"the image has {Bytes(size)} or more, and this node takes images of up to {Bytes(most)}", "Choose another node"
    )


def problem(code: str, what: str, remedy: str) -> Problem:
    """Why an image isn't taken, as its sender is told."""
    return Problem(code=code, what=what, remedy=remedy)
