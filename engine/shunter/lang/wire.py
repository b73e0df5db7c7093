"""Which variables a checked CEL expression reads, taken from its serialized form: a `cel.expr.CheckedExpr` inside a `google.protobuf.Any`.

CEL's Python library doesn't show its syntax tree, and its protobuf classes aren't distributed; two message types are all that it takes.
"""

from collections.abc import Iterator


def referenced(serialized: bytes) -> frozenset[str]:
    """The identifiers in the expression's reference map (variables, type names, loop variables). Raises ValueError for other bytes."""
    checked = b"".join(value for number, value in _fields(serialized) if number == 2)
    names = set()
    for number, entry in _fields(checked):
        if number != 2:  # CheckedExpr.reference_map
            continue
        for part, reference in _fields(entry):
            if part == 2:  # the entry's value: Reference, whose field 1 is the name of a variable (empty for functions)
                names |= {value.decode("utf-8") for field, value in _fields(reference) if field == 1}
    return frozenset(names)


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message, as (field number, bytes). Others are passed over."""
    position = 0
    while position < len(data):
        key, position = varint(data, position)
        kind = key & 7
        if kind == 2:
            size, position = varint(data, position)
            if position + size > len(data):
                raise ValueError("the serialized expression is cut short")
            yield key >> 3, data[position : position + size]
            position += size
        elif kind == 0:
            _, position = varint(data, position)
        else:
            position += {1: 8, 5: 4}[kind]


def varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it. Raises ValueError when it is cut short."""
    value = shift = 0
    while True:
        if position >= len(data):
            raise ValueError("the serialized expression is cut short")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
