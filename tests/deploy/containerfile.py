"""Containerfiles read as instructions, and built in a folder with debootstrap and chroot where no container runtime is at hand.

What a runtime does besides (layers, caches, the registry's base image) isn't done here: the base is a fresh Debian of the same release.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

AUTHORITIES = "/authorities.pem"
"""Where a base has this machine's certificate authorities: a build's own `ca-certificates` knows those of a mirror of ours no more."""
KNOWN = ("ARG", "FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "CMD")


class Instruction(NamedTuple):
    name: str
    text: str


def read(path: Path) -> list[Instruction]:
    """One for each instruction; lines that end with a backslash go on."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            assert name in KNOWN, f"{path.name}: {name}"
            found.append(Instruction(name, rest.strip()))
    return found


def filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], text)


class Stage:
    """A file system on the way, and what instructions have set."""

    def __init__(self, root: Path) -> None:
        self.root, self.workdir, self.user = root, "/", ""
        self.env: dict[str, str] = {}
        self.args: dict[str, str] = {}
        self.command: list[str] = []

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in it, as its user; what it says is shown when it fails."""
        outside = {key: value for key, value in os.environ.items() if key.lower().endswith("_proxy") or key.startswith(("PIP_", "SSL_"))}
        if (self.root / AUTHORITIES.lstrip("/")).exists():
            outside |= {"PIP_CERT": AUTHORITIES, "SSL_CERT_FILE": AUTHORITIES}
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **outside, **self.env, **self.args}
        user = [f"--userspec={self.user}"] if self.user else []
        words = ["chroot", *user, str(self.root), "/usr/bin/env", "-C", self.workdir, *command]
        ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=540)
        assert ended.returncode == 0, f"{command}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        return ended


def build(path: Path, context: Path, base: Path, work: Path, **arguments: str) -> Stage:
    """The last stage. `base` is a root file system that is copied for each stage; `work` is empty; `arguments` are the build's."""
    instructions = read(path)
    given: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for name, text in instructions:
        if name == "ARG":
            key, _, default = text.partition("=")
            (stage.args if stages else given)[key] = arguments.get(key) or default or given.get(key, "")
        elif name == "FROM":
            _, _, alias = text.partition(" AS ")
            root = work / (alias or "final")
            subprocess.run(["cp", "-a", str(base), str(root)], check=True)
            stage = stages[alias] = Stage(root)
        elif name == "RUN":
            stage.run("/bin/sh", "-c", filled(text, {**given, **stage.args}))
        elif name == "COPY":
            _copy(filled(text, {**given, **stage.args}), context, stages, stage)
        elif name == "ENV":
            stage.env |= dict(pair.split("=", 1) for pair in shlex.split(text))
        elif name == "WORKDIR":
            stage.workdir = text
            (stage.root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            stage.user = text
        elif name == "CMD":
            stage.command = json.loads(text)
    return stage


def _copy(text: str, context: Path, stages: Mapping[str, Stage], stage: Stage) -> None:
    words = text.split()
    origin = context
    if words[0].startswith("--from="):
        origin = stages[words.pop(0).removeprefix("--from=")].root
    *sources, target = words
    there = stage.root / str(Path(stage.workdir) / target).lstrip("/")
    for source in dict.fromkeys(sources):
        found = origin / source.lstrip("/")
        if found.is_dir():
            shutil.copytree(found, there, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(found, there)
