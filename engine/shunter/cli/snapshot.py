"""`shunter snapshot`: record what there is to decide on, for previews, replays and checks elsewhere."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from shunter.app.preview import preview
from shunter.app.recording import Recording, save
from shunter.app.settings import load
from shunter.model.canon import encode
from shunter.report.words import count


def snapshot(
    file: Annotated[Path, typer.Argument(metavar="[save] FILE", help="Where to write it (JSON, mode 0600); - for standard output.")],
    named: Annotated[Path | None, typer.Argument(hidden=True)] = None,
    config: Annotated[Path, typer.Option("--config", "-c", help="The engine's settings file (TOML).")] = Path("engine.toml"),
) -> None:
    """Record the fleet, its notices and the samples that the policies need, as they are now, with the history behind every `for` and what
    the engine has done.

    Nodes that don't answer are named on standard error, and stand in it as last known. `shunter plan --snapshot`, `shunter diff --snapshot`
    and `shunter validate --fleet` read it; with the same policies they decide the same on it, byte for byte.
    """
    if str(file) == "save":  # a word that says what is done anyway; a file of that name is ./save
        if named is None:
            raise typer.BadParameter("name the file: shunter snapshot save FILE", param_hint="FILE")
        file = named
    elif named is not None:
        raise typer.BadParameter(f"one file, not {file} and {named}", param_hint="FILE")
    settings = load(config)
    with tempfile.TemporaryDirectory(prefix="shunter-snapshot-") as folder:
        seen = asyncio.run(preview(settings, Path(folder) / "policies.git"))
    for problem in seen.unreachable:
        typer.echo(f"warning: {problem}", err=True)
    recording = seen.recording or Recording.of(seen.snapshot)
    if str(file) == "-":
        sys.stdout.buffer.write(encode(recording) + b"\n")
        sys.stdout.buffer.flush()
        return
    save(recording, file)
    fleet = seen.snapshot.fleet
    parts = (count(len(found), noun) for found, noun in ((fleet.nodes, "node"), (fleet.workers, "worker"), (fleet.images, "image")))
    typer.echo(f"{file}: {', '.join(parts)}, {seen.snapshot.id[:19]}")
