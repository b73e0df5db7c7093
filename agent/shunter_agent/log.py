"""Log lines: one JSON object per line, to stderr. Only what is named here goes in; environments, certificates and images never do."""

import json
import sys
import time
from collections.abc import Callable
from typing import TextIO

from shunter.model.errors import Problem


class Log:
    """Writes lines with a time (RFC 3339, UTC), a level, what happened, and named values. Usable from any thread."""

    def __init__(self, node: str, out: TextIO | None = None, clock: Callable[[], float] = time.time) -> None:
        """`out` None: stderr."""
        self._node = node
        self._out = out if out is not None else sys.stderr
        self._clock = clock

    def info(self, what: str, **values: str | float | int | None) -> None:
        """Something that is as it should be."""
        self._line("info", what, values)

    def error(self, what: str, **values: str | float | int | None) -> None:
        """Something that a person may want to look at."""
        self._line("error", what, values)

    def problem(self, problem: Problem, **values: str | float | int | None) -> None:
        """A problem with its code and remedy."""
        self._line("error", problem.what, {"code": problem.code, "remedy": problem.remedy, "subject": problem.subject, **values})

    def _line(self, level: str, what: str, values: dict[str, str | float | int | None]) -> None:
        now = self._clock()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        line = json.dumps({"at": at, "level": level, "node": self._node, "what": what, **values}, ensure_ascii=False)
        self._out.write(line + "\n")
        self._out.flush()
