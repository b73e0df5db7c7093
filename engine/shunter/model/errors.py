"""Errors as values: a stable code, what happened, where, and what to do. Who handles one is decided by its class alone.

Codes by hundreds: SH1xx policy language, SH2xx policy source, SH3xx metrics and inventory, SH4xx deciding, SH5xx engine and operations,
SH6xx agent and its guard, SH7xx checkpoint and restore, SH8xx images, SH9xx audit, command line and set-up.
"""

import enum

import msgspec


class Severity(enum.StrEnum):
    """How bad a problem is. A warning stops nothing unless the caller asked for `--strict`."""

    ERROR = "error"
    WARNING = "warning"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a policy file: 1-based line and column, counted in characters. `file` is relative to the repository."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, said so that the reader can act.

    `place` is None where no file is meant; `subject` then says which node, worker, operation, query or path (empty when there is none).
    `excerpt` is the offending source line without its newline, or None.
    """

    code: str
    what: str
    remedy: str
    subject: str = ""
    place: Place | None = None
    severity: Severity = Severity.ERROR
    excerpt: str | None = None

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else f"{self.subject}: " if self.subject else ""
        return f"{where}{self.code} {self.what}. {self.remedy}"


class ShunterError(Exception):
    """Base of all expected failures. Carries one Problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Rejected(ShunterError):
    """The input or the order is wrong, and trying again won't help: nothing was done."""


class Retry(ShunterError):
    """Nothing was done, and it may work later (a server is away, a slot is busy)."""


class Stalled(ShunterError):
    """It can't go on without a person."""


class Unknown(ShunterError):
    """An effect may or may not have happened: find out before doing anything else."""
