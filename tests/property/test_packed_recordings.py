"""What a recording is packed into is the very same recording again, whatever its samples are."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shunter.app.packed import Packed, packed, unpacked
from shunter.app.recording import Past, Recording
from shunter.app.sightings import Sighting
from shunter.model.canon import decode, encode
from shunter.model.ids import NodeId
from shunter.model.sample import Known, Missing, Sample, Stale
from shunter.model.snapshot import Fleet, Node, Samples

NOW = 1_800_000_000.0
NAMES = st.sampled_from(("", "a", "b", "c", 'kv{pod="x"}', "é"))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SAMPLES: st.SearchStrategy[Sample] = st.one_of(
    st.builds(Known, at=NUMBERS, value=NUMBERS, unit=NAMES, query=NAMES, labels=st.dictionaries(NAMES, NAMES, max_size=2)),
    st.builds(Missing, reason=NAMES, query=NAMES),
    st.builds(Stale, value=NUMBERS, age=NUMBERS, max_age=NUMBERS, query=NAMES),
)
FIELDS = st.dictionaries(NAMES, SAMPLES, max_size=3)
ALL = st.builds(
    Samples,
    workers=st.dictionaries(NAMES, FIELDS, max_size=3),
    policies=st.dictionaries(NAMES, st.dictionaries(NAMES, FIELDS, max_size=2), max_size=2),
    pools=st.dictionaries(NAMES, FIELDS, max_size=2),
)
FLEET = Fleet(nodes=(Node(id=NodeId("n"), slots=()),), workers=())


def recording(own: Samples, past: list[Samples]) -> Recording:
    history = tuple(Past(at=NOW - 10 + n, samples=one, seen=0 if n % 2 else None) for n, one in enumerate(past))
    return Recording(at=NOW, fleet=FLEET, samples=own, history=history, sightings=(Sighting(fleet=FLEET),))


@settings(max_examples=200, deadline=None)
@given(own=ALL, past=st.lists(ALL, max_size=3))
def test_it_is_the_same_again(own: Samples, past: list[Samples]) -> None:
    made = recording(own, past)
    again = unpacked(packed(made))
    assert again == made
    assert encode(again) == encode(made), "to the last bit, or its snapshots would be others"


def test_equal_ones_are_packed_alike_whatever_order_they_have_in_memory() -> None:
    def one(backwards: bool) -> Recording:
        known = {name: Known(at=1.0, value=2.0, unit="", query=name, labels={"x": name, "y": "z"}) for name in "abc"}
        names = sorted(known, reverse=backwards)
        fields = {name: known[name] for name in names}
        return recording(Samples(workers={name: fields for name in names}, pools={"p": fields}), [])

    assert packed(one(backwards=False)) == packed(one(backwards=True))


def test_what_every_sample_says_alike_is_written_once() -> None:
    """An hour of one worker isn't sixty times its labels."""
    labels = {"pod": "llama-70b-decode-" + "x" * 200}
    past = [Samples(workers={"w": {"kvUsage": Known(at=NOW - n, value=0.5, unit="1", query="q" * 200, labels=labels)}}) for n in range(60)]
    made = recording(Samples(), past)
    assert packed(made).count(b"x" * 200) == 1
    assert len(packed(made)) < len(encode(made)) / 3


def _far(found: Packed) -> Packed:
    return msgspec.structs.replace(found, series=())


def _textless(found: Packed) -> Packed:
    return msgspec.structs.replace(found, texts=())


def _short(found: Packed) -> Packed:
    return msgspec.structs.replace(found, samples=found.samples[1:])


def _unseen(found: Packed) -> Packed:
    return msgspec.structs.replace(found, bare=msgspec.structs.replace(found.bare, sightings=()))


@pytest.mark.parametrize("change", [_far, _textless, _short, _unseen])
def test_what_doesnt_fit_together_is_refused(change: Callable[[Packed], Packed]) -> None:
    fields: dict[str, Sample] = {"k": Known(at=1.0, value=2.0, unit="", query="q"), "m": Missing(reason="away")}
    found = decode(packed(recording(Samples(workers={"w": fields}), [Samples(), Samples()])), Packed)
    with pytest.raises(ValueError, match=r"series that isn.t there|instants|sightings"):
        unpacked(encode(change(found)))


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff"])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, msgspec.DecodeError)):
        unpacked(data)


def test_no_place_counts_from_the_end() -> None:
    made = packed(recording(Samples(workers={"w": {"k": Known(at=1.0, value=2.0, unit="", query="q")}}), []))
    assert b'["k",1.0,2.0,0]' in made
    with pytest.raises((ValueError, msgspec.DecodeError)):
        unpacked(made.replace(b'["k",1.0,2.0,0]', b'["k",1.0,2.0,-1]'))
