"""A real Prometheus over samples that were made up: written as OpenMetrics, turned into blocks by promtool, served read-only."""

import contextlib
import math
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")

Made = dict[str, Iterable[tuple[dict[str, str], list[tuple[float, float]]]]]
"""Metric name to series: labels, and (time, value)."""


def openmetrics(made: Made) -> Iterator[str]:
    """The text of it, one line a sample."""
    for name, series in made.items():
        yield f"# TYPE {name} gauge\n"
        for labels, points in series:
            told = ",".join(f'{key}="{value}"' for key, value in labels.items())
            for at, value in points:
                yield f"{name}{{{told}}} {'NaN' if math.isnan(value) else value} {at:.3f}\n"
    yield "# EOF\n"


@contextlib.contextmanager
def serving(folder: Path, made: Made) -> Iterator[str]:
    """Serve the samples; gives the URL."""
    assert PROMETHEUS
    assert PROMTOOL
    (folder / "made.om").write_text("".join(openmetrics(made)))
    made_blocks = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(folder / "made.om"), str(folder / "tsdb")]
    subprocess.run(made_blocks, check=True, capture_output=True)
    (folder / "made.om").unlink()
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [
        PROMETHEUS, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--storage.tsdb.retention.time=50y",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, folder / "log")
            yield url
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/-/ready", trust_env=False).status_code == 200:
                return
        assert time.monotonic() < deadline, log.read_text()
        assert process.poll() is None, log.read_text()
        threading.Event().wait(0.05)
