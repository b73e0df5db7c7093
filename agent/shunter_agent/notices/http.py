"""Notices from anything that answers HTTP: a provider's API through a small proxy, a scheduler, a script. It is asked, and we don't listen.

It answers 200 with one notice or a list of them, each in the form of a file (see `file`), or 204 with nothing to say. A notice that isn't
in the answer any more is withdrawn. A 404 isn't nothing to say: it is what a wrong address gives.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Rejected

from shunter_agent.notices.file import parse
from shunter_agent.notices.metadata import Metadata
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import Look

MOST: Final = 100
"""Notices in one answer: more than any node has."""


def looks(service: Metadata, path: str, *, every: float, token: Path | None = None) -> tuple[Look, ...]:
    """What to ask. `every` in seconds between two looks; `token` is a file with a bearer token."""
    return (Look(name=service.name, ask=_Http(service, path, token).ask, every=every),)


class _Http:
    def __init__(self, service: Metadata, path: str, token: Path | None) -> None:
        self._service, self._path, self._token = service, path, token
        self._open: dict[str, Notice] = {}

    def ask(self) -> Mapping[str, Notice]:
        reply = self._service.get(self._path, {"Accept": "application/json", **self._bearer()})
        if reply.status == 204:
            self._open = {}
            return {}
        if reply.status != 200:
            raise self._service.unreadable(self._path, reply, "it should be 200, or 204 while there is nothing to say")
        try:
            found = [self._notice(one, reply.ahead) for one in _each(reply.text)]
        except (msgspec.DecodeError, ValueError) as error:
            raise self._service.unreadable(self._path, reply, str(error)) from error
        except Rejected as error:
            raise self._service.unreadable(self._path, reply, error.problem.what) from error
        self._open = {n.id: n for n in found}
        return self._open

    def _notice(self, data: bytes, ahead: float) -> Notice:
        """A `lead` is counted from when it was first seen, and mustn't move with each answer; a `deadline` is by the other's clock."""
        now = self._service.clock()
        notice = parse(data, now, now)
        known = self._open.get(notice.id)
        led = "lead" in msgspec.json.decode(data, type=dict[str, object])
        deadline = notice.deadline
        if led and known is not None:
            deadline = known.deadline
        elif not led and deadline is not None:
            deadline -= ahead
        return msgspec.structs.replace(notice, deadline=deadline, source=self._service.name, counted=led or deadline is None)

    def _bearer(self) -> dict[str, str]:
        if self._token is None:
            return {}
        try:
            return {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        except OSError as error:
            raise self._service.silent(f"can't be asked: its token can't be read ({error.strerror})") from error


def _each(text: str) -> list[bytes]:
    """Each notice as it stands in the answer."""
    found = msgspec.json.decode(text, type=list[msgspec.Raw]) if text.lstrip().startswith("[") else [msgspec.Raw(text.encode())]
    if len(found) > MOST:
        raise ValueError(f"it has {len(found)} notices, and {MOST} are read at most")
    return [bytes(one) for one in found]
