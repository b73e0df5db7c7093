"""An engine's ticks are played, and each decision that it recorded is made again from what was kept; what is missing is named."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
from shunter.act.beyond import Deposed
from shunter.act.lease import Lease
from shunter.act.store import Store
from shunter.app.degraded import Watch
from shunter.app.digests import Digests
from shunter.app.engine import Engine
from shunter.app.exact import ExactPlan
from shunter.app.inbox import Answer, Request, Ticket
from shunter.app.keeping import Keeper, Keeping
from shunter.app.leading import Leading
from shunter.app.looking import Seen as Looked
from shunter.app.policies import PolicyFeed
from shunter.app.preview import decided
from shunter.app.recording import Past, Recording
from shunter.app.replay import Replay
from shunter.app.replay import replay as again_from
from shunter.app.room import Room, suiting
from shunter.app.settings import AgentSettings, AuditSettings, PoliciesSettings, PrometheusSettings, Settings, TlsSettings
from shunter.app.sources import source_of
from shunter.audit.inputs import Inputs, inputs_path
from shunter.audit.journal import Journal
from shunter.audit.redact import Redaction
from shunter.audit.trail import Trail
from shunter.cli.main import execute
from shunter.model.errors import Problem, Rejected
from shunter.model.ids import Digest, Incarnation, NodeId, NoticeId, SlotId, WorkerId
from shunter.model.record import Record, RecordKind, Sealed
from shunter.model.sample import Known
from shunter.model.snapshot import Fleet, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Worker, WorkerState, as_one
from shunter.model.units import Bytes, Duration
from shunter.observe.inventory import Inventory

POLICIES = """apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: images}
spec: {workers: {role: decode}, every: 5m, when: worker.kvUsage > 0.5}
---
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {all: true}, notices: [preemption]}
---
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: leave-old}
spec:
  workers: {role: decode}
  when: worker.kvUsage < 0.3 && node.labels["age"] == "old"
  for: 3s
  cooldown: 1m
"""
START = 1_800_000_000.25


class Story:
    """A world of two nodes and a worker, told tick by tick: how full its cache is, and whether its node is going."""

    unreachable: dict[str, Problem] = {}

    def __init__(self, secret: str = "") -> None:
        self.usage, self.going, self.secret = 0.2, False, secret

    async def look(self, _memory: object, now: float) -> Inventory:
        slots = {"node-a": Slot(id=SlotId("node-a/0"), worker=WorkerId("w")), "node-b": Slot(id=SlotId("node-b/0"))}
        more = {"api-token": self.secret} if self.secret else {}
        worker = Worker(
            id=WorkerId("w"), role="decode", graph="g", engine="vllm", state=WorkerState.RUNNING, node=NodeId("node-a"),
            slot=SlotId("node-a/0"), incarnation=Incarnation(0), memory=10**9,
        )  # fmt: skip
        ages = {"node-a": {"age": "old"} | more, "node-b": {"age": "new"}}
        nodes = tuple(Node(id=NodeId(name), slots=(slot,), seen_at=now, labels=ages[name]) for name, slot in slots.items())
        notice = Notice(id=NoticeId("n"), kind=NoticeKind.PREEMPTION, node=NodeId("node-a"), seen_at=now, deadline=START + 200)
        return Inventory(fleet=Fleet(nodes=nodes, workers=(worker,)), notices=(notice,) if self.going else (), problems=())

    async def measure(self, _fleet: object, _policies: object, now: float, **_: object) -> Samples:
        sample = Known(value=self.usage, unit="1", at=now - 0.5, query="kv", labels={"worker": "w"})
        return Samples(workers={"w": {"kvUsage": sample}})


Stage = Callable[..., tuple[Leading, Story, Keeper]]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:

        def make(audit: AuditSettings | None = None, secret: str = "") -> tuple[Leading, Story, Keeper]:
            (tmp_path / "policies").mkdir()
            (tmp_path / "policies" / "all.yaml").write_text(POLICIES)
            given = Settings(
                state=tmp_path,
                policies=PoliciesSettings(directory=tmp_path / "policies"),
                prometheus=PrometheusSettings(url="http://127.0.0.1:9"),
                tls=TlsSettings(ca=tmp_path, cert=tmp_path, key=tmp_path),
                agents=(AgentSettings(node="node-a", address="127.0.0.1:9"),),
                audit=audit or AuditSettings(),
            )
            labels = given.audit.labels
            redaction = Redaction(labels=None if labels is None else frozenset(labels))
            store = stack.enter_context(closing(Store(tmp_path / "engine.db")))
            lease = stack.enter_context(Lease(tmp_path / "engine.lock", store))
            journal = stack.enter_context(Journal(tmp_path / "audit.db", redaction=redaction))
            feed = PolicyFeed(source_of(given.policies, tmp_path / "git"), lambda: START)
            engine = Engine(given, feed, clock=lambda: START)
            trail = Trail(journal, lambda: START)
            watch = Watch(store, trail, Room(tmp_path, (), suiting(tmp_path)), tmp_path, lambda: START)
            keeper = Keeper(inputs_path(tmp_path / "audit.db"), given.audit, redaction, feed.read, lambda: START)
            stack.callback(keeper.close)
            leading = Leading(engine, store, lease, trail, watch, {}, None, Keeping(given.audit, journal, keeper))  # type: ignore[arg-type]
            leading.scheduler.offer = lambda _plan, **_: None  # type: ignore[method-assign,assignment]
            leading.sight.world = story = Story(secret)  # type: ignore[assignment]
            return leading, story, keeper

        yield make


async def played(leading: Leading, story: Story) -> None:
    """Twelve ticks: idle, long enough for `for`, full, then preempted."""
    await leading.following.once()
    for tick in range(12):
        story.usage = 0.2 + 0.001 * tick if tick < 6 else 0.9
        story.going = tick >= 9
        await leading.tick(START + tick)


async def test_an_engine_that_has_lost_the_lead_in_a_tick_tells_nobody_what_it_found(stage: Stage) -> None:
    """It would be written into the policies' statuses, over what the next engine says."""
    leading, _story, _keeper = stage()
    told: list[object] = []
    leading.duty.on_tick = told.append
    await leading.following.once()
    await leading.tick(START)
    assert len(told) == 1
    leading.lease.close()  # type: ignore[attr-defined]
    with pytest.raises(Deposed):
        await leading.tick(START + 1)
    assert len(told) == 1


def replay(state: Path, what: str) -> Replay:
    with Journal(state / "audit.db", read_only=True) as journal:
        return again_from(journal, what)


def decisions(state: Path) -> list[Sealed]:
    with Journal(state / "audit.db", read_only=True) as journal:
        return [s for s in journal.stream() if s.record.kind is RecordKind.PLAN or s.record.body.get("verdict") == "act"]


async def test_every_plan_comes_out_the_same_byte_for_byte(stage: Stage, tmp_path: Path) -> None:
    leading, story, keeper = stage()
    await played(leading, story)
    keeper.close()
    made = decisions(tmp_path)
    kinds = {o["kind"] for s in made if s.record.kind is RecordKind.PLAN for o in s.record.body["operations"]}  # type: ignore[union-attr]
    assert kinds == {"move", "checkpoint"}
    assert len([s for s in made if s.record.kind is RecordKind.PLAN]) == 4, "what the notice asked for at once is one of its own"
    (tmp_path / "policies" / "all.yaml").unlink()  # nothing but the state folder is needed
    for sealed in made:
        again = replay(tmp_path, str(sealed.seq))
        assert again.same, again.differs
        assert (again.again, again.plan, again.remarks) == (sealed.record.plan, sealed.record.plan, ())
    rebalanced = next(s for s in made if "leave-old" in str(s.record.body) and s.record.kind is RecordKind.PLAN)
    assert replay(tmp_path, str(rebalanced.seq)).snapshots > 3, "`for` needs the earlier ones"


async def test_what_an_earlier_version_recorded_comes_out_the_same_too(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot's id was over all of its bytes at once then."""

    def take(_digests: Digests, snapshot: Snapshot) -> Digest:
        vars(snapshot)["id"] = found = as_one(snapshot)
        return found

    with monkeypatch.context() as earlier:
        earlier.setattr(Digests, "take", take)
        leading, story, keeper = stage()
        await played(leading, story)
        keeper.close()
    made = decisions(tmp_path)
    assert len(made) >= 4
    for sealed in made:
        again = replay(tmp_path, str(sealed.seq))
        assert again.same, again.differs
        assert again.again == sealed.record.plan


@pytest.mark.parametrize("knows", [True, False])
async def test_what_a_plan_that_was_applied_was_decided_on_is_kept(stage: Stage, tmp_path: Path, knows: bool) -> None:
    """`knows`: the engine has said the same already. Nobody saw the fleet of the plan's past, so that `for` hasn't passed."""
    leading, story, keeper = stage()
    leading.scheduler.accept = lambda _plan: None  # type: ignore[method-assign,assignment]
    leading.duty.decides = knows
    await leading.following.once()
    story.going = True
    await leading.tick(START)
    policies = leading.duty.feed.current
    assert policies is not None
    seen, at = leading.duty.scene, START + 0.5
    now = Snapshot(at=at, fleet=seen.fleet, samples=await story.measure(None, None, at), notices=seen.notices)
    history = tuple(Past(at=now.at - ago, samples=now.samples) for ago in (4.0, 3.0, 2.0, 1.0))
    found = decided(policies, Looked(recording=Recording.of(now, history, profile=leading.duty.profile)))
    assert found.recording is not None
    assert "leave-old" in "".join(found.remarks)
    exact = ExactPlan.of(found.evaluation.plan, found.recording, now=now.at)
    ticket = Ticket.submit(tmp_path, Request(by="ada", at=START, exact=exact))
    before = len(decisions(tmp_path))
    await leading.tick(START + 1)
    assert ticket.answer() == Answer(at=START + 1)
    keeper.close()
    acts, plan, applied = (s for s in decisions(tmp_path)[before:] if s.record.plan == exact.digest or s.record.subject == exact.digest)
    assert (acts.record.subject, acts.record.body["policy"], acts.record.commit) == ("w", "save", policies.commit)
    assert applied.record.what == "applied: 1 operation"
    with Journal(tmp_path / "audit.db", read_only=True) as journal:
        held = [s for s in journal.stream() if s.record.plan == exact.digest and s.record.body.get("policy") == "leave-old"]
    assert [s.record.body["gate"] for s in held] == ([] if knows else ["for"]), "what is held is told, if it isn't yet"
    for sealed in (acts, plan, *held):
        again = replay(tmp_path, str(sealed.seq))
        assert again.same, again.differs
        assert (again.again, again.snapshots) == (exact.digest, 5)


async def test_what_did_not_change_costs_nothing(stage: Stage, tmp_path: Path) -> None:
    leading, _, keeper = stage()
    await leading.following.once()
    for tick in range(40):
        await leading.tick(START + tick)
    keeper.close()
    with Inputs(inputs_path(tmp_path / "audit.db"), read_only=True) as inputs:
        count = inputs._db.execute("SELECT count(*) FROM decisions").fetchone()[0]
    assert count == len({s.record.plan for s in decisions(tmp_path)}) == 1


@pytest.mark.parametrize(
    ("breaking", "told"),
    [
        ("DELETE FROM blobs WHERE digest IN (SELECT blob FROM refs) AND data = (SELECT data FROM blobs ORDER BY size DESC LIMIT 1)", ""),
        ("DELETE FROM snapshots", "the snapshot sha256:"),
        ("UPDATE blobs SET data = X'00'", "is damaged"),
        ("DELETE FROM decisions", "isn't kept"),
    ],
)
async def test_an_input_that_is_gone_is_named(stage: Stage, tmp_path: Path, breaking: str, told: str) -> None:
    leading, story, keeper = stage()
    await played(leading, story)
    keeper.close()
    last = decisions(tmp_path)[-1]
    with closing(sqlite3.connect(inputs_path(tmp_path / "audit.db"))) as db, db:
        assert db.execute(breaking).rowcount > 0
    with pytest.raises(Rejected, match=rf"SH97[56] .*{told}"):
        replay(tmp_path, str(last.seq))


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("nodes", "nodes of the snapshot"),
        ("samples.workers", r"samples\.workers of the snapshot"),
        ("state", "what the engine had done"),
        ("profile", "the planning profile"),
        ("file", r"the policy file all\.yaml"),
    ],
)
async def test_each_input_is_named_when_it_alone_is_gone_or_changed(stage: Stage, tmp_path: Path, part: str, named: str) -> None:
    leading, story, keeper = stage()
    await played(leading, story)
    keeper.close()
    last = decisions(tmp_path)[-1]
    assert last.record.plan is not None
    path = inputs_path(tmp_path / "audit.db")
    with Inputs(path, read_only=True) as inputs:
        kept = inputs.find(last.record.plan)
        assert kept is not None
        body = inputs._db.execute("SELECT body FROM snapshots WHERE id = ?", [kept.snapshots[-1]]).fetchone()[0]
        digests = {"state": kept.state, "profile": kept.profile, "file": kept.files[0].data, **json.loads(body)[1]}
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM blobs WHERE digest = ?", [digests[part]])
    with pytest.raises(Rejected, match=f"SH976 .*{named}.* isn't kept any more"):
        replay(tmp_path, str(last.seq))


async def test_an_input_that_was_changed_with_its_digest_gives_another_plan_and_says_so(stage: Stage, tmp_path: Path) -> None:
    """Somebody writes another policy, digests and all: the audit's record knows better."""
    leading, story, keeper = stage()
    await played(leading, story)
    keeper.close()
    last = [s for s in decisions(tmp_path) if s.record.kind is RecordKind.PLAN][-1]
    assert last.record.plan is not None
    path = inputs_path(tmp_path / "audit.db")
    with Inputs(path) as inputs:
        kept = inputs.find(last.record.plan)
        assert kept is not None
        forged = inputs._blob("x", POLICIES.replace("every: 5m", "every: 9h").encode())
        files = tuple(msgspec.structs.replace(f, data=forged) for f in kept.files)
        body = msgspec.json.encode(msgspec.structs.replace(kept, files=files))
        inputs._db.execute("UPDATE decisions SET body = ? WHERE plan = ?", [body, last.record.plan])
    found = replay(tmp_path, str(last.seq))
    assert not found.same
    assert any("policy set's digest" in line for line in found.differs)
    assert found.again != found.plan


async def test_credentials_are_not_kept_and_the_plan_comes_out_all_the_same(stage: Stage, tmp_path: Path) -> None:
    leading, story, keeper = stage(secret="hf_abcdefghijklmnopqrstuvwxyz012345")
    await played(leading, story)
    keeper.close()
    for sealed in decisions(tmp_path):
        again = replay(tmp_path, str(sealed.seq))
        assert again.same, again.differs
        assert "node.labels: api-token" in again.remarks[0]
    held = b"".join(path.read_bytes() for path in tmp_path.glob("audit*"))
    assert b"hf_abcdefghijklmnop" not in held
    with Inputs(inputs_path(tmp_path / "audit.db"), read_only=True) as inputs:
        for (which,) in inputs._db.execute("SELECT id FROM snapshots"):
            assert "hf_" not in repr(inputs.snapshot(which))


async def test_a_label_that_is_not_listed_is_left_out_and_a_plan_that_hangs_on_it_differs(stage: Stage, tmp_path: Path) -> None:
    leading, story, keeper = stage(AuditSettings(labels=("zone",)))
    await played(leading, story)
    keeper.close()
    found = {s.seq: replay(tmp_path, str(s.seq)) for s in decisions(tmp_path)}
    hanging = [s.seq for s in decisions(tmp_path) if "leave-old" in str(s.record.body)]
    assert hanging
    for seq, again in found.items():
        assert again.same == (seq not in hanging), (seq, again.differs)
        assert "node.labels: age" in again.remarks[0]


async def test_policies_that_stayed_in_force_because_a_newer_version_was_refused_are_kept_too(stage: Stage, tmp_path: Path) -> None:
    leading, story, keeper = stage()
    await leading.following.once()
    await until(lambda: bool(keeper._files))  # it reads them while they are there
    first = leading.duty.feed.current
    (tmp_path / "policies" / "all.yaml").write_text("kind: nonsense\n")
    await played(leading, story)
    assert first is not None
    assert leading.duty.feed.current is not None
    assert leading.duty.feed.current.commit != first.commit
    assert len(leading.duty.feed.current.policies) == 3
    keeper.close()
    for sealed in decisions(tmp_path):
        assert replay(tmp_path, str(sealed.seq)).same


async def test_nothing_is_kept_where_nothing_is_to_be(stage: Stage, tmp_path: Path) -> None:
    leading, story, keeper = stage(AuditSettings(inputs=Duration(0)))
    await played(leading, story)
    keeper.close()
    assert not inputs_path(tmp_path / "audit.db").exists()
    with pytest.raises(Rejected, match="SH975"):
        replay(tmp_path, str(decisions(tmp_path)[-1].seq))


async def test_inputs_are_dropped_by_age_and_by_size_and_what_others_use_stays(stage: Stage, tmp_path: Path) -> None:
    leading, story, keeper = stage()
    await played(leading, story)
    keeper.close()
    made = [s for s in decisions(tmp_path) if s.record.kind is RecordKind.PLAN]
    with Inputs(inputs_path(tmp_path / "audit.db")) as inputs:
        assert inputs.drop(made[-1].record.at, 10**9) > 0
        assert replay(tmp_path, str(made[-1].seq)).same
        with pytest.raises(Rejected, match="SH975"):
            replay(tmp_path, str(made[0].seq))
        assert 0 < inputs.size() < 100_000
        assert inputs.drop(0.0, int(Bytes(10))) == 2, "what was decided at once, and by the tick"
        assert inputs.size() == 0


async def test_a_disk_with_little_room_has_none_for_inputs_and_they_never_take_more_than_a_share(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading, story, keeper = stage()
    real = os.statvfs(tmp_path)
    left = [100]

    def disk(_path: object) -> os.statvfs_result:
        blocks = 8 * 25_000 // 500  # of 500 bytes: the share is 25,000
        return os.statvfs_result((500, 500, blocks, left[0], left[0], *tuple(real)[5:]))

    monkeypatch.setattr("shunter.app.keeping.os.statvfs", disk)
    await played(leading, story)
    await until(keeper._queue.empty)
    left[0] = 10
    keeper.learn(leading.duty.feed.current)  # type: ignore[arg-type]
    await until(lambda: keeper.problem is not None)
    with Inputs(inputs_path(tmp_path / "audit.db"), read_only=True) as inputs:
        assert 0 < inputs.size() <= 25_000
    assert keeper.problem is not None
    assert keeper.problem.code == "SH980"
    assert leading.keeping is not None
    assert leading.keeping.house(START + 20) == keeper.problem


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.01)


async def test_the_command(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leading, story, keeper = stage()
    await played(leading, story)
    keeper.close()
    made = [s for s in decisions(tmp_path) if s.record.kind is RecordKind.PLAN][-1]
    assert execute(["audit", "replay", str(made.seq), "--state", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.startswith("the same, byte for byte\n")
    assert str(made.record.plan) in told
    assert execute(["audit", "replay", str(made.seq), "--state", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["same"], shown["again"], shown["record"]) == (True, made.record.plan, made.seq)
    leading.trail.add([Record(at=START + 20, kind=RecordKind.ENGINE, subject="engine", what="x", epoch=leading.epoch)])
    last = made.seq
    with Journal(tmp_path / "audit.db", read_only=True) as journal:
        last = journal.newest()
    assert execute(["audit", "replay", str(last), "--state", str(tmp_path)]) == 1
    assert "SH977" in capsys.readouterr().err
    operation = made.record.body["operations"][0]["id"]  # type: ignore[index]
    intent = Record(
        at=START + 13, kind=RecordKind.INTENT, subject="w", what="move", epoch=leading.epoch, operation=operation,
        plan=made.record.plan,
    )  # fmt: skip
    leading.trail.add([msgspec.structs.replace(intent, plan="sha256:" + "0" * 64)])  # of a later tick, which isn't kept
    assert execute(["audit", "replay", operation, "--state", str(tmp_path)]) == 0
    assert f"record    {made.seq}," in capsys.readouterr().out
