"""What the store keeps at hand is what is on its disk, whatever is written, refused or lost."""

import contextlib
import sqlite3
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.act.store import Store
from shunter.model.errors import ShunterError, Stalled
from shunter.model.ids import Epoch, OperationId
from shunter.model.operation import Outcome, Status, Step
from test_store_and_lease import record


def on_disk(store: Store, since: float) -> list[object]:
    """As another process reads it."""
    other = Store(store.path, read_only=True)
    try:
        return [other.active(), other.recent(since), [other.get(OperationId(f"op-{n}")) for n in range(8)]]
    finally:
        other.close()


def at_hand(store: Store, since: float) -> list[object]:
    return [store.active(), store.recent(since), [store.get(OperationId(f"op-{n}")) for n in range(8)]]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_it_is_what_the_disk_has(seed: int) -> None:
    dice = Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "s.db")
        store._db.execute("PRAGMA synchronous=OFF")  # what is tested is not the disk
        for _ in range(25):
            change(store, dice)
            now = dice.choice((3610.0, 3640.0))
            store.state(now)
            since = now - 3600.0 - dice.choice((0.0, 5.0, 100.0))
            assert at_hand(store, since) == on_disk(store, since)
        store.close()


def change(store: Store, dice: Random) -> None:
    name, at = f"op-{dice.randrange(8)}", float(dice.randrange(60))
    changes = (
        lambda: store.insert([record(name, at=at), record(f"op-{dice.randrange(8)}", at=at)]),
        lambda: store.advance(OperationId(name), dice.choice([Step.PREPARED, Step.FROZEN]), at),
        lambda: store.finish(OperationId(name), Outcome(status=dice.choice([Status.SUCCEEDED, Status.FAILED]), at=at)),
        lambda: store.adopt(Epoch(dice.randrange(5))),
        lambda: store.rebase(Epoch(9), store.active()[1:], None) if dice.random() < 0.2 else None,
    )
    with contextlib.suppress(ShunterError):  # begun before, or not at all: nothing was changed
        dice.choice(changes)()


def test_what_hasnt_changed_is_the_very_same_from_one_time_to_the_next(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    store.insert([record("a"), record("b")])
    store.finish(OperationId("a"), Outcome(status=Status.SUCCEEDED, at=20.0))
    first, second = store.state(100.0), store.state(101.0)
    assert first.recent[0] is second.recent[0]
    assert first.active[0] is second.active[0]
    store.advance(OperationId("b"), Step.PREPARED, 21.0)
    assert store.active()[0].step is Step.PREPARED


class Torn(sqlite3.Connection):
    """Says of its next commit that it failed, though it happened."""

    torn = False

    def execute(self, *args: object) -> sqlite3.Cursor:  # type: ignore[override]
        done = super().execute(*args)  # type: ignore[arg-type]
        if args[0] == "COMMIT" and self.torn:
            self.torn = False
            raise sqlite3.OperationalError("disk I/O error")
        return done


def test_a_commit_that_was_said_to_have_failed_is_seen_if_it_happened(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    store.insert([record("a")])
    store.state(10.0)
    store._db.close()
    store._db = db = sqlite3.connect(store.path, isolation_level=None, factory=Torn)
    db.torn = True
    with pytest.raises(Stalled):
        store.insert([record("b")])
    assert [r.id for r in store.active()] == ["a", "b"], "whoever asks hears of it: a next engine would"
