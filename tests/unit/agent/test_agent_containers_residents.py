"""Which pods of its node an agent takes for workers' own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shunter.model.pod import GRAPH, OPERATION, ROLE, WORKER, Pod
from shunter_agent.runtime.containers import ContainerRuntime
from shunter_agent.runtime.pods import Container, Sandbox
from shunter_agent.runtime.port import Process, WorkerSpec

DECODE = {ROLE: "decode", GRAPH: "g"}


def sandbox(name: str, namespace: str = "dynamo", labels: dict[str, str] | None = None) -> Sandbox:
    return Sandbox(id=f"s-{name}", pod=Pod(namespace=namespace, name=name, uid=f"u-{name}"), labels=labels or DECODE, annotations={})


class Runtime(ContainerRuntime):
    """With these pods on its node, in each of which a process runs."""

    def __init__(self, *there: Sandbox, namespaces: tuple[str, ...] = ()) -> None:
        def find(pod: Pod) -> Container:
            return Container(pod=pod, id="c", cgroup=Path("/none"), init=Process(pid=2**31, started=1))

        self.pods: Any = SimpleNamespace(runtime=SimpleNamespace(sandboxes=lambda: list(there)), find=find)
        self._namespaces = namespaces

    def _at(self, spec: WorkerSpec, home: Container, sandbox: str) -> WorkerSpec:
        return spec

    def names(self, *but: str) -> list[str]:
        return [one.spec.worker for one in self.residents(frozenset(but))]


def test_a_pod_that_nobody_made_for_a_worker_cant_take_the_name_of_one() -> None:
    impostor = Sandbox(id="s", pod=Pod(namespace="elsewhere", name="mine", uid="u"), labels=DECODE, annotations={WORKER: "decode-0"})
    assert Runtime(impostor).names() == ["mine"]


def test_only_workers_pods_of_the_namespaces_that_were_named_and_none_that_waits_for_a_worker() -> None:
    there = (
        sandbox("decode-0"),
        sandbox("decode-1", "elsewhere"),
        sandbox("decode-2", labels={**DECODE, OPERATION: "move-1"}),
        sandbox("web", labels={"app": "web"}),
    )
    assert Runtime(*there, namespaces=("dynamo",)).names() == ["decode-0"]
    assert Runtime(*there).names() == ["decode-0", "decode-1"]
    assert Runtime(*there).names("u-decode-0") == ["decode-1"]
