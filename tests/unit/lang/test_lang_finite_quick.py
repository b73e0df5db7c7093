"""Most conditions have nothing that could be infinite, and aren't read for it: that must make no difference."""

import pytest
from shunter.lang.finite import _Rewriting, finite
from shunter.lang.tokens import tokens

TEXTS = [
    "pools.prefill.waiting > 30 && pools.decode.kvUsage < 0.6",
    'worker.labels["tier"] == "gold" || !(worker.role in ["decode"])',
    'worker.engine == "a-b" && has(worker.labels.x)',
    "worker.kvUsage > 1e999",
    "worker.kvUsage > 1E999",
    'worker.kvUsage < double("NaN")',
    "worker.kvUsage * 1.0 > 0.5",
    "-worker.kvTokens",
    "worker.kvUsage / 2.0 > 1.0",
    "worker.sessions % 2 == 0",
    "a > 1" + "0" * 400 + ".0",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_not_read_closely_would_have_stayed_as_it_is(text: str) -> None:
    parts = tokens(text)
    assert finite(text) == _Rewriting(text, parts).region(0, len(parts), 0, len(text), within=False).text


def test_what_must_be_wrapped_is() -> None:
    wrapped = [text for text in TEXTS if finite(text) != text]
    assert wrapped == [t for t in TEXTS if any(s in t for s in ("e999", "E999", "NaN", "* 1.0", "/ 2.0", "0" * 400))]
