"""Random well-typed expressions over the policy vocabulary, and random subjects with awkward values. Seeded: the same every time."""

import math
import random
from collections.abc import Callable
from typing import Any

from shunter.model.sample import Known, Missing, Stale
from shunter.model.vocabulary import VARIABLES, Kind

NAMES = {kind: [name for name, v in VARIABLES.items() if v.kind is kind] for kind in Kind}
NAMES[Kind.DOUBLE] = [*NAMES[Kind.DOUBLE][:9], "metrics.wait", "now"]
KEYS = ("tier", "team", "gpu-count", "é")
TEXTS = (
    "",
    "a",
    "b",
    "prefill",
    "decode",
    "running",
    "é😀",
    "\U0001f600",
    "\uff5a",
    "10",
    "-7",
    "2.5",
    "1e400",
    "true",
    "a.b",
    "A",
    "NaN",
    "fr-1",
)
PATTERNS = ("^a", "e$", "^[a-f]+$", ".", "é.", "^(pre|de)", "(", r"\\d+", "(?i)a", "x{1001}")
DOUBLES = (0.0, -0.0, 0.25, 0.6, 1.0, 2.0, 3.5, 10.0, -4.0, 1e308, -1e308, 5e-324, 9007199254740992.0, 9007199254740994.0, 9.3e18)
INTS = (0, 1, 2, 3, 5, 10, -1, -7, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), 3037000500)


class Expressions:
    """Grows expressions of one type. `plain` keeps to what cel-python does as the specification says."""

    def __init__(self, seed: int, *, plain: bool = False) -> None:
        self.random = random.Random(seed)
        self.plain = plain

    def pick(self, *ways: Callable[[int], str], depth: int) -> str:
        return self.random.choice(ways)(depth - 1)

    def truth(self, depth: int) -> str:
        if depth <= 0:
            return self.random.choice(("node.noticed", "node.noticed", "true", "false", self.presence(0), self.comparison(0), self.role(0)))
        logical = (self.both, self.both, self.negation, self.truth_where)
        atoms = (self.comparison, self.comparison, self.mixed, self.text_comparison, self.search, self.member, self.presence, self.same)
        if self.random.random() < 0.04 and not self.plain:
            return self.not_columnar(depth - 1)
        if self.plain:
            atoms = (self.comparison, self.comparison, self.text_comparison, self.search, self.member)
        return self.pick(*logical, *atoms, depth=depth)

    def both(self, depth: int) -> str:
        return f"({self.truth(depth)} {self.random.choice(('&&', '||'))} {self.truth(depth)})"

    def negation(self, depth: int) -> str:
        return f"!({self.truth(depth)})"

    def same(self, depth: int) -> str:
        return f"({self.truth(depth)} {self.random.choice(('==', '!='))} {self.truth(depth)})"

    def truth_where(self, depth: int) -> str:
        return f"({self.truth(depth)} ? {self.truth(depth)} : {self.truth(depth)})"

    def sign(self) -> str:
        return self.random.choice(("<", "<=", ">", ">=", "==", "!="))

    def comparison(self, depth: int) -> str:
        grow = self.random.choice((self.double, self.whole))
        return f"({grow(depth)} {self.sign()} {grow(depth)})"

    def mixed(self, depth: int) -> str:
        sides = [self.double(depth), self.whole(depth)]
        self.random.shuffle(sides)
        return f"({sides[0]} {self.sign()} {sides[1]})"

    def text_comparison(self, depth: int) -> str:
        side = self.joined if self.random.random() < 0.2 else self.text
        return f"({side(depth)} {self.sign()} {self.text(depth)})"

    def role(self, depth: int) -> str:
        return f'(worker.role == "{self.random.choice(("decode", "prefill"))}")'

    def search(self, depth: int) -> str:
        method = self.random.choice(("startsWith", "endsWith", "contains", "matches"))
        if method == "matches":
            return f'{self.text(depth)}.matches("{self.random.choice(PATTERNS[:6] if self.plain else PATTERNS)}")'
        return f"{self.text(depth)}.{method}({self.text(min(depth, 0))})"

    def member(self, depth: int) -> str:
        count = self.random.randint(0, 4)
        match self.random.randint(1, 3):
            case 1:
                return f"({self.text(depth)} in [{', '.join(self.quoted() for _ in range(count))}])"
            case 2:
                return f"({self.double(depth)} in [{', '.join(number(self.random.choice(DOUBLES)) for _ in range(count))}])"
            case _:
                return f"({self.whole(depth)} in [{', '.join(number(self.random.choice(INTS)) for _ in range(count))}])"

    def not_columnar(self, depth: int) -> str:
        """What has no counterpart on columns, alone or beside something that has."""
        forms = (
            lambda d: f"[{self.double(d)}, {self.double(d)}].exists(x, x > {self.double(d)})",
            lambda d: f"({self.text(d)} in [{self.text(d)}, {self.text(d)}])",
            lambda d: f"worker.labels.all(key, key != {self.text(d)})",
            lambda d: f"{self.text(d)}.matches(worker.role)",
            lambda d: f"(string({self.whole(d)}) == {self.quoted()})",
            lambda d: f"(timestamp({self.whole(d)}).getHours() < 12)",
            lambda d: f"(type({self.double(d)}) == double)",
            lambda d: f"(worker.labels == node.labels || {self.truth(d)})",
            lambda d: f"(dyn({self.whole(d)}) == {self.text(d)})",
        )
        return self.random.choice(forms)(min(depth, 1))

    def presence(self, depth: int) -> str:
        name, key = self.random.choice(NAMES[Kind.LABELS]), self.random.choice(KEYS)
        if self.plain or self.random.random() < 0.5 or not key.isascii() or "-" in key:
            return f'("{key}" in {name})'
        return f"has({name}.{key})"

    def double(self, depth: int) -> str:
        if depth <= 0:
            name = self.random.choice(NAMES[Kind.DOUBLE])
            return name if self.random.random() < 0.65 else number(self.random.choice(DOUBLES))
        ways: tuple[Callable[[int], str], ...] = (
            lambda d: f"({self.double(d)} {self.random.choice('+-*' if self.plain else '+-*/')} {self.double(d)})",
            lambda d: f"(-({self.double(d)}))",
            lambda d: f"({self.truth(d)} ? {self.double(d)} : {self.double(d)})",
            lambda d: f"double({self.whole(d)})",
            lambda d: f"double({self.text(d)})",
            self.double,
        )
        return self.pick(*(ways[:4] if self.plain else ways), depth=depth)

    def whole(self, depth: int) -> str:
        if depth <= 0:
            name = self.random.choice(NAMES[Kind.INT])
            return name if self.random.random() < 0.65 else number(self.random.choice(INTS))
        ways: tuple[Callable[[int], str], ...] = (
            lambda d: f"({self.whole(d)} {self.random.choice('+-*/%')} {self.whole(d)})",
            lambda d: f"(-({self.whole(d)}))",
            lambda d: f"({self.truth(d)} ? {self.whole(d)} : {self.whole(d)})",
            lambda d: f"size({self.text(d)})",
            lambda d: f"size({self.random.choice(NAMES[Kind.LABELS])})",
            lambda d: f"int({self.double(d)})",
            lambda d: f"int({self.text(d)})",
            self.whole,
        )
        return self.pick(*(ways[:4] if self.plain else ways), depth=depth)

    def joined(self, depth: int) -> str:
        return f"({self.text(depth)} + {self.text(depth)})"

    def quoted(self) -> str:
        return f'"{self.random.choice(TEXTS)}"'

    def text(self, depth: int) -> str:
        if depth <= 0:
            leaf = self.random.random()
            if leaf < 0.5:
                return self.random.choice(NAMES[Kind.STRING])
            labels = f'{self.random.choice(NAMES[Kind.LABELS])}["{self.random.choice(KEYS)}"]'
            return labels if leaf < 0.7 else self.quoted()
        ways: tuple[Callable[[int], str], ...] = (
            self.text if self.plain else self.joined,
            lambda d: f"({self.truth(d)} ? {self.text(d)} : {self.text(d)})",
            lambda d: f"string({self.text(d)})",
        )
        return self.pick(*ways, depth=depth)


def number(value: float) -> str:
    """A literal. CEL's least whole number can't be in parentheses."""
    return f"{value!r}" if isinstance(value, int) or "." in repr(value) else repr(float(value)).replace("e", ".0e")


def subjects(seed: int, count: int, *, missing: float = 0.05) -> list[dict[str, Any]]:
    """Scopes in which a share of the values is missing, in every way that one can be."""
    chance = random.Random(seed)
    names = {name: kind for kind, named in NAMES.items() for name in named}
    return [{name: value for name, kind in names.items() if (value := _value(chance, kind, missing)) is not None} for _ in range(count)]


def _value(chance: random.Random, kind: Kind, missing: float) -> Any:
    if chance.random() < missing:
        gaps = (None, Missing(reason="NaN"), Stale(value=1.0, age=90.0, max_age=30.0, query="q"), math.nan, object())
        return chance.choice(gaps)
    match kind:
        case Kind.DOUBLE:
            value = chance.choice(DOUBLES) if chance.random() < 0.5 else round(chance.uniform(-5, 20), 2)
            return value if chance.random() < 0.5 else Known(value=value, unit="", at=0.0, query="q")
        case Kind.INT:
            return chance.choice(INTS) if chance.random() < 0.5 else chance.randint(-5, 30)
        case Kind.BOOL:
            return chance.random() < 0.5
        case Kind.STRING:
            return chance.choice(TEXTS)
        case Kind.LABELS:
            return {key: chance.choice(TEXTS) for key in KEYS if chance.random() < 0.6}
