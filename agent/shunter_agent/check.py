"""`shunter-agent check`: what keeps this node from taking part, before a worker depends on it."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shunter.model.errors import Problem, ShunterError

from shunter_agent.drivers import make_runtime
from shunter_agent.images.room import is_in_memory
from shunter_agent.images.sharing import can_share
from shunter_agent.notices.trial import trial
from shunter_agent.settings import Settings
from shunter_agent.tls import TlsFiles, client_context, server_context


def problems(settings: Settings) -> tuple[Problem, ...]:
    """All that is wrong, tools and permissions first; the dump and restore of a canary, and what would be heard of the node's end, only
    when those are well.
    """
    found = [*_files(settings), *_tools(settings)]
    return tuple(found) or (*_canary(settings), *trial(settings))


def remarks(settings: Settings) -> tuple[Problem, ...]:
    """What costs more here than it has to, and keeps the node from nothing. Ask once there are no problems. Raises OSError."""
    if settings.images.keys or can_share(settings.state):
        return ()
    where = "memory" if is_in_memory(settings.state) else "the images' file system"
    return (
        Problem(
            code="SH829",
            what=f"{where} can't let files share blocks: each image takes its full size, whatever it has in common with others",
            remedy="Put `state` on XFS (mkfs.xfs makes it so by itself) or btrfs, or keep fewer images",
            subject=str(settings.state),
        ),
    )


def _files(settings: Settings) -> Iterator[Problem]:
    files = TlsFiles(ca=settings.tls.ca, cert=settings.tls.cert, key=settings.tls.key)
    try:
        server_context(files)
        client_context(files)
    except ShunterError as error:
        yield error.problem
    try:
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.state):
            pass
    except OSError as error:
        what = f"the state directory can't be written: {error.strerror}"
        yield Problem(code="SH673", what=what, remedy="Make it, owned by the agent's user", subject=str(settings.state))


def _tools(settings: Settings) -> Iterator[Problem]:
    if settings.runtime != "criu":
        return
    if os.geteuid() != 0:
        yield Problem(code="SH674", what="checkpoint and restore need root", remedy='Run the agent as root, or use runtime = "pretend"')
    if shutil.which("ip") is None:
        yield Problem(code="SH675", what="`ip` is missing", remedy="Install iproute2")
    if settings.bridge and not Path(f"/sys/class/net/{settings.bridge}").exists():
        what, remedy = f"there is no bridge {settings.bridge} here", "Make it, or change `bridge` in the settings"
        yield Problem(code="SH676", what=what, remedy=remedy, subject=settings.bridge)


def _canary(settings: Settings) -> tuple[Problem, ...]:
    try:
        runtime = make_runtime(settings)
    except ShunterError as error:
        return (error.problem,)
    canary, of_gpus = getattr(runtime, "canary", None), getattr(runtime, "gpu_problems", None)
    if canary is None or of_gpus is None:
        return ()
    with tempfile.TemporaryDirectory(dir=settings.state) as folder:
        found: tuple[Problem, ...] = (*canary(Path(folder) / "canary"), *of_gpus())
    return found
