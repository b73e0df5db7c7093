"""No credential, no label that isn't listed and nothing that was said to a model gets into a record, wherever in it it stands."""

import sqlite3
import string
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.audit.journal import Journal
from shunter.audit.redact import LEFT_OUT, MASKED, Redaction
from shunter.model.canon import encode
from shunter.model.ids import Commit, Digest, Epoch
from shunter.model.record import Record, RecordKind

MANY = settings(max_examples=300, deadline=None)
ALNUM = string.ascii_letters + string.digits


def chars(alphabet: str, least: int, most: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most or least + 12)


def shaped(prefix: str, alphabet: str, least: int, most: int | None = None) -> st.SearchStrategy[str]:
    return chars(alphabet, least, most).map(lambda rest: prefix + rest)


TOKENS = st.one_of(
    shaped("AKIA", string.ascii_uppercase + string.digits, 16, 16),
    shaped("ghp_", ALNUM, 36),
    shaped("github_pat_", ALNUM, 22),
    shaped("glpat-", ALNUM, 20),
    shaped("xoxb-", string.digits, 12),
    shaped("sk-", ALNUM, 32),
    shaped("sk-proj-", ALNUM, 32),
    shaped("sk_live_", ALNUM, 24),
    shaped("hf_", ALNUM, 34),
    shaped("nvapi-", ALNUM, 40),
    shaped("AIza", ALNUM, 35),
    shaped("ya29.", ALNUM, 30),
    shaped("ASIA", string.ascii_uppercase + string.digits, 16, 16),
    shaped("ghs_", ALNUM, 36),
    shaped("rk_test_", ALNUM, 24),
    shaped("npm_", ALNUM, 36),
    shaped("pypi-", ALNUM, 40),
    shaped("dckr_pat_", ALNUM, 27),
    shaped("dop_v1_", string.hexdigits[:16], 64),
    shaped("hvs.", ALNUM, 24),
    st.tuples(chars(ALNUM, 22), chars(ALNUM, 43)).map(lambda p: f"SG.{p[0]}.{p[1]}"),
    st.tuples(st.sampled_from(["Bearer ", "Basic "]), chars(ALNUM, 30)).map("".join),
    st.tuples(chars(ALNUM, 20), chars(ALNUM, 20), chars(ALNUM, 20)).map(lambda p: f"eyJ{p[0]}.eyJ{p[1]}.{p[2]}"),
    chars(ALNUM + "+/", 64).map(lambda body: f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----"),
)
AROUND = st.text(string.ascii_lowercase + " .:,()[]", max_size=20)
PLAIN = st.sampled_from(["worker.kvUsage > 0.2", "node-a is preempted in 120 s", "decode-0", "save-sessions", "llama-70b", "2 GB of KV"])
SECRET_KEYS = st.sampled_from(
    [
        "password",
        "dbPassword",
        "DB_PASSWORD",
        "api-key",
        "apiKey",
        "API_KEY",
        "hf-token",
        "authToken",
        "clientSecret",
        "aws_secret_access_key",
    ]
)
WEAK = chars(string.ascii_lowercase, 8).map(lambda text: f"qz{text}")  # nothing that anything of ours is called


def holders(secret: str) -> st.SearchStrategy[Any]:
    """JSON with the secret somewhere in it."""
    leaf = st.just(secret)
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(PLAIN, inner).map(list),
            st.tuples(st.sampled_from(["reason", "detail", "inputs", "labels", "evidence", "value"]), inner).map(
                lambda p: {p[0]: p[1], "n": 1}
            ),
        ),
        max_leaves=4,
    )


def record(**fields: Any) -> Record:
    given: dict[str, Any] = {"at": 1.0, "kind": RecordKind.FINDING, "subject": "decode-0", "what": "act", "epoch": Epoch(1), **fields}
    return Record(**given)


@MANY
@given(st.data())
def test_a_token_is_masked_wherever_it_stands(data: st.DataObject) -> None:
    token, before, after = data.draw(TOKENS), data.draw(AROUND), data.draw(AROUND)
    text = f"{before} {token} {after}"
    where = data.draw(st.sampled_from(["subject", "what", "operation", "body", "key"]))
    given = record(**{where: text}) if where in ("subject", "what", "operation") else record(body={"x": data.draw(holders(text))})
    if where == "key":
        given = record(body={text: "x"})
    kept = Redaction().clean(given)
    secret = token.split()[-1] if token.startswith("B") else token.split("\n")[1] if "\n" in token else token
    assert secret.encode() not in encode(kept)
    assert MASKED.encode() in encode(kept)


@MANY
@given(SECRET_KEYS, WEAK, st.sampled_from(["body", "labels", "deep"]))
def test_a_value_is_masked_by_the_name_of_its_key_also_when_it_looks_like_a_word(key: str, value: str, where: str) -> None:
    body: dict[str, object] = {"body": {key: value}, "labels": {"labels": {key: value}}, "deep": {"e": [{"d": {key: value}}]}}[where]  # type: ignore[assignment]
    assert value.encode() not in encode(Redaction().clean(record(body=body)))


@MANY
@given(SECRET_KEYS, WEAK, st.sampled_from(["=", ": ", " = "]))
def test_a_value_is_masked_where_its_name_stands_before_it_in_a_text(key: str, value: str, sign: str) -> None:
    kept = Redaction().clean(record(what=f"it failed: {key}{sign}{value}, try again"))
    assert value not in kept.what
    assert kept.what.startswith("it failed: ")


@MANY
@given(WEAK, WEAK)
def test_the_password_of_a_url_is_masked(user: str, password: str) -> None:
    kept = Redaction().clean(record(what=f"fetch https://{user}:{password}@example.com/policies.git failed"))
    assert password not in kept.what or password in user
    assert kept.what.endswith("@example.com/policies.git failed")


@MANY
@given(
    st.dictionaries(st.sampled_from(["zone", "tier", "team", "owner", "mail"]), WEAK, min_size=1),
    st.sets(st.sampled_from(["zone", "tier"])),
)
def test_only_listed_labels_are_kept(labels: dict[str, str], listed: set[str]) -> None:
    body: dict[str, object] = {
        "evidence": [
            {"inputs": [{"name": "worker.kvUsage", "sample": {"is": "known", "labels": labels}}]},
            {"inputs": [{"name": "worker.labels", "value": str(labels)}]},
            {
                "inputs": [{"name": f'node.labels["{name}"]', "value": value} for name, value in labels.items()],
                "detail": ", ".join(f'node.labels["{name}"] = {value}' for name, value in labels.items()),
            },
        ]
    }
    kept = Redaction(labels=frozenset(listed)).clean(record(body=body))
    text = encode(kept)
    for name, value in labels.items():
        assert (value.encode() in text) == (name in listed or any(value in v and n in listed for n, v in labels.items())), (name, value)
    assert Redaction().clean(record(body=body)).body == body, "without a list all are"


def test_a_label_that_is_named_like_a_credential_is_masked_where_it_was_read() -> None:
    read = {"inputs": [{"name": 'worker.labels["api-key"]', "value": "open sesame"}], "detail": 'worker.labels["api-key"] = open sesame'}
    assert Redaction().clean(record(body={"evidence": [read]})).body == {
        "evidence": [{"inputs": [{"name": 'worker.labels["api-key"]', "value": MASKED}], "detail": f'worker.labels["api-key"] = {MASKED}'}]
    }


@MANY
@given(WEAK, st.sampled_from(["prompt", "prompts", "completion", "lastPrompt"]))
def test_what_people_said_is_left_out(text: str, key: str) -> None:
    assert Redaction().clean(record(body={key: text})).body == {key: LEFT_OUT}


def test_a_text_too_long_for_anything_of_ours_is_cut() -> None:
    kept = Redaction().clean(record(body={"detail": "a" * 100_000}))
    assert len(encode(kept)) < 10_000


@pytest.mark.parametrize(
    "text",
    [
        "keeps 12,000 tokens: 3 sessions",
        "`worker.kvTokens > 1000` is false",
        "the basic availability of node-a",
        "SHA256:9zC0gH95qSjoeZnJl7M+34l0DufKYAbr3BxKgIi3sj8",
        "move-81bc0779f9b3578c",
        "http://prometheus:9090/api/v1/query",
        "10.0.0.11:7443",
        "task-runner-of-the-secretariat-0",
        "its labels key: tier",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    given = record(subject=text, what=text, body={"kvTokens": 5, "tokens": text, "keys": [text], "monkey": text, "commit": "c" * 40})
    assert Redaction().clean(given) == given


def test_numbers_digests_and_flags_stay_whatever_they_are_called() -> None:
    given = record(commit=Commit("c" * 40), plan=Digest("sha256:" + "a" * 64), body={"token": 5, "secret": True, "password": None})
    assert Redaction().clean(given) == given


def test_it_is_masked_before_it_is_chained_and_on_no_disk() -> None:
    token = "hf_" + "Ab3" * 12
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "audit.db"
        with Journal(path) as journal:
            (sealed,) = journal.append([record(what=f"pulling with {token}", body={"labels": {"hub": token}})])
            assert sealed.record.what == f"pulling with {MASKED}"
            assert journal.verify().ok
            assert token.encode() not in b"".join(file.read_bytes() for file in Path(folder).iterdir())
        with closing(sqlite3.connect(path)) as db:
            assert msgspec.json.decode(db.execute("SELECT body FROM records").fetchone()[0])["body"] == {"labels": {"hub": MASKED}}
