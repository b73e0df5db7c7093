"""Snapshots as they may be kept: without what records don't hold either (see `audit.redact`).

A large fleet has tens of thousands of labels, and few different ones: each is judged once, and what is clean stays the same object.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec

from shunter.audit.redact import Redaction
from shunter.model.sample import Known, Sample
from shunter.model.snapshot import Fleet, Node, Notice, Samples, Snapshot

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")


class Cleaner:
    """Cleans one snapshot after the other. `left_out` names what was taken out so far, sorted."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._good: set[tuple[str, str]] = set()
        self._texts: dict[str, str] = {}
        self._found: set[str] = set()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Such as `node.labels: api-token`."""
        return tuple(sorted(self._found))

    def snapshot(self, of: Snapshot) -> Snapshot:
        """The same object, if there is nothing to take out: then its id is still that of its content."""
        fleet, samples = self._fleet(of.fleet), self._samples(of.samples)
        notices = self._each(of.notices, self._notice)
        if fleet is of.fleet and samples is of.samples and notices is of.notices:
            return of
        return Snapshot(at=of.at, fleet=fleet, samples=samples, notices=notices)

    def _fleet(self, fleet: Fleet) -> Fleet:
        nodes = self._each(fleet.nodes, self._node)
        workers = self._each(fleet.workers, lambda w: _with(w, labels=self._labels(w.labels, "worker.labels")))
        images = self._each(fleet.images, lambda i: _with(i, facts=self._strings(i.facts, "image.facts")))
        if nodes is fleet.nodes and workers is fleet.workers and images is fleet.images:
            return fleet
        return Fleet(nodes=nodes, workers=workers, images=images)

    def _node(self, node: Node) -> Node:
        return _with(node, labels=self._labels(node.labels, "node.labels"), facts=self._strings(node.facts, "node.facts"))

    def _notice(self, notice: Notice) -> Notice:
        return _with(notice, source=self._text(notice.source, "notice.source"), detail=self._text(notice.detail, "notice.detail"))

    def _samples(self, samples: Samples) -> Samples:
        workers = self._fields(samples.workers)
        pools = self._fields(samples.pools)
        policies = _kept(samples.policies, {name: self._fields(fields) for name, fields in samples.policies.items()})
        if workers is samples.workers and pools is samples.pools and policies is samples.policies:
            return samples
        return Samples(workers=workers, policies=policies, pools=pools)

    def _fields(self, fields: Mapping[str, Mapping[str, Sample]]) -> Mapping[str, Mapping[str, Sample]]:
        return _kept(fields, {key: _kept(own, {name: self._sample(s) for name, s in own.items()}) for key, own in fields.items()})

    def _sample(self, sample: Sample) -> Sample:
        """Its query stays: it is the policy's, or the catalog's own, and a sample counts only for its query."""
        return _with(sample, labels=self._labels(sample.labels, "sample labels")) if isinstance(sample, Known) else sample

    def _labels(self, labels: dict[str, str], where: str) -> dict[str, str]:
        if labels.items() <= self._good:
            return labels
        return self._judged(labels, self._redaction.labelled(labels), where)

    def _strings(self, strings: dict[str, str], where: str) -> dict[str, str]:
        return self._judged(strings, self._redaction.keyed(strings), where)

    def _judged(self, before: dict[str, str], after: dict[str, str], where: str) -> dict[str, str]:
        if before == after:
            if where.endswith("labels"):
                self._good.update(before.items())
            return before
        self._found.update(f"{where}: {name}" for name, value in after.items() if before.get(name) != value)
        return after

    def _text(self, text: str, where: str) -> str:
        if text not in self._texts:
            self._texts[text] = str(self._redaction.plain(text))
        if self._texts[text] != text:
            self._found.add(where)
        return self._texts[text]

    def _each(self, parts: tuple[T, ...], cleaned: Callable[[T], T]) -> tuple[T, ...]:
        found = tuple(cleaned(part) for part in parts)
        return parts if all(a is b for a, b in zip(parts, found, strict=True)) else found


def _with(part: T, **fields: object) -> T:
    """The part with these fields, or itself if it has them already."""
    if all(getattr(part, name) is value for name, value in fields.items()):
        return part
    return msgspec.structs.replace(part, **fields)


def _kept(before: Mapping[str, V], after: Mapping[str, V]) -> Mapping[str, V]:
    return before if all(before[key] is value for key, value in after.items()) else after
