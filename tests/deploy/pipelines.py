"""What a forge's runner makes of a pipeline's YAML, as far as ours use it: expressions, steps in a shell, artifacts between jobs.

Actions (`uses:`) aren't run: what ours do with them (check out, keep files, hand files on) is done by hand here, and one that isn't known
fails.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PIP = """#!/bin/sh
echo "$*" >> "$PIP_LOG"
"""
PYTHON = """#!/bin/sh
[ "$1 $2 $3" = "-m pip install" ] || { echo "python $*: only pip is expected" >&2; exit 99; }
echo "$*" >> "$PIP_LOG"
"""


class Loader(yaml.SafeLoader):
    """YAML 1.2 as far as it matters here: `on` is a word."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|false)$"), list("tf"))


def read(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader)


def git(*words: str, at: Path) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *words], cwd=at, check=True, capture_output=True, text=True).stdout.strip()


def commit(at: Path, message: str) -> str:
    git("add", "-A", at=at)
    git("commit", "-q", "-m", message, at=at)
    return git("rev-parse", "HEAD", at=at)


class Runner:
    """Runs shell lines with nothing of this process' environment. On its PATH `python -m pip install` only notes what it was to do."""

    def __init__(self, folder: Path) -> None:
        self.temp = folder / "temp"
        self.temp.mkdir(parents=True)
        self.log = folder / "pip.log"
        shims = folder / "bin"
        shims.mkdir()
        (shims / "python").write_text(PYTHON)
        (shims / "python").chmod(0o755)
        (shims / "shunter").symlink_to(Path(sys.executable).parent / "shunter")
        self._path = f"{shims}:/usr/bin:/bin"
        self.output = ""

    def shell(self, lines: str, at: Path, env: Mapping[str, str]) -> int:
        whole = {"PATH": self._path, "HOME": str(self.temp), "PIP_LOG": str(self.log), "LANG": "C.UTF-8", **env}
        ended = subprocess.run(["bash", "-e", "-c", lines], cwd=at, env=whole, capture_output=True, text=True, timeout=60)
        self.output += ended.stdout + ended.stderr
        return ended.returncode

    def installed(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


class GitHubRun:
    """One run of a workflow for a pull request whose merge commit is at the repository's HEAD."""

    def __init__(self, workflow: Any, repository: Path, folder: Path, context: Mapping[str, str], fork: bool = False) -> None:
        self.workflow, self.repository, self.folder = workflow, repository, folder
        self.runner = Runner(folder)
        self.summary = folder / "summary.md"
        self.context = {**context, "runner.temp": str(self.runner.temp)}
        self.fork = fork
        self.artifacts: dict[str, Path] = {}
        self.failed: set[str] = set()

    def expression(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1].strip()
            assert name in self.context, f"what {name} is isn't known here"
            return self.context[name]

        return re.sub(r"\$\{\{(.*?)\}\}", value, text)

    def wanted(self, condition: str | None, failed: bool) -> bool:
        if condition is None:
            return not failed
        plain = condition.removeprefix("${{").removesuffix("}}").strip()
        known = {
            "always()": True,
            "!cancelled() && github.event.pull_request.head.repo.full_name == github.repository": not self.fork,
        }
        return known[plain]

    def job(self, name: str) -> str:
        """`success`, `failure` or `skipped`."""
        job = self.workflow["jobs"][name]
        needs = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
        if not self.wanted(job.get("if"), any(n in self.failed for n in needs)):
            return "skipped"
        here = self.folder / f"job-{name}"
        here.mkdir()
        failed = False
        for step in job["steps"]:
            if self.wanted(step.get("if"), failed) and not self.step(step, here):
                failed = True
        if failed:
            self.failed.add(name)
        return "failure" if failed else "success"

    def step(self, step: Any, here: Path) -> bool:
        if "uses" in step:
            return self.action(step["uses"].partition("@")[0], {k: self.expression(str(v)) for k, v in step.get("with", {}).items()}, here)
        env = {**self.workflow["env"], **{name: self.expression(value) for name, value in step.get("env", {}).items()}}
        own = {"RUNNER_TEMP": str(self.runner.temp), "GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_OUTPUT": os.devnull}
        return self.runner.shell(step["run"], here, {**own, **self.of_github(), **env}) == 0

    def of_github(self) -> dict[str, str]:
        return {"GITHUB_API_URL": self.context["github.api_url"], "GITHUB_REPOSITORY": self.context["github.repository"]}

    def action(self, name: str, given: Mapping[str, str], here: Path) -> bool:
        match name:
            case "actions/checkout":
                shutil.rmtree(here)
                git("clone", "-q", "--depth", given["fetch-depth"], f"file://{self.repository}", str(here), at=self.folder)
            case "actions/upload-artifact":
                if not Path(given["path"]).exists():
                    return given["if-no-files-found"] != "error"
                self.artifacts[given["name"]] = Path(given["path"])
            case "actions/download-artifact":
                if given["name"] not in self.artifacts:
                    return False
                shutil.copytree(self.artifacts[given["name"]], here / given["path"])
            case "actions/setup-python":
                assert given["python-version"] == "3.11"
            case "github/codeql-action/upload-sarif":
                return (here / given["sarif_file"]).is_file()
            case _:
                raise AssertionError(f"{name} isn't known here")
        return True
