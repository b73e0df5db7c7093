"""What the agent needs of a source of notices: that something is going to happen to this node."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from shunter.model.errors import Problem


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One notice about this node. Times in seconds since the epoch; `deadline` is None when none is known."""

    id: str
    kind: str
    seen_at: float
    deadline: float | None = None
    source: str = ""
    detail: str = ""
    slot: str = ""
    """The slot whose GPU it is about; empty: the whole node."""
    dumpable: bool = True
    """False: nothing may be dumped through the GPU any more."""
    counted: bool = False
    """When it was first seen is all that is known of its time: its deadline, if it has one, is so long after that."""
    canary: bool = False
    """It is none: it was said to see whether it is heard. Nothing may be done about it."""


class NoticeSource(Protocol):
    """Something that gives notices: a cloud's metadata service, a scheduler, a folder."""

    name: str

    def start(self, changed: Callable[[Mapping[str, Notice]], None]) -> None:
        """Watch. `changed` gets all open notices by id, at once and after every change, in any thread."""
        ...

    def stop(self) -> None:
        """Watch no more. Idempotent."""
        ...

    def health(self) -> tuple[Problem, ...]:
        """What is wrong with the source or its notices now; empty: nothing."""
        ...
