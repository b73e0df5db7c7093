import datetime
import os
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store
from shunter.app.certs import issue
from shunter.cli.main import execute
from shunter.model.errors import Rejected, Stalled

NOW = 1_800_000_000.0


def cert(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_identities_chain_to_the_authority(tmp_path: Path):
    made = issue(tmp_path / "certs", ["node-a", "node-b"], NOW, reader=True)
    agents = ["spiffe://shunter/agent/node-a", "spiffe://shunter/agent/node-b"]
    assert [m.uri for m in made] == ["ca", "spiffe://shunter/engine", *agents, "spiffe://shunter/reader"]
    ca = cert(made[0].cert)
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert isinstance(ca.public_key(), ec.EllipticCurvePublicKey)
    assert ca.not_valid_after_utc - datetime.datetime.fromtimestamp(NOW, datetime.UTC) == datetime.timedelta(days=3650)
    at = datetime.datetime.fromtimestamp(NOW + 60, datetime.UTC)
    policy = PolicyBuilder().store(Store([ca])).time(at)
    for one in made[1:]:
        leaf = cert(one.cert)
        found = policy.build_client_verifier().verify(leaf, [])
        assert found.subjects is not None
        assert x509.UniformResourceIdentifier(one.uri) in found.subjects
        who = one.uri.rpartition("/")[2]
        dns = f"{who}.agent.shunter" if "/agent/" in one.uri else f"{who}.shunter"
        policy.build_server_verifier(x509.DNSName(dns)).verify(leaf, [])
        usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert set(usage) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
        assert one.ends_at == NOW + 365 * 86400


def test_tls_works_both_ways_with_them(tmp_path: Path):
    made = issue(tmp_path, ["node-a"], time.time())
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(made[2].cert, made[2].key)
    client.load_cert_chain(made[1].cert, made[1].key)
    for context in (server, client):
        context.load_verify_locations(made[0].cert)
    server.verify_mode = ssl.CERT_REQUIRED
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="node-a.agent.shunter")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (one, other):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert other.getpeercert()["subjectAltName"] == (("URI", "spiffe://shunter/engine"), ("DNS", "engine.shunter"))
    assert ("URI", "spiffe://shunter/agent/node-a") in one.getpeercert()["subjectAltName"]


def test_keys_are_for_their_owner_only_whatever_the_umask(tmp_path: Path):
    old = os.umask(0)
    try:
        issue(tmp_path / "c", ["node-a"], NOW)
    finally:
        os.umask(old)
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "c").iterdir()}
    assert modes == {
        "ca.pem": 0o644, "ca.key": 0o600, "engine.pem": 0o644, "engine.key": 0o600, "agent-node-a.pem": 0o644, "agent-node-a.key": 0o600,
    }  # fmt: skip
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "c" / "ca.key").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----"), "PKCS8"


def test_again_it_keeps_what_is_there_and_adds_what_is_missing(tmp_path: Path):
    issue(tmp_path, ["node-a"], NOW)
    before = contents(tmp_path)
    made = issue(tmp_path, ["node-a", "node-b"], NOW + 5, days=30)
    assert [m.kept for m in made] == [True, True, True, False]
    assert made[3].ends_at == NOW + 5 + 30 * 86400
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before
    cert(made[3].cert).verify_directly_issued_by(cert(made[0].cert))


def test_one_for_previews_is_made_where_it_is_asked_for(tmp_path: Path):
    issue(tmp_path, ["reader"], NOW)
    assert not (tmp_path / "reader.pem").exists()
    before = contents(tmp_path)
    made = issue(tmp_path, ["reader"], NOW, reader=True)
    assert [(m.cert.name, m.kept) for m in made[2:]] == [("agent-reader.pem", True), ("reader.pem", False)]
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before, "a node of that name is somebody else"


def test_no_certificate_outlives_the_authority(tmp_path: Path):
    issue(tmp_path, [], NOW)
    made = issue(tmp_path, ["node-a"], NOW + 3600 * 86400)
    assert made[2].ends_at == made[0].ends_at


@pytest.mark.parametrize("name", ["", "Node", "node_a", "-a", "a-", "a.b", "../x", "a/b", "x" * 64, "nöde", "a\n"])
def test_names_that_can_be_no_node(tmp_path: Path, name: str):
    with pytest.raises(Rejected, match="SH920"):
        issue(tmp_path / "c", ["node-a", name], NOW)
    assert not (tmp_path / "c").exists(), "nothing is made"


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_days_out_of_range(tmp_path: Path, days: int):
    with pytest.raises(Rejected, match="SH921"):
        issue(tmp_path, [], NOW, days)


def test_what_is_of_somebody_else_is_not_overwritten(tmp_path: Path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    issue(ours, ["node-a", "node-b"], NOW)
    issue(theirs, ["node-a"], NOW)
    for end in ("pem", "key"):
        (ours / f"agent-node-a.{end}").write_bytes((theirs / f"agent-node-a.{end}").read_bytes())
    before = contents(ours)
    with pytest.raises(Rejected, match=r"SH922 .*another authority issued it"):
        issue(ours, ["node-a"], NOW)
    for end in ("pem", "key"):
        (ours / f"agent-node-a.{end}").write_bytes((ours / f"agent-node-b.{end}").read_bytes())
    with pytest.raises(Rejected, match=r"SH922 .*it is for spiffe://shunter/agent/node-b, not for spiffe://shunter/agent/node-a"):
        issue(ours, ["node-a"], NOW)
    assert contents(ours)["ca.pem"] == before["ca.pem"]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("engine.pem", b"rubbish", "it isn't a certificate"),
        ("engine.key", b"rubbish", "it isn't an unencrypted private key"),
        ("engine.key", None, "engine.key is missing beside it"),
        ("ca.key", None, "ca.key is missing beside it"),
        ("engine.pem", None, "engine.pem is missing beside it"),
    ],
)
def test_halves_and_rubbish_are_refused(tmp_path: Path, name: str, data: bytes | None, why: str):
    issue(tmp_path, [], NOW)
    if data is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(data)
    before = contents(tmp_path)
    with pytest.raises(Rejected, match=f"SH922 .*{why}"):
        issue(tmp_path, [], NOW)
    assert contents(tmp_path) == before


def test_a_key_of_another_certificate_is_refused(tmp_path: Path):
    issue(tmp_path, ["node-a"], NOW)
    (tmp_path / "engine.key").write_bytes((tmp_path / "agent-node-a.key").read_bytes())
    with pytest.raises(Rejected, match=r"it isn't the key of engine\.pem"):
        issue(tmp_path, [], NOW)


def test_a_leaf_is_no_authority(tmp_path: Path):
    issue(tmp_path, [], NOW)
    for end in ("pem", "key"):
        (tmp_path / f"ca.{end}").write_bytes((tmp_path / f"engine.{end}").read_bytes())
    with pytest.raises(Rejected, match="it isn't the certificate of an authority"):
        issue(tmp_path, [], NOW)


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(Stalled, match="SH923"):
        issue(tmp_path / "file" / "certs", [], NOW)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["certs", str(tmp_path / "c"), "--agent", "node-a", "--agent", "node-b", "--days", "7"]
    assert execute(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["made"] * 4
    assert "spiffe://shunter/agent/node-b" in lines[3]
    assert execute([*command, "--reader"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["kept"] * 4 + ["made"]
    assert "reader.pem" in lines[4]
    assert "spiffe://shunter/reader" in lines[4]
    assert execute(["certs", str(tmp_path / "c"), "--agent", "No"]) == 1
    assert "SH920" in capsys.readouterr().err
