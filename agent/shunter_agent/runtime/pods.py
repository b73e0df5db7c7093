"""Pods on this node: which containers run, which cgroup is whose, and the processes in it.

Two witnesses: the container runtime's own interface (CRI), and the names of cgroups, which a kubelet gives pods and a runtime containers.
The first is asked where its socket is there; the second needs nobody's answer. What a container could write itself counts nowhere.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import grpc
import msgspec
from shunter.model.errors import Problem, Rejected, Retry
from shunter.model.pod import MAIN, Pod

from shunter_agent.runtime import cri_pb2 as cri
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Process

CGROUPS: Final = Path("/sys/fs/cgroup")
ASK_S: Final = 5.0
"""Seconds that the container runtime may take for an answer."""
_DEEPEST: Final = 6
_ID: Final = re.compile(r"(?:cri-containerd-|crio-|docker-)?([0-9a-f]{64})(?:\.scope)?")
_RUNNING: Final = cri.CONTAINER_RUNNING
_POD_UID, _POD_NAME, _POD_NAMESPACE = "io.kubernetes.pod.uid", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"
_NAME: Final = "io.kubernetes.container.name"


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """One running container of a pod. `init` is process 1 of it, `image` what the runtime calls its image (empty: not known)."""

    pod: Pod
    id: str
    cgroup: Path
    init: Process
    image: str = ""
    environment: Mapping[str, str] = {}
    """As the runtime started it, of what NVIDIA's variables say; empty where the runtime wasn't asked."""


class Sandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as its kubelet described it to the runtime when it was made."""

    id: str
    pod: Pod
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


class Cri:
    """The container runtime's socket. Safe between threads."""

    def __init__(self, socket: Path) -> None:
        """`socket`: its path, such as `/run/containerd/containerd.sock`. Nothing is asked yet."""
        self.socket = socket
        # the name of the other side is a path, which as an authority some servers refuse
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=[("grpc.default_authority", "localhost")])

    def close(self) -> None:
        """Let go of the socket."""
        self._channel.close()

    def sandboxes(self) -> list[Sandbox]:
        """All pods that run. Raises Retry SH760."""
        answer = self._ask("ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse)
        ready = [one for one in answer.items if one.state == cri.SANDBOX_READY]
        return [
            Sandbox(
                id=one.id,
                pod=Pod(namespace=one.metadata.namespace, name=one.metadata.name, uid=one.metadata.uid),
                labels=dict(one.labels),
                annotations=dict(one.annotations),
            )
            for one in ready
        ]

    def containers(self, uid: str) -> list["cri.Container"]:
        """The running containers of the pod with this uid. Raises Retry SH760."""
        asked = cri.ContainerFilter(state=cri.ContainerStateValue(state=_RUNNING), label_selector={_POD_UID: uid})
        return list(self._ask("ListContainers", cri.ListContainersRequest(filter=asked), cri.ListContainersResponse).containers)

    def about(self, container: str) -> Mapping[str, object]:
        """What the runtime says beyond the standard of a container: `pid`, `runtimeSpec`. Empty where it says nothing. Raises Retry
        SH760."""
        request = cri.ContainerStatusRequest(container_id=container, verbose=True)
        info = self._ask("ContainerStatus", request, cri.ContainerStatusResponse).info
        try:
            found = json.loads(info.get("info", "{}"))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def address(self, sandbox: str) -> str:
        """A pod's address; empty for one that shares its node's. Raises Retry SH760."""
        request = cri.PodSandboxStatusRequest(pod_sandbox_id=sandbox)
        return str(self._ask("PodSandboxStatus", request, cri.PodSandboxStatusResponse).status.network.ip)

    def _ask(self, method: str, request, answer):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202  (one of several messages)
        call = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            return call(request, timeout=ASK_S)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.Call) else ""
            raise Retry(
                Problem(
                    code="SH760",
                    what=f"the container runtime doesn't answer {method}: {details or error}",
                    remedy="Check `socket` under [containers] in the agent's settings, and that the runtime runs",
                    subject=str(self.socket),
                )
            ) from error


class Pods:
    """Where the containers of this node are."""

    def __init__(self, runtime: Cri | None = None, cgroups: Path = CGROUPS) -> None:
        """`runtime` None: only cgroups are looked at. `cgroups`: where the unified hierarchy of the whole node is mounted."""
        self.runtime = runtime
        self._cgroups = cgroups

    def find(self, pod: Pod) -> Container:
        """The container that `pod` names; without a name its `main`, or its only one.

        Raises Rejected SH750 (no such container, or more than one), SH751 (no unified cgroups); Retry SH760.
        """
        self._unified()
        named = self._named(pod) if self.runtime is not None else {}
        below = list(self._cgroup_of(pod.uid))
        if not below:
            raise _missing(pod, f"no cgroup of pod {pod.uid} is on this node")
        found = {container: path for folder in below for container, path in _containers(folder)}
        if self.runtime is not None:
            found = {container: path for container, path in found.items() if container in named}
        chosen = _choose(pod, found, named)
        return self._container(pod, chosen, found[chosen], named.get(chosen))

    def _named(self, pod: Pod) -> dict[str, "cri.Container"]:
        assert self.runtime is not None
        return {one.id: one for one in self.runtime.containers(pod.uid)}

    def _unified(self) -> None:
        if not (self._cgroups / "cgroup.controllers").exists():
            raise Rejected(
                Problem(
                    code="SH751",
                    what=f"{self._cgroups} isn't the unified hierarchy of cgroups (v2), which containers are found by",
                    remedy="Start the node with systemd.unified_cgroup_hierarchy=1, as Kubernetes asks for",
                    subject=str(self._cgroups),
                )
            )

    def _cgroup_of(self, uid: str) -> Iterator[Path]:
        """`pod<uid>` (cgroupfs' names) or `kubepods-...-pod<uid with _>.slice` (systemd's), somewhere below a `kubepods`."""
        names = {f"pod{uid}", f"pod{uid.replace('-', '_')}.slice"}
        for folder in _folders(self._cgroups, _DEEPEST):
            last = folder.name
            if last in names or any(last.endswith(f"-{name}") for name in names):
                yield folder

    def _container(self, pod: Pod, container: str, cgroup: Path, known: "cri.Container | None") -> Container:
        init = first_of(cgroup)
        if init is None:
            raise _missing(pod, f"no process is left in its container {container[:12]}")
        about: Mapping[str, object] = {}
        if self.runtime is not None:
            about = self.runtime.about(container)
            said = about.get("pid")
            if isinstance(said, int) and said not in (0, init.pid) and processes.stat(said) is not None:
                raise _missing(pod, f"the runtime says that process {said} is its first, its cgroup that {init.pid} is")
        name = known.metadata.name if known is not None else pod.container
        whole = Pod(namespace=pod.namespace, name=pod.name, uid=pod.uid, container=name)
        return Container(
            pod=whole, id=container, cgroup=cgroup, init=init, image=known.image_ref if known else "", environment=_nvidia(about)
        )


def first_of(cgroup: Path) -> Process | None:
    """Process 1 of the PID namespace that a container's processes live in. None: there is none, as when it has just ended.

    Restored workers live in a namespace within the container's; of all that are a process 1, it is the one with the fewest above it.
    """
    found: list[tuple[int, Process]] = []
    for pid in pids_in(cgroup):
        inside = inner_pids(pid)
        seen = processes.stat(pid)
        if seen is not None and inside and inside[-1] == 1 and not seen.dead:
            found.append((len(inside), Process(pid=pid, started=seen.started)))
    return min(found, key=lambda one: (one[0], one[1].started))[1] if found else None


def pids_in(cgroup: Path) -> list[int]:
    """All processes in a cgroup and those below it. Empty when it is gone."""
    found = []
    for folder in _folders(cgroup, _DEEPEST):
        try:
            found += [int(line) for line in (folder / "cgroup.procs").read_text().split()]
        except OSError:
            continue
    return [pid for pid in found if pid > 0]


def inner_pids(pid: int) -> list[int]:
    """What a process is called in each PID namespace that it is in, from this process' own on. Empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return [int(word) for word in text.partition("\nNSpid:")[2].partition("\n")[0].split()]


def _folders(root: Path, depth: int) -> Iterator[Path]:
    yield root
    if depth == 0:
        return
    try:
        below = [entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in below:
        yield from _folders(root / name, depth - 1)


def _containers(pod: Path) -> Iterator[tuple[str, Path]]:
    for folder in _folders(pod, 2):
        match = _ID.fullmatch(folder.name)
        if match and pids_in(folder):
            yield match[1], folder


def _choose(pod: Pod, found: Mapping[str, Path], named: Mapping[str, "cri.Container"]) -> str:
    if named:
        wanted = pod.container or MAIN
        chosen = [container for container in found if named[container].metadata.name == wanted]
        chosen = chosen or (list(found) if len(found) == 1 and not pod.container else [])
    else:
        # by names alone a pod's own sandbox can't be told from its container, but by what runs in it
        chosen = [container for container, path in found.items() if not _is_pause(path)]
    if len(chosen) != 1:
        what = "no container of that name runs in it" if not chosen else f"{len(chosen)} of its containers run, and nobody said which"
        raise _missing(pod, what)
    return chosen[0]


def _is_pause(cgroup: Path) -> bool:
    init = first_of(cgroup)
    try:
        return init is None or os.readlink(f"/proc/{init.pid}/exe").rpartition("/")[2] == "pause"
    except OSError:
        return True


def _nvidia(about: Mapping[str, object]) -> dict[str, str]:
    spec = about.get("runtimeSpec")
    process = spec.get("process") if isinstance(spec, dict) else None
    lines = process.get("env") if isinstance(process, dict) else None
    pairs = (str(line).partition("=") for line in lines or ())
    return {name: value for name, mark, value in pairs if mark and name.startswith(("NVIDIA_", "CUDA_"))}


def _missing(pod: Pod, what: str) -> Rejected:
    return Rejected(
        Problem(
            code="SH750",
            what=f"the container of pod {pod} can't be found: {what}",
            remedy="Look at the pod with kubectl; if it was replaced, plan again",
            subject=pod.container or str(pod),
        )
    )
