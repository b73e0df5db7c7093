"""The picture as PNG: a real one, with the pools' lines where they should be."""

import io
from pathlib import Path

import pytest
from PIL import Image
from shunter.backtest.run import Run
from shunter.cli.main import execute
from shunter.lang.cel import CelRules
from shunter.model.backtest import Backtest
from shunter.report.drawing import svg
from shunter.report.picture import png
from shunter.report.timeline import timeline
from test_backtest_run import BEGUN, NOW, PROFILE, SAVE, STEP, notice, policies, samples

STEPS = 40
WAITING, USAGE, MOVED = (0xD8, 0x1B, 0x60), (0x00, 0xAC, 0xC1), (0xEF, 0x6C, 0x00)
LEFT, WIDTH = 240, 960
"""Where the axis of time begins, and how long it is."""


@pytest.fixture(name="half", scope="module")
def half_() -> Backtest:
    """KV usage is a quarter in the first half and three quarters in the second; nothing waits, then nobody knows, then a queue stands."""
    run = Run(policies(SAVE), BEGUN, (notice(at=NOW + 600),), CelRules(), PROFILE, begin=NOW, end=NOW + (STEPS - 1) * STEP, step=STEP)
    for n in range(STEPS):
        waiting = 0.0 if n < 10 else None if n < 20 else 8.0
        run.step(NOW + n * STEP, samples(NOW + n * STEP, kvUsage=0.25 if n < STEPS / 2 else 0.75, waiting=waiting))
    return run.result()


@pytest.fixture(name="image", scope="module")
def image_(half: Backtest) -> Image.Image:
    image = Image.open(io.BytesIO(png(timeline(half))))
    image.load()
    assert image.format == "PNG"
    return image.convert("RGB")


def rows_of(image: Image.Image, at: float, colour: tuple[int, int, int], top: int, bottom: int) -> list[float]:
    """How far down the colour is between two heights of the drawing, where the share `at` of the time is over: 0 at the top, 1 below."""
    x = round(2 * (LEFT + at * WIDTH))
    pixels = [image.getpixel((x, y)) for y in range(2 * top, 2 * bottom)]
    return [n / len(pixels) for n, pixel in enumerate(pixels) if pixel == colour]


def test_it_is_as_large_as_the_drawing_at_twice_the_scale(half: Backtest, image: Image.Image) -> None:
    drawn = timeline(half)
    assert image.size == (round(2 * drawn.width), round(2 * drawn.height))
    assert f'width="{drawn.width:.0f}" height="{drawn.height:.0f}"' in svg(drawn)


@pytest.mark.parametrize(("pool", "top"), [("g/decode", 24), ("g/prefill", 80)])
@pytest.mark.parametrize(("at", "usage"), [(0.2, 0.25), (0.8, 0.75)])
def test_usage_is_drawn_at_its_height(image: Image.Image, pool: str, top: int, at: float, usage: float) -> None:
    """A pool is 54 pixels high, with a margin of 4 above and below; a share of 1 is at its top."""
    found = rows_of(image, at, USAGE, top + 4, top + 50)
    assert found, f"{pool} has a line"
    assert all(abs(row - (1 - usage)) < 0.04 for row in found), found


def test_a_line_breaks_where_its_value_is_not_known(image: Image.Image) -> None:
    beginning, unknown, queue = (rows_of(image, at, WAITING, 28, 77) for at in (0.1, 0.37, 0.9))
    assert beginning
    assert min(beginning) > 0.9, "nothing waits: the line runs along the bottom"
    assert unknown == []
    assert queue
    assert max(queue) < 0.3, "the most that ever waited is near the top"


def test_two_lines_that_do_not_change_do_not_hide_each_other(image: Image.Image) -> None:
    """Workers that run and requests that wait, each at the most that it ever is."""
    both = [rows_of(image, 0.9, colour, 28, 77) for colour in ((0x37, 0x47, 0x4F), WAITING)]
    assert all(both), both
    assert max(both[0]) < min(both[1])


def test_operations_are_marked_when_they_began(half: Backtest, image: Image.Image) -> None:
    (began,) = {a.at for a in half.acts}
    right = 2 * (LEFT + WIDTH)
    at = [x for x in range(2 * LEFT, right) if any(image.getpixel((x, y)) == MOVED for y in range(270, 370))]
    where = 2 * (LEFT + (began - half.begin) / (half.end - half.begin) * WIDTH)
    assert any(abs(x - where) <= 2 for x in at)
    assert all(abs(x - where) <= 2 or x > where + 100 for x in at), "the legend shows the colour too, further to the right"


def test_all_letters_are_drawn(image: Image.Image) -> None:
    """The head line: dark pixels from its left to its right end."""
    dark = [x for x in range(1200) for y in range(6, 30) if sum(image.getpixel((x, y))) < 300]  # type: ignore[arg-type]
    assert min(dark) < 30
    assert max(dark) > 500


def test_without_pillow_it_is_said_how_to_have_it_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert execute(["backtest", "--config", "none.toml", "--timeline", "week.png"]) == 1
    assert "SH968" in (said := capsys.readouterr().err)
    assert "shunter[pictures]" in said


def test_another_kind_of_picture_is_refused_before_anything_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["backtest", "--config", str(tmp_path / "none.toml"), "--timeline", "week.jpg"]) == 1
    assert "SH967" in capsys.readouterr().err
