"""What a worker's processes are allowed, and whether the agent of another node can allow it there.

CRIU gives back to each process what it had (capabilities(7), PR_SET_NO_NEW_PRIVS). It is a child of its agent, and can give nothing that it
doesn't have itself: a capability outside of its bounding set makes the restore fail or is lost without a word, and no_new_privs, once set,
is never taken back.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem

from shunter_agent.runtime import process as processes
from shunter_agent.runtime.port import Privileges

_SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_NAMES: Final = (
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
)
"""By number, without `CAP_`: linux/capability.h."""
_NAMED: Final = 8
"""So many capabilities are named in a message."""
_PROC: Final = Path("/proc")


def names(capabilities: int) -> list[str]:
    """The capabilities of a set of bits, as capabilities(7) calls them; one that is younger than this list by its number."""
    numbers = (n for n in range(capabilities.bit_length()) if capabilities >> n & 1)
    return [f"CAP_{_NAMES[n]}" if n < len(_NAMES) else f"CAP_{n}" for n in numbers]


def of_tree(pids: Iterable[int], proc: Path = _PROC) -> Privileges | None:
    """All that processes have or may gain, together. Processes that are gone are left out; None: all are, or nothing can be told."""
    found = [one for pid in pids if (one := _privileges(processes.status(pid, proc), _SETS)) is not None]
    if not found:
        return None
    together = 0
    for one in found:
        together |= one.capabilities
    return Privileges(capabilities=together, no_new_privs=all(one.no_new_privs for one in found))


def own(proc: Path = _PROC) -> Privileges | None:
    """What this agent can give: its bounding set, as CRIU is started anew by it. None: it can't be told."""
    return _privileges(processes.status("self", proc), ("CapBnd",))


def beyond(needed: Privileges, here: Privileges, node: str) -> list[Problem]:
    """SH764 when a worker has capabilities that this node's agent can't give, SH765 when it may gain privileges and wouldn't here."""
    found = []
    if missing := names(needed.capabilities & ~here.capabilities):
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        named, had, given = f"{', '.join(missing[:_NAMED])}{more}", needed.capabilities.bit_count(), here.capabilities.bit_count()
        what = f"the worker has or may gain {named}, of {had} capabilities in all; this node's agent has {given}, and can't give it those"
        remedy = (
            "Add these to the agent's bounding set (CapabilityBoundingSet= of its unit, or its container's securityContext), choose another"
            " node, or start the worker without them"
        )
        found.append(Problem(code="SH764", what=what, remedy=remedy, subject=node))
    if here.no_new_privs and not needed.no_new_privs:
        what = (
            "the worker runs without no_new_privs, this node's agent with it (NoNewPrivs is 0 there, 1 here), and so would the restored one"
        )
        remedy = "Run the agent without NoNewPrivileges= (in a pod: allowPrivilegeEscalation: true), or choose another node"
        found.append(Problem(code="SH765", what=what, remedy=remedy, subject=node))
    return found


def _privileges(status: dict[str, str], sets: Iterable[str]) -> Privileges | None:
    together = 0
    try:
        for name in sets:
            together |= int(status[name], 16)
    except (KeyError, ValueError):  # it is gone, or its kernel is older than the set
        return None
    return Privileges(capabilities=together, no_new_privs=status.get("NoNewPrivs", "0") != "0")
