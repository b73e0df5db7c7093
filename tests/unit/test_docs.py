"""What the documentation says is so: policies in it are valid, links lead somewhere, commands exist, codes mean one thing."""

import re
import runpy
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import shunter.cli.main
import shunter_agent.main
from reference.commands import commands
from reference.raised import Raised, everywhere
from shunter.lang.diagnostics import CODES
from shunter.lang.load import check_text, is_policy_file

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in ("docs", "examples", "deploy", "policies") for page in (ROOT / folder).rglob("*.md"))]
)
POLICIES = sorted(
    file
    for folder in ("examples", "policies")
    for file in (ROOT / folder).rglob("*.yaml")
    if is_policy_file(file.name) and "apiVersion: shunter.dev" in file.read_text()
)
FENCE = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:shunter|shunter-agent) [^`\n]+)`")
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ROOMS = {
    "1": {"lang", "cases"},
    "2": {"source", "cluster", "app", "cli"},
    "3": {"observe"},
    "4": {"decide"},
    "5": {"act", "cluster", "app"},
    "6": {"agent", "agent/orders", "agent/serving", "agent/notices"},
    "7": {"agent/runtime"},
    "8": {"agent", "agent/images"},
    "9": {"audit", "cli", "app"},
}
SHARED = {"SH113", "SH209", "SH215", "SH508", "SH520"}
"""Codes that two rooms use for the same: a value of the wrong type, no policies yet, no such folder, not the leader, no answer."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def fenced(page: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def test_there_is_something_to_check() -> None:
    assert {"README.md", "docs/how-to/write-a-policy.md", "docs/reference/errors.md"} <= {named(page) for page in PAGES}
    assert len(POLICIES) >= 3
    assert len(list(told_commands())) >= 10


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_policies_in_the_text_are_valid(page: Path) -> None:
    for number, body in enumerate(fenced(page, "yaml")):
        if "apiVersion: shunter.dev" in body:
            found, problems = check_text(f"{page.name}#{number}.yaml", body.encode())
            assert (bool(found), problems) == (True, ()), body


@pytest.mark.parametrize("file", POLICIES, ids=named)
def test_example_policies_are_valid_without_a_warning(file: Path) -> None:
    found, problems = check_text(file.name, file.read_bytes())
    assert found
    assert problems == ()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", FENCE.sub("", page.read_text()))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{named(page)} links to {target}"
        if anchor:
            assert anchor in headings(there), f"{named(page)} links to {target}"


def headings(page: Path) -> set[str]:
    """Anchors as Git hosts make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def raised() -> tuple[Raised, ...]:
    return tuple(everywhere(ROOT))


def told_commands() -> Iterator[tuple[str, str]]:
    """Where a command of ours is told, and the command line."""
    for page in PAGES:
        text = page.read_text()
        lines = [line for _, body in FENCE.findall(text) for line in body.splitlines() if re.match(r"\$? ?(shunter|shunter-agent) ", line)]
        for line in [*lines, *INLINE.findall(FENCE.sub("", text))]:
            yield named(page), line.removeprefix("$ ")
    for each in raised():
        for line in INLINE.findall(f"{each.what} {each.remedy}"):
            yield f"{each.path} ({each.code})", line


def unknown(line: str, known: dict[str, set[str]]) -> list[str]:
    """The words of a command line that no command of ours has: verbs and options."""
    words = shlex.split(line, comments=True)
    words = words[: words.index("|")] if "|" in words else words
    path = words[0]
    if len(words) > 2 and "|" in words[2]:  # `shunter audit list|show|verify`
        return [wrong for one in words[2].split("|") for wrong in unknown(shlex.join([*words[:2], one, *words[3:]]), known)]
    while len(words) > 1 and f"{path} {words[1]}" in known:
        path += " " + words.pop(1)
    is_group = any(other.startswith(path + " ") for other in known)
    wrong = [
        word for word in words[1:] if word.startswith("-") and word != "-" and word.split("=")[0] not in known[path] | {"--help", "-h"}
    ]
    if is_group and len(words) > 1 and re.match(r"[a-z]", words[1]):
        wrong.append(words[1])
    return wrong


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    apps = (("shunter", shunter.cli.main.app), ("shunter-agent", shunter_agent.main.app))
    return {path: {name for one in command.params for name in one.opts} for name, app in apps for path, command in commands(name, app)}


def test_commands_that_are_told_exist(known: dict[str, set[str]]) -> None:
    wrong = [(where, line, words) for where, line in told_commands() if (words := unknown(line, known))]
    assert wrong == []


@pytest.mark.parametrize(
    "line", ["shunter plam", "shunter plan --confg x", "shunter audit lst", "shunter-agent notice post --lead 1s --kin gone"]
)
def test_a_command_that_is_not_there_is_noticed(line: str, known: dict[str, set[str]]) -> None:
    assert unknown(line, known)


def generate(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run scripts/generate-reference in this process, and return its exit status."""
    monkeypatch.setattr(sys, "argv", ["generate-reference", *arguments])
    return int(runpy.run_path(str(ROOT / "scripts" / "generate-reference"))["main"]())


def test_the_reference_is_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert (generate(monkeypatch, "--check"), capsys.readouterr().err) == (0, "")


def test_the_reference_check_notices_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "docs" / "reference", tmp_path, dirs_exist_ok=True)
    page = tmp_path / "cli.md"
    page.write_text(page.read_text().replace("--quiet", "--silent"))
    assert generate(monkeypatch, "--check", "--folder", str(tmp_path)) == 1
    assert "cli.md differs from the code" in capsys.readouterr().err


def test_codes_belong_to_one_room_each() -> None:
    rooms = defaultdict(set)
    for each in raised():
        rooms[each.code].add(each.room)
    assert {code: found for code, found in rooms.items() if not found <= ROOMS[code[2]]} == {}
    agent = {code for code, found in rooms.items() if found <= ROOMS["6"] and code[2] == "6"}
    assert {code for code, found in rooms.items() if len(found) > 1} - agent <= SHARED


def test_codes_of_the_language_are_all_listed_and_all_used() -> None:
    assert {each.code for each in raised() if each.room == "lang"} == set(CODES)


def test_every_code_in_the_source_is_in_the_reference() -> None:
    """Codes as text anywhere, not as the generator finds them: one that it can't read would be missing from the page."""
    files = [
        file for folder in ("engine", "agent") for file in (ROOT / folder).rglob("*.py") if not file.stem.endswith(("_pb2", "_pb2_grpc"))
    ]
    used = {code for file in files for code in re.findall(r'"(SH\d{3})"', file.read_text())}
    told = set(re.findall(r"`(SH\d{3})`", (ROOT / "docs" / "reference" / "errors.md").read_text()))
    assert used == told
