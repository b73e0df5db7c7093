"""docs/reference/policies.md."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec.inspect as mi
from shunter.lang import schema
from shunter.lang.check import FIELDS
from shunter.model import policy

from reference.markdown import code, paragraphs, table
from reference.structs import about, default, docs, inner, struct, words

_INTRO: Final = """# Policies, `shunter.dev/v1alpha1`

A file holds one or more documents. YAML is read strictly: a key that stands twice or isn't known, an anchor, a tag, or a value that YAML
versions read differently is an error at its line and column. A file has at most 256 KiB, an expression at most 4 KiB. Files named
`*_test.yaml` are not read.

A **duration** is a number with a unit, or several with falling units: `250ms`, `30s`, `5m`, `1h30m`, `2d`. A **share** is a percentage,
`3%`; a **bandwidth** a size per second, `40GB/s`; a **rate** how many in which time, `1/1000h`. A bare number is an error. An
**expression** is [CEL](https://cel.dev) over [variables](variables.md). An empty default means that what it says isn't asked for.

```yaml
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: recent-images}
spec:
  workers: {role: decode}
  every: 5m
```"""
_TITLES: Final = ("key", "type", "default", "meaning")
_BOUNDS: Final[dict[str, Callable[[Any], str]]] = {
    "pattern": lambda v: f"matches `{v}`",
    "maxLength": lambda v: f"at most {v} characters",
    "minLength": lambda _: "not empty",
    "minimum": lambda v: f"at least {v}",
    "exclusiveMinimum": lambda v: f"more than {v}",
    "minItems": lambda v: f"at least {v} entry",
    "minProperties": lambda _: "not empty",
    "uniqueItems": lambda _: "no entry twice",
    "propertyNames": lambda v: f"names match `{v['pattern']}`",
}


def page() -> str:
    """The whole page."""
    acting = [name for name, kind in schema.KINDS.items() if issubclass(_spec(kind).cls, policy._Spec)]
    scoped = [name for name, kind in schema.KINDS.items() if issubclass(_spec(kind).cls, policy._Scoped)]
    own = {field.name for field in struct(policy._Scoped).fields}
    parts = [
        *(_INTRO, "## Keys of every kind", table(_TITLES, _metadata())),
        *("## Keys of every kind that is about workers", f"Those are {_named(scoped)}."),
        table(_TITLES, _rows(struct(policy._Scoped), "spec", lambda _: True)),
        *("## Keys of every kind that makes something happen", f"Those are {_named(acting)}."),
        table(_TITLES, _rows(struct(policy._Spec), "spec", lambda field: field.name not in own)),
    ]
    for name, kind in schema.KINDS.items():
        spec = _spec(kind)
        shared = {field.name for base in (policy._Spec, policy._Scoped) if issubclass(spec.cls, base) for field in struct(base).fields}
        rows = _rows(spec, "spec", lambda field, shared=shared: field.name not in shared)  # type: ignore[misc]
        parts += [f"## {name}", paragraphs(about(kind)), paragraphs(about(spec.cls)), table(_TITLES, rows), *_expressions(name)]
    return "\n\n".join(parts)


def _spec(kind: type) -> mi.StructType:
    spec = next(field.type for field in struct(kind).fields if field.name == "spec")
    assert isinstance(spec, mi.StructType)
    return spec


def _named(kinds: list[str]) -> str:
    return f"{', '.join(map(code, kinds[:-1]))} and {code(kinds[-1])}"


def _metadata() -> Iterator[tuple[str, str, str, str]]:
    yield "`apiVersion`", f"`{policy.API_VERSION}`", "required", ""
    yield "`kind`", " or ".join(map(code, schema.KINDS)), "required", ""
    yield "`metadata`", "mapping", "required", about(policy.Metadata)
    yield from _rows(struct(policy.Metadata), "metadata", lambda _: True)


def _rows(kind: mi.StructType, path: str, wanted: Callable[[mi.Field], bool]) -> Iterator[tuple[str, str, str, str]]:
    """A row for each key at and below `path`, in the order of the source."""
    told = docs(kind.cls)
    for field in filter(wanted, kind.fields):
        _, plain, limits = next(entry for entry in schema.fields(kind.cls) if entry[0].name == field.name)
        here = f"{path}.{field.encode_name}"
        below = inner(plain)
        bounds = "; ".join(_BOUNDS[keyword](limit) for keyword, limit in limits.items())
        meaning = [told.get(field.name, ""), about(below[1].cls) if below else "", f"({bounds})" if bounds else ""]
        yield code(here), words(plain), default(field), " ".join(part for part in meaning if part)
        if below:
            yield from _rows(below[1], here + below[0], lambda _: True)


def _expressions(kind: str) -> list[str]:
    """Which variables each of a kind's expressions sees, and what it must give. Empty for a kind without."""
    gives = {"bool": "true or false", "number": "a number"}
    rows = [
        (code(f"spec.{path}"), gives[result], ", ".join(code(root) for root in sorted(roots)))
        for (of, path), (result, roots) in FIELDS.items()
        if of == kind
    ]
    return ["Its expressions:\n\n" + table(("key", "gives", "sees"), rows)] if rows else []
