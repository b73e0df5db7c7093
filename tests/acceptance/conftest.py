"""A small real fleet for acceptance tests: agents in namespaces, CRIU, Git, Prometheus, clients; all of it gone when the test ends."""

import contextlib
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fleet as fleets
import pytest
from fleet import ANY, HERE, Fleet, NodePlan, WorkerPlan, wait_for

TWO_NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)


class Scene:
    """A running fleet, and what a test asks of it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.report = fleet.folder / "clients.json"

    def stream(self, tokens: int, spread: str = "2") -> None:
        """Start clients, and wait until each has tokens."""
        arguments = [
            "--discovery",
            str(self.fleet.discovery),
            "--workers",
            str(spread.count(",") + 1),
            "--spread",
            spread,
            "--tokens",
            str(tokens),
        ]
        arguments += [
            "--weights-mb",
            str(self.fleet.weights_mb),
            "--control",
            str(self.fleet.folder / "rate"),
            "--report",
            str(self.report),
        ]
        (self.fleet.folder / "rate").write_text("0")
        self.fleet.run(sys.executable, str(HERE / "clients.py"), *arguments, log="clients.log")
        self.wait("streams to begin", lambda: self.streams() and all(s["got"] for s in self.streams()))

    def streams(self) -> list[dict[str, Any]]:
        return json.loads(self.report.read_text())["streams"] if self.report.exists() else []

    def whole(self, timeout: float = 60) -> list[dict[str, Any]]:
        """Wait for the streams to end, and see that each client got every token once, in order, and right."""
        self.wait("streams to end", lambda: all(s["ended"] for s in self.streams()), timeout)
        for s in self.streams():
            assert (s["got"], s["lost"], s["duplicated"], s["corrupt"], s["error"]) == (s["wanted"], 0, 0, 0, ""), s
        return self.streams()

    def audit(self, kind: str) -> list[dict[str, Any]]:
        listed = self.fleet.shunter(
            "audit", "list", "--state", str(self.fleet.state), "--kind", kind, "--limit", "0", "--json", check=False
        )
        return [json.loads(line)["record"] for line in listed.stdout.splitlines()]

    def outcomes(self, kind: str) -> list[dict[str, Any]]:
        bodies = [r["body"] for r in self.audit("outcome") if r["body"].get("kind") == kind and "outcome" in r["body"]]
        return [body | body["outcome"] | {"why": body["reason"]} for body in bodies]

    def outcome(self, kind: str, timeout: float = 60) -> dict[str, Any]:
        """The first outcome of an operation of this kind, once there is one."""
        self.wait(f"a {kind} to end", lambda: self.outcomes(kind), timeout)
        return self.outcomes(kind)[0]

    def step(self, worker: str, kind: str) -> tuple[str, bool]:
        """How far the newest operation of this kind on the worker has come, and whether it has ended: read past the engine."""
        path = self.fleet.state / "engine.db"
        if not path.exists():
            return "", False
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            query = "SELECT step, ended_at FROM operations WHERE worker=? AND id LIKE ? ORDER BY created_at DESC"
            row = db.execute(query, (worker, f"{kind}-%")).fetchone()
        return (row[0], row[1] is not None) if row else ("", False)

    def copies(self, worker: str) -> int:
        """Processes of this worker that exist on the machine."""
        found = 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            found += b"--id" in words and worker.encode() in words
        return found

    def wait(self, what: str, condition: Callable[[], object], timeout: float = 60) -> None:
        try:
            wait_for(what, condition, timeout)
        except fleets.SetUpError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def logs(self) -> str:
        """The ends of all logs, for a failed test's report."""
        parts = [f"--- {p.name}\n" + "\n".join(p.read_text(errors="replace").splitlines()[-25:]) for p in self.fleet.folder.glob("*.log")]
        parts += [f"--- {n.name}\n" + "\n".join(n.log.read_text().splitlines()[-25:]) for n in self.fleet.nodes.values() if n.log.exists()]
        return "\n".join(parts)

    def discovered(self) -> int:
        return len([p for p in (self.fleet.discovery / "v1" / "instances").iterdir() if p.name[0] != "."])


MakeScene = Callable[..., Scene]


@pytest.fixture
def scene(tmp_path: Path, criu: Path) -> Iterator[MakeScene]:
    """Build a fleet: of `nodes`, with `policies` (file name to YAML; None: the example's); `prepare(fleet)` comes before its agents."""
    made: list[Fleet] = []

    def make(
        nodes: tuple[NodePlan, ...] = TWO_NODES,
        policies: dict[str, str] | None = None,
        prepare: Callable[[Fleet], None] = lambda _fleet: None,
        prometheus: bool = True,
    ) -> Scene:
        fleet = Fleet(tmp_path / "fleet", criu=criu, weights_mb=16, nodes=nodes)
        fleet.__enter__()
        made.append(fleet)
        prepare(fleet)
        for node in fleet.nodes.values():
            node.write_config()
        fleet.start_nodes()
        fleet.make_repository(_folder(tmp_path / "policies", policies) if policies is not None else None)
        if prometheus:
            fleet.start_prometheus("500ms")
        return Scene(fleet)

    yield make
    for fleet in made:
        fleet.__exit__(None, None, None)
        shutil.rmtree(fleet.folder, ignore_errors=True)


def _folder(root: Path, files: dict[str, str]) -> Path:
    (root / "policies").mkdir(parents=True)
    for name, text in files.items():
        (root / "policies" / name).write_text(text)
    return root


def soon(condition: Callable[[], object], timeout: float) -> bool:
    """Whether the condition comes true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.002)
    return False
