"""docs/reference/cli.md."""

import enum
from collections.abc import Iterator
from typing import Any, Final, get_args

import shunter.cli.main
import shunter_agent.main
import typer.main

from reference.markdown import cell, code, paragraphs, table

_INTRO: Final = """# Commands

`shunter` exits with 0 when all is done, 1 when what it was given was refused or a person is needed, 2 when it couldn't run, 130 when it
was interrupted. Verbs with finer ones say so. `shunter-agent` exits with 2 and one line that says what to do."""


def page() -> str:
    """The whole page."""
    parts = [_INTRO]
    for name, app in (("shunter", shunter.cli.main.app), ("shunter-agent", shunter_agent.main.app)):
        for path, command in commands(name, app):
            parts += _command(path, command)
    return "\n\n".join(parts)


def commands(name: str, app: typer.Typer) -> Iterator[tuple[str, Any]]:
    """Every command with what is typed for it (`shunter audit list`), groups before what is in them."""
    return _walk(name, typer.main.get_command(app))


def _walk(path: str, command: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401  (typer's own copy of click has no types)
    yield path, command
    if not hasattr(command, "list_commands"):
        return
    for name in command.list_commands(None):
        yield from _walk(f"{path} {name}", command.get_command(None, name))


def _command(path: str, command: Any) -> list[str]:  # noqa: ANN401
    options = [one for one in command.params if one.param_type_name == "option"]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    group = hasattr(command, "list_commands")
    usage = " ".join([path, *(["[OPTIONS]"] if options else []), *map(_argument, arguments), *(["COMMAND"] if group else [])])
    parts = [f"## {path}", f"```\n{usage}\n```", paragraphs(command.help)]
    rows = [(code(_argument(one)), getattr(one, "help", "") or "", "") for one in arguments]
    rows += [(_option(one), one.help or "", _default(one)) for one in options]
    return [*parts, *([table(("", "meaning", "default"), rows)] if rows else [])]


def _argument(argument: Any) -> str:  # noqa: ANN401
    name = cell(argument.metavar or argument.name.upper()).replace("\\|", "|")
    return f"{name}..." if argument.nargs == -1 else name


def _option(option: Any) -> str:  # noqa: ANN401
    names = ", ".join(code(name) for name in option.opts)
    return names if option.is_flag else f"{names} {code(option.metavar or _value(option.type_descriptor.annotation))}"


def _value(annotation: object) -> str:
    """What stands for an option's value: its choices, or its type's name."""
    kinds = [one for one in get_args(annotation) if one is not type(None)]
    if kinds:
        return _value(kinds[0])
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "|".join(str(member.value) for member in annotation)
    return {"int": "NUMBER", "str": "TEXT"}.get(getattr(annotation, "__name__", ""), str(getattr(annotation, "__name__", "TEXT")).upper())


def _default(option: Any) -> str:  # noqa: ANN401
    if option.required:
        return "required"
    value = getattr(option.default, "value", option.default)
    return "" if value in (None, "", []) or option.is_flag else code(value)
