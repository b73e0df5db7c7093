"""The engine's settings file: what is read from it, and what is said of one that is wrong."""

from pathlib import Path

import msgspec
import pytest
from shunter.app.settings import load
from shunter.decide.profile import Profile
from shunter.model.errors import Rejected

WHOLE = """
state = "state"
[policies]
directory = "policies"
[prometheus]
url = "http://prometheus:9090"
[tls]
ca = "certs/ca.pem"
cert = "/etc/shunter/engine.pem"
key = "certs/engine.key"
[[agents]]
node = "node-a"
address = "10.0.0.11:7443"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "engine.toml"
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> str:
    with pytest.raises(Rejected) as caught:
        load(write(folder, text))
    problem = caught.value.problem
    assert (problem.code, problem.subject) == ("SH910", str(folder / "engine.toml"))
    return problem.what


def test_a_whole_file(tmp_path: Path) -> None:
    found = load(write(tmp_path, 'tick = "250ms"\n' + WHOLE))
    assert (found.state, found.policies.directory) == (tmp_path / "state", tmp_path / "policies")
    assert (found.tls.ca, found.tls.cert) == (tmp_path / "certs/ca.pem", Path("/etc/shunter/engine.pem"))
    assert (found.tick, found.policies.poll, found.hold) == (0.25, 15.0, 60.0)
    assert [(agent.node, agent.address) for agent in found.agents] == [("node-a", "10.0.0.11:7443")]


def test_paths_are_relative_to_the_file_not_to_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path, WHOLE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(Path("../engine.toml")).state == tmp_path / "state"


def test_rates_replace_the_documented_ones_only_where_given(tmp_path: Path) -> None:
    assert load(write(tmp_path, WHOLE)).rates() == Profile()
    found = load(write(tmp_path, WHOLE + '[profile]\nnetwork = "12.5GB"\n')).rates()
    assert found == msgspec.structs.replace(Profile(), network_bytes_per_s=12.5e9)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ('url = "http://prometheus:9090"', "", "prometheus"),
        ('state = "state"', "state = 5", "state"),
        ('state = "state"', 'state = "state"\ntick = 5', "5 needs a unit, such as 30s - at `$.tick`"),
        ('state = "state"', 'state = "state"\ntick = "5"', "`$.tick`"),
        ('state = "state"', 'state = "state"\ntick = "0s"', "tick must be more than 0"),
        ('state = "state"', 'state = "state"\nhold = "0s"', "hold must be more than 0"),
        ("[policies]", '[cluster]\nlasts = "2s"\n[policies]', "cluster.lasts must be at least 3s"),
        ("[policies]", "[limits]\nvoluntary = 0\n[policies]", "limits.voluntary must be at least 1"),
        ('directory = "policies"', 'directory = "policies"\npoll = "0s"', "policies.poll must be more than 0"),
        ('url = "http://prometheus:9090"', 'url = "http://p:9090"\ndeadline = "0s"', "prometheus.deadline must be more than 0"),
        ('state = "state"', 'state = "state"\nstaet = 1', "staet"),
        ('directory = "policies"', "", "policies needs one of `git`, `directory` and `cluster`"),
        ('directory = "policies"', 'directory = "policies"\ngit = "https://host/x.git"', "policies needs one of"),
        ('directory = "policies"', 'directory = "policies"\nbranches = "main"', "branches"),
        ('node = "node-a"\n', "", "node` - at `$.agents[0]`"),
        ('address = "10.0.0.11:7443"', 'address = "x"\n[[agents]]\nnode = "node-a"\naddress = "y"', "each node once"),
        ("[[agents]]", "[[agents]", "are not valid"),
        ("[tls]", '[profile]\ndump = "5Gb"\n[tls]', "`$.profile.dump`"),
    ],
)
def test_what_is_wrong_names_its_key(tmp_path: Path, before: str, after: str, named: str) -> None:
    assert before in WHOLE
    assert named in refused(tmp_path, WHOLE.replace(before, after))


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(Rejected, match="Is a directory"):
        load(tmp_path)
    (tmp_path / "engine.toml").write_bytes(b"state = \xff")
    with pytest.raises(Rejected, match="not valid"):
        load(tmp_path / "engine.toml")


def test_with_pods_no_agent_has_to_be_named(tmp_path: Path) -> None:
    bare, agents, rest = WHOLE.partition("[[agents]]")
    assert "at least one" in refused(tmp_path, bare)
    assert "at least one" in refused(tmp_path, bare + "[cluster]\n")
    pods = load(write(tmp_path, bare + '[cluster.pods]\nnamespace = "dynamo"\n')).cluster.pods  # type: ignore[union-attr]
    assert (pods.namespace, pods.selector, pods.port) == ("dynamo", "nvidia.com/dynamo-graph-deployment-name", 7443)  # type: ignore[union-attr]
    assert "idle" in refused(tmp_path, bare + "[cluster.pods]\nidle = []\n")
    twice = bare + 2 * (agents + rest) + "[cluster.pods]\n"
    assert "once" in refused(tmp_path, twice)
