"""Looking into a resource that somebody else wrote: what isn't as it should be is said with its place in the resource."""

from typing import Any, Final

from shunter.cluster.api import Object
from shunter.model.errors import Problem, Rejected

_MISSING: Final = object()


class Unreadable(Rejected):
    """SH270: a resource of Dynamo's that isn't as we know them."""


class Node:
    """A value in a resource, and the path to it."""

    __slots__ = ("path", "value", "whose")

    def __init__(self, value: Any, path: str, whose: str) -> None:  # noqa: ANN401  (JSON)
        self.value, self.path, self.whose = value, path, whose

    def __getitem__(self, key: str | int) -> "Node":
        """A part of an object or a list. What isn't there has no value: the methods below say what that means."""
        if isinstance(key, int):
            return Node(self.value[key], f"{self.path}[{key}]", self.whose)
        found = self.object()
        return Node(found.get(key, _MISSING), f"{self.path}.{key}" if self.path else key, self.whose)

    @property
    def there(self) -> bool:
        """It has a value, and it isn't null."""
        return self.value is not _MISSING and self.value is not None

    def object(self) -> Object:
        """Empty where there is none."""
        return self._of(dict, {}, "an object")  # type: ignore[no-any-return]

    def items(self) -> "list[Node]":
        """Empty where there is none."""
        found: list[Any] = self._of(list, [], "a list")
        return [self[place] for place in range(len(found))]

    def entries(self) -> "list[tuple[str, Node]]":
        """Of an object, by key, sorted."""
        return [(key, self[key]) for key in sorted(self.object())]

    def text(self, default: str | None = None) -> str:
        """Without a default it must be there, and not be empty."""
        found: str = self._of(str, default, "a text")
        if default is None and not found:
            raise self.wrong("it is empty")
        return found

    def number(self, default: int | None = None) -> int:
        """A whole number, not negative."""
        found: int = self._of(int, default, "a whole number")
        if isinstance(found, bool) or found < 0:
            raise self.wrong(f"{found!r} is not a whole number of 0 or more")
        return found

    def flag(self, default: bool = False) -> bool:
        """Yes or no."""
        return bool(self._of(bool, default, "true or false"))

    def wrong(self, why: str) -> Unreadable:
        """What to raise about it."""
        remedy = "Mend it, or tell us which release of Dynamo wrote it; until then nothing is done with the graph that it belongs to"
        return Unreadable(Problem(code="SH270", what=f"`{self.path}` can't be read: {why}", remedy=remedy, subject=self.whose))

    def _of(self, kind: type, default: Any, called: str) -> Any:  # noqa: ANN401  (JSON)
        if not self.there:
            if default is None:
                raise self.wrong("it isn't there")
            return default
        if not isinstance(self.value, kind):
            raise self.wrong(f"it is no {called.removeprefix('a ').removeprefix('an ')}")
        return self.value


def root(found: Object, kind: str) -> Node:
    """A resource as a whole. Raises Unreadable for one without a name."""
    meta = found.get("metadata") if isinstance(found, dict) else None
    name = meta.get("name", "?") if isinstance(meta, dict) else "?"
    namespace = meta.get("namespace", "?") if isinstance(meta, dict) else "?"
    node = Node(found, "", f"{kind} {namespace}/{name}")
    node["metadata"]["name"].text()
    return node
