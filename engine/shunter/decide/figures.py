"""Fleet profiles: the figures that operations are planned with, by GPU model."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from shunter.decide.profile import Profile
from shunter.decide.world import World
from shunter.model.policy import FleetProfile, FleetProfileSpec, Policy
from shunter.model.snapshot import NoticeKind, Worker
from shunter.model.units import Duration

_RATES: Final = {
    "dump_bytes_per_s": "dump",
    "restore_bytes_per_s": "restore",
    "network_bytes_per_s": "network",
    "fixed_dump_s": "fixed_dump",
    "fixed_restore_s": "fixed_restore",
}
"""Fields of the built-in profile, and those of a FleetProfile that replace them."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What is planned with for one GPU model. `names` are the profiles that gave any of it, the first asked first.

    `native_start` is in seconds, `prefill_rate` in tokens a second, `prefill_doubling` in tokens (see `model.context`); None: nobody
    gave it. There is no built-in value for those: a move is weighed against a native start only where somebody has said what one takes.
    """

    rates: Profile
    native_start: float | None = None
    prefill_rate: float | None = None
    prefill_doubling: float | None = None
    lead: Mapping[NoticeKind, Duration] = {}
    names: tuple[str, ...] = ()


class AllFigures:
    """The figures by GPU model. Profiles for a model come before those for all workers, and among equals those whose names come first."""

    def __init__(self, policies: Sequence[Policy], built_in: Profile) -> None:
        self._built_in = built_in
        in_force = sorted((p for p in policies if isinstance(p.document, FleetProfile) and p.mode == "enforce"), key=lambda p: p.name)
        self._given = [(str(p.name), p.document.spec) for p in in_force if isinstance(p.document, FleetProfile)]
        self._made: dict[str, Figures] = {}

    @property
    def late_cost_more(self) -> bool:
        """Some profile says how what a token takes grows with the context before it."""
        return any(spec.prefill_doubling for _, spec in self._given)

    def of(self, model: str) -> Figures:
        """For workers on slots of this GPU model; an empty one is that of slots without GPUs, or of which it isn't known."""
        if model not in self._made:
            own = [(n, s) for n, s in self._given if s.gpu_model == model]
            self._made[model] = _merged([*own, *((n, s) for n, s in self._given if s.gpu_model is None)], self._built_in)
        return self._made[model]


def model_of(world: World, worker: Worker) -> str:
    """The GPU model of the worker's slot; while it is away that of its pool, if there is but one. Empty: none, or not known."""
    slot = world.slots.get(worker.slot) if worker.slot else None
    if slot is not None:
        return slot.gpu_model
    found = {s.gpu_model for w in world.pools.get(worker.pool, ()) if w.slot and (s := world.slots.get(w.slot)) is not None}
    return found.pop() if len(found) == 1 else ""


def _merged(given: Sequence[tuple[str, FleetProfileSpec]], built_in: Profile) -> Figures:
    """The first that gives a figure wins."""
    specs = [spec for _, spec in given]
    rates = {field: float(value) for field, own in _RATES.items() if (value := _first(specs, own)) is not None}
    if "restore_bytes_per_s" in rates:
        # the floor stands for not knowing how fast GPUs come back; whoever gives a rate knows it
        rates["gpu_restore_floor_s"] = 0.0
    native, prefill, doubling = (_first(specs, own) for own in ("native_start", "prefill_rate", "prefill_doubling"))
    return Figures(
        rates=msgspec.structs.replace(built_in, **rates),
        native_start=None if native is None else float(native),
        prefill_rate=prefill if prefill else None,
        prefill_doubling=doubling if doubling else None,
        lead={kind: lead for spec in reversed(specs) for kind, lead in spec.lead.items()},
        names=tuple(name for name, _ in given),
    )


def _first(specs: Sequence[FleetProfileSpec], field: str) -> Any:  # noqa: ANN401  (fields of several types)
    return next((value for spec in specs if (value := getattr(spec, field)) is not None), None)
