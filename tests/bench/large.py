"""A large fleet and its policies, made up but whole: what `decide` and `validate_500` are measured on."""

from collections.abc import Iterator, Sequence

import msgspec
from shunter.lang.load import load
from shunter.model.expression import Expression
from shunter.model.ids import Commit, Digest, Epoch, ImageId, Incarnation, NodeId, NoticeId, OperationId, WorkerId, slot_id
from shunter.model.operation import EngineState, Measured, OperationRecord, Outcome, Status
from shunter.model.plan import PlannedOperation
from shunter.model.policy import PolicySet
from shunter.model.sample import Known, Sample
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Role, Samples, Slot, Snapshot, Worker, WorkerState
from shunter.model.source import Revision, SourceFile

NOW = 1_800_000_000.0
GRAPHS, PER_GRAPH, PER_NODE, SLOTS = 50, 200, 8, 9
WORKERS, NODES = GRAPHS * PER_GRAPH, GRAPHS * PER_GRAPH // PER_NODE
UNITS = {"running": "requests", "waiting": "requests", "kvUsage": "1", "sessions": "sessions", "kvTokens": "tokens"}

POLICIES = """\
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {{name: save-{graph}, labels: {{team: inference}}}}
spec:
  priority: 1000
  workers: {{graph: {graph}}}
  notices: [preemption, maintenance, gone]
  move:
    to:
      where: node.labels["zone"] == "a"
      prefer: 'node.labels["capacity"] == "reserved" ? 1.0 : 0.0'
    order: worker.kvTokens
---
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {{name: relieve-{graph}}}
spec:
  workers: {{graph: {graph}}}
  from: decode
  to: prefill
  when: pools.prefill.waiting > {load} && pools.decode.kvUsage < 0.6
  for: 0s
  pick: {{where: worker.sessions < 4{load}, prefer: -worker.kvTokens}}
  limits: {{from: {{min: 20}}, to: {{max: 120}}}}
---
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {{name: often-{graph}}}
spec:
  workers: {{graph: {graph}, where: 'worker.role == "decode" && worker.labels["tier"] == "gold"'}}
  every: 5m
  when: worker.kvUsage > 0.3 && worker.running < {load}
  copies: 2
---
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {{name: seldom-{graph}}}
spec:
  workers: {{graph: {graph}, role: decode, where: 'worker.labels["tier"] != "gold"'}}
  every: 1h
"""
"""Four policies of one graph; `load` makes its conditions differ from those of the others."""


def four(graph: str, load: int) -> str:
    """The text of a graph's policies."""
    return POLICIES.format(graph=graph, load=load)


def policies(graphs: int = GRAPHS, held: str = "0s") -> PolicySet:
    """Four of each graph, read from text as the engine reads them; a shift must have been wanted for `held`."""
    texts = [four(f"graph-{n}", 600 + n).replace("for: 0s", f"for: {held}") for n in range(graphs)]
    files = tuple(SourceFile(path=f"graph-{n}.yaml", blob=f"{n}", data=text.encode()) for n, text in enumerate(texts))
    found = load(Revision(commit=Commit("c" * 40), committed_at=NOW, files=files), None)
    assert len(found.policies) == 4 * graphs
    assert not found.problems
    return found


def expressions(of: PolicySet) -> int:
    """How many conditions and preferences the policies have."""

    def count(part: object) -> int:
        if isinstance(part, Expression):
            return 1
        return sum(count(getattr(part, field)) for field in part.__struct_fields__) if isinstance(part, msgspec.Struct) else 0

    return sum(count(policy.document) for policy in of.policies)


def snapshot(at: float = NOW, graphs: int = GRAPHS, going: int = 3) -> Snapshot:
    """200 workers a graph, on nodes of nine slots, eight of them taken; `going` nodes, far apart, have a notice, every tenth graph has a
    queue, and every decode worker has an image of its own age.
    """
    count = graphs * PER_GRAPH
    nodes = count // PER_NODE
    workers = tuple(sorted((_worker(n) for n in range(count)), key=lambda w: w.id))
    fleet = Fleet(nodes=tuple(_node(n) for n in range(nodes)), workers=workers, images=tuple(_images(workers, at, nodes)))
    samples = Samples(workers={w.id: _samples(w, at) for w in workers})
    leaving = sorted({3 + n * nodes // going for n in range(going)})
    notices = tuple(
        Notice(id=NoticeId(f"n-{n}"), kind=NoticeKind.PREEMPTION, node=_node_id(n), seen_at=at - 1, deadline=at + 119) for n in leaving
    )
    return Snapshot(at=at, fleet=fleet, samples=samples, notices=notices)


def later(of: Snapshot, seconds: float) -> Snapshot:
    """The fleet so many seconds later, as it is read anew: equal workers, but none that is the same object, and samples of then."""
    workers = tuple(msgspec.structs.replace(w) for w in of.fleet.workers)
    samples = Samples(workers={w.id: _samples(w, of.at + seconds) for w in workers})
    return msgspec.structs.replace(of, at=of.at + seconds, fleet=msgspec.structs.replace(of.fleet, workers=workers), samples=samples)


def busy(of: Snapshot, checkpoints: Sequence[PlannedOperation], number: int) -> tuple[Snapshot, EngineState]:
    """The fleet with a size of its own for each worker, after an hour in which so many of these checkpoints ended, again and again."""
    workers = tuple(msgspec.structs.replace(w, memory=100 * 10**9 + n * 10**6) for n, w in enumerate(of.fleet.workers))
    ended = []
    for n in range(number):
        planned = checkpoints[n % len(checkpoints)]
        planned = msgspec.structs.replace(planned, id=OperationId(f"checkpoint-{n:016x}"), cause=f"every:5m:{n}")
        at = of.at - 3600 + 3500 * n / number
        measured = Measured(bytes=150 * 10**9 + n, dump=30.0 + n % 7, send=4.0, stopped=31.0)
        outcome = Outcome(status=Status.SUCCEEDED, at=at + 40, measured=measured)
        ended.append(OperationRecord(planned=planned, plan=Digest("sha256:x"), epoch=Epoch(1), created_at=at, outcome=outcome))
    fleet = msgspec.structs.replace(of.fleet, workers=workers)
    return msgspec.structs.replace(of, fleet=fleet), EngineState(recent=tuple(ended))


def fresh(of: Snapshot) -> Snapshot:
    """The same snapshot without its digest, which it keeps once it was asked for."""
    return msgspec.structs.replace(of)


def _node_id(n: int) -> NodeId:
    return NodeId(f"node-{n:04d}")


def _worker_id(n: int) -> WorkerId:
    return WorkerId(f"worker-{n:05d}")


def _node(n: int) -> Node:
    name = _node_id(n)
    taken: list[WorkerId | None] = [_worker_id(n * PER_NODE + k) for k in range(PER_NODE)]
    slots = tuple(
        Slot(id=slot_id(name, k), gpu_model="B200", gpus=1, worker=worker)
        for k, worker in enumerate([*taken, *[None] * (SLOTS - PER_NODE)])
    )
    labels = {"zone": "ab"[n % 2], "capacity": "reserved" if n % 5 == 0 else "spot"}
    return Node(id=name, slots=slots, labels=labels, seen_at=NOW, facts={"arch": "x86_64", "driver": "580", "kernel": "6.8"})


def _worker(n: int) -> Worker:
    node, role = _node_id(n // PER_NODE), _role(n)
    return Worker(
        id=_worker_id(n),
        role=role,
        graph=f"graph-{n // PER_GRAPH}",
        engine="vllm",
        state=WorkerState.RUNNING,
        node=node,
        slot=slot_id(node, n % PER_NODE),
        incarnation=Incarnation(0),
        labels={"tier": "gold" if n % 4 == 0 else "silver"},
        memory=150 * 10**9,
    )


def _role(n: int) -> Role:
    return "prefill" if n % 3 == 0 else "decode"


def _samples(worker: Worker, at: float) -> dict[str, Sample]:
    n = int(worker.id.rpartition("-")[2])
    queued = 20.0 if n // PER_GRAPH % 10 == 0 else 1.0
    values = {
        "running": 8.0 + n % 7,
        "waiting": queued,
        "kvUsage": 0.2 + n % 60 / 100,
        "sessions": float(n % 90),
        "kvTokens": 1e5 + n % 997,
    }
    # in the order in which `observe` takes them
    return {name: Known(value=value, unit=UNITS[name], at=at - 5, query=name) for name, value in sorted(values.items())}


def _images(workers: tuple[Worker, ...], at: float, count: int) -> Iterator[Image]:
    for n, worker in enumerate(workers):
        if worker.role == "decode" and worker.node is not None:
            yield Image(
                id=ImageId(f"image-{n:05d}"),
                worker=worker.id,
                incarnation=worker.incarnation,
                taken_at=at - n % 600,
                bytes=150 * 10**9,
                nodes=(worker.node, _node_id((n // PER_NODE + 1) % count)),
                role=worker.role,
                graph=worker.graph,
                engine=worker.engine,
            )
