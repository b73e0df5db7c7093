"""What the movable worker generates, and how a client checks it. Standard library alone: it runs on both sides.

A session begins with a number that the worker draws at random; each further token is a hash over all before it, and the first token is that
number. So a client can check every token that follows, and a session that was started anew somewhere else, which would draw another
number, shows as a broken chain although its tokens are as many as they should be.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Final

FIRST_WORD: Final = 1000
"""Ids below it are the tokenizer's own."""
VOCABULARY: Final = 8192
WORD: Final = " w{}"
"""The text of the token with an id, from FIRST_WORD on."""
_WORDS: Final = re.compile(r" w(\d+)")


def chain(first: int) -> Iterator[int]:
    """Token ids without end, `first` being the first. Each depends on all before it."""
    state = hashlib.blake2b(digest_size=16)
    token = first
    while True:
        yield token
        state.update(token.to_bytes(4, "big"))
        token = FIRST_WORD + int.from_bytes(state.digest(), "big") % (VOCABULARY - FIRST_WORD)


def read(text: str) -> list[int]:
    """The ids in a text that consists of words. Raises ValueError when there is anything else in it."""
    ids = [int(word) for word in _WORDS.findall(text)]
    if "".join(WORD.format(number) for number in ids) != text:
        raise ValueError(f"there is more in it than words: {text[:60]!r}")
    return ids


def whole(ids: list[int], wanted: int) -> str:
    """Empty when these are the `wanted` tokens of one session, each once and in order; else what is wrong, in words."""
    if len(ids) != wanted:
        return f"{len(ids)} tokens instead of {wanted}"
    source = chain(ids[0]) if ids else iter(())
    for number, (got, right) in enumerate(zip(ids, source, strict=False)):
        if got != right:
            return f"token {number} is {got}, and {right} should follow from those before it"
    return ""
