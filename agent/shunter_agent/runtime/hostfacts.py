"""What a restore on another node must find alike."""

import hashlib
import os
from pathlib import Path


def _cpu(text: str) -> tuple[str, str]:
    """Model and a digest of the sorted feature flags, from /proc/cpuinfo's first processor; `unknown` where it doesn't say."""
    first = text.split("\n\n", 1)[0]
    fields = {name.strip().lower(): value.strip() for name, mark, value in (line.partition(":") for line in first.splitlines()) if mark}
    model = fields.get("model name") or fields.get("cpu part") or "unknown"
    flags = fields.get("flags") or fields.get("features") or ""
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
    return model, f"sha256:{digest}" if flags else "unknown"


def host_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """`kernel` (release), `arch`, `cpu` (model), `cpu_features` (digest of its flags).

    A process keeps using the instructions that it found at its start, so that a restore where one is missing dies at the first use.
    """
    system = os.uname()
    try:
        model, features = _cpu(cpuinfo.read_text())
    except OSError:
        model, features = "unknown", "unknown"
    return {"kernel": system.release, "arch": system.machine, "cpu": model, "cpu_features": features}
