"""What the demo's figures rest on: a client notices every token that is lost, doubled, or comes from damaged memory."""

from dataclasses import replace

import pytest
from clients import Stream
from tokens import Session, weights

MODEL = weights(1 << 20)
SEEN = Stream(session="s", worker="w", wanted=8)


def lines(model: bytes = MODEL, damaged: int | None = None) -> list[bytes]:
    """Eight tokens as a worker sends them; block `damaged` of the KV cache is changed as soon as it is written."""
    session, found = Session("s", model), []
    for number in range(8):
        found.append(f"{number} {session.step()}\n".encode())
        if number == damaged:
            session.kv[number] = bytes(len(session.kv[number]))
    return found


def taken(sent: list[bytes]) -> tuple[int, int, int, int]:
    seen, mirror = replace(SEEN), Session("s", MODEL)
    for line in sent:
        seen.take(line, mirror)
    return seen.got, seen.lost, seen.duplicated, seen.corrupt


def test_a_whole_stream_has_nothing_to_complain_of() -> None:
    assert taken(lines()) == (8, 0, 0, 0)


def test_lost_tokens_are_counted_and_the_rest_is_still_checked() -> None:
    sent = lines()
    assert taken([*sent[:3], *sent[5:]]) == (8, 2, 0, 0)


def test_a_copy_that_repeats_itself_is_noticed() -> None:
    sent = lines()
    assert taken([*sent[:5], *sent[3:]]) == (8, 0, 2, 0)


@pytest.mark.parametrize(("block", "wrong"), [(0, 7), (2, 4), (3, 2), (4, 0)])
def test_damaged_memory_shows_as_soon_as_it_is_read_and_ever_after(block: int, wrong: int) -> None:
    assert taken(lines(damaged=block)) == (8, 0, 0, wrong)


def test_weights_of_another_model_make_every_token_wrong() -> None:
    assert taken(lines(weights(1 << 20, seed=8))) == (8, 0, 0, 8)
