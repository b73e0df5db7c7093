"""Two revisions of the policies, decided on the same snapshots."""

from collections.abc import Sequence

import msgspec

from shunter.app.looking import Seen
from shunter.app.preview import decided
from shunter.backtest.diff import difference
from shunter.decide.profile import Profile
from shunter.lang.bulk import BulkCelRules
from shunter.model.difference import Compared
from shunter.model.policy import PolicySet

_SHOWN = 5


def compare(base: PolicySet, head: PolicySet, seen: Sequence[Seen], profile: Profile | None = None) -> Compared:
    """How `head` would decide otherwise than `base`. `seen` is what each of the two sees; `profile` counts where it has none of its own."""
    rules = BulkCelRules()
    before, after = (decided(policies, what, profile, rules) for policies, what in zip((base, head), seen, strict=True))
    remarks = [*refused("the base", base), *refused("the head", head), *dict.fromkeys((*before.remarks, *after.remarks))]
    if before.snapshot.id != after.snapshot.id:
        remarks.append("The two ask different queries under one name, so each was decided on its own values of that metric")
    return Compared(
        at=after.snapshot.at,
        snapshot=after.snapshot.id,
        base=base.commit,
        head=head.commit,
        difference=difference(before.evaluation, after.evaluation),
        remarks=tuple(remarks),
    )


def refused(title: str, policies: PolicySet) -> list[str]:
    """What isn't in the comparison since its file was refused."""
    if not policies.problems:
        return []
    first = "; ".join(str(msgspec.structs.replace(p, remedy="")).rstrip(". ") for p in policies.problems[:_SHOWN])
    more = f" and {len(policies.problems) - _SHOWN:,} more" if len(policies.problems) > _SHOWN else ""
    return [f"Files of {title} were refused, and what they say isn't compared: {first}{more}"]
