"""A Dynamo worker's entries in the file discovery, kept over a freeze that is longer than their lease.

Peers delete entries that weren't renewed for about 10 s, and Dynamo 1.6.1 doesn't write them again: it goes on renewing files that are
gone, and a worker that stood still longer would serve its streams to the end and never get another request. Registering its endpoint again
isn't enough, as its model card and event channels are gone too. So they are remembered at the fence, and written back at the unfence: the
runtime, which still takes them for its own, renews them from then on. Standard library alone.
"""

import json
import os
from pathlib import Path
from typing import Any


class OwnEntries:
    """The entries of one worker. `root` is $DYN_FILE_KV; `host` the worker's own address, which no other process may use."""

    def __init__(self, root: Path, instance: int, host: str) -> None:
        self._root, self._instance = root, instance
        self._channel = f"tcp://{host}:"
        self._kept: dict[Path, bytes] = {}

    def remember(self) -> int:
        """Note all that is there now; return how many entries that is."""
        self._kept = {}
        for path in self._root.glob("v1/*/*"):
            try:
                text = path.read_bytes()
                entry = json.loads(text)
            except (OSError, ValueError):
                continue  # another process's: it has just gone, or is being written
            if self._ours(entry):
                self._kept[path] = text
        return len(self._kept)

    def put_back(self) -> int:
        """Write those that are gone as they were; return how many they were. Raises OSError."""
        lost = [path for path in self._kept if not path.exists()]
        for number, path in enumerate(lost):
            # written beside the watched folders and put there whole: nobody reads half an entry
            partial = self._root / f".put-back-{self._instance:x}-{number}"
            partial.write_bytes(self._kept[path])
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial, path)
        return len(lost)

    def _ours(self, entry: dict[str, Any]) -> bool:
        if entry.get("instance_id") == self._instance:
            return True
        if entry.get("type") == "EventSource":
            worker: Any = entry.get("metadata", {}).get("worker", {})
            return bool(worker.get("worker_id") == self._instance)
        config: Any = entry.get("transport", {}).get("config", {})
        return entry.get("type") == "EventChannel" and str(config.get("endpoint", "")).startswith(self._channel)
