"""Orphans of what the agent starts come to it, and to nobody who is slow to hear of their end: a restore wants their pids."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, subprocess, sys
from shunter_agent.runtime import namespaces, process
if sys.argv[1] == "adopts":
    namespaces.become_subreaper()
# a launcher that dies at once, as CRIU does when it is killed: what it has started is an orphan
launcher = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=2).pid, flush=True)"
told = subprocess.run([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True, check=True).stdout
orphan = process.note(int(told))
print(process.stat(orphan.pid).parent == os.getpid())
os.kill(orphan.pid, signal.SIGKILL)
print(process.wait_reaped(orphan, 5), process.stat(orphan.pid))
"""


@pytest.mark.parametrize(("way", "ours"), [("adopts", "True"), ("leaves", "False")])
def test_an_orphan_is_the_agents_and_its_pid_is_free_once_it_is_dead(way: str, ours: str) -> None:
    said = subprocess.run([sys.executable, "-c", SCRIPT, way], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0] == ours
    if way == "adopts":
        assert said[1] == "True None"


def test_a_runtime_that_restores_adopts_orphans(criu: Path) -> None:
    """It is made before anything is started."""
    script = f"""
import sys
from pathlib import Path
from shunter_agent.runtime.criu import CriuRuntime
from shunter_agent.runtime.network import Uplink
CriuRuntime(Path(sys.argv[2]), Uplink(bridge="none"))
{SCRIPT}"""
    made = subprocess.run([sys.executable, "-c", script, "leaves", str(criu)], capture_output=True, text=True, check=True)
    assert made.stdout.splitlines() == ["True", "True None"]
