"""Equal chunks of a node's images lie on its disk once, where the file system can have files share blocks: XFS and btrfs.

A dump writes files of its own, whatever of them lies here already in earlier images of the worker, or of others of the same model. CRIU
reads nothing but files, so it is the file system that has to know: the kernel is given two places that should be equal (FIDEDUPERANGE),
compares them itself and lets them share blocks if they are. Neither file's bytes or times change, whoever reads them meanwhile.
"""

import contextlib
import fcntl
import os
import struct
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from shunter_agent.images.index import Place
from shunter_agent.images.manifest import ImageManifest

_FIDEDUPERANGE: Final = 0xC0189436
"""From linux/fs.h, as are the two that follow."""
_RANGE: Final = struct.Struct("=QQHHI")
"""struct file_dedupe_range: where from, how many bytes, how many places follow."""
_INTO: Final = struct.Struct("=qQQiI")
"""struct file_dedupe_range_info: descriptor, where to; how many bytes are shared, and 0 or what was different or wrong."""
BLOCK: Final = 4096
"""Bytes: only whole blocks are shared. A file system with larger ones refuses what doesn't begin at one of its own."""


def share(source: int, at: int, target: int, to: int, size: int) -> int:
    """Let `size` bytes of the file `target` lie where the equal ones of `source` do; how many do now. 0 when they aren't equal.

    Raises OSError where the file system, or these places, can't.
    """
    size -= size % BLOCK
    if not size:
        return 0
    asked = bytearray(_RANGE.pack(at, size, 1, 0, 0) + _INTO.pack(target, to, 0, 0, 0))
    fcntl.ioctl(source, _FIDEDUPERANGE, asked)
    _descriptor, _to, shared, status, _reserved = _INTO.unpack_from(asked, _RANGE.size)
    if status < 0:
        raise OSError(-status, os.strerror(-status))
    return int(shared) if status == 0 else 0


def can_share(folder: Path) -> bool:
    """Files in this folder can share blocks. It is tried out. Raises OSError when nothing can be written there."""
    with tempfile.TemporaryFile(dir=folder) as one, tempfile.TemporaryFile(dir=folder) as other:
        for file in (one, other):
            file.write(b"x" * BLOCK)
            file.flush()
        with contextlib.suppress(OSError):
            return share(one.fileno(), 0, other.fileno(), 0, BLOCK) == BLOCK
    return False


def share_chunks(
    folder: Path,
    manifest: ImageManifest,
    places: Callable[[str], Iterable[Place]],
    path_of: Callable[[Place], Path | None],
    between: Callable[[], None],
) -> int:
    """Let the chunks of a whole image in `folder` share blocks with equal ones in `places`; how many bytes do. `between` is called before
    each, and may hold it up. What can't be shared stays as it is."""
    shared = 0
    for file in manifest.files:
        at = 0
        for part in file.parts:
            for place in places(part.blake3) if part.size >= BLOCK else ():
                path = path_of(place)
                if path is None or (place.image, place.name, place.offset) == (manifest.id, file.name, at):
                    continue
                between()
                with contextlib.suppress(OSError):  # discarded meanwhile, or no place where a block begins
                    count = _share(path, place.offset, folder / file.name, at, part.size)
                    shared += count
                    if count:
                        break
            at += part.size
    return shared


def _share(source: Path, at: int, target: Path, to: int, size: int) -> int:
    """As `share`. Neither file stays open, so that what is discarded meanwhile makes room at once."""
    with source.open("rb", buffering=0) as one, target.open("r+b", buffering=0) as other:
        return share(one.fileno(), at, other.fileno(), to, size)
