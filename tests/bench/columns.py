"""Expressions over whole columns: 1,000 over 10,000 workers, and the same row by row. `python tests/bench/columns.py` prints the figures
as JSON objects, one a line; `benches()` gives them.
"""

import json
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from shunter.lang.cel import CelRules, compiled
from shunter.lang.columns import Column, ColumnRules, Table
from shunter.lang.columns import text as texts
from shunter.lang.columns.rules import plan
from shunter.model.expression import Expression, Undecided
from shunter.model.sample import Known, Missing
from shunter.model.vocabulary import WORKER_METRICS, Kind

WORKERS, MISSING = 10_000, 0.05
TEMPLATES = (
    'worker.role == "decode" && worker.kvUsage < {share} && worker.running < {count} && worker.waiting == 0.0',
    "worker.kvUsage > {share} || worker.waiting > {count} && worker.sessions >= {small}.0",
    'has(worker.labels.tier) && worker.labels["tier"] == "gold" && worker.kvTokens > {tokens}',
    'worker.role == "prefill" ? worker.waiting > {count} : worker.kvUsage > {share}',
    'worker.node.startsWith("node-{small}") && worker.kvUsage < {share}',
    'worker.id.matches("^worker-0{small}[0-9]+$") || worker.imageAge > {count}',
    'worker.state in ["running", "fenced"] && worker.images < {small} && worker.imageAge > {count}',
    "worker.running + worker.waiting > {count} && worker.kvUsage * 100.0 < {share} * 100.0",
    'pools.prefill.waiting > {count} && pools.decode.kvUsage < {share} && worker.role == "decode" && worker.sessions < {small}.0',
    'worker.engine == "vllm" && worker.incarnation % 7 < {small} && !(worker.labels["team"] == "team-{small}")',
)
"""Ten conditions as policies have them: comparisons, texts, labels, a pattern, whole and mixed numbers, pools' figures."""


def expressions(count: int) -> list[Expression]:
    """No two alike: each has constants of its own."""
    chance = random.Random(8)
    return [
        Expression(
            text=TEMPLATES[n % len(TEMPLATES)].format(
                share=round(0.05 + 0.9 * n / count, 5), count=10 + n, small=chance.randint(1, 9), tokens=1000 * (n + 1)
            )
        )
        for n in range(count)
    ]


def scopes() -> list[dict[str, Any]]:
    """10,000 workers as the engine sees them, 5 % of their samples missing; the pools' figures are the same for all."""
    chance = random.Random(9)
    pools: dict[str, Any] = {"pools.prefill.waiting": _sample(400.0), "pools.decode.kvUsage": _sample(0.55)}
    return [_scope(n, chance) | pools for n in range(WORKERS)]


def _scope(n: int, chance: random.Random) -> dict[str, Any]:
    scope: dict[str, Any] = {
        "worker.id": f"worker-{n:05d}",
        "worker.role": "prefill" if n % 5 < 2 else "decode",
        "worker.node": f"node-{n // 8}",
        "worker.engine": ("vllm", "sglang", "trtllm")[n % 3],
        "worker.state": chance.choice(("running", "running", "running", "fenced", "parked")),
        "worker.incarnation": n % 11,
        "worker.images": n % 4,
        "worker.labels": {"tier": ("gold", "silver")[n % 2], "team": f"team-{n % 12}"} if n % 10 else {"team": "team-0"},
    }
    figures = {m.name: chance.uniform(0, 1 if m.name == "kvUsage" else 1_000_000 if m.name == "kvTokens" else 200) for m in WORKER_METRICS}
    for name, value in (figures | {"imageAge": chance.uniform(0, 2000)}).items():
        whole = name in ("running", "waiting", "sessions", "kvTokens")
        missing = chance.random() < MISSING
        scope[f"worker.{name}"] = Missing(reason="NaN") if missing else _sample(float(round(value)) if whole else value)
    return scope


def _sample(value: float) -> Known:
    return Known(value=value, unit="1", at=0.0, query="q")


def columns(subjects: Sequence[dict[str, Any]]) -> dict[str, Column]:
    """The same as columns; the pools' figures are single rows."""
    kinds = {"worker.incarnation": Kind.INT, "worker.images": Kind.INT, "worker.labels": Kind.LABELS}
    kinds |= {f"worker.{name}": Kind.STRING for name in ("id", "role", "node", "engine", "state")}
    made = {}
    for name in subjects[0]:
        of = subjects[:1] if name.startswith("pools.") else subjects
        made[name] = Column.of(kinds.get(name, Kind.DOUBLE), [scope[name] for scope in of])
    return made


def best(of: int, work: Callable[[], object]) -> float:
    """The shortest of several runs in seconds."""
    taken = []
    for _ in range(of):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def benches() -> list[dict[str, Any]]:
    """All figures, as objects with `name`, `value`, `unit`, `target`, `met` and `how`."""
    rules, asked, subjects = ColumnRules(), expressions(1000), scopes()
    made = columns(subjects)
    differing = _differing(asked[:950:19], subjects, made)
    fifty, sample = (
        asked[:950:19],
        f"5 % of the samples missing, answers compared with row by row on 50 of the expressions: {differing} differ",
    )

    def evaluate(of: Sequence[Expression], table: Table | None = None) -> None:
        table = table or Table.of(made, WORKERS)
        for expression in of:
            rules.test_all(expression, table)

    def first() -> None:
        texts._answers.clear()
        evaluate(asked)

    evaluate(asked)
    whole, cold = best(5, lambda: evaluate(asked)), best(3, first)
    kept = Table.of(made, WORKERS)
    evaluate(asked, kept)
    warm, half_million = best(5, lambda: evaluate(asked, kept)), best(5, lambda: evaluate(fifty))
    by_row, by_python = _row_by_row(fifty, subjects), _cel_python(fifty, subjects)
    size = f"1,000 expressions over {WORKERS} workers"
    return [
        _figure("evaluate_10m", whole, "s", 0.1, f"{size}, from columns, into a new table as each tick does; {sample}; best of 5"),
        _figure(
            "evaluate_10m_first", cold, "s", None, f"{size}, and no pattern matched before: CEL is asked for 10,000 ids by each of nine"
        ),
        _figure("evaluate_10m_again", warm, "s", None, f"{size}, on a table that has been asked all of it before; best of 5"),
        _figure("evaluate_500k", half_million, "s", None, f"50 expressions over {WORKERS} workers, into a new table; best of 5"),
        _figure(
            "columns_10k", best(3, lambda: columns(subjects)), "s", None, f"{len(made)} columns from {WORKERS} scopes of samples; best of 3"
        ),
        _figure("compile_1000", _compile(asked), "s", None, "1,000 expressions: parse, check, read the tree, make the functions; once"),
        _figure("row_by_row_over_columns", by_row / half_million, "times", None, "CelRules on 50 expressions x 200 workers, times 50"),
        _figure("cel_python_over_columns", by_python / half_million, "times", None, "cel-python, 50 expressions x 10 workers, times 1,000"),
    ]


def _figure(name: str, value: float, unit: str, target: float | None, how: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 5),
        "unit": unit,
        "target": target,
        "met": None if target is None else value <= target,
        "how": how,
    }


def _differing(asked: Sequence[Expression], subjects: Sequence[dict[str, Any]], made: dict[str, Column]) -> int:
    """Rows of the first 500 workers in which the two ways differ."""
    table, rules = Table.of(made, WORKERS), CelRules()
    count = 0
    for expression in asked:
        alone = [rules.test(expression, scope) for scope in subjects[:500]]
        expected = np.array([-1 if isinstance(answer, Undecided) else int(answer) for answer in alone], dtype=np.int8)
        count += int((ColumnRules().test_all(expression, table)[:500] != expected).sum())
    return count


def _compile(asked: Sequence[Expression]) -> float:
    compiled.cache_clear()
    plan.cache_clear()
    return best(1, lambda: [plan(expression.text) for expression in asked])


def _row_by_row(asked: Sequence[Expression], subjects: Sequence[dict[str, Any]]) -> float:
    """Seconds for all workers, from every 50th worker."""
    rules, few = CelRules(), subjects[::50]
    return 50 * best(3, lambda: [rules.test(expression, scope) for expression in asked for scope in few])


def _cel_python(asked: Sequence[Expression], subjects: Sequence[dict[str, Any]]) -> float:
    """Seconds for all workers, from every 1,000th worker; what is compiled and converted before isn't counted."""
    warnings.simplefilter("ignore")
    import celpy

    environment = celpy.Environment()
    programs = [environment.program(environment.compile(expression.text)) for expression in asked]
    few = [_nested(celpy, scope) for scope in subjects[::1000]]

    def work() -> None:
        for program in programs:
            for scope in few:
                try:
                    program.evaluate(scope)
                except celpy.CELEvalError:
                    continue

    return 1000 * best(1, work)


def _nested(celpy: Any, scope: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in scope.items():
        *path, last = name.split(".")
        below = nested
        for part in path:
            below = below.setdefault(part, {})
        if not isinstance(value, Missing):
            below[last] = value.value if isinstance(value, Known) else value
    return {name: celpy.json_to_cel(value) for name, value in nested.items()}


def main() -> int:
    for figure in benches():
        print(json.dumps(figure), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
