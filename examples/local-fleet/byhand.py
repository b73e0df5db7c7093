"""The same move by hand, to compare with: CRIU dump, `cp`, CRIU restore of a like worker, each begun when the one before has ended."""

import os
import subprocess
import sys
import time
from pathlib import Path

from discovery import instances
from machine import BRIDGE, SetUpError, descendants, ip, wait_for

HERE = Path(__file__).resolve().parent
HOST = "10.77.0.200"
MAC = "02:53:48:4e:54:c8"
OPTIONS = ("--tcp-established", "--network-lock", "nftables", "--ext-unix-sk", "--file-locks", "--shell-job", "-v2")


class _Namespace:
    """A network namespace that could be the worker's: held open by a sleeping process, with the worker's address, not yet on the bridge."""

    def __init__(self, name: str) -> None:
        self.outer = f"hand-{name}"
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "300"])
        mine = os.readlink("/proc/self/ns/net")
        wait_for("a network namespace", lambda: os.readlink(f"/proc/{self.holder.pid}/ns/net") != mine)
        ip("link", "add", self.outer, "type", "veth", "peer", "name", "eth0", "netns", str(self.holder.pid))
        for command in (
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "address", MAC),
            ("addr", "add", f"{HOST}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            ip(*command, within=self.holder.pid)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside."""
        return subprocess.run(
            ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--", *command], check=False, capture_output=True, text=True
        )

    def close(self) -> None:
        """Remove it."""
        self.holder.kill()
        self.holder.wait()


def move_by_hand(folder: Path, criu: Path, weights_mb: int) -> float:
    """Seconds from the start of the dump to the end of the restore, for a worker of `weights_mb` that a client streams from.

    Raises SetUpError when a step fails; the client must have seen every token.
    """
    folder.mkdir()
    discovery = folder / "discovery"
    source, destination = _Namespace("a"), _Namespace("b")
    ip("link", "set", source.outer, "master", BRIDGE, "up")
    enter = ["nsenter", f"--net=/proc/{source.holder.pid}/ns/net", "--", "unshare", "--pid", "--fork", "setsid"]
    serving = ["--id", "by-hand", "--role", "decode", "--host", HOST, "--discovery", str(discovery), "--weights-mb", str(weights_mb)]
    launcher = subprocess.Popen(
        [*enter, sys.executable, str(HERE / "worker.py"), *serving],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client: subprocess.Popen[bytes] | None = None
    try:
        wait_for("the worker moved by hand", lambda: instances(discovery, "backend"), 60)
        control, report = folder / "rate", folder / "report.json"
        control.write_text("0")
        asked = ["--workers", "1", "--spread", "1", "--tokens", "150", "--weights-mb", str(weights_mb)]
        files = ["--discovery", str(discovery), "--control", str(control), "--report", str(report)]
        client = subprocess.Popen([sys.executable, str(HERE / "clients.py"), *asked, *files])
        wait_for("its client", lambda: report.exists() and '"got": 0' not in report.read_text(), 60)
        (worker,) = descendants(launcher.pid)
        image, copy = folder / "image", folder / "copy"
        image.mkdir()
        begun = time.monotonic()
        steps = [source.run(str(criu), "dump", "-t", str(worker), "-D", str(image), *OPTIONS, "-o", "dump.log")]
        steps.append(subprocess.run(["cp", "-r", image, copy], check=False, capture_output=True, text=True))
        ip("link", "set", source.outer, "nomaster")
        ip("link", "set", destination.outer, "master", BRIDGE, "up")
        steps.append(
            destination.run(str(criu), "restore", "-d", "-D", str(copy), *OPTIONS, "-o", "restore.log", "--pidfile", str(folder / "pid"))
        )
        took = time.monotonic() - begun
        for step in steps:
            if step.returncode:
                raise SetUpError(f"the move by hand failed at {step.args}: {step.stderr.strip()[-300:]}")
        if client.wait(60) or '"lost": 0, "duplicated": 0, "corrupt": 0' not in report.read_text():
            raise SetUpError(f"the move by hand damaged its stream: {report.read_text()}")
        return took
    finally:
        for process in (client, launcher):
            if process and process.poll() is None:
                process.kill()
                process.wait()
        pidfile = folder / "pid"
        if pidfile.exists():
            os.kill(int(pidfile.read_text()), 9)
        for namespace in (source, destination):
            namespace.close()
