"""deploy/systemd: units that systemd takes, and an engine that works within what its unit leaves it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import shunter.cli.main
import shunter_agent.main
from pipelines import commit, git
from reference.commands import commands

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "systemd"
BIN = Path(sys.executable).parent
ANALYZE = shutil.which("systemd-analyze")
UNITS = ("shunter-engine.service", "shunter-agent.service")
needs_systemd = pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze (Debian: systemd)")
INHERITED = (
    "Protect", "Private", "Restrict", "SystemCall", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "BindPaths", "Temporary",
    "RootDirectory", "MemoryDenyWriteExecute", "LockPersonality", "DynamicUser", "User", "MountFlags", "OOMScoreAdjust", "Nice",
)  # fmt: skip
"""Settings that give a service a mount namespace or a filter, or that its workers would have too."""


def settings(name: str) -> dict[str, str]:
    pairs = [line.split("=", 1) for line in (HERE / name).read_text().splitlines() if "=" in line and not line.startswith("#")]
    assert len(pairs) == len({key for key, _ in pairs}), "no setting twice"
    return {key: value for key, value in pairs}


@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_it(name: str, tmp_path: Path) -> None:
    text = (HERE / name).read_text().replace("/opt/shunter/venv/bin", str(BIN))
    (tmp_path / name).write_text(text.replace("User=shunter", "User=root").replace("Group=shunter", "Group=root"))
    ended = subprocess.run(["systemd-analyze", "verify", "--man=no", tmp_path / name], capture_output=True, text=True, timeout=30)
    ours = [line for line in ended.stderr.splitlines() if name in line]
    assert (ended.returncode, ours) == (0, []), ended.stderr


@needs_systemd
def test_the_engine_is_exposed_little() -> None:
    """systemd's own measure, from 0 to 10: below 2 it says OK."""
    ended = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", HERE / UNITS[0]], capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 0, ended.stdout[-200:]


def test_an_agent_leaves_its_workers_alone_and_hands_nothing_on_to_them() -> None:
    found = settings("shunter-agent.service")
    assert (found["KillMode"], found["OOMPolicy"], found["RuntimeDirectoryPreserve"]) == ("process", "continue", "yes")
    assert [key for key in found if key.startswith(INHERITED)] == []


def test_commands_are_commands() -> None:
    apps = {"shunter": shunter.cli.main.app, "shunter-agent": shunter_agent.main.app}
    known = {
        path: {name for one in command.params for name in one.opts} for name, app in apps.items() for path, command in commands(name, app)
    }
    for unit in UNITS:
        program, verb, *options = settings(unit)["ExecStart"].removeprefix("/opt/shunter/venv/bin/").split()
        assert {word for word in options if word.startswith("-")} <= known[f"{program} {verb}"]


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def confined(*command: str) -> list[str]:
    unit = json.dumps(settings("shunter-engine.service"))
    rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"] if os.geteuid() == 0 else []
    return [*rights, sys.executable, str(Path(__file__).with_name("confined.py")), unit, *command]


def can_be_confined() -> bool:
    return ANALYZE is not None and Path("/lib/x86_64-linux-gnu/libseccomp.so.2").exists() and shutil.which("setpriv") is not None


needs_seccomp = pytest.mark.skipif(not can_be_confined(), reason="no systemd-analyze, libseccomp or setpriv")


@needs_seccomp
@pytest.mark.parametrize(
    "forbidden",
    [
        "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "import mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)",
        "import ctypes, os; os._exit(1 if ctypes.CDLL(None).unshare(0x40000000) else 0)",
    ],
    ids=["netlink", "writable code", "namespace"],
)
def test_it_really_is_confined(forbidden: str) -> None:
    assert subprocess.run(confined(sys.executable, "-c", forbidden), capture_output=True, timeout=30).returncode == 1


@needs_seccomp
def test_the_engine_works_within_what_its_unit_leaves_it(tmp_path: Path) -> None:
    """It reads Git, asks an agent and a Prometheus that are away, decides, and ends when it is told to."""
    repository = tmp_path / "repository"
    shutil.copytree(ROOT / "examples" / "policy-repo", repository)
    git("init", "-q", at=repository)
    made = commit(repository, "Policies")
    subprocess.run([BIN / "shunter", "certs", tmp_path / "certs", "--agent", "node-a"], check=True, capture_output=True)
    port = free()
    config = tmp_path / "engine.toml"
    config.write_text(f"""
state = "state"
listen = "127.0.0.1:{port}"
[policies]
git = "{repository}"
branch = "main"
folder = "policies"
[prometheus]
url = "http://localhost:{free()}"
[tls]
ca = "certs/ca.pem"
cert = "certs/engine.pem"
key = "certs/engine.key"
[[agents]]
node = "node-a"
address = "localhost:{free()}"
""")
    log = (tmp_path / "log").open("wb")
    running = subprocess.Popen(
        confined(str(BIN / "shunter"), "engine", "--config", str(config)),
        stdout=log, stderr=log, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COLUMNS": "200"},
    )  # fmt: skip
    try:
        until = time.monotonic() + 90
        page = ""
        while re.search(r"^shunter_tick_seconds_count ([2-9]|\d\d)", page, re.MULTILINE) is None:
            assert running.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            try:
                page = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=2).text
            except httpx.HTTPError:
                time.sleep(0.02)
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        log.close()
    said = (tmp_path / "log").read_text()
    assert 'shunter_agent_up{node="node-a"} 0.0' in page
    assert "SH520" in said, said
    assert re.search("SH20[0-9]|SH999", said) is None, said
    listed = subprocess.run([BIN / "shunter", "audit", "list", "--state", tmp_path / "state", "--json"], capture_output=True, text=True)
    assert made in listed.stdout
