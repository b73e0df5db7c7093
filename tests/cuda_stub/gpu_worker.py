"""A worker with GPU memory, for the stub and for a real GPU alike: `gpu_worker.py HOST PORT READY MEGABYTES [CHILDREN]`.

It sends a counter to each client, a line at a time. The counter is in GPU memory, and so is a pattern of which a part is looked at for each
line: whoever loses or mixes up GPU memory ends the stream. Each child has its own of both, and is asked for each line too.
"""

import ctypes
import select
import socket
import subprocess
import sys
import threading
import time

BLOCK = 1 << 16


class Cuda:
    """The few calls that it needs, as the driver's library gives them out."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 2000, ctypes.c_uint(0))
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", 7000, ctypes.byref(context), ctypes.c_int(0))
        self._context = context
        self.enter()

    def __call__(self, name: str, version: int, *arguments: object) -> None:
        at, status = ctypes.c_void_p(), ctypes.c_int()
        self._library.cuGetProcAddress_v2(name.encode(), ctypes.byref(at), version, ctypes.c_uint64(0), ctypes.byref(status))
        result = ctypes.CFUNCTYPE(ctypes.c_int)(at.value)(*arguments)
        if result:
            raise SystemExit(f"{name}: {result}")

    def enter(self) -> None:
        """Contexts are a thread's own."""
        self("cuCtxSetCurrent", 4000, self._context)


class Memory:
    def __init__(self, cuda: Cuda, blocks: int, seed: int) -> None:
        self._cuda, self._blocks, self._seed = cuda, blocks, seed
        self._at, self._counter = ctypes.c_uint64(), ctypes.c_uint64()
        cuda("cuMemAlloc", 3020, ctypes.byref(self._counter), ctypes.c_size_t(8))
        cuda("cuMemAlloc", 3020, ctypes.byref(self._at), ctypes.c_size_t(blocks * BLOCK))
        self._put(self._counter.value, bytes(8))
        for block in range(blocks):
            self._put(self._at.value + block * BLOCK, self._pattern(block))

    def _pattern(self, block: int) -> bytes:
        return ((block + 1) * 2654435761 + self._seed).to_bytes(8, "little") * (BLOCK // 8)

    def _put(self, address: int, data: bytes) -> None:
        self._cuda("cuMemcpyHtoD", 3020, ctypes.c_uint64(address), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))

    def _get(self, address: int, size: int) -> bytes:
        into = ctypes.create_string_buffer(size)
        self._cuda("cuMemcpyDtoH", 3020, into, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return into.raw

    def whole(self) -> bool:
        """All of it is what it was."""
        return all(self._get(self._at.value + block * BLOCK, BLOCK) == self._pattern(block) for block in range(self._blocks))

    def next(self) -> int:
        """Count on, and look at one more block."""
        number = int.from_bytes(self._get(self._counter.value, 8), "little")
        block = number % self._blocks
        if self._get(self._at.value + block * BLOCK, BLOCK) != self._pattern(block):
            raise SystemExit(f"block {block} is not what it was")
        self._put(self._counter.value, (number + 1).to_bytes(8, "little"))
        return number


def child(seed: int) -> None:
    memory = Memory(Cuda(), 16, seed)
    for _line in iter(sys.stdin.readline, ""):
        print(memory.next(), flush=True)


def main(host: str, port: int, ready: str, megabytes: int, children: int) -> None:
    cuda = Cuda()
    memory = Memory(cuda, (megabytes << 20) // BLOCK, 7)
    command = [sys.executable, __file__, "child"]
    others = [subprocess.Popen([*command, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for seed in range(children)]
    turn = threading.Lock()

    def serve(link: socket.socket) -> None:
        cuda.enter()
        if select.select([link], [], [], 0.05)[0]:  # whoever asks wants all of it looked at, and no stream
            link.sendall(b"whole\n" if memory.whole() else b"damaged\n")
            link.close()
            return
        while True:
            with turn:
                number = memory.next()
                for other in others:
                    assert other.stdin is not None
                    assert other.stdout is not None
                    other.stdin.write("\n")
                    other.stdin.flush()
                    if int(other.stdout.readline()) != number:
                        raise SystemExit("a child counts otherwise")
            link.sendall(b"%d\n" % number)
            time.sleep(0.002)

    listener = socket.create_server((host, port))
    open(ready, "w").close()
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "child":
        child(int(sys.argv[2]))
    else:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]) if len(sys.argv) > 5 else 0)
