"""All sources of notices that an agent's settings name."""

from collections.abc import Callable
from urllib.parse import urlsplit

from shunter.model.errors import Problem

from shunter_agent.notices import clouds, dcgm, http, listwatch, nodewatch
from shunter_agent.notices.file import FileNotices
from shunter_agent.notices.firsts import Firsts
from shunter_agent.notices.gpu import GpuNotices
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.metadata import Metadata
from shunter_agent.notices.port import NoticeSource
from shunter_agent.notices.watching import Watching
from shunter_agent.notices.xid import address
from shunter_agent.settings import CloudSettings, HttpSettings, KubernetesSettings, Settings

Clock = Callable[[], float]
Tell = Callable[[Problem], None]


def sources(
    settings: Settings,
    *,
    empty: Callable[[], bool],
    clock: Clock,
    log: Tell,
    homes: nodewatch.Homes = dict,
    firsts: Firsts | None = None,
) -> list[NoticeSource]:
    """Each source, not yet started. `empty` says whether the node has nothing left to lose; `homes` and `firsts`: see `nodewatch`.
    Raises Stalled SH659.
    """
    slots = gpus_of(settings)
    found: list[NoticeSource] = [cloud(one, empty=empty, clock=clock, log=log) for one in settings.clouds]
    if settings.notices is not None:
        found.append(FileNotices(settings.notices, clock=clock, log=log))
    kernel = GpuNotices(slots.pci, settings.kernel_log, clock=clock, log=log) if settings.kernel_log is not None else None
    if kernel is not None:
        found.append(kernel)
    if settings.dcgm is not None:
        mended = kernel.mended if kernel is not None else dcgm.never
        found.append(exporter(settings.dcgm, slots, clock=clock, log=log, mended=mended))
    if settings.kubernetes is not None:
        found.append(cluster(settings.kubernetes, settings.node, slots, clock=clock, log=log, homes=homes, firsts=firsts))
    found += [asked(one, clock=clock, log=log) for one in settings.http]
    return found


def gpus_of(settings: Settings) -> Gpus:
    """The GPUs that the slots name."""
    slots = settings.slot_ids()
    return Gpus(
        pci={address(gpu): name for name, slot in slots.items() for gpu in slot.pci},
        uuids={gpu: name for name, slot in slots.items() for gpu in slot.uuids},
    )


def cloud(settings: CloudSettings, *, empty: Callable[[], bool], clock: Clock, log: Tell) -> Watching:
    """A cloud's metadata service."""
    return clouds.source(
        settings.name,
        url=settings.url,
        lead=settings.lead,
        host_lead=settings.host_lead,
        acknowledge=settings.acknowledge,
        empty=empty,
        clock=clock,
        log=log,
    )


def exporter(url: str, slots: Gpus, *, clock: Clock, log: Tell, mended: Callable[[str, int], bool] = dcgm.never) -> Watching:
    """DCGM's exporter. `mended`: see `dcgm.looks`."""
    service = Metadata(dcgm.SOURCE, url.rstrip("/"), called="DCGM's exporter", largest=dcgm.LARGEST, clock=clock)
    return Watching(dcgm.SOURCE, dcgm.looks(service, slots, mended=mended), clock=clock, log=log, close=service.close)


def cluster(
    settings: KubernetesSettings,
    name: str,
    slots: Gpus,
    *,
    clock: Clock,
    log: Tell,
    homes: nodewatch.Homes = dict,
    firsts: Firsts | None = None,
) -> Watching:
    """The API server."""
    access = listwatch.Access(
        server=settings.server.rstrip("/"), ca=settings.ca, token=settings.token, cert=settings.cert, key=settings.key
    )
    return nodewatch.source(
        access, settings.node or name, name, slots, pods=settings.pods, clock=clock, log=log, homes=homes, firsts=firsts
    )


def asked(settings: HttpSettings, *, clock: Clock, log: Tell) -> Watching:
    """Anything that answers HTTP."""
    url = urlsplit(settings.url)
    service = Metadata(settings.name, f"{url.scheme}://{url.netloc}", called=f"the source {settings.name}", ca=settings.ca, clock=clock)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    looks = http.looks(service, path, every=settings.every, token=settings.token)
    return Watching(settings.name, looks, clock=clock, log=log, close=service.close)
