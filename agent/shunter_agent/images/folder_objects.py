"""Objects as files in a folder, on whatever file system: one that all nodes share, or a disk beside."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Retry

from shunter_agent.images.folders import sync_path
from shunter_agent.images.port import Kept

_MAKING: Final = ".making-"


class FolderObjects:
    """Implements `port.Objects`. Files are 0600, folders 0700."""

    def __init__(self, root: Path) -> None:
        """The folder is made with the first object."""
        self._root = root
        self.name = str(root)

    def put(self, key: str, data: bytes) -> None:
        """See `port.Objects`. On the disk when it returns."""
        path = self._root / key
        making = path.with_name(f"{_MAKING}{secrets.token_hex(8)}")
        with self._told(missing=True):
            self._make(path.parent)
            try:
                with open(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                making.rename(path)
                sync_path(path.parent)  # else its name may be lost with the power
            finally:
                making.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        """With the folders above it that are missing, as far as they are the archive's."""
        if not folder.is_dir():
            if folder != self._root:
                self._make(folder.parent)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_path(folder.parent)

    def get(self, key: str) -> bytes | None:
        """See `port.Objects`."""
        with self._told(), contextlib.suppress(FileNotFoundError):
            return (self._root / key).read_bytes()
        return None

    def find(self, key: str) -> Kept | None:
        """See `port.Objects`."""
        with self._told(), contextlib.suppress(FileNotFoundError):
            return Kept(key, (self._root / key).stat().st_mtime)
        return None

    def all(self, prefix: str) -> Iterator[Kept]:
        """See `port.Objects`."""
        with self._told():
            for path in sorted(self._root.rglob("*")):
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix) and not path.name.startswith(_MAKING) and path.is_file():
                    yield Kept(key, path.stat().st_mtime)

    def delete(self, key: str) -> None:
        """See `port.Objects`."""
        with self._told():
            (self._root / key).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _told(self, *, missing: bool = False) -> Iterator[None]:
        """`missing`: that something isn't there is no answer, but wrong."""
        try:
            yield
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not missing:
                raise
            raise Retry(unreachable(self.name, error.strerror or str(error))) from error


def unreachable(name: str, what: str) -> Problem:
    """SH822."""
    return Problem(
        code="SH822",
        what=f"the archive of images can't be used: {what}",
        remedy="Check that it can be reached, and that this node may read and write there; then try again",
        subject=name,
    )
