"""What the engine itself would say of policies in a fleet: the port that `shunter validate --fleet` asks through."""

from collections.abc import Mapping

from shunter.decide.budget import effective
from shunter.decide.deciding import Deciding
from shunter.decide.profile import Profile
from shunter.decide.usage import Usage
from shunter.lang.cel import CelRules
from shunter.model.ids import Commit, Digest
from shunter.model.operation import EngineState
from shunter.model.policy import BudgetSpec, Policy, PolicySet
from shunter.model.snapshot import Snapshot, Worker
from shunter.model.units import Share


class Answers:
    """`lang.whole.Engine` for one snapshot, by the functions that decide."""

    def __init__(self, snapshot: Snapshot) -> None:
        none = PolicySet(commit=Commit("unsaved"), digest=Digest(""))
        self._deciding = Deciding(none, [snapshot], EngineState(), snapshot.at, CelRules(), Profile())

    def covers(self, policy: Policy, worker: Worker) -> bool | None:
        """Whether a policy's selector covers a worker; None when that can't be said."""
        answer, _ = self._deciding.covers(policy, worker)
        return answer if isinstance(answer, bool) else None

    def allowed(self, policy: Policy, limit: Share) -> Mapping[str, tuple[int, int]]:
        """Workers of each group of a budget, and how many of them the share is; empty for other kinds."""
        spec, d = policy.document.spec, self._deciding
        if not isinstance(spec, BudgetSpec):
            return {}
        usage = Usage(spec, lambda worker: d.covers(policy, worker)[0], d.worlds, d.history, d.now)
        return {group: (size, effective(limit, size)[0]) for group, size in usage.size.items()}
