"""The clouds' sources, by the names that the settings use."""

import time
from collections.abc import Callable
from typing import Final, Literal

from shunter.model.errors import Problem

from shunter_agent.notices import alibaba, aws, azure, gcp
from shunter_agent.notices.metadata import Metadata
from shunter_agent.notices.watching import Look, Watching

Cloud = Literal["aws", "gcp", "azure", "alibaba"]
_URLS: Final[dict[Cloud, str]] = {"aws": aws.URL, "gcp": gcp.URL, "azure": azure.URL, "alibaba": alibaba.URL}


def source(
    cloud: Cloud,
    *,
    url: str = "",
    lead: float | None = None,
    host_lead: float | None = None,
    acknowledge: bool = False,
    empty: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.time,
    log: Callable[[Problem], None] = lambda _problem: None,
) -> Watching:
    """A cloud's source. `url` other than the cloud's own is for tests and proxies; `lead` and `host_lead` (seconds) are GCP's, where the VM
    was given more than usual; `acknowledge` is Azure's, and `empty` says whether the node has nothing left to lose.
    """
    clients: list[Metadata] = []

    def client() -> Metadata:
        clients.append(Metadata(cloud, url or _URLS[cloud], clock=clock))
        return clients[-1]

    def close() -> None:
        for one in clients:
            one.close()

    looks: tuple[Look, ...]
    match cloud:
        case "aws":
            looks = aws.looks(client())
        case "gcp":
            looks = gcp.looks(
                client,
                lead_s=gcp.LEAD_S if lead is None else lead,
                host_lead_s=gcp.HOST_LEAD_S if host_lead is None else host_lead,
            )
        case "azure":
            looks = azure.looks(client(), empty=empty, acknowledge=acknowledge)
        case "alibaba":
            looks = alibaba.looks(client())
    return Watching(cloud, looks, clock=clock, log=log, close=close)
