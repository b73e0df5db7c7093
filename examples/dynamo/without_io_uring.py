"""Run a command with io_uring off, for it and all its children.

    without_io_uring.py COMMAND [ARGUMENT...]

CRIU can't dump an io_uring, and Dynamo's runtime and libuv open one where the kernel has it. A seccomp filter answers ENOSYS to
`io_uring_setup`, as a kernel without it does, so that they use epoll instead. This concerns that command alone, where the sysctl
kernel.io_uring_disabled concerns the machine. CRIU takes the filter along.

Linux, the standard library alone. The process becomes the command: its pid stays.
"""

import ctypes
import errno
import os
import sys
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
_IO_URING_SETUP: Final = 425
"""The same on every architecture, as all system calls since 2019 are: so the filter needn't ask which one this is."""
_X32: Final = 0x40000000
_LOAD_NUMBER: Final = (0x20, 0, 0, 0)
"""BPF_LD | BPF_W | BPF_ABS at offset 0 of struct seccomp_data: the number of the system call."""
_JUMP_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_ERROR: Final = 0x00050000


class _Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_Filter)))


def refuse_io_uring() -> None:
    """Install the filter in this process, for good. Raises OSError when the kernel has no seccomp filters."""
    rules = (
        _LOAD_NUMBER,
        (_JUMP_EQUAL, 2, 0, _IO_URING_SETUP),
        (_JUMP_EQUAL, 1, 0, _IO_URING_SETUP | _X32),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    )
    filters = (_Filter * len(rules))(*(_Filter(*rule) for rule in rules))
    program = _Program(len(rules), filters)
    libc = ctypes.CDLL(None, use_errno=True)
    # without privileges a filter may only be set by who gives up setuid programs
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*call) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no seccomp filter can be set: {os.strerror(number)}")


def main() -> None:
    """Set the filter and become the command."""
    if len(sys.argv) < 2:
        sys.exit("usage: without_io_uring.py COMMAND [ARGUMENT...]")
    refuse_io_uring()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  (no shell is wanted)


if __name__ == "__main__":
    main()
