"""Libraries between a worker and its GPUs: of real processes that have one loaded."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from shunter_agent.runtime import process
from shunter_agent.runtime.cuda import preloads, seen
from shunter_agent.runtime.cuda.node import CudaNode
from shunter_agent.runtime.cuda.preloads import Loaded
from sleepers import sleeper
from test_cuda_node import LOOKED, PLAIN, SPEC, FakeSession

MAPS = ("/usr/lib/libcuda.so.580.1", "/opt/lib/libwatch.so.1.2", "/usr/lib/libtcmalloc_minimal.so.4.5.9")


@pytest.mark.parametrize(
    ("library", "allowed", "refused"),
    [
        ("/opt/lib/libwatch.so.1", (), True),
        ("libwatch.so", (), True),
        ("libwatch.so", ("libwatch",), False),
        ("/usr/lib/libtcmalloc_minimal.so.4", (), False),
        ("libgone.so", (), False),
    ],
)
def test_what_is_loaded_and_nobody_knows_is_refused(library: str, allowed: tuple[str, ...], *, refused: bool) -> None:
    found = list(preloads.of_process(7, [Loaded(library=library, by="LD_PRELOAD")], MAPS, allowed))
    said = f"process 7 uses a GPU and has {library} loaded by LD_PRELOAD: what is between it and the driver may not be restored"
    assert [(one.code, one.what) for one in found] == [("SH763", said)] * refused
    assert all('add "libwatch" to the agent\'s `preloads`' in one.remedy for one in found)


def test_the_ways_that_libraries_come_in() -> None:
    environment = {"LD_PRELOAD": "/a/libx.so libtcmalloc.so:libz.so", "CUDA_INJECTION64_PATH": "/b/liby.so", "PATH": "/bin"}
    found = preloads.asked(2**22 + 1, environment)
    assert [(one.library, one.by) for one in found] == [
        ("/a/libx.so", "LD_PRELOAD"),
        ("libtcmalloc.so", "LD_PRELOAD"),
        ("libz.so", "LD_PRELOAD"),
        ("/b/liby.so", "CUDA_INJECTION64_PATH"),
    ]
    assert preloads.asked(2**22 + 1, {}) == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_worker_with_gpus_that_was_started_with_one_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without GPUs may have whatever it likes."""
    library = tmp_path / "libwatch.so.3"
    (tmp_path / "watch.c").write_text("int cuInit(unsigned flags) { return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "watch.c"], check=True)
    asked = (f"LD_PRELOAD={library}:{tmp_path / 'libnone.so'}", f"CUDA_INJECTION64_PATH={library}")

    def codes(pid: int, *allowed: str) -> list[str]:
        session = FakeSession(LOOKED, {str(pid): "RUNNING"})
        node = CudaNode(there=True, session=session, preloads=allowed)  # type: ignore[arg-type]
        return [
            f"{one.code} {one.what.partition(' loaded by ')[2].partition(':')[0]}".strip() for one in node.check(process.note(pid), SPEC)
        ]

    with sleeper("env", *asked) as pid:
        assert any(str(library) in path for path in seen.maps(pid))
        assert codes(pid) == []
        monkeypatch.setattr(seen, "cuda_processes", list)
        monkeypatch.setattr(seen, "devices", lambda _pid: PLAIN)
        monkeypatch.setattr("shunter_agent.runtime.cuda.exclusions.of_driver", lambda *_: ())
        assert codes(pid) == ["SH763 LD_PRELOAD", "SH763 CUDA_INJECTION64_PATH"]
        assert codes(pid, "libwatch") == []
        with sleeper() as holder:
            monkeypatch.setattr(process, "tree", lambda root: [root, holder])
            monkeypatch.setattr(seen, "devices", lambda one: PLAIN if one == holder else frozenset())
            assert codes(pid) == ["SH745"], "the one has the library and no GPU, the other has one without being known to the driver"
        assert os.path.exists(f"/proc/{pid}")
