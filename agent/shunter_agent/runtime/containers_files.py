"""Files that go along with a worker's image: what its container has changed of its image's file system, and what is in memory or on the
node for this pod alone (`/dev/shm`, emptyDir).

They are taken while the worker stands still, so they fit its memory. A name is never looked up where a link of the container's could lead
to the node: folders are walked by descriptors, and written within the placeholder's root.
"""

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import msgspec

from shunter_agent.runtime.containers_mounts import Root

ARCHIVE: Final = "container-files.tar"
_CHUNK: Final = 1 << 20
_XATTR: Final = "SCHILY.xattr."
_KEPT_XATTRS: Final = ("user.", "security.capability", "system.posix_acl_")
_OPAQUE: Final = ("trusted.overlay.opaque", "user.overlay.opaque")
_HIDDEN: Final = ("trusted.overlay.", "user.overlay.")


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """A folder whose contents go along. `top` is a descriptor of it, `point` where it is in the container, `layer` whether it is an
    overlay's upper layer, with its marks for what was deleted."""

    top: int
    point: str
    layer: bool = False


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """What the container has deleted of its image: names, and folders that had something else in them before."""

    removed: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()


class _Entry(msgspec.Struct, frozen=True):
    path: str
    name: str
    folder: int
    seen: os.stat_result


def size(trees: Sequence[Tree], points: Collection[str]) -> int:
    """About how many bytes `pack` would write: of files alone. Raises OSError."""
    return sum(entry.seen.st_size for tree in trees for entry in _walk(tree, points) if stat.S_ISREG(entry.seen.st_mode))


def pack(trees: Sequence[Tree], points: Collection[str], archive: Path) -> Gone:
    """Write all of `trees` into `archive`, but what lies at one of `points`, where something else is mounted. Raises OSError."""
    removed: list[str] = []
    emptied: list[str] = []
    with archive.open("xb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        linked: dict[tuple[int, int], str] = {}
        for tree in trees:
            for entry in _walk(tree, points):
                if tree.layer and stat.S_ISCHR(entry.seen.st_mode) and entry.seen.st_rdev == 0:
                    removed.append(entry.path)
                    continue
                if tree.layer and stat.S_ISDIR(entry.seen.st_mode) and _is_opaque(entry):
                    emptied.append(entry.path)
                _add(tar, entry, linked)
    return Gone(removed=tuple(removed), emptied=tuple(emptied))


def _walk(tree: Tree, points: Collection[str]) -> Iterator[_Entry]:
    """Folders before what is in them. What is on another file system is somebody else's."""
    device = os.fstat(tree.top).st_dev
    for at, folders, files, folder in os.fwalk(".", dir_fd=tree.top, follow_symlinks=False):
        base = os.path.normpath(f"{tree.point.rstrip('/')}/{at}")  # of two slashes at the beginning both would stay
        here = []
        for name in sorted((*folders, *files)):
            path = f"{base.rstrip('/')}/{name}"
            try:
                seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:  # by somebody who isn't of the worker, such as `kubectl exec`
                continue
            if path in points or seen.st_dev != device:
                continue
            if stat.S_ISDIR(seen.st_mode):
                here.append(name)
            yield _Entry(path, name, folder, seen)
        folders[:] = here


def _is_opaque(entry: _Entry) -> bool:
    with _opened(entry, os.O_DIRECTORY) as descriptor:
        names = set(os.listxattr(descriptor))
    return any(name in names for name in _OPAQUE)


@contextlib.contextmanager
def _opened(entry: _Entry, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=entry.folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _add(tar: tarfile.TarFile, entry: _Entry, linked: dict[tuple[int, int], str]) -> None:
    seen, about = entry.seen, tarfile.TarInfo(entry.path.lstrip("/"))
    about.mode, about.uid, about.gid, about.mtime = stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_mtime
    if stat.S_ISDIR(seen.st_mode):
        about.type = tarfile.DIRTYPE
        with _opened(entry, os.O_DIRECTORY) as descriptor:
            _note_xattrs(about, descriptor)
        tar.addfile(about)
    elif stat.S_ISLNK(seen.st_mode):
        about.type, about.linkname = tarfile.SYMTYPE, os.readlink(entry.name, dir_fd=entry.folder)
        tar.addfile(about)
    elif stat.S_ISFIFO(seen.st_mode):
        about.type = tarfile.FIFOTYPE
        tar.addfile(about)
    elif stat.S_ISREG(seen.st_mode):
        _add_file(tar, entry, about, linked)
    # sockets are CRIU's business, and devices are the runtime's


def _add_file(tar: tarfile.TarFile, entry: _Entry, about: tarfile.TarInfo, linked: dict[tuple[int, int], str]) -> None:
    first = linked.setdefault((entry.seen.st_dev, entry.seen.st_ino), about.name)
    if first != about.name:
        about.type, about.linkname = tarfile.LNKTYPE, first
        tar.addfile(about)
        return
    with _opened(entry) as descriptor:
        _note_xattrs(about, descriptor)
        about.size = os.fstat(descriptor).st_size
        with os.fdopen(os.dup(descriptor), "rb") as content:
            tar.addfile(about, content)


def _note_xattrs(about: tarfile.TarInfo, descriptor: int) -> None:
    for name in os.listxattr(descriptor):
        if name.startswith(_KEPT_XATTRS) and not name.startswith(_HIDDEN):
            value = os.getxattr(descriptor, name).decode(errors="surrogateescape")
            about.pax_headers = {**about.pax_headers, _XATTR + name: value}


# -- at the destination


def unpack(archive: Path, gone: Gone, root: Root, points: Collection[str], before: Collection[str] = ()) -> None:
    """Make a placeholder's files those of the container that `archive` and `gone` are of, but what lies at one of its own mount `points`,
    or below one that isn't among those of the container (`before`). Nothing that is mounted there is emptied or removed: it may be a volume
    that others have, too.

    Raises OSError, tarfile.TarError: also for a name with `..`, which no container of ours has written.
    """
    over = {*points} - {*before, "/"}
    for path in map(_plain, gone.emptied):
        if path not in over and not _below(path, over):
            _empty(root, path, points)
    for path in map(_plain, gone.removed):
        if _below(path, over):
            continue
        with contextlib.suppress(FileNotFoundError), root.folder(os.path.dirname(path)) as folder:
            _remove(folder, os.path.basename(path), path, points)
    with tarfile.open(archive, "r:") as tar:
        for about in tar:
            path = _plain("/" + about.name)
            if path in points or _below(path, over):
                continue
            with root.folder(os.path.dirname(path)) as folder:
                _put(tar, about, root, folder, path, points)


def _below(path: str, over: Collection[str]) -> bool:
    return any(path.startswith(f"{point}/") for point in over)


def _plain(path: str) -> str:
    if ".." in path.split("/"):
        raise tarfile.TarError(f"the image names a file {path!r}")
    return path


def _put(tar: tarfile.TarFile, about: tarfile.TarInfo, root: Root, folder: int, path: str, points: Collection[str]) -> None:
    name = os.path.basename(path)
    if about.isdir():
        _put_folder(about, folder, name)
        return
    if not _remove(folder, name, path, points):
        raise OSError(errno.EBUSY, "the placeholder has something mounted below it", path)
    if about.issym():
        os.symlink(about.linkname, name, dir_fd=folder)
        os.chown(name, about.uid, about.gid, dir_fd=folder, follow_symlinks=False)
    elif about.islnk():
        first = _plain("/" + about.linkname)
        with root.folder(os.path.dirname(first)) as other:
            os.link(os.path.basename(first), name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
    elif about.isfifo():
        os.mkfifo(name, about.mode, dir_fd=folder)
        os.chown(name, about.uid, about.gid, dir_fd=folder, follow_symlinks=False)
    else:
        content = tar.extractfile(about)
        assert content is not None
        _put_file(about, content, folder, name)


def _put_folder(about: tarfile.TarInfo, folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        _set(descriptor, about)
    finally:
        os.close(descriptor)


def _put_file(about: tarfile.TarInfo, content: IO[bytes], folder: int, name: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb", buffering=0) as file:
        while chunk := content.read(_CHUNK):
            left = memoryview(chunk)
            while left:
                left = left[file.write(left) :]
        _set(file.fileno(), about)


def _set(descriptor: int, about: tarfile.TarInfo) -> None:
    os.fchown(descriptor, about.uid, about.gid)
    os.fchmod(descriptor, about.mode)  # after the owner, whose change takes away setuid
    for header, value in about.pax_headers.items():
        if header.startswith(_XATTR):
            os.setxattr(descriptor, header.removeprefix(_XATTR), value.encode(errors="surrogateescape"))
    os.utime(descriptor, (about.mtime, about.mtime))


def _remove(folder: int, name: str, path: str, points: Collection[str]) -> bool:
    """Whether nothing of that name is left: what is mounted there, and the folders above it, stay. The kernel would keep nobody from
    removing a mount point of another namespace, or what is in it.
    """
    if path in points:
        return False
    try:
        seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    if not stat.S_ISDIR(seen.st_mode):
        os.unlink(name, dir_fd=folder)
        return True
    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        gone = _clear(below, path, points)
    finally:
        os.close(below)
    if gone:
        os.rmdir(name, dir_fd=folder)
    return gone


def _clear(folder: int, path: str, points: Collection[str]) -> bool:
    return all([_remove(folder, entry, f"{path.rstrip('/')}/{entry}", points) for entry in os.listdir(folder)])


def _empty(root: Root, path: str, points: Collection[str]) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = root.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _clear(descriptor, path, points)
        finally:
            os.close(descriptor)
