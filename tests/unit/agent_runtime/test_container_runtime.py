"""What of containers needs no container: names of cgroups, kinds of mounts, sockets in images, files that go along, GPUs by the kubelet."""

import contextlib
import os
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from shunter.model.errors import Rejected
from shunter.model.pod import Pod
from shunter_agent.images.criu_images_pb2 import FileEntry, InetSocket
from shunter_agent.runtime import containers, containers_check, containers_gpus, containers_holds, pods, preflight
from shunter_agent.runtime import containers_files as files
from shunter_agent.runtime import containers_links as links
from shunter_agent.runtime import containers_mounts as mounts
from shunter_agent.runtime import containers_volumes as volumes
from shunter_agent.runtime import cri_pb2 as cri
from shunter_agent.runtime import process as processes
from shunter_agent.runtime.pods import Container, Pods
from shunter_agent.runtime.port import Gpu, Process

UID = "2950fd21-15dc-460f-8ba3-f11249aaf442"
ID = "3c78d85e63007fab0247ba278eefbb49656526e71de90ec0773a44a002ebe378"
POD = Pod(namespace="serving", name="decode-0", uid=UID, container="main")
INIT = Process(pid=77, started=1)
needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def wait_for(found: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not found():
        assert time.monotonic() < until
        time.sleep(0.01)


# -- where a pod's processes are


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").touch()
    return tmp_path


def cgroup(root: Path, path: str, pid: int = 77) -> None:
    (root / path).mkdir(parents=True)
    (root / path / "cgroup.procs").write_text(f"{pid}\n")


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods/burstable/pod{UID}/{ID}",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope",
    ],
)
def test_a_pods_container_is_found_by_the_names_of_both_drivers(cgroups: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroup(cgroups, path)
    cgroup(cgroups, path.replace(UID, UID[::-1]).replace(UID.replace("-", "_"), UID.replace("-", "_")[::-1]), 78)
    monkeypatch.setattr(pods, "first_of", lambda _cgroup: INIT)
    monkeypatch.setattr(pods, "_is_pause", lambda _cgroup: False)
    found = Pods(None, cgroups).find(POD)
    assert (found.id, found.cgroup, found.init) == (ID, cgroups / path, INIT)


def test_a_pod_that_isnt_here_is_said_not_to_be(cgroups: Path) -> None:
    with pytest.raises(Rejected) as refused:
        Pods(None, cgroups).find(POD)
    assert refused.value.problem.code == "SH750"


def test_a_pods_sandbox_isnt_taken_for_its_container(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ID[::-1]
    for container in (ID, other):
        cgroup(cgroups, f"kubepods/pod{UID}/{container}")
    monkeypatch.setattr(pods, "first_of", lambda _cgroup: INIT)
    monkeypatch.setattr(pods, "_is_pause", lambda path: path.name == other)
    assert Pods(None, cgroups).find(POD).id == ID
    monkeypatch.setattr(pods, "_is_pause", lambda _path: False)
    with pytest.raises(Rejected, match="2 of its containers"):
        Pods(None, cgroups).find(POD)


def test_old_cgroups_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected) as refused:
        Pods(None, tmp_path).find(POD)
    assert refused.value.problem.code == "SH751"


def test_a_restored_worker_isnt_taken_for_its_placeholder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {10: [10, 1], 11: [11, 5, 1], 12: [12, 6, 2]}
    monkeypatch.setattr(pods, "inner_pids", names.get)
    monkeypatch.setattr(pods, "pids_in", lambda _cgroup: [12, 11, 10])
    monkeypatch.setattr(processes, "stat", lambda pid: processes.Stat(pid, "S", 0, 0, 1000 - pid))
    assert pods.first_of(tmp_path) == Process(pid=10, started=990)


# -- mounts


def mount(point: str, root: str = "/", kind: str = "ext4", options: str = "rw", device: str = "0:9") -> mounts.Mount:
    return mounts.parse(f"10 1 {device} {root} {point} {options},relatime master:1 - {kind} none rw")


def test_names_with_blanks_are_read_as_the_kernel_writes_them() -> None:
    line = r"10 1 0:9 /a\040b /mnt/with\040blank rw,nosuid shared:3 master:1 - overlay overlay rw,upperdir=/x\054y/fs,workdir=/w"
    read = mounts.parse(line)
    assert (read.root, read.point, read.option("upperdir"), read.writable) == ("/a b", "/mnt/with blank", "/x,y/fs", True)


def opened() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")}


def test_a_copy_that_died_before_it_was_shown_devices_keeps_nothing_open() -> None:
    before = opened()
    with pytest.raises(FileNotFoundError):
        mounts.carry_over(os.getpid(), 2**22 + 17, ["/dev/nvidia0"])
    assert opened() <= before


def test_a_container_without_a_proc_keeps_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    tree.touch()

    def take(name: bytes) -> int:
        if name == b"/proc":
            raise FileNotFoundError("no /proc")
        return os.open(tree, os.O_RDONLY)

    monkeypatch.setattr(mounts, "_open_tree", take)
    monkeypatch.setattr(mounts, "call", lambda *_: None)
    with contextlib.closing(mounts.Namespaces(os.getpid())) as spaces, pytest.raises(FileNotFoundError, match="no /proc"):
        mounts.within(spaces, tmp_path, (tmp_path, tmp_path), lambda: None)
    assert str(tree) not in opened()


@pytest.mark.parametrize(
    ("given", "at_host", "kind"),
    [
        (mount("/", kind="overlay"), (), "image"),
        (mount("/proc", kind="proc"), (), "kernel"),
        (mount("/dev/shm", kind="tmpfs"), (), "own"),
        (mount("/cache", f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/cache"), (), "own"),
        (mount("/cache", kind="tmpfs"), (f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/cache/",), "own"),
        (mount("/keys", kind="tmpfs"), (f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~secret/keys/",), "kubelet"),
        (mount("/models", kind="nfs4"), (f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~nfs/models/",), "volume"),
        (mount("/etc/hosts", f"/var/lib/kubelet/pods/{UID}/etc-hosts"), (), "kubelet"),
        (mount("/etc/resolv.conf", f"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/resolv.conf"), (), "kubelet"),
        (mount("/proc/acpi", kind="tmpfs", options="ro"), (), "kernel"),
        (mount("/host", "/var/lib/containers"), (), "host"),
        (mount("/cache", f"/var/lib/kubelet/pods/{UID[::-1]}/volumes/kubernetes.io~empty-dir/cache"), (), "host"),
    ],
)
def test_what_a_mount_is(given: mounts.Mount, at_host: tuple[str, ...], kind: str) -> None:
    assert volumes.kind(given, UID, at_host) == kind


@pytest.mark.parametrize(
    ("point", "of_hardware"),
    [
        ("/proc/driver/nvidia/gpus/0000:4f:00.0", True),
        ("/dev/nvidia3", True),
        ("/dev/nvidiactl", False),
        ("/proc/driver/nvidia", False),
        ("/dev/nvidia-uvm", False),
        ("/data/dev/nvidia3", False),
    ],
)
def test_what_is_named_after_a_gpu_is_told_from_what_is_the_drivers(point: str, of_hardware: bool) -> None:
    assert volumes.of_hardware(point) is of_hardware


# -- connections


def words(address: str) -> list[int]:
    import ipaddress

    raw = ipaddress.ip_address(address).packed
    return list(struct.unpack(f"<{len(raw) // 4}I", raw))


def entry(number: int, state: int, near: tuple[str, int], far: tuple[str, int] = ("0.0.0.0", 0), proto: int = 6) -> FileEntry:
    return FileEntry(
        type=4,
        id=number,
        isk=InetSocket(
            family=2,
            type=1,
            proto=proto,
            state=state,
            src_port=near[1],
            dst_port=far[1],
            src_addr=words(near[0]),
            dst_addr=words(far[0]),
        ),
    )


def image(*entries: FileEntry, beside: bytes = b"\xa2\x06\x03abc") -> bytes:
    """`beside`: field 100 of each, which the schema doesn't know."""
    out = struct.pack("<II", 0x54564319, 0x56303138)
    for one in entries:
        raw = one.SerializeToString() + beside
        out += struct.pack("<I", len(raw)) + raw
    return out


def read(data: bytes) -> dict[int, InetSocket]:
    found, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        raw = data[at + 4 : at + 4 + length]
        assert b"\xa2\x06\x03abc" in raw, "what the schema doesn't know is lost"
        one = FileEntry.FromString(raw)
        found[one.id] = one.isk
        at += 4 + length
    return found


def test_what_is_within_the_worker_goes_along_and_what_is_with_others_is_closed() -> None:
    data = image(
        entry(1, 10, ("0.0.0.0", 9000)),
        entry(2, 10, ("10.88.0.2", 9001)),
        entry(3, 1, ("127.0.0.1", 7000), ("127.0.0.1", 50000)),
        entry(4, 1, ("127.0.0.1", 50000), ("127.0.0.1", 7000)),
        entry(5, 1, ("10.88.0.2", 9001), ("10.88.0.2", 50001)),
        entry(6, 1, ("10.88.0.2", 50001), ("10.88.0.2", 9001)),
        entry(7, 1, ("10.88.0.2", 9000), ("10.88.0.9", 40000)),
        entry(8, 8, ("10.88.0.2", 9000), ("10.88.0.9", 40001)),
        entry(9, 7, ("10.88.0.2", 5353), proto=17),
    )
    new, closed, unmovable = links.rewritten(data, {"10.88.0.2": "10.88.0.3"})
    found = read(new)
    assert closed == 2
    assert unmovable == []
    assert list(found[1].src_addr) == [0]
    assert list(found[2].src_addr) == words("10.88.0.3")
    assert (found[3].state, found[3].src_port, list(found[3].dst_addr)) == (1, 7000, words("127.0.0.1"))
    assert [list(found[5].src_addr), list(found[5].dst_addr), found[5].state] == [words("10.88.0.3"), words("10.88.0.3"), 1]
    for number in (7, 8):
        assert (found[number].state, found[number].src_port, found[number].dst_port) == (7, 0, 0)
        assert list(found[number].src_addr) == list(found[number].dst_addr) == [0]
    assert list(found[9].src_addr) == words("10.88.0.3")


def test_a_socket_of_an_address_that_isnt_there_is_told() -> None:
    _new, _closed, unmovable = links.rewritten(image(entry(1, 10, ("192.168.7.7", 80))), {"10.88.0.2": "10.88.0.3"})
    assert unmovable == [links.Unmovable("192.168.7.7", 80)]


def test_half_an_image_isnt_rewritten() -> None:
    with pytest.raises(ValueError, match="in the middle"):
        links.rewritten(image(entry(1, 10, ("0.0.0.0", 80)))[:-3], {})


def test_addresses_stand_for_those_of_their_kind() -> None:
    assert links.moves(["10.0.0.1", "fd00::1"], ["10.0.0.9", "fd00::9"]) == {"10.0.0.1": "10.0.0.9", "fd00::1": "fd00::9"}
    assert links.moves(["10.0.0.1"], ["10.0.0.1", "10.0.0.2"]) == {"10.0.0.1": "10.0.0.1"}
    assert links.moves(["10.0.0.1", "fd00::1"], ["10.0.0.9"]) == {"10.0.0.1": "10.0.0.9"}


# -- files


class RootAt(mounts.Root):
    """A folder in the place of a container's root."""

    def __init__(self, folder: Path) -> None:
        self._root = os.open(folder, os.O_PATH | os.O_DIRECTORY)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[RootAt]:
    (tmp_path / "there").mkdir()
    root = RootAt(tmp_path / "there")
    yield root
    root.close()


def packed(tmp_path: Path, points: tuple[str, ...] = (), point: str = "/") -> tuple[Path, files.Gone]:
    top = os.open(tmp_path / "upper", os.O_RDONLY | os.O_DIRECTORY)
    try:
        gone = files.pack([files.Tree(top=top, point=point, layer=True)], points, tmp_path / "a.tar")
    finally:
        os.close(top)
    return tmp_path / "a.tar", gone


def test_what_a_container_changed_comes_to_be_in_another(tmp_path: Path, there: RootAt) -> None:
    upper, goal = tmp_path / "upper", tmp_path / "there"
    (upper / "var/cache").mkdir(parents=True)
    (upper / "var/cache/kernel").write_bytes(b"k" * 3000000)
    os.chmod(upper / "var/cache/kernel", 0o4750)
    os.setxattr(upper / "var/cache/kernel", "user.note", b"\xff\x00of mine")
    os.utime(upper / "var/cache/kernel", (1000, 2000))
    os.link(upper / "var/cache/kernel", upper / "var/again")
    os.symlink("/etc/passwd", upper / "var/link")
    os.mkfifo(upper / "var/fifo")
    os.mknod(upper / "var/deleted", 0o600 | 0o020000, 0)
    (upper / "etc").mkdir()
    (upper / "etc/hosts").write_text("of the runtime's")
    (goal / "var").mkdir()
    (goal / "var/deleted").mkdir()
    (goal / "var/deleted/file").touch()
    (goal / "var/cache").write_text("a file before")
    archive, gone = packed(tmp_path, points=("/etc/hosts",))
    files.unpack(archive, gone, there, {"/etc/resolv.conf"})
    copy = goal / "var/cache/kernel"
    assert copy.read_bytes() == b"k" * 3000000
    assert (copy.stat().st_mode & 0o7777, copy.stat().st_mtime, os.getxattr(copy, "user.note")) == (0o4750, 2000, b"\xff\x00of mine")
    assert (goal / "var/again").stat().st_ino == copy.stat().st_ino
    assert os.readlink(goal / "var/link") == "/etc/passwd"
    assert (goal / "var/fifo").is_fifo()
    assert not (goal / "var/deleted").exists()
    assert not (goal / "etc/hosts").exists(), "what is mounted over the image goes along"


def test_nothing_is_written_where_a_link_leads_out_of_the_container(tmp_path: Path, there: RootAt) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "upper/data").mkdir(parents=True)
    (tmp_path / "upper/data/file").write_text("x")
    os.symlink(outside, tmp_path / "there/data")  # an absolute link, which within the container means a folder of its own
    archive, gone = packed(tmp_path)
    files.unpack(archive, gone, there, set())
    assert list(outside.iterdir()) == []
    assert (tmp_path / "there/data/file").read_text() == "x"


@pytest.fixture
def volume(tmp_path: Path, there: RootAt) -> Iterator[Path]:
    """A volume that the container has mounted at /models/cache, and others have, too."""
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "weights").write_text("of all of the pool")
    point = tmp_path / "there/models/cache"
    point.mkdir(parents=True)
    subprocess.run(["mount", "--bind", str(volume), str(point)], check=True)
    yield volume
    subprocess.run(["umount", str(point)], check=True)


@needs_mounts
def test_what_is_mounted_stays_whatever_happened_to_the_folders_above_it(tmp_path: Path, there: RootAt, volume: Path) -> None:
    """A folder that a runtime has made for a mount is new, and so one that hides what the image had there: as if it were emptied."""
    (tmp_path / "upper").mkdir()
    (tmp_path / "there/models/old").touch()
    archive, _ = packed(tmp_path)
    points = {"/", "/models/cache"}
    for gone in (files.Gone(emptied=("/models",)), files.Gone(removed=("/models",)), files.Gone(emptied=("/",))):
        files.unpack(archive, gone, there, points, points)
        assert (volume / "weights").read_text() == "of all of the pool"
        assert (tmp_path / "there/models/cache/weights").exists(), "the mount itself is gone"
    assert not (tmp_path / "there/models/old").exists()
    (tmp_path / "upper/models").write_text("no folder any more")
    (tmp_path / "a.tar").unlink()
    archive, gone = packed(tmp_path)
    with pytest.raises(OSError, match="mounted below"):
        files.unpack(archive, gone, there, points, points)
    assert (volume / "weights").exists()


@needs_mounts
def test_files_go_into_a_volume_of_the_workers_own_and_not_into_one_that_it_never_had(tmp_path: Path, there: RootAt, volume: Path) -> None:
    (tmp_path / "upper/cache").mkdir(parents=True)
    (tmp_path / "upper/cache/kernel").write_text("x")
    archive, gone = packed(tmp_path, point="/models")
    files.unpack(archive, gone, there, {"/models/cache"}, ())
    assert [one.name for one in volume.iterdir()] == ["weights"]
    files.unpack(archive, files.Gone(emptied=("/models/cache",)), there, {"/models/cache"}, ())
    assert [one.name for one in volume.iterdir()] == ["weights"], "a folder of the image's at which only the placeholder has a volume"
    files.unpack(archive, gone, there, {"/models/cache"}, {"/models/cache"})
    assert (volume / "kernel").read_text() == "x"


def test_a_pipe_that_nobody_reads_holds_no_agent_up(tmp_path: Path) -> None:
    """A container can put one in the place of its own log."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDWR)
    idle = subprocess.Popen(["/bin/sh", "-c", f"exec sleep 60 >{fifo}"])
    home = Container(pod=POD, id=ID, cgroup=tmp_path, init=Process(pid=idle.pid, started=1))
    try:
        wait_for(lambda: os.readlink(f"/proc/{idle.pid}/fd/1") == str(fifo))
        out = containers._stream(home, 1)
        assert os.get_blocking(out), "the worker, whose log it becomes, is to wait at it"
        os.close(out)
        os.close(reader)
        late = threading.Timer(5, lambda: os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))  # or it would hold up this test
        late.start()
        with pytest.raises(OSError, match="No such device"):
            containers._stream(home, 1)
        late.cancel()
    finally:
        idle.kill()
        idle.wait()


def test_what_is_no_pipe_is_never_opened(tmp_path: Path) -> None:
    """A container can hold a device that it may not open, in the place of its own log; an agent might."""
    with (tmp_path / "device").open("w") as file, subprocess.Popen(["sleep", "60"], stdout=file) as idle:
        try:
            with pytest.raises(OSError, match="no pipe"):
                containers._stream(Container(pod=POD, id=ID, cgroup=tmp_path, init=Process(pid=idle.pid, started=1)), 1)
        finally:
            idle.kill()


@pytest.mark.parametrize("where", ["file", "link", "removed", "emptied"])
def test_an_image_that_names_what_is_above_is_refused(tmp_path: Path, there: RootAt, where: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        about = tarfile.TarInfo("a/../../kept/file" if where == "file" else "link")
        if where == "link":
            about.type, about.linkname = tarfile.LNKTYPE, "../kept/file"
        if where in ("file", "link"):
            tar.addfile(about)
    gone = files.Gone(removed=("/..",) if where == "removed" else (), emptied=("/x/../..",) if where == "emptied" else ())
    with pytest.raises(tarfile.TarError):
        files.unpack(tmp_path / "a.tar", gone, there, set())
    assert (tmp_path / "kept/file").exists()


def test_a_size_counts_files_and_not_what_is_mounted_over(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "a").write_bytes(b"x" * 1000)
    (upper / "b").write_bytes(b"x" * 500)
    top = os.open(upper, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert files.size([files.Tree(top=top, point="/cache")], ("/cache/b",)) == 1000
    finally:
        os.close(top)


# -- streams


def test_pipes_that_lead_out_are_told_from_those_within() -> None:
    script = "import os, sys\nkept = os.pipe()\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        opened = list(preflight.open_files(child.pid))
        found = containers_check.standard(Process(pid=child.pid, started=0), opened)
        assert sorted(found.values()) == [0, 1]
        assert found[os.readlink(f"/proc/{child.pid}/fd/1")] == 1
        child.stdin.close()


# -- GPUs


def gpu(number: int) -> Gpu:
    return Gpu(uuid=f"GPU-{number}", model="H", pci=f"0000:{number:02x}:00", memory=1, free=1)


GPUS = tuple(gpu(number) for number in (1, 2, 3))


def container(environment: dict[str, str] | None = None) -> Container:
    return Container(pod=POD, id=ID, cgroup=Path("/"), init=INIT, environment=environment or {})


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Path]:
    devices = cri.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-3", "GPU-1"])
    other = cri.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=["GPU-2"])
    answer = cri.ListPodResourcesResponse(
        pod_resources=[
            cri.PodResources(name="decode-0", namespace="other", containers=[cri.ContainerResources(name="main", devices=[other])]),
            cri.PodResources(name="decode-0", namespace="serving", containers=[cri.ContainerResources(name="main", devices=[devices])]),
        ]
    )
    handler = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: answer,
        request_deserializer=cri.ListPodResourcesRequest.FromString,
        response_serializer=cri.ListPodResourcesResponse.SerializeToString,
    )
    server = grpc.server(futures.ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})])
    path = tmp_path / "k.sock"
    server.add_insecure_port(f"unix://{path}")
    server.start()
    yield path
    server.stop(None).wait()


def test_the_kubelets_word_on_gpus_counts_before_the_environment(kubelet: Path, tmp_path: Path) -> None:
    told = container({"NVIDIA_VISIBLE_DEVICES": "GPU-2"})
    assert containers_gpus.of(told, GPUS, socket=kubelet, driver=tmp_path) == ("0000:01:00", "0000:03:00")


def test_without_a_kubelet_the_environment_is_believed_where_it_names_gpus(tmp_path: Path) -> None:
    nowhere = tmp_path / "none"
    assert containers_gpus.of(container({"NVIDIA_VISIBLE_DEVICES": "GPU-2"}), GPUS, socket=nowhere, driver=nowhere) == ("0000:02:00",)
    assert containers_gpus.of(container({"NVIDIA_VISIBLE_DEVICES": "all"}), GPUS, socket=nowhere, driver=nowhere) == ()


def test_a_placeholder_that_cannot_be_told_keeps_no_copy_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy runs by then: for want of a descriptor it may not be taken for held."""

    def full(_process: Process) -> bool:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(processes, "find", full)
    containers_holds.tell(Process(pid=2**22 + 17, started=5))
