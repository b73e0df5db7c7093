"""Strict YAML: text to a tree of nodes that know where they stand, or problems. Nothing is guessed and nothing is dropped.

The scalars are YAML 1.2's core schema (`no`, `on` and dates are text), and what YAML 1.1 and 1.2 read as different numbers is refused.
libyaml gives events; the tree is built here, iteratively, so that depth, size, duplicate keys, anchors and tags are decided at the event.
"""

import math
import re
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

import msgspec
from yaml import YAMLError
from yaml._yaml import CParser, Mark
from yaml.error import MarkedYAMLError
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from yaml.reader import ReaderError

from shunter.lang.diagnostics import MAX_PROBLEMS, SourceText, shown
from shunter.model.errors import Problem

MAX_BYTES: Final = 256 * 1024
MAX_DEPTH: Final = 32
MAX_NODES: Final = 20_000

Plain: TypeAlias = str | int | float | bool | None

_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", re.ASCII)
_AMBIGUOUS: Final = (
    (re.compile(r"[-+]?0[0-9_]+", re.ASCII), "is octal in YAML 1.1 and decimal in YAML 1.2"),
    (re.compile(r"[-+]?0[0-9_]+\.[0-9_]*", re.ASCII), "is read differently by YAML versions"),
    (re.compile(r"[-+]?0(?:o[0-7]+|x[0-9a-fA-F_]+|b[01_]+)", re.ASCII), "is a number only to some YAML versions"),
    (re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII), "is a number to the base 60 in YAML 1.1"),
    (re.compile(r"(?=[^_]*_)[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?", re.ASCII), "is a number in YAML 1.1 and text in YAML 1.2"),
)
_NUMERIC: Final = frozenset("0123456789+-.")
_WORDS: Final[dict[str, Plain]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Scalar(msgspec.Struct, gc=False):
    """A scalar: its meaning and its text. `style` is `"` `'` `|` `>` or empty for plain. Offsets are in characters of the file."""

    value: Plain
    text: str
    style: str
    start: int
    end: int

    def opening(self, source: str) -> int:
        """Offset of the first character of the text itself, after a quote or a block header and its indentation."""
        if self.style in ("'", '"'):
            return self.start + 1
        if self.style in ("|", ">"):
            head = source.find("\n", self.start, self.end)
            body = source[head + 1 : self.end]
            return head + 1 + len(body) - len(body.lstrip(" \r\n")) if head >= 0 else self.start
        return self.start


class Sequence(msgspec.Struct):
    """A list."""

    items: "list[Node]"
    start: int
    end: int


class Mapping(msgspec.Struct):
    """A mapping with text keys, in the file's order."""

    entries: "dict[str, tuple[Scalar, Node]]"
    start: int
    end: int

    def get(self, key: str) -> "Node | None":
        """The value at `key`, or None when the key isn't there."""
        found = self.entries.get(key)
        return found[1] if found else None


Node: TypeAlias = Scalar | Sequence | Mapping


def look_up(node: Node, path: tuple[str | int, ...]) -> Node:
    """The node at `path`, or the deepest one on the way there that exists."""
    for step in path:
        below: Node | None = None
        if isinstance(node, Mapping):
            below = node.get(str(step))
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            below = node.items[step]
        if below is None:
            return node
        node = below
    return node


def plain(node: Node) -> object:
    """The tree as Python's own dicts, lists and scalars."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return {key: plain(value) for key, (_, value) in node.entries.items()}


def decode(path: str, data: bytes) -> tuple[SourceText, list[Problem]]:
    """The file's text. What can't be text gives a problem and an empty text."""
    empty = SourceText(path, "")
    if len(data) > MAX_BYTES:
        what = f"the file has {len(data)} bytes, more than {MAX_BYTES // 1024} KiB"
        return empty, [empty.problem("SH101", 0, what, "Split it into several files")]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = SourceText(path, data[: error.start].decode("utf-8"))
        what = f"byte {data[error.start]:#04x} is not UTF-8"
        return empty, [before.problem("SH101", len(before.text), what, "Save the file as UTF-8")]
    source = SourceText(path, text.removeprefix("\ufeff"))
    nul = source.text.find("\0")
    if nul >= 0:
        return empty, [source.problem("SH101", nul, "the file holds a NUL character", "Save it as plain text")]
    return source, []


class _Stop(Exception):
    """No use reading on: the last problem is fatal for the file."""


class _Open(msgspec.Struct):
    """A collection that is being read. `key` is a mapping's key that waits for its value; `skip` says that its value is to be dropped."""

    node: Mapping | Sequence
    key: Scalar | None = None
    skip: bool = False


class _Spot(Protocol):
    """A mark of libyaml's: it counts characters."""

    index: int


class _Read(Protocol):
    """An event as libyaml makes it: with marks always, and with what its kind has."""

    start_mark: _Spot
    end_mark: _Spot
    anchor: str | None
    tag: str | None
    value: str
    style: str | None


class _Builder:
    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.documents: list[Node] = []
        self.stack: list[_Open] = []
        self.root: Node | None = None
        self.nodes = 0

    def add(self, code: str, offset: int, what: str, remedy: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(self.source.problem(code, offset, what, remedy))

    def fatal(self, code: str, offset: int, what: str, remedy: str) -> _Stop:
        self.add(code, offset, what, remedy)
        return _Stop()

    def _mapping(self, event: _Read) -> None:
        self._count(event)
        self._enter(Mapping({}, event.start_mark.index, event.end_mark.index))

    def _sequence(self, event: _Read) -> None:
        self._count(event)
        self._enter(Sequence([], event.start_mark.index, event.end_mark.index))

    def _document(self, _: _Read) -> None:
        if self.root is not None:
            self.documents.append(self.root)
        self.root = None

    def _alias(self, event: _Read) -> None:
        remedy = "Write the value out where it is used: policies have no aliases"
        raise self.fatal("SH104", event.start_mark.index, f"*{event.anchor} is an alias", remedy)

    def _count(self, event: _Read) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES or event.anchor or event.tag:
            self._unwanted(event)

    def _unwanted(self, event: _Read) -> None:
        at = event.start_mark.index
        if self.nodes > MAX_NODES:
            raise self.fatal("SH108", at, f"the file holds more than {MAX_NODES} values", "Split it into several files")
        if event.anchor:
            self.add("SH104", at, f"&{event.anchor} is an anchor", "Remove it: policies have no anchors and aliases")
        if event.tag:
            self.add("SH105", at, f"{shown(event.tag)} is a tag", 'Remove it; for text that looks like a number, use quotes: "1"')

    def _scalar(self, event: _Read) -> None:
        self._count(event)
        text, style = event.value, event.style or ""
        node = Scalar(text, text, style, event.start_mark.index, event.end_mark.index)
        if not style:
            if text in _WORDS:
                node.value = _WORDS[text]
            elif text[0] in _NUMERIC:
                node.value = self._number(node)
        top = self.stack[-1] if self.stack else None
        if top is None or not isinstance(top.node, Mapping) or not self._paired(top, top.node.entries, node):
            self._place(node)

    def _paired(self, top: _Open, entries: "dict[str, tuple[Scalar, Node]]", node: Scalar) -> bool:
        """Take the scalar if it is what most are: a key that is in order, or its value."""
        if top.key is not None:
            entries[top.key.text] = (top.key, node)
            top.key = None
            return True
        if top.skip or node.value.__class__ is not str or node.text in entries:
            return False
        top.key = node
        return True

    def _number(self, node: Scalar) -> Plain:
        text = node.text
        if _INT.fullmatch(text) and len(text) <= 16:
            return int(text)
        if _FLOAT.fullmatch(text):
            value = float(text)
            if math.isfinite(value) and not _INT.fullmatch(text):
                return value
            self.add("SH107", node.start, f"{shown(text)} is too large a number", "Write a smaller one, or put it in quotes if it is text")
        if _NOT_FINITE.fullmatch(text):
            self.add("SH107", node.start, f"{text} is not a finite number", "Write a number, or put it in quotes if it is text")
        for pattern, why in _AMBIGUOUS:
            if pattern.fullmatch(text):
                remedy = f'Put it in quotes if it is text: "{shown(text)}"; or write a plain decimal'
                self.add("SH107", node.start, f"{shown(text)} {why}", remedy)
                break
        return text

    def _enter(self, node: Mapping | Sequence) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise self.fatal("SH108", node.start, f"values are nested more than {MAX_DEPTH} deep", "A policy never needs that: flatten it")
        self._place(node)
        self.stack.append(_Open(node))

    def _leave(self, event: _Read) -> None:
        self.stack.pop().node.end = event.end_mark.index

    def _place(self, node: Node) -> None:
        if not self.stack:
            self.root = node
            return
        top = self.stack[-1]
        if isinstance(top.node, Sequence):
            top.node.items.append(node)
        elif top.key is None and not top.skip:
            self._key(top, node)
        else:
            if top.key is not None:
                top.node.entries[top.key.text] = (top.key, node)
            top.key, top.skip = None, False

    def _key(self, top: _Open, node: Node) -> None:
        assert isinstance(top.node, Mapping)
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            text = shown(node.text) if isinstance(node, Scalar) and node.text else "this key"
            self.add("SH106", node.start, f"{text} is not text", "Keys must be text: put it in quotes")
            top.skip = True
        elif node.text in top.node.entries:
            first = self.source.place(top.node.entries[node.text][0].start).line
            line = self.source.place(node.start).line
            what = f'key "{shown(node.text)}" stands twice, on line {first} and on line {line}'
            self.add("SH103", node.start, what, "Keep one of them")
            top.skip = True
        else:
            top.key = node


_HANDLERS: Final[dict[type[Event], Callable[[_Builder, Any], None]]] = {
    ScalarEvent: _Builder._scalar,
    AliasEvent: _Builder._alias,
    MappingStartEvent: _Builder._mapping,
    SequenceStartEvent: _Builder._sequence,
    MappingEndEvent: _Builder._leave,
    SequenceEndEvent: _Builder._leave,
    DocumentEndEvent: _Builder._document,
}


def _syntax(builder: _Builder, error: YAMLError) -> None:
    """A problem from libyaml's own error, at the character where it saw it."""
    offset = len(builder.source.text)
    reason = "not YAML"
    if isinstance(error, ReaderError):
        offset, reason = int(error.position), "a control character"
    elif isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        offset = mark.index if isinstance(mark, Mark) else offset
        reason = " ".join(part for part in (error.problem, error.context) if part)
    if "nesting depth" in reason:
        builder.add("SH108", offset, f"values are nested more than {MAX_DEPTH} deep", "A policy never needs that: flatten it")
        return
    what = f"the YAML can't be read here: {reason}"
    builder.add("SH102", offset, what, "Check the indentation, the colons and the quotes on this line and the one before")


def parse(source: SourceText) -> tuple[list[Node], list[Problem]]:
    """All documents of a file, in order, and everything wrong with it as YAML. With a problem the documents aren't to be trusted.

    Never raises for any text; takes time linear in its length.
    """
    builder = _Builder(source)
    try:
        parser = CParser(source.text)
        while (event := parser.get_event()) is not None:
            if (handler := _HANDLERS.get(event.__class__)) is not None:
                handler(builder, event)
    except _Stop:
        pass
    except YAMLError as error:
        _syntax(builder, error)
    return builder.documents, builder.problems
