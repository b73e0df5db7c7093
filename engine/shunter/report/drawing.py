"""A drawing of texts, rectangles and lines, in pixels from the top left; and its form as SVG, without scripts, fonts or links."""

from collections.abc import Sequence
from html import escape
from typing import Literal, TypeAlias

import msgspec

from shunter.report.words import safe

Anchor: TypeAlias = Literal["start", "middle", "end"]


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A line of text; `y` is its base line, `x` where its `anchor` is, `size` the height of its font."""

    x: float
    y: float
    said: str
    bold: bool = False
    anchor: Anchor = "start"
    size: int = 11


class Rect(msgspec.Struct, frozen=True, kw_only=True):
    """A filled rectangle, which tells its title to whoever points at it. `colour` is `#rrggbb`."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line through two or more points."""

    points: tuple[tuple[float, float], ...]
    colour: str


Shape: TypeAlias = Text | Rect | Line
INK = "#263238"
"""The colour of texts."""
STROKE = 1.2
"""How wide lines are."""


class Drawing:
    """Shapes, the ones drawn first behind the others."""

    def __init__(self) -> None:
        self.shapes: list[Shape] = []
        self.width = self.height = 0.0

    def text(self, x: float, y: float, said: str, *, bold: bool = False, anchor: Anchor = "start", size: int = 11) -> None:
        """Write a line. What a terminal might take for a command is left out of it."""
        self.shapes.append(Text(x=x, y=y, said=safe(said), bold=bold, anchor=anchor, size=size))

    def rect(self, x: float, y: float, width: float, height: float, colour: str, title: str = "") -> None:
        """Fill a rectangle, which is at least half a pixel wide."""
        self.shapes.append(Rect(x=x, y=y, width=max(width, 0.5), height=height, colour=colour, title=safe(title)))

    def line(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        """Draw a line through points; a single one is a dot."""
        if len(points) == 1:
            self.rect(points[0][0] - 1, points[0][1] - 1, 2, 2, colour)
        elif points:
            self.shapes.append(Line(points=tuple(points), colour=colour))


def svg(drawing: Drawing) -> str:
    """The drawing on white. Titles show where somebody points."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
        f' viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}"'
    )
    body = "\n".join(_element(shape) for shape in drawing.shapes)
    return f'{head} font-family="sans-serif">\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'


def _element(shape: Shape) -> str:
    match shape:
        case Text():
            weight = "bold" if shape.bold else "normal"
            return (
                f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" font-weight="{weight}"'
                f' text-anchor="{shape.anchor}" fill="{INK}">{escape(shape.said)}</text>'
            )
        case Rect():
            told = f"<title>{escape(shape.title)}</title>" if shape.title else ""
            place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" width="{shape.width:.1f}" height="{shape.height:.1f}"'
            return f'<rect {place} fill="{shape.colour}">{told}</rect>'
        case Line():
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
            return f'<polyline points="{path}" fill="none" stroke="{shape.colour}" stroke-width="{STROKE}"/>'
