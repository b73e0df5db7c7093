"""What a worker's processes are allowed, read from real ones, and when it can't be given back to them."""

import os
from pathlib import Path

import pytest
from shunter_agent.runtime import privileges, process
from shunter_agent.runtime.port import Privileges
from sleepers import sleeper

PTRACE, ADMIN, TIME = 1 << 19, 1 << 21, 1 << 25
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_capabilities_are_told_by_their_names() -> None:
    assert privileges.names(PTRACE | ADMIN | 1) == ["CAP_CHOWN", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"]
    assert privileges.names(1 << 40 | 1 << 41) == ["CAP_CHECKPOINT_RESTORE", "CAP_41"], "a newer kernel may have more than are known"
    assert privileges.names(0) == []


@pytest.mark.parametrize(
    ("needed", "here", "said"),
    [
        (Privileges(capabilities=PTRACE), Privileges(capabilities=PTRACE | ADMIN), []),
        (Privileges(capabilities=0), Privileges(capabilities=0), []),
        (Privileges(capabilities=0, no_new_privs=True), Privileges(capabilities=0), []),
        (Privileges(capabilities=0, no_new_privs=True), Privileges(capabilities=0, no_new_privs=True), []),
        (
            Privileges(capabilities=PTRACE | ADMIN | TIME),
            Privileges(capabilities=PTRACE),
            [
                "SH764 the worker has or may gain CAP_SYS_ADMIN, CAP_SYS_TIME, of 3 capabilities in all; "
                "this node's agent has 1, and can't give it those"
            ],
        ),
        (
            Privileges(capabilities=0x1FF),
            Privileges(capabilities=1 << 9),
            [
                "SH764 the worker has or may gain CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_KILL, "
                "CAP_SETGID, CAP_SETUID and 1 more, of 9 capabilities in all; this node's agent has 1, and can't give it those"
            ],
        ),
        (
            Privileges(capabilities=0),
            Privileges(capabilities=0, no_new_privs=True),
            [
                "SH765 the worker runs without no_new_privs, this node's agent with it (NoNewPrivs is 0 there, 1 here), "
                "and so would the restored one"
            ],
        ),
    ],
)
def test_a_node_must_allow_at_least_what_the_worker_has(needed: Privileges, here: Privileges, said: list[str]) -> None:
    found = privileges.beyond(needed, here, "node-b")
    assert [f"{problem.code} {problem.what}" for problem in found] == said
    assert all(problem.subject == "node-b" and problem.remedy for problem in found)


def test_a_tree_has_what_any_of_its_processes_has(tmp_path: Path) -> None:
    def status(pid: int, bounding: int, permitted: int, kept: int) -> None:
        (tmp_path / str(pid)).mkdir()
        sets = {"CapInh": 0, "CapPrm": permitted, "CapEff": 0, "CapBnd": bounding, "CapAmb": 0}
        lines = [f"{name}:\t{bits:016x}" for name, bits in sets.items()]
        (tmp_path / str(pid) / "status").write_text("\n".join(["Name:\tw", *lines, f"NoNewPrivs:\t{kept}", ""]))

    status(1, PTRACE, 0, 1)
    status(2, 0, ADMIN, 0)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "status").write_text("Name:\tw\n")
    assert privileges.of_tree([1, 2, 3, 4], tmp_path) == Privileges(capabilities=PTRACE | ADMIN, no_new_privs=False)
    assert privileges.of_tree([1], tmp_path) == Privileges(capabilities=PTRACE, no_new_privs=True)
    assert privileges.of_tree([3, 4], tmp_path) is None


@root
def test_real_processes_with_fewer_capabilities_than_this_one() -> None:
    here = privileges.own()
    assert here is not None
    with sleeper() as plain, sleeper("setpriv", "--bounding-set", "-sys_ptrace,-sys_time", "--no-new-privs") as fewer:
        same, less = privileges.of_tree(process.tree(plain)), privileges.of_tree(process.tree(fewer))
        both = privileges.of_tree([plain, fewer])
    assert same is not None
    assert less is not None
    assert same.capabilities == here.capabilities
    assert not same.no_new_privs
    assert privileges.names(same.capabilities & ~less.capabilities) == ["CAP_SYS_PTRACE", "CAP_SYS_TIME"]
    assert less.no_new_privs
    assert both == same
    assert privileges.beyond(less, same, "n") == []
    (first, second) = privileges.beyond(same, less, "n")
    assert first.what.startswith("the worker has or may gain CAP_SYS_PTRACE, CAP_SYS_TIME, of ")
    assert second.code == "SH765"
