"""Audit records sent to an OpenTelemetry collector as they come, by a thread of its own: the engine never waits for a collector.

How far it has come is in a file, written once the collector has answered: each record arrives at least once, in order, also what was
written while the collector, or this process, was away. The audit stays what counts; this is a copy.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Final

import httpx

from shunter.app.private import write_private
from shunter.audit.journal import Journal
from shunter.audit.otlp import rejected, request
from shunter.model.errors import Problem, ShunterError
from shunter.model.record import Sealed

_BATCH: Final = 500
_LOOK_S: Final = 1.0
_LONGEST_S: Final = 60.0
"""Between two tries, at most."""
_TIMEOUT_S: Final = 10.0
_TOO_MUCH: Final = frozenset({400, 413})
"""One of them may be what the collector doesn't like: they are sent one by one."""


class Shipper:
    """Sends what `open_audit` gives to `url`, from the record after the one that the file `cursor` names.

    `problem` is why the last try failed, or what a collector refused; None when all was taken. Raises nothing.
    """

    def __init__(self, open_audit: Callable[[], Journal], url: str, cursor: Path, transport: httpx.BaseTransport | None = None) -> None:
        self._open, self._url, self._cursor = open_audit, url, cursor
        self._client = httpx.Client(timeout=_TIMEOUT_S, transport=transport, headers={"content-type": "application/json"})
        self._version = version("shunter")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shipping", daemon=True)
        self._failures = 0
        self.problem: Problem | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; what hasn't been sent is sent by the next process."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_TIMEOUT_S)
        self._client.close()

    def send(self) -> int:
        """Send what there is, up to some hundreds; how many the collector answered for. Raises ShunterErrors, OSError, httpx.HTTPError."""
        after = self._sent()
        with self._open() as audit:
            records = list(islice(audit.stream(after=after), _BATCH))
        if not records:
            return 0
        answer = self._post(records)
        if answer.status_code in _TOO_MUCH and len(records) > 1:
            records = records[:1]
            answer = self._post(records)
        refusal = self._refusal(answer, records)
        write_private(self._cursor, b"%d\n" % records[-1].seq)
        self.problem = refusal
        return len(records)

    def _post(self, records: Sequence[Sealed]) -> httpx.Response:
        return self._client.post(self._url, content=request(records, self._version))

    def _refusal(self, answer: httpx.Response, records: Sequence[Sealed]) -> Problem | None:
        """What to say of records that will never be taken; None for none. Raises httpx.HTTPStatusError for what may be taken later."""
        if answer.status_code in _TOO_MUCH:
            return _problem(f"the collector refuses record {records[0].seq}: it answered {answer.status_code}", self._url)
        if not answer.is_success:
            raise httpx.HTTPStatusError(f"it answered {answer.status_code}", request=answer.request, response=answer)
        lost, why = rejected(answer.content)
        return (
            _problem(f"the collector refused {lost} of records {records[0].seq} to {records[-1].seq}: {why}", self._url) if lost else None
        )

    def _sent(self) -> int:
        try:
            return int(self._cursor.read_bytes())
        except (FileNotFoundError, ValueError):
            return 0

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            pause = self._try()

    def _try(self) -> float:
        """Once; how long to wait before the next time, seconds."""
        try:
            sent = self.send()
        except (ShunterError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            self._failures += 1
            told = error.problem.what if isinstance(error, ShunterError) else str(error) or type(error).__name__
            self.problem = _problem(f"audit records can't be sent: {told}", self._url)
            return min(_LONGEST_S, 2.0 ** min(self._failures, 10))
        self._failures = 0
        return 0.0 if sent == _BATCH else _LOOK_S


def _problem(what: str, url: str) -> Problem:
    with contextlib.suppress(httpx.InvalidURL):
        url = str(httpx.URL(url).copy_with(userinfo=b""))
    remedy = "Check the collector and `otlp` under [audit]; nothing is lost, and what waits is sent when it answers"
    return Problem(code="SH979", what=what, remedy=remedy, subject=url)
