"""A test file's bytes to the structs of `cases.document`, or problems with their places."""

import msgspec

from shunter.cases.document import Suite
from shunter.cases.schema import case_validator
from shunter.lang.bind import Binder
from shunter.lang.diagnostics import SourceText
from shunter.lang.misfits import misfits
from shunter.lang.yaml import Mapping, Scalar, decode, parse
from shunter.model.errors import Problem


class Read(msgspec.Struct, frozen=True):
    """A file that fits the schema. `root` and `source` are for places."""

    source: SourceText
    root: Mapping
    suite: Suite


def is_test_file(name: str) -> bool:
    """Whether a name is that of a test file: `*_test.yaml` or `*_test.yml`."""
    return name.endswith(("_test.yaml", "_test.yml"))


def read(path: str, data: bytes) -> tuple[Read | None, tuple[Problem, ...]]:
    """The file, or None with everything that is wrong with it as YAML and by the schema. Never raises."""
    source, problems = decode(path, data)
    if problems:
        return None, tuple(problems)
    nodes, problems = parse(source)
    if problems:
        return None, _ordered(problems)
    nodes = [node for node in nodes if not (isinstance(node, Scalar) and node.value is None)]
    if len(nodes) != 1 or not isinstance(root := nodes[0], Mapping):
        at = nodes[1].start if len(nodes) > 1 else 0
        what = f"a test file is one mapping, and this has {len(nodes)} documents" if len(nodes) != 1 else "this is no mapping"
        return None, (source.problem("SH160", at, what, "Begin with tests: and write all tests of the file below it"),)
    binder = Binder(source)
    suite = binder.document(Suite, root)
    problems = list(binder.problems)
    if binder.misfits:
        unnamed = source.problem("SH160", binder.misfits[0].start, "this value doesn't fit its key", "See the how-to on testing policies")
        problems += misfits(source, case_validator(), root) or [unnamed]
    if problems or not isinstance(suite, Suite):
        return None, _ordered(problems)
    return Read(source, root, suite), ()


def _ordered(problems: list[Problem]) -> tuple[Problem, ...]:
    return tuple(sorted(dict.fromkeys(problems), key=lambda p: (p.place.line, p.place.column) if p.place else (0, 0)))
