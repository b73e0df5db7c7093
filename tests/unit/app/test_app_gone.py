"""Declarations that a node is dead: a file that is none must neither end a node nor the engine."""

from pathlib import Path

import pytest
from shunter.app.gone import declare, declared, take_over


@pytest.mark.parametrize(
    "data", [b"", b'{"at": 1', b'{"at": 1, "detail": ' + b"[" * 200_000, b"[" * 200_000, b'{"at": 1' + b" " * 2**21 + b"}"]
)
def test_a_file_that_is_no_declaration_is_passed_over(tmp_path: Path, data: bytes) -> None:
    declare(tmp_path, "node-b", 7.0, "its power supply burnt: " + "x" * 10_000)
    (tmp_path / "gone" / "node-a.json").write_bytes(data)
    (tmp_path / "gone" / "node-c.json").mkdir()
    assert [(notice.node, notice.seen_at) for notice in declared(tmp_path)] == [("node-b", 7.0)]


def test_a_leader_elsewhere_hands_over_what_was_declared_there_and_what_was_taken_back(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    declare(there, "node-a", 10.0, "burnt down")
    declare(here, "node-b", 5.0, "taken back there since")
    declare(here, "node-c", 30.0, "declared here just now")
    take_over(here, declared(there), 20.0)
    assert [(n.node, n.seen_at, n.detail) for n in declared(here)] == [
        ("node-a", 10.0, "burnt down"),
        ("node-c", 30.0, "declared here just now"),
    ]
