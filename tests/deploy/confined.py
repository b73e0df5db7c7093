"""Run a command as a unit's settings confine it: its system calls, address families, namespaces and executable memory, by seccomp.

    python confined.py UNIT-SETTINGS-AS-JSON COMMAND...

What systemd does with mounts (ProtectSystem= and its like) isn't done here.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, ENOSYS = 1, 38
EQUAL, MASKED = 4, 7
WRITE, EXECUTE = 2, 4
NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""


class Compared(ctypes.Structure):
    """scmp_arg_cmp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class Filter:
    """A filter that refuses what isn't allowed with EPERM."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libseccomp.so.2")
        self._lib.seccomp_init.restype = ctypes.c_void_p
        self._lib.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Compared),
        ]  # fmt: skip
        self._lib.seccomp_load.argtypes = [ctypes.c_void_p]
        self._context = self._lib.seccomp_init(ERRNO | EPERM)

    def rule(self, name: str, *conditions: tuple[int, int, int, int], action: int = ALLOW) -> None:
        number = self._lib.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return  # another architecture's
        compared = (Compared * max(1, len(conditions)))(*[Compared(*c) for c in conditions])
        failed = self._lib.seccomp_rule_add_array(self._context, action, number, len(conditions), compared)
        if failed:
            raise OSError(-failed, f"{name}: the rule isn't taken")

    def load(self) -> None:
        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # no new privileges
        if failed := self._lib.seccomp_load(self._context):
            raise OSError(-failed, "the filter isn't taken")


def calls(group: str) -> Iterator[str]:
    """The system calls of one of systemd's groups, by systemd itself."""
    said = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True).stdout
    for line in said.splitlines()[1:]:
        word = line.strip()
        if word.startswith("@"):
            yield from calls(word)
        elif word and not word.startswith("#"):
            yield word


def confine(settings: dict[str, str]) -> None:
    own = Filter()
    allowed = {call for group in settings["SystemCallFilter"].split() for call in calls(group)}
    special = {"socket", "mmap", "mprotect", "pkey_mprotect", "clone", "clone3", "unshare", "setns"}
    for name in sorted(allowed - special):
        own.rule(name)
    for family in settings["RestrictAddressFamilies"].split():
        own.rule("socket", (0, EQUAL, int(getattr(socket, family)), 0))
    assert settings["MemoryDenyWriteExecute"] == settings["RestrictNamespaces"] == "yes"
    for both in (0, WRITE, EXECUTE):
        own.rule("mmap", (2, MASKED, WRITE | EXECUTE, both))
    for name in ("mprotect", "pkey_mprotect"):
        own.rule(name, (2, MASKED, EXECUTE, 0))
    own.rule("clone", (0, MASKED, NAMESPACES, 0))
    own.rule("clone3", action=ERRNO | ENOSYS)  # its flags can't be seen
    own.load()


def main(words: list[Any]) -> None:
    settings = json.loads(words[0])
    confine(settings)
    os.execvp(words[1], words[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
