"""`shunter explain`: complete, right, and the same as the checker's own rules."""

import json

import msgspec
import pytest
from shunter.cli.explain import kinds_text, topic_text
from shunter.cli.main import execute
from shunter.lang import cel
from shunter.lang.check import FIELDS
from shunter.lang.fields import Field, Topic, kinds, topic
from shunter.lang.schema import KINDS, policy_schema
from shunter.model.errors import Rejected
from shunter.model.vocabulary import Kind, Variable

ABOUT = Topic(
    kind="CheckpointPolicy",
    path="spec.when",
    field=Field(name="when", type="expression giving true or false", required=False, default="true", bounds="not empty", doc="When. " * 20),
    doc="What it stands in.",
    fields=(
        Field(name="for", type="duration", required=True, doc="How long."),
        Field(name="min", type="whole number", required=False, default="1", bounds="at least 0"),
    ),
    variables=(
        Variable(name="worker.id", kind=Kind.STRING, unit="", doc="stable id"),
        Variable(name="worker.kvTokens", kind=Kind.DOUBLE, unit="tokens", doc="context", metric=True),
    ),
    metrics=True,
)
TEXT = """\
KIND:     CheckpointPolicy
VERSION:  shunter.dev/v1alpha1

KEY:      spec.when <expression giving true or false> (default true; not empty)

DESCRIPTION:
    When. When. When. When. When. When. When. When. When. When. When.
    When. When. When. When. When. When. When. When. When.
    What it stands in.

KEYS:
  for <duration> (required)
      How long.
  min <whole number> (default 1; at least 0)

VARIABLES:
  worker.id <string>
      stable id
  worker.kvTokens <double>, in tokens
      context; from Prometheus, so it can be missing
  metrics.<name> <double>
      what the policy declares under spec.metrics"""


def test_the_text_for_people():
    assert topic_text(ABOUT, 70) == TEXT


def test_the_kinds(capsys: pytest.CaptureFixture[str]):
    assert execute(["explain"]) == 0
    out = capsys.readouterr().out
    assert out == kinds_text(kinds(), 100) + "\n"
    assert all(f"  {kind}\n" in out for kind in KINDS)


def paths(kind: str):
    """Every path of a kind, by its schema: what can be explained isn't listed by the explainer itself."""
    defs = policy_schema()["$defs"]

    def below(schema: dict, path: str):
        if "$ref" in schema:
            schema = defs[schema["$ref"].rpartition("/")[2]]
        for key, inner in schema.get("properties", {}).items():
            if key not in ("apiVersion", "kind"):
                yield f"{path}.{key}", inner
                yield from below(inner, f"{path}.{key}")
        if isinstance(schema.get("additionalProperties"), dict):
            yield from below(schema["additionalProperties"], f"{path}.some")
        if isinstance(schema.get("items"), dict):
            yield from below(schema["items"], f"{path}[]")

    yield from below({"$ref": f"#/$defs/{kind}"}, kind)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_key_of_the_schema_has_a_text_with_its_description_and_default(kind: str):
    found = list(paths(kind))
    assert len(found) > 13
    for path, schema in found:
        about = topic(path)
        said = topic_text(about, 100)
        flat = " ".join(said.split())
        assert f"KEY: {about.path} <" in flat
        assert " ".join(schema.get("description", "").split()) in flat
        if "default" in schema and isinstance(schema["default"], str | int) and not isinstance(schema["default"], bool):
            assert f"default {schema['default']}" in said


@pytest.mark.parametrize(("kind", "path"), list(FIELDS))
def test_the_variables_of_an_expression_are_those_that_the_checker_allows(kind: str, path: str):
    about = topic(f"{kind}.spec.{path}")
    result, roots = FIELDS[kind, path]
    shown = {v.name for v in about.variables}
    assert shown
    assert f"giving {'true or false' if result == 'bool' else 'a number'}" in about.field.type
    for name in cel.VARIABLES:
        codes = {fault.code for fault in cel.check(name, result, roots, frozenset())}
        assert ("SH132" in codes) is (name not in shown), name
    reading = "metrics.x > 0.0" if result == "bool" else "metrics.x"
    declares = "metrics" in {f.name for f in topic(f"{kind}.spec").fields}
    assert about.metrics is (declares and cel.check(reading, result, roots, frozenset(("x",))) == ())


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("PreemptPolicy", "PreemptPolicy is not a kind of policy", 'Did you mean "PreemptionPolicy"?'),
        ("Deployment", "Deployment is not a kind of policy", "There are PreemptionPolicy, "),
        ("preemptionpolicy.spec.reserv", "PreemptionPolicy.spec has no key reserv", 'Did you mean "PreemptionPolicy.spec.reserve"?'),
        ("CheckpointPolicy.spec.keep.zzz", "CheckpointPolicy.spec.keep has no key zzz", "It has last"),
        ("CheckpointPolicy.spec.every.x", "CheckpointPolicy.spec.every has no keys below it: it is duration", "Ask for"),
        ("CheckpointPolicy.spec.when.x", "CheckpointPolicy.spec.when has no keys below it: it is expression", "Ask for"),
    ],
)
def test_what_there_is_not(name: str, what: str, remedy: str):
    with pytest.raises(Rejected) as caught:
        topic(name)
    assert caught.value.problem.code == "SH150"
    assert caught.value.problem.what == what
    assert caught.value.problem.remedy.startswith(remedy)


def test_the_names_of_metrics_may_be_given_or_left_out():
    assert topic("CheckpointPolicy.spec.metrics.wait.maxAge").path == "spec.metrics.<wait>.maxAge"
    assert topic("CheckpointPolicy.spec.metrics.maxAge").path == "spec.metrics.<name>.maxAge"
    assert topic("CheckpointPolicy.spec.metrics.wait.maxAge").field.default == "30s"
    assert topic("CheckpointPolicy.metadata.labels.team").field.type == "text"


def test_the_keys_of_a_lists_entries():
    for name in ("DisruptionBudget.spec.windows.zone", "disruptionbudget.spec.windows[].zone"):
        zone = topic(name)
        assert (zone.path, zone.field.required, zone.field.type) == ("spec.windows[].zone", True, "text")
        assert "IANA" in zone.field.doc
    windows = topic("DisruptionBudget.spec.windows")
    assert [f.name for f in windows.fields] == ["zone", "from", "to", "days"]
    assert windows.field.type == "list of mapping"
    assert [f.bounds for f in windows.fields[1:3]] == ["hours and minutes", "hours and minutes"]
    with pytest.raises(Rejected) as caught:
        topic("DisruptionBudget.spec.windows.zon")
    assert caught.value.problem.remedy == 'Did you mean "DisruptionBudget.spec.windows[].zone"?'
    with pytest.raises(Rejected):
        topic("DisruptionBudget.spec.operations.x")


def test_amounts_and_keys_that_are_an_enumerations():
    assert topic("DisruptionBudget.spec.maxConcurrent").field.type == "whole number or share"
    assert '"preemption"' in topic("FleetProfile.spec.lead").field.type
    assert topic("FleetProfile.spec.lead").field.type.endswith("to durations")
    assert topic("FleetProfile.spec.lead.preemption").field.type == "duration"
    assert topic("FleetProfile.spec.prefillRate").field.bounds == "more than 0"
    assert not topic("DisruptionBudget.spec.workers.where").metrics


def test_json(capsys: pytest.CaptureFixture[str]):
    assert execute(["explain", "CheckpointPolicy.spec.copies", "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(msgspec.json.encode(topic("CheckpointPolicy.spec.copies")))
    assert (shown["field"]["default"], shown["field"]["bounds"]) == ("1", "at least 1")
    assert execute(["explain", "Nonsense"]) == 1
