"""deploy/systemd under a systemd that really boots: in a fresh Debian, in namespaces of its own, both units start, work and are replaced.

It takes minutes and root, debootstrap, systemd-nspawn and a Debian mirror: `SHUNTER_SYSTEMD=1 pytest tests/deploy/test_systemd_booted.py`.
The agent only pretends there: what it may do with CRIU is in tests/acceptance/test_agent_rights.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
BIN = Path(sys.executable).parent
PACKAGES = Path(pytest.__file__).parents[1]
COMMAND = """#!/usr/bin/python3
import sys
sys.path[:0] = ["/project/engine", "/project/agent", "/packages"]
from {module} import run
run()
"""
ENGINE = """
state = "/var/lib/shunter"
listen = "127.0.0.1:9464"
[policies]
directory = "/etc/shunter/policies"
[prometheus]
url = "http://localhost:9090"
[tls]
ca = "certs/ca.pem"
cert = "certs/engine.pem"
key = "certs/engine.key"
[[agents]]
node = "node-a"
address = "localhost:7443"
"""
AGENT = """
node = "node-a"
listen = "127.0.0.1:7443"
image_listen = "127.0.0.1:7444"
state = "/var/lib/shunter-agent"
notices = "/run/shunter-agent/notices"
runtime = "pretend"
[tls]
ca = "certs/ca.pem"
cert = "certs/agent-node-a.pem"
key = "certs/agent-node-a.key"
[[slots]]
index = 0
[[workers]]
worker = "decode-0"
role = "decode"
graph = "tiny"
engine = "vllm"
address = "127.0.0.1:9000"
mac = ""
control = "http://127.0.0.1:9000"
slot = 0
command = ["/usr/bin/sleep", "infinity"]
"""
PROBE = """#!/bin/bash
exec > /probe.out 2>&1
words() { tr '\\0' ' ' < $1/cmdline 2>/dev/null; }
worker() { for p in /proc/[0-9]*; do [ "$(words $p)" = "/usr/bin/sleep infinity " ] && echo ${p#/proc/}; done; }
found() { journalctl -q -u shunter-agent | grep -c 'worker found again'; }
until_true() { for _ in $(seq 300); do "$@" && return; sleep 0.1; done; echo "TIME OVER: $*"; }
took() { journalctl -q -u shunter-engine | grep -q 'done, stood still'; }
again() { [ "$(found)" -ge 1 ]; }
systemctl start shunter-engine shunter-agent
until_true took
echo "WORKER BEFORE $(worker)"
echo "USER $(stat -c %U /proc/$(systemctl show --value -p MainPID shunter-engine))"
echo "RIGHTS $(grep -h CapEff /proc/$(systemctl show --value -p MainPID shunter-engine)/status)"
systemctl restart shunter-agent
until_true again
echo "WORKER AFTER $(worker)"
systemctl stop shunter-agent shunter-engine
echo "WORKER AT LAST $(worker)"
of() { systemctl show --value -p $1 $2; }
for unit in shunter-engine shunter-agent; do echo "$unit $(of Result $unit) $(of NRestarts $unit)"; done
echo "STATE $(stat -c '%U %a' /var/lib/shunter) $(stat -c '%U %a' /var/lib/shunter-agent)"
journalctl -q --no-pager -u shunter-engine -u shunter-agent
systemctl poweroff
"""
BOOT = """
mount --make-rprivate /
mkdir -p /sys/fs/cgroup/systemd/{name} && echo $$ > /sys/fs/cgroup/systemd/{name}/cgroup.procs
exec timeout 150 systemd-nspawn --register=no --keep-unit -D {root} --private-network --bind-ro={project}:/project \
  --bind-ro={packages}:/packages --boot --console=pipe
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.environ.get("SHUNTER_SYSTEMD") != "1":
        pytest.skip("boots a Debian of its own: SHUNTER_SYSTEMD=1, as root")
    root = tmp_path_factory.mktemp("machine") / "root"
    wanted = "--include=systemd,systemd-sysv,dbus,python3,git,ca-certificates"
    subprocess.run(["debootstrap", "--variant=minbase", wanted, "bookworm", root], check=True, capture_output=True, timeout=600)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    own, settings = root / "opt/shunter/venv/bin", root / "etc/shunter"
    own.mkdir(parents=True)
    settings.mkdir()
    for name, module in (("shunter", "shunter.cli.main"), ("shunter-agent", "shunter_agent.main")):
        (own / name).write_text(COMMAND.format(module=module))
        (own / name).chmod(0o755)
    (settings / "engine.toml").write_text(ENGINE)
    (settings / "agent.toml").write_text(AGENT)
    shutil.copytree(ROOT / "examples/policy-repo/policies", settings / "policies")
    subprocess.run([BIN / "shunter", "certs", settings / "certs", "--agent", "node-a"], check=True, capture_output=True)
    shutil.copy(UNITS / "shunter.sysusers", root / "usr/lib/sysusers.d/shunter.conf")
    for unit in UNITS.glob("*.service"):
        shutil.copy(unit, root / "etc/systemd/system")
    (root / "probe").write_text(PROBE)
    (root / "probe").chmod(0o755)
    probe = "[Unit]\nAfter=multi-user.target\n[Service]\nExecStart=/probe\n[Install]\nWantedBy=multi-user.target\n"
    (root / "etc/systemd/system/probe.service").write_text(probe)
    for words in (["systemd-sysusers"], ["chgrp", "-R", "shunter", "/etc/shunter"], ["chmod", "-R", "g+rX", "/etc/shunter"]):
        subprocess.run(["chroot", root, *words], check=True, capture_output=True)
    subprocess.run(["chroot", root, "systemctl", "enable", "probe.service"], check=True, capture_output=True)
    return root


@pytest.mark.timeout(900)
def test_both_units_work_and_the_worker_outlives_its_agent(machine: Path) -> None:
    boot = BOOT.format(name=f"shunter-{os.getpid()}", root=machine, project=ROOT, packages=PACKAGES)
    lab = ["unshare", "--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"]
    ended = subprocess.run([*lab, "bash", "-c", boot], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    assert (machine / "probe.out").exists(), ended.stdout + ended.stderr
    said = (machine / "probe.out").read_text()
    told = dict(line.rsplit(" ", 1) for line in said.splitlines() if line.startswith("WORKER"))
    assert told["WORKER BEFORE"].isdigit(), said
    assert told["WORKER BEFORE"] == told["WORKER AFTER"] == told["WORKER AT LAST"], said
    assert "USER shunter\n" in said
    assert "RIGHTS CapEff:\t0000000000000000\n" in said
    assert "shunter-engine success 0\n" in said, said
    assert "shunter-agent success 0\n" in said, said
    assert "STATE shunter 700 root 700\n" in said
    assert "TIME OVER" not in said, said
    assert "name resolution" not in said, said
