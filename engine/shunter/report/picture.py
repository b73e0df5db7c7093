"""A drawing as PNG, by Pillow: for reviews, chats and slides, where an SVG isn't shown. The letters are those that come with Pillow."""

import importlib.util
import io
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from shunter.report.drawing import INK, STROKE, Drawing, Line, Rect, Shape, Text

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

SCALE: Final = 2
"""Pixels of the picture for each of the drawing's: small letters are still read where it is shown on a good screen."""
_MOST: Final = 20_000
"""A picture isn't made higher than that, in pixels."""
_ANCHORS: Final = {"start": "ls", "middle": "ms", "end": "rs"}


def available() -> bool:
    """Whether Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def png(drawing: Drawing) -> bytes:
    """The drawing on white, SCALE times as large. Titles aren't in it. Raises ImportError where Pillow isn't installed."""
    from PIL import Image, ImageDraw

    size = round(drawing.width * SCALE), min(_MOST, round(drawing.height * SCALE))
    image = Image.new("RGB", size, "white")
    on = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        _draw(on, shape)
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=True)
    return out.getvalue()


@lru_cache
def _font(size: int) -> "FreeTypeFont":
    from PIL import ImageFont

    font = ImageFont.load_default(size=size * SCALE)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow's own builds have FreeType"
    return font


def _draw(on: "ImageDraw", shape: Shape) -> None:
    match shape:
        case Text():
            # the letters that come with Pillow have one weight
            width, anchor = 0.5 if shape.bold else 0, _ANCHORS[shape.anchor]
            on.text((shape.x * SCALE, shape.y * SCALE), shape.said, INK, _font(shape.size), anchor, stroke_width=width)
        case Rect():
            left, top = round(shape.x * SCALE), round(shape.y * SCALE)
            right, bottom = round((shape.x + shape.width) * SCALE), round((shape.y + shape.height) * SCALE)
            # a pixel belongs to it up to its far edge, which isn't part of it
            on.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), fill=shape.colour)
        case Line():
            points = [(x * SCALE, y * SCALE) for x, y in shape.points]
            on.line(points, fill=shape.colour, width=round(STROKE * SCALE), joint="curve")
