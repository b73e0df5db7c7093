"""Snapshots as files: what a preview is made on, what a replay starts from, what a test says."""

import contextlib
import os
import tempfile
from pathlib import Path

import msgspec

from shunter.model.canon import decode, encode
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.snapshot import Snapshot

MAX_BYTES = 512 * 2**20


def save(snapshot: msgspec.Struct, path: Path) -> None:
    """Write a snapshot, or what has its keys and more, as canonical JSON, so that equal ones make equal files. The file is there whole or
    not at all; its mode is 0600, since labels and addresses can be telling. Raises Retry SH320 when it can't be written.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with open(handle, "wb") as file:
            file.write(encode(snapshot))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def load(path: Path) -> Snapshot:
    """Read what `save` wrote, or the like by hand. Raises Rejected: SH321 it can't be read, SH322 it isn't a snapshot (and where)."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise _invalid(path, f"it has {size:,} bytes, more than a snapshot can have")
        data = path.read_bytes()
    except OSError as error:
        raise Rejected(
            Problem(code="SH321", what=f"the snapshot can't be read: {error.strerror}", remedy="Check the path", subject=str(path))
        ) from error
    try:
        return decode(data, Snapshot)
    except (msgspec.DecodeError, ValueError) as error:
        raise _invalid(path, str(error)) from error


def _invalid(path: Path, why: str) -> Rejected:
    return Rejected(
        Problem(
            code="SH322",
            what=f"the file isn't a recorded snapshot: {why}",
            remedy="Mend the place that is named, or record one anew",
            subject=str(path),
        )
    )


def _unwritable(path: Path, error: OSError) -> Retry:
    return Retry(
        Problem(
            code="SH320",
            what=f"the snapshot can't be written: {error.strerror}",
            remedy="Check the folder, its permissions and the disk",
            subject=str(path),
        )
    )
