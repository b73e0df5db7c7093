"""What a worker's process is before it is let run: a program that waits to be told what to become, and ends where nobody is left to.

Run by its path in an interpreter that sees nothing but the standard library, with two descriptors: it reads the one until the whole of its
command and environment is there, then becomes it; on the other it says that it is about to, and the error number if that fails. Should
its agent die before, the one ends early and so does this: nothing of the worker has been run.
"""

import errno
import os
import signal
import sys
from typing import BinaryIO, Final

LENGTH: Final = 8
"""Bytes that say how many follow."""
GOING: Final = b"+"


def told(pipe: BinaryIO) -> list[bytes] | None:
    """All that is to be known, in parts: how many of them are the command, the command, the environment. None: the agent has died."""
    length = pipe.read(LENGTH)
    data = pipe.read(int.from_bytes(length, "big")) if len(length) == LENGTH else b""
    return data.split(b"\0") if data and len(data) == int.from_bytes(length, "big") else None


def become(parts: list[bytes], answers: int) -> None:
    """Returns only where that fails."""
    count = int(parts[0])
    command, environment = parts[1 : count + 1], dict(part.split(b"=", 1) for part in parts[count + 1 :])
    os.set_inheritable(answers, False)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so
        signal.signal(number, signal.SIG_DFL)
    os.write(answers, GOING)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  (there is no shell on the way)
    except OSError as error:
        os.write(answers, str(error.errno).encode())
    except ValueError:  # an empty name
        os.write(answers, str(errno.EINVAL).encode())


if __name__ == "__main__":
    with open(int(sys.argv[1]), "rb") as orders:
        found = told(orders)
    if found is not None:
        become(found, int(sys.argv[2]))
