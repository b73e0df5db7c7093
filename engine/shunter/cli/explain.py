"""`shunter explain`: what a policy may say, in the manner of `kubectl explain`; of a worker, policy or node, what `shunter why` says."""

import enum
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from shunter.lang.fields import Field, Topic, kinds, topic
from shunter.model.policy import API_VERSION
from shunter.model.vocabulary import Variable


class Format(enum.StrEnum):
    """Forms of the answer."""

    TEXT = "text"
    JSON = "json"


def explain(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND[.key.key]|SUBJECT]",
            help="Such as PreemptionPolicy or reassignmentpolicy.spec.limits.from; or worker/ID, policy/NAME or node/ID.",
        ),
    ] = None,
    config: Annotated[Path, typer.Option("--config", "-c", help="With a subject, the engine's settings file (TOML).")] = Path(
        "engine.toml"
    ),
    notice: Annotated[
        list[str] | None,
        typer.Option("--notice", metavar="NODE=KIND:LEAD", help="With a subject, ask what would be if this notice came. Repeatable."),
    ] = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="Text for people, or JSON.")] = Format.TEXT,
) -> None:
    """Describe a kind of policy or one of its keys: type, default, bounds, meaning, and the variables that an expression sees.

    Without a name: the kinds. Of worker/ID, policy/NAME or node/ID it says what `shunter why` says: why each policy acts or doesn't.
    """
    if name is not None and "/" in name:
        from shunter.cli import why as reasons  # what it needs takes long to import

        reasons.why(name, config, notice, reasons.Format(output.value))
        return
    width = min(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else 100
    if name is None:
        found = kinds()
        typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode() if output is Format.JSON else kinds_text(found, width))
        return
    about = topic(name)
    typer.echo(msgspec.json.format(msgspec.json.encode(about)).decode() if output is Format.JSON else topic_text(about, width))


def kinds_text(found: dict[str, str], width: int) -> str:
    """The kinds, for people."""
    lines = [f"VERSION:  {API_VERSION}", "", "KINDS:"]
    for kind, doc in found.items():
        lines += [f"  {kind}", *_wrapped(doc, width, 4)]
    return "\n".join([*lines, "", f"Ask for more with `shunter explain KIND` or `shunter explain {next(iter(found))}.spec`."])


def topic_text(about: Topic, width: int) -> str:
    """A kind or a key, for people: `width` columns wide as far as words allow."""
    lines = [f"KIND:     {about.kind}", f"VERSION:  {API_VERSION}"]
    if about.path:
        lines += ["", f"KEY:      {about.path} <{about.field.type}>{_terms(about.field)}"]
    described = [text for text in (about.field.doc, about.doc) if text]
    if described:
        lines += ["", "DESCRIPTION:"]
    for text in described:
        lines += _wrapped(text, width, 4)
    if about.fields:
        lines += ["", "KEYS:"]
    for field in about.fields:
        lines += [f"  {field.name} <{field.type}>{_terms(field)}", *_wrapped(field.doc, width, 6)]
    if about.variables or about.metrics:
        lines += ["", "VARIABLES:", *_variables(about.variables, width)]
    if about.metrics:
        lines += ["  metrics.<name> <double>", *_wrapped("what the policy declares under spec.metrics", width, 6)]
    return "\n".join(lines)


def _terms(field: Field) -> str:
    """Whether it must be given, its default and its bounds."""
    parts = ["required"] if field.required else []
    if field.default:
        parts.append(f"default {field.default}")
    if field.bounds:
        parts.append(field.bounds)
    return f" ({'; '.join(parts)})" if parts else ""


def _variables(variables: tuple[Variable, ...], width: int) -> list[str]:
    lines = []
    for variable in variables:
        unit = "" if variable.unit in ("", "1", variable.kind.value) else f", in {variable.unit}"
        unsure = "; from Prometheus, so it can be missing" if variable.metric else ""
        lines += [f"  {variable.name} <{variable.kind.value}>{unit}", *_wrapped(f"{variable.doc}{unsure}", width, 6)]
    return lines


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    """Paragraphs stay apart; lines within one are joined."""
    pad = " " * indent
    found: list[str] = []
    for paragraph in text.split("\n\n"):
        wrapped = textwrap.wrap(
            " ".join(paragraph.split()),
            max(width, 40),
            initial_indent=pad,
            subsequent_indent=pad,
            break_long_words=False,
            break_on_hyphens=False,
        )
        found += wrapped
    return found
