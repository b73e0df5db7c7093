"""What to do about an operation whose last effect isn't known: pure, from its record and what the agents' journals say.

A view of None means that the agent couldn't be asked. A node that is gone for good counts as one without a copy or image.
"""

import enum

import msgspec

from shunter.act.port import CopyView
from shunter.model.ids import ImageId
from shunter.model.operation import OperationRecord, Step
from shunter.model.plan import OperationKind


class Action(enum.StrEnum):
    """How to go on."""

    GO_ON = "go-on"
    """Forward, from the resolution's step."""
    ROLL_BACK = "roll-back"
    WAIT = "wait"
    """The answer that decides is outstanding: nothing may be done until it is there."""


class Resolution(msgspec.Struct, frozen=True, kw_only=True):
    """`step` is what is now known to be reached (None unless it goes on); `why` says it in words."""

    action: Action
    why: str
    step: Step | None = None


def image_of(record: OperationRecord) -> ImageId:
    """The image that an operation takes or uses: derived from it, so that a restarted engine knows it too."""
    return record.planned.image or ImageId(f"image-{record.id}")


def go_on(step: Step, why: str) -> Resolution:
    """Forward from `step`."""
    return Resolution(action=Action.GO_ON, step=step, why=why)


def roll_back(why: str) -> Resolution:
    """Back to where it was."""
    return Resolution(action=Action.ROLL_BACK, why=why)


def wait(why: str) -> Resolution:
    """Neither, yet."""
    return Resolution(action=Action.WAIT, why=why)


def resolve(record: OperationRecord, source: CopyView | None, destination: CopyView | None) -> Resolution:
    """The one thing that is safe to do next."""
    kind = record.planned.kind
    if (step := arrived_at(record, destination)) is not None:
        return go_on(step, "the destination's copy was told to run")
    if record.step is Step.ROLLING_BACK:
        return go_on(Step.ROLLING_BACK, "it was being rolled back")
    if record.step is Step.STARTING:
        return go_on(Step.STARTING, "its worker has left for good, and what is started in its place is asked of the API server")
    if kind in (OperationKind.MOVE, OperationKind.PARK):
        return _leaving(record, source, destination)
    if kind is OperationKind.RESTORE:
        return _restoring(record, destination)
    if kind is OperationKind.CHECKPOINT:
        return _checkpointing(record, source)
    if kind is OperationKind.DRAIN:
        return _draining(record, source)
    return go_on(record.step, "deleting twice does no harm")


def arrived_at(record: OperationRecord, destination: CopyView | None) -> Step | None:
    """The step that is reached where the destination's copy was told to run. It is told so only once nothing else can: whoever told it
    knew, whether or not that could be written down, and nobody has to ask the source, which may never answer again. None: it wasn't told,
    or the record has it.
    """
    had = {step for step, _ in record.history}
    if destination is None or destination.copy != "running" or "resume" not in destination.steps:
        return None
    if record.planned.kind is OperationKind.MOVE and Step.RELEASED not in had:
        return Step.RELEASED
    if record.planned.kind is OperationKind.RESTORE and not had & {Step.COMMITTING, Step.RESUMED}:
        return Step.COMMITTING
    return None


def _leaving(record: OperationRecord, source: CopyView | None, destination: CopyView | None) -> Resolution:
    """A move or a park. What decides is whether the source's copy is dead."""
    if record.step in (Step.RELEASED, Step.RESUMED, Step.UNFENCED):
        return _arriving(record, destination)
    if record.step is Step.COMMITTING:
        return _committing(record, source, destination)
    if source is None:
        return roll_back("it wasn't committed, and the source doesn't answer: its worker runs on when the hold ends")
    if source.copy == "none":
        return _without_source(record, source, destination)
    if record.step is Step.HELD and source.copy == "frozen" and destination is not None and destination.copy == "held":
        return go_on(Step.HELD, "both copies stand still, so nothing is lost by going on")
    return roll_back(f"it wasn't committed, and the source's copy is {source.copy}")


def _committing(record: OperationRecord, source: CopyView | None, destination: CopyView | None) -> Resolution:
    if source is None:
        return wait("the source was told to end its copy, and hasn't said whether it did")
    if source.copy == "none":
        return go_on(Step.RELEASED, "the source's copy is dead")
    parked = record.planned.kind is OperationKind.PARK
    if source.copy == "frozen" and (parked or (destination is not None and destination.copy == "held")):
        return go_on(Step.COMMITTING, "the source's copy still stands still, to be ended")
    if source.steps.get("release") == "begun":  # what comes after it would find the worker dead
        return wait("the source is ending its copy, and hasn't said whether it did")
    return roll_back(f"the source's copy is {source.copy}, and the destination has none to take over")


def _without_source(record: OperationRecord, source: CopyView, destination: CopyView | None) -> Resolution:
    """The worker died at its source before the commit: whatever image was whole is the worker now. Or the commit was in the memory alone of
    an engine that could write nothing any more: then it may run at its destination.
    """
    if destination is not None and destination.copy == "running":
        return go_on(Step.RELEASED, "the source's copy is dead, and the destination's was told to run")
    holders = [view for view in (source, destination) if view is not None]
    dumped = any(step in (Step.FENCED, Step.FROZEN, Step.HELD) for step, _ in record.history)
    if dumped and any(image_of(record) in view.images for view in holders):
        return go_on(Step.RELEASED, "the source's copy is dead, and an image of it is whole")
    return roll_back("the worker died at its source")


def _arriving(record: OperationRecord, destination: CopyView | None) -> Resolution:
    """The source is dead: the worker is at the destination, or nowhere and in its image."""
    if record.step is not Step.RELEASED or record.planned.kind is OperationKind.PARK:
        return go_on(record.step, "only the router has to hear of it")
    if destination is None:
        return wait("the destination was told to run its copy, and hasn't said whether it does")
    if destination.copy == "running" and destination.steps.get("resume") == "begun":
        return wait("the destination's copy is being probed, and is ended if it fails")
    if destination.copy == "running":
        return go_on(Step.RESUMED, "the destination's copy runs")
    return go_on(Step.RELEASED, f"the destination's copy is {destination.copy}")


def _restoring(record: OperationRecord, destination: CopyView | None) -> Resolution:
    if record.step in (Step.RESUMED, Step.UNFENCED):
        return go_on(record.step, "only the router has to hear of it")
    if record.step is Step.INTENDED and destination is not None and destination.copy == "none":
        return go_on(Step.INTENDED, "sending the image and preparing the slot twice does no harm")
    if record.step is not Step.COMMITTING:
        return roll_back("its copy wasn't told to run")
    if destination is None:
        return wait("the destination was told to run its copy, and hasn't said whether it does")
    if destination.copy == "running" and destination.steps.get("resume") == "begun":
        return wait("the destination's copy is being probed, and is ended if it fails")
    if destination.copy == "running":
        return go_on(Step.RESUMED, "its copy runs")
    return go_on(Step.COMMITTING, f"its copy is {destination.copy}")


def _checkpointing(record: OperationRecord, source: CopyView | None) -> Resolution:
    if record.step is not Step.INTENDED:
        return go_on(record.step, "copying twice does no harm")
    if source is not None and image_of(record) in source.images:
        return go_on(Step.DUMPED, "the image is whole")
    return roll_back("there is no image; the worker runs on in any case")


def _draining(record: OperationRecord, source: CopyView | None) -> Resolution:
    if source is None:
        return wait("the agent was told to end the worker once it serves nothing, and hasn't said whether it did")
    if source.copy != "none":
        return go_on(record.step, "the worker still runs")
    if source.steps.get("drain") == "done":
        return go_on(Step.RELEASED, "the worker served nothing, and has ended")
    return roll_back("the worker has ended, but not because it served nothing")
