"""What NVIDIA's management library says of a node's GPUs, through `cuda.bindings.nvml`. For the helper alone: a call may hang."""

from collections.abc import Callable
from typing import Any

from shunter_agent.runtime.cuda.api import Absent, bindings
from shunter_agent.runtime.cuda.links import domains


class Nvml:
    """The library, once it is there. Raises Absent."""

    def __init__(self) -> None:
        self._nvml = bindings("nvml")
        self._domains: tuple[list[str], dict[str, str]] = ([], {})
        self._call(self._nvml.init_v2)

    def driver(self) -> str:
        """The driver's version, as in 580.95.05."""
        return str(self._call(self._nvml.system_get_driver_version))

    def gpus(self) -> tuple[list[dict[str, Any]], list[str]]:
        """What answers, sorted by PCI address, and what is said of each GPU that doesn't."""
        found, lost, handles = [], [], []
        for index in range(self._call(self._nvml.device_get_count_v2)):
            try:
                handle = self._nvml.device_get_handle_by_index_v2(index)
                found.append(self._gpu(handle))
                handles.append((str(found[-1]["pci"]), handle))
            except self._nvml.NvmlError as error:
                lost.append(f"GPU {index} doesn't answer: {error}")
        linked = self._linked(sorted(handles))
        return sorted([gpu | {"domain": linked.get(gpu["pci"], "")} for gpu in found], key=lambda gpu: str(gpu["pci"])), lost

    def _linked(self, handles: list[tuple[str, int]]) -> dict[str, str]:
        """The NVLink domain of each. Links don't come and go: asked again only when other GPUs answer."""
        here = [pci for pci, _ in handles]
        if self._domains[0] != here:
            self._domains = (here, domains(self._nvml, handles))
        return self._domains[1]

    def _gpu(self, handle: int) -> dict[str, Any]:
        memory = self._nvml.device_get_memory_info_v2(handle)
        return {
            "uuid": str(self._nvml.device_get_uuid(handle)),
            "model": str(self._nvml.device_get_name(handle)),
            "pci": str(self._nvml.device_get_pci_info_v3(handle).bus_id),
            "memory": int(memory.total),
            "free": int(memory.free),
            "mig": self._mig(handle),
            "used": self._used(handle),
        }

    def _mig(self, handle: int) -> bool:
        try:
            return bool(self._nvml.device_get_mig_mode(handle)[0])
        except self._nvml.NvmlError:  # it has no such mode
            return False

    def _used(self, handle: int) -> dict[str, int]:
        """Bytes by process. 0 where the driver doesn't tell."""
        found = self._nvml.device_get_compute_running_processes_v3(handle)
        pids, sizes = _list(found.pid), _list(found.used_gpu_memory)
        return {str(pid): size if size < 1 << 63 else 0 for pid, size in zip(pids, sizes, strict=True)}

    def _call(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401  (the bindings have no types)
        try:
            return call()
        except RuntimeError as error:
            raise Absent(f"NVIDIA's management library can't be loaded ({error})") from error
        except self._nvml.NvmlError as error:
            raise Absent(f"NVIDIA's management library doesn't answer ({error})") from error


def _list(values: Any) -> list[int]:  # noqa: ANN401  (one number for one process, an array for several)
    return [int(value) for value in values] if hasattr(values, "__len__") else [int(values)]
