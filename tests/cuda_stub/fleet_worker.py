"""The local fleet's worker, with its weights and its KV cache in GPU memory: whoever loses any of it makes wrong tokens."""

import ctypes

import tokens
import worker
from gpu_worker import Cuda

CUDA = Cuda()


def put(data: bytes) -> int:
    at = ctypes.c_uint64()
    CUDA("cuMemAlloc", 3020, ctypes.byref(at), ctypes.c_size_t(len(data)))
    CUDA("cuMemcpyHtoD", 3020, at, ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
    return at.value


def get(at: int, size: int) -> bytes:
    into = ctypes.create_string_buffer(size)
    CUDA("cuMemcpyDtoH", 3020, into, ctypes.c_uint64(at), ctypes.c_size_t(size))
    return into.raw


class Weights:
    def __init__(self, data: bytes) -> None:
        self._at, self._size = put(data), len(data)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _step = part.indices(self._size)
        return get(self._at + start, stop - start)


class Blocks:
    def __init__(self) -> None:
        self._at: list[int] = []

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, index: int) -> bytes:
        return get(self._at[index], tokens.KV_BLOCK)

    def append(self, block: bytes) -> None:
        self._at.append(put(block))


class Session(tokens.Session):
    def __init__(self, name: str, model: bytes) -> None:
        super().__init__(name, model)
        self.kv = Blocks()  # type: ignore[assignment]


worker.weights = lambda size: Weights(tokens.weights(size))
worker.Session = Session
worker.main()
