"""What an image of a container says of that container, and whether another one can take its place."""

from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem, Rejected
from shunter.model.pod import Pod

from shunter_agent.runtime import containers_files as files
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.containers_mounts import of as mounts_of
from shunter_agent.runtime.pods import Container
from shunter_agent.runtime.port import Contained

NOTE: Final = "container.json"


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What an image of a container says of it. `points` are where something was mounted, `left_out` those of them that were about a device
    of that node; `standard`: the pipes that led out of it, and which standard stream each is; `label`: what
    the kernel's security module called it (empty: none); `gone`: see `containers_files`."""

    pod: Pod
    image: str
    points: tuple[str, ...]
    left_out: tuple[str, ...]
    standard: dict[str, int]
    addresses: tuple[str, ...]
    label: str
    gone: files.Gone = files.Gone()


def read(folder: Path) -> Note | None:
    """The note in an image. None: it isn't of a container. Raises Rejected SH757 for one that can't be read."""
    try:
        return msgspec.json.decode((folder / NOTE).read_bytes(), type=Note)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Rejected(misfit(str(folder), f"the image's {NOTE} can't be read: {error}")) from error


def differences(note: Note | Contained, home: Container) -> list[str]:
    """Why a worker can't live in this container instead of its own, each with the two values. Raises Rejected SH710."""
    found = []
    if note.image and home.image and note.image != home.image:
        found.append(f"the worker's image is {note.image}, the placeholder's {home.image}")
    try:
        label, points = label_of(home.init.pid), {one.point for one in mounts_of(home.init.pid)}
    except OSError as error:
        raise Rejected(processes.gone(home.init.pid)) from error
    if note.label != label:
        found.append(f"the worker is confined as {note.label or 'nothing'!r}, the placeholder as {label or 'nothing'!r}")
    missing = [point for point in note.points if point not in points]
    if missing:
        found.append(f"the worker has mounted {', '.join(missing)}, where the placeholder has nothing")
    return found


def label_of(pid: int) -> str:
    """What the kernel's security module calls a process; empty without one."""
    try:
        return Path(f"/proc/{pid}/attr/current").read_text().strip("\0\n ")
    except OSError:
        return ""


def misfit(subject: str, what: str) -> Problem:
    """SH757."""
    return Problem(
        code="SH757",
        what=f"the worker can't be restored there, and no copy was made: {what}",
        remedy="Make the placeholder's pod of the template of the worker's own, with the same image and volumes; the image is as it was",
        subject=subject,
    )
