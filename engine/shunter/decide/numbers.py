"""Pools that somebody else keeps at a number of workers, as Dynamo's operator does: when that number may be changed, and what follows.

The snapshot has two samples of such a pool. `settled` is missing while its graph is being changed by others or has failed; `replicas` is
the number, and missing where it can't be changed by us. Where a pool has a number, whoever keeps it starts a worker more natively.
"""

from shunter.decide.deciding import Deciding
from shunter.model.ids import pool_id
from shunter.model.sample import Known, Missing, Sample

_ROLES = ("prefill", "decode")


def moving(d: Deciding, graph: str) -> str | None:
    """Why nothing voluntary is begun in a graph now, whatever it is. None: nothing is known against it."""
    return next((why for role in _ROLES if (why := _missing(_sample(d, graph, role, "settled"))) is not None), None)


def fixed(d: Deciding, graph: str) -> str | None:
    """Why hardware doesn't change sides in a graph now. None: nothing is known against it."""
    lacks = (_missing(_sample(d, graph, role, "replicas")) for role in _ROLES)
    return moving(d, graph) or next((why for why in lacks if why is not None), None)


def number(d: Deciding, graph: str, role: str) -> int | None:
    """How many workers the pool is kept at; None: nobody keeps it at a number, or it isn't known."""
    found = _sample(d, graph, role, "replicas")
    return int(found.value) if isinstance(found, Known) else None


def _sample(d: Deciding, graph: str, role: str, name: str) -> Sample | None:
    return d.world.snapshot.samples.pools.get(pool_id(graph, role), {}).get(name)


def _missing(sample: Sample | None) -> str | None:
    return sample.reason if isinstance(sample, Missing) else None
