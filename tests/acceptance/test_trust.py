"""Where policies come from, in a running engine: real git, ssh, https and signatures, what /readyz and the audit say, and restarts.

Nodes are agents with the pretend runtime on loopback ports, so no root is needed.
"""

import asyncio
import base64
import getpass
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fleet import ANY, Fleet, NodePlan
from git_servers import SSHD, Https, Sshd
from machine import wait_for
from shunter.app.policies import PolicyFeed
from shunter.app.settings import PoliciesSettings
from shunter.app.sources import source_of
from shunter.audit.journal import Journal
from shunter.model.errors import ShunterError
from shunter.model.policy import PolicySet
from shunter.model.record import Record, RecordKind
from signing import Key, Repository

POLICY = """\
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: NAME}
spec: {workers: {all: true}, every: EVERY}
"""
HEALTH = '[health]\npolicies = "1s"\ninventory = "2s"\n'


def policy(name: str, every: str = "5m") -> str:
    return POLICY.replace("NAME", name).replace("EVERY", every)


class Followed:
    """A repository, and an engine that follows it."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self.folder, self.fleet = folder, fleet
        self.remote = Repository(folder / "remote")
        self.known = fleet.engine_config.read_text()
        self.begun = False

    def start(self, url: str | None = None, policies: str = "", sections: str = "") -> None:
        """Write the settings, with these keys of [policies] and these sections, and start the engine."""
        text = self.known.replace(f'git = "file://{self.fleet.repository}"', f'git = "{url or self.remote.path}"\n{policies}')
        self.fleet.engine_config.write_text(text.replace('poll = "2s"', 'poll = "200ms"') + sections)
        self.again()

    def again(self) -> None:
        """Start the engine; the one that runs is killed before, as a crash would."""
        if hasattr(self, "engine"):
            self.engine.send_signal(signal.SIGKILL)
            self.engine.wait(10)
        self.engine = self.fleet.start_engine()

    def audit(self, kind: RecordKind) -> list[Record]:
        path = self.fleet.state / "audit.db"
        try:
            with Journal(path, read_only=True) as journal:
                self.begun = True
                return [sealed.record for sealed in journal.list(kind=kind, limit=None)]
        except ShunterError:
            if self.begun:
                raise
            return []  # the engine is still making it

    def in_force(self) -> str | None:
        """The commit of the newest record of policies."""
        records = self.audit(RecordKind.POLICIES)
        return records[-1].subject if records else None

    def problems(self) -> list[Any]:
        """What was told of the source, in order; None where it came back."""
        return [r.body.get("problem") for r in self.audit(RecordKind.SOURCE) if r.subject == "policies"]

    def refused(self, code: str, commit: str = "") -> dict[str, Any]:
        """Wait until the audit tells this code as the newest about the source."""

        def told() -> bool:
            problems = self.problems()
            return bool(problems) and problems[-1] is not None and problems[-1]["code"] == code and commit in problems[-1]["what"]

        self.wait(f"{code} in the audit", told)
        return self.problems()[-1]

    def ready(self) -> tuple[int, dict[str, Any]]:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.fleet.engine_port}/readyz", trust_env=False, timeout=10)
        except httpx.HTTPError:
            return 0, {}
        return answer.status_code, answer.json()

    def late(self) -> str:
        """Wait until the policies' age makes the engine not ready; the reason."""
        self.wait("the engine not to be ready", lambda: "policies" in self.ready()[1].get("late", {}))
        status, page = self.ready()
        assert status == 503
        return page["reasons"]["policies"]

    def wait(self, what: str, condition: Any, timeout: float = 30) -> None:
        try:
            wait_for(what, condition, timeout)
        except Exception as error:
            raise AssertionError(f"{error}\n{self.log()}\n{self.ready()}\n{self.problems()}") from error

    def log(self) -> str:
        path = self.fleet.folder / "engine.log"
        return path.read_text(errors="replace") if path.exists() else ""


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    with Fleet(tmp_path / "fleet", pretend=True, weights_mb=1, nodes=(NodePlan("node-a", 11, (ANY,), ()),)) as fleet:
        node = fleet.nodes["node-a"]  # without workers, so that no metric is missed
        node.start()
        wait_for("the agent", node.takes_orders)
        yield Followed(tmp_path, fleet)


def test_ac30_a_rotated_host_key_keeps_the_last_good_policies_in_force_also_across_a_restart(followed: Followed) -> None:
    if SSHD is None:
        pytest.skip("no sshd here (Debian: openssh-server)")
    f = followed
    good = f.remote.commit(name="images", text=policy("images"))
    key, hosts = Key("deploy", f.folder), f.folder / "known_hosts"
    with Sshd(f.folder / "sshd") as sshd:
        sshd.authorized.write_text(key.public)
        hosts.write_text(sshd.start())
        url = f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}{f.remote.path}"
        f.start(url, f'ssh_key = "{key.file}"\nknown_hosts = "{hosts}"', HEALTH)
        f.wait("the engine to be ready", lambda: f.ready()[0] == 200)
        assert f.in_force() == good

        sshd.stop()
        rotated = sshd.start()
        assert "Host key verification failed" in f.refused("SH204")["what"]
        newer = f.remote.commit(name="images", text="# changed\n")  # only now: a look that began before might still have seen it
        assert "SH204" in f.late()
        assert f.in_force() == good

        f.again()
        f.wait("the policies that were in force", lambda: len(f.audit(RecordKind.POLICIES)) == 2)
        assert f.in_force() == good, "though the source is away since before the start"
        f.wait("the page", lambda: f.ready()[1].get("late", {}).get("policies"))
        assert f.ready()[1]["late"]["policies"] > 1, "the age didn't begin anew"
        assert "SH204" in f.late()

        hosts.write_text(rotated)
        f.wait("the newer policies", lambda: f.in_force() == newer)
        f.wait("the engine to be ready", lambda: f.ready()[0] == 200)
        assert f.problems()[-1] is None, "it is recorded that the source is back"


def test_ac31_credentials_that_are_replaced_count_at_the_next_look_and_are_nowhere_to_be_seen(followed: Followed) -> None:
    f = followed
    secrets = ["reader:of-the-first", "reader:of-the-second"]
    token = f.folder / "token"
    token.write_text(secrets[0])
    good = f.remote.commit(name="images", text=policy("images"))
    with Https(f.folder, f.folder / "https") as https:
        https.password = secrets[0]
        f.start(f"{https.url}/remote", f'token = "{token}"\nca = "{https.ca}"')
        f.wait("the policies", lambda: f.in_force() == good)
        https.password = secrets[1]
        f.refused("SH204")
        newer = f.remote.commit(name="images", text="# changed\n")
        assert f.in_force() == good
        token.write_text(secrets[1])
        f.wait("the newer policies", lambda: f.in_force() == newer)
    shapes = [shape for secret in secrets for shape in (secret.partition(":")[2].encode(), base64.b64encode(secret.encode()))]
    kept = [f.fleet.folder / "engine.log", *f.fleet.state.rglob("*")]
    assert not [file for file in kept if file.is_file() and any(shape in file.read_bytes() for shape in shapes)]


def test_ac33_a_merge_by_the_forge_counts_as_much_as_what_it_merges(followed: Followed) -> None:
    f = followed
    alice, forge = Key("alice", f.folder), Key("forge", f.folder)
    (f.folder / "authors").write_text(alice.signer)
    (f.folder / "forges").write_text(forge.signer)
    f.remote.commit(alice, "images", policy("images"))
    trust = f'[policies.trust]\nmode = "first-parent"\nsigners = "{f.folder}/authors"\nforge_signers = "{f.folder}/forges"\n'
    f.start(sections=trust + HEALTH)
    f.remote.branch("topic", alice)
    merged = f.remote.merge("topic", forge)
    f.wait("the merge", lambda: f.in_force() == merged)

    f.remote.branch("evil", None)
    bad = f.remote.merge("evil", forge)
    told = f.refused("SH242", bad)
    assert merged in told["what"], "what stays in force"
    assert "SH242" in f.late()
    assert f.in_force() == merged
    before = len(f.audit(RecordKind.POLICIES))
    f.again()
    f.wait("the policies that were in force", lambda: len(f.audit(RecordKind.POLICIES)) > before)
    assert f.in_force() == merged

    f.remote.git("reset", "-q", "--hard", merged)
    f.remote.branch("good", alice)
    mended = f.remote.merge("good", forge)
    f.wait("the mended branch", lambda: f.in_force() == mended)
    f.wait("the engine to be ready", lambda: f.ready()[0] == 200)


def test_ac35_a_rewritten_branch_is_kept_out_and_audited_until_it_descends_again(followed: Followed) -> None:
    f = followed
    f.remote.commit(name="images", text=policy("images"))
    good = f.remote.commit(name="other", text=policy("other"))
    f.start()
    f.wait("the policies", lambda: f.in_force() == good)
    f.remote.git("reset", "-q", "--hard", "HEAD~1")
    forced = f.remote.commit(name="third", text=policy("third"))
    told = f.refused("SH207", forced)
    assert good in told["what"]
    assert f.in_force() == good
    f.again()
    f.wait("the policies that were in force", lambda: len(f.audit(RecordKind.POLICIES)) == 2)
    assert f.in_force() == good, "a restart is no way around"
    assert f.audit(RecordKind.POLICIES)[-1].body["policies"] == ["images", "other"]
    f.remote.git("merge", "-q", "-s", "ours", "-m", "contain it again", good)
    f.wait("the branch that descends again", lambda: f.in_force() == f.remote.head)


def test_ac35_a_rewind_that_is_allowed_is_in_the_audit(followed: Followed) -> None:
    f = followed
    old = f.remote.commit(name="images", text=policy("images"))
    new = f.remote.commit(name="other", text=policy("other"))
    f.start(policies="allow_rewind = true")
    f.wait("the policies", lambda: f.in_force() == new)
    f.remote.git("reset", "-q", "--hard", old)
    f.wait("the older policies", lambda: f.in_force() == old)
    (told,) = f.audit(RecordKind.POLICIES)[-1].body["problems"]
    assert (told["code"], new in told["what"], old in told["what"]) == ("SH222", True, True)


async def test_ac37_readers_never_see_a_set_without_a_policy_that_both_commits_have(tmp_path: Path) -> None:
    """Twenty policies change in each commit, while a thread looks at the set in force all the time."""
    remote = Repository(tmp_path / "remote")
    names = [f"policy-{number:02}" for number in range(20)]

    def push(every: str) -> str:
        for name in names:
            (remote.path / "policies").mkdir(exist_ok=True)
            (remote.path / "policies" / f"{name}.yaml").write_text(policy(name, every))
        return remote.commit(name="z", text=f"# {every}\n")

    first = push("1m")
    feed = PolicyFeed(source_of(PoliciesSettings(git=str(remote.path), folder="policies"), tmp_path / "cache"), lambda: 100.0)
    await feed.refresh()
    seen: list[PolicySet] = []
    stop = threading.Event()

    def look() -> None:
        last = False
        while not last:
            last = stop.is_set()
            current = feed.current
            assert current is not None
            if not seen or seen[-1] is not current:
                seen.append(current)

    reader = asyncio.create_task(asyncio.to_thread(look))
    commits = [first]
    try:
        for every in ("2m", "3m", "4m"):
            commits.append(push(every))
            assert await feed.refresh()
    finally:
        stop.set()
        await reader
    assert [found.commit for found in seen] == commits
    for found in seen:
        assert [p.name for p in found.policies] == names
        assert len({p.document.spec.every for p in found.policies}) == 1  # type: ignore[union-attr]
        assert {p.commit for p in found.policies} == {found.commit}


def test_ac38_an_engine_that_learns_nothing_new_is_not_ready_whatever_it_is_that_is_old(followed: Followed) -> None:
    f = followed
    f.remote.commit(name="images", text=policy("images"))
    f.start(sections=HEALTH)
    f.wait("the engine to be ready", lambda: f.ready()[0] == 200)
    hidden = f.remote.path.rename(f.folder / "hidden")
    reason = f.late()
    assert "may be 1 s: " in reason
    assert "SH203" in reason
    assert list(f.ready()[1]["late"]) == ["policies"]
    page = httpx.get(f"http://127.0.0.1:{f.fleet.engine_port}/metrics", trust_env=False, timeout=10).text
    ages = {
        line.split("} ")[0].split('"')[1]: float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("shunter_input_age_seconds")
    }
    assert ages["policies"] > 1
    assert 'shunter_input_age_limit_seconds{input="policies"} 1.0' in page
    hidden.rename(f.remote.path)
    f.wait("the engine to be ready", lambda: f.ready()[0] == 200)

    f.fleet.nodes["node-a"].power_off()
    f.wait("the inventory to be late", lambda: "inventory" in f.ready()[1].get("late", {}))
    status, told = f.ready()
    assert status == 503
    assert "may be 2 s" in told["reasons"]["inventory"]
    assert httpx.get(f"http://127.0.0.1:{f.fleet.engine_port}/healthz", trust_env=False, timeout=10).status_code == 200, "it is alive"


def test_a_bad_file_keeps_its_last_good_version_across_a_restart(followed: Followed) -> None:
    f = followed
    f.remote.commit(name="images", text=policy("images"))
    f.start()
    f.wait("the policies", lambda: f.in_force() == f.remote.head)
    bad = f.remote.commit(name="images", text="nonsense: [\n")
    f.wait("the bad commit", lambda: f.in_force() == bad)
    assert f.audit(RecordKind.POLICIES)[-1].body["policies"] == ["images"]
    f.again()
    f.wait("the policies after a restart", lambda: len(f.audit(RecordKind.POLICIES)) >= 3)
    assert f.audit(RecordKind.POLICIES)[-1].body["policies"] == ["images"]


@pytest.mark.parametrize("trust", ['mode = "head"', 'signers = "authors"'])
def test_settings_that_would_trust_everybody_or_nobody_start_nothing(followed: Followed, trust: str) -> None:
    f = followed
    f.remote.commit(name="images", text=policy("images"))
    f.start(sections=f"[policies.trust]\n{trust}\n")
    assert f.engine.wait(30) != 0
    assert "SH246" in f.log()
