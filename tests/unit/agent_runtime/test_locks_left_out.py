"""What an image says of the lock of its connections."""

from pathlib import Path

import pytest
from shunter_agent.images.criu_images_pb2 import InventoryEntry
from shunter_agent.runtime import locktables

KIND = (0x58313116).to_bytes(4, "little")
REST = b"\x08\x02\x10\x01" + b"\x6a\x24" + b"3c6fd6d7-1b50-4c14-9d3c-0f1f2d1f4a11"
"""Fields that this program doesn't know: the version, and CRIU's id of the dump."""


def inventory(body: bytes) -> bytes:
    return KIND + len(body).to_bytes(4, "little") + body


def test_only_the_lock_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "inventory.img").write_bytes(inventory(REST + b"\x58\x01"))
    locktables.leave_out(tmp_path)
    made = (tmp_path / "inventory.img").read_bytes()
    assert made[:4] == KIND
    assert int.from_bytes(made[4:8], "little") == len(made) - 8
    assert InventoryEntry.FromString(made[8:]).network_lock_method == 2
    assert sorted(made[8:]) == sorted(REST + b"\x58\x02")
    assert REST[4:] in made
    locktables.leave_out(tmp_path)
    assert (tmp_path / "inventory.img").read_bytes() == made


@pytest.mark.parametrize("data", [b"", KIND, inventory(REST)[:-1], inventory(b"\xff" * 9), b"x" * 4 + inventory(REST)[4:]])
def test_what_isnt_an_inventory_stays_as_it_is(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "inventory.img").write_bytes(data)
    locktables.leave_out(tmp_path)
    assert (tmp_path / "inventory.img").read_bytes() == data
