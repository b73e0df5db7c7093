"""Audit records for people: lists on one line each, one record in full."""

from collections.abc import Iterable

import msgspec
from rich.console import Console

from shunter.model.canon import plain
from shunter.model.record import Record, Sealed
from shunter.report.marks import mark
from shunter.report.words import Page, count, moment, short


def audit_text(records: Iterable[Sealed], console: Console) -> None:
    """One line a record: number, time, kind, subject, what; for a decision that changed, what it was before unless that was `pass`, since
    when and for how many ticks; for a record that waited for its disk, when it was written.
    """
    page, empty = Page(console), True
    for sealed in records:
        empty = False
        r = sealed.record
        page.line(
            f"{sealed.seq:>6}  {moment(r.at)}  {r.kind.value:<8}  {mark(pretend=r.pretend)}{r.subject}: {r.what}{_before(r)}{_late(r)}",
            hang=43,
        )
    if empty:
        page.line("No records match.")


def record_text(sealed: Sealed, console: Console) -> None:
    """One record in full, its body as JSON."""
    page, r = Page(console), sealed.record
    page.title(f"Record {sealed.seq}: {r.kind.value}")
    for label, text in _fields(r):
        if text:
            page.field(label, text, indent=2)
    page.field("follows", sealed.previous, indent=2)
    page.field("hash", sealed.hash, indent=2)
    if r.body:
        for line in msgspec.json.format(msgspec.json.encode(plain(r.body)), indent=2).decode().splitlines():
            depth = len(line) - len(line.lstrip())
            page.line(line.lstrip(), indent=2 + depth, hang=2)


def _fields(r: Record) -> tuple[tuple[str, str], ...]:
    return (
        ("what", f"{mark(pretend=r.pretend)}{r.what}"),
        ("subject", r.subject),
        ("at", moment(r.at)),
        ("operation", r.operation or ""),
        ("epoch", str(r.epoch)),
        ("policies", short(r.commit) if r.commit else ""),
        ("snapshot", r.snapshot or ""),
        ("plan", r.plan or ""),
    )


def _before(r: Record) -> str:
    previous = r.body.get("previous")
    if not isinstance(previous, dict) or previous.get("verdict", "pass") == "pass":
        return ""
    return f" (before: {previous['verdict']} since {_near(previous['since'], r.at)}, {count(previous['ticks'], 'tick')})"


def _late(r: Record) -> str:
    waited = r.body.get("spooled")
    return f" (written {_near(waited['written'], r.at)})" if isinstance(waited, dict) else ""


def _near(at: float, to: float) -> str:
    """A time as briefly as can be beside another one: without the day if it is the same."""
    day, _, rest = moment(at).partition(" ")
    return rest.removesuffix(" UTC") if day == moment(to).partition(" ")[0] else f"{day} {rest}"
