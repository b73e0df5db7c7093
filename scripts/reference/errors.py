"""docs/reference/errors.md."""

from collections import defaultdict
from pathlib import Path
from typing import Final

from shunter.lang.diagnostics import CODES
from shunter.model import errors

from reference.markdown import code, paragraphs, table
from reference.raised import Raised, everywhere

_INTRO: Final = """# Error codes

Every problem that Shunter tells of has a code that never changes its meaning, says what happened, and what to do. What stands in
*italics* or as dots is filled in with what was found. Where one code is told in several ways, each has a row.

Whoever handles an error goes by its class alone:"""
_TITLES: Final = {
    "1": "SH1xx: policy language",
    "2": "SH2xx: policy source",
    "3": "SH3xx: metrics and inventory",
    "4": "SH4xx: deciding",
    "5": "SH5xx: engine and operations",
    "6": "SH6xx: agent and its guard",
    "7": "SH7xx: checkpoint and restore",
    "8": "SH8xx: images",
    "9": "SH9xx: audit, command line and set-up",
}


def page(root: Path) -> str:
    """The whole page for the project at `root`."""
    by_code: dict[str, list[Raised]] = defaultdict(list)
    for each in everywhere(root):
        by_code[each.code].append(each)
    classes = [(code(kind.__name__), paragraphs(kind.__doc__)) for kind in (errors.Rejected, errors.Retry, errors.Stalled, errors.Unknown)]
    parts = [_INTRO.strip(), table(("class", "means"), classes)]
    for digit, title in _TITLES.items():
        rows = [row for found in sorted(by_code.keys() | CODES.keys()) if found[2] == digit for row in _rows(found, by_code[found])]
        if rows:
            parts += [f"## {title}", table(("code", "what", "what to do", "made in"), rows)]
    return "\n\n".join(parts)


def _rows(found: str, raised: list[Raised]) -> list[tuple[str, str, str, str]]:
    """A row for each way in which a code is told; one with its title for a code of the policy language."""
    if found in CODES:
        return [(code(found), CODES[found], "said with the problem, at its line and column", _paths(raised))]
    ways: dict[tuple[str, str], list[Raised]] = defaultdict(list)
    for each in raised:
        ways[each.what, each.remedy].append(each)
    rows = []
    for number, ((what, remedy), sites) in enumerate(ways.items()):
        rows.append((code(found) if number == 0 else "", what, remedy or "said with the problem", _paths(sites)))
    return rows


def _paths(raised: list[Raised]) -> str:
    short = sorted({each.path.removeprefix("engine/").removeprefix("agent/") for each in raised})
    return ", ".join(map(code, short))
