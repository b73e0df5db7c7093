"""Golden images: whether a worker that is started for a pool starts from one, by its policy and by what is known of the pool.

The snapshot has a sample `golden` of a pool of which there is a golden image that can be started from, with its name; missing, with the
reason, where there are some and none can. No sample: there are none.
"""

from typing import Final

import msgspec

from shunter.decide.deciding import Deciding
from shunter.decide.words import clock
from shunter.model.ids import PoolId
from shunter.model.operation import Outcome
from shunter.model.policy import ReassignmentSpec
from shunter.model.sample import Known, Missing

_IN_VAIN: Final = ("SH571", "SH572", "SH573")
"""How an operation ends whose golden image was tried in vain."""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is started: from the golden image of that name (empty: natively), and why natively where it was to be otherwise."""

    golden: str = ""
    why: str = ""

    @property
    def how(self) -> str:
        """In words, after "is started"."""
        if self.golden:
            return f"from golden image {self.golden}"
        return f"natively, as {self.why}" if self.why else "natively"

    @property
    def for_it(self) -> str:
        """The same for what a worker leaves."""
        return f"for it {self.how}" if self.golden or self.why else "natively for it"


def start(d: Deciding, spec: ReassignmentSpec, pool: PoolId) -> Start:
    """How one is started for a pool. What has failed within the hour isn't tried again: it would be in vain for each, and at length."""
    if spec.golden_images == "ignore" or not pool.endswith("/prefill"):
        return Start()
    found = d.world.snapshot.samples.pools.get(pool, {}).get("golden")
    if not isinstance(found, Known):
        why = f": {found.reason}" if isinstance(found, Missing) else ""
        return Start(why=f"{pool} has no golden image to start from{why}")
    name = found.labels["name"]
    failed = _failed(d, pool, name)
    if failed is not None:
        return Start(why=f"golden image {name} failed at {clock(failed.at)} ({failed.code}) and isn't tried again within the hour")
    return Start(golden=name)


def _failed(d: Deciding, pool: PoolId, name: str) -> Outcome | None:
    """How the last operation ended that tried it in vain; None: none did."""
    own = (r.outcome for r in reversed(d.history.past.recent) if (r.planned.hands_to, r.planned.golden) == (pool, name))
    return next((outcome for outcome in own if outcome is not None and outcome.code in _IN_VAIN), None)
