"""What the fleet's workers generate, and how a client checks it: numbered tokens whose values depend on all of the worker's memory.

Token i of a session is a hash over the token before it, a page of the model's weights, and a block of the session's KV cache that an
earlier token wrote. A client recomputes it. So a token that comes twice, out of order, or out of memory that a move damaged or lost is
noticed at once.
"""

import hashlib
import random

PAGE = 4096
KV_BLOCK = 16 * 1024
"""Bytes that each token adds to its session's KV cache."""


def weights(size: int, seed: int = 7) -> bytes:
    """`size` bytes of a model's weights: incompressible, and the same in every worker of the same model."""
    source = random.Random(seed)
    step = 16 << 20
    return b"".join(source.randbytes(min(step, size - start)) for start in range(0, size, step))


class Session:
    """One conversation's generation: the state that lives on a decode worker, and that a client mirrors to check it."""

    def __init__(self, name: str, model: bytes) -> None:
        self._model = model
        self._last = hashlib.blake2b(name.encode(), digest_size=16).digest()
        self.kv: list[bytes] = []
        """One block per token so far."""

    def step(self) -> str:
        """Generate the next token and write its KV block."""
        number = len(self.kv)
        page = int.from_bytes(self._last[:6], "big") * PAGE % max(PAGE, len(self._model) - PAGE)
        mix = hashlib.blake2b(self._last, digest_size=16)
        mix.update(number.to_bytes(8, "big"))
        mix.update(self._model[page : page + PAGE])
        if number:
            mix.update(self.kv[number // 2])
        self._last = mix.digest()
        self.kv.append(hashlib.shake_128(self._last).digest(KV_BLOCK))
        return self._last.hex()[:12]
