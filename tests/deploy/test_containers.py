"""deploy/containers: what can be said of the images without a container runtime, and with SHUNTER_CONTAINERS=1 a build in a chroot.

That takes minutes and root, and asks a Debian mirror and a package index: `SHUNTER_CONTAINERS=1 pytest tests/deploy/test_containers.py`.
"""

import json
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path

import pytest
import yaml
from containerfile import AUTHORITIES, Stage, build, filled, read
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "deploy" / "containers"
FILES = sorted(HERE.glob("*.Containerfile"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("engine", "kubernetes", "agent", "postgres", "s3")
"""That an image is built with, or can be."""
BASES = {"docker.io/library/debian:bookworm-slim": "bookworm"}


def args(file: Path) -> dict[str, str]:
    return dict(i.text.split("=", 1) for i in read(file) if i.name == "ARG")


def last_stage(file: Path) -> list[str]:
    """Names and texts from the last FROM on."""
    found = read(file)
    start = max(n for n, i in enumerate(found) if i.name == "FROM")
    return [f"{i.name} {i.text}" for i in found[start:]]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_it_is_built_from_one_base_that_can_be_pinned(file: Path) -> None:
    assert read(file)[0].text == f"BASE={next(iter(BASES))}"
    assert {i.text.partition(" AS ")[0] for i in read(file) if i.name == "FROM"} == {"${BASE}"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_each_package_that_an_image_may_hold_has_one_version(file: Path) -> None:
    """Without --build-arg: else two builds of one release differ."""
    pins = Path(ROOT / args(file)["CONSTRAINTS"])
    found = {Requirement(line).name: Requirement(line) for line in pins.read_text().splitlines() if not line.startswith("#")}
    assert all([one.operator for one in pin.specifier] == ["=="] for pin in found.values())
    copied = [i.text.split()[-1] for i in read(file) if i.name == "COPY" and "${CONSTRAINTS}" in i.text]
    (install,) = [i.text for i in read(file) if i.name == "RUN" and "pip install" in i.text]
    assert f"--constraint {copied[0]} " in install
    wanted = [*PROJECT["dependencies"], *(one for extra in EXTRAS for one in PROJECT["optional-dependencies"][extra])]
    waiting, seen = [Requirement(one) for one in wanted], set[str]()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        pinned = next(iter(found[name].specifier)).version
        assert one.specifier.contains(pinned), f"{one}, and it is {pinned}"
        if name not in seen and version(name) == pinned:  # of another version it isn't known here what it needs
            seen.add(name)
            below = [Requirement(text) for text in requires(name) or ()]
            waiting += [b for b in below if b.marker is None or any(b.marker.evaluate({"extra": e}) for e in ("", *one.extras))]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_what_is_copied_is_there_and_the_tree_is_not_copied_whole(file: Path) -> None:
    stages = {i.text.partition(" AS ")[2] for i in read(file) if i.name == "FROM"}
    for text in (i.text for i in read(file) if i.name == "COPY"):
        *words, _ = text.split()
        if words[0].startswith("--from="):
            assert words[0].removeprefix("--from=") in stages
            continue
        for word in words:
            source = filled(word, args(file))
            assert source != "."
            assert (ROOT / source).exists(), source


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_what_is_installed_and_run_is_the_projects(file: Path) -> None:
    (install,) = [i.text for i in read(file) if i.name == "RUN" and "pip install" in i.text]
    extras = filled(install.rpartition('".[')[2].partition("]")[0], args(file)).split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    (command,) = [i.text for i in read(file) if i.name == "CMD"]
    assert json.loads(command)[0] in PROJECT["scripts"]


def test_the_engine_runs_as_the_user_that_its_manifest_says() -> None:
    manifests = yaml.safe_load_all((ROOT / "deploy/kubernetes/base/engine.yaml").read_text())
    found = [one for one in manifests if one and "template" in one.get("spec", {})]
    context = found[0]["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in last_stage(HERE / "engine.Containerfile")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_the_image_keeps_no_lists_and_no_compiler(file: Path) -> None:
    installs = [line for line in last_stage(file) if "apt-get install" in line]
    assert len(installs) == 1
    assert "--no-install-recommends" in installs[0]
    assert installs[0].endswith("rm -rf /var/lib/apt/lists/*")
    assert not {"python3-venv", "gcc", "build-essential", "pip"} & set(installs[0].split())


# -- built


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if os.environ.get("SHUNTER_CONTAINERS") != "1":
        pytest.skip("asks a mirror and takes minutes: SHUNTER_CONTAINERS=1, as root")
    folder = tmp_path_factory.mktemp("containers") / "base"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder, mirror()], check=True, capture_output=True, timeout=600)
    shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
    if (authorities := Path("/etc/ssl/certs/ca-certificates.crt")).exists():
        shutil.copy(authorities, folder / AUTHORITIES.lstrip("/"))
    yield folder
    shutil.rmtree(folder.parent)


def mirror() -> str:
    for file in Path("/etc/apt/sources.list.d").glob("*.sources"):
        for line in file.read_text().splitlines():
            if line.startswith("URIs:") and "security" not in line:
                return line.removeprefix("URIs:").strip()
    return "http://deb.debian.org/debian"


def built(name: str, base: Path) -> Stage:
    work = base.parent / name
    work.mkdir()
    return build(HERE / f"{name}.Containerfile", ROOT, base, work)


@pytest.mark.timeout(1800)
def test_the_engines_image(base: Path) -> None:
    image = built("engine", base)
    assert image.user == "65532:65532"
    assert image.run("shunter", "--version").stdout.startswith("shunter ")
    assert "Commands" in image.run(*image.command).stdout
    shutil.copytree(ROOT / "policies", image.root / "policies")
    assert "0 errors" in image.run("shunter", "validate", "/policies").stdout
    for tool in ("git", "ssh", "gpg"):
        image.run("/bin/sh", "-c", f"command -v {tool}")


@pytest.mark.timeout(1800)
def test_the_agents_image(base: Path) -> None:
    image = built("agent", base)
    assert "Usage" in image.run(*image.command).stdout
    said = image.run("/opt/shunter/criu/bin/criu", "--version").stdout
    assert said.startswith("Version: 4.")
    image.run("ip", "-Version")
    image.run("python3", "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 11))")
