"""Opening the audit where the settings say that it is: in the state folder, or in PostgreSQL."""

from pathlib import Path
from typing import TYPE_CHECKING

from shunter.app.settings import AuditSettings
from shunter.audit.journal import Journal
from shunter.audit.redact import Redaction

if TYPE_CHECKING:  # its HTTP client takes longer to import than most readers run
    from shunter.app.shipping import Shipper


def audit_path(state: Path) -> Path:
    """Where the audit of this state folder is; its keys and exported heads are beside it, wherever the records are."""
    return state / "audit.db"


def redaction_of(settings: AuditSettings) -> Redaction:
    """How what is kept is cleaned."""
    return Redaction(labels=None if settings.labels is None else frozenset(settings.labels))


def write(state: Path, settings: AuditSettings, wal_pages: int) -> Journal:
    """For the engine. Raises Stalled as `Journal` does, and Rejected SH978."""
    path, redaction = audit_path(state), redaction_of(settings)
    if settings.database is None:
        return Journal(path, wal_pages=wal_pages, key=settings.key, redaction=redaction)
    from shunter.audit.postgres import PostgresShelf

    return Journal(path, key=settings.key, redaction=redaction, shelf=PostgresShelf(settings.database, path, read_only=False))


def read(state: Path, database: str | None) -> Journal:
    """For whoever looks. Raises as `write` does."""
    path = audit_path(state)
    if database is None:
        return Journal(path, read_only=True)
    from shunter.audit.postgres import PostgresShelf

    return Journal(path, shelf=PostgresShelf(database, path, read_only=True))


def shipping(state: Path, settings: AuditSettings) -> "Shipper | None":
    """What sends records to a collector, not yet started; None where the settings name none."""
    if settings.otlp is None:
        return None
    from shunter.app.shipping import Shipper

    return Shipper(lambda: read(state, settings.database), settings.otlp, audit_path(state).with_suffix(".otlp"))
