"""What one decision leaves to the next, so that it needn't be worked out again. It changes no answer, only how long that takes."""

from collections.abc import Sequence

from shunter.decide.history import Ended, History
from shunter.decide.scope import Scopes
from shunter.decide.world import World
from shunter.model.operation import EngineState
from shunter.model.snapshot import Snapshot


class Memory:
    """Indexes over snapshots and over what ended, kept for as long as the next decision is given the very same objects.

    For decisions one after the other, not for several threads at once.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[World, Scopes]] = {}
        self._ended: Ended | None = None

    def worlds(self, snapshots: Sequence[Snapshot]) -> list[tuple[World, Scopes]]:
        """Each snapshot's world and its scopes. A new one shares with one of the same fleet, or else with the one before, what is the same
        in both.
        """
        alike = {id(world.snapshot.fleet): (world, scopes) for world, scopes in self._seen.values()}
        seen: dict[int, tuple[World, Scopes]] = {}
        last = next(reversed(self._seen.values()), None)
        for snapshot in snapshots:
            found = self._seen.get(id(snapshot))  # it can't be the number of another one: the world keeps its own
            if found is None:
                like = alike.get(id(snapshot.fleet), last)
                world = World(snapshot, like[0] if like is not None else None)
                found = world, Scopes(world)
            seen[id(snapshot)] = last = found
        self._seen = seen
        return [seen[id(snapshot)] for snapshot in snapshots]

    def beside(self) -> "Memory":
        """Another one, for another thread, that knows of the newest snapshot what this one does."""
        other = Memory()
        other._seen = dict([next(reversed(self._seen.items()))] if self._seen else [])
        other._ended = self._ended
        return other

    def learn(self, other: "Memory") -> None:
        """Have the next decision know what another memory does of its newest snapshot."""
        self._seen |= dict([next(reversed(other._seen.items()))] if other._seen else [])

    def history(self, state: EngineState) -> History:
        """The state's records, indexed."""
        history = History(state, self._ended)
        self._ended = history.past
        return history
