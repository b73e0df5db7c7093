"""A worker's records in Dynamo's file discovery: taken out and put back by the agent, for workers that can't do it themselves.

What is to be put back lies beside the watched folders, in `$DYN_FILE_KV/shunter/<worker>`: any agent that shares the folder finds it there,
after a crash and at a move's destination. Seen with Dynamo 1.6.1: a runtime renews its records by touching files that exist, and never
writes one again, so that what was taken out stays out until it is put back, and is renewed from then on. Its watchers hear of a file that
is deleted, and not of one that is renamed away: then `/health` of a frontend forgets the worker, and its router goes on sending to it.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

INTERNAL: Final = "worker_kv_query_source"
"""Endpoints between workers and routers that carry no requests; they stay registered while a worker is fenced."""
_INSTANCES: Final = "instances"


class Records:
    """The records below `root` ($DYN_FILE_KV). Safe to repeat after a crash at any point. Its methods raise OSError."""

    def __init__(self, root: Path) -> None:
        self._watched = root / "v1"
        self._beside = root / "shunter"

    def serving(self) -> Iterator[dict[str, Any]]:
        """All records of endpoints that carry requests."""
        return (record for _path, record in _read(self._watched, _INSTANCES) if _carries_requests(record))

    def note(self, worker: str, address: str) -> bool:
        """Keep a copy of all records of the worker that serves at `address`, on the disk. False: it isn't registered, and nothing was kept.

        What was kept of it stays while it isn't registered: it is fenced already. What was kept of an earlier process of it goes.
        """
        instances = _at(self.serving(), address)
        if not instances:
            return bool(self._kept(worker))
        own = {path for path, record in _read(self._watched, "*") if _belongs(record, instances, address)}
        for path in own:
            _copy(path, self._place(worker) / path.relative_to(self._watched))
        for kept, record in _read(self._place(worker), "*"):
            if not _belongs(record, instances, address):
                kept.unlink(missing_ok=True)
        return True

    def take_out(self, worker: str, address: str) -> bool:
        """Delete the records by which requests come to it, all others stay. False: it has none, here or taken out already."""
        if not self.note(worker, address):
            return False
        for path, record in _read(self._watched, _INSTANCES):
            if _carries_requests(record) and address_of(record) == address and self._copy_of(worker, path).exists():
                path.unlink(missing_ok=True)
        return True

    def put_back(self, worker: str, address: str, *, endpoints: bool) -> int:
        """Write what was kept and isn't there, with the same bytes; without `endpoints` only what carries no requests. Gives how many.

        Of a worker that was started anew since, nothing is put back.
        """
        kept = self._kept(worker)
        anew = _at(self.serving(), address) - {record.get("instance_id") for _path, record in kept}
        count = 0
        for path, record in () if anew else sorted(kept, key=lambda one: _carries_requests(one[1])):  # nobody is sent to half a worker
            there = self._watched / path.relative_to(self._place(worker))
            if there.exists() or (_carries_requests(record) and not endpoints):
                continue
            os.utime(path)  # as old as it is, peers would take its lease for expired
            there.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, there)
            count += 1
        return count

    def forget(self, worker: str) -> None:
        """Delete what was kept."""
        shutil.rmtree(self._place(worker), ignore_errors=True)

    def _place(self, worker: str) -> Path:
        return self._beside / quote(worker, safe="")

    def _copy_of(self, worker: str, path: Path) -> Path:
        return self._place(worker) / path.relative_to(self._watched)

    def _kept(self, worker: str) -> list[tuple[Path, dict[str, Any]]]:
        return list(_read(self._place(worker), "*"))


def _read(root: Path, buckets: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The records in some buckets. What is gone before it is read, or being written, is left out."""
    for path in sorted(root.glob(f"{buckets}/*")):
        if path.name.startswith("."):
            continue
        try:
            record = json.loads(path.read_bytes())
        except (FileNotFoundError, ValueError):
            continue
        if isinstance(record, dict):
            yield path, record


def _copy(path: Path, to: Path) -> None:
    """Whole and on the disk when it returns, owned as it was: its worker has to be able to renew it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = to.with_name(f".{to.name}")
    try:
        about, text = path.stat(), path.read_bytes()
    except FileNotFoundError:
        return  # its worker has just taken it back
    with partial.open("wb") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), about.st_mode & 0o777)
        if (about.st_uid, about.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), about.st_uid, about.st_gid)
        os.fsync(file.fileno())
    os.replace(partial, to)


def _carries_requests(record: dict[str, Any]) -> bool:
    return record.get("type", "Endpoint") == "Endpoint" and not str(record.get("endpoint", "")).startswith(INTERNAL)


def address_of(record: dict[str, Any]) -> str:
    """HOST:PORT at which an endpoint takes requests; empty: it doesn't say."""
    transport = record.get("transport")
    text = transport.get("tcp", "") if isinstance(transport, dict) else ""
    return str(text).split("/", 1)[0]


def _at(records: Iterator[dict[str, Any]], address: str) -> set[object]:
    """Instance ids of who serves at an address."""
    return {record.get("instance_id") for record in records if address_of(record) == address}


def _belongs(record: dict[str, Any], instances: set[object], address: str) -> bool:
    """It is a record of one of these instances, which serve at `address`: what publishes events has ids of its own there."""
    if record.get("instance_id") in instances:
        return True
    match record:
        case {"type": "EventSource", "metadata": {"worker": {"worker_id": worker}}}:
            return worker in instances
        case {"type": "EventChannel", "transport": {"config": {"endpoint": str(endpoint)}}}:
            return endpoint.startswith(f"tcp://{address.rpartition(':')[0]}:")
    return False
