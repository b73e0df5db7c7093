"""The agent's own types as messages, and back."""

from shunter.wire import agent_pb2 as pb

from shunter_agent.depot import ImageFacts
from shunter_agent.guard import Asked
from shunter_agent.notices.port import Notice
from shunter_agent.runtime.port import WorkerSpec


def asked(order: pb.Order) -> Asked:
    """An order's head."""
    return Asked(operation=order.operation, epoch=order.epoch, plan=order.plan, worker=order.worker, incarnation=order.incarnation)


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
    )


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
