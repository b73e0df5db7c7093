"""Canonical bytes: what they are, and that nothing which has none gets any."""

import hashlib
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shunter.app.digests import Digests
from shunter.model.canon import InOrder, NotCanonical, compressed, decode, encode, pieces
from shunter.model.errors import Place, Problem
from shunter.model.ids import Incarnation, NodeId, SlotId, WorkerId
from shunter.model.pod import Pod
from shunter.model.policy import FleetProfileSpec
from shunter.model.sample import Known, Missing, Stale
from shunter.model.snapshot import Fleet, Image, Node, Notice, NoticeKind, Samples, Slot, Snapshot, Taint, Toleration, Worker, WorkerState
from shunter.model.units import Bytes, Duration, Share

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([Duration(1.5), Share(0.25), Bytes(7)])
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20)


class Part(msgspec.Struct, frozen=True):
    zeta: Any
    alpha: Any = None


def walked(value: Any) -> bool:
    """Whether all floats are finite, by looking at each."""
    if isinstance(value, float):
        return math.isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(walked(part) for part in parts)


@given(VALUES)
def test_canonical_bytes_are_sorted_json_or_refused(value):
    if not walked(value):
        with pytest.raises(NotCanonical):
            encode(Part(zeta=value))
        return
    text = encode(Part(zeta=value)).decode()
    read = json.loads(text)
    assert list(read) == ["alpha", "zeta"]
    assert read["zeta"] == json.loads(json.dumps(value))
    assert msgspec.json.encode(read, order="deterministic").decode() == text, "every object's keys are sorted"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -math.nan])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [1, v], lambda v: {"a": {"b": v}}, lambda v: Part(zeta=1, alpha=(v,)), Duration])
def test_what_is_not_finite_has_no_canonical_form(value, wrap):
    with pytest.raises(NotCanonical):
        encode(wrap(value))


@pytest.mark.parametrize("value", [0.0, -0.0, 1e308, -1e308, 5e-324, 2.0**1023, 9007199254740993])
def test_what_is_finite_has_one(value):
    assert json.loads(encode([value])) == [value]


def test_bytes_that_look_like_an_infinity_are_not_taken_for_one():
    # an array of 16-bit length 0x00cb, whose first elements are 0x7f and 0xf0.. in MessagePack
    assert json.loads(encode([[127, -1] * 101 + [127]])) == [[127, -1] * 101 + [127]]


def test_keys_of_an_enumeration_are_texts():
    assert b'"lead":{"drain":60.0,"preemption":120.0}' in encode(
        FleetProfileSpec(lead={NoticeKind.PREEMPTION: Duration(120), NoticeKind.DRAIN: Duration(60)})
    )


@pytest.mark.parametrize("data", [b"[" * 200_000 + b"]" * 200_000, b'{"zeta": 1, "other": ' + b"[" * 200_000])
def test_what_is_nested_too_deeply_is_no_value(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data, Part)


NODE = Node(id=NodeId("a"), slots=(Slot(id=SlotId("a/0"), worker=WorkerId("d0")),), seen_at=1.0)
IMAGE: dict[str, Any] = {
    "id": "i",
    "worker": "d0",
    "incarnation": 0,
    "bytes": 1,
    "nodes": ("a",),
    "role": "decode",
    "graph": "g",
    "engine": "e",
}
NOTICE: dict[str, Any] = {"id": "n", "kind": NoticeKind.PREEMPTION, "node": "a"}
SAMPLES = Samples(
    workers={
        "d0": {"kvUsage": Known(value=0.5, unit="1", at=1.0, query="q", labels={"b": "é", "a": "2"}), "waiting": Missing(reason="NaN")}
    },
    policies={"p": {"m": {"": Stale(value=1.0, age=9.0, max_age=3.0, query="q")}}},
)


def snapshot(at: float = 2.0, seen: float = 1.0, taken: float = 1.0, pause: float | None = None, deadline: float | None = 3.0) -> Snapshot:
    fleet = Fleet(nodes=(msgspec.structs.replace(NODE, seen_at=seen),), images=(Image(**IMAGE, taken_at=taken, pause=pause),))
    return Snapshot(at=at, fleet=fleet, samples=SAMPLES, notices=(Notice(**NOTICE, seen_at=seen, deadline=deadline),))


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def identified(one):
    """Its id as its definition says, by other means."""
    parts = {"at": one.at, "fleet": sha256(encode(one.fleet)), "notices": one.notices, "samples": sha256(encode(one.samples))}
    return sha256(encode(parts))


def test_a_snapshots_id_is_the_digest_of_its_parts():
    assert snapshot().id == identified(snapshot())
    others = [snapshot(pause=0.5), snapshot(at=3.0), snapshot(deadline=4.0), msgspec.structs.replace(snapshot(), samples=Samples())]
    assert len({one.id for one in (snapshot(), *others)}) == 5, "each of its parts counts"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["at", "seen", "taken", "pause", "deadline"])
def test_a_snapshot_with_what_is_not_finite_has_no_id(where, bad):
    with pytest.raises(NotCanonical):
        snapshot(**{where: bad}).id  # noqa: B018


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_sample_can_be_made_of_what_is_not_finite(bad):
    """So that the id of a snapshot needn't look for it among them."""
    for field in ("value", "at"):
        with pytest.raises(ValueError, match="use Missing"):
            Known(**{"value": 1.0, "at": 1.0, field: bad}, unit="1", query="q")
    for field in ("value", "age", "max_age"):
        with pytest.raises(ValueError, match="use Missing"):
            Stale(**{"value": 1.0, "age": 1.0, "max_age": 1.0, field: bad}, query="q")
    with pytest.raises(ValueError, match="use Missing"):
        msgspec.structs.replace(Known(value=1.0, at=1.0, unit="1", query="q"), at=bad)
    with pytest.raises(ValueError, match="use Missing"):
        msgspec.convert({"is": "stale", "value": bad, "age": 1.0, "max_age": 1.0, "query": "q"}, Known | Missing | Stale)
    floats = [f.name for kind in (Known, Missing, Stale) for f in msgspec.structs.fields(kind) if f.type is float]
    assert sorted(floats) == ["age", "at", "max_age", "value", "value"], "a new number of a sample must be looked at when one is made"
    assert not [f.name for f in msgspec.structs.fields(Worker) if "float" in str(f.type)], "and one of a worker when there is an id"


def many() -> Snapshot:
    """More of everything than is written at once, not in the order of names."""
    names = [f"w-{n}" for n in range(700)]
    workers = tuple(
        Worker(
            id=WorkerId(w),
            role="decode",
            graph="é",
            engine="e",
            state=WorkerState.RUNNING,
            node=None,
            slot=None,
            incarnation=Incarnation(0),
        )
        for w in names
    )
    known = {w: {"waiting": Missing(reason="NaN"), "kvUsage": Known(value=0.5, unit="1", at=1.0, query="q")} for w in reversed(names)}
    images = tuple(Image(**{**IMAGE, "id": f"i-{n}"}, taken_at=float(n)) for n in range(501))
    return Snapshot(at=2.0, fleet=Fleet(nodes=(NODE,), workers=workers, images=images), samples=Samples(workers=known))


def whole() -> Snapshot:
    """More workers, images and nodes than are written at once, with all that they can have, and their maps in no order."""
    labels = {"tier": "gold", "a": "b", "Z": "é"}
    bears = (Toleration(seconds=30.0, effect="NoExecute", key="k", operator="Exists"),)
    wrong = Problem(
        code="SH301", what="it is blind", remedy="wait", subject="file", place=Place(file="p.yaml", line=1, column=2), excerpt="spec:"
    )
    held = msgspec.structs.replace(many().fleet.workers[0], labels=labels, memory=5, gpu_memory=4, tolerations=bears, pinned="it is held")
    workers = tuple(
        msgspec.structs.replace(held, id=WorkerId(f"w-{n}"), pod=Pod(uid="u", namespace="n", name=f"w-{n}", container="main"))
        for n in range(251)
    )
    image = Image(**IMAGE, taken_at=1.0, pause=0.5, facts=labels, tolerations=bears, linked=True, archived=True)
    node = msgspec.structs.replace(
        NODE, labels=labels, facts=labels, problems=(wrong,), taints=(Taint(value="v", key="k"),), canaries={"file": 2.0}
    )
    return Snapshot(at=1.0, fleet=Fleet(workers=workers, images=(image,) * 251, nodes=(node,) * 251))


@pytest.mark.parametrize("make", [snapshot, many, whole, lambda: Snapshot(at=0.0, fleet=Fleet())])
def test_in_pieces_the_bytes_are_the_same(make):
    assert b"".join(pieces(make())) == encode(make())
    assert Digests().take(make()) == make().id == identified(make())


@given(st.lists(VALUES, max_size=9), st.integers(240, 260))
def test_in_pieces_long_arrays_and_objects_are_the_same(values, length):
    value = [None] * length + values if walked(values) else [None] * length
    held = {f"{n}": v for n, v in enumerate(value)}
    assert b"".join(pieces(Part(zeta=value, alpha=held))) == encode(Part(zeta=value, alpha=held))


def structs_in(kind: msgspec.inspect.Type) -> Iterator[type[msgspec.Struct]]:
    """All structs that a value of the type can have in it, itself included."""
    match kind:
        case msgspec.inspect.StructType(cls=cls):
            yield cls
            yield from (one for field in kind.fields for one in structs_in(field.type))
        case msgspec.inspect.UnionType():
            yield from (one for inner in kind.types for one in structs_in(inner))
        case msgspec.inspect.VarTupleType():
            yield from structs_in(kind.item_type)
        case msgspec.inspect.DictType():
            yield from structs_in(kind.value_type)


@pytest.mark.parametrize("kind", [Worker, Image])
def test_what_lies_in_order_has_nothing_in_it_that_does_not(kind):
    for one in structs_in(msgspec.inspect.type_info(kind)):
        assert isinstance(one, InOrder), one
        assert list(one.__struct_encode_fields__) == sorted(one.__struct_encode_fields__), one
        assert one.__struct_config__.tag is None, "a tag comes first"


def test_nothing_long_is_written_at_once():
    assert max(map(len, pieces(many()))) < len(encode(many())) / 4


SPARING = Toleration(seconds=30.0)
FULL = Snapshot(
    at=2.0,
    fleet=Fleet(
        nodes=(msgspec.structs.replace(NODE, canaries={"file": 5.0}),),
        workers=(msgspec.structs.replace(many().fleet.workers[0], tolerations=(SPARING,)),),
        images=(Image(**IMAGE, taken_at=1.0, pause=0.5, tolerations=(SPARING,)),),
    ),
    notices=(Notice(**NOTICE, seen_at=1.0, deadline=3.0),),
)
"""Every double that a snapshot can have, but for those of samples."""


def spoilt(value: Any) -> Iterator[Any]:
    """The value once for each of its doubles, with that one not finite."""
    match value:
        case float():
            yield math.nan
        case msgspec.Struct():
            fields = value.__struct_fields__
            yield from (msgspec.structs.replace(value, **{f: bad}) for f in fields for bad in spoilt(getattr(value, f)))
        case tuple():
            yield from ((*value[:n], bad, *value[n + 1 :]) for n, part in enumerate(value) for bad in spoilt(part))
        case dict():
            yield from ({**value, key: bad} for key, part in value.items() for bad in spoilt(part))


def doubles_of(kind: msgspec.inspect.Type) -> int:
    """How many doubles a value of the type has, where it has one of everything."""
    match kind:
        case msgspec.inspect.FloatType():
            return 1
        case msgspec.inspect.StructType():
            return sum(doubles_of(field.type) for field in kind.fields)
        case msgspec.inspect.UnionType():
            return max(doubles_of(one) for one in kind.types)
        case msgspec.inspect.VarTupleType():
            return doubles_of(kind.item_type)
        case msgspec.inspect.DictType():
            return doubles_of(kind.value_type)
    return 0


def test_no_double_of_a_snapshot_is_overlooked():
    """Samples can't be made of what isn't finite; all else is looked at. It is told apart from `null`, which it would be written as."""
    bad = list(spoilt(FULL))
    of_fleet, of_notices = (doubles_of(msgspec.inspect.type_info(kind)) for kind in (Fleet, Notice))
    assert len(bad) == 1 + of_fleet + of_notices, "FULL has one of everything"
    for one in bad:
        for ask in (lambda one=one: one.id, lambda one=one: Digests().take(one)):
            with pytest.raises(NotCanonical):
                ask()


def test_compressed_bytes_are_the_canonical_ones_and_are_made_in_pieces():
    asked = []
    packed = compressed(many(), lambda: asked.append(None))
    assert zlib.decompress(packed) == encode(many())
    assert len(asked) > 5
