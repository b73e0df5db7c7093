"""Which runtime the settings mean: the one place that knows drivers by name."""

import contextlib
from pathlib import Path

from shunter.model.errors import Rejected

from shunter_agent.runtime.port import Runtime
from shunter_agent.settings import Settings


def make_runtime(settings: Settings) -> Runtime:
    """The driver, ready for use. Raises Rejected or Retry SH703 when CRIU can't be used."""
    if settings.runtime == "pretend":
        from shunter_agent.runtime.pretend import PretendRuntime

        return PretendRuntime(settings.node)
    from shunter_agent.runtime.criu import CriuRuntime
    from shunter_agent.runtime.network import Uplink

    return CriuRuntime(settings.criu, Uplink(bridge=settings.bridge, prefix=settings.prefix))


def thaw_left_behind(runtime: Runtime, images: Path) -> None:
    """Let workers run on that a driver can't thaw by its own death (`pretend`). To be called before unfinished images are swept."""
    thaw = getattr(runtime, "thaw_left_behind", None)
    if thaw is None or not images.is_dir():
        return
    for folder in images.iterdir():
        with contextlib.suppress(Rejected):
            thaw(folder)
