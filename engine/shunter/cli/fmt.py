"""`shunter fmt`: policy files in one form."""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from shunter.cli.files import from_paths
from shunter.cli.main import complain
from shunter.lang.fmt import formatted
from shunter.lang.load import check_text, is_policy_file
from shunter.model.errors import Problem, Rejected, Severity, ShunterError


def fmt(
    paths: Annotated[list[Path], typer.Argument(help="Files, folders (searched for *.yaml and *.yml), or - for standard input.")],
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if something would be changed.")] = False,
) -> None:
    """Format policy files: indentation, blanks, empty lines and document markers. Comments, order and meaning stay as they are.

    Names each file that it changes; standard input goes to standard output. Files with errors are left alone. Exit status: 0 done, 1 files
    have errors or (with --check) another form, 2 when a file can't be read or written.
    """
    try:
        files = from_paths(paths).files
        outcomes = [_one(path, data, check=check) for path, data in files]
    except OSError as error:
        reason = error.strerror or "it can't be read"
        typer.echo(f"shunter fmt: {error.filename}: {reason}. Check the path", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if all(outcomes) else 1)


def _one(path: str, data: bytes, *, check: bool) -> bool:
    """Whether the file is in order now, or with `check` was before."""
    try:
        _refuse_errors(path, data)
        text = formatted(path, data)
    except ShunterError as error:
        complain(error.problem)
        return False
    if path == "<stdin>":
        if not check:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        return not check or text == data
    if text == data:
        return True
    typer.echo(f"would change {path}" if check else path)
    if not check:
        _replace(Path(path).resolve(), text)
    return not check


def _refuse_errors(path: str, data: bytes) -> None:
    """Raises Rejected for a policy file with errors: with the first, and how many there are more."""
    if path != "<stdin>" and not is_policy_file(path):
        return
    errors = [p for p in check_text(path, data)[1] if p.severity is Severity.ERROR]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        first = errors[0]
        raise Rejected(Problem(code=first.code, what=f"{first.what}{more}", remedy=first.remedy, place=first.place))


def _replace(path: Path, data: bytes) -> None:
    """The whole file or none of it, with its mode."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(name, path.stat().st_mode & 0o7777)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
