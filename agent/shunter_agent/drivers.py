"""Which runtime the settings mean: the one place that knows drivers by name."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shunter.model.errors import Problem, Rejected

from shunter_agent.runtime.port import Runtime
from shunter_agent.settings import Settings

if TYPE_CHECKING:
    from shunter_agent.runtime.cuda.node import CudaNode
    from shunter_agent.runtime.network import Uplink


def make_runtime(settings: Settings, tell: Callable[[Problem], None] = lambda _problem: None) -> Runtime:
    """The driver, ready for use; `tell` hears of what it can't do as well as it should.

    Raises Rejected or Retry SH703 when CRIU can't be used.
    """
    if settings.runtime == "pretend":
        from shunter_agent.runtime.pretend import PretendRuntime

        return PretendRuntime(settings.node)
    from shunter_agent.runtime.criu import CriuRuntime
    from shunter_agent.runtime.network import Uplink

    uplink = Uplink(bridge=settings.bridge, prefix=settings.prefix)
    if settings.containers is not None:
        return _of_containers(settings, uplink, tell)
    return CriuRuntime(settings.criu, uplink, cuda=_cuda(settings), tell=tell)


def _cuda(settings: Settings) -> "CudaNode":
    from shunter_agent.runtime.cuda.node import CudaNode

    return CudaNode(preloads=settings.preloads)


def _of_containers(settings: Settings, uplink: "Uplink", tell: Callable[[Problem], None]) -> Runtime:
    from shunter_agent.runtime.containers import ContainerRuntime, Ports
    from shunter_agent.runtime.pods import Cri, Pods

    chosen = settings.containers
    assert chosen is not None
    return ContainerRuntime(
        settings.criu,
        uplink,
        Pods(Cri(chosen.socket), chosen.cgroups),
        settings.state / "containers",
        carry=chosen.carry,
        keep_streams=chosen.streams == "refuse",
        namespaces=chosen.namespaces,
        cuda=_cuda(settings),
        tell=tell,
        ports=Ports(serving=chosen.port, control=chosen.control, node=settings.listen.rpartition(":")[0]),
    )


def thaw_left_behind(runtime: Runtime, images: Path) -> None:
    """Let workers run on that a driver can't thaw by its own death (`pretend`), and let it note what only the image tells of a dump that
    was under way (`criu`). To be called before unfinished images are swept."""
    thaw = getattr(runtime, "thaw_left_behind", None)
    if thaw is None or not images.is_dir():
        return
    for folder in images.iterdir():
        with contextlib.suppress(Rejected):
            thaw(folder)
