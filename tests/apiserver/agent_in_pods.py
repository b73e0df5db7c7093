"""A real agent with the driver that only pretends, told by a file which pod its worker lives in: no container runtime says it.

What it leaves out: the worker's process is in no container, and what is to live in a pod is put into none; only its name is kept.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from shunter.model.pod import Pod
from shunter_agent import main, settings
from shunter_agent.runtime.port import Housing, WorkerSpec
from shunter_agent.runtime.pretend import PretendRuntime


def _nothing(*_: Any) -> tuple[()]:
    return ()


def _housed(_runtime: Any, spec: WorkerSpec, pod: Pod) -> WorkerSpec:
    """A FIFO `slow` beside the settings: it says who is to come, and goes on once somebody has heard that and says so."""
    slow = Path(sys.argv[-1]).with_name("slow")
    if slow.exists():
        slow.write_text(spec.worker)
        slow.read_bytes()
        slow.unlink()
    return msgspec.structs.replace(spec, pod=pod)


if __name__ == "__main__":
    told = Path(sys.argv[-1]).with_name("pod.json")
    if told.exists():
        home = msgspec.convert(json.loads(told.read_text()), Pod)
        started = settings.WorkerSettings.spec.fget  # type: ignore[attr-defined]
        settings.WorkerSettings.spec = property(  # type: ignore[assignment,method-assign]
            lambda one: msgspec.structs.replace(started(one), pod=home)
        )
    for name in (name for name in vars(Housing) if not name.startswith("_")):
        setattr(PretendRuntime, name, _nothing)
    PretendRuntime.housed = _housed  # type: ignore[attr-defined]
    main.run()
