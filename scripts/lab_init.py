"""Process 1 of a lab: sets it up, starts the command, passes signals on, reaps orphans, and ends with the command's exit status."""

import os
import signal
import subprocess
import sys


def main(command: list[str]) -> int:
    """Run `command` in the namespaces that `scripts/lab` made; return its exit status, 128 + n if signal n ended it."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)  # CRIU caches kernel features there; leftovers would mislead it
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    child = os.fork()
    if child == 0:
        os.closerange(3, 1024)  # files opened outside these mounts would follow into workers, and CRIU could not dump them
        os.execvpe(command[0], command, {**os.environ, "SHUNTER_LAB": "1"})  # noqa: S606

    def forward(number: int, _frame: object) -> None:
        os.kill(child, number)

    # a terminal's Ctrl-C reaches the command by itself, being in the same process group; process 1 only must not die of it
    signal.signal(signal.SIGINT, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, forward)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
