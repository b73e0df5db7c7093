"""The agent's own types as messages, and back."""

from collections.abc import Sequence

from shunter.model.snapshot import Toleration
from shunter.wire import agent_pb2 as pb
from shunter.wire import convert as wire

from shunter_agent.depot import ImageFacts
from shunter_agent.guard import Asked
from shunter_agent.journal import WorkerRow
from shunter_agent.notices.port import Notice
from shunter_agent.runtime.port import Contained, FileUse, Privileges, Uses, WorkerSpec


def asked(order: pb.Order) -> Asked:
    """An order's head."""
    return Asked(operation=order.operation, epoch=order.epoch, plan=order.plan, worker=order.worker, incarnation=order.incarnation)


def deadline_of(order: pb.Order) -> float | None:
    """When it has to be over, seconds since the epoch; None: no such."""
    return order.deadline or None


def spec_message(spec: WorkerSpec) -> pb.WorkerSpec:
    """A worker's spec as it travels; how it is started and its environment stay on the node."""
    return pb.WorkerSpec(
        worker=spec.worker,
        role=spec.role,
        graph=spec.graph,
        engine=spec.engine,
        labels=spec.labels,
        address=spec.address,
        mac=spec.mac,
        control=spec.control,
        tolerations=_tolerations(spec.tolerations),
        linked=spec.linked,
        connections="" if spec.connections == "keep" else spec.connections,
    )


def worker_message(row: WorkerRow, memory: int = 0, gpu_memory: int = 0) -> pb.WorkerReport:
    """A worker as the journal has it, and what was measured of it, in bytes; 0: nothing was."""
    pod = row.spec.pod
    home = {"pod_uid": pod.uid, "pod_namespace": pod.namespace, "pod_name": pod.name, "pod_container": pod.container} if pod else {}
    return pb.WorkerReport(
        spec=spec_message(row.spec),
        state=row.state,
        slot=row.slot,
        incarnation=row.incarnation,
        memory=memory,
        operation=row.operation,
        gpu_memory=gpu_memory,
        doubt=row.doubt,
        **home,
    )


def _tolerations(known: Sequence[Toleration] | None) -> pb.Tolerations | None:
    if known is None:
        return None
    return pb.Tolerations(
        tolerations=[pb.Toleration(key=t.key, operator=t.operator, value=t.value, effect=t.effect, seconds=t.seconds) for t in known]
    )


def spec(message: pb.WorkerSpec) -> WorkerSpec:
    """The reverse of `spec_message`: a worker that can't be started natively here."""
    return WorkerSpec(
        worker=message.worker,
        role=message.role,
        graph=message.graph,
        engine=message.engine,
        address=message.address,
        mac=message.mac,
        control=message.control,
        labels=dict(message.labels),
        tolerations=wire.tolerations(message),
        linked=wire.linked(message),
        connections="close" if message.connections == "close" else "keep",
    )


def uses_message(uses: Uses) -> pb.Uses:
    """What a worker uses of its node, for the node that it goes to."""
    files = [pb.FileUse(path=use.path, mode=use.mode, bytes=use.bytes, build=use.build) for use in uses.files]
    of = uses.container
    container = pb.Contained(image=of.image, label=of.label, points=of.points) if of is not None else None
    return pb.Uses(files=files, addresses=uses.addresses, container=container)


def to_uses(message: pb.Uses) -> Uses:
    """The reverse of `uses_message`."""
    files = tuple(FileUse(path=f.path, mode=f.mode, bytes=f.bytes if f.HasField("bytes") else None, build=f.build) for f in message.files)
    container = contained(message.container) if message.HasField("container") else None
    return Uses(files=files, addresses=tuple(message.addresses), container=container)


def privileges_message(known: Privileges | None) -> pb.Privileges | None:
    """As they travel; None: not known."""
    return None if known is None else pb.Privileges(capabilities=known.capabilities, no_new_privs=known.no_new_privs)


def contained(message: pb.Contained) -> Contained:
    """A worker's container, as its own node has told of it."""
    return Contained(image=message.image, label=message.label, points=tuple(message.points))


def image_message(image: ImageFacts) -> pb.ImageInfo:
    """An image as it is reported."""
    return pb.ImageInfo(
        id=image.id,
        spec=spec_message(image.spec),
        incarnation=image.incarnation,
        taken_at=image.taken_at,
        bytes=image.bytes,
        pause_s=image.pause_s,
        facts=image.facts,
        runtime=image.runtime,
        doubt=image.doubt,
        privileges=privileges_message(image.privileges),
    )


def notice_message(notice: Notice) -> pb.NoticeReport:
    """A notice as it is reported."""
    return pb.NoticeReport(
        id=notice.id,
        kind=notice.kind,
        seen_at=notice.seen_at,
        deadline=notice.deadline or 0.0,
        source=notice.source,
        detail=notice.detail,
        slot=notice.slot,
        not_dumpable=not notice.dumpable,
    )
