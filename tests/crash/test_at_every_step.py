"""Some of the points of `at_every_step`, in every run of the tests; the program tries them all."""

import os
from pathlib import Path

import pytest
from at_every_step import run, table
from points import AT_SOURCE, FAULTS, LATE, STEPS, Point, applies, chosen, points


def test_every_step_of_every_operation_has_its_points() -> None:
    found = points(0)
    assert len(found) == len(set(found)) > 700
    for kind, steps in STEPS.items():
        for step in steps:
            tried = {p.fault for p in found if (p.kind, p.step, p.late) == (kind, step, 0.0)}
            left_out = set(FAULTS) - tried
            assert left_out == {fault for fault in FAULTS if not applies(kind, step, fault)}
            assert left_out <= {"corrupt", "power"} or kind in ("restore", "drain"), (kind, step, left_out)
            assert {"engine", "two", "give-up", "clock"} <= tried
    assert not {p.fault for p in found if p.kind == "restore"} & set(AT_SOURCE)
    assert {p.fault for p in found if p.late} == set(LATE)
    assert {p.step for p in chosen("move,engine", 1, 0)} == {p.step for p in found if p.kind == "move"}
    whole = [p for seed in range(5) for p in chosen("", 5, seed)]
    assert {(p.kind, p.step, p.fault) for p in whole} == {(p.kind, p.step, p.fault) for p in found}, "together the seeds try all of them"


ALWAYS = (
    Point("move", "frozen", "corrupt"),
    Point("move", "fenced", "full"),
    Point("move", "committing", "engine"),
    Point("move", "released", "engine"),
    Point("move", "released", "destination"),
    Point("move", "prepared", "cut"),
    Point("park", "committing", "engine"),
    Point("restore", "committing", "engine"),
    Point("checkpoint", "dumped", "engine"),
    Point("move", "held", "two"),
    Point("move", "frozen", "give-up"),
    Point("move", "committing", "source-all"),
    Point("move", "held", "destination-all"),
    Point("move", "frozen", "power"),
    Point("urgent", "intended", "destination", 0.02),
    Point("urgent", "fenced", "engine"),
    Point("urgent", "released", "engine"),
    Point("urgent", "committing", "full"),
    Point("move", "released", "cut-long"),
)
"""In every run of the tests; with SHUNTER_CRASH=1 all of them, which takes about an hour."""


@pytest.mark.lab
@pytest.mark.timeout(7200)
def test_a_worker_and_its_stream_come_through(tmp_path: Path, criu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also by design: a byte changed in the image is found before the worker it belongs to is given up."""
    wanted = list(ALWAYS) + (points(1) if os.environ.get("SHUNTER_CRASH") == "1" else [])
    results, totals = run(tmp_path / "fleet", criu, wanted, lambda _line: None)
    with capsys.disabled():
        tried = f"{len(results)} of {len(points(0))} crash points on real processes, {totals.looks} looks for two copies"
        print(f"\n{tried}\n{table(results)}")
    assert [(str(r.point), r.wrong) for r in results if r.wrong] == []
    assert len(results) == len(wanted)
    assert totals.looks > 5 * len(wanted)
    corrupt, full = results[:2]
    assert (corrupt.ended, full.ended) == ("rolled-back", "rolled-back"), table(results)
