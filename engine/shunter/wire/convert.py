"""Messages to model values and back. Lossless for what both know; sorting is the caller's business."""

from typing import cast, get_args

import grpc

from shunter.model.errors import Problem
from shunter.model.ids import ImageId, Incarnation, NodeId, NoticeId, SlotId, WorkerId
from shunter.model.pod import Pod
from shunter.model.snapshot import Effect, Image, Node, Notice, NoticeKind, Role, Slot, Taint, Toleration, Worker, WorkerState
from shunter.wire import agent_pb2 as pb

REFUSAL_KEY = "shunter-refusal-bin"
"""Trailing metadata key under which a refused call carries its serialised Refusal."""


def role(text: str) -> Role:
    """A role from the wire. Raises ValueError."""
    if text == "prefill":
        return "prefill"
    if text == "decode":
        return "decode"
    raise ValueError(f"{text!r} is not a role")


def refusal(problem: Problem) -> pb.Refusal:
    """A problem as it travels; its place doesn't, since agents know no policy files."""
    return pb.Refusal(code=problem.code, what=problem.what, remedy=problem.remedy, subject=problem.subject)


def problem(message: pb.Refusal) -> Problem:
    """The reverse of `refusal`."""
    return Problem(code=message.code, what=message.what, remedy=message.remedy, subject=message.subject)


def refusal_of(error: grpc.RpcError) -> Problem | None:
    """The refusal that a failed call carries, or None when it carries none: its outcome is then unknown."""
    trailing = getattr(error, "trailing_metadata", lambda: None)() or ()
    for key, value in trailing:
        if key == REFUSAL_KEY:
            return problem(pb.Refusal.FromString(value))
    return None


def taint(message: pb.Taint) -> Taint | None:
    """A node's taint; None for one with an effect that isn't known here."""
    if message.effect not in get_args(Effect):
        return None
    return Taint(key=message.key, value=message.value, effect=cast("Effect", message.effect))


def tolerations(spec: pb.WorkerSpec) -> tuple[Toleration, ...] | None:
    """What a worker tolerates; None where nobody said."""
    if not spec.HasField("tolerations"):
        return None
    return tuple(
        Toleration(key=t.key, operator=t.operator, value=t.value, effect=t.effect, seconds=t.seconds if t.HasField("seconds") else None)
        for t in spec.tolerations.tolerations
    )


def linked(spec: pb.WorkerSpec) -> bool | None:
    """Whether a worker's GPUs are in one NVLink domain; None where it has one or none, or nobody knows."""
    return spec.linked if spec.HasField("linked") else None


def worker(report: pb.WorkerReport, node: NodeId) -> Worker:
    """A worker on `node` as its agent reports it."""
    spec = report.spec
    return Worker(
        id=WorkerId(spec.worker),
        role=role(spec.role),
        graph=spec.graph,
        engine=spec.engine,
        state=WorkerState(report.state),
        node=node,
        slot=SlotId(report.slot) if report.slot else None,
        incarnation=Incarnation(report.incarnation),
        labels=dict(spec.labels),
        address=spec.address,
        memory=report.memory or None,
        gpu_memory=report.gpu_memory or None,
        tolerations=tolerations(spec),
        pod=pod(report),
        doubt=report.doubt,
    )


def pod(report: pb.WorkerReport) -> Pod | None:
    """The pod that a worker lives in; None: in none."""
    if not report.pod_uid:
        return None
    return Pod(namespace=report.pod_namespace, name=report.pod_name, uid=report.pod_uid, container=report.pod_container)


def slot(report: pb.SlotReport) -> Slot:
    """A slot as its agent reports it."""
    return Slot(
        id=SlotId(report.id),
        roles=tuple(role(r) for r in report.roles),
        gpu_model=report.gpu_model,
        gpus=report.gpus,
        worker=WorkerId(report.worker) if report.worker else None,
        reserved_by=report.reserved_by or None,
        gpu_memory=report.gpu_memory or None,
        domains=tuple(sorted(report.domains)),
    )


def node(report: pb.NodeReport) -> Node:
    """The node itself, reachable, with its slots in the order of their ids."""
    return Node(
        id=NodeId(report.node),
        slots=tuple(sorted((slot(s) for s in report.slots), key=lambda s: s.id)),
        labels=dict(report.labels),
        reachable=True,
        seen_at=report.at,
        runtime=report.runtime,
        facts=dict(report.facts),
        sources=tuple(sorted(report.sources)),
        problems=tuple(map(problem, report.problems)),
        troubles=tuple(map(problem, report.troubles)),
        canaries=dict(report.canaries),
        taints=tuple(sorted((t for m in report.taints if (t := taint(m)) is not None), key=str)),
        memory=report.memory or None,
        disk=report.disk or None,
        images_in_memory=report.images_in_memory,
        archive=report.archive,
    )


def image(info: pb.ImageInfo, holder: NodeId | None) -> Image:
    """One copy of an image, held by `holder`; None: by the archive."""
    return Image(
        id=ImageId(info.id),
        worker=WorkerId(info.spec.worker),
        incarnation=Incarnation(info.incarnation),
        taken_at=info.taken_at,
        bytes=info.bytes,
        nodes=(holder,) if holder is not None else (),
        archived=holder is None,
        role=role(info.spec.role),
        graph=info.spec.graph,
        engine=info.spec.engine,
        facts=dict(info.facts),
        pause=info.pause_s or None,
        tolerations=tolerations(info.spec),
        linked=linked(info.spec),
        doubt=info.doubt,
    )


def notice(report: pb.NoticeReport, about: NodeId) -> Notice:
    """A notice about `about`."""
    return Notice(
        id=NoticeId(f"{about}/{report.id}"),  # agents name theirs alike: two preempted nodes are two notices
        kind=NoticeKind(report.kind),
        node=about,
        seen_at=report.seen_at,
        deadline=report.deadline or None,
        source=report.source,
        detail=report.detail,
        slot=SlotId(report.slot) if report.slot else None,
        dumpable=not report.not_dumpable,
    )
