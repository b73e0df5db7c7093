"""Where the policies of a set stand, and how what was found among them is told."""

from collections.abc import Mapping

from shunter.lang.bind import Path
from shunter.lang.diagnostics import SourceText
from shunter.lang.yaml import Mapping as YamlMapping
from shunter.lang.yaml import Node as YamlNode
from shunter.lang.yaml import Scalar as YamlScalar
from shunter.lang.yaml import look_up, parse
from shunter.model.errors import Place, Problem, Severity
from shunter.model.expression import Scalar
from shunter.model.policy import Policy


class Texts:
    """The files that the policies stand in, for places and source lines. A file that isn't there costs only those."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._parsed: dict[str, tuple[SourceText, list[YamlNode]]] = {}

    def warning(self, policy: Policy, path: Path, code: str, what: str, remedy: str) -> Problem:
        """A warning at `path` of the policy's document, or at its name when the path isn't there."""
        found = self._document(policy.place)
        if found is None:
            return Problem(code=code, what=what, remedy=remedy, place=policy.place, severity=Severity.WARNING)
        source, document = found
        node = look_up(document, path)
        place = node.opening(source.text) if isinstance(node, YamlScalar) else node.start
        if node is document or not path:
            place = look_up(document, ("metadata", "name")).start
        return source.problem(code, place, what, remedy, severity=Severity.WARNING)

    def _document(self, place: Place) -> tuple[SourceText, YamlMapping] | None:
        if place.file not in self._texts:
            return None
        if place.file not in self._parsed:
            source = SourceText(place.file, self._texts[place.file])
            self._parsed[place.file] = source, parse(source)[0]
        source, documents = self._parsed[place.file]
        named = (d for d in documents if isinstance(d, YamlMapping) and source.place(look_up(d, ("metadata", "name")).start) == place)
        return next(((source, d) for d in named), None)


def values(example: Mapping[str, Scalar]) -> str:
    """`pools.prefill.waiting = 31 and worker.role = "decode"`."""
    parts = [f"{name} = {_shown(value)}" for name, value in example.items()]
    return " and ".join(parts) or "any values"


def for_instance(example: Mapping[str, Scalar] | None) -> str:
    """`, for instance with ...`; empty where there is no example."""
    return f", for instance with {values(example)}" if example else ""


def many(count: int, noun: str) -> str:
    """`1 worker`, `3 workers`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _shown(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:.12g}"
