"""What the settings say of the audit, and that it is so."""

from pathlib import Path

import pytest
from shunter.app.audits import read, write
from shunter.app.settings import AuditSettings, load
from shunter.audit.key import Key, load_public
from shunter.audit.key import load as load_key
from shunter.model.errors import Rejected, Stalled
from shunter.model.ids import Epoch
from shunter.model.record import Record, RecordKind

BASE = """
state = "state"
policies = {directory = "policies"}
prometheus = {url = "http://prometheus:9090"}
tls = {ca = "ca.pem", cert = "engine.pem", key = "engine.key"}
agents = [{node = "node-a", address = "10.0.0.11:7443"}]
"""


def settings(folder: Path, text: str) -> AuditSettings:
    (folder / "engine.toml").write_text(BASE + text)
    return load(folder / "engine.toml").audit


def record(**body: object) -> Record:
    return Record(at=1.0, kind=RecordKind.FINDING, subject="w", what="x", epoch=Epoch(1), body=body)


def test_nothing_said_is_everything_for_ever_and_inputs_for_a_week(tmp_path: Path) -> None:
    found = settings(tmp_path, "")
    assert (found.keep, found.key, found.labels, found.database, found.otlp) == (None, None, None, None, None)
    assert (found.inputs, found.inputs_size) == (7 * 86400, 10**9)


def test_all_of_it(tmp_path: Path) -> None:
    found = settings(
        tmp_path, '[audit]\nkey = "keys/audit.pem"\nkeep = "90d"\narchive = "old"\nlabels = ["tier"]\ninputs = "0s"\ninputs_size = "5GB"\n'
    )
    assert (found.key, found.archive) == (tmp_path / "keys/audit.pem", tmp_path / "old")
    assert (found.keep, found.labels, found.inputs, found.inputs_size) == (90 * 86400, ("tier",), 0, 5 * 10**9)


@pytest.mark.parametrize("text", ['keep = "0s"', "keep = 90", 'keep = "90"', 'kept = "90d"', 'labels = "tier"', "inputs_size = 5"])
def test_what_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Rejected, match="SH910"):
        settings(tmp_path, f"[audit]\n{text}\n")


def test_labels_and_credentials_are_out_before_a_record_is_kept(tmp_path: Path) -> None:
    with write(tmp_path, AuditSettings(labels=("tier",)), 1000) as journal:
        journal.append([record(labels={"tier": "gold", "owner": "jo"}, password="hush")])
    with read(tmp_path, None) as journal:
        assert journal.get(1).record.body == {"labels": {"tier": "gold", "owner": "[left out]"}, "password": "[masked]"}


def test_a_key_of_its_own(tmp_path: Path) -> None:
    key = Key.make()
    key.save(tmp_path / "mine.pem")
    with write(tmp_path / "state", AuditSettings(key=tmp_path / "mine.pem"), 1000) as journal:
        journal.append([record()])
        assert journal.verify(key.public).ok
    assert load_public(tmp_path / "state" / "audit.pub") == key.public
    assert not (tmp_path / "state" / "audit.key").exists()
    with pytest.raises(Stalled, match="SH970"):
        write(tmp_path / "state", AuditSettings(), 1000)
    assert not (tmp_path / "state" / "audit.key").exists(), "no key is made for an audit that has one"


@pytest.mark.parametrize(
    ("content", "mode", "told"),
    [
        (None, 0o600, "no key there"),
        (b"rubbish", 0o600, "isn't a private key"),
        (b"", 0o600, "isn't a private key"),
        ("good", 0o640, "others than its owner"),
        ("rsa", 0o600, "isn't an Ed25519 key"),
    ],
)
def test_a_key_that_will_not_do(tmp_path: Path, content: bytes | str | None, mode: int, told: str) -> None:
    path = tmp_path / "key.pem"
    if content == "good":
        Key.make().save(path)
    elif content == "rsa":
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        path.write_bytes(generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    elif isinstance(content, bytes):
        path.write_bytes(content)
    if path.exists():
        path.chmod(mode)
    with pytest.raises(Stalled, match=f"SH970 .*{told}"):
        write(tmp_path / "state", AuditSettings(key=path), 1000)
    with write(tmp_path / "state", AuditSettings(), 1000) as journal:
        assert journal.last.seq == 0, "nothing was begun with it"


def test_openssl_makes_keys_that_will_do(tmp_path: Path) -> None:
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(tmp_path / "key.pem")], check=True, capture_output=True)
    (tmp_path / "key.pem").chmod(0o600)
    subprocess.run(["openssl", "pkey", "-in", str(tmp_path / "key.pem"), "-pubout", "-out", str(tmp_path / "key.pub")], check=True)
    assert load_public(tmp_path / "key.pub") == load_key(tmp_path / "key.pem").public
