"""What cgroups leave of their limits to a process: of both versions, with all that are above it, and of a real one."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter_agent.preflight import Room, enough
from shunter_agent.runtime import hostmemory
from shunter_agent.runtime.port import MemoryLimit

GB = 10**9
V2 = "30 25 0:26 {root} {at} rw,nosuid - cgroup2 cgroup2 rw"
V1 = "35 31 0:32 {root} {at} rw,relatime - cgroup cgroup rw,memory"
OTHER = "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"


def cgroup(folder: Path, **files: object) -> Path:
    """Write one, with a file for each name; `__` is a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in {"cgroup__procs": "", **files}.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")
    return folder


def v2(folder: Path, *, most: object = "max", high: object = "max", used: int = 0, stat: str = "anon 1") -> Path:
    return cgroup(folder, memory__max=most, memory__high=high, memory__current=used, memory__stat=stat)


def proc(folder: Path, mount: str, said: str, pid: int = 7) -> Path:
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "mountinfo").write_text(f"{OTHER}\n{mount}\n")
    (folder / str(pid)).mkdir()
    (folder / str(pid) / "cgroup").write_text(said)
    return folder


def test_the_limits_of_a_process_and_of_all_above_it(tmp_path: Path) -> None:
    top = cgroup(tmp_path / "cg")
    v2(top / "a", most=8 * GB, used=5 * GB, stat=f"anon 1\ninactive_file {GB}\nactive_file {GB}\nslab_reclaimable {GB}\nfile 9")
    v2(top / "a" / "b", high=3 * GB, used=4 * GB)
    v2(top / "a" / "b" / "c")
    here = proc(tmp_path / "proc", V2.format(root="/", at=top), "9:cpu:/elsewhere\n0::/a/b/c\n")
    assert hostmemory.limits_of(7, here) == [
        MemoryLimit(path=str(top / "a/b/memory.high"), most=3 * GB, left=0),
        MemoryLimit(path=str(top / "a/memory.max"), most=8 * GB, left=6 * GB),
    ]
    assert hostmemory.limits_of(8, here) == [], "it is gone"


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    top = cgroup(tmp_path / "cg", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=1, memory__stat="")
    stat = f"inactive_file 7\ntotal_inactive_file {GB}\ntotal_active_file {GB}"
    cgroup(top / "w", memory__limit_in_bytes=4 * GB, memory__usage_in_bytes=3 * GB, memory__stat=stat)
    here = proc(tmp_path / "proc", V1.format(root="/", at=top), "4:memory:/w\n3:cpu:/x\n0::/\n")
    assert hostmemory.limits_of(7, here) == [MemoryLimit(path=str(top / "w/memory.limit_in_bytes"), most=4 * GB, left=3 * GB)]


@pytest.mark.parametrize(
    ("root", "path", "seen"),
    [
        ("/kube/pod", "/kube/pod/ctr", ["ctr"]),
        ("/kube/pod/ctr", "/kube/pod/ctr", []),
        ("/kube/po", "/kube/pod/ctr", []),
        ("/../..", "/../../ctr", ["ctr"]),
        ("/", "/../ctr", []),
        ("/../..", "/", []),
    ],
)
def test_what_is_mounted_may_be_a_part_of_all(tmp_path: Path, root: str, path: str, seen: list[str]) -> None:
    """As in a container: what isn't below it has no name here, and another cgroup must not be taken for it."""
    top = cgroup(tmp_path / "cg")
    v2(top / "ctr", most=GB)
    v2(tmp_path / "ctr", most=1)  # beside what is mounted
    here = proc(tmp_path / "proc", V2.format(root=root, at=top), f"0::{path}\n")
    assert [limit.path for limit in hostmemory.limits_of(7, here)] == [str(top / one / "memory.max") for one in seen]


def test_a_cgroup_by_its_folder(tmp_path: Path) -> None:
    v2(cgroup(tmp_path / "kubepods") / "pod", most=2 * GB, used=GB)
    v2(tmp_path / "kubepods" / "pod" / "ctr", most=5 * GB)
    assert [limit.left for limit in hostmemory.limits_at(tmp_path / "kubepods" / "pod" / "ctr")] == [5 * GB, GB]
    assert hostmemory.limits_at(tmp_path / "none") == []


def test_the_least_of_all_is_what_there_is() -> None:
    low, high = MemoryLimit(path="/low", most=9, left=3), MemoryLimit(path="/high", most=99, left=50)
    assert hostmemory.least(10, [high, low]) == (3, "/low")
    assert hostmemory.least(2, [high, low]) == (2, "")
    assert hostmemory.least(None, [high]) == (50, "/high")
    assert hostmemory.least(None, []) == (None, "")


def test_processes_share_the_limits_that_they_have_in_common() -> None:
    own = {pid: MemoryLimit(path=f"/all/{pid}", most=99, left=50) for pid in (1, 2)}
    shared = MemoryLimit(path="/all", most=99, left=80)
    limits = {pid: [one, shared] for pid, one in own.items()}
    assert hostmemory.shortest({1: 40, 2: 32}, limits, 1.1) is None
    assert hostmemory.shortest({1: 40, 2: 33}, limits, 1.1) == (73, shared)
    assert hostmemory.shortest({1: 46, 2: 1}, limits, 1.1) == (46, own[1])
    assert hostmemory.shortest({3: 99}, limits, 1.1) is None


def test_a_refusal_says_which_limit_it_is() -> None:
    (found,) = enough(10 * GB, Room(disk=None, memory=8 * GB, limit="/sys/fs/cgroup/a/memory.max"), "n")
    assert (found.code, found.what, found.remedy) == (
        "SH657",
        "the worker needs about 10GB of memory and a margin of 10 %, /sys/fs/cgroup/a/memory.max leaves 8GB",
        "Raise that limit, or choose another node",
    )
    (found,) = enough(10 * GB, Room(disk=None, memory=8 * GB), "n")
    assert found.what == "the worker needs about 10GB of memory and a margin of 10 %, available are 8GB"


@pytest.fixture
def own() -> Iterator[Path]:
    """A real memory cgroup below this process' own."""
    limits = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = next((path for _n, controllers, path in limits if controllers == "memory"), None)
    path = next((path for _n, controllers, path in limits if not controllers), "/") if v1 is None else v1
    made = Path("/sys/fs/cgroup/memory" if v1 is not None else "/sys/fs/cgroup") / path.lstrip("/") / f"shunter-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if not ((made / "memory.max").exists() or (made / "memory.limit_in_bytes").exists()):
            pytest.skip("the memory controller isn't on for it")
        yield made
    finally:
        made.rmdir()


def test_a_real_process_in_a_real_cgroup(own: Path) -> None:
    limit = next(own / name for name in ("memory.max", "memory.limit_in_bytes") if (own / name).exists())
    limit.write_text(str(64 << 20))
    child = subprocess.Popen(["sleep", "600"])
    try:
        (own / "cgroup.procs").write_text(str(child.pid))
        first, *above = hostmemory.limits_of(child.pid)
        assert (first.path, first.most) == (str(limit), 64 << 20)
        assert 32 << 20 < first.left <= 64 << 20
        assert above == hostmemory.limits_of("self")
        assert hostmemory.least(hostmemory.available(), [first]) == (first.left, str(limit))
    finally:
        child.kill()
        child.wait()
