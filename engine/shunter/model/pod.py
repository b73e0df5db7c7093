"""Workers that live in pods of Kubernetes: where, and what a pod's labels say of who is in it. Engine and agents read the same words.

Labels and annotations are NVIDIA Dynamo's, as its operator puts them on the pods of a graph, or ours, which count before those.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from shunter.model.canon import InOrder
from shunter.model.ids import WorkerId

WORKER: Final = "shunter.dev/worker"
"""Annotation: who the worker is. A pod without it is where its worker began, which is called as the pod is; later ones carry it on."""
CONTAINER: Final = "shunter.dev/container"
"""Annotation: in which of the pod's containers the worker lives. Without it: in `main`, or in the first."""
ROLE: Final = "shunter.dev/role"
"""Label: `prefill` or `decode`."""
GRAPH: Final = "shunter.dev/graph"
"""Label."""
ENGINE: Final = "shunter.dev/engine"
"""Label: `vllm`, `sglang`, `trtllm` or another engine's name."""
OPERATION: Final = "shunter.dev/operation"
"""Label: the operation that made this pod for a worker that is to come."""
FLEET: Final = "shunter.dev/fleet"
"""Label: whose engines made the pod: their namespace, a dot, and the name of their Lease. Other namespaces' are left alone; another name in
the same one was theirs before it was changed, as were its operations."""
STARTED_BY: Final = "shunter.dev/started-by"
"""Label: the operation that made this pod to start from a golden image."""
STATE: Final = "shunter.dev/pod-state"
"""Label of such a pod: `placeholder` until a worker runs in it, then `serving`."""
SERVING: Final = "shunter.dev/serving"
"""A readiness gate: the engine says True while the router may send requests to the pod's worker."""

_WAIT: Final = """
worker() {
  found=
  for at in /proc/[0-9]*/status; do
    parent= depth=
    while read -r key first second _; do
      case $key in PPid:) parent=$first ;; NSpid:) depth=$second ;; esac
    done <"$at" || continue
    [ "$parent" = 0 ] && [ "$depth" = 1 ] || continue
    at=${at#/proc/} found="$found ${at%/status}"
  done
} 2>/dev/null
trap '[ -n "$lived" ] || exit 0; worker; [ -n "$found" ] || exit 0; code=0; kill -TERM $found' TERM
trap 'lived=1' HUP
while :; do
  worker
  [ -z "$lived" ] || [ -n "$found" ] || exit "${code:-1}"
  sleep 1 &
  wait $!
done
"""
PLACEHOLDER: Final = ("/bin/sh", "-c", _WAIT)
"""Command of a container that waits for its worker, instead of the command of the worker's own; it needs a `sh` and a `sleep`.

An agent restores the worker into a PID namespace within the container's, and says so by SIGHUP. SIGTERM goes on to the worker, as it would
if that were process 1 of the container. The container ends within a second of the worker: with 0 when it was asked to end, else with 1.
"""

_GRAPH: Final = "nvidia.com/dynamo-graph-deployment-name"
_NAMESPACE: Final = "nvidia.com/dynamo-namespace"
_SUBTYPE: Final = "nvidia.com/dynamo-sub-component-type"
_TYPE: Final = "nvidia.com/dynamo-component-type"
_ROLES: Final[dict[str, Literal["prefill", "decode"]]] = {"prefill": "prefill", "decode": "decode", "worker": "decode"}
"""A component of type `worker` does both, and holds its sessions as a decode worker does."""
_MODULE: Final = "dynamo."
_ENGINES: Final = ("vllm", "sglang", "trtllm", "mocker")
MAIN: Final = "main"
"""The container in which Dynamo's operator puts its workers."""


class Pod(msgspec.Struct, metaclass=InOrder, frozen=True, kw_only=True, gc=False):
    """One pod, and the container in it that a worker lives in; empty: not said."""

    namespace: str
    name: str
    uid: str
    container: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """How far a worker's start from a golden image has come. `why` is what it waits for, or what became of it, in words.

    `coming`: it may serve yet; `serves`: restored, and ready; `instead`: the pool has taken its own native worker, this one has gone,
    or it never came to the image; `failed`: it never will. `pod` is the one that was made; None: there is none, or that isn't known.
    `reached`: its container was started, so that the image can be the reason.
    """

    state: Literal["coming", "serves", "instead", "failed"]
    why: str = ""
    pod: Pod | None = None
    reached: bool = True


class Resident(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who lives in a pod, by what the pod says. `engine` may be empty."""

    id: WorkerId
    role: Literal["prefill", "decode"]
    graph: str
    engine: str


def resident(name: str, labels: Mapping[str, str], annotations: Mapping[str, str], command: Iterable[str] = ()) -> Resident | None:
    """The worker of a pod called `name`; `command` is its container's, with arguments. None: it is no worker's pod."""
    role = _ROLES.get(labels.get(ROLE) or labels.get(_SUBTYPE) or labels.get(_TYPE, ""))
    graph = labels.get(GRAPH) or labels.get(_GRAPH) or labels.get(_NAMESPACE)
    if role is None or not graph:
        return None
    return Resident(
        id=WorkerId(annotations.get(WORKER) or name),
        role=role,
        graph=graph,
        engine=labels.get(ENGINE) or engine_of(command),
    )


def engine_of(command: Iterable[str]) -> str:
    """The engine, by the module that is run; empty: none that is known. `python3 -m dynamo.vllm ...`, also within a shell's line."""
    for part in command:
        for word in part.split():
            if word.startswith(_MODULE) and (found := word.removeprefix(_MODULE).partition(".")[0]) in _ENGINES:
                return found
    return ""
