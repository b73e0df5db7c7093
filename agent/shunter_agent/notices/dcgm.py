"""GPU errors as DCGM's exporter counts them, in the text that Prometheus scrapes: no GPU library is needed to read it.

Read are the last XID of each GPU, its remapped rows and the errors of its NVLinks, where the exporter is told to export them; what DCGM
itself makes of them (`DCGM_EXP_GPU_HEALTH_STATUS`) isn't, as its severities say nothing of whether a GPU may be dumped through.

The last XID is a last value: a harmless one hides the grave one before it, so that each effect stays until the exporter says 0. It may
never do so, though the GPU was reset: where the kernel's log is read as well, a recovery that it tells of counts here, too.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
from shunter.model.errors import Problem

from shunter_agent.notices import gpus
from shunter_agent.notices.doubts import Doubt
from shunter_agent.notices.gpus import Gpus
from shunter_agent.notices.metadata import Metadata
from shunter_agent.notices.port import Notice
from shunter_agent.notices.watching import Look
from shunter_agent.notices.xid import Effect, address, effect_of

SOURCE: Final = "dcgm"
EVERY_S: Final = 5.0
_PATH: Final = "/metrics"
LARGEST: Final = 4 * 2**20
"""Bytes of an answer that are read: some hundred lines for each of eight GPUs, or their slices."""
_BLANK: Final = 0x7FFFFFF0
"""From here on DCGM's numbers mean that there is no value."""
XID: Final = "DCGM_FI_DEV_XID_ERRORS"
REMAP_FAILED: Final = "DCGM_FI_DEV_ROW_REMAP_FAILURE"
REMAP_PENDING: Final = "DCGM_FI_DEV_ROW_REMAP_PENDING"
LINKS: Final = ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL")
"""Counters of errors that an NVLink got over. A link that doesn't is XID 74."""
CALM_S: Final = 600.0
"""How long after its last error a link is taken for sound again."""
_LINE: Final = re.compile(r"(DCGM_[A-Z0-9_]+)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?\s*$")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One line of the text. `gpu` is its PCI address where there is one, else its UUID, else its number."""

    name: str
    gpu: str
    pci: str
    uuid: str
    value: float


def samples(text: str) -> Iterator[Sample]:
    """The lines about GPUs that have a value. Raises ValueError for one that can't be read: half a text isn't believed."""
    for line in text.splitlines():
        if not line.startswith("DCGM_"):
            continue
        found = _LINE.match(line)
        if found is None:
            raise ValueError(f"{line[:100]!r} is no sample")
        labels = dict(_LABEL.findall(found[2] or ""))
        value = float(found[3])
        pci, uuid = labels.get("pci_bus_id", ""), labels.get("UUID", "")
        if math.isfinite(value) and value < _BLANK and (name := (address(pci) if pci else uuid or labels.get("gpu", ""))):
            yield Sample(found[1], name, pci, uuid, value)


def never(_gpu: str, _number: int) -> bool:
    """Nobody knows."""
    return False


def looks(
    service: Metadata, slots: Gpus, *, mended: Callable[[str, int], bool] = never, elapsed: Callable[[], float] = time.monotonic
) -> tuple[Look, ...]:
    """What to ask the exporter. Besides notices it finds SH647: what makes a process suspect and leaves the GPU sound. `mended` says of a
    GPU's address and an XID whether the GPU has recovered since; `elapsed` gives seconds since the machine's start.
    """
    dcgm = _Dcgm(service, slots, mended, elapsed)
    return (Look(name=SOURCE, ask=dcgm.ask, every=EVERY_S, problems=dcgm.problems, doubts=dcgm.doubts),)


class _Dcgm:
    def __init__(self, service: Metadata, slots: Gpus, mended: Callable[[str, int], bool], elapsed: Callable[[], float]) -> None:
        self._service, self._slots, self._mended, self._elapsed = service, slots, mended, elapsed
        self._asked_at = 0.0
        """When it answered last."""
        self._doubts: dict[str, Doubt] = {}
        self._suspect: dict[str, tuple[float, Problem]] = {}
        self._xids: dict[str, dict[str, Notice]] = {}
        self._last: dict[str, int] = {}
        self._links: dict[tuple[str, str], float] = {}
        self._ailing: dict[str, Notice] = {}
        self._ailed: dict[str, float] = {}

    def ask(self) -> Mapping[str, Notice]:
        asked_at = self._elapsed()
        reply = self._service.get(_PATH, {"Accept": "text/plain"})
        if reply.status != 200:
            raise self._service.unreadable(_PATH, reply, "it should be 200")
        try:
            said = list(samples(reply.text))
        except ValueError as error:
            raise self._service.unreadable(_PATH, reply, str(error)) from error
        if not said:
            raise self._service.unreadable(_PATH, reply, "it says nothing of any GPU; is it DCGM's exporter?")
        found: dict[str, Notice] = {}
        for sample in said:
            self._heard(sample, found)
        self._forget({s.gpu for s in said})
        self._asked_at = asked_at
        for notices in (*self._xids.values(), self._calmed()):
            found.update(notices)
        return found

    def doubts(self) -> tuple[Doubt, ...]:
        """The last of each GPU, from when it wasn't there yet. One that was there already at the first look has no time, and may be older
        than any process: it is told, and held against none.
        """
        return tuple(dict(self._doubts).values())

    def problems(self) -> tuple[Problem, ...]:
        oldest = self._service.clock() - gpus.DISTRUSTED_S
        return tuple(problem for at, problem in self._suspect.values() if at > oldest)

    def _heard(self, sample: Sample, found: dict[str, Notice]) -> None:
        if sample.name == XID:
            self._xid(sample, int(sample.value))
        elif sample.name == REMAP_FAILED and sample.value > 0:
            self._add(found, sample, Effect.DRAIN, "a row couldn't be remapped: the GPU has to be replaced")
        elif sample.name == REMAP_PENDING and sample.value > 0:
            self._add(found, sample, Effect.HAZARD, "a row is remapped at the next reset")
        elif sample.name in LINKS:
            self._link(sample)

    def _xid(self, sample: Sample, number: int) -> None:
        if number and self._mended(sample.gpu, number):
            number = 0
        if number == 0:
            self._xids.pop(sample.gpu, None)
            self._suspect.pop(sample.gpu, None)
        elif number != self._last.get(sample.gpu):
            effect = effect_of(number)
            if effect is Effect.RESTART:
                problem = gpus.distrusted(number, sample.gpu, self._slots.slot(sample.pci, sample.uuid), "by DCGM")
                self._suspect[sample.gpu] = self._service.clock(), problem
            if effect in (Effect.RESTART, Effect.GONE) and sample.gpu in self._last:
                slot = self._slots.slot(sample.pci, sample.uuid)
                what = gpus.distrusted(number, sample.gpu, slot, "by DCGM").what
                self._doubts[sample.gpu] = Doubt(slot=slot, at=self._asked_at, what=what)
            self._add(self._xids.setdefault(sample.gpu, {}), sample, effect, f"XID {number} is its last error")
        self._last[sample.gpu] = number

    def _link(self, sample: Sample) -> None:
        key = (sample.gpu, sample.name)
        before, self._links[key] = self._links.get(key), sample.value
        if before is not None and sample.value > before:
            self._add(self._ailing, sample, Effect.HAZARD, "its NVLinks make errors that they get over", "nvlink-")
            self._ailed[sample.gpu] = self._service.clock()

    def _calmed(self) -> dict[str, Notice]:
        now = self._service.clock()
        self._ailed = {gpu: at for gpu, at in self._ailed.items() if now - at < CALM_S}
        self._ailing = {key: n for key, n in self._ailing.items() if any(key == self._link_id(gpu) for gpu in self._ailed)}
        return self._ailing

    def _forget(self, there: set[str]) -> None:
        """A GPU of which nothing is said any more keeps what was said: that it can't be seen is no word that it is well."""
        self._links = {key: value for key, value in self._links.items() if key[0] in there}

    def _add(self, into: dict[str, Notice], sample: Sample, effect: Effect, says: str, kind: str = "") -> None:
        slot = self._slots.slot(sample.pci, sample.uuid)
        made = gpus.notice(
            effect, kind + sample.gpu, slot=slot, at=self._service.clock(), source=SOURCE, detail=f"{sample.gpu}: {says} ({sample.name})"
        )
        if made is not None:
            into.setdefault(made.id, msgspec.structs.replace(made, counted=True))

    @staticmethod
    def _link_id(gpu: str) -> str:
        return f"{gpus.prefix('nvlink-' + gpu)}{Effect.HAZARD.value}"
