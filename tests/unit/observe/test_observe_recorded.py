"""Snapshots as files."""

import stat
from pathlib import Path

import pytest
from shunter.model.errors import Rejected, Retry
from shunter.model.ids import NodeId
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import Fleet, Node, Samples, Snapshot
from shunter.observe.recorded import load, save

SNAPSHOT = Snapshot(
    at=12.5,
    fleet=Fleet(nodes=(Node(id=NodeId("n"), slots=()),)),
    samples=Samples(
        workers={
            "w": {
                "b": Known(value=1.0, unit="", at=1.0, query="q"),
                "a": Missing(reason="none"),
                "c": Stale(value=1.0, age=2.0, max_age=1.0, query="q"),
            }
        },
        policies={"p": {"m": {"": Missing(reason="é")}}},
        pools={
            "g/decode": {"desired": Known(value=3.0, unit="workers", at=1.0, query="q")},
            "g/prefill": {"desired": Missing(reason="no")},
        },
    ),
)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    save(SNAPSHOT, path)
    again = load(path)
    assert again == SNAPSHOT
    assert again.id == SNAPSHOT.id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_one_that_was_recorded_before_pools_had_samples_is_read(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text('{"at": 1.0, "fleet": {}, "samples": {"workers": {}, "policies": {}}}')
    assert load(path).samples.pools == {}


def test_equal_snapshots_make_equal_files(tmp_path: Path) -> None:
    save(SNAPSHOT, tmp_path / "a")
    save(load(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_failed_save_leaves_the_old_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "snapshot.json"
    target.mkdir()
    with pytest.raises(Retry) as caught:
        save(SNAPSHOT, target)
    assert caught.value.problem.code == "SH320"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(Retry):
        save(SNAPSHOT, tmp_path / "nowhere" / "snapshot.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("[]", "object"),
        ('{"at": 1}', "fleet"),
        ('{"at": "1", "fleet": {}}', "$.at"),
        ('{"at": 1, "fleet": {"nodes": [{"id": 3}]}}', "$.fleet.nodes[0].id"),
        ('{"at": 1, "fleet": {}, "samples": {"workers": {"w": {"a": {"is": "guess"}}}}}', "guess"),
        ('{"at": NaN, "fleet": {}}', "malformed"),
    ],
)
def test_what_is_no_snapshot_is_told_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(text)
    with pytest.raises(Rejected) as caught:
        load(path)
    assert caught.value.problem.code == "SH322"
    assert words in caught.value.problem.what
    assert caught.value.problem.subject == str(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(Rejected) as caught:
            load(path)
        assert caught.value.problem.code == "SH321"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    path.write_bytes(b'{"at": 1, "fleet": {}, "notices": [{"id": "\xff"}]}')
    with pytest.raises(Rejected) as caught:
        load(path)
    assert caught.value.problem.code == "SH322"
