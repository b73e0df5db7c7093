"""Previews and `shunter apply` with real agents, a real repository and the command line.

The pretend runtime moves the worker, so no root is needed; the last test does it with CRIU, while clients stream.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from conftest import MakeScene
from fleet import ANY, BIN, Fleet, NodePlan, WorkerPlan
from machine import wait_for
from shunter.act.store import Store
from shunter.app import exact
from shunter.app.engine import Engine
from shunter.app.inbox import Request, Ticket
from shunter.app.policies import PolicyFeed
from shunter.app.settings import load
from shunter.app.sources import source_of
from shunter.model.errors import Stalled
from shunter.model.operation import OperationRecord, Status, Step

NODES = (
    NodePlan("node-a", 11, (ANY,), (WorkerPlan("decode-0", "decode", 0, 111),)),
    NodePlan("node-b", 12, (ANY,), ()),
)
SAVE = """\
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "source" / "policies").mkdir(parents=True)
    (tmp_path / "source" / "policies" / "save.yaml").write_text(SAVE)
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=NODES) as made:
        made.start_nodes()
        made.make_repository(tmp_path / "source")
        made.nodes["node-a"].post_notice("preemption", "300s", "n1")
        yield made


def planned(fleet: Fleet, name: str = "plan.json", *more: str) -> Path:
    """An exact plan that has something to do."""
    file = fleet.folder / name

    def made() -> bool:
        fleet.shunter("plan", "--config", str(fleet.engine_config), "--out", str(file), *more)
        return bool(json.loads(file.read_text())["plan"]["operations"])

    wait_for("the notice to be in the plan", made, 30)
    return file


def apply(fleet: Fleet, file: Path) -> "subprocess.CompletedProcess[str]":
    return fleet.shunter("apply", str(file), "--config", str(fleet.engine_config), check=False)


def start(fleet: Fleet, file: Path) -> "subprocess.Popen[str]":
    command = [str(BIN / "shunter"), "apply", str(file), "--config", str(fleet.engine_config)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def operations(fleet: Fleet) -> list[OperationRecord]:
    with closing(Store(fleet.state / "engine.db", read_only=True)) as store:
        return [*store.active(), *store.recent(0.0)]


def audited(fleet: Fleet, kind: str) -> list[dict]:
    listed = fleet.shunter("audit", "list", "--state", str(fleet.state), "--kind", kind, "--limit", "0", "--json")
    return [json.loads(line)["record"] for line in listed.stdout.splitlines()]


@contextmanager
def leading(fleet: Fleet) -> Iterator[None]:
    """An engine that leads, and decides nothing of its own."""
    settings = load(fleet.engine_config)
    loop, stop, ended = asyncio.new_event_loop(), asyncio.Event(), []

    def lead() -> None:
        feed = PolicyFeed(source_of(settings.policies, settings.state / "policies.git"), time.time)
        try:
            loop.run_until_complete(Engine(settings, feed, decides=False).run(stop))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=lead)
    thread.start()
    try:
        wait_for("the engine to lead", lambda: ended or ((fleet.state / "audit.db").exists() and audited(fleet, "engine")), 30)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
    assert ended == []


def test_ac41_a_plan_is_carried_out_once_and_never_again(fleet: Fleet) -> None:
    file = planned(fleet)
    done = apply(fleet, file)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("plan ")
    assert [line.split(": ")[1].split(" (+")[0] for line in lines[1:3]] == ["intended", "prepared"]
    assert any(": frozen (+" in line for line in lines)
    assert "[pretend] move decode-0 from node-a/0 to node-b/0: done" in lines[-2], "what only pretends says so"
    assert lines[-1] == "1 succeeded"
    (record,) = operations(fleet)
    assert (record.status, record.plan) == (Status.SUCCEEDED, json.loads(file.read_text())["digest"])
    decided, told = audited(fleet, "plan")
    assert [(o["id"], decided["plan"]) for o in decided["body"]["operations"]] == [(record.id, record.plan)]
    assert (told["what"], told["subject"]) == ("applied: 1 operation", record.plan)
    assert told["body"]["by"].partition("@")[0]
    intents = audited(fleet, "intent")
    assert [i["operation"] for i in intents] == [record.id]

    replayed = fleet.shunter("audit", "replay", record.id, "--state", str(fleet.state))
    assert "same" in replayed.stdout
    shown = " ".join(fleet.shunter("audit", "show", record.id, "--state", str(fleet.state)).stdout.split())
    assert "The policy save (save.yaml:3:18), as of commit " in shown
    assert "It had found: node-a is preempted at" in shown
    assert "makes that decision again" in shown

    again = apply(fleet, file)
    assert (again.returncode, again.stderr.split()[1], again.stderr.splitlines()[-1]) == (1, "SH960", "nothing was done")
    assert len(operations(fleet)) == 1


def test_ac41_applied_twice_at_once_it_is_carried_out_once(fleet: Fleet) -> None:
    file = planned(fleet)
    both = [start(fleet, file) for _ in range(2)]
    said = [one.communicate(timeout=90) for one in both]
    assert sorted(one.returncode for one in both) == [0, 1], "\n".join(text for both_texts in said for text in both_texts)
    refused = said[[one.returncode for one in both].index(1)][1]
    assert "SH960" in refused
    assert [r.status for r in operations(fleet)] == [Status.SUCCEEDED]


def test_ac41_one_that_is_refused_sees_through_what_it_has_begun_for_another(fleet: Fleet) -> None:
    """Of two that order one plan the second may be the one that leads: its own order is refused once the other's is under way."""
    file = planned(fleet)
    other = Ticket.submit(fleet.state, Request(by="another", at=time.time() - 1.0, exact=exact.load(file)))
    refused = apply(fleet, file)
    assert (refused.returncode, refused.stderr.split("error: ")[1].split()[0]) == (1, "SH960")
    assert [r.status for r in operations(fleet)] == [Status.SUCCEEDED], "nobody is left to go on with it"
    answer = other.answer()
    assert answer is not None
    assert answer.problems == ()
    other.forget()


def test_the_engine_that_leads_carries_it_out(fleet: Fleet) -> None:
    with leading(fleet):
        file = planned(fleet)
        epochs = len(audited(fleet, "engine"))
        done = apply(fleet, file)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "1 succeeded"
        assert len(audited(fleet, "engine")) == epochs, "nobody else has led"
        assert apply(fleet, file).returncode == 1


def test_ac41_ac43_one_that_is_killed_in_between_is_finished_by_the_next_leader_and_not_begun_again(fleet: Fleet) -> None:
    file = planned(fleet)
    process = start(fleet, file)
    assert process.stdout is not None
    while "prepared" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    process.kill()
    process.communicate()
    again = apply(fleet, file)
    assert (again.returncode, again.stderr.split()[1]) == (1, "SH960")
    (record,) = operations(fleet)
    if record.outcome is None:
        with leading(fleet):
            wait_for("the operation to end", lambda: operations(fleet)[0].outcome is not None, 60)
    (record,) = operations(fleet)
    assert record.status in (Status.SUCCEEDED, Status.ROLLED_BACK)
    assert [step for step, _ in record.history].count(Step.PREPARED) == 1


def test_an_engine_that_starts_meanwhile_is_made_way_for_and_goes_on_with_the_plan(fleet: Fleet) -> None:
    file = planned(fleet)
    process = start(fleet, file)
    assert process.stdout is not None
    while "intended" not in (line := process.stdout.readline()):
        assert line, process.communicate()
    engine = fleet.start_engine()
    said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert [r.status for r in operations(fleet)] == [Status.SUCCEEDED]
    wait_for("the engine to lead", lambda: audited(fleet, "engine")[-1]["what"].startswith("leads at epoch"), 60)
    assert engine.poll() is None, (fleet.folder / "engine.log").read_text()


def test_an_interrupt_before_anybody_looked_takes_it_back(fleet: Fleet) -> None:
    """A lock that somebody holds who doesn't look: the plan stays in the inbox until it is withdrawn."""
    file = planned(fleet)
    fleet.state.mkdir(exist_ok=True)
    holder = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600); fcntl.flock(fd, fcntl.LOCK_EX);"
        " print('held', flush=True); sys.stdin.read()"
    )
    lock = subprocess.Popen(
        [sys.executable, "-c", holder, str(fleet.state / "engine.lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert lock.stdout is not None
    assert lock.stdout.readline() == "held\n"
    process = start(fleet, file)
    wait_for("the plan to be handed over", lambda: any((fleet.state / "apply").glob("*.json")), 30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    lock.communicate()
    assert (process.returncode, err.strip()) == (130, "taken back: nothing was done")
    assert list((fleet.state / "apply").iterdir()) == []
    done = apply(fleet, file)
    assert done.returncode == 0, done.stderr


def refused(fleet: Fleet, file: Path) -> str:
    done = apply(fleet, file)
    assert done.returncode == 1, done.stdout
    assert done.stderr.splitlines()[-1] == "nothing was done"
    assert not (fleet.state / "engine.db").exists() or operations(fleet) == []
    return done.stderr


def test_ac49_another_commit_in_force_voids_the_plan(fleet: Fleet) -> None:
    file = planned(fleet)
    made_at = json.loads(file.read_text())["plan"]["commit"]
    (fleet.folder / "policies-work" / "policies" / "README.md").write_text("nothing that changes a policy\n")
    now_at = fleet.commit("Say something")
    said = refused(fleet, file)
    assert "SH955" in said
    assert f"the plan was made at {made_at[:12]}, and the policies at {now_at[:12]} are in force" in said
    (told,) = audited(fleet, "plan")
    assert told["what"].startswith("refused: the plan was made at")


def test_a_node_that_is_silent_now_voids_the_plan(fleet: Fleet) -> None:
    file = planned(fleet)
    fleet.nodes["node-b"].power_off()
    said = refused(fleet, file)
    assert "SH957" in said
    assert "there is no slot node-b/0 any more" in said or "doesn't answer" in said


def test_a_plan_that_was_edited_or_has_expired_is_refused(fleet: Fleet) -> None:
    file = planned(fleet, "short.json", "--expires", "1s")
    edited = fleet.folder / "edited.json"
    edited.write_text(file.read_text().replace("node-b/0", "node-b/1"))
    done = apply(fleet, edited)
    assert (done.returncode, done.stderr.split()[1]) == (1, "SH953")
    expires = json.loads(file.read_text())["expires_at"]
    wait_for("the plan to expire", lambda: time.time() >= expires, 30)
    assert "SH954" in refused(fleet, file)


def test_what_cannot_run_says_so(fleet: Fleet) -> None:
    file = planned(fleet)
    os.rename(fleet.folder / "certs", fleet.folder / "elsewhere")
    done = apply(fleet, file)
    assert done.returncode == 1
    assert "SH509" in done.stderr
    assert list((fleet.state / "apply").iterdir()) == [], "nothing is left that would be carried out later, unseen"


def test_ac46_every_command_decides_the_same_on_the_same_snapshot(fleet: Fleet) -> None:
    planned(fleet)
    config, recorded = ["--config", str(fleet.engine_config)], str(fleet.folder / "recorded.json")
    fleet.shunter("snapshot", recorded, *config)
    one, other = (fleet.shunter("plan", *config, "--snapshot", recorded, "--format", "json").stdout for _ in range(2))
    assert one == other
    plan = json.loads(one)
    assert [o["kind"] for o in plan["operations"]] == ["move"]
    directory = fleet.shunter(
        "plan", "--snapshot", recorded, "--policies", str(fleet.folder / "policies-work" / "policies"), "--format", "json"
    )
    assert json.loads(directory.stdout)["operations"] == plan["operations"], "the same policies from elsewhere"
    again = fleet.shunter("diff", "main", "main", *config, "--snapshot", recorded, "--format", "json")
    assert json.loads(again.stdout)["snapshots"][0]["snapshot"] == plan["snapshot"]
    assert not json.loads(again.stdout)["changes"]
    live = json.loads(fleet.shunter("plan", *config, "--format", "json").stdout)
    assert [(o["id"], o["from_slot"], o["to_slot"]) for o in live["operations"]] == [
        (o["id"], o["from_slot"], o["to_slot"]) for o in plan["operations"]
    ]


def test_ac48_the_engine_does_what_the_command_line_said(fleet: Fleet) -> None:
    file = planned(fleet)
    (shown,) = json.loads(file.read_text())["plan"]["operations"]
    fleet.start_engine()

    def begun() -> bool:
        with suppress(Stalled):  # the store is just being made
            return (fleet.state / "engine.db").exists() and bool(operations(fleet))
        return False

    wait_for("the engine to begin something", begun, 60)
    (record,) = operations(fleet)
    planned_now = record.planned
    said = (shown["id"], shown["kind"], shown["worker"], shown["from_slot"], shown["to_slot"], shown["policy"])
    done = (planned_now.id, planned_now.kind, planned_now.worker, planned_now.from_slot, planned_now.to_slot, planned_now.policy)
    assert done == said
    again = apply(fleet, file)
    assert (again.returncode, "SH956" in again.stderr) == (1, True), "what the engine has begun isn't begun by the plan too"


def test_live_previews_ask_the_agents_and_say_what_is_not_known(fleet: Fleet) -> None:
    planned(fleet)
    config = ["--config", str(fleet.engine_config)]
    other = fleet.folder / "other"
    other.mkdir()
    (other / "save.yaml").write_text(SAVE.replace("notices: [preemption]", "notices: [gone]"))
    found = fleet.shunter("diff", "main", str(other), *config, "--format", "json", check=False)
    (compared,) = json.loads(found.stdout)["snapshots"]
    assert found.returncode == 2
    assert [(o["kind"], o["worker"]) for o in compared["difference"]["removed"]] == [("move", "decode-0")]
    (flip,) = compared["difference"]["flipped"]
    assert (flip["before"], flip["after"], flip["by_after"]["gate"]) == ("act", "pass", "notices")
    said = fleet.shunter("backtest", "--since", "2m", "--step", "30s", *config).stdout
    assert "nothing would have been carried out" in said
    assert "At 5 of 5 steps no worker had a value of any metric" in said
    assert "Notices aren't known" in said


GATHER = """\
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: gather}
spec:
  workers: {graph: tiny}
  when: worker.incarnation >= 0 && node.freeSlots >= 0
  for: 5s
  to: {prefer: node.freeSlots}
"""


def test_a_place_has_been_the_same_for_as_long_as_an_engine_saw_it(fleet: Fleet) -> None:
    """What `for` asks of the fleet's past, previews read from what an engine kept; from before it ran, nothing is known."""
    (fleet.folder / "gather").mkdir()
    (fleet.folder / "gather" / "gather.yaml").write_text(GATHER)
    command = ["plan", "--config", str(fleet.engine_config), "--policies", str(fleet.folder / "gather"), "--format", "json"]

    def said() -> tuple[bool, bool]:
        done = fleet.shunter(*command)
        (found,) = [f for f in json.loads(done.stdout)["findings"] if f["subject"] == "decode-0"]
        return found["gate"] == "for", "no engine on this state folder looked at the fleet then" in done.stderr

    assert said() == (True, True)
    fleet.start_engine()
    wait_for("the fleet to have been seen for long enough", lambda: said() == (False, False), 60)


def test_ac58_the_comment_stays_within_its_limit_and_counts_what_it_leaves_out(fleet: Fleet) -> None:
    """Eight hundred policies, all of which lack a metric."""
    texts = [
        SAVE.replace("PreemptionPolicy", "CheckpointPolicy")
        .replace("{name: save}", f"{{name: images-{n:03d}}}")
        .replace("notices: [preemption], reserve: 5s", f"every: 5m, when: worker.kvUsage > 0.{n:03d}1")
        for n in range(800)
    ]
    (fleet.folder / "many").mkdir()
    (fleet.folder / "many" / "all.yaml").write_text("---\n".join([*texts, SAVE]))
    page = fleet.shunter(
        "plan", "--config", str(fleet.engine_config), "--policies", str(fleet.folder / "many"), "--format", "markdown"
    ).stdout
    assert len(page.encode()) <= 60_000
    lines = page.splitlines()
    assert lines[0] == "<!-- shunter: plan -->"
    listed = sum(line.startswith("- inconclusive: ") for line in lines)
    (cut,) = [line for line in lines if "more lines left out here" in line]
    assert listed + int(cut.split()[2].replace(",", "")) == 800
    assert any(line.startswith("| **all** | ") for line in lines)


@pytest.mark.lab
@pytest.mark.timeout(180)
def test_what_was_shown_is_what_is_done_while_clients_stream(scene: MakeScene) -> None:
    """With CRIU: nothing leads, the plan is applied, and no client loses a token."""
    s = scene(policies={"save.yaml": SAVE}, prometheus=False)
    s.stream(400)
    s.fleet.nodes["node-a"].post_notice("preemption", "120s", "n1")
    file = planned(s.fleet)
    (shown,) = json.loads(file.read_text())["plan"]["operations"]
    done = apply(s.fleet, file)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{s.logs()}"
    (outcome,) = s.outcomes("move")
    assert (outcome["status"], outcome["from"], outcome["to"]) == ("succeeded", shown["from_slot"], shown["to_slot"])
    s.whole()
    assert s.copies("decode-0") == 1
    assert apply(s.fleet, file).returncode == 1
