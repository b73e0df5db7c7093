"""deploy/containers: what can be said of the images without a container runtime, and with SHUNTER_CONTAINERS=1 a build in a chroot.

That takes minutes and root, and asks a Debian mirror and a package index: `SHUNTER_CONTAINERS=1 pytest tests/deploy/test_containers.py`.
"""

import json
import os
import re
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
EXTRAS = {"engine": ("engine", "kubernetes", "postgres"), "agent": ("agent", "s3")}
"""What is in each image."""
BASE = "docker.io/library/debian@sha256:" + "0" * 64


def args(file: Path) -> dict[str, str]:
    """Those that have a default."""
    return dict(i.text.split("=", 1) for i in read(file) if i.name == "ARG" and "=" in i.text)


def last_stage(file: Path) -> list[str]:
    """Names and texts from the last FROM on."""
    found = read(file)
    start = max(n for n, i in enumerate(found) if i.name == "FROM")
    return [f"{i.name} {i.text}" for i in found[start:]]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_it_is_built_from_one_base_that_has_no_default(file: Path) -> None:
    assert read(file)[0] == ("ARG", "BASE")
    assert {i.text.partition(" AS ")[0] for i in read(file) if i.name == "FROM"} == {"${BASE}"}


@pytest.mark.parametrize(
    ("base", "status", "says"),
    [
        (BASE, 0, ""),
        ("docker.io/library/debian:bookworm-slim", 1, "BASE is 'docker.io/library/debian:bookworm-slim': give it by its digest"),
        ("", 1, "BASE is '': give it by its digest"),
    ],
)
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_base_that_is_another_image_tomorrow_is_refused_before_anything_is_done(file: Path, base: str, status: int, says: str) -> None:
    first = read(file)[1:4]
    assert [i.name for i in first] == ["FROM", "ARG", "RUN"]
    assert first[1].text == "BASE"  # else it is empty from FROM on
    ended = subprocess.run(["/bin/sh", "-c", first[2].text], env={"BASE": base}, capture_output=True, text=True)
    assert (ended.returncode, says in ended.stderr) == (status, True), ended.stderr


def pinned(file: Path) -> dict[str, Requirement]:
    """By name. Of each there is one version, and a hash."""
    comment, option, *lines = file.read_text().replace(" \\\n", "").splitlines()
    assert (comment[0], option) == ("#", "--only-binary :all:")
    found = {}
    for line in lines:
        text, *hashes = line.split()
        one = Requirement(text)
        assert [each.operator for each in one.specifier] == ["=="]
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
        found[canonicalize_name(one.name)] = one
    return found


@pytest.mark.parametrize("part", EXTRAS)
def test_each_package_that_an_image_holds_has_one_version_and_its_hashes(part: str) -> None:
    """Else two builds of one release differ."""
    found = pinned(ROOT / args(HERE / f"{part}.Containerfile")["REQUIREMENTS"])
    wanted = [*PROJECT["dependencies"], *(one for extra in EXTRAS[part] for one in PROJECT["optional-dependencies"][extra])]
    waiting, seen = [Requirement(one) for one in wanted], set[str]()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        version_there = next(iter(found[name].specifier)).version
        assert one.specifier.contains(version_there), f"{one}, and it is {version_there}"
        if name not in seen and version(name) == version_there:  # of another version it isn't known here what it needs
            seen.add(name)
            below = [Requirement(text) for text in requires(name) or ()]
            waiting += [b for b in below if b.marker is None or any(b.marker.evaluate({"extra": e}) for e in ("", *one.extras))]


def test_what_makes_the_wheel_has_one_version_and_its_hashes() -> None:
    (wanted,) = [Requirement(one) for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]]
    found = pinned(HERE / "build.txt")[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(next(iter(found.specifier)).version)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_nothing_is_installed_that_has_no_hash(file: Path) -> None:
    """But the project's own wheel, which is made here."""
    steps = [step for i in read(file) if i.name == "RUN" for step in i.text.split("&&") if "/pip install" in step or "/pip wheel" in step]
    assert len(steps) == 4
    for step in steps:
        assert "--no-deps" in step
        assert (
            "--require-hashes" in step
            or ("--no-index /wheels/" in step)
            or ("--no-build-isolation" in step and step.strip().endswith(" ."))
        )


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
def test_what_is_run_is_the_projects(file: Path) -> None:
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
    return build(HERE / f"{name}.Containerfile", ROOT, base, work, BASE=BASE)


@pytest.mark.timeout(1800)
def test_the_engines_image(base: Path) -> None:
    image = built("engine", base)
    assert image.user == "65532:65532"
    assert image.run("shunter", "--version").stdout.startswith("shunter ")
    assert "Commands" in image.run(*image.command).stdout
    shutil.copytree(ROOT / "policies", image.root / "policies")
    assert "0 errors" in image.run("shunter", "validate", "/policies").stdout
    image.run("python3", "-c", "import psycopg, sqlalchemy")
    for tool in ("git", "ssh", "gpg"):
        image.run("/bin/sh", "-c", f"command -v {tool}")


@pytest.mark.timeout(1800)
def test_the_agents_image(base: Path) -> None:
    image = built("agent", base)
    assert "Usage" in image.run(*image.command).stdout
    said = image.run("/opt/shunter/criu/bin/criu", "--version").stdout
    assert said.startswith("Version: 4.")
    image.run("ip", "-Version")
    image.run("/opt/shunter/venv/bin/python", "-c", "import boto3, cuda.bindings.driver")
    image.run("python3", "-c", "import sys; sys.exit(sys.version_info[:2] != (3, 11))")
