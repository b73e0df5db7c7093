"""CEL behind two doors: `check` at load, with a fault's offset in the expression, and `CelRules` at evaluation, three-valued.

Variables are declared under their qualified names with their types, so a misspelt field is an error and not an absent value. A variable
without a value stays unbound: CEL's own `&&`, `||` and `?:` then give an answer exactly when the rest decides it.

Three traps of the library are closed here. An error comes back as a value, and a truthy one: every result's type is looked at. `has(x)` on
a qualified scalar compiles to the scalar itself: it is refused. Whole numbers don't compare with doubles: the comparisons are declared anew
with the mixed overloads, which its runtime has.
"""

import math
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, Literal, TypeAlias

import msgspec
from cel_expr_python import cel  # type: ignore[import-untyped]

from shunter.lang import finite as finiteness
from shunter.lang import tokens as lexer
from shunter.lang.diagnostics import one_of, suggest
from shunter.lang.divisors import SAID, guarded
from shunter.lang.tree import Other, Tree, read
from shunter.lang.wire import referenced
from shunter.model.expression import Expression, Scalar, Scope, Undecided, Value
from shunter.model.sample import Known, Missing, Stale, say
from shunter.model.vocabulary import VARIABLES, Kind

_MOST_SOUND: Final = 4096
_OUTSIDE: Final = "Index error"
MAX_EXPRESSION: Final = 4096
"""Characters and UTF-8 bytes of one expression."""

Result: TypeAlias = Literal["bool", "number"]

_TYPES: Final = {
    Kind.STRING: cel.Type.STRING,
    Kind.INT: cel.Type.INT,
    Kind.DOUBLE: cel.Type.DOUBLE,
    Kind.BOOL: cel.Type.BOOL,
    Kind.LABELS: cel.Type.Map(cel.Type.STRING, cel.Type.STRING),
}
_ORDERED: Final = ("int", "double", "string", "timestamp", "duration")
_MIXED: Final = (("int", "double"), ("double", "int"))
# fmt: off
_FUNCTIONS: Final = frozenset((
    "all", "bool", "bytes", "contains", "double", "duration", "dyn", "endsWith", "exists", "exists_one", "filter", "getDate",
    "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getFullYear", "getHours", "getMilliseconds", "getMinutes", "getMonth",
    "getSeconds", "has", "int", "map", "matches", "size", "startsWith", "string", "timestamp", "type", "uint",
))
# fmt: on
_ERROR: Final = re.compile(r"^(?:[A-Z_]+: )?ERROR: <input>:(\d+):(\d+): (.*?)(?: \[[A-Z_]+\])?$", re.MULTILINE)
_UNDECLARED: Final = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD: Final = re.compile(r"found no matching overload for '([^']*)' applied to '\((.*)\)'")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with an expression, at an offset in characters of its text."""

    code: str
    offset: int
    what: str
    remedy: str


class Program(msgspec.Struct, frozen=True):
    """A compiled expression and the variables that it reads, sorted by name."""

    code: cel.Expression
    inputs: tuple[tuple[str, Kind], ...]


def _overloads(operator: str, name: str, pairs: tuple[tuple[str, str], ...], *, same: bool) -> list[str]:
    lines = [f'- name: "{operator}"', "  overloads:"]
    if same:
        parameter = "{type_name: A, is_type_param: true}"
        lines += [f"  - {{id: {name}, args: [{parameter}, {parameter}], return: {{type_name: bool}}}}"]
    lines += [f"  - {{id: {name}_{a}_{b}, args: [{{type_name: {a}}}, {{type_name: {b}}}], return: {{type_name: bool}}}}" for a, b in pairs]
    return lines


@cache
def _configuration() -> cel.EnvConfig:
    orders = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
    equalities = {"_==_": "equals", "_!=_": "not_equals"}
    lines = ["stdlib:", "  exclude_functions:", *(f'  - name: "{operator}"' for operator in (*orders, *equalities)), "functions:"]
    for operator, name in orders.items():
        lines += _overloads(operator, name, (*((kind, kind) for kind in _ORDERED), *_MIXED), same=False)
    for operator, name in equalities.items():
        lines += _overloads(operator, name, _MIXED, same=True)
    return cel.NewEnvConfigFromYaml("\n".join(lines))


@lru_cache(maxsize=256)
def _environment(roots: frozenset[str] | None, metrics: frozenset[str]) -> cel.Env:
    """The variables below `roots` (None: all) and the declared metrics."""
    variables = {name: _TYPES[v.kind] for name, v in VARIABLES.items() if roots is None or name.partition(".")[0] in roots}
    variables |= {f"metrics.{name}": cel.Type.DOUBLE for name in metrics}
    return cel.NewEnv(config=_configuration(), variables=variables)


@lru_cache(maxsize=4096)
def compiled(text: str) -> Program:
    """Compile with every variable in reach; the metrics are those that it names. Raises RuntimeError (CEL's only exception).

    Not what the text says letter by letter: see `divisors` and `finite`.
    """
    named = (chain.name.split(".") for chain in lexer.chains(lexer.tokens(text)))
    metrics = frozenset(parts[1] for parts in named if parts[0] == "metrics" and len(parts) > 1)
    code = _environment(None, metrics).compile(_guarded(text))
    kinds = {name: v.kind for name, v in VARIABLES.items()} | {f"metrics.{name}": Kind.DOUBLE for name in metrics}
    return Program(code, tuple((name, kinds[name]) for name in sorted(referenced(code.serialize())) if name in kinds))


def _guarded(text: str) -> str:
    return finiteness.finite(guarded(text))


def _literally(text: str) -> cel.Expression:
    """Compile what the text says, for its tree. Raises RuntimeError."""
    metrics = frozenset(name.split(".")[1] for name in named(text) if name.startswith("metrics."))
    return _environment(None, metrics).compile(text)


@lru_cache(maxsize=4096)
def check(text: str, result: Result, roots: frozenset[str], metrics: frozenset[str]) -> tuple[Fault, ...]:
    """Everything that is wrong with an expression that must give `result` from the variables below `roots` and the declared metrics."""
    if not text.strip():
        return (Fault(code="SH136", offset=0, what="the expression is empty", remedy="Write one, or remove the key"),)
    if len(text.encode("utf-8", "replace")) > MAX_EXPRESSION:
        what = f"the expression is longer than {MAX_EXPRESSION // 1024} KiB"
        return (Fault(code="SH136", offset=0, what=what, remedy="Split it: no decision needs that much"),)
    presences = lexer.tests_of_presence(lexer.tokens(text)) if "has" in text else ()
    faults = [_presence(offset, name) for offset, name in presences if _is_declared(name, metrics)]
    try:
        code = _environment(roots, metrics).compile(text)
    except RuntimeError as error:
        names = {name for name in VARIABLES if name.partition(".")[0] in roots} | {f"metrics.{name}" for name in metrics}
        return (*faults, *_explain(text, str(error), lexer.chains(lexer.tokens(text)), names))
    if not faults:
        faults += _wrong_result(code.return_type(), result) or _too_deep(text)
        _sound(text, code)
    return tuple(faults)


def _too_deep(text: str) -> list[Fault]:
    """What an expression is compiled to is nested more deeply than the expression."""
    try:
        if _guarded(text) != text:
            compiled(text)
    except RuntimeError:
        what = "the expression is nested too deeply for its arithmetic to be watched"
        return [Fault(code="SH136", offset=0, what=what, remedy="Use fewer parentheses")]
    return []


def _is_declared(name: str, metrics: frozenset[str]) -> bool:
    return name in VARIABLES or (name.startswith("metrics.") and name.removeprefix("metrics.") in metrics)


def _presence(offset: int, name: str) -> Fault:
    labels = name in VARIABLES and VARIABLES[name].kind is Kind.LABELS
    remedy = (
        f"Ask for a key of it: has({name}.key)" if labels else "Remove it: where a value is unknown, the expression has no answer by itself"
    )
    return Fault(
        code="SH135", offset=offset, what=f"has({name}) means nothing: {name} always exists, even when its value is unknown", remedy=remedy
    )


def _wrong_result(kind: cel.Type, result: Result) -> list[Fault]:
    allowed = ("BOOL",) if result == "bool" else ("INT", "DOUBLE")
    if kind.name() in allowed:
        return []
    wanted = "true or false" if result == "bool" else "a number"
    remedy = "Compare it with something" if result == "bool" else "For a condition, write: condition ? 1.0 : 0.0"
    if kind.name() == "DYN":
        remedy = "Say the type: bool(...), int(...) or double(...)"
    return [Fault(code="SH134", offset=0, what=f"the expression gives {kind.name().lower()}, where {wanted} is needed", remedy=remedy)]


def _explain(text: str, message: str, found: tuple[lexer.Chain, ...], names: set[str]) -> tuple[Fault, ...]:
    """CEL's own message, made positions and words."""
    if "recursion limit" in message:
        return (Fault(code="SH136", offset=0, what="the expression is nested too deeply", remedy="Use fewer parentheses"),)
    starts = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text))]
    faults: dict[int, Fault] = {}
    for line, column, what in _ERROR.findall(message):
        row = min(int(line), len(starts)) - 1
        fault = _fault(text, min(starts[row] + int(column) - 1, len(text)), what, found, names)
        faults.setdefault(fault.offset, fault)
    if not faults:
        faults[0] = Fault(code="SH130", offset=0, what=f"the expression can't be read: {message[:200]}", remedy="Write it more simply")
    return tuple(faults[offset] for offset in sorted(faults))


def _fault(text: str, offset: int, what: str, found: tuple[lexer.Chain, ...], names: set[str]) -> Fault:
    if missing := _UNDECLARED.match(what):
        called = "." not in missing[1] and text.startswith("(", offset)  # CEL puts an unknown function at its parenthesis
        return _no_function(text, offset, missing[1]) if called else _undeclared(offset, missing[1], found, names)
    if overload := _OVERLOAD.match(what):
        return _no_overload(offset, overload[1], overload[2])
    if what.startswith("Syntax error: "):
        reason = (
            re.sub(r" expecting \{.*", "", what.removeprefix("Syntax error: "))
            .replace("mismatched input '<EOF>'", "it ends too soon")
            .replace("<EOF>", "its end")
        )
        remedy = "Check the operators, quotes and parentheses around it"
        return Fault(code="SH130", offset=offset, what=f"the expression can't be read here: {reason}", remedy=remedy)
    if "operand of a select operation" in what:
        return Fault(code="SH131", offset=offset, what=what, remedy="Only labels have keys below them: the variable ends before this dot")
    return Fault(code="SH130", offset=offset, what=what, remedy="Correct the expression here")


def _no_function(text: str, offset: int, name: str) -> Fault:
    remedy = suggest(name, _FUNCTIONS, "See the list of functions in the policy reference")
    return Fault(code="SH137", offset=max(text.rfind(name, 0, offset), 0), what=f"{name} is not a function", remedy=remedy)


def _undeclared(offset: int, name: str, found: tuple[lexer.Chain, ...], names: set[str]) -> Fault:
    chain = next((c for c in found if c.start <= offset <= c.end), None)
    name = name.removeprefix(".")
    start = chain.start if chain else offset
    elsewhere = next((n for n in (name, chain.name if chain else name) if n in VARIABLES), None)
    if elsewhere:
        usable = one_of(sorted({n.partition(".")[0] for n in names}))
        return Fault(code="SH132", offset=start, what=f"{elsewhere} can't be used in this field", remedy=f"It sees {usable} only")
    if name.startswith("metrics."):
        remedy = suggest(name, (n for n in names if n.startswith("metrics.")), f"Declare it under spec.metrics as {name.split('.')[1]}")
    elif any(n.startswith(f"{name}.") for n in VARIABLES):
        remedy = f"Name one of its fields, such as {min((n for n in VARIABLES if n.startswith(f'{name}.')), key=len)}"
    elif "." not in name and name not in _FUNCTIONS:
        remedy = f'Variables are written with a dot, such as worker.role; text goes in quotes: "{name}"'
    else:
        remedy = suggest(name, names, _fields(name, names))
    return Fault(code="SH131", offset=start, what=f"{name} is not a variable", remedy=remedy)


def _fields(name: str, names: set[str]) -> str:
    root = name.rpartition(".")[0]
    below = sorted(n.removeprefix(f"{root}.") for n in names if n.startswith(f"{root}."))
    if root and below:
        return f"{root} has {', '.join(below)}"
    top = sorted({n.partition(".")[0] for n in names})
    return f"Variables here begin with {one_of(top)}"


def _no_overload(offset: int, operator: str, operands: str) -> Fault:
    sign = operator.replace("_?_:_", "? :").replace("_[_]", "[]").strip("_@")
    kinds = {part.strip() for part in operands.split(",")}
    if sign == "? :":
        remedy = "It takes a condition, and two values of one type: write 1.0 and 0.0, not 1 and 0.0"
    elif {"int", "double"} <= kinds:
        remedy = "Write whole numbers with a point, as in 1.0, or convert with double(...)"
    elif "string" in kinds and kinds & {"int", "double"}:
        remedy = "Text and numbers don't mix: quote the number, or compare another variable"
    else:
        remedy = "Bring both sides to one type"
    return Fault(code="SH133", offset=offset, what=f"{sign} doesn't take ({operands})", remedy=remedy)


class CelRules:
    """`model.expression.Rules` by CEL. Safe to share; compiled expressions are kept. An expression that doesn't compile is Undecided."""

    def test(self, expression: Expression, scope: Scope) -> bool | Undecided:
        """The truth of a boolean expression; Undecided when it depends on an unknown, fails, or isn't boolean."""
        answer = _evaluate(expression.text, scope)
        if isinstance(answer, bool | Undecided):
            return answer
        return Undecided(error=f"gives {type(answer).__name__}, not true or false")

    def measure(self, expression: Expression, scope: Scope) -> float | Undecided:
        """The value of a number expression; Undecided also for results that aren't finite."""
        answer = _evaluate(expression.text, scope)
        if isinstance(answer, Undecided):
            return answer
        if isinstance(answer, bool) or not isinstance(answer, int | float):
            return Undecided(error=f"gives {type(answer).__name__}, not a number")
        number = float(answer)
        return number if math.isfinite(number) else Undecided(error=f"gives {number}, which is not a finite number")

    def inputs(self, expression: Expression) -> tuple[str, ...]:
        """Qualified names of the variables that it reads, sorted; none for an expression that doesn't compile."""
        try:
            return tuple(name for name, _ in compiled(expression.text).inputs)
        except RuntimeError:
            return ()


def _evaluate(text: str, scope: Scope) -> Scalar | Undecided:
    data: dict[str, object] = {}
    unknown: list[tuple[str, str]] = []
    try:
        program = compiled(text)
        for name, kind in program.inputs:
            value, reason = bound(kind, scope.get(name))
            if value is None:
                unknown.append((name, reason))
            else:
                data[name] = value
        result = program.code.eval(data=data)
    except RuntimeError as error:
        return Undecided(inputs=tuple(unknown), error=_reason(str(error), text))
    if result.type() == cel.Type.ERROR or result.type() == cel.Type.UNKNOWN:
        message = str(result.value())
        absent = any(f'No value with name "{name}"' in message for name, _ in unknown)
        return Undecided(inputs=tuple(unknown), error="" if absent else _reason(message, text))
    plain = result.value()
    return plain if isinstance(plain, bool | int | float | str) else Undecided(error=f"gives {result.type().name()}")


def _reason(message: str, text: str) -> str:
    """The library's message without its status words and its copy of the source; in our own where a divisor or arithmetic was wrapped."""
    if finiteness.ERROR in message:
        return finiteness.SAID
    if _OUTSIDE in message and guarded(text) != text:
        return SAID
    return re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", message.partition("\n")[0])


def bound(kind: Kind, value: Value | None) -> tuple[object, str]:
    """What CEL is given for a variable, or None and why it has no value."""
    if value is None:
        return None, "has no value here"
    if isinstance(value, Missing):
        return None, value.reason
    if isinstance(value, Stale):
        return None, say(value)
    plain: object = value.value if isinstance(value, Known) else value
    converted = _converted(kind, plain)
    return converted, "" if converted is not None else f"{plain!r:.60} is not of type {kind.value}"


def _converted(kind: Kind, plain: object) -> object:
    match kind:
        case Kind.BOOL:
            return plain if isinstance(plain, bool) else None
        case Kind.STRING:
            return _text(plain)
        case Kind.LABELS:
            return _labels(plain)
        case Kind.DOUBLE | Kind.INT:
            return _number(kind, plain)


def _number(kind: Kind, plain: object) -> object:
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not math.isfinite(plain):
        return None
    if kind is Kind.DOUBLE:
        return float(plain)
    return int(plain) if int(plain) == plain and -(2**63) <= plain < 2**63 else None


def _text(plain: object) -> str | None:
    return plain if isinstance(plain, str) and (plain.isascii() or plain.encode("utf-8", "ignore").decode() == plain) else None


def _labels(plain: object) -> dict[str, str] | None:
    if not isinstance(plain, Mapping):
        return None
    entries = dict(plain.items())
    return entries if all(_text(part) is not None for entry in entries.items() for part in entry) else None


@lru_cache(maxsize=4096)
def named(text: str) -> frozenset[str]:
    """The dotted names in an expression's text, whether or not it compiles."""
    return frozenset(chain.name for chain in lexer.chains(lexer.tokens(text)))


_SOUND: Final[dict[str, cel.Expression]] = {}
"""What `check` compiled of late: whoever asks for its tree needn't compile it anew."""


def _sound(text: str, code: cel.Expression) -> None:
    if len(_SOUND) >= _MOST_SOUND:
        _SOUND.clear()
    _SOUND[text] = code


@lru_cache(maxsize=4096)
def syntax(text: str) -> Tree:
    """The syntax tree of an expression; `Other` for one that doesn't compile."""
    try:
        code = _SOUND.get(text) or _literally(text)
        return read(code.serialize())
    except RuntimeError:
        return Other()
