"""Policy sets by name: a directory, or a revision of a Git repository."""

from pathlib import Path

from shunter.app.settings import PoliciesSettings, Settings
from shunter.app.sources import read_directory, repository_of
from shunter.lang.load import load
from shunter.model.policy import PolicySet
from shunter.model.source import Revision
from shunter.source.git import GitSource
from shunter.source.revision import read_revision, repository_around


class Revisions:
    """Where names are looked up: a directory that exists is read; anything else is a revision of `repository`, if one is given, else of the
    settings' Git source, else of the repository around the working directory. `folder` is where policies are in it; None: as the settings
    say, or its root.
    """

    def __init__(self, settings: Settings | None, repository: Path | None, folder: str | None, scratch: Path) -> None:
        """`scratch` is an empty folder for clones."""
        self._policies = settings.policies if settings else None
        self._repository, self._scratch = repository, scratch
        self._folder = folder if folder is not None else self._policies.folder if self._policies else ""
        self._source: GitSource | None = None
        self._reads = 0

    def read(self, name: str) -> PolicySet:
        """Blocks. Raises what the sources raise, as a ShunterError."""
        if Path(name).is_dir():
            return read_directory(Path(name))
        return self.revision(name)

    def revision(self, name: str) -> PolicySet:
        """The same of a revision, also where there is a directory of that name."""
        return load(self._revision(name), None)

    def _revision(self, name: str) -> Revision:
        if self._repository is None and self._policies is not None and self._policies.git is not None:
            return self._configured(self._policies).read(name)
        self._reads += 1
        root = repository_around(self._repository or Path.cwd())
        return read_revision(root, name, self._folder, self._scratch / f"lent-{self._reads}.git")

    def _configured(self, policies: PoliciesSettings) -> GitSource:
        if self._source is None:
            source = repository_of(policies, self._scratch / "policies.git", folder=self._folder)
            source.fetch()
            self._source = source
        return self._source
