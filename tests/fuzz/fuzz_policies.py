"""Coverage-guided fuzzing of what reads policies: the loader for whole files, the compiler and the columns for expressions.

    .venv/bin/python tests/fuzz/fuzz_policies.py [libFuzzer's options] [folders of inputs]

`make fuzz` runs it for a minute. An input breaks it when it raises anything, hangs (`-timeout`), makes a problem without a place in the
file, or is answered otherwise by the columns than row by row. libFuzzer writes such an input to a file and ends with a status that isn't 0.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["shunter.lang", "yaml"]):
    from shunter.lang.cel import CelRules, check
    from shunter.lang.columns.rules import ColumnRules
    from shunter.lang.columns.tables import Table
    from shunter.lang.load import check_text
    from shunter.model.expression import Expression
    from shunter.model.sample import Known

ROOTS = frozenset({"worker", "node", "pool", "pools", "metrics", "now", "notice"})
SCOPES = (
    {},
    {
        "worker.kvUsage": Known(value=0.0, unit="1", at=0.0, query=""),
        "worker.images": 3,
        "worker.role": "decode",
        "worker.labels": {"tier": "gold"},
        "pools.decode.waiting": Known(value=7.5, unit="requests", at=0.0, query=""),
        "node.noticed": True,
        "now": 1_800_000_000.0,
    },
)
_ROWS, _COLUMNS, _TABLE = CelRules(), ColumnRules(), Table.of_scopes(list(SCOPES))
_ANSWER = {True: 1, False: 0}
_WHOLE = 0
"""The first byte says what the rest is: a file, or (odd) an expression."""


def one(data: bytes) -> None:
    """One input."""
    if not data:
        return
    if data[0] % 2 == _WHOLE:
        _file(data[1:])
    else:
        _expression(data[1:].decode("utf-8", "ignore"))


def _file(data: bytes) -> None:
    _, problems = check_text("fuzzed.yaml", data)
    lines = data.count(b"\n") + data.count(b"\r") + 2
    for problem in problems:
        assert problem.place is not None, problem
        assert 1 <= problem.place.line <= lines, problem
        assert problem.what
        assert problem.remedy


def _expression(text: str) -> None:
    for fault in check(text, "bool", ROOTS, frozenset({"wait"})):
        assert 0 <= fault.offset <= len(text), fault
    expression = Expression(text=text)
    by_row = [_ANSWER.get(answer, -1) if isinstance(answer := _ROWS.test(expression, scope), bool) else -1 for scope in SCOPES]
    assert _COLUMNS.test_all(expression, _TABLE).tolist() == by_row, text


def seeds(folder: Path, root: Path) -> None:
    """Write the shipped policies, and the expressions in them, as inputs to begin with."""
    for number, path in enumerate(sorted(root.glob("policies/*.yaml"))):
        data = path.read_bytes()
        (folder / f"file-{number}").write_bytes(bytes([_WHOLE]) + data)
        for line, text in enumerate(data.decode().splitlines()):
            key, _, value = text.strip().partition(": ")
            if key in ("when", "where", "prefer"):
                (folder / f"expression-{number}-{line}").write_bytes(b"\x01" + value.strip("'\"").encode())


def words(root: Path) -> list[str]:
    """Words that a mutation may put in: every key and every variable, and a few that YAML or CEL treat in their own way."""
    from shunter.lang.schema import policy_schema
    from shunter.model.vocabulary import VARIABLES

    found = {name for schema in policy_schema()["$defs"].values() for name in schema.get("properties", {})}
    found |= {
        str(v) for schema in policy_schema()["$defs"].values() for p in schema.get("properties", {}).values() for v in p.get("enum", [])
    }
    own = [
        "<<: *a",
        "&a",
        "!!python/object",
        "? ",
        "- ",
        "|-\n",
        "\u2028",
        "0x1F",
        "1_0",
        "12:30",
        "y",
        "~",
        ".nan",
        "3%",
        "1/1000h",
        "40GB/s",
        "24:00",
    ]
    return [
        *sorted(found),
        *VARIABLES,
        *own,
        "has(",
        ".matches(",
        ".all(x,",
        "int(",
        "double(",
        "timestamp(",
        "&&",
        "||",
        "? :",
        " in [",
        "-9223372036854775808",
    ]


def dictionary(path: Path, root: Path) -> None:
    """Write `words` for libFuzzer."""
    lines = ["".join(f"\\x{byte:02x}" for byte in word.encode()) for word in words(root)]
    path.write_text("".join(f'"{line}"\n' for line in lines))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
