"""A decision made again, for people."""

from collections.abc import Sequence

from rich.console import Console

from shunter.report.words import Page, count, moment, short


def replay_text(
    console: Console,
    *,
    record: int,
    at: float,
    commit: str,
    plan: str,
    again: str,
    snapshot: str,
    made_on: tuple[int, int, int],
    differs: Sequence[str],
    remarks: Sequence[str],
) -> None:
    """What it was made on and what came out. `made_on`: how many snapshots, findings and operations."""
    snapshots, findings, operations = made_on
    page = Page(console)
    page.line("the same, byte for byte" if not differs else "not the same")
    page.field("record", f"{record}, decided at {moment(at)}", indent=2)
    page.field("policies", short(commit), indent=2)
    page.field("snapshot", snapshot + (f", with {count(snapshots - 1, 'earlier one')}" if snapshots > 1 else ""), indent=2)
    page.field("plan", plan, indent=2)
    if again != plan:
        page.field("now", again, indent=2)
    page.field("gave", f"{count(findings, 'finding')}, {count(operations, 'operation')}", indent=2)
    for line in differs:
        page.line(line, indent=2, hang=2)
    for line in remarks:
        page.line(f"{line}.", indent=2, hang=2)
