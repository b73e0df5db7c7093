"""Policies as custom resources, read as files: one for each resource, in the form that the policy language has."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from shunter.cluster.api import Object
from shunter.cluster.kinds import PLURALS
from shunter.model.canon import digest
from shunter.model.ids import Commit
from shunter.model.policy import API_VERSION
from shunter.model.source import Revision, SourceFile

COMMIT: Final = "shunter.dev/commit"
"""The annotation that says which Git commit a resource came from."""
_GIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One policy as it was read. `commit` is empty where the annotation isn't there, or isn't a commit's id."""

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    blob: str
    commit: str


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """All policies at one moment, and the resources by the paths of their files."""

    revision: Revision
    resources: Mapping[str, Resource]

    @property
    def mixed(self) -> bool:
        """Resources came from different commits: a sync is under way, or it stopped in the middle."""
        return len({one.commit for one in self.resources.values()} - {""}) > 1


def file_of(kind: str, name: str) -> str:
    """The path of a resource's file: `<plural>/<name>.yaml`."""
    return f"{PLURALS[kind]}/{name}.yaml"


def read(found: Iterable[tuple[str, Object]]) -> Reading:
    """Kinds and resources as one revision. Those that are being deleted are gone already.

    Its commit is the one that all resources came from and a digest of what they say, `<commit>+cluster:<16 hex>`, as somebody may have
    edited one since; `cluster:<digest>` where they don't agree on one, or none says any.
    """
    files: dict[str, SourceFile] = {}
    resources: dict[str, Resource] = {}
    for kind, one in found:
        meta = one["metadata"]
        if meta.get("deletionTimestamp"):
            continue
        data = _text(kind, one)
        blob = hashlib.sha256(data).hexdigest()
        path = file_of(kind, meta["name"])
        files[path] = SourceFile(path=path, blob=blob, data=data)
        resources[path] = Resource(
            kind=kind,
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            uid=meta.get("uid", ""),
            generation=int(meta.get("generation") or 0),
            blob=blob,
            commit=_commit(meta),
        )
    paths = sorted(files)
    revision = Revision(commit=_commit_of_all(resources, paths), committed_at=None, files=tuple(files[path] for path in paths))
    return Reading(revision=revision, resources=resources)


def _commit(meta: Object) -> str:
    annotations = meta.get("annotations") or {}
    stated = str(annotations.get(COMMIT, ""))
    return stated if _GIT.fullmatch(stated) else ""


def _commit_of_all(resources: Mapping[str, Resource], paths: list[str]) -> Commit:
    content = digest([(path, resources[path].blob) for path in paths]).removeprefix("sha256:")
    stated = {resources[path].commit for path in paths}
    one = stated.pop() if len(stated) == 1 else ""
    return Commit(f"{one}+cluster:{content[:16]}" if one else f"cluster:{content}")


def git_commit(commit: Commit) -> str:
    """The Git commit in what `read` made; empty if there is none."""
    stated = commit.partition("+")[0]
    return stated if _GIT.fullmatch(stated) else ""


def _text(kind: str, one: Object) -> bytes:
    """What Git says of it: neither status nor what the server and its clients note down. JSON is YAML, and leaves nothing to guess."""
    meta = one["metadata"]
    labels = {"labels": meta["labels"]} if meta.get("labels") else {}
    document = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": meta["name"], **labels}}
    if "spec" in one:
        document["spec"] = one["spec"]
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
