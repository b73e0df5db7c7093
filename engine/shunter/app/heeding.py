"""A notice, the moment it is heard: what is involuntary is decided on what was last seen, and ordered, beside whatever a tick is doing.

It is the tick's own decision: the same `evaluate`, given the policies that answer to notices alone. Those come first in it, and nothing
that other policies say changes what they plan. So a tick on the same fleet plans the same operations, under the same ids, and the scheduler
knows them.

A tick that had looked before the notice came decides without it. What it plans then isn't offered, and the next tick begins at once.
"""

from typing import Final

import msgspec

from shunter.app.duty import Duty
from shunter.audit.decisions import Tracker
from shunter.decide.evaluate import evaluate
from shunter.lang.bulk import BulkCelRules
from shunter.model.canon import digest
from shunter.model.ids import Epoch
from shunter.model.operation import EngineState
from shunter.model.plan import Evaluation
from shunter.model.policy import FleetProfile, PolicySet, PreemptionPolicy
from shunter.model.record import Record
from shunter.model.snapshot import Notice, Samples, Snapshot

IN_A_ROW: Final = 3
"""So many ticks in a row are overtaken by notices at most: then one is carried out as it is. Whoever offers what, no worker is ordered
about twice and no slot given away twice: the scheduler sees to it, and what doesn't fit any more is given up and planned anew.
"""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided because of a notice, on what, and the audit's records of it."""

    evaluation: Evaluation
    policies: PolicySet
    snapshot: Snapshot
    state: EngineState
    records: tuple[Record, ...]


class Heeding:
    """Decides at once. It shares no caches with the ticks, which may be deciding in another thread."""

    def __init__(self, duty: Duty, epoch: Epoch) -> None:
        self._duty, self._epoch = duty, epoch
        self._rules = BulkCelRules()
        self._policies: tuple[PolicySet, PolicySet] | None = None
        self._overtaken = 0
        self.number = 0
        """Notices that were heeded: a tick that sees another number at its end than at its beginning was overtaken."""
        self.samples = Samples()
        """As they were last measured: what is involuntary doesn't wait for newer ones."""

    def overtook(self, began: int) -> bool:
        """Whether the tick that began at this `number` is to be dropped."""
        self._overtaken = self._overtaken + 1 if self.number != began else 0
        return 0 < self._overtaken <= IN_A_ROW

    def news(self, notice: Notice) -> bool:
        """Take the notice into what is seen; False if it is there already."""
        scene = self._duty.scene
        if notice in scene.notices:
            return False
        kept = [n for n in scene.notices if (n.node, n.id) != (notice.node, notice.id)]
        scene.notices = tuple(sorted((*kept, notice), key=lambda n: (n.node, n.id)))
        self.number += 1
        return True

    def decide(self, state: EngineState, now: float) -> Heard | None:
        """What is to be done at `now` for the nodes that are going; None where policies aren't known yet, or have nothing to say."""
        duty = self._duty
        policies = self._urgent()
        if policies is None or not duty.looks_ahead:
            return None
        snapshot = Snapshot(at=now, fleet=duty.scene.fleet, samples=self.samples, notices=duty.scene.notices)
        evaluation = evaluate(policies, [snapshot], state, now, self._rules, duty.profile)
        if not any(not o.preview for o in evaluation.plan.operations):
            return None
        _, records = Tracker().observe(msgspec.structs.replace(evaluation, findings=()), now, self._epoch, snapshot.fleet)
        return Heard(evaluation=evaluation, policies=policies, snapshot=snapshot, state=state, records=records)

    def _urgent(self) -> PolicySet | None:
        whole = self._duty.feed.current
        if whole is None:
            return None
        if self._policies is None or self._policies[0] is not whole:
            self._policies = whole, involuntary(whole)
        return self._policies[1]


def involuntary(policies: PolicySet) -> PolicySet:
    """The policies in force that answer to notices, and the figures that they plan with: a set of its own, with its own digest."""
    kept = tuple(
        p
        for p in policies.policies
        if (isinstance(p.document, PreemptionPolicy) and p.acts and p.mode == "enforce") or isinstance(p.document, FleetProfile)
    )
    content = [(p.place.file, p.blob, p.document) for p in kept]
    return PolicySet(commit=policies.commit, digest=digest(content), policies=kept, problems=())
