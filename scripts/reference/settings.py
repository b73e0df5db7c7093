"""docs/reference/settings.md."""

from collections.abc import Iterator
from types import ModuleType
from typing import Final

import msgspec.inspect as mi
import shunter.app.settings
import shunter_agent.settings

from reference.markdown import code, paragraphs, table
from reference.structs import about, default, docs, inner, struct, words

_INTRO: Final = """# Settings

Engine and agent each read one TOML file. Paths in it are relative to the file's own folder. A key that isn't known is an error."""
_TITLES: Final = ("key", "type", "default", "meaning")


def page() -> str:
    """The whole page."""
    return "\n\n".join(
        [
            _INTRO,
            *_file("The engine: `shunter engine --config engine.toml`", shunter.app.settings, shunter.app.settings.Settings),
            *_file("The agent: `shunter-agent run --config agent.toml`", shunter_agent.settings, shunter_agent.settings.Settings),
        ]
    )


def _file(title: str, module: ModuleType, settings: type) -> Iterator[str]:
    yield f"## {title}"
    example = (module.__doc__ or "").partition("\n\n")[2].strip()
    yield f"```toml\n{example}\n```"
    yield from _section("The file itself", struct(settings))
    for path, kind in _sections("", struct(settings)):
        yield from _section(f"`{path}`", kind)


def _sections(prefix: str, kind: mi.StructType) -> Iterator[tuple[str, mi.StructType]]:
    """Tables of the file, each as TOML writes its head."""
    for field in kind.fields:
        below = inner(_plain(field.type))
        if below:
            name = prefix + field.name
            yield (f"[[{name}]]" if below[0] == "[]" else f"[{name}]"), below[1]
            yield from _sections(f"{name}.", below[1])


def _section(title: str, kind: mi.StructType) -> Iterator[str]:
    yield f"### {title}"
    yield paragraphs(about(kind.cls))
    told = docs(kind.cls)
    rows = [
        (code(field.encode_name), words(field.type), default(field), told.get(field.name, ""))
        for field in kind.fields
        if inner(_plain(field.type)) is None
    ]
    yield table(_TITLES, rows)


def _plain(kind: mi.Type) -> mi.Type:
    """A type without its None."""
    if isinstance(kind, mi.UnionType):
        parts = [part for part in kind.types if not isinstance(part, mi.NoneType)]
        return parts[0] if len(parts) == 1 else kind
    return kind
