"""Which of a node's GPUs a container has: as its kubelet says, or by the devices that it was given."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
from shunter.model.pod import Pod

from shunter_agent.notices.xid import address
from shunter_agent.runtime import cri_pb2 as cri
from shunter_agent.runtime.pods import Container
from shunter_agent.runtime.port import Gpu

RESOURCES: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
ASK_S: Final = 2.0
"""Seconds that the kubelet may take for an answer."""
_PREFIX: Final = "nvidia.com/"
_DEVICE: Final = re.compile(r"nvidia(\d+)")
_MINOR: Final = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_DRIVER: Final = Path("/proc/driver/nvidia/gpus")
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"


def of(container: Container, gpus: Sequence[Gpu], *, socket: Path = RESOURCES, driver: Path = _DRIVER) -> tuple[str, ...]:
    """PCI addresses of the container's GPUs among a node's, in their order. Empty: it has none, or nobody says.

    The kubelet's word counts before the devices in it, and both before its environment, which an image can bring along.
    """
    if not gpus:
        return ()
    given = _as_allotted(container.pod, socket)
    if given is None:
        given = _as_devices(container, driver)
    if given is None:
        given = _as_told(container.environment)
    return tuple(gpu.pci for gpu in gpus if gpu.uuid in given or gpu.pci in given)


def _as_allotted(pod: Pod, socket: Path) -> set[str] | None:
    """UUIDs, as the kubelet's device manager gave them out. None: there is nobody to ask, or no answer about this container."""
    if not socket.exists():
        return None
    channel = grpc.insecure_channel(f"unix://{socket}", options=[("grpc.default_authority", "localhost")])
    try:
        call = channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=cri.ListPodResourcesRequest.SerializeToString,
            response_deserializer=cri.ListPodResourcesResponse.FromString,
        )
        answer = call(cri.ListPodResourcesRequest(), timeout=ASK_S)
    except grpc.RpcError:
        return None
    finally:
        channel.close()
    for one in answer.pod_resources:
        for container in one.containers:
            if (one.namespace, one.name, container.name) == (pod.namespace, pod.name, pod.container):
                found = {name for device in container.devices if device.resource_name.startswith(_PREFIX) for name in device.device_ids}
                return found or None
    return None


def _as_devices(container: Container, driver: Path) -> set[str] | None:
    """PCI addresses, by the device files in its /dev. None: it can't be told."""
    try:
        inside = {int(match[1]) for name in os.listdir(f"/proc/{container.init.pid}/root/dev") if (match := _DEVICE.fullmatch(name))}
        known = {}
        for folder in driver.iterdir():
            with contextlib.suppress(OSError):
                match = _MINOR.search((folder / "information").read_text())
                if match:
                    known[int(match[1])] = address(folder.name)
    except OSError:
        return None
    found = {known[minor] for minor in inside if minor in known}
    return found or None


def _as_told(environment: Mapping[str, str]) -> set[str]:
    return {name for name in environment.get(_VISIBLE, "").split(",") if name.startswith("GPU-")}
