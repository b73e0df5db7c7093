"""Which of a node's GPUs NVLink connects, as NVIDIA's management library tells."""

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

_COMPLETED: Final = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED: the fabric manager has made the GPU a part of its fabric."""
_OK: Final = 0
"""NVML_P2P_STATUS_OK."""


def domains(nvml: Any, gpus: Sequence[tuple[str, int]]) -> dict[str, str]:  # noqa: ANN401  (the bindings have no types)
    """The domain of each GPU (by PCI address, each with its handle), as in `port.Gpu`; those of which nobody can say it aren't in it.

    A fabric of several nodes (MNNVL) has a name of its own, that of the label `nvidia.com/gpu.clique`. Within a node all that reach each
    other over NVLink, also by way of others, are one.
    """
    fabric = {pci: name for pci, handle in gpus if (name := _told(nvml, _fabric, nvml, handle))}
    here = [(pci, handle) for pci, handle in gpus if pci not in fabric]
    linked: dict[str, set[str]] = {pci: {pci} for pci, _ in here}
    for n, (pci, handle) in enumerate(here):
        for other, theirs in here[n + 1 :]:
            answer = _told(nvml, nvml.device_get_p2p_status, handle, theirs, int(nvml.GpuP2PCapsIndex.P2P_CAPS_INDEX_NVLINK))
            if answer is None:
                return fabric
            if answer == _OK:
                both = linked[pci] | linked[other]
                linked |= dict.fromkeys(both, both)
    return fabric | {pci: min(both) for pci, both in linked.items()}


def _fabric(nvml: Any, handle: int) -> str:  # noqa: ANN401
    """`<cluster>.<clique>`; empty for a GPU that is in no fabric beyond its node."""
    info = nvml.device_get_gpu_fabric_info_v(handle)
    cluster = uuid.UUID(bytes=bytes(int(part) & 0xFF for part in info.cluster_uuid))
    return f"{cluster}.{int(info.clique_id)}" if int(info.state) == _COMPLETED and cluster.int else ""


def _told(nvml: Any, call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
    """What the library answers; None where it, the driver or the GPU doesn't know of such things."""
    try:
        return call(*arguments)
    except (nvml.NvmlError, AttributeError, RuntimeError):
        return None
