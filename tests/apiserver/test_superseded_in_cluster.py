"""A newer commit of policies in the cluster against what an older one began: real engines, agents (which only pretend to move) and a real
API server that keeps policies and operations. Nobody plays Argo CD but `Git`, which applies and prunes as it does.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import APPLY, install, running
from control_plane import ControlPlane, until
from fleet import ANY, BIN, Fleet, NodePlan, WorkerPlan
from machine import with_argument
from shunter.cluster import kinds
from shunter.cluster.operation import collection
from test_engine import kubeconfig
from test_failover import LASTS_S, NAMESPACE, Engine, lease, operations, phases

NODES = (
    NodePlan("node-a", 11, (ANY, ANY), (WorkerPlan("decode-0", "decode", 0, 111), WorkerPlan("decode-1", "decode", 1, 112))),
    NodePlan("node-b", 12, (ANY,), ()),
    NodePlan("node-c", 13, (ANY,), ()),
)
FIRST, BAD, NEW = "a" * 40, "b" * 40, "c" * 40
TIDY = {"workers": {"graph": "tiny"}, "when": 'node.id == "node-a"', "for": "1s", "step": 2}
LATER = {**TIDY, "when": 'node.id == "node-a" && worker.id == "decode-1"'}
"""Doesn't want of TIDY's what begins first."""
NOTHING = {**TIDY, "when": 'node.id == "node-z"'}
REFUSED = {**TIDY, "when": "node.kvusage > 1"}
BOTH = {"workers": {"graph": "tiny"}, "maxConcurrent": 2}


class Git:
    """What Argo CD makes of one commit after the other."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._there: set[tuple[str, str]] = set()

    def sync(self, commit: str, **policies: dict[str, Any]) -> None:
        """Each rebalances, by its name; and their budget. What was there and isn't wanted is pruned at the end."""
        wanted = {("RebalancePolicy", name): spec for name, spec in policies.items()} | {("DisruptionBudget", "both"): BOTH}
        for (kind, name), spec in wanted.items():
            meta = {"name": name, "annotations": {"shunter.dev/commit": commit}}
            document = {"apiVersion": "shunter.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}
            self._plane.must("PATCH", f"{self._where(kind, name)}?fieldManager=argocd-controller&force=true", document, APPLY)
        for gone in self._there - wanted.keys():
            self._plane.must("DELETE", self._where(*gone))
        self._there = set(wanted)

    def told(self, name: str) -> tuple[str, str, int, str]:
        """Whether a policy is accepted and whether active, of which generation that is said, and the commit in force."""
        status = self._plane.must("GET", self._where("RebalancePolicy", name)).get("status", {})
        found = {one["type"]: one["status"] for one in status.get("conditions", ())}
        return found.get("Accepted", ""), found.get("Active", ""), status.get("observedGeneration", 0), status.get("commit", "")

    @staticmethod
    def _where(kind: str, name: str) -> str:
        return f"{kinds.collection(kind, NAMESPACE)}/{name}"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    for found in running(tmp_path_factory.mktemp("superseded")):
        install(found)
        found.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield found


@pytest.fixture
def git(plane: ControlPlane) -> Git:
    for where in (collection(NAMESPACE), *(kinds.collection(kind, NAMESPACE) for kind in ("RebalancePolicy", "DisruptionBudget"))):
        for one in plane.must("GET", where)["items"]:
            plane.must("DELETE", f"{where}/{one['metadata']['name']}")
    return Git(plane)


@pytest.fixture
def fleet(tmp_path: Path, plane: ControlPlane) -> Iterator[Fleet]:
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        text = made.engine_config.read_text()
        before, _, rest = text.partition("[policies]\n")
        of_cluster = f'[policies]\npoll = "2s"\n[policies.cluster]\nkubeconfig = "{kubeconfig(plane, made.folder)}"\n'
        made.engine_config.write_text(before + of_cluster + rest[rest.index("[prometheus]") :])
        made.start_nodes()
        yield made


class Scene:
    """One engine leads, and what it has begun stands still."""

    def __init__(self, fleet: Fleet, plane: ControlPlane, git: Git) -> None:
        self.fleet, self.plane, self.git = fleet, plane, git
        epoch = lease(plane).get("leaseTransitions", 0)
        self.engine = Engine(fleet, plane, "one")
        until(lambda: lease(plane).get("leaseTransitions", 0) > epoch, 20, "the first to lead")
        self.halted = ""
        """The node that the first move goes to; its agent stands still."""

    def begin(self) -> Any:
        """Let the first of two moves begin, and its destination's agent stand still from then on: the second waits for its node's dump."""
        pid = self.engine.process.pid

        def has_begun() -> list[Any]:
            """The engine runs for a hundredth of a second at a time, so that it doesn't get far beyond the intent before we see it."""
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)
            return operations(self.plane)

        try:
            (begun,) = until(has_begun, 60, "the first move to begin")
            self.halted = begun["spec"]["toSlot"].partition("/")[0]
            self._agent(signal.SIGSTOP)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert begun["spec"]["worker"] == "decode-0"
        assert begun.get("status", {}).get("step", "intended") in ("intended", "prepared", "fenced"), "nothing has been committed yet"
        return begun

    def order_what_waits(self) -> None:
        """As a person does: from then on it waits in a resource of its own."""
        file = self.fleet.folder / "plan.json"
        self.fleet.shunter("plan", "--config", str(self.engine.settings_file), "--out", str(file))
        assert [one["worker"] for one in json.loads(file.read_text())["plan"]["operations"]] == ["decode-1"]
        self.fleet.run(str(BIN / "shunter"), "apply", str(file), "--config", str(self.engine.settings_file), log="apply.log")
        until(lambda: any(waits(one) for one in operations(self.plane)), 30, "it to wait in the cluster")
        assert self.ended() == {"decode-0": ("tidy", "active"), "decode-1": ("tidy", "active")}

    def go_on(self) -> None:
        self._agent(signal.SIGCONT)

    def fail_over(self, ends: signal.Signals, meanwhile: Callable[[], object]) -> Engine:
        """Have another lead after this one died or stands still; `meanwhile`, nobody does. Returns the other once it leads."""
        second, epoch = Engine(self.fleet, self.plane, "two"), lease(self.plane)["leaseTransitions"]
        until(lambda: second.said("SH554"), 20, "the second to stand by")
        self.engine.process.send_signal(ends)
        meanwhile()
        assert lease(self.plane)["leaseTransitions"] == epoch, "nobody leads yet"
        until(lambda: lease(self.plane)["leaseTransitions"] > epoch, 4 * LASTS_S, "the second to lead")
        return second

    def _agent(self, what: signal.Signals) -> None:
        agent = self.fleet.nodes[self.halted].agent
        assert agent is not None
        os.kill(agent.pid, what)

    def planned(self, worker: str) -> bool:
        """Whether this engine has offered a move of it in any plan."""
        return any(worker in json.dumps(one["body"]) for one in self.audited("plan"))

    def audited(self, kind: str, name: str = "one") -> list[dict[str, Any]]:
        state = str(self.fleet.folder / name / "state")
        listed = self.fleet.shunter("audit", "list", "--state", state, "--kind", kind, "--limit", "0", "--json").stdout
        return [json.loads(line)["record"] for line in listed.splitlines()]

    def places(self, engine: Engine) -> dict[str, tuple[str, str]]:
        """Where each worker is, and its state. Each is one process."""
        seen = json.loads(self.fleet.shunter("snapshot", "--config", str(engine.settings_file), "-").stdout)
        ours = set(with_argument(str(self.fleet.discovery)))
        for worker in seen["fleet"]["workers"]:
            assert len(ours.intersection(with_argument(worker["id"]))) == 1, f"{worker['id']} runs once"
        return {worker["id"]: (worker["slot"], worker["state"]) for worker in seen["fleet"]["workers"]}

    def ended(self) -> dict[str, tuple[str, str]]:
        """Of each worker's operation: its policy, and what became of it."""
        return {
            one["spec"]["worker"]: (one["spec"]["policy"], one.get("status", {}).get("phase", "active")) for one in operations(self.plane)
        }


@pytest.fixture
def scene(fleet: Fleet, plane: ControlPlane, git: Git) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(**policies: dict[str, Any]) -> Scene:
        git.sync(FIRST, **policies)
        made.append(Scene(fleet, plane, git))
        return made[-1]

    yield make
    for one in made:
        one.engine.process.send_signal(signal.SIGCONT)
        if one.halted:
            one.go_on()


def waits(operation: Any) -> bool:
    found: bool = operation.get("status", {}).get("waits", operation["spec"].get("waits", False))
    return found


def given_up(plane: ControlPlane, worker: str) -> str:
    """Why its operation is given up; empty: it isn't."""
    (one,) = [one for one in operations(plane) if one["spec"]["worker"] == worker]
    found: str = one.get("status", {}).get("cancelled", {}).get("what", "")
    return found


UNDER_WAY = {"active", "unknown"}
"""A leader that takes over doesn't know how far it came, until the agents' journals say so."""


def under_way(plane: ControlPlane) -> bool:
    """The one operation that there is."""
    return len(phases(plane)) == 1 and not over(plane)


def over(plane: ControlPlane) -> bool:
    found = phases(plane)
    return bool(found) and UNDER_WAY.isdisjoint(found)


TAKEN = f"commit {NEW[:12]} has no policy tidy"


def test_ac34_what_waits_is_never_begun_once_its_policy_was_pruned(scene: Callable[..., Scene]) -> None:
    s = scene(tidy=TIDY)
    begun = s.begin()
    assert s.planned("decode-1"), "it waits"
    s.git.sync(NEW, other=NOTHING)
    until(lambda: s.git.told("other") == ("True", "True", 1, NEW), 15, "the newer commit to be in force")
    until(lambda: TAKEN in given_up(s.plane, "decode-0"), 15, "what is under way to be given up")
    assert under_way(s.plane), "the newer commit waited for nothing"
    s.go_on()
    until(lambda: over(s.plane), 60, "the first to end")
    assert s.places(s.engine) == {"decode-0": ("node-a/0", "running"), "decode-1": ("node-a/1", "running")}
    assert s.ended() == {"decode-0": ("tidy", "rolled-back")}
    assert [one["metadata"]["name"] for one in operations(s.plane)] == [begun["metadata"]["name"]]
    assert {one["subject"] for one in s.audited("intent")} == {"decode-0"}, "nobody ever meant to begin the second one"


def test_ac34_what_a_policy_that_was_changed_does_not_want_is_never_begun(scene: Callable[..., Scene]) -> None:
    """What it had begun comes to an end of its own, as half a change helps nobody: there, or back where its destination was silent for too
    long.
    """
    s = scene(tidy=TIDY)
    begun = s.begin()["spec"]
    assert s.planned("decode-1"), "it waits"
    s.git.sync(NEW, tidy=NOTHING)
    until(lambda: s.git.told("tidy") == ("True", "True", 2, NEW), 15, "the newer commit to be in force")
    assert under_way(s.plane), "it waited for nothing"
    s.go_on()
    until(lambda: over(s.plane), 60, "the first to end")
    assert given_up(s.plane, "decode-0") == ""
    ((worker, (policy, phase)),) = s.ended().items()
    assert (worker, policy) == ("decode-0", "tidy")
    home = {"succeeded": begun["toSlot"], "rolled-back": begun["fromSlot"]}[phase]
    assert s.places(s.engine) == {"decode-0": (home, "running"), "decode-1": ("node-a/1", "running")}
    assert len(operations(s.plane)) == 1
    assert {one["subject"] for one in s.audited("intent")} == {"decode-0"}


def test_ac34_what_was_ordered_and_waits_ends_as_superseded(scene: Callable[..., Scene]) -> None:
    s = scene(tidy=TIDY)
    s.begin()
    s.order_what_waits()
    s.git.sync(NEW, other=NOTHING)
    until(lambda: s.git.told("other") == ("True", "True", 1, NEW), 15, "the newer commit to be in force")
    until(lambda: s.ended()["decode-1"] == ("tidy", "superseded"), 15, "what waits to be dropped")
    until(lambda: TAKEN in given_up(s.plane, "decode-0"), 15, "what is under way to be given up")
    assert s.ended()["decode-0"] in {("tidy", phase) for phase in UNDER_WAY}, "neither waited for the other"
    (dropped,) = [one for one in operations(s.plane) if one["spec"]["worker"] == "decode-1"]
    assert [(c["type"], c["status"], c["reason"]) for c in dropped["status"]["conditions"]] == [("Ended", "True", "Superseded")]
    assert TAKEN in dropped["status"]["outcome"]["reason"]
    s.go_on()
    until(lambda: over(s.plane), 60, "the first to end")
    assert s.places(s.engine) == {"decode-0": ("node-a/0", "running"), "decode-1": ("node-a/1", "running")}
    assert s.ended() == {"decode-0": ("tidy", "rolled-back"), "decode-1": ("tidy", "superseded")}


@pytest.mark.parametrize("ends", [signal.SIGKILL, signal.SIGSTOP], ids=["died", "stood still"])
def test_ac34_the_next_leader_goes_by_the_newer_commit(scene: Callable[..., Scene], ends: signal.Signals) -> None:
    """It comes while nobody leads. What the former only planned is begun by neither, be it that the former comes to again."""
    s = scene(tidy=TIDY)
    s.begin()
    assert s.planned("decode-1"), "it waits"
    second = s.fail_over(ends, lambda: s.git.sync(NEW, other=NOTHING))
    until(lambda: s.git.told("other") == ("True", "True", 1, NEW), 30, "the newer commit to be in force")
    until(lambda: TAKEN in given_up(s.plane, "decode-0"), 15, "what is under way to be given up")
    assert under_way(s.plane), "the newer commit waited for nothing"
    s.engine.process.send_signal(signal.SIGCONT)
    until(lambda: s.engine.process.poll() is not None, 15, "the former leader to end")
    s.go_on()
    until(lambda: over(s.plane), 60, "the first to end")
    assert s.places(second) == {"decode-0": ("node-a/0", "running"), "decode-1": ("node-a/1", "running")}
    assert s.ended() == {"decode-0": ("tidy", "rolled-back")}
    assert s.audited("intent", "two") == []


def test_ac34_the_next_leader_drops_what_was_ordered_and_waits(scene: Callable[..., Scene]) -> None:
    s = scene(tidy=TIDY)
    s.begin()
    s.order_what_waits()
    second = s.fail_over(signal.SIGKILL, lambda: s.git.sync(NEW, other=NOTHING))
    until(lambda: s.ended()["decode-1"] == ("tidy", "superseded"), 30, "what waits to be dropped")
    until(lambda: s.git.told("other") == ("True", "True", 1, NEW), 30, "the newer commit to be in force")
    assert s.ended()["decode-0"] in {("tidy", phase) for phase in UNDER_WAY}, "neither waited for the other"
    s.go_on()
    until(lambda: over(s.plane), 60, "the first to end")
    assert s.places(second) == {"decode-0": ("node-a/0", "running"), "decode-1": ("node-a/1", "running")}
    assert s.ended() == {"decode-0": ("tidy", "rolled-back"), "decode-1": ("tidy", "superseded")}


def test_ac34_a_fix_is_in_force_whatever_was_tried_of_the_commit_that_it_mends(scene: Callable[..., Scene]) -> None:
    """A refused policy leaves everything as it was, as often as it is applied; the fix is looked at as it comes, and acted on."""
    s = scene(tidy=TIDY)
    s.begin()
    for _ in range(3):
        s.git.sync(BAD, tidy=REFUSED)
        until(lambda: s.git.told("tidy") == ("False", "True", 2, FIRST), 15, "the bad commit to be looked at")
    assert given_up(s.plane, "decode-0") == "", "what is refused takes nothing back"
    assert s.planned("decode-1")
    s.git.sync(BAD, tidy=REFUSED)
    s.git.sync(NEW, mended=LATER)
    until(lambda: s.git.told("mended") == ("True", "True", 1, NEW), 15, "the fix to be in force")
    until(lambda: TAKEN in given_up(s.plane, "decode-0"), 15, "what it doesn't want to be given up")
    assert not over(s.plane), "the fix waited for nothing"
    s.go_on()
    ends = {"decode-0": ("tidy", "rolled-back"), "decode-1": ("mended", "succeeded")}
    until(lambda: s.ended() == ends and over(s.plane), 60, "both to end")
    places = s.places(s.engine)
    assert (places["decode-0"], places["decode-1"][1]) == (("node-a/0", "running"), "running")
    assert not places["decode-1"][0].startswith("node-a")
