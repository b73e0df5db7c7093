"""Sending an image's files whole, for receivers of releases that know no chunks."""

import contextlib
import io
import time
from collections.abc import Callable
from pathlib import Path

from blake3 import blake3

from shunter_agent.images.cutting import CHUNK
from shunter_agent.images.frames import Broken, Data, Stored, Wait, Whole
from shunter_agent.images.growth import GROWING, LOOK_S, REASSURE_S, Growth
from shunter_agent.images.manifest import ImageFile, ImageManifest, belongs
from shunter_agent.images.talk import Talk


class WholeSender:
    """One transfer: files are read once, hashed and sent."""

    def __init__(self, talk: Talk, folder: Path, progress: Callable[[int], None]) -> None:
        self._talk = talk
        self._folder = folder
        self._progress = progress
        self.bytes = 0
        """Of files, that went over the link."""
        self._sizes: dict[str, int] = {}
        self._hashes: dict[str, blake3] = {}
        self._buffer = memoryview(bytearray(CHUNK))

    def follow(self, growth: Growth) -> None:
        """Send files that only grow, as they do, until all files are final. Nothing is copied ahead: it couldn't be made use of."""
        with contextlib.ExitStack() as stack:
            opened: dict[str, io.FileIO] = {}
            while not growth.wait(0 if self._grown(opened, stack) else LOOK_S):
                job = growth.job()
                if job is not None:
                    job.done.set()
                if time.monotonic() - self._talk.spoke > REASSURE_S:
                    self._talk.say(Wait())

    def _grown(self, opened: dict[str, io.FileIO], stack: contextlib.ExitStack) -> bool:
        for path in self._folder.glob(GROWING):
            if path.name not in opened:
                opened[path.name] = stack.enter_context(io.FileIO(path))
        return any([self._chunk(name, file) for name, file in opened.items()])

    def rest(self) -> None:
        """Send whatever hasn't been sent, of all files."""
        for path in sorted(self._folder.iterdir()):
            if belongs(path.name):
                with io.FileIO(path) as file:
                    file.seek(self._sizes.get(path.name, 0))
                    self._hashes.setdefault(path.name, blake3())
                    while self._chunk(path.name, file):
                        pass
                    if path.name not in self._sizes:
                        self._talk.say(Data(name=path.name, offset=0, size=0))  # an empty file is a file
                        self._sizes[path.name] = 0

    def _chunk(self, name: str, file: io.FileIO) -> int:
        count = file.readinto(self._buffer) or 0
        if count:
            body = self._buffer[:count]
            self._hashes.setdefault(name, blake3()).update(body)
            self._talk.say(Data(name=name, offset=self._sizes.get(name, 0), size=count), body)
            self._sizes[name] = self._sizes.get(name, 0) + count
            self.bytes += count
            self._progress(self.bytes)
        return count

    def close(self) -> None:
        """It has no threads."""

    def files(self) -> tuple[ImageFile, ...]:
        """What was sent, sorted by name."""
        return tuple(ImageFile(name=name, size=size, blake3=self._hashes[name].hexdigest()) for name, size in sorted(self._sizes.items()))

    def end(self, manifest: ImageManifest) -> Stored:
        """Say that it was all. Raises Broken, and what the other side refuses with."""
        self._talk.say(Whole(manifest=manifest))
        answer = self._talk.listen()
        if not isinstance(answer, Stored):
            raise Broken("the other side answered out of turn")
        return answer
