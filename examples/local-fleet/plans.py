"""Which nodes and workers a local fleet has, and the three nodes of the demo."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerPlan:
    """A worker to start: its slot's index, and the last byte of its address."""

    name: str
    role: str
    slot: int
    host: int


@dataclass(frozen=True)
class NodePlan:
    """A node to make: the last byte of its address, what its slots accept, and the workers that it starts with."""

    name: str
    host: int
    slots: tuple[tuple[str, ...], ...]
    workers: tuple[WorkerPlan, ...]
    labels: dict[str, str] = field(default_factory=dict)


ANY = ("prefill", "decode")
DECODE = ("decode",)
"""A slot without the rail that prefill workers need to hand their KV cache over."""

NODES = (
    NodePlan(
        "node-a",
        11,
        (ANY, ANY),
        (WorkerPlan("prefill-0", "prefill", 0, 121), WorkerPlan("decode-0", "decode", 1, 111)),
        {"capacity": "spot"},
    ),
    NodePlan(
        "node-b",
        12,
        (ANY, ANY, DECODE),
        (WorkerPlan("prefill-1", "prefill", 0, 122), WorkerPlan("decode-1", "decode", 1, 112)),
        {"capacity": "spot"},
    ),
    NodePlan("node-c", 13, (ANY, DECODE), (WorkerPlan("decode-2", "decode", 0, 113),), {"capacity": "reserved"}),
)
