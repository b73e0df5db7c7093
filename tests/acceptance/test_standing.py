"""A node that gets a notice while its engine is dead, and then dies too: its standing order, on real agents, images and CRIU."""

import contextlib
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeScene, Scene
from fleet import Fleet

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption, gone], reserve: 5s}
"""


def hurried(fleet: Fleet) -> None:
    """Nodes act for themselves after 3 s, and a silent one counts as dead 5 s and the hold after its deadline."""
    plain = fleet._write_engine

    def write() -> None:
        plain()
        text = fleet.engine_config.read_text().replace('hold = "20s"', 'hold = "2s"').replace('tick = "1s"', 'tick = "500ms"')
        fleet.engine_config.write_text(f'{text}[standing]\nsilence = "3s"\n')

    fleet._write_engine = write  # type: ignore[method-assign]


def kept(s: Scene, node: str, table: str) -> list[bytes]:
    """What the agent's journal has in a table, read past the agent."""
    path: Path = s.fleet.nodes[node].folder / "state" / "journal.db"
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        return [bytes(row[0]) for row in db.execute(f"SELECT body FROM {table}")]


def told(s: Scene) -> list[dict[str, Any]]:
    return [r for r in s.audit("outcome") if "standing" in r["body"]]


def killed(s: Scene) -> None:
    """An engine has given node-a its standing order, and is killed."""
    engine = s.fleet.start_engine()
    s.wait("the standing order", lambda: any(b"decode-0" in body and b"node-b" in body for body in kept(s, "node-a", "standing")))
    os.kill(engine.pid, signal.SIGKILL)
    engine.wait()


def test_engine_and_node_die_and_the_worker_comes_back_from_the_image_that_the_node_sent_away(scene: MakeScene) -> None:
    s = scene(policies={"save.yaml": SAVE}, prepare=hurried, prometheus=False)
    killed(s)
    s.fleet.nodes["node-a"].post_notice("preemption", "14s", "going")
    s.wait("the image", lambda: any(b'"state":"done"' in body for body in kept(s, "node-a", "stood")), 30)
    assert s.discovered() == 0, "no new requests came to it since"
    assert list((s.fleet.nodes["node-b"].folder / "state" / "images").glob("standing-*-preemption-*")), "on the other node"
    assert s.copies("decode-0") == 1, "it runs on until its node goes"
    s.fleet.nodes["node-a"].power_off()
    s.fleet.start_engine("engine-2.log")
    restored = s.outcome("restore", 60)
    assert (restored["status"], restored["to"], restored["policy"]) == ("succeeded", "node-b/0", "save")
    assert "standing-" in restored["why"]
    assert s.copies("decode-0") == 1
    s.stream(50)
    s.whole()
    assert s.fleet.shunter("audit", "verify", "--state", str(s.fleet.state)).returncode == 0


def test_an_engine_that_comes_back_in_time_moves_the_worker_and_the_audit_tells_who_did_what(scene: MakeScene) -> None:
    s = scene(policies={"save.yaml": SAVE}, prepare=hurried, prometheus=False)
    killed(s)
    s.fleet.nodes["node-a"].post_notice("preemption", "90s", "going")
    s.wait("the image", lambda: any(b'"state":"done"' in body for body in kept(s, "node-a", "stood")), 30)
    s.fleet.start_engine("engine-2.log")
    moved = s.outcome("move")
    assert (moved["status"], moved["to"]) == ("succeeded", "node-b/0")
    (record,) = told(s)
    assert "node-a did by itself what it was ordered ahead" in record["what"]
    assert (record["epoch"], record["body"]["standing"]["holder"], record["body"]["outcome"]["status"]) == (1, "node-b", "succeeded")
    assert s.copies("decode-0") == 1
    s.wait("it to be back in the router's sight", lambda: s.discovered() == 1)


def test_for_a_notice_without_a_deadline_an_image_is_in_safety_and_the_worker_serves_on(scene: MakeScene) -> None:
    s = scene(policies={"save.yaml": SAVE}, prepare=hurried, prometheus=False)
    killed(s)
    s.fleet.nodes["node-a"].post_notice("preemption", None, "going")
    s.wait("the image", lambda: any(b'"state":"done"' in body for body in kept(s, "node-a", "stood")), 30)
    assert list((s.fleet.nodes["node-b"].folder / "state" / "images").glob("standing-*-preemption-*")), "on the other node"
    assert (s.discovered(), s.copies("decode-0")) == (1, 1), "new requests come to it as before"
    s.stream(50)
    s.fleet.start_engine("engine-2.log")
    moved = s.outcome("move")
    assert (moved["status"], moved["to"]) == ("succeeded", "node-b/0")
    s.whole()
