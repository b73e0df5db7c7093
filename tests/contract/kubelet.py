"""A real containerd with its CRI, and what a kubelet does with it: sandboxes, containers, their volumes and logs. Only inside a lab."""

import contextlib
import functools
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc

CGROUP = Path("/sys/fs/cgroup")
_PLUGINS: Final = Path("/var/lib/cni")
NAMESPACE = "k8s.io"
MASKED: Final = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/sys/firmware")
READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""Of what a kubelet has hidden in each container."""
PAUSE, WORKER = "shunter.test/pause:1", "shunter.test/worker:1"
_STDLIB = Path("/usr/lib/python3.11")
_LEFT_OUT = (
    "test",
    "idlelib",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "tkinter",
    "unittest",
    "distutils",
    "venv",
    "dist-packages",
    "config-",
)


@functools.cache
def messages() -> ModuleType:
    """The generated module of kubelet.proto."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        here = Path(__file__).parent
        assert protoc.main(["protoc", f"-I{here}", f"--python_out={folder}", "kubelet.proto"]) == 0
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("kubelet_pb2")
        finally:
            sys.path.remove(folder)


def usable() -> str:
    """Why containers can't run here; empty when they can."""
    for command in ("containerd", "containerd-shim-runc-v2", "ctr", "runc"):
        if shutil.which(command) is None:
            return f"no {command}: install the packages containerd and runc"
    if "cgroup2" not in Path("/proc/filesystems").read_text():
        return "this kernel has no cgroup2"
    if not Path("/usr/lib/cni/bridge").exists():
        return "no CNI plugins: install the package containernetworking-plugins"
    return "" if Path("/usr/bin/python3.11").exists() else "no /usr/bin/python3.11 to build an image of"


def _closure(binaries: Iterable[str]) -> set[Path]:
    """The files and all libraries that they need."""
    found = {Path(one) for one in binaries}
    for line in subprocess.run(["ldd", *binaries], check=True, capture_output=True, text=True).stdout.splitlines():
        found |= {Path(word) for word in line.split() if word.startswith("/") and not word.endswith(":")}
    return found


def _layer(archive: Path) -> None:
    wanted = ("_socket", "_ctypes", "_posixshmem", "_multiproc")
    modules = [str(one) for one in (_STDLIB / "lib-dynload").glob("*.so") if one.name.startswith(wanted)]
    with tarfile.open(archive, "w") as tar:
        for folder in ("tmp", "proc", "sys", "dev", "etc", "run", "root", "usr/bin", "usr/lib", "usr/lib64", "var/tmp"):
            about = tarfile.TarInfo(folder)
            about.type, about.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(about)
        tar.addfile(tarfile.TarInfo("etc/from-the-image"))
        tar.add(Path("/usr/bin/sleep").resolve(), "pause")
        for link in ("bin", "lib", "lib64"):
            about = tarfile.TarInfo(link)
            about.type, about.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(about)
        for path in sorted(_closure(["/usr/bin/dash", "/usr/bin/sleep", "/usr/bin/cat", "/usr/bin/python3.11", *modules])):
            name = str(path.resolve() if not path.is_relative_to("/lib64") else "/usr" + str(path))
            tar.add(path.resolve(), name)
            if path.is_relative_to("/lib") or path.resolve() != path:
                _alias(tar, str(path), name)
        _alias(tar, "/usr/bin/sh", "/usr/bin/dash")
        _alias(tar, "/usr/bin/python3", "/usr/bin/python3.11")
        for path in sorted(_STDLIB.iterdir()):
            if not path.name.startswith(_LEFT_OUT) and path.name != "__pycache__":
                tar.add(path, str(path), filter=lambda one: None if "__pycache__" in one.name else one)


def _alias(tar: tarfile.TarFile, name: str, target: str) -> None:
    name = name if name.startswith("/usr") else "/usr" + name
    if name == target:
        return
    about = tarfile.TarInfo(name)
    about.type, about.linkname = tarfile.SYMTYPE, target
    tar.addfile(about)


def _image(folder: Path, tag: str, layer: Path) -> Path:
    """An archive that `ctr images import` takes."""
    import hashlib

    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/pause", "infinity"], "Env": ["PATH=/usr/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer.read_bytes()).hexdigest()]},
    }
    archive = folder / f"{tag.replace('/', '-').replace(':', '-')}.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(layer, "layer.tar")
        for name, value in (
            ("config.json", config),
            ("manifest.json", [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]),
        ):
            raw = json.dumps(value).encode()
            about = tarfile.TarInfo(name)
            about.size = len(raw)
            tar.addfile(about, io.BytesIO(raw))
    return archive


_CONFIG = """
version = 2
root = "{base}/root"
state = "{base}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "{base}/containerd.sock"
[ttrpc]
  address = "{base}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  disable_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{base}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{base}/cni"
"""

_RUNC = """#!{python} -S
import json, os, sys
arguments = sys.argv[1:]
if "create" in arguments:
    path = arguments[arguments.index("--bundle") + 1] + "/config.json"
    with open(path) as file:
        spec = json.load(file)
    for limit in ("cpu", "memory", "pids", "hugepageLimits", "blockIO"):
        spec["linux"].get("resources", {{}}).pop(limit, None)
    with open(path, "w") as file:
        json.dump(spec, file)
os.execv({runc!r}, ["runc", *arguments])
"""
"""runc, without limits: where the machine's other hierarchies have the controllers, the unified one has none to set."""


@dataclass(frozen=True)
class Pod:
    """One that runs."""

    name: str
    uid: str
    sandbox: str
    address: str
    config: Any


class Kubelet:
    """What a kubelet asks of the runtime. Nothing of it restarts anything."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.socket = base / "containerd.sock"
        self.parent = f"kubepods-{uuid.uuid4().hex[:8]}"
        self.pods = base / "pods"
        self._pb = messages()
        self._standing: dict[str, Pod] = {}

    def start(self) -> None:
        """Start containerd and import the two images."""
        for folder in ("cni", "log", "pods", "tmp"):
            (self.base / folder).mkdir(parents=True)
        (self.base / "config.toml").write_text(_CONFIG.format(base=self.base, pause=PAUSE))
        (self.base / "runc").write_text(_RUNC.format(python="/usr/bin/python3", runc=shutil.which("runc")))
        (self.base / "runc").chmod(0o755)
        (self.base / "cni/10-bridge.conflist").write_text(
            json.dumps(
                {
                    "cniVersion": "0.4.0",
                    "name": "pods",
                    "plugins": [
                        {
                            "type": "bridge",
                            "bridge": "cni0",
                            "isGateway": True,
                            "ipam": {"type": "host-local", "subnet": "10.88.0.0/24", "dataDir": str(self.base / "ipam")},
                        }
                    ],
                }
            )
        )
        self._log = (self.base / "containerd.log").open("wb")
        self._daemon = subprocess.Popen(
            ["containerd", "--config", str(self.base / "config.toml")], stdout=self._log, stderr=self._log, start_new_session=True
        )
        layer = self.base / "tmp/layer.tar"
        _layer(layer)
        archives = [_image(self.base / "tmp", tag, layer) for tag in (PAUSE, WORKER)]
        self._until(self._answers, "containerd doesn't answer")
        for archive in archives:
            self.ctr("images", "import", str(archive))
            archive.unlink()
        self._channel = grpc.insecure_channel(f"unix://{self.socket}")

    def _answers(self) -> bool:
        return subprocess.run(["ctr", "-a", str(self.socket), "version"], check=False, capture_output=True).returncode == 0

    def _until(self, condition: Callable[[], bool], what: str, deadline_s: float = 30.0) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < end, f"{what}: {(self.base / 'containerd.log').read_text()[-2000:]}"
            time.sleep(0.02)

    def ctr(self, *arguments: str) -> str:
        """Containerd's own command line."""
        done = subprocess.run(["ctr", "-a", str(self.socket), "-n", NAMESPACE, *arguments], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ask(self, method: str, request: Any, answer: str = "Empty") -> Any:
        """One call of the CRI."""
        call = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(self._pb, answer).FromString,
        )
        return call(request, timeout=60)

    def pod(self, name: str, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None) -> Pod:
        """A sandbox with an address of its own on the node's bridge."""
        pb, uid = self._pb, str(uuid.uuid4())
        labels = {**(labels or {}), "io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "serving"}
        log = self.base / "log" / f"serving_{name}_{uid}"
        log.mkdir()
        config = pb.SandboxConfig(
            metadata=pb.SandboxMetadata(name=name, uid=uid, namespace="serving"),
            hostname=name,
            log_directory=str(log),
            labels=labels,
            annotations=dict(annotations or {}),
            linux=pb.LinuxSandbox(
                cgroup_parent=f"/{self.parent}/burstable/pod{uid}",
                security_context=pb.SandboxSecurity(namespace_options=pb.NamespaceOption(pid=pb.CONTAINER)),
            ),
        )
        sandbox = self.ask("RunPodSandbox", pb.RunSandboxRequest(config=config), "RunSandboxResponse").pod_sandbox_id
        status = self.ask("PodSandboxStatus", pb.SandboxRequest(pod_sandbox_id=sandbox), "SandboxStatusResponse").status
        self._standing[sandbox] = Pod(name, uid, sandbox, status.network.ip, config)
        return self._standing[sandbox]

    def container(
        self,
        pod: Pod,
        command: list[str],
        *,
        volumes: tuple[str, ...] = (),
        host: tuple[Path, str] | None = None,
        name: str = "main",
        attempt: int = 0,
        tty: bool = False,
    ) -> str:
        """A running container, with what a kubelet mounts into each, an emptyDir at each path of `volumes`, and a folder of the `host`.
        Gives its id."""
        pb = self._pb
        folder = self.pods / pod.uid
        folder.mkdir(exist_ok=True)
        hosts, log = folder / "etc-hosts", folder / "containers" / name / uuid.uuid4().hex[:8]
        hosts.write_text("127.0.0.1 localhost\n")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        mounts = [(str(hosts), "/etc/hosts"), (str(log), "/dev/termination-log")]
        for path in volumes:
            empty = folder / "volumes/kubernetes.io~empty-dir" / path.strip("/").replace("/", "-")
            empty.mkdir(parents=True, exist_ok=True)
            mounts.append((str(empty), path))
        if host is not None:
            mounts.append((str(host[0]), host[1]))
        config = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name=name, attempt=attempt),
            image=pb.ImageSpec(image=WORKER),
            command=command,
            labels={**pod.config.labels, "io.kubernetes.container.name": name},
            mounts=[pb.Mount(host_path=outside, container_path=inside) for outside, inside in mounts],
            log_path=f"{name}.log",
            tty=tty,
            linux=pb.LinuxContainer(
                security_context=pb.ContainerSecurity(
                    namespace_options=pb.NamespaceOption(pid=pb.CONTAINER),
                    no_new_privs=True,
                    masked_paths=MASKED,
                    readonly_paths=READ_ONLY,
                    seccomp=pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault),
                )
            ),
        )
        created = self.ask(
            "CreateContainer",
            pb.CreateContainerRequest(pod_sandbox_id=pod.sandbox, config=config, sandbox_config=pod.config),
            "CreateContainerResponse",
        )
        self.ask("StartContainer", pb.ContainerRequest(container_id=created.container_id))
        return str(created.container_id)

    def status(self, container: str) -> Any:
        """The runtime's own word on a container; state 1: running, 2: exited."""
        return self.ask("ContainerStatus", self._pb.ContainerRequest(container_id=container), "ContainerStatusResponse").status

    def log(self, pod: Pod, name: str = "main") -> str:
        """What the container has said, as `kubectl logs` shows it."""
        return (Path(pod.config.log_directory) / f"{name}.log").read_text()

    def stop_container(self, container: str, *, grace_s: int) -> None:
        """As when its pod is deleted: SIGTERM to its process 1, and SIGKILL after so many seconds."""
        self.ask("StopContainer", self._pb.StopContainerRequest(container_id=container, timeout=grace_s))

    def remove(self, pod: Pod) -> None:
        """As when a pod is deleted."""
        request = self._pb.SandboxRequest(pod_sandbox_id=pod.sandbox)
        self.ask("StopPodSandbox", request)
        self.ask("RemovePodSandbox", request)
        self._standing.pop(pod.sandbox, None)

    def stop(self) -> None:
        """End everything, and leave no cgroup behind, and no pod: it would go on answering to its address, which the next kubelet's first
        pods have, too."""
        for pod in list(self._standing.values()):
            with contextlib.suppress(grpc.RpcError):  # it may not get that far with a test that failed
                self.remove(pod)
        for line in self.ctr("tasks", "list", "-q").split():
            self.ctr("tasks", "kill", "-s", "SIGKILL", line)
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.wait(20)
        self._log.close()
        for shim in _shims(str(self.base)):
            os.kill(shim, signal.SIGKILL)
        end = time.monotonic() + 10
        while not _cleared(CGROUP / self.parent) and time.monotonic() < end:
            time.sleep(0.02)


def _shims(base: str) -> Iterator[int]:
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and base.encode() in (line := Path(f"/proc/{name}/cmdline").read_bytes()) and b"containerd-shim" in line:
                yield int(name)


def _cleared(root: Path) -> bool:
    if not root.exists():
        return True
    with contextlib.suppress(OSError):
        for folder, _folders, _files in os.walk(root, topdown=False):
            with contextlib.suppress(OSError):
                (Path(folder) / "cgroup.kill").write_text("1")
            os.rmdir(folder)
    return not root.exists()


@contextlib.contextmanager
def cgroup2_alone() -> Iterator[None]:
    """The lab's view of cgroups: the unified hierarchy, as on a node of today. And a place for what network plugins remember."""
    _PLUGINS.mkdir(exist_ok=True)
    mounts = (("cgroup2", str(CGROUP)), ("tmpfs", str(_PLUGINS)))
    for kind, point in mounts:
        subprocess.run(["mount", "-t", kind, kind, point], check=True)
    try:
        yield
    finally:
        for _kind, point in mounts:
            subprocess.run(["umount", "-l", point], check=True)


@contextlib.contextmanager
def running(base: Path) -> Iterator[Kubelet]:
    """A kubelet's runtime for as long as this lasts."""
    with cgroup2_alone():
        kubelet = Kubelet(base)
        kubelet.start()
        try:
            yield kubelet
        finally:
            kubelet.stop()
