"""Policy files for verbs that check them: from paths, from standard input, or from a Git revision."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from shunter.lang.load import is_policy_file
from shunter.model.errors import Problem, Rejected


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """Files by path, each once, and the problems of those that weren't read. `root` is the repository that paths are relative to; None:
    they are relative to the working directory.
    """

    files: tuple[tuple[str, bytes], ...]
    problems: tuple[Problem, ...] = ()
    root: Path | None = None

    def from_root(self, path: str) -> str:
        """The path from the root of the repository that it is in, as it is where it is in none."""
        if self.root is not None or path == "<stdin>":
            return path
        from shunter.source.revision import repository_around

        try:
            absolute = Path(path).absolute()
            return absolute.relative_to(repository_around(absolute.parent)).as_posix()
        except (Rejected, ValueError):
            return path


def from_paths(paths: list[Path]) -> Files:
    """Each file once, in the order asked for; folders are searched. `-` is standard input. Raises OSError for a path that isn't there."""
    return Files(files=tuple(_read(paths)))


def from_revision(paths: list[Path], revision: str, repository: Path | None) -> Files:
    """The files below `paths` (from the repository's root; none: all) at a revision. None: the repository around the working directory.

    Raises what `source.revision.read_revision` does, and Rejected SH215 for a file that the revision doesn't have.
    """
    from shunter.source.revision import repository_around

    root = repository_around(repository or Path.cwd())
    files: dict[str, bytes] = {}
    problems: dict[Problem, None] = {}
    for path in paths or [Path()]:
        found, refused = _at(root, revision, path.as_posix())
        files |= found
        problems |= dict.fromkeys(refused)
    return Files(files=tuple(sorted(files.items())), problems=tuple(problems), root=root)


def _at(root: Path, revision: str, path: str) -> tuple[dict[str, bytes], list[Problem]]:
    """One folder's files, or one file."""
    from shunter.source.revision import read_revision

    single = is_policy_file(path)
    folder = PurePosixPath(path).parent.as_posix() if single else path
    folder = "" if folder == "." else folder
    with tempfile.TemporaryDirectory(prefix="shunter-revision-") as scratch:
        seen = read_revision(root, revision, folder, Path(scratch) / "lent.git")
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    files = {f"{prefix}{f.path}": f.data for f in seen.files if is_policy_file(f.path) and not _hidden(PurePosixPath(f.path).parts)}
    problems = [msgspec.structs.replace(p, subject=f"{prefix}{p.subject}") for p in seen.problems]
    if not single:
        return files, problems
    if path not in files and all(p.subject != path for p in problems):
        what = f"revision {revision} has no file {path}"
        raise Rejected(Problem(code="SH215", what=what, remedy="Name a file or folder from the repository's root", subject=str(root)))
    return {name: data for name, data in files.items() if name == path}, [p for p in problems if p.subject == path]


def _read(paths: list[Path]) -> Iterator[tuple[str, bytes]]:
    seen: set[Path] = set()
    for path in paths:
        if str(path) == "-":
            yield "<stdin>", sys.stdin.buffer.read()
            continue
        for file in _below(path):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file.as_posix(), file.read_bytes()


def _below(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inside = sorted(file.relative_to(path) for file in path.rglob("*"))
    return [path / file for file in inside if not _hidden(file.parts) and is_policy_file(file.name) and (path / file).is_file()]


def _hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith(".") for part in parts)
