"""What is mounted in a container, and where else it can be had: which of it goes along with a worker, which the destination has by
itself."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from shunter_agent.runtime.containers_files import Tree
from shunter_agent.runtime.containers_mounts import Mount, Root
from shunter_agent.runtime.containers_mounts import of as mounts_of

Kind = Literal["image", "own", "kubelet", "volume", "kernel", "host"]
"""`image`: the container's root. `own`: this pod's alone, and gone with it. `kubelet`: made alike for each pod. `volume`: of the pod's
specification, to be had wherever it is mounted. `kernel`: no files. `host`: the node's, which another node has not."""

_KERNEL: Final = frozenset({"proc", "sysfs", "cgroup2", "cgroup", "devpts", "mqueue", "devtmpfs", "securityfs", "debugfs", "bpf", "nsfs"})
_MADE: Final = frozenset({"configmap", "secret", "projected", "downward-api"})
_SANDBOX: Final = re.compile(r"/(sandboxes/[0-9a-f]{64}|overlay-containers/[0-9a-f]{64}/userdata)/(hostname|hosts|resolv\.conf|shm)")
"""What a runtime makes for each pod: containerd's and CRI-O's names."""
_HARDWARE: Final = re.compile(r"/proc/driver/nvidia/gpus/[^/]+(/|$)|/dev/nvidia\d+$|/dev/nvidia-caps/")
"""What NVIDIA's runtime mounts for each GPU."""
_HOST: Final = "1"
"""The node's first process, in whose mount namespace nothing can be that a container has mounted."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A mount, and what it is."""

    mount: Mount
    kind: Kind


def of(pid: int, uid: str) -> list[Volume]:
    """All that a process in the pod with this uid sees, the root first. Raises OSError."""
    by_device: dict[str, list[str]] = {}
    for one in mounts_of(_HOST):
        by_device.setdefault(one.device, []).append(f"{one.point}/")
    found = [Volume(mount=mount, kind=kind(mount, uid, by_device.get(mount.device, ()))) for mount in mounts_of(pid)]
    return sorted(found, key=lambda one: one.mount.point != "/")


def kind(mount: Mount, uid: str, at_host: Sequence[str]) -> Kind:
    """What a mount of a pod is; `at_host` is where its file system is mounted on the node, each with a `/` at its end."""
    if mount.point == "/":
        return "image"
    if mount.kind in _KERNEL or mount.point == "/dev":
        return "kernel"
    if mount.point == "/dev/shm":  # noqa: S108  (a place in a container, not one that is written to)
        return "own"
    for path in (f"{mount.root}/", *(at_host if mount.root == "/" else ())):
        found = re.search(rf"/pods/{re.escape(uid)}/volumes/kubernetes\.io~([^/]+)/", path)
        if found:
            return "own" if found[1] == "empty-dir" else "kubelet" if found[1] in _MADE else "volume"
    if f"/{uid}/" in f"{mount.root}/" or _SANDBOX.search(mount.root):
        return "kubelet"
    return "kernel" if mount.kind == "tmpfs" and not mount.writable else "host"


def points(found: Sequence[Volume]) -> list[str]:
    """Where something is mounted, but the root and what CRIU makes anew, the /proc of a PID namespace. In the order of the kernel."""
    return [one.mount.point for one in found if one.mount.point != "/" and not (one.mount.point == "/proc" and one.mount.kind == "proc")]


def of_hardware(point: str) -> bool:
    """What is mounted there is about a device of this node, and has its name: another node has others, and its container shows those."""
    return _HARDWARE.match(point) is not None


def upper(found: Sequence[Volume]) -> str | None:
    """The folder with what the container has changed of its image, as the agent reaches it. None: that can't be told.

    The container's own word on its root isn't enough: one with rights to mount could name any folder of the node. The runtime's counts, in
    the node's own mount namespace.
    """
    root = found[0].mount if found else None
    if root is None or root.point != "/" or root.kind != "overlay":
        return None
    for one in mounts_of(_HOST):
        path = one.option("upperdir")
        if one.kind == "overlay" and one.device == root.device and path and path.startswith("/"):
            return f"/proc/{_HOST}/root{path}"
    return None


@contextlib.contextmanager
def trees(found: Sequence[Volume], pid: int) -> Iterator[list[Tree]]:
    """The folders that go along, open. Raises OSError: one of them can't be had."""
    opened: list[Tree] = []
    root = Root(pid)
    try:
        layer = upper(found)
        if layer is not None:
            top = os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.append(Tree(top=top, point="/", layer=True))
        for one in found:
            if one.kind == "own" and one.mount.writable:
                opened.append(Tree(top=root.open(one.mount.point, os.O_RDONLY | os.O_DIRECTORY), point=one.mount.point))
        yield opened
    finally:
        root.close()
        for tree in opened:
            os.close(tree.top)
