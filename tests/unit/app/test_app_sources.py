"""What the settings say of the policies' repository: how it is reached, and by whom its commits must be signed."""

from pathlib import Path

import pytest
from shunter.app.settings import load
from shunter.app.sources import repository_of, source_of
from shunter.model.errors import Rejected
from shunter.source.git import GitSource
from shunter.source.trust import Mode

WHOLE = """
state = "state"
[policies]
git = "ssh://git@example.com/policies.git"
token = "token"
ca = "ca.pem"
ssh_key = "keys/deploy"
known_hosts = "/etc/known_hosts"
{trust}
[prometheus]
url = "http://prometheus:9090"
[tls]
ca = "ca.pem"
cert = "engine.pem"
key = "engine.key"
[[agents]]
node = "node-a"
address = "10.0.0.11:7443"
"""
TRUST = """[policies.trust]
mode = "first-parent"
signers = "allowed_signers"
openpgp = "keys/"
forge_signers = "forge_signers"
forge_openpgp = "forge.asc"
since = "0123456789012345678901234567890123456789"
"""


def write(folder: Path, trust: str, **changed: str) -> Path:
    text = WHOLE.format(trust=trust)
    for before, after in changed.items():
        text = text.replace(before, after)
    path = folder / "engine.toml"
    path.write_text(text)
    return path


def test_everything_that_can_be_said_of_a_repository(tmp_path: Path) -> None:
    policies = load(write(tmp_path, TRUST)).policies
    access = policies.access()
    assert (access.token, access.ca) == (tmp_path / "token", tmp_path / "ca.pem")
    assert (access.ssh_key, access.known_hosts) == (tmp_path / "keys/deploy", Path("/etc/known_hosts"))
    trust = policies.trust.trust()
    assert (trust.mode, trust.since) == (Mode.FIRST_PARENT, "0123456789" * 4)
    assert (trust.authors.ssh, trust.authors.openpgp) == (tmp_path / "allowed_signers", tmp_path / "keys")
    assert (trust.forge.ssh, trust.forge.openpgp) == (tmp_path / "forge_signers", tmp_path / "forge.asc")
    assert isinstance(source_of(policies, tmp_path / "cache"), GitSource)
    assert load(write(tmp_path, "")).policies.trust.trust().mode is Mode.OFF


@pytest.mark.parametrize(
    ("trust", "says"),
    [
        ('[policies.trust]\nmode = "heads"', "Invalid enum value 'heads' - at `$.policies.trust.mode`"),
        ('[policies.trust]\nmode = "head"\nsigner = "x"', "unknown field `signer`"),
    ],
)
def test_trust_that_is_misspelt_is_refused(tmp_path: Path, trust: str, says: str) -> None:
    with pytest.raises(Rejected) as caught:
        load(write(tmp_path, trust))
    assert says in caught.value.problem.what


def test_a_directory_can_not_be_signed(tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        load(write(tmp_path, TRUST, **{'git = "ssh://git@example.com/policies.git"': 'directory = "policies"'}))
    assert "nobody signs a directory" in caught.value.problem.what


@pytest.mark.parametrize("trust", ['[policies.trust]\nmode = "head"', '[policies.trust]\nsigners = "allowed_signers"'])
def test_trust_that_would_trust_nobody_or_everybody_is_refused(tmp_path: Path, trust: str) -> None:
    policies = load(write(tmp_path, trust)).policies
    with pytest.raises(Rejected) as caught:
        source_of(policies, tmp_path / "cache")
    assert caught.value.problem.code == "SH246"
    assert repository_of(policies, tmp_path / "cache"), "proposals can be looked at"
