"""Where the source makes problems: the code, the words and the remedy of each, read from the syntax tree without running anything."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

FOLDERS: Final = ("engine/shunter", "agent/shunter_agent")
_CODE: Final = re.compile(r"SH\d{3}")
_DOTS: Final = "..."
_VAGUE: Final = frozenset({"what", "why", "said", "error", "reason", "detail", "problem", "text"})
"""Names that stand for words that only the moment knows."""


class Raised(msgspec.Struct, frozen=True, kw_only=True):
    """A problem with `code` is made at `path` (relative to the project). `what` and `remedy` are empty where they aren't in that call."""

    code: str
    path: str
    line: int
    what: str
    remedy: str

    @property
    def room(self) -> str:
        """`act`, `lang`, ...; `agent`, or `agent/runtime` and so on, for the agent."""
        parts = Path(self.path).parts
        if parts[0] == "engine":
            return parts[2]
        return "agent" if len(parts) == 3 else f"agent/{parts[2]}"


def everywhere(root: Path) -> list[Raised]:
    """All of the source, by code, path and line."""
    files = sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py") if not file.stem.endswith(("_pb2", "_pb2_grpc")))
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in files}
    named = {name: code for tree in trees.values() for name, code in _constants(tree)}
    calls = {file: list(_calls(tree, {})) for file, tree in trees.items()}
    found: list[Raised] = []
    for file, own in calls.items():
        others = [call for other, more in calls.items() if other != file for call in more]
        found += _Reader(named, file.relative_to(root).as_posix(), own, others).read()
    return sorted(found, key=lambda r: (r.code, r.path, r.line))


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module constants that are codes, one by one or several in one line."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target, value = statement.targets[0], statement.value
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        for name, one in zip(names, values, strict=False):
            if isinstance(name, ast.Name) and isinstance(one, ast.Constant) and _CODE.fullmatch(str(one.value)):
                yield name.id, str(one.value)


Known = dict[str, ast.expr]
"""What names were given, as far as the source shows it."""


class _Call(msgspec.Struct, frozen=True):
    """A call in a function (None: in none), where these names are known."""

    node: ast.Call
    inside: ast.FunctionDef | ast.AsyncFunctionDef | None
    known: Known


def _calls(tree: ast.AST, known: Known, inside: ast.FunctionDef | ast.AsyncFunctionDef | None = None) -> Iterator[_Call]:
    """All calls below `tree`, function by function, so that a name can be followed to what it was given."""
    known = dict(known)
    for node in _own(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _calls(node, known, node)
        elif isinstance(node, ast.Call):
            yield _Call(node, inside, dict(known))


class _Reader:
    """Reads one file; the others are for the callers of its helpers."""

    def __init__(self, named: dict[str, str], path: str, own: list[_Call], others: list[_Call]) -> None:
        self.named, self.path, self.own, self.others = named, path, own, others

    def read(self) -> Iterator[Raised]:
        for call in self.own:
            yield from self.call(call)

    def call(self, call: _Call) -> Iterator[Raised]:
        """What a call makes, if it is one that makes a problem: `Problem(code=...)`, or a helper that is given a code."""
        node = call.node
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        place = next((n for n, argument in enumerate(node.args[:3]) if self.code(argument)), 0)
        code = self.code(keywords.get("code") or (node.args[place] if node.args else None))
        if code is None or _name(node.func) in ("startswith", "replace", "get"):
            return
        for known in self.settings(call):
            texts = [text for text in (_text(argument, known) for argument in node.args[place + 1 :]) if text]
            what = _text(keywords.get("what"), known) or (texts[0] if texts else "")
            remedy = _text(keywords.get("remedy"), known) or (texts[1] if len(texts) > 1 else self.usual_remedy(node))
            yield Raised(code=code, path=self.path, line=node.lineno, what=what, remedy=remedy)

    def settings(self, call: _Call) -> list[Known]:
        """What is known at a call: once for each caller, in a helper that is given its words."""
        helper = call.inside
        words = [argument.arg for argument in helper.args.args if argument.arg != "self"] if helper else []
        if helper is None or not {"what", "why", "remedy"} & set(words):
            return [call.known]
        callers = [one for one in self.own if _name(one.node.func) == helper.name]
        callers = callers or [one for one in self.others if _name(one.node.func) == helper.name]
        return [call.known | one.known | _bound(words, one) for one in callers] or [call.known]

    def usual_remedy(self, node: ast.Call) -> str:
        """The remedy that a helper of this file gives when it isn't given another."""
        for one in self.own:
            helper = one.inside
            if helper is None or helper.name != _name(node.func):
                continue
            for argument, default in zip(reversed(helper.args.args), reversed(helper.args.defaults), strict=False):
                if argument.arg == "remedy" and isinstance(default, ast.Constant):
                    return str(default.value)
        return ""

    def code(self, node: ast.expr | None) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
            return node.value
        return self.named.get(_name(node))


def _bound(names: list[str], call: _Call) -> Known:
    """A helper's parameters with what this call gives them; a name's value, as the helper may use the same name."""
    given = zip(names, call.node.args, strict=False)
    return {name: call.known.get(value.id, value) if isinstance(value, ast.Name) else value for name, value in given}


def _text(node: ast.expr | None, known: Known) -> str:
    """A text with its gaps named; empty for what is no text."""
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, known) or _filled(part, known) for part in parts)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            one, other = _text(left, known), _text(right, known)
            return (one or _gap(left)) + (other or _gap(right)) if one or other else ""
        case ast.IfExp(body=body, orelse=orelse):
            return " / ".join(filter(None, (_text(body, known), _text(orelse, known))))
        case ast.Name(id=name) if name in known:
            return _text(known[name], {key: value for key, value in known.items() if key != name}) or _vague(name)
        case ast.Name(id=name):
            return _vague(name)
        case ast.Call(func=ast.Name(id="str")):
            return _DOTS
    return ""


def _vague(name: str) -> str:
    return _DOTS if name in ("what", "why") else ""


def _filled(part: ast.expr, known: Known) -> str:
    """A gap whose words the source shows (`{what}`, given by a caller), or its name."""
    name = part.value.id if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) else ""
    said = _text(part.value, known) if isinstance(part, ast.FormattedValue) and name in ("what", "why", "step") else ""
    return said or _gap(part)


def _own(tree: ast.AST) -> Iterator[ast.AST]:
    """A node's descendants in the order of the source, functions inside it as one."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own(node)


def _gap(node: ast.expr) -> str:
    """What a gap in a text is filled with: the last part of a name, or dots."""
    value = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "join" and value.args:
        value = value.args[0]
    name = _name(value)
    return f"*{name.strip('_')}*" if name and name not in _VAGUE else _DOTS


def _name(node: ast.AST | None) -> str:
    """The last part of a name; empty for what isn't one."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
