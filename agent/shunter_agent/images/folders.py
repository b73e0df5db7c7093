"""The folders of images: whose they are, what they are called while something is done to them, and how what is in them gets to the disk."""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Stalled

from shunter_agent.images.manifest import MANIFEST, belongs
from shunter_agent.images.sealing import is_sealed

PARTIAL: Final = ".partial"
DOOMED: Final = ".discarded"
SEALING: Final = ".sealing"
_AT_ONCE: Final = 16 << 20
"""Bytes that go to the disk at once, where somebody may have to wait for it."""
_WRITTEN: Final = 7
"""Linux' SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER."""
_UNABLE: Final = frozenset({errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP, errno.EINTR})
"""What a file system says that can't write a part by itself. Anything else is about the bytes."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


Seen = tuple[str, int, int, int, int]


def seen(path: Path) -> Seen:
    """By what a file that was touched is told from one that wasn't: whatever is done to it sets the time of its change. Raises OSError."""
    found = path.stat()
    return path.name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def looks(folder: Path) -> frozenset[Seen]:
    """All files of an image in `folder` and its manifest, as `seen`. Raises OSError."""
    return frozenset(seen(path) for path in folder.rglob("*") if path.is_file() and (belongs(path.name) or path.name == MANIFEST))


def own(folder: Path) -> None:
    """Make a folder that is nobody else's. Raises Stalled SH820, OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise Stalled(
            Problem(
                code="SH820",
                what=f"the folder for images is a link, or belongs to user {found.st_uid}, and the agent is user {os.geteuid()}",
                remedy="Remove it, or name another one, in a folder where others can't make any",
                subject=str(folder),
            )
        )
    folder.chmod(0o700)


def sweep(folder: Path) -> None:
    """Finish or remove what a run that died has left half done. Raises OSError."""
    for making in folder.glob(f"*{SEALING}"):  # its head is written last
        whole = making.with_name(making.name.removesuffix(SEALING))
        if is_sealed(making) and not whole.exists():
            making.rename(whole)
        else:
            shutil.rmtree(making)
    for left in [*folder.glob(f"*{PARTIAL}"), *folder.glob(f"*{DOOMED}")]:
        shutil.rmtree(left)


def doom(folder: Path) -> Path:
    """Put aside what is to be deleted, so that it is never seen half deleted. Raises FileNotFoundError."""
    doomed = folder.with_name(f"{folder.name}{DOOMED}")
    folder.rename(doomed)
    return doomed


def remove(folder: Path) -> None:
    """Delete a folder of plain files, if it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(doom(folder) if folder.suffix != DOOMED else folder)


def nothing() -> None:
    """Called between parts of what takes long, by those whom nobody waits for; it may take its time."""


def sync_folder(folder: Path, between: Callable[[], None] = nothing) -> None:
    """Bring a folder and the files in it to the disk. Raises OSError."""
    for path in folder.iterdir():
        if path.is_file() or path.is_dir():  # no socket of a restore that was killed
            sync_path(path, between)
    sync_path(folder)


def sync_path(path: Path, between: Callable[[], None] = nothing) -> None:
    """Bring one file or folder to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync_file(descriptor, between)
    finally:
        os.close(descriptor)


def sync_file(descriptor: int, between: Callable[[], None] = nothing) -> None:
    """Bring what is behind a descriptor to the disk, some MiB at a time with `between` between them. Raises OSError."""
    for at in range(0, os.fstat(descriptor).st_size if between is not nothing else 0, _AT_ONCE):
        between()
        _sync_part(descriptor, at)
    os.fsync(descriptor)


def _sync_part(descriptor: int, at: int) -> None:
    """A file system that can't leaves it all to the end. What went wrong is said once: who doesn't listen here is told at the end that all
    went well."""
    if _libc.sync_file_range(descriptor, ctypes.c_int64(at), ctypes.c_int64(_AT_ONCE), _WRITTEN) == 0:
        return
    failed = ctypes.get_errno()
    if failed not in _UNABLE:
        raise OSError(failed, os.strerror(failed))
