"""Dynamo's file discovery as far as the local fleet needs it: one JSON file per instance, kept alive by its modification time."""

import json
import os
import time
from pathlib import Path
from urllib.parse import quote

STALE_S = 10.0
"""Peers take an instance for gone when its file is older; as Dynamo 1.6.1 was measured to do."""


class Instance:
    """A worker's own entry. `instance_id` is stable over moves, being part of the worker's memory."""

    def __init__(self, root: Path, namespace: str, component: str, address: str) -> None:
        self.instance_id = int.from_bytes(os.urandom(7), "big")
        key = f"{namespace}/{component}/generate/{self.instance_id:x}"
        self._path = root / "v1" / "instances" / quote(key, safe="")
        self._entry = {
            "type": "Endpoint",
            "namespace": namespace,
            "component": component,
            "endpoint": "generate",
            "instance_id": self.instance_id,
            "transport": {"tcp": f"{address}/{self.instance_id:x}/{namespace}/{component}/generate"},
        }
        self.registered = False

    def register(self) -> None:
        """Make it visible to the router."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{self._path.name}")
        partial.write_text(json.dumps(self._entry))
        partial.replace(self._path)
        self.registered = True

    def unregister(self) -> None:
        """Hide it from the router. Idempotent."""
        self._path.unlink(missing_ok=True)
        self.registered = False

    def keep_alive(self) -> None:
        """Renew it. After a freeze so long that somebody removed the file, it registers again: Dynamo 1.6.1 itself doesn't."""
        if not self.registered:
            return
        try:
            os.utime(self._path)
        except FileNotFoundError:
            self.register()


def instances(root: Path, component: str) -> list[str]:
    """Addresses (`host:port`) of a component's live instances, sorted: what a router would send to."""
    found = []
    for path in (root / "v1" / "instances").glob("*"):
        try:
            if path.name.startswith(".") or time.time() - path.stat().st_mtime > STALE_S:
                continue
            entry = json.loads(path.read_text())
        except (OSError, ValueError):
            continue  # it went away while we looked
        if entry["component"] == component:
            found.append(entry["transport"]["tcp"].split("/", 1)[0])
    return sorted(found)
