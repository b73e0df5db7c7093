"""Markdown parts that all pages share."""

from collections.abc import Iterable, Sequence
from typing import Final

GENERATED: Final = "<!-- Made from the code by scripts/generate-reference (`make docs`). Change the code, not this page. -->"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Cells are Markdown; lines and bars in them are made harmless."""
    lines = [list(titles), ["---"] * len(titles), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def cell(text: str) -> str:
    """Text on one line, without the character that would end the cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    """Text as it is typed, or nothing for nothing."""
    return f"`{text}`" if str(text) else ""


def paragraphs(text: str | None) -> str:
    """A docstring without its indentation, each paragraph on one line."""
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n"))
